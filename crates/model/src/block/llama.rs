//! Llama 2, 3, 3.1, 3.3 and Mistral.

use super::{Ops, parts};
use crate::params::LayerParams;

/// `[tokens, E]` to `[tokens, E]`.
pub(super) fn decoder_layer<C: Ops>(ctx: &mut C, x: C::Value, p: &LayerParams<C::Param>) -> C::Value {
    let normed = ctx.rms_norm(x.clone(), &p.pre_self_attention_layer_norm);
    let attended = parts::self_attention(ctx, normed, p);
    let x = ctx.add(x, attended);

    let normed = ctx.rms_norm(x.clone(), &p.post_self_attention_layer_norm);
    let mlp = parts::mlp(ctx, normed, p);
    let y = ctx.add(x, mlp);
    ctx.dropout(y, "output")
}
