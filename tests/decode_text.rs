//! The real `mt-decode` on what the real `mt-train` left behind.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::process::Command;

use common::{Bench, Run};

/// A model that has learned the lines of its text by heart, more or less.
fn trained() -> Bench {
    let bench = Bench::new()
        .on_text()
        .with("max_target_length", "64")
        .with("max_prefill_predict_length", "24")
        .with("steps", "60");
    bench.run(&[]).expect(0);
    bench
}

fn decode(bench: &Bench, arguments: &[&str]) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mt-decode"));
    command.arg("--config").arg(bench.path("run.yml")).args(arguments);
    Run::of(command.output().unwrap())
}

#[test]
fn greedy_text_is_the_same_every_time_and_makes_sense() {
    let bench = trained();
    let first = decode(&bench, &["prompt=line 1"]).expect(0);
    assert_eq!(first.stdout, decode(&bench, &["prompt=line 1"]).expect(0).stdout);
    assert!(first.stdout.starts_with("line 1"), "{}", first.stdout);
    // 60 steps are enough to learn how a line goes on; the digits are random.
    assert!(first.stdout.contains(" of "), "{}", first.stdout);
    for text in ["restoring params from", "/59", "prefill: 7 tokens in", "tokens/s; decode: ", "cache: "] {
        assert!(first.stderr.contains(text), "{text}:\n{}", first.stderr);
    }
    // In a cache of int8 the text may differ late, but not at once.
    for axis in ["dkv", "heads_and_dkv"] {
        let run =
            decode(&bench, &["prompt=line 1", "quantize_kvcache=true", &format!("kv_quant_axis={axis}")]);
        assert_eq!(run.expect(0).stdout[..10], first.stdout[..10]);
    }

    let path = format!("load_parameters_path={}", bench.output("checkpoints/59").display());
    let elsewhere = decode(&bench, &["prompt=line 1", "run_name=other", &path]).expect(0);
    assert_eq!(elsewhere.stdout, first.stdout);

    quantized_weights(&bench);
    sampling(&bench, &first.stdout);
    batches(&bench, &first.stdout);
    mistakes(&bench);
}

fn quantized_weights(bench: &Bench) {
    for kind in ["int8w", "int4w"] {
        let (folder, quantization) = (bench.path(kind), format!("quantization={kind}"));
        let save = format!("save_quantized_params_path={}", folder.display());
        let written = decode(bench, &["prompt=line 1", &quantization, &save]).expect(0);
        let load = format!("load_parameters_path={}", folder.display());
        let read = ["prompt=line 1", "run_name=other", "checkpoint_is_quantized=true", &load];
        let again = decode(bench, &[&read[..], &[&quantization]].concat()).expect(0);
        assert_eq!(again.stdout, written.stdout, "{kind}");
        // Nothing is overwritten, and other integers aren't taken for these.
        let twice = decode(bench, &["prompt=line 1", &quantization, &save]).expect(1);
        assert!(twice.stderr.contains("is there already"), "{}", twice.stderr);
        let other = if kind == "int8w" { "quantization=int4w" } else { "quantization=int8w" };
        let mixed = decode(bench, &[&read[..], &[other]].concat()).expect(1);
        assert!(mixed.stderr.contains(&format!("its quantization is {kind}")), "{}", mixed.stderr);
    }
}

fn sampling(bench: &Bench, greedy: &str) {
    let text = |arguments: &[&str]| decode(bench, &[&["prompt=line 1"], arguments].concat()).expect(0).stdout;
    let weighted = "decode_sampling_strategy=weighted";
    assert_eq!(text(&[weighted, "decode_sampling_seed=3"]), text(&[weighted, "decode_sampling_seed=3"]));
    assert_ne!(text(&[weighted, "decode_sampling_seed=3"]), text(&[weighted, "decode_sampling_seed=4"]));
    // Each with one candidate left, or as cold as ice, is greedy.
    assert_eq!(text(&["decode_sampling_strategy=topk", "decode_sampling_top_k=1"]), greedy);
    assert_eq!(text(&["decode_sampling_strategy=nucleus", "decode_sampling_nucleus_p=1e-6"]), greedy);
    assert_eq!(text(&[weighted, "decode_sampling_temperature=1e-4"]), greedy);
    let composite =
        ["decode_sampling_strategy=composite", "decode_sampling_top_k=5", "decode_sampling_nucleus_p=0.9"];
    assert_eq!(text(&composite), text(&composite));
}

fn batches(bench: &Bench, greedy: &str) {
    let file = bench.path("prompts.txt");
    std::fs::write(&file, "line 1\n\nof\n").unwrap();
    let run = decode(bench, &["--prompts", &file.display().to_string()]).expect(0);
    let alone = decode(bench, &["prompt=of"]).expect(0).stdout;
    assert_eq!(run.stdout, format!("[0] {greedy}[1] {alone}"));
}

fn mistakes(bench: &Bench) {
    let fails = |code: i32, arguments: &[&str], parts: &[&str]| {
        let run = decode(bench, arguments).expect(code);
        for part in parts {
            assert!(run.stderr.contains(part), "{arguments:?}: {part}:\n{}", run.stderr);
        }
        assert_eq!(run.stdout, "", "{arguments:?}");
    };
    fails(1, &["run_name=nothing"], &["there is no checkpoint in", "load_parameters_path"]);
    assert!(!bench.path("out/nothing").exists(), "decoding makes no folders");
    fails(
        1,
        &["prompt=this one is longer than the prefill"],
        &["prompt 0 has 36 tokens", "max_prefill_predict_length is 24"],
    );
    fails(
        1,
        &["max_prefill_predict_length=64"],
        &["max_prefill_predict_length is 64 and max_target_length 64"],
    );
    fails(1, &["prompt=", "add_bos=false"], &["prompt 0 has no token"]);
    fails(1, &["base_mlp_dim=96"], &["mlp/wi_0/kernel", "[32, 2, 64]", "[32, 2, 96]"]);
    fails(1, &["--prompts", "nowhere.txt"], &["can't take prompts from `nowhere.txt`"]);
    let ids = ["tokenizer_type=sentencepiece", "tokenizer_path=", "tokenize_train_data=false"];
    fails(1, &ids, &["reads token ids"]);
    fails(1, &["tokenizer_type=sentencepiece", "tokenizer_path=no.model"], &["tokenizer_path", "no.model"]);
    fails(2, &["decode_sampling_strategy=nucleus"], &["decode_sampling_nucleus_p", "above 0 and at most 1"]);
    fails(2, &["quantize_kvcache=true", "kv_quant_dtype=int4"], &["kv_quant_dtype", "int8"]);
    fails(2, &["promt=x"], &["did you mean `prompt`?"]);
}
