//! Quantized training through the binary, against the same run in bfloat16.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::Bench;

const STEPS: usize = 200;

/// A tiny model on text, 200 steps; the losses.
fn losses(quantization: &str) -> Vec<f64> {
    let bench = Bench::new()
        .on_text()
        .with("steps", &STEPS.to_string())
        .with("dtype", "bfloat16")
        .with("learning_rate", "3e-3")
        .with("enable_checkpointing", "false")
        .with("quantization", quantization);
    bench.run(&[]).expect(0);
    let losses: Vec<f64> =
        bench.metrics().values().map(|step| step["learning/loss"].as_f64().unwrap()).collect();
    assert_eq!(losses.len(), STEPS);
    losses
}

/// Every step sees the same batch in all runs, so losses can be compared one by one. Where the loss falls fast a step more or less
/// matters, so what is bounded is the mean distance over all steps, and that of the means of the last 50.
#[test]
fn quantized_curves_stay_near_bfloat16s() {
    let exact = losses("\"\"");
    assert!(exact[STEPS - 1] < 0.6 * exact[0], "the model learns: {} to {}", exact[0], exact[STEPS - 1]);
    for (quantization, all, last) in [("int8", 0.03, 0.01), ("fp8", 0.03, 0.01), ("nanoo_fp8", 0.03, 0.01)] {
        let found = losses(quantization);
        let distances = found.iter().zip(&exact).map(|(found, exact)| (found - exact).abs());
        let distance = distances.sum::<f64>() / STEPS as f64;
        let tail = |losses: &[f64]| losses[STEPS - 50..].iter().sum::<f64>() / 50.0;
        let end = (tail(&found) - tail(&exact)).abs();
        eprintln!("{quantization}: {distance:.4} over all steps, {end:.4} over the last");
        assert!(distance > 0.0, "{quantization} changes nothing");
        assert!(distance < all, "{quantization}: losses are off by {distance} in the mean");
        assert!(end < last, "{quantization}: the last losses are off by {end}");
    }
}

#[test]
fn a_quantized_run_resumes_bit_for_bit() {
    let bench = || Bench::new().with("quantization", "int8").with("checkpoint_period", "4");
    let (whole, halves) = (bench(), bench());
    let schedule = "learning_rate_schedule_steps=8";
    whole.run(&["steps=8", schedule]).expect(0);
    halves.run(&["steps=5", schedule]).expect(0);
    halves.run(&["steps=8", schedule]).expect(0);
    let loss = |bench: &Bench| {
        bench.metrics().values().map(|step| step["learning/loss"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(loss(&whole), loss(&halves));
}

#[test]
fn weights_only_is_for_decoding() {
    for quantization in ["int8w", "int4w"] {
        let run = Bench::new().with("quantization", quantization).run(&[]).expect(1);
        assert!(run.stderr.contains("for decoding (mt-decode); to train, use int8, fp8"), "{}", run.stderr);
    }
}
