//! The two halves of a decoder layer, as all families have them.

use mt_config::Activations;

use super::Ops;
use crate::params::LayerParams;
use crate::query_pre_attn_scalar;

/// Grouped-query attention with its four projections: `[tokens, E]` to `[tokens, E]`.
pub(super) fn self_attention<C: Ops>(ctx: &mut C, x: C::Value, p: &LayerParams<C::Param>) -> C::Value {
    let query = ctx.linear(x.clone(), &p.query, p.query_bias.as_ref()); // [tokens, Hq*D]
    let key = ctx.linear(x.clone(), &p.key, p.key_bias.as_ref()); // [tokens, Hkv*D]
    let value = ctx.linear(x, &p.value, p.value_bias.as_ref());

    let scale = query_pre_attn_scalar(ctx.config());
    let query = normed_and_rotated(ctx, Activations::QueryProj, query, p.query_norm.as_ref(), scale);
    let key = normed_and_rotated(ctx, Activations::KeyProj, key, p.key_norm.as_ref(), None);
    let value = ctx.keep(Activations::ValueProj, value);

    let context = ctx.attention(query, key, value);
    let context = ctx.keep(Activations::Context, context);
    let out = ctx.linear(context, &p.out, None);
    ctx.keep(Activations::OutProj, out)
}

/// From a projection to what attention reads, kept under `name` at the point from which the backward needs no matmul: as
/// attention reads it, or before the norm if there is one, since the norm's backward reads its input.
fn normed_and_rotated<C: Ops>(
    ctx: &mut C,
    name: Activations,
    x: C::Value,
    norm: Option<&C::Param>,
    scale: Option<f64>,
) -> C::Value {
    let x = match norm {
        Some(norm) => {
            let x = ctx.keep(name, x);
            ctx.rms_norm(x, norm)
        }
        None => x,
    };
    let mut x = ctx.rope(x);
    if let Some(factor) = scale {
        x = ctx.scale(x, factor);
    }
    if norm.is_none() { ctx.keep(name, x) } else { x }
}

/// `wo(activation(x wi_0) * (x wi_1))`: `[tokens, E]` to `[tokens, E]`.
pub(super) fn mlp<C: Ops>(ctx: &mut C, x: C::Value, p: &LayerParams<C::Param>) -> C::Value {
    let gate = ctx.linear(x.clone(), &p.wi_0, None); // [tokens, M]
    let gate = ctx.keep(Activations::Mlpwi0, gate);
    let up = ctx.linear(x, &p.wi_1, None);
    let up = ctx.keep(Activations::Mlpwi1, up);

    let activation = ctx.config().mlp_activation;
    let hidden = ctx.glu(gate, up, activation);
    let hidden = ctx.dropout(hidden, "mlp");
    let down = ctx.linear(hidden, &p.wo, None);
    ctx.keep(Activations::Mlpwo, down)
}
