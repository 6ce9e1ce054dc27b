//! What a run that is left alone for weeks must stand: being killed at any moment, and its own length.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use common::Bench;

/// Kills of the torture test; `MT_TEST_KILLS` asks for more.
const KILLS: u64 = 60;
/// Longest time before a kill, in milliseconds.
const LONGEST_WAIT: u64 = 120;

/// A run that saves all the time, some of its steps longer than a save and some shorter.
fn restless(steps: u64) -> Bench {
    Bench::new()
        .on_text()
        .with("steps", &steps.to_string())
        .with("learning_rate_schedule_steps", "1000")
        .with("checkpoint_period", "3")
        .with("max_num_checkpoints_to_keep", "2")
}

/// Steps of the checkpoints that bear their final name.
fn committed(bench: &Bench) -> Vec<u64> {
    let entries = std::fs::read_dir(bench.output("checkpoints")).into_iter().flatten();
    let mut steps: Vec<u64> =
        entries.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok()).collect();
    steps.sort_unstable();
    steps
}

/// The bytes of all tensors of a checkpoint, by file.
fn tensors(checkpoint: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(checkpoint).unwrap().map(|entry| entry.unwrap().path());
    let tensors = files.filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
    tensors
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(path).unwrap()))
        .collect()
}

#[test]
fn a_run_killed_again_and_again_loses_nothing_and_ends_where_an_undisturbed_one_does() {
    let kills = std::env::var("MT_TEST_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let bench = restless(1_000_000);
    let (mut random, mut last, mut interrupted_saves) = (1_u64, None, 0);
    for kill in 0..kills {
        let mut child = bench.start(&[]);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Every other run gets to save, however slow the machine is; the rest are killed whatever they're at.
        let patience = Instant::now() + Duration::from_secs(60);
        while kill % 2 == 0 && committed(&bench).last().copied() <= last {
            assert!(Instant::now() < patience, "no save in a minute:\n{}", bench.stderr());
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis((random >> 33) % LONGEST_WAIT));
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().code(), None, "it ended by itself:\n{}", bench.stderr());
        let steps = committed(&bench);
        assert!(last <= steps.last().copied(), "kill {kill}: {last:?} is gone, {steps:?} are there");
        last = steps.last().copied();
        let entries = std::fs::read_dir(bench.output("checkpoints")).map_or(0, Iterator::count);
        interrupted_saves += u64::from(steps.len() < entries);
    }
    let reached = last.expect("some life was long enough to save");
    println!(
        "{kills} kills, {interrupted_saves} of them left an unfinished save; step {reached} was reached"
    );
    assert!(0 < interrupted_saves, "no kill hit a save");

    let steps = format!("steps={}", reached + 4);
    bench.run(&[&steps]).expect(0);
    let undisturbed = restless(1_000_000);
    undisturbed.run(&[&steps]).expect(0);
    let end = format!("checkpoints/{}", reached + 3);
    let [killed, whole] = [&bench, &undisturbed].map(|bench| tensors(&bench.output(&end)));
    assert!(whole.len() >= 2, "parameters and moments: {:?}", whole.keys());
    assert!(killed == whole, "parameters or moments differ at step {}", reached + 3);
}

#[test]
fn memory_is_flat_over_two_thousand_steps() {
    // What a save has copied may stay with the allocator until the next one, so the floors of windows of five saves are
    // compared: a leak lifts them. The vocabulary makes the process large enough for 2 % to be more than the allocator's noise.
    const WARM_UP: u64 = 500;
    let bench = Bench::new()
        .on_text()
        .with("vocab_size", "24000")
        .with("steps", "2500")
        .with("checkpoint_period", "100");
    bench.run(&["log_period=1000"]).expect(0);
    let metrics = bench.metrics();
    assert_eq!(metrics.len(), 2500);
    let memory = |steps: std::ops::Range<u64>| {
        let used = metrics.range(steps).map(|(_, line)| line["perf/host_memory_bytes"].as_f64().unwrap());
        used.fold(f64::INFINITY, f64::min)
    };
    let (early, late) = (memory(WARM_UP..WARM_UP + 500), memory(WARM_UP + 1500..WARM_UP + 2000));
    println!("{:.2} MB, then {:.2} MB", early / 1e6, late / 1e6);
    assert!(late < 1.02 * early, "{early} bytes in the first quarter, {late} in the last");
}
