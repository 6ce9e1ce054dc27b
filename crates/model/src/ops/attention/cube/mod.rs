//! Packed flash attention on GPUs, as CubeCL kernels for any runtime; float32 arithmetic.
//!
//! `forward.rs` and `backward.rs` state the maths above each kernel, `tile.rs` how a block is spread over the units of a
//! cube, `matrix` does the same with matrix units, `variants.rs` says which of them can run on a device and `tables.rs` which blocks
//! there are. Beside its results a call needs `delta` and nothing more.

pub(super) mod backward;
pub(super) mod forward;
mod launch;
pub(super) mod mask;
pub(super) mod matrix;
mod tables;
#[cfg(test)]
mod tests;
pub(super) mod tile;
mod variants;

use std::fmt::Display;
use std::time::Duration;

use burn::tensor::{DType, Tensor};
use burn_cubecl::tensor::CubeTensor;

use self::launch::Call;
use self::variants::{Pass, Variant, variants};
use super::{Layout, Spec};
use crate::ops::cube::{element, tensor};
use crate::ops::tuning;

pub(super) use self::tables::Cache;

/// Multiply-adds of a product from which on variants are measured: a tenth of a millisecond's work for a GPU that is worth the while.
const WORTH_MEASURING: u64 = 1 << 30;
/// Largest difference of a result on matrix units from the other kernels', relative to the largest value: some roundings to 8 bits.
const AGREEMENT: f32 = 1.0 / 64.0;

/// As [`super::forward`]; `None` where the kernels can't run: too wide a head, too few units, too little shared memory, mixed types.
pub(super) fn forward(
    operands: &[CubeTensor; 3],
    layout: &Layout,
    spec: &Spec,
) -> Option<(Tensor<2>, Tensor<2>)> {
    let call = Call::new(&operands.each_ref(), layout, spec)?;
    let [out, lse] = run(Pass::Forward, &call, |variant| call.forward(variant, operands))?;
    Some((tensor(out), tensor(lse)))
}

/// As [`super::backward`]; `None` where the kernels can't run.
pub(super) fn backward(
    [q, k, v, out, lse, dout]: &[CubeTensor; 6],
    layout: &Layout,
    spec: &Spec,
) -> Option<(Tensor<2>, Tensor<2>, Tensor<2>)> {
    let call = Call::new(&[q, k, v, out, dout], layout, spec)?;
    let delta = call.delta(out, dout);
    let operands = [q, k, v, dout, lse, &delta];
    let [dq] = run(Pass::Queries, &call, |variant| call.queries(variant, operands))?;
    let [dk, dv] = run(Pass::Keys, &call, |variant| call.keys(variant, operands))?;
    Some((tensor(dq), tensor(dk), tensor(dv)))
}

/// Runs the variant that is chosen for calls like this.
fn run<const N: usize>(
    pass: Pass,
    call: &Call,
    launch: impl Fn(Variant) -> [CubeTensor; N] + Sync,
) -> Option<[CubeTensor; N]> {
    if call.work() >= WORTH_MEASURING {
        return measured(pass, call, launch);
    }
    let properties = call.like.client.properties();
    let variants = variants(pass, call.spec.head_dim, element(call.like), properties);
    variants.first().map(|&table| launch(table))
}

/// As [`run`], whatever the work.
fn measured<const N: usize>(
    pass: Pass,
    call: &Call,
    launch: impl Fn(Variant) -> [CubeTensor; N] + Sync,
) -> Option<[CubeTensor; N]> {
    let properties = call.like.client.properties();
    let variants = variants(pass, call.spec.head_dim, element(call.like), properties);
    let table = *variants.first()?;
    let device = format!("{} {}", properties.identity.name, properties.identity.fingerprint);
    let mut expected: Option<[CubeTensor; N]> = None;
    let chosen = tuning::choose(
        &device,
        || kind(pass, call),
        &variants,
        |i| {
            let (results, time) = timed(call, || launch(variants[i]))?;
            if let Variant::Matrix(_) = variants[i] {
                let expected = expected.get_or_insert_with(|| launch(table));
                results
                    .iter()
                    .zip(expected.iter())
                    .all(|(found, expected)| agree(found, expected))
                    .then_some(())?;
            }
            Some(time)
        },
    );
    Some(launch(variants[chosen]))
}

/// What a choice holds for. Lengths, by powers of two: the keys that a query sees in the mean, which packing and windows shorten,
/// and the rows of heads.
fn kind(pass: Pass, call: &Call) -> String {
    let Call { spec, layout, .. } = call;
    let tokens = layout.num_tokens().max(1);
    let keys = (call.pairs as usize / tokens).next_power_of_two();
    let rows = (tokens * spec.num_query_heads).next_power_of_two();
    let dtype: &dyn Display = &call.like.dtype.name();
    let capped = if spec.soft_cap.is_some() { ", capped" } else { "" };
    let windowed = if spec.window.is_some() { ", window" } else { "" };
    let group = spec.num_query_heads / spec.num_kv_heads;
    format!(
        "attention {pass}, {dtype}, head_dim {}, {group} heads per key, {keys} keys, {rows} rows{capped}{windowed}",
        spec.head_dim
    )
}

/// The results of a launch and how long it took, or `None` when the device can't run it.
fn timed<R: Send + 'static>(call: &Call, launch: impl FnOnce() -> R + Send) -> Option<(R, Duration)> {
    let client = &call.like.client;
    // Errors of what ran before aren't the variant's.
    let _earlier = client.flush();
    let (results, duration) = client.profile(launch, "attention").ok()?;
    let ticks = cubecl::future::block_on(duration.resolve())?;
    Some((results, ticks.duration()))
}

/// Whether the values are the same but for roundings.
fn agree(found: &CubeTensor, expected: &CubeTensor) -> bool {
    let [found, expected] = [found, expected].map(|x| tensor::<2>(x.clone()).cast(DType::F32));
    let scale = expected.clone().abs().max();
    let difference = (found - expected).abs().max();
    let within = difference.lower_equal(scale * AGREEMENT).into_data();
    within.iter::<bool>().all(|within| within)
}

#[cfg(all(test, feature = "rocm"))]
mod hip_text;
