//! The two halves of a decoder layer, as all families have them.

use mt_config::Activations;

use super::Ctx;
use crate::params::LayerParams;
use crate::query_pre_attn_scalar;
use crate::vjp::Var;

/// Grouped-query attention with its four projections: `[tokens, E]` to `[tokens, E]`.
pub(super) fn self_attention(ctx: &mut Ctx<'_, '_>, x: Var, p: &LayerParams<Var>) -> Var {
    let query = ctx.linear(x, p.query, p.query_bias); // [tokens, Hq*D]
    let key = ctx.linear(x, p.key, p.key_bias); // [tokens, Hkv*D]
    let value = ctx.linear(x, p.value, p.value_bias);

    let query = normed_and_rotated(
        ctx,
        Activations::QueryProj,
        query,
        p.query_norm,
        query_pre_attn_scalar(ctx.config()),
    );
    let key = normed_and_rotated(ctx, Activations::KeyProj, key, p.key_norm, None);
    let value = ctx.keep(Activations::ValueProj, value);

    let context = ctx.attention(query, key, value);
    let context = ctx.keep(Activations::Context, context);
    let out = ctx.linear(context, p.out, None);
    ctx.keep(Activations::OutProj, out)
}

/// From a projection to what attention reads, kept under `name` at the point from which the backward needs no matmul: as
/// attention reads it, or before the norm if there is one, since the norm's backward reads its input.
fn normed_and_rotated(
    ctx: &mut Ctx<'_, '_>,
    name: Activations,
    x: Var,
    norm: Option<Var>,
    scale: Option<f64>,
) -> Var {
    let x = match norm {
        Some(norm) => {
            let x = ctx.keep(name, x);
            ctx.rms_norm(x, norm)
        }
        None => x,
    };
    let rotated = ctx.rope(x);
    let scaled = scale.map_or(rotated, |factor| ctx.scale(rotated, factor));
    if norm.is_none() { ctx.keep(name, scaled) } else { scaled }
}

/// `wo(activation(x wi_0) * (x wi_1))`: `[tokens, E]` to `[tokens, E]`.
pub(super) fn mlp(ctx: &mut Ctx<'_, '_>, x: Var, p: &LayerParams<Var>) -> Var {
    let gate = ctx.linear(x, p.wi_0, None); // [tokens, M]
    let gate = ctx.keep(Activations::Mlpwi0, gate);
    let up = ctx.linear(x, p.wi_1, None);
    let up = ctx.keep(Activations::Mlpwi1, up);

    let hidden = ctx.glu(gate, up, ctx.config().mlp_activation);
    let hidden = ctx.dropout(hidden, "mlp");
    let down = ctx.linear(hidden, p.wo, None);
    ctx.keep(Activations::Mlpwo, down)
}
