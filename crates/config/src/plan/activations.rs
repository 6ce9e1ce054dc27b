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
    /// Alive at once in the backward of one layer, or at the head, beside what is kept.
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
    width(model, name) * size_of(model.dtype) + log_sum_exp
}

pub(super) fn size_of(dtype: DType) -> u64 {
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
            working: tokens * layer_working(model, policy).max(head_working(model))
                + head_tile(config, model, tokens),
            recomputed_flops: recomputed
                * (tokens * layers) as f64
                * config.gradient_accumulation_steps as f64,
        }
    }
}

/// Bytes per token alive at the peak of one layer's backward: what isn't on the device already, the values between named
/// activations (two norms, the residual stream, the MLP's hidden values), and the cotangents of the MLP.
fn layer_working(model: &ModelConfig, policy: &RematPolicy) -> u64 {
    let missing = |name: &&Activations| policy.placement(**name) != Placement::Device;
    let rebuilt: u64 = Activations::ALL.iter().filter(missing).map(|name| bytes(model, *name)).sum();
    let (e, m) = (model.emb_dim as u64, model.mlp_dim as u64);
    let between = 3 * e + m;
    let cotangents = 2 * e + 3 * m;
    rebuilt + (between + cotangents) * size_of(model.dtype)
}

/// Bytes per token at the head: the normed output, its cotangent, the cotangent of the last layer.
fn head_working(model: &ModelConfig) -> u64 {
    3 * model.emb_dim as u64 * size_of(model.dtype)
}

/// Logits in float32 exist for one tile of rows only.
fn head_tile(config: &Config, model: &ModelConfig, tokens: u64) -> u64 {
    const ROWS: u64 = 128;
    let rows = (tokens / config.num_vocab_tiling.max(1) as u64).clamp(1, ROWS);
    rows * model.vocab_size as u64 * 4
}
