//! The memory that `--dry-run` plans is what the process takes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::Bench;
use mt_config::{LoadArgs, load};

/// A model that weighs something: most of it are weights, gradients and moments.
const MODEL: [(&str, &str); 9] = [
    ("base_emb_dim", "512"),
    ("base_mlp_dim", "1408"),
    ("base_num_query_heads", "8"),
    ("base_num_kv_heads", "4"),
    ("head_dim", "64"),
    ("base_num_decoder_layers", "4"),
    ("vocab_size", "16000"),
    ("max_target_length", "512"),
    ("per_device_batch_size", "2"),
];

/// Deep and narrow, with many tokens: activations outweigh the rest.
const DEEP: [(&str, &str); 7] = [
    ("base_emb_dim", "256"),
    ("base_mlp_dim", "768"),
    ("base_num_query_heads", "4"),
    ("base_num_kv_heads", "2"),
    ("base_num_decoder_layers", "12"),
    ("vocab_size", "2000"),
    ("per_device_batch_size", "8"),
];

fn case(keys: &[&[(&str, &str)]]) -> Bench {
    let base = Bench::new()
        .with("steps", "2")
        .with("enable_checkpointing", "false")
        .with("enable_tensorboard", "false");
    let keys = MODEL.iter().chain(keys.iter().copied().flatten());
    keys.fold(base, |bench, (key, value)| bench.with(key, value))
}

/// Peak of the process, in bytes.
fn measured(bench: &Bench) -> f64 {
    bench.run(&[]).expect(0);
    let metrics = bench.metrics();
    let peak = metrics.values().map(|line| line["perf/host_memory_peak_bytes"].as_f64().unwrap());
    peak.fold(0.0, f64::max)
}

fn planned(bench: &Bench) -> f64 {
    let _ = bench.command(&[]); // writes the file
    let config_path = Some(bench.path("run.yml"));
    let config = load(&LoadArgs { config_path, ..LoadArgs::default() }).unwrap();
    config.plan().memory.peak(config.remat_policy).unwrap() as f64
}

#[test]
fn the_plan_is_within_a_tenth_of_the_peak() {
    // What a process takes that computes next to nothing: the program, its threads and queues.
    let program = measured(&Bench::new().with("enable_checkpointing", "false"));
    let policy = |name: &'static str| [("remat_policy", name)];
    let [full, minimal, context] = ["full", "minimal", "minimal_with_context"].map(policy);
    let bfloat16 = [("dtype", "bfloat16")];
    let all_bfloat16 = [("dtype", "bfloat16"), ("weight_dtype", "bfloat16"), ("grad_dtype", "bfloat16")];
    let cases: [(&str, Bench); 15] = [
        ("full", case(&[&full])),
        ("minimal_with_context", case(&[&context])),
        ("four rows", case(&[&context, &[("per_device_batch_size", "4")]])),
        ("bfloat16", case(&[&context, &bfloat16])),
        ("all bfloat16", case(&[&minimal, &all_bfloat16])),
        ("tied", case(&[&context, &[("logits_via_embedding", "true")]])),
        ("accumulated", case(&[&full, &[("gradient_accumulation_steps", "2")]])),
        ("sgd", case(&[&full, &[("opt_type", "sgd")]])),
        ("deep, full", case(&[&DEEP, &full])),
        ("deep, save_out_proj", case(&[&DEEP, &policy("save_out_proj")])),
        ("deep, save_dot_except_mlp", case(&[&DEEP, &policy("save_dot_except_mlp")])),
        ("deep, minimal", case(&[&DEEP, &minimal])),
        ("deep, minimal_with_context", case(&[&DEEP, &context])),
        ("deep, bfloat16", case(&[&DEEP, &context, &bfloat16])),
        ("deep, all bfloat16", case(&[&DEEP, &full, &all_bfloat16])),
    ];
    let mut report = String::new();
    let mut worst = 0.0f64;
    for (name, bench) in &cases {
        let (planned, measured) = (planned(bench), measured(bench) - program);
        let off = planned / measured - 1.0;
        worst = worst.max(off.abs());
        report += &format!(
            "{name:28} planned {:6.1} MB, measured {:6.1} MB, {:+5.1} %\n",
            planned / 1e6,
            measured / 1e6,
            100.0 * off
        );
    }
    println!("the program itself: {:.1} MB\n{report}", program / 1e6);
    assert!(worst < 0.1, "{report}");
}
