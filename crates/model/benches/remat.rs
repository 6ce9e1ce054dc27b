//! What each remat policy costs on this machine: `cargo bench -p mt-model --bench remat`.
//!
//! One step (forward and backward, no optimizer) of a 4-layer Llama, emb 512, mlp 1408, 8/4 heads, vocab 32,000, 4 rows of
//! 512 tokens in float32. `kept` and `peak` are bytes of activations as the model counts them; `resident` is the process's
//! peak as the kernel counts it, weights and gradients included.

use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

use burn::tensor::Device;
use mt_config::{LoadArgs, ModelConfig, RematPolicyName};
use mt_model::batch::Rows;
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
    let settings = [
        ("decoder_block", "llama2"),
        ("base_emb_dim", "512"),
        ("base_mlp_dim", "1408"),
        ("base_num_query_heads", "8"),
        ("base_num_kv_heads", "4"),
        ("head_dim", "64"),
        ("base_num_decoder_layers", "4"),
        ("vocab_size", "32000"),
        ("max_target_length", "512"),
        ("dtype", "float32"),
        ("dataset_type", "synthetic"),
        ("run_name", "bench"),
    ];
    let overrides = settings.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    let config = mt_config::load(&LoadArgs { config_path: None, overrides, env: BTreeMap::new() })?.model();

    println!(
        "{:34}{:>9}{:>9}{:>10}{:>12}{:>10}",
        "policy", "kept MB", "peak MB", "again GF", "resident MB", "ms"
    );
    for (name, policy) in POLICIES {
        let model =
            Model::new(ModelConfig { remat_policy: policy.policy(), ..config.clone() }, &Device::flex());
        let batch = batch(&model)?;
        step(&model, &batch); // warms caches and the allocator
        fs::write("/proc/self/clear_refs", "5").ok();
        let times: Vec<(f64, LossOutput)> = (0..3)
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
            resident_peak_mb().map_or("?".to_owned(), |mb| format!("{mb:.0}")),
        );
    }
    Ok(())
}

fn step(model: &Model, batch: &BatchTensors) -> LossOutput {
    let mut gradients = Gradients::default();
    model.loss_and_gradients(batch, batch.mean_factor(), &mut gradients)
}

/// Every row one document.
fn batch(model: &Model) -> Result<BatchTensors, Box<dyn std::error::Error>> {
    let tokens: Vec<i32> =
        (0..BATCH * SEQ + 1).map(|i| (i * 7919 % model.config().vocab_size) as i32).collect();
    let positions: Vec<i32> = (0..BATCH).flat_map(|_| 0..SEQ as i32).collect();
    let segments = vec![1; BATCH * SEQ];
    let rows = Rows {
        batch_size: BATCH,
        seq_len: SEQ,
        inputs: &tokens[..BATCH * SEQ],
        inputs_segmentation: &segments,
        inputs_position: &positions,
        targets: &tokens[1..],
        targets_segmentation: &segments,
    };
    Ok(BatchTensors::new(&rows, model.config(), &model.device())?)
}

/// Largest resident set since it was last cleared; Linux only.
fn resident_peak_mb() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<f64>().ok()? / 1024.0)
}
