//! `optimizer_memory_host_offload` through the real binary: without effect on the CPU, and on a GPU (a software device counts)
//! the same training with the moments gone from its memory.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;

use common::Bench;
use safetensors::SafeTensors;

const KEY: &str = "optimizer_memory_host_offload=true";

fn figures(bench: &Bench, key: &str) -> Vec<f64> {
    bench.metrics().values().map(|line| line[key].as_f64().unwrap()).collect()
}

/// Every array of a checkpoint, parameters and moments, by file and name.
fn arrays(bench: &Bench, step: u64) -> BTreeMap<String, Vec<f32>> {
    let mut arrays = BTreeMap::new();
    for file in std::fs::read_dir(bench.output(&format!("checkpoints/{step}"))).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "safetensors") {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            let (words, _) = view.data().as_chunks::<4>();
            let name = format!("{} {name}", path.file_name().unwrap().display());
            arrays.insert(name, words.iter().map(|word| f32::from_le_bytes(*word)).collect());
        }
    }
    assert!(arrays.keys().any(|name| name.contains("model")) && arrays.len() > 20, "{:?}", arrays.keys());
    arrays
}

/// Each element within `bound` of its array's largest magnitude.
#[track_caller]
fn assert_close(a: &BTreeMap<String, Vec<f32>>, b: &BTreeMap<String, Vec<f32>>, bound: f32) {
    assert!(a.keys().eq(b.keys()), "{:?} {:?}", a.keys(), b.keys());
    let mut most = 0.0f32;
    for ((name, a), b) in a.iter().zip(b.values()) {
        let largest = b.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        for (i, (a, b)) in a.iter().zip(b).enumerate() {
            let error = (a - b).abs();
            assert!(error <= bound * largest, "{name}, {i}: {a} {b}, of at most {largest}");
            most = most.max(error / largest.max(f32::MIN_POSITIVE));
        }
    }
    println!("off by {most:e} of the largest magnitude at most");
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
    assert!(arrays(&plain, 5) == arrays(&offloaded, 5));
}

/// Some steps of the 8 that the learning rate is planned for; none without a GPU.
fn on_gpu(arguments: &[&str]) -> Option<Bench> {
    let bench = Bench::new().with("hardware", "gpu").with("learning_rate_schedule_steps", "8");
    let run = bench.run(arguments);
    if run.code != Some(0) {
        eprintln!("skipped: {}", run.stderr.lines().last().unwrap_or_default());
        return None;
    }
    Some(bench)
}

#[test]
fn on_a_gpu_the_moments_leave_its_memory_and_training_is_the_same() {
    let Some(plain) = on_gpu(&["steps=4"]) else { return };
    let offloaded = on_gpu(&["steps=4", KEY]).unwrap();
    for key in ["learning/loss", "learning/grad_norm", "learning/param_norm"] {
        for (plain, offloaded) in figures(&plain, key).into_iter().zip(figures(&offloaded, key)) {
            assert!((plain - offloaded).abs() <= 2e-6 * plain, "{key}: {plain} {offloaded}");
        }
    }
    assert_close(&arrays(&offloaded, 3), &arrays(&plain, 3), 1e-4);
    let held = |bench: &Bench| figures(bench, "perf/device_memory_bytes").into_iter().fold(0.0, f64::max);
    let num_parameters =
        300.0 * 32.0 * 2.0 + 2.0 * (32.0 * 32.0 * 2.0 + 32.0 * 16.0 * 2.0 + 3.0 * 32.0 * 64.0);
    let (held_before, held_now) = (held(&plain), held(&offloaded));
    println!("{held_before} bytes on the device, {held_now} with the moments offloaded");
    assert!(held_before - held_now > 0.9 * 8.0 * num_parameters, "{held_before} {held_now}");

    // A checkpoint has the moments wherever they live: the key may change from run to run.
    let (switched_on, switched_off) = (plain, offloaded);
    for (bench, key) in [(&switched_on, KEY), (&switched_off, "optimizer_memory_host_offload=false")] {
        let resumed = bench.run(&[key, "steps=8"]).expect(0);
        assert!(
            resumed.stderr.contains("completed step: 7") && !resumed.stderr.contains("completed step: 3")
        );
    }
    let whole = on_gpu(&["steps=8"]).unwrap();
    for bench in [switched_on, switched_off] {
        assert_close(&arrays(&bench, 7), &arrays(&whole, 7), 1e-3);
    }
}
