//! Training from the command line: what it prints, what it writes, how it ends.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Bench, mt_train};
use regex::Regex;
use serde_json::Value;

#[test]
fn a_run_prints_maxtexts_lines_and_writes_its_tree() {
    let bench = Bench::new();
    let run = bench.run(&[]).expect(0);

    let line = Regex::new(
        r"(?m)^I\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ \S+:\d+\] completed step: \d+, seconds: \d+\.\d{3}, TFLOP/s/device: \d+\.\d{3}, Tokens/s/device: \d+\.\d{3}, total_weights: 64, loss: \d+\.\d{3}, lm_loss: \d+\.\d{3}, perplexity: \d+\.\d{3}, grad_norm: ",
    )
    .unwrap();
    assert_eq!(line.find_iter(&run.stderr).count(), 6, "{}", run.stderr);
    assert!(run.stderr.contains("number parameters: 0.000 billion"), "{}", run.stderr);
    assert!(run.stderr.contains("Memstats: After params initialized:"), "{}", run.stderr);
    assert!(run.stdout.starts_with("Per train step:\n Total TFLOPs: "), "{}", run.stdout);
    assert!(run.stdout.contains("learnable weight flops and "), "{}", run.stdout);
    for row in
        ["steps", "tokens", "tokens/s", "TFLOP/s", "peak memory", "final loss", "metrics", "checkpoints"]
    {
        assert!(
            run.stdout.lines().any(|line| line.starts_with(&format!("{row} "))),
            "{row}:\n{}",
            run.stdout
        );
    }

    let losses = run.losses();
    assert_eq!(losses.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    assert!((losses[0].1 - 300_f64.ln()).abs() < 0.7, "a fresh model is near ln(vocab): {losses:?}");
    assert!(losses[5].1 < losses[0].1, "{losses:?}");

    let config = std::fs::read_to_string(bench.output("config.yml")).unwrap();
    assert!(config.contains("base_emb_dim: 32"), "{config}");
    assert!(std::fs::read_to_string(bench.output("train.log")).unwrap().contains("completed step: 5"));
    assert!(bench.output("checkpoints/5/model.safetensors").is_file());
    let events = std::fs::read_dir(bench.output("tensorboard/tiny")).unwrap();
    assert!(
        events.filter_map(Result::ok).any(|file| file.file_name().to_string_lossy().contains("tfevents"))
    );
}

#[test]
fn metrics_are_maxtexts_and_equal_the_lines() {
    let bench = Bench::new();
    let file = bench.path("own.jsonl").display().to_string();
    let run = bench.run(&[&format!("metrics_file={file}")]).expect(0);
    let metrics = bench.metrics();
    assert_eq!(metrics, common::read_metrics(file.as_ref()));
    assert_eq!(metrics.len(), 6);
    for (step, loss) in run.losses() {
        let written = metrics[&step]["learning/loss"].as_f64().unwrap();
        assert!((written - loss).abs() <= 0.000_501, "step {step}: {written} and {loss}");
    }
    for key in [
        "learning/lm_loss",
        "learning/perplexity",
        "learning/z_loss",
        "learning/total_weights",
        "learning/grad_norm",
        "learning/raw_grad_norm",
        "learning/param_norm",
        "learning/current_learning_rate",
        "perf/step_time_seconds",
        "perf/per_device_tflops",
        "perf/per_device_tflops_per_sec",
        "perf/per_device_tokens",
        "perf/per_device_tokens_per_sec",
        "perf/data_wait_seconds",
        "data/padding_share",
    ] {
        assert!(metrics[&3][key].is_number(), "{key}: {}", metrics[&3]);
    }
    assert_eq!(metrics[&3]["run_name"], Value::from("tiny"));
}

#[test]
fn what_happens_to_the_data_is_counted() {
    let bench = Bench::new().on_text().with("max_target_length", "16");
    bench.run(&["steps=3"]).expect(0);
    let metrics = bench.metrics();
    let of = |key: &str| metrics[&2][key].as_f64().unwrap();
    // Lines of some 20 to 30 bytes in rows of 16: a third or more is cut off.
    assert!((0.2..0.7).contains(&of("data/dropped_share")), "{}", of("data/dropped_share"));
    assert_eq!((of("data/padding_share"), of("data/skipped_rows")), (0.0, 0.0));
    assert_eq!(of("data/tokens_seen"), 3.0 * 2.0 * 16.0);
    assert!(of("perf/data_wait_seconds") >= 0.0);
}

#[test]
fn micro_batches_give_the_numbers_of_the_big_batch() {
    let losses = |keys: [&str; 2]| {
        let bench = Bench::new().on_text();
        bench.run(&keys).expect(0);
        bench.metrics()
    };
    let big = losses(["per_device_batch_size=4", "gradient_accumulation_steps=1"]);
    let small = losses(["per_device_batch_size=1", "gradient_accumulation_steps=4"]);
    for (step, big) in &big {
        for (key, tolerance) in
            [("learning/loss", 1e-5), ("learning/raw_grad_norm", 1e-4), ("learning/total_weights", 0.0)]
        {
            let (big, small) = (big[key].as_f64().unwrap(), small[step][key].as_f64().unwrap());
            assert!((big - small).abs() <= tolerance * big.abs(), "step {step}, {key}: {big} and {small}");
        }
    }
}

#[test]
fn evaluation_prints_maxtexts_lines_and_can_end_the_run() {
    let bench = Bench::new().on_text();
    let files = format!("hf_eval_files={}", bench.path("a.txt").display());
    let run = bench.run(&[&files, "eval_interval=2", "eval_steps=3", "target_eval_loss=100"]).expect(0);
    let eval = Regex::new(
        r"Completed eval after train step (\d+), loss=\d+\.\d{3}, perplexity=\d+\.\d{3}, total_weights=\d+\.0, avg_z_loss=0\.000",
    )
    .unwrap();
    assert_eq!(eval.captures_iter(&run.stderr).map(|found| found[1].to_owned()).collect::<Vec<_>>(), ["0"]);
    let steps = run.stderr.matches("Completed eval step: ").count();
    assert_eq!(steps, 3, "{}", run.stderr);
    assert!(run.stdout.contains("target_eval_loss reached"), "{}", run.stdout);

    let run = bench
        .run(&[&files, "eval_interval=2", "eval_steps=3", "eval_start_step=1", "run_name=again"])
        .expect(0);
    assert_eq!(
        eval.captures_iter(&run.stderr).map(|found| found[1].to_owned()).collect::<Vec<_>>(),
        ["1", "3", "5"]
    );
}

#[test]
fn a_nan_ends_the_run_with_code_1_and_names_the_last_good_checkpoint() {
    let bench = Bench::new();
    bench.run(&["steps=3"]).expect(0);
    // A learning rate that no float survives.
    let run = bench.run(&["steps=9", "learning_rate=1e38", "gradient_clipping_threshold=0"]).expect(1);
    assert!(
        Regex::new("error: Aborting training due to NaN (loss|gradient)\\. It came at step")
            .unwrap()
            .is_match(&run.stderr),
        "{}",
        run.stderr
    );
    assert!(run.stderr.contains(&bench.output("checkpoints/2").display().to_string()), "{}", run.stderr);
    assert_eq!(run.stderr.matches("error: ").count(), 1, "printed once: {}", run.stderr);
}

#[test]
fn a_profile_and_a_report_are_written() {
    let bench = Bench::new();
    let run = bench
        .run(&["profiler=xplane", "skip_first_n_steps_for_profiler=1", "profiler_steps=2", "steps=4"])
        .expect(0);
    assert!(run.stderr.contains("profiling from step 1"), "{}", run.stderr);
    assert!(run.stderr.contains("time of 2 profiled steps"), "{}", run.stderr);
    let sessions = std::fs::read_dir(bench.output("tensorboard/plugins/profile")).unwrap();
    let session = sessions.map(|entry| entry.unwrap().path()).next().unwrap();
    let mut files: Vec<String> = std::fs::read_dir(session)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert!(files[0].ends_with(".trace.json.gz") && files[1].ends_with(".xplane.pb"), "{files:?}");
    let report = std::fs::read_to_string(bench.output("report.html")).unwrap();
    assert!(report.contains("<svg") && report.contains("Loss"), "plots are in the page");
}

#[test]
fn a_vendors_profiler_that_is_not_there_is_named_and_training_goes_on() {
    let run = Bench::new().run(&["profiler=rocprof", "steps=2"]).expect(0);
    let says = ["none of librocprofiler-sdk-roctx.so.1, ", "are ranges; run this command under `rocprofv3"];
    assert!(says.iter().any(|text| run.stderr.contains(text)), "{}", run.stderr);
    assert_eq!(run.losses().len(), 2);
}

#[test]
fn an_unknown_key_ends_with_code_2_and_a_suggestion() {
    let run = Bench::new().with("learning_rat", "1").run(&[]).expect(2);
    assert!(run.stderr.contains("learning_rate") && run.stderr.contains("run.yml"), "{}", run.stderr);
    let run = Bench::new().run(&["stepz=3"]).expect(2);
    assert!(run.stderr.contains("did you mean") && run.stderr.contains("steps"), "{}", run.stderr);
    Bench::new().run(&["steps"]).expect(2);
    let run = common::Run::of(mt_train().args(["--config", "/nowhere/run.yml"]).output().unwrap()).expect(2);
    assert!(run.stderr.contains("/nowhere/run.yml"), "{}", run.stderr);
}

#[test]
#[cfg(not(any(feature = "rocm", feature = "cuda", feature = "wgpu")))]
fn a_gpu_is_refused_by_a_build_without_gpu_support() {
    let run = Bench::new().run(&["hardware=gpu"]).expect(1);
    assert!(run.stderr.contains("hardware: gpu") && run.stderr.contains("--features rocm"), "{}", run.stderr);
    let run = Bench::new().run(&["hardware=tpu"]).expect(2);
    assert!(run.stderr.contains("tpu"), "{}", run.stderr);
}

#[test]
fn dry_run_counts_llama3_8b_without_touching_anything() {
    let bench = Bench::new();
    let command = mt_train()
        .args(["--dry-run", "model_name=llama3-8b", "run_name=dry"])
        .arg(format!("base_output_directory={}", bench.path("out").display()))
        .output();
    let run = common::Run::of(command.unwrap()).expect(0);
    assert!(run.stdout.contains("8,030,261,248"), "{}", run.stdout);
    assert!(!bench.path("out").exists());
}

#[test]
fn a_recipe_for_eight_devices_is_planned_for_eight_and_refused_on_one() {
    let bench = Bench::new().with("ici_fsdp_parallelism", "8");
    let run = bench.run(&["--dry-run"]).expect(0);
    for text in ["planned for 8 ranks", "8 ranks, 8 per node: data 1 x fsdp 8", "reduce-scatter"] {
        assert!(run.stdout.contains(text), "{text}:\n{}", run.stdout);
    }
    let run = bench.run(&["--dry-run", "--ranks", "16"]).expect(0);
    assert!(run.stdout.contains("data 2 x fsdp 8"), "{}", run.stdout);
    let run = bench.run(&["--dry-run", "--ranks", "4"]).expect(2);
    assert!(run.stderr.contains("is 8, but this run has 4 ranks per node"), "{}", run.stderr);

    let run = bench.run(&[]).expect(2);
    for text in
        ["run.yml:", "`ici_fsdp_parallelism: 8` is 8, but this run has 1 rank per node", "mpirun -n 8"]
    {
        assert!(run.stderr.contains(text), "{text}:\n{}", run.stderr);
    }
    assert!(!bench.path("out").exists(), "nothing was started");
    bench.run(&["ici_fsdp_parallelism=-1"]).expect(0);
}

#[test]
fn keys_explain_themselves() {
    let help =
        |arguments: &[&str]| common::Run::of(mt_train().args(arguments).output().unwrap()).expect(0).stdout;
    assert!(help(&["--help-keys", "checkpoint_period"]).contains("checkpoint_period"));
    assert!(help(&["--help-keys"]).len() > 10_000);
    assert!(help(&["--devices"]).contains("CPU"));
    assert!(help(&["--version"]).starts_with("mt-train "));
}

#[test]
fn inspect_data_shows_documents_and_trains_nothing() {
    let bench = Bench::new().on_text();
    let run = bench.run(&["--inspect-data", "1"]).expect(0);
    assert!(
        Regex::new(r"== row 1: 1 documents, \d+ of 32 tokens").unwrap().is_match(&run.stdout),
        "{}",
        run.stdout
    );
    assert!(run.stdout.contains("<bos>line "), "{}", run.stdout);
    assert!(!bench.path("out").exists());
}

#[test]
fn a_secret_is_in_no_file_and_on_no_screen() {
    let secret = "hf_nobodyMayReadThis";
    let bench = Bench::new().with("hf_access_token", secret);
    let run = bench.run(&["log_config=true", "stderr_sink_level=TRACE"]).expect(0);
    let dry = bench.run(&["--dry-run", "--all"]).expect(0);
    assert!(![&run.stdout, &run.stderr, &dry.stdout, &dry.stderr].iter().any(|text| text.contains(secret)));
    let mut folders = vec![bench.path("out")];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let bytes = std::fs::read(&path).unwrap();
                let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
                assert!(!found, "{}", path.display());
                files += 1;
            }
        }
    }
    assert!(files > 5);
}

#[test]
fn sink_levels_drive_the_sinks() {
    let quiet = Bench::new().run(&["stderr_sink_level=ERROR"]).expect(0);
    assert_eq!(quiet.stderr, "");
    let bench = Bench::new();
    bench.run(&["sink_level=ERROR", "stderr_sink_level=DEBUG"]).expect(0);
    assert_eq!(std::fs::read_to_string(bench.output("train.log")).unwrap(), "");
    let bench = Bench::new();
    let run = bench.run(&[]).expect(0);
    assert!(!run.stderr.contains("Config param adam_b1"), "defaults are for the log file");
    assert!(
        std::fs::read_to_string(bench.output("train.log")).unwrap().contains("Config param adam_b1: 0.9")
    );
}
