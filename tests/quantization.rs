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
        .with("enable_checkpointing", "false")
        .with("quantization", quantization);
    bench.run(&[]).expect(0);
    let losses: Vec<f64> =
        bench.metrics().values().map(|step| step["learning/loss"].as_f64().unwrap()).collect();
    assert_eq!(losses.len(), STEPS);
    losses
}

/// Every step sees the same batch in all runs, so losses can be compared one by one.
#[test]
fn quantized_curves_stay_near_bfloat16s() {
    let exact = losses("\"\"");
    assert!(exact[STEPS - 1] < 0.6 * exact[0], "the model learns: {} to {}", exact[0], exact[STEPS - 1]);
    for (quantization, bound) in [("int8", 0.05), ("fp8", 0.05), ("nanoo_fp8", 0.05)] {
        let found = losses(quantization);
        let distances = found.iter().zip(&exact).map(|(found, exact)| (found - exact).abs());
        let (worst, mean) = (distances.clone().fold(0.0, f64::max), distances.sum::<f64>() / STEPS as f64);
        eprintln!(
            "{quantization}: worst {worst:.4}, mean {mean:.4}, last {:.4} and {:.4}",
            found[STEPS - 1],
            exact[STEPS - 1]
        );
        assert!(worst > 0.0, "{quantization} changes nothing");
        assert!(worst < bound, "{quantization}: a loss is off by {worst}, the mean is {mean}");
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
