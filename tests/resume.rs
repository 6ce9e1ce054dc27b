//! Runs that are interrupted, killed, or started twice.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use common::Bench;
use serde_json::Value;

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

/// The exit code, or `None` for a process that a signal ended.
fn wait(child: &mut Child) -> Option<i32> {
    let patience = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        assert!(Instant::now() < patience, "the process doesn't end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Losses and norms as they were written, to the last digit.
fn numbers(bench: &Bench) -> Vec<(u64, Value, Value)> {
    let metrics = bench.metrics();
    let number = |object: &Value, key: &str| object[key].clone();
    metrics
        .iter()
        .map(|(step, o)| (*step, number(o, "learning/loss"), number(o, "learning/param_norm")))
        .collect()
}

#[test]
fn a_killed_run_goes_on_with_the_numbers_of_an_uninterrupted_one() {
    let steps = ["steps=40", "checkpoint_period=7", "async_checkpointing=true"];
    let whole = Bench::new().on_text();
    whole.run(&steps).expect(0);

    // The texts are the same, the folder is another.
    let broken = Bench::new().on_text();
    for kill_after in ["completed step: 9,", "completed step: 20,", "completed step: 30,"] {
        let mut child = broken.start(&steps);
        broken.wait_for(kill_after);
        signal(&child, "-KILL");
        assert_eq!(wait(&mut child), None);
    }
    let run = broken.run(&steps).expect(0);
    assert!(run.stderr.contains("restoring from this run's directory step"), "{}", run.stderr);
    assert_eq!(numbers(&broken), numbers(&whole));

    let params = |bench: &Bench| std::fs::read(bench.output("checkpoints/39/model.safetensors")).unwrap();
    assert!(params(&broken) == params(&whole), "the final parameters differ");
}

#[test]
fn sigterm_finishes_the_step_saves_and_exits_with_0() {
    for name in ["-TERM", "-INT"] {
        let bench = Bench::new();
        let mut child = bench.start(&["steps=100000"]);
        bench.wait_for("completed step: 2,");
        signal(&child, name);
        assert_eq!(wait(&mut child), Some(0), "{}", bench.stderr());

        let last = *bench.metrics().keys().last().unwrap();
        assert!(
            bench.output(&format!("checkpoints/{last}/model.safetensors")).is_file(),
            "{}",
            bench.stderr()
        );
        let steps = format!("steps={}", last + 3);
        // The schedule is another, since the number of steps is: only the count is compared.
        let run = bench.run(&[&steps]).expect(0);
        assert_eq!(run.losses().len(), 2);
        assert!(run.stdout.contains(&format!("2 ({} were done before", last + 1)), "{}", run.stdout);
    }
}

#[test]
fn a_second_run_is_kept_out_of_the_folder() {
    let bench = Bench::new();
    let mut child = bench.start(&["steps=100000"]);
    bench.wait_for("completed step: 0,");
    let run = bench.run(&[]).expect(1);
    assert!(run.stderr.contains(&format!("process {}", child.id())), "{}", run.stderr);
    signal(&child, "-KILL");
    wait(&mut child);
}

#[test]
fn a_finished_run_says_so_and_goes_on_when_given_more_steps() {
    let bench = Bench::new();
    bench.run(&["steps=3"]).expect(0);
    let run = bench.run(&["steps=3"]).expect(0);
    assert!(run.losses().is_empty());
    assert!(run.stderr.contains("nothing left to do"), "{}", run.stderr);
    assert_eq!(bench.run(&["steps=5"]).expect(0).losses().len(), 2);
}

#[test]
fn a_changed_model_or_batch_is_refused_with_both_values() {
    let bench = Bench::new();
    bench.run(&["steps=2"]).expect(0);
    let run = bench.run(&["steps=4", "base_mlp_dim=96", "per_device_batch_size=3"]).expect(1);
    for text in [
        "mlp_dim is 96 now, 64 in the checkpoint",
        "per_device_batch_size * gradient_accumulation_steps * ranks is 3 now, 2 in the checkpoint",
    ] {
        assert!(run.stderr.contains(text), "{text}:\n{}", run.stderr);
    }
}

#[test]
fn parameters_of_another_run_can_be_the_start() {
    let bench = Bench::new();
    let first = bench.run(&["steps=5"]).expect(0).losses();
    let path = format!("load_parameters_path={}", bench.output("checkpoints/4").display());
    let second = bench.run(&["run_name=next", &path, "steps=2"]).expect(0).losses();
    assert_eq!(second[0].0, 0);
    assert!(second[0].1 < first[0].1, "{first:?} {second:?}");

    let path = format!("load_full_state_path={}", bench.output("checkpoints/4").display());
    let third = bench.run(&["run_name=third", &path, "steps=7"]).expect(0).losses();
    assert_eq!(third.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [5, 6]);
}

#[test]
fn without_checkpointing_nothing_is_saved() {
    let bench = Bench::new();
    bench.run(&["enable_checkpointing=false"]).expect(0);
    assert!(!bench.output("checkpoints").exists());
}
