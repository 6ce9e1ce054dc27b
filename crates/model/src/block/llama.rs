//! Llama 2, 3, 3.1, 3.3 and Mistral.

use super::{Ctx, parts};
use crate::params::LayerParams;
use crate::vjp::Var;

/// `[tokens, E]` to `[tokens, E]`.
pub(super) fn decoder_layer(ctx: &mut Ctx<'_, '_>, x: Var, p: &LayerParams<Var>) -> Var {
    let normed = ctx.rms_norm(x, p.pre_self_attention_layer_norm);
    let attended = parts::self_attention(ctx, normed, p);
    let x = ctx.add(x, attended);

    let normed = ctx.rms_norm(x, p.post_self_attention_layer_norm);
    let mlp = parts::mlp(ctx, normed, p);
    let y = ctx.add(x, mlp);
    ctx.dropout(y, "output")
}
