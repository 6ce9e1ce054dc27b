//! Initial weights, distributed as MaxText's.
//!
//! Kernels are truncated normals with variance `dense_init_scale / fan_in` (the truncation at two standard deviations of the
//! normal drawn is corrected for, so the variance is that of the weights); the embedding is a standard normal; norms are 1,
//! biases 0. Where attention doesn't scale its queries at run time, their kernel is divided by sqrt(head_dim) instead.
//!
//! Every parameter has its own random stream, named by its unscanned path: neither `scan_layers`, nor the device, nor the
//! number of threads changes a bit.

use burn::tensor::Device;
use mt_config::ModelConfig;

use crate::ops::create;
use crate::params::{DECODER_NORM, EMBEDDING, LAYER_NAMES, LOGITS_DENSE, LayerParams, Params, layer_path};
use crate::random::Stream;
use crate::shard::Shard;
use crate::tree::layer_matrices;
use crate::{burn_dtype, query_pre_attn_scalar};

/// Standard deviation of a standard normal truncated to [-2, 2].
const TRUNCATED_STD: f64 = 0.879_625_661_034_239_8;

/// Distribution of one parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Distribution {
    Constant(f32),
    /// Normal with this standard deviation.
    Normal(f64),
    /// Truncated normal with this standard deviation, after truncation.
    Truncated(f64),
}

/// Draws all weights of a model from `init_weights_seed` and puts them on `device` in `weight_dtype`.
pub fn init(config: &ModelConfig, device: &Device) -> Params {
    init_shard(config, Shard::WHOLE, device)
}

/// This shard of every parameter of [`init`], without drawing the others.
pub fn init_shard(config: &ModelConfig, shard: Shard, device: &Device) -> Params {
    let draw = |path: &str, shape: [usize; 2], distribution| {
        let at = sampler(config.init_weights_seed, path, distribution);
        let ([rows, columns], all) = (shard.dims(shape), shape[0] * shape[1]);
        let first = shard.first(rows * columns);
        let at = |i: usize| if first + i < all { at(first + i) } else { 0.0 };
        create::from_fn([rows, columns], burn_dtype(config.weight_dtype), device, at)
    };
    let parameters = LAYER_NAMES.zip(layer_matrices(config)).zip(layer_distributions(config));
    let layer = |i: usize| {
        parameters
            .clone()
            .map(|((name, shape), distribution)| draw(&layer_path(i, name), shape, distribution))
    };
    let (v, e) = (config.vocab_size, config.emb_dim);
    Params {
        embedding: draw(EMBEDDING, [v, e], Distribution::Normal(1.0)),
        layers: (0..config.num_decoder_layers).map(layer).collect(),
        decoder_norm: draw(DECODER_NORM, [1, e], Distribution::Constant(1.0)),
        logits_dense: (!config.logits_via_embedding).then(|| draw(LOGITS_DENSE, [e, v], kernel(config, e))),
    }
}

/// Parameters of the same shapes and types, all 0: what a checkpoint is read into.
pub fn zeros(config: &ModelConfig, device: &Device) -> Params {
    zeros_shard(config, Shard::WHOLE, device)
}

/// This shard of every parameter of [`zeros`].
pub fn zeros_shard(config: &ModelConfig, shard: Shard, device: &Device) -> Params {
    let zeros = |shape| create::zeros(shard.dims(shape), burn_dtype(config.weight_dtype), device);
    let (v, e) = (config.vocab_size, config.emb_dim);
    Params {
        embedding: zeros([v, e]),
        layers: (0..config.num_decoder_layers).map(|_| layer_matrices(config).map(zeros)).collect(),
        decoder_norm: zeros([1, e]),
        logits_dense: (!config.logits_via_embedding).then(|| zeros([e, v])),
    }
}

/// A kernel's, by the number of inputs that it sums over.
fn kernel(config: &ModelConfig, fan_in: usize) -> Distribution {
    Distribution::Truncated((config.dense_init_scale / fan_in as f64).sqrt())
}

fn layer_distributions(config: &ModelConfig) -> LayerParams<Distribution> {
    let (e, m, d) = (config.emb_dim, config.mlp_dim, config.head_dim);
    let from_emb = kernel(config, e);
    let query = match from_emb {
        Distribution::Truncated(std) if query_pre_attn_scalar(config).is_none() => {
            Distribution::Truncated(std / (d as f64).sqrt())
        }
        scaled_at_run_time => scaled_at_run_time,
    };
    let (zero, one) = (Distribution::Constant(0.0), Distribution::Constant(1.0));
    LayerParams {
        pre_self_attention_layer_norm: one,
        query,
        key: from_emb,
        value: from_emb,
        query_bias: Some(zero),
        key_bias: Some(zero),
        value_bias: Some(zero),
        query_norm: Some(one),
        key_norm: Some(one),
        out: kernel(config, config.num_query_heads * d),
        post_self_attention_layer_norm: one,
        wi_0: from_emb,
        wi_1: from_emb,
        wo: kernel(config, m),
    }
}

/// The i-th number, by rows, of the parameter at `path`.
fn sampler(seed: u64, path: &str, distribution: Distribution) -> impl Fn(usize) -> f32 + Sync {
    let stream = Stream::new(seed, path);
    move |i| match distribution {
        Distribution::Constant(value) => value,
        Distribution::Normal(std) => (std * stream.normal(i as u64)) as f32,
        Distribution::Truncated(std) => (std / TRUNCATED_STD * stream.truncated_normal(i as u64)) as f32,
    }
}
