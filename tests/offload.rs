//! `optimizer_memory_host_offload` through the real binary: without effect on the CPU, and on a GPU (a software device counts)
//! the same training with the moments gone from its memory.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::Bench;

const KEY: &str = "optimizer_memory_host_offload=true";

fn figures(bench: &Bench, key: &str) -> Vec<f64> {
    bench.metrics().values().map(|line| line[key].as_f64().unwrap()).collect()
}

#[test]
fn on_the_cpu_it_changes_no_bit_and_says_so() {
    let (plain, offloaded) = (Bench::new(), Bench::new());
    plain.run(&[]).expect(0);
    let run = offloaded.run(&[KEY]).expect(0);
    assert!(run.stderr.contains("`optimizer_memory_host_offload` has no effect"), "{}", run.stderr);
    for key in ["learning/loss", "learning/grad_norm", "learning/param_norm"] {
        assert_eq!(figures(&plain, key), figures(&offloaded, key), "{key}");
    }
}

#[test]
fn on_a_gpu_the_moments_leave_its_memory_and_training_is_the_same() {
    let bench = || Bench::new().with("hardware", "gpu").with("steps", "4");
    let (plain, offloaded) = (bench(), bench());
    let run = plain.run(&[]);
    if run.code != Some(0) {
        eprintln!("skipped: {}", run.stderr.lines().last().unwrap_or_default());
        return;
    }
    offloaded.run(&[KEY]).expect(0);
    for key in ["learning/loss", "learning/grad_norm", "learning/param_norm"] {
        for (plain, offloaded) in figures(&plain, key).into_iter().zip(figures(&offloaded, key)) {
            assert!((plain - offloaded).abs() <= 2e-6 * plain, "{key}: {plain} {offloaded}");
        }
    }
    let held = |bench: &Bench| figures(bench, "perf/device_memory_bytes").into_iter().fold(0.0, f64::max);
    let num_parameters =
        300.0 * 32.0 * 2.0 + 2.0 * (32.0 * 32.0 * 2.0 + 32.0 * 16.0 * 2.0 + 3.0 * 32.0 * 64.0);
    let (held_before, held_now) = (held(&plain), held(&offloaded));
    println!("{held_before} bytes on the device, {held_now} with the moments offloaded");
    assert!(held_before - held_now > 0.9 * 8.0 * num_parameters, "{held_before} {held_now}");

    // A checkpoint has the moments wherever they live.
    let resumed = offloaded.run(&[KEY, "steps=6"]).expect(0);
    assert!(resumed.stderr.contains("completed step: 5") && !resumed.stderr.contains("completed step: 3"));
}
