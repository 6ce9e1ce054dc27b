//! Qwen 2.5 (bias on the query, key and value projections) and Qwen 3 dense (RMSNorm on query and key heads).
//!
//! Unlike Llama's, their queries are scaled at run time, and the layer's output has no dropout.

use super::{Ops, parts};
use crate::params::LayerParams;

/// `[tokens, E]` to `[tokens, E]`.
pub(super) fn decoder_layer<C: Ops>(ctx: &mut C, x: C::Value, p: &LayerParams<C::Param>) -> C::Value {
    let normed = ctx.rms_norm(x.clone(), &p.pre_self_attention_layer_norm);
    let attended = parts::self_attention(ctx, normed, p);
    let x = ctx.add(x, attended);

    let normed = ctx.rms_norm(x.clone(), &p.post_self_attention_layer_norm);
    let mlp = parts::mlp(ctx, normed, p);
    ctx.add(x, mlp)
}
