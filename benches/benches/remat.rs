//! What each remat policy costs on this machine: `cargo bench -p benches --bench remat [-- ROUNDS]`.
//!
//! One step (forward and backward, no optimizer) of a 4-layer Llama, emb 512, mlp 1408, 8/4 heads, vocab 32,000, 4 rows of
//! 512 tokens in float32. `kept` and `peak` are bytes of activations as the model counts them; `resident` is the process's
//! peak as the kernel counts it, weights and gradients included.

use std::fs;
use std::time::Instant;

use benches::{STEP_MODEL, config, peak_rss_mb, rounds, whole_rows};
use burn::tensor::Device;
use mt_config::{ModelConfig, RematPolicyName};
use mt_model::scan::Gradients;
use mt_model::{BatchTensors, LossOutput, Model};

const POLICIES: [(&str, RematPolicyName); 10] = [
    ("full", RematPolicyName::Full),
    ("save_out_proj", RematPolicyName::SaveOutProj),
    ("save_qkv_proj", RematPolicyName::SaveQkvProj),
    ("save_dot_except_mlp", RematPolicyName::SaveDotExceptMlp),
    ("save_dot_with_context_except_mlp", RematPolicyName::SaveDotWithContextExceptMlp),
    ("save_dot_except_mlpwi", RematPolicyName::SaveDotExceptMlpwi),
    ("minimal", RematPolicyName::Minimal),
    ("minimal_with_context", RematPolicyName::MinimalWithContext),
    ("qkv_proj_offloaded", RematPolicyName::QkvProjOffloaded),
    ("minimal_offloaded", RematPolicyName::MinimalOffloaded),
];

const BATCH: usize = 4;
const SEQ: usize = 512;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(rounds) = rounds(3) else { return Ok(()) };
    let config = config(&[&STEP_MODEL, &[("max_target_length", "512"), ("dtype", "float32")]])?.model();

    println!(
        "{:34}{:>9}{:>9}{:>10}{:>12}{:>10}",
        "policy", "kept MB", "peak MB", "again GF", "resident MB", "ms"
    );
    for (name, policy) in POLICIES {
        let model =
            Model::new(ModelConfig { remat_policy: policy.policy(), ..config.clone() }, &Device::flex());
        let batch = whole_rows(&model, BATCH, SEQ)?;
        step(&model, &batch); // warms caches and the allocator
        fs::write("/proc/self/clear_refs", "5").ok();
        let times: Vec<(f64, LossOutput)> = (0..rounds)
            .map(|_| {
                let start = Instant::now();
                let loss = step(&model, &batch);
                (start.elapsed().as_secs_f64() * 1e3, loss)
            })
            .collect();
        let fastest = times.iter().map(|(ms, _)| *ms).fold(f64::MAX, f64::min);
        let read = times[0].1.accounting;
        println!(
            "{name:34}{:9.1}{:9.1}{:10.2}{:>12}{fastest:10.0}",
            read.kept_bytes as f64 / 1e6,
            read.peak_bytes as f64 / 1e6,
            read.recomputed_flops as f64 / 1e9,
            format!("{:.0}", peak_rss_mb()),
        );
    }
    Ok(())
}

fn step(model: &Model, batch: &BatchTensors) -> LossOutput {
    let mut gradients = Gradients::default();
    model.loss_and_gradients(batch, batch.mean_factor(), &mut gradients)
}
