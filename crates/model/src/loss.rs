//! The two ends of the decoder: from tokens to the first layer's input, and from the last layer's output to the loss.

use burn::tensor::{DType, Tensor};
use mt_config::ModelConfig;

use crate::batch::{BatchTensors, EPSILON};
use crate::ops::{cross_entropy, elementwise, embedding, rms_norm};
use crate::remat::Accounting;
use crate::weights::{Head, OutputHead};
use crate::{burn_dtype, scan::HeadGradients};

/// What the embedding is rounded to as an output head, and in the backward pass the gradient that comes from there. MaxText takes
/// bfloat16 whatever `dtype` and `weight_dtype` are; without `tied_head_in_bf16` it's the type of the product. The product itself
/// is in the compute dtype either way.
fn tied_head(config: &ModelConfig) -> DType {
    match (config.tied_head_in_bf16, config.logits_dot_in_fp32) {
        (true, _) => DType::BF16,
        (false, true) => DType::F32,
        (false, false) => burn_dtype(config.dtype),
    }
}

/// The loss of one batch. Sums run over the targets that count.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LossOutput {
    /// `xent_sum / (total_weights + 1e-8)`.
    pub total_loss: f64,
    /// Sum of cross-entropies, z-loss included, in nats.
    pub xent_sum: f64,
    /// Sum of `z_loss_multiplier * log(Z)^2`.
    pub z_loss_sum: f64,
    /// Number of targets that count.
    pub total_weights: f64,
    /// Memory of the activations, and what was computed twice.
    pub accounting: Accounting,
}

impl LossOutput {
    fn new(batch: &BatchTensors, xent_sum: f64, z_loss_sum: f64) -> Self {
        let total_weights = batch.total_weights;
        let total_loss = xent_sum / (total_weights + EPSILON);
        Self { total_loss, xent_sum, z_loss_sum, total_weights, accounting: Accounting::default() }
    }
}

/// What the head's backward gives.
pub(crate) struct HeadBackward {
    pub(crate) loss: LossOutput,
    /// Cotangent of the last layer's output, `[tokens, E]`.
    pub(crate) dx: Tensor<2>,
    pub(crate) gradients: HeadGradients,
    /// The head's share of the embedding's gradient when they're tied, `[V, E]` float32.
    pub(crate) embedding: Option<Tensor<2>>,
}

/// Looks up the tokens in the embedding `[V, E]`: `[tokens, E]` in the compute dtype.
///
/// `use_iota_embed` needs no code: a product with one-hot rows adds zeros to the row that a gather copies.
pub(crate) fn embed(config: &ModelConfig, table: &Tensor<2>, batch: &BatchTensors) -> Tensor<2> {
    let x = elementwise::cast(embedding::forward(&batch.inputs, table), burn_dtype(config.dtype));
    with_dropout(batch, x, "embedding")
}

/// The embedding's gradient `[V, E]` float32 from the cotangent of [`embed`]'s result.
pub(crate) fn embed_backward(config: &ModelConfig, batch: &BatchTensors, dx: Tensor<2>) -> Tensor<2> {
    embedding::backward(&batch.inputs, with_dropout(batch, dx, "embedding"), config.vocab_size)
}

/// The final norm and, for what follows it, the head.
pub(crate) fn normed(config: &ModelConfig, head: &Head, batch: &BatchTensors, x: Tensor<2>) -> Tensor<2> {
    let y = rms_norm::forward(x, head.decoder_norm.clone(), config.normalization_layer_epsilon);
    with_dropout(batch, y, "decoder_norm")
}

/// The loss of the last layer's output `x`, without gradients.
pub(crate) fn head(config: &ModelConfig, head: Head, batch: &BatchTensors, x: Tensor<2>) -> LossOutput {
    let y = normed(config, &head, batch, x);
    let sums = cross_entropy::forward(
        y,
        output_head(config, head.output),
        &batch.targets,
        &batch.weights,
        &spec(config),
    );
    LossOutput::new(batch, sums.xent_sum, sums.z_loss_sum)
}

/// The loss of the last layer's output `x`, and the gradients of `factor` times the sum of cross-entropies.
pub(crate) fn head_and_backward(
    config: &ModelConfig,
    weights: Head,
    batch: &BatchTensors,
    x: Tensor<2>,
    factor: f64,
) -> HeadBackward {
    let y = normed(config, &weights, batch, x.clone());
    let is_tied = matches!(weights.output, OutputHead::Tied(_));
    let head = cross_entropy::forward_backward(
        y,
        output_head(config, weights.output),
        &batch.targets,
        &batch.weights,
        factor,
        &spec(config),
    );
    let dy = with_dropout(batch, head.dh, "decoder_norm");
    let scale = weights.decoder_norm;
    let (dx, decoder_norm) = rms_norm::backward(x, scale, config.normalization_layer_epsilon, dy);

    let (logits_dense, embedding) = if is_tied {
        (None, Some(elementwise::cast(elementwise::cast(head.dw, tied_head(config)), DType::F32)))
    } else {
        (Some(head.dw), None)
    };
    HeadBackward {
        loss: LossOutput::new(batch, head.xent_sum, head.z_loss_sum),
        dx,
        gradients: HeadGradients { decoder_norm, logits_dense },
        embedding,
    }
}

/// Logits `[tokens, V]` float32 of the last layer's output `x`.
pub(crate) fn logits(config: &ModelConfig, head: Head, batch: &BatchTensors, x: Tensor<2>) -> Tensor<2> {
    let y = normed(config, &head, batch, x);
    cross_entropy::logits(y, output_head(config, head.output), &spec(config))
}

/// Logits from the products of the normed outputs with the head's matrix, `[tokens, V]`: float32, scaled and capped.
pub(crate) fn logits_of_products(config: &ModelConfig, products: Tensor<2>) -> Tensor<2> {
    cross_entropy::logits_of_products(products, &spec(config))
}

/// The output head's matrix as decoding multiplies it, `[E, V]`.
pub(crate) fn head_matrix(config: &ModelConfig, output: OutputHead) -> Tensor<2> {
    match output_head(config, output) {
        cross_entropy::Head::Dense(kernel) => kernel,
        cross_entropy::Head::Embedding(table) => elementwise::transposed(table),
    }
}

/// The element type in which decoding keeps [`head_matrix`]: the product's, or the narrower one that a tied head has anyway.
pub(crate) fn head_dtype(config: &ModelConfig, output: &OutputHead) -> DType {
    match (output, config.logits_dot_in_fp32) {
        (OutputHead::Tied(_), _) => tied_head(config),
        (OutputHead::Dense(_), true) => DType::F32,
        (OutputHead::Dense(_), false) => burn_dtype(config.dtype),
    }
}

/// The output head's matrix: `logits_dense`, or the embedding rounded as [`tied_head`] says.
fn output_head(config: &ModelConfig, output: OutputHead) -> cross_entropy::Head {
    match output {
        OutputHead::Dense(kernel) => cross_entropy::Head::Dense(kernel),
        OutputHead::Tied(table) => {
            cross_entropy::Head::Embedding(elementwise::cast(table, tied_head(config)))
        }
    }
}

/// Numerics of the output head and the loss.
fn spec(config: &ModelConfig) -> cross_entropy::Spec {
    let is_normalized = config.logits_via_embedding && config.normalize_embedding_logits;
    cross_entropy::Spec {
        z_loss_multiplier: config.z_loss_multiplier,
        soft_cap: config.final_logits_soft_cap,
        logits_scale: if is_normalized { (config.emb_dim as f64).powf(-0.5) } else { 1.0 },
        dot_in_fp32: config.logits_dot_in_fp32,
        cast_fp32: config.cast_logits_to_fp32,
        tiling: config.num_vocab_tiling,
    }
}

fn with_dropout(batch: &BatchTensors, x: Tensor<2>, site: &str) -> Tensor<2> {
    match &batch.dropout {
        Some(dropout) => dropout.apply(x, site),
        None => x,
    }
}
