//! What activations weigh: per named activation of a layer, in the working set of one layer, and at the head.

use crate::keys::Config;
use crate::model::{Activations, DType, ModelConfig, Placement, RematPolicy};

/// Bytes and work that follow from a remat policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Activity {
    /// Kept on the device from the forward to the backward, over all layers.
    pub kept: u64,
    /// Moved to the host, over all layers.
    pub offloaded: u64,
    /// Alive at once in the backward of one layer, beside what is kept.
    pub working: u64,
    /// Operations of the forward that the backward does again, in one step.
    pub recomputed_flops: f64,
}

/// Features of a named activation for every token.
fn width(model: &ModelConfig, name: Activations) -> u64 {
    let query = model.num_query_heads * model.head_dim;
    let key = model.num_kv_heads * model.head_dim;
    (match name {
        Activations::DecoderLayerInput | Activations::OutProj | Activations::Mlpwo => model.emb_dim,
        Activations::QueryProj | Activations::Context => query,
        Activations::KeyProj | Activations::ValueProj => key,
        Activations::Mlpwi0 | Activations::Mlpwi1 => model.mlp_dim,
    }) as u64
}

/// Bytes of a named activation for every token; attention's output brings the log-sum-exp of every row with it.
fn bytes(model: &ModelConfig, name: Activations) -> u64 {
    let log_sum_exp = if name == Activations::Context { 4 * model.num_query_heads as u64 } else { 0 };
    width(model, name) * bytes_of(model.dtype) + log_sum_exp
}

pub(super) fn bytes_of(dtype: DType) -> u64 {
    match dtype {
        DType::Float32 => 4,
        DType::BFloat16 | DType::Float16 => 2,
    }
}

/// Operations per token that computing an activation takes; a layer's input and what follows a named activation
/// elementwise cost next to nothing.
fn flops(model: &ModelConfig, name: Activations, length: u64) -> f64 {
    let (e, w) = (model.emb_dim as f64, width(model, name) as f64);
    match name {
        Activations::DecoderLayerInput => 0.0,
        Activations::QueryProj | Activations::KeyProj | Activations::ValueProj => 2.0 * e * w,
        // Causal: a query sees half of the row on average.
        Activations::Context => 4.0 * w * length as f64 / 2.0,
        Activations::OutProj => 2.0 * (model.num_query_heads * model.head_dim) as f64 * w,
        Activations::Mlpwi0 | Activations::Mlpwi1 => 2.0 * e * w,
        Activations::Mlpwo => 2.0 * model.mlp_dim as f64 * w,
    }
}

impl Activity {
    /// What `policy` makes of one micro batch of `tokens` tokens.
    pub(super) fn of(config: &Config, model: &ModelConfig, policy: &RematPolicy, tokens: u64) -> Self {
        let layers = model.num_decoder_layers as u64;
        let placed = |placement| {
            let names = Activations::ALL.iter().filter(|name| policy.placement(**name) == placement);
            names.map(|name| bytes(model, *name)).sum::<u64>()
        };
        // No gradient reads the MLP's output, so it isn't computed again even where it isn't kept.
        let recomputed = Activations::ALL
            .iter()
            .filter(|name| policy.placement(**name) == Placement::Remat && **name != Activations::Mlpwo)
            .map(|name| flops(model, *name, config.max_target_length as u64))
            .sum::<f64>();
        Self {
            kept: tokens * layers * placed(Placement::Device),
            offloaded: tokens * layers * placed(Placement::Offload),
            working: tokens * layer_working(model, policy),
            recomputed_flops: recomputed
                * (tokens * layers) as f64
                * config.gradient_accumulation_steps as f64,
        }
    }
}

/// Bytes per token alive at the peak of one layer's backward, which is at the MLP's activation: what isn't on the device
/// already (but not the results of the two residual branches, which nothing reads again), the values between named activations
/// (two norms, the residual stream), the cotangents of the residual stream and of the MLP's hidden values, gate and linear
/// branch. Products of other types than float32 are summed up in float32 first.
fn layer_working(model: &ModelConfig, policy: &RematPolicy) -> u64 {
    let missing = |name: &&Activations| {
        let is_read = !matches!(name, Activations::OutProj | Activations::Mlpwo);
        is_read && policy.placement(**name) != Placement::Device
    };
    let rebuilt: u64 = Activations::ALL.iter().filter(missing).map(|name| bytes(model, *name)).sum();
    let (e, m) = (model.emb_dim as u64, model.mlp_dim as u64);
    let (between, cotangents) = (3 * e, 2 * e + 3 * m);
    let sums = if model.dtype == DType::Float32 { 0 } else { 4 * m };
    rebuilt + (between + cotangents) * bytes_of(model.dtype) + sums
}

/// Bytes alive at once at the head, beside what is kept: its input, the normed one, their cotangents, and a tile of logits.
pub(super) fn head_working(model: &ModelConfig, tiling: usize, tokens: u64) -> u64 {
    let sums = if model.dtype == DType::Float32 { 0 } else { 4 }; // cotangents are summed up in float32
    let per_token = model.emb_dim as u64 * (4 * bytes_of(model.dtype) + sums);
    let logit = if model.logits_dot_in_fp32 { size_of::<f32>() } else { bytes_of(model.dtype) as usize };
    let rows = head_tile_rows(tokens as usize, model.vocab_size, logit, tiling);
    tokens * per_token + (rows * model.vocab_size * logit) as u64
}

/// Rows of which logits of `logit_bytes` exist at once: as many as fit 64 MiB (larger tiles read the head's kernel and its
/// gradient from memory less often), at most a `num_vocab_tiling`-th of all, evenly.
pub fn head_tile_rows(
    tokens: usize,
    vocab_size: usize,
    logit_bytes: usize,
    num_vocab_tiling: usize,
) -> usize {
    const TILE_BYTES: usize = 64 << 20;
    let fitting = (TILE_BYTES / logit_bytes / vocab_size.max(1)).max(64);
    let tiles = tokens.div_ceil(fitting).max(num_vocab_tiling).max(1);
    tokens.div_ceil(tiles).max(1)
}
