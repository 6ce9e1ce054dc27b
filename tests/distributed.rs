//! Several ranks under `mpirun` on this machine. Built with the feature `mpi` only.
#![cfg(feature = "mpi")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeSet;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use common::{Bench, Run};
use serde_json::Value;

/// Losses and norms of every step.
const CURVES: [&str; 3] = ["learning/loss", "learning/raw_grad_norm", "learning/param_norm"];
/// Sums in another order, over a few steps.
const ROUNDING: f64 = 2e-5;
/// What the issue of a dead rank may take.
const LIMIT: Duration = Duration::from_secs(30);

fn number(step: &Value, key: &str) -> f64 {
    step[key].as_f64().unwrap()
}

/// Packed text, four rows a step.
fn bench() -> Bench {
    Bench::new().on_text().with("per_device_batch_size", "4").with("steps", "8")
}

/// The keys that spread four rows over `data * fsdp` ranks.
fn spread(data: usize, fsdp: usize) -> Vec<String> {
    vec![
        format!("per_device_batch_size={}", 4 / (data * fsdp)),
        format!("ici_data_parallelism={data}"),
        format!("ici_fsdp_parallelism={fsdp}"),
    ]
}

fn run(bench: &Bench, data: usize, fsdp: usize, more: &[&str]) -> Run {
    let keys = spread(data, fsdp);
    let arguments: Vec<&str> = keys.iter().map(String::as_str).chain(more.iter().copied()).collect();
    Run::of(bench.ranks(data * fsdp, &arguments).output().unwrap()).expect(0)
}

#[track_caller]
fn assert_same_curve(one: &Bench, other: &Bench, what: &str) {
    let (one, other) = (one.metrics(), other.metrics());
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>(), "{what}");
    for (step, expected) in &one {
        for key in CURVES {
            let (expected, found) = (number(expected, key), number(&other[step], key));
            assert!(
                (expected - found).abs() <= ROUNDING * expected.abs(),
                "{what}, step {step}, {key}: {expected} alone, {found} on ranks"
            );
        }
    }
}

#[test]
fn ranks_have_the_curve_of_one_process() {
    let alone = bench();
    alone.run(&[]).expect(0);
    for (data, fsdp) in [(2, 1), (1, 2), (4, 1), (1, 4), (2, 2)] {
        let ranks = bench();
        let run = run(&ranks, data, fsdp, &[]);
        assert_same_curve(&alone, &ranks, &format!("{data} x {fsdp}"));
        // One rank speaks: each step's line is there once.
        assert_eq!(run.losses().len(), 8, "{}", run.stderr);
    }
}

#[test]
fn ranks_have_the_curve_whatever_is_kept_accumulated_or_clipped() {
    let keys = ["gradient_clipping_threshold=0.3"];
    let alone = bench();
    alone.run(&keys).expect(0);
    for policy in ["full", "minimal", "save_qkv_proj", "none"] {
        let remat = format!("remat_policy={policy}");
        let ranks = bench();
        // Two micro batches of one row on each of two ranks.
        let accumulated = ["per_device_batch_size=1", "gradient_accumulation_steps=2"];
        run(&ranks, 1, 2, &[&[keys[0], &remat], &accumulated[..]].concat());
        assert_same_curve(&alone, &ranks, policy);
    }
}

#[test]
fn ranks_compute_the_same_bits_again() {
    let benches = [bench(), bench()];
    for bench in &benches {
        run(bench, 2, 2, &[]);
    }
    let [one, two] = benches.map(|bench| bench.metrics());
    for (step, expected) in &one {
        for key in CURVES {
            assert_eq!(expected[key], two[step][key], "step {step}, {key}");
        }
    }
}

#[test]
fn a_checkpoint_goes_on_on_any_number_of_ranks_and_converts() {
    let alone = bench();
    alone.run(&[]).expect(0);

    let moved = bench();
    let stop = |step: &str| [format!("steps={step}"), "learning_rate_schedule_steps=8".to_owned()];
    for ((data, fsdp), step) in [((1, 4), "2"), ((2, 1), "4"), ((1, 2), "6")] {
        let keys = stop(step);
        run(&moved, data, fsdp, &[&keys[0], &keys[1]]);
    }
    moved.run(&["steps=8"]).expect(0);
    assert_same_curve(&alone, &moved, "four ranks, two, two others, one");

    let folder = moved.output("checkpoints/1");
    let names: BTreeSet<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(names.contains("model.safetensors.index.json"), "{names:?}");
    assert!(!names.iter().any(|name| name.starts_with("part-")), "{names:?}");
    let converted = Command::new(env!("CARGO_BIN_EXE_mt-convert"))
        .arg("to-hf")
        .args([&folder, &moved.path("hf")])
        .output()
        .unwrap();
    assert!(converted.status.success(), "{}", String::from_utf8_lossy(&converted.stderr));
    assert!(moved.path("hf/model.safetensors").is_file());
}

/// Process ids of the ranks, in their order.
fn pids_of_ranks(mpirun: &Child) -> Vec<u32> {
    let children = Command::new("pgrep").args(["-P", &mpirun.id().to_string(), "mt-train"]).output().unwrap();
    let mut pids: Vec<u32> =
        String::from_utf8(children.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    pids.sort_unstable();
    pids
}

/// Whether a process runs, or is stopped. One that has ended may wait for a parent that asks after it.
fn runs(pid: u32) -> bool {
    let patience = Instant::now() + Duration::from_secs(5);
    loop {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // `pid (name) state ...`
        let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
        match state {
            None | Some('Z' | 'X') => return false,
            _ if Instant::now() > patience => return true,
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

/// Waits for the end, which must come in time; returns the exit code.
fn wait(mpirun: &mut Child, limit: Duration) -> Option<i32> {
    let clock = Instant::now();
    loop {
        if let Some(status) = mpirun.try_wait().unwrap() {
            return status.code();
        }
        if clock.elapsed() > limit {
            mpirun.kill().unwrap();
            panic!("the ranks don't end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_dead_or_stopped_rank_ends_the_others_and_is_named() {
    for (name, victim) in [("-KILL", 1), ("-KILL", 0), ("-STOP", 1), ("-STOP", 0)] {
        let bench = bench().with("steps", "1000000");
        let keys = spread(1, 2);
        let mut mpirun = bench.spawn(bench.ranks(2, &keys.iter().map(String::as_str).collect::<Vec<_>>()));
        bench.wait_for("completed step: 3,");
        let pids = pids_of_ranks(&mpirun);
        assert_eq!(pids.len(), 2);
        signal(pids[victim], name);
        assert_ne!(wait(&mut mpirun, LIMIT), Some(0), "{}", bench.stderr());
        let stderr = bench.stderr();
        assert!(stderr.contains(&format!("rank {victim}")), "{name} {victim}:\n{stderr}");
        for pid in pids {
            assert!(!runs(pid), "{pid} still runs");
        }
    }
}

#[test]
fn killed_ranks_lose_nothing() {
    let keys = spread(1, 2);
    let saving = ["steps=40", "checkpoint_period=7"];
    let arguments: Vec<&str> = keys.iter().map(String::as_str).chain(saving).collect();
    let whole = bench();
    Run::of(whole.ranks(2, &arguments).output().unwrap()).expect(0);

    let broken = bench();
    for (i, kill_after) in
        ["completed step: 9,", "completed step: 16,", "completed step: 30,"].iter().enumerate()
    {
        let mut mpirun = broken.spawn(broken.ranks(2, &arguments));
        broken.wait_for(kill_after);
        signal(pids_of_ranks(&mpirun)[i % 2], "-KILL");
        assert_ne!(wait(&mut mpirun, LIMIT), Some(0));
    }
    let run = Run::of(broken.ranks(2, &arguments).output().unwrap()).expect(0);
    assert!(run.stderr.contains("restoring from this run's directory step"), "{}", run.stderr);
    let (one, other) = (whole.metrics(), broken.metrics());
    for (step, expected) in &one {
        for key in CURVES {
            assert_eq!(expected[key], other[step][key], "step {step}, {key}");
        }
    }
}

#[test]
fn sigterm_to_one_rank_stops_all_after_the_same_step() {
    let bench = bench().with("steps", "1000000");
    let keys = spread(1, 2);
    let arguments: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut mpirun = bench.spawn(bench.ranks(2, &arguments));
    bench.wait_for("completed step: 2,");
    signal(pids_of_ranks(&mpirun)[1], "-TERM");
    assert_eq!(wait(&mut mpirun, LIMIT), Some(0), "{}", bench.stderr());
    let last = *bench.metrics().keys().last().unwrap();
    assert!(bench.output(&format!("checkpoints/{last}/manifest.json")).is_file(), "{}", bench.stderr());
}

#[test]
fn an_error_of_one_rank_is_everyones() {
    // The learning rate makes the loss infinite or NaN on every rank; a full disk is one rank's alone and is tried with a folder
    // that can't be written to.
    let bench = bench().with("steps", "1000000").with("checkpoint_period", "5");
    let keys = spread(1, 2);
    let arguments: Vec<&str> = keys.iter().map(String::as_str).collect();
    std::fs::create_dir_all(bench.output("")).unwrap();
    std::fs::write(bench.output("checkpoints"), "in the way").unwrap();
    let mut mpirun = bench.spawn(bench.ranks(2, &arguments));
    assert_ne!(wait(&mut mpirun, LIMIT), Some(0));
    assert!(bench.stderr().contains("checkpoints"), "{}", bench.stderr());
}

#[test]
fn ranks_that_do_not_fit_the_keys_are_refused_with_both_numbers() {
    let bench = bench();
    let output = bench.ranks(2, &["per_device_batch_size=2", "ici_fsdp_parallelism=3"]).output().unwrap();
    let run = Run::of(output);
    assert_ne!(run.code, Some(0));
    assert!(run.stderr.contains('3') && run.stderr.contains("2 "), "{}", run.stderr);
    assert!(run.stderr.contains("ici_fsdp_parallelism"), "{}", run.stderr);
}
