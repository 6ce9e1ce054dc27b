//! Decoder layers. A block is a file with a function from the layer's input to its output, in terms of `Ops`; it says
//! nothing about gradients, caches, memory or devices.

mod llama;
mod operations;
mod parts;
mod qwen;
mod recorded;

use mt_config::{Activation, Activations, DecoderBlock, ModelConfig};

use crate::batch::BatchTensors;
use crate::ops::{attention, rope};
use crate::params::LayerParams;

pub(crate) use self::recorded::record_layer;

/// What all layers of one step share beside their parameters.
pub struct Step<'a> {
    /// The model's configuration.
    pub config: &'a ModelConfig,
    /// Tokens, positions and document bounds.
    pub batch: &'a BatchTensors,
    /// Cosines and sines by position.
    pub rope: &'a rope::Table,
    /// Heads and numerics of attention.
    pub attention: &'a attention::Spec,
}

/// The vocabulary of a block. Training records it on a tape ([`record_layer`]); decoding computes it at once, with a cache
/// under attention ([`decode`](crate::decode)).
pub(crate) trait Ops {
    /// An activation, `[tokens, features]`.
    type Value: Clone;
    /// A weight.
    type Param;

    /// The model's configuration.
    fn config(&self) -> &ModelConfig;

    /// Names a value for the remat policy.
    fn keep(&mut self, _name: Activations, value: Self::Value) -> Self::Value {
        value
    }

    /// `x w (+ bias)`: `[tokens, in]` by `[in, out]` gives `[tokens, out]`.
    fn linear(&mut self, x: Self::Value, kernel: &Self::Param, bias: Option<&Self::Param>) -> Self::Value;

    /// RMSNorm over groups of as many features as `scale` has: all of a token's, or each head's.
    fn rms_norm(&mut self, x: Self::Value, scale: &Self::Param) -> Self::Value;

    /// Rotates every head by its token's position in the document.
    fn rope(&mut self, x: Self::Value) -> Self::Value;

    /// `x * factor`.
    fn scale(&mut self, x: Self::Value, factor: f64) -> Self::Value;

    /// Causal attention inside documents: `[tokens, Hq*D]`, and `[tokens, Hkv*D]` twice, give `[tokens, Hq*D]`.
    fn attention(&mut self, query: Self::Value, key: Self::Value, value: Self::Value) -> Self::Value;

    /// `activation(gate) * up`.
    fn glu(&mut self, gate: Self::Value, up: Self::Value, activation: Activation) -> Self::Value;

    /// `x + y`.
    fn add(&mut self, x: Self::Value, y: Self::Value) -> Self::Value;

    /// Dropout with a mask that the positions of a row share, when the step has dropout. `site` names the place in the layer.
    fn dropout(&mut self, x: Self::Value, _site: &str) -> Self::Value {
        x
    }
}

/// The block that `decoder_block` names: from `[tokens, E]` to `[tokens, E]`.
pub(crate) fn decoder_layer<C: Ops>(ctx: &mut C, x: C::Value, p: &LayerParams<C::Param>) -> C::Value {
    match ctx.config().decoder_block {
        DecoderBlock::Llama2 | DecoderBlock::Mistral => llama::decoder_layer(ctx, x, p),
        DecoderBlock::Qwen2 | DecoderBlock::Qwen3 => qwen::decoder_layer(ctx, x, p),
    }
}
