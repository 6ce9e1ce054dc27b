//! The kernels of attention over a cache: products with keys and values as they are stored, and what is done to scores.

use half::bf16;
use macerator::{AutoArch, Simd, WithSimd};

use super::quantize::MAX;
use super::store::BLOCK;
use crate::ops::attention::product::{Product, Start, Strided};
use crate::ops::real::Stored;
use crate::ops::reduce::sum_of;
use crate::ops::vector::{LANES, exp, tanh, vectorized};

/// Runs a kernel with the best instructions of this CPU.
pub(super) fn run<K: WithSimd>(kernel: K) -> K::Output {
    AutoArch::new().dispatch(kernel)
}

/// Products of every query `[query head, head_dim]` with every key of some blocks, into `[query head, position]`.
pub(super) struct Scores<'a, E> {
    pub(super) scores: &'a mut [f32],
    pub(super) queries: &'a [f32],
    pub(super) keys: &'a [E],
    pub(super) d: usize,
}

impl<E: Stored> WithSimd for Scores<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self) {
        let Self { scores, queries, keys, d } = self;
        let (heads, width) = (queries.len() / d, keys.len() / d);
        let mut wide = vec![0.0f32; if E::as_floats(keys).is_some() { 0 } else { BLOCK * d }];
        for (i, block) in keys.chunks_exact(BLOCK * d).enumerate() {
            Product {
                rows: heads,
                depth: d,
                columns: BLOCK,
                a: Strided { data: queries, row: d, depth: 1 },
                b: floats(block, &mut wide),
                b_stride: BLOCK,
                c: &mut scores[i * BLOCK..],
                c_stride: width,
                start: Start::Zero,
            }
            .run::<S>();
        }
    }
}

/// Sums of values `[position, head_dim]` by every head's weights: `[query head, head_dim]`.
pub(super) struct Sums<'a, E> {
    /// Those of a head are `width` apart.
    pub(super) weights: &'a [f32],
    pub(super) width: usize,
    pub(super) values: &'a [E],
    pub(super) d: usize,
    pub(super) heads: usize,
}

impl<E: Stored> WithSimd for Sums<'_, E> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn with_simd<S: Simd>(self) -> Vec<f32> {
        let Self { weights, width, values, d, heads } = self;
        let padded = d.next_multiple_of(S::lanes32());
        let mut out = vec![0.0f32; heads * padded];
        let is_direct = padded == d && E::as_floats(values).is_some();
        let mut wide = vec![0.0f32; if is_direct { 0 } else { BLOCK * padded }];
        for (i, block) in values.chunks(BLOCK * d).enumerate() {
            let b = if padded == d {
                floats(block, &mut wide)
            } else {
                for (wide, value) in wide.chunks_exact_mut(padded).zip(block.chunks_exact(d)) {
                    widen(&mut wide[..d], value);
                }
                &wide
            };
            Product {
                rows: heads,
                depth: block.len() / d,
                columns: padded,
                a: Strided { data: &weights[i * BLOCK..], row: width, depth: 1 },
                b,
                b_stride: padded,
                c: &mut out,
                c_stride: padded,
                start: Start::Sum,
            }
            .run::<S>();
        }
        out.chunks_exact(padded).flat_map(|head| &head[..d]).copied().collect()
    }
}

/// A block in float32: itself, or widened into `wide`.
#[inline(always)]
fn floats<'a, E: Stored>(block: &'a [E], wide: &'a mut [f32]) -> &'a [f32] {
    match E::as_floats(block) {
        Some(floats) => floats,
        None => {
            widen(&mut wide[..block.len()], block);
            wide
        }
    }
}

#[inline(always)]
fn widen<E: Stored>(wide: &mut [f32], values: &[E]) {
    for (wide, value) in wide.iter_mut().zip(values) {
        *wide = value.widen();
    }
}

vectorized! {
    /// Multiplies with `scale / 127.5`.
    pub(super) fn multiply(x: &mut [f32], scales: &[bf16]) {
        for (x, scale) in x.iter_mut().zip(scales) {
            *x *= scale.widen() * (1.0 / MAX);
        }
    }
}

vectorized! {
    pub(super) fn cap_scores(scores: &mut [f32], cap: f32) {
        for score in scores {
            *score = cap * tanh(*score / cap);
        }
    }
}

vectorized! {
    /// Turns scores into exp(score - max); returns their sum.
    pub(super) fn weights(scores: &mut [f32], max: f32) -> f32 {
        for score in scores.iter_mut() {
            *score = exp(*score - max);
        }
        sum_of(scores, |x| x)
    }
}

vectorized! {
    pub(super) fn largest(scores: &[f32]) -> f32 {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        for scores in scores.chunks(LANES) {
            for (lane, score) in lanes.iter_mut().zip(scores) {
                *lane = if *score > *lane { *score } else { *lane };
            }
        }
        lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
}
