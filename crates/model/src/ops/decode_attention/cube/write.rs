//! Writing keys and values into a cache.

use cubecl::prelude::*;

use super::PER_WORD;
use crate::ops::cube::int8::{bfloat16_bits, factor, is_nan};
use crate::ops::cube::{UNITS, largest};

/// Rows `[slots, Hkv * D]` as floats: a unit per element. `places` holds a sequence and a position per row.
#[cube(launch)]
pub(crate) fn store_kernel<K: Float, V: Float, S: Float>(
    k: &[K],
    v: &[V],
    places: &[u32],
    keys: &mut [S],
    values: &mut [S],
    kv_heads: usize,
    head_dim: usize,
    capacity: usize,
    #[define(K, V, S)] _types: [ElemType; 3],
) {
    if ABSOLUTE_POS < k.len() {
        let (vector, feature) = (ABSOLUTE_POS / head_dim, ABSOLUTE_POS % head_dim);
        let (row, head) = (vector / kv_heads, vector % kv_heads);
        let (sequence, position) = (places[row * 2] as usize, places[row * 2 + 1] as usize);
        let head = sequence * kv_heads + head;
        keys[(head * head_dim + feature) * capacity + position] =
            S::cast_from(f32::cast_from(k[ABSOLUTE_POS]));
        values[(head * capacity + position) * head_dim + feature] =
            S::cast_from(f32::cast_from(v[ABSOLUTE_POS]));
    }
}

/// The same in int8: a cube per row and run of heads that share a scale.
#[cube(launch)]
#[expect(clippy::too_many_arguments, reason = "a kernel's operands")]
pub(crate) fn quantize_kernel<K: Float, V: Float>(
    k: &[K],
    v: &[V],
    places: &[u32],
    keys: &mut [u32],
    values: &mut [u32],
    scales: &mut [u32],
    rows: usize,
    runs: usize,
    kv_heads: usize,
    head_dim: usize,
    capacity: usize,
    #[define(K, V)] _types: [ElemType; 2],
) {
    if CUBE_POS < rows * runs {
        let (row, run) = (CUBE_POS / runs, CUBE_POS % runs);
        let heads = kv_heads / runs;
        let (first, width) = (CUBE_POS * heads * head_dim, heads * head_dim);
        let (sequence, position) = (places[row * 2] as usize, places[row * 2 + 1] as usize);
        let mut key_scale = f32::new(0.0);
        let mut value_scale = f32::new(0.0);
        let mut i = UNIT_POS as usize;
        while i < width {
            key_scale = max(key_scale, f32::cast_from(k[first + i]).abs());
            value_scale = max(value_scale, f32::cast_from(v[first + i]).abs());
            i += UNITS;
        }
        let key_scale = largest(key_scale);
        let value_scale = largest(value_scale);
        let key_factor = f32::cast_from(K::cast_from(factor(key_scale)));
        let value_factor = f32::cast_from(V::cast_from(factor(value_scale)));
        let words = head_dim.div_ceil(PER_WORD);
        let mut i = UNIT_POS as usize;
        while i < heads * words {
            let (head, word) = (i / words, i % words);
            let start = first + head * head_dim + word * PER_WORD;
            let features = head_dim - word * PER_WORD;
            let head = sequence * kv_heads + run * heads + head;
            keys[(head * words + word) * capacity + position] = pack::<K>(k, start, features, key_factor);
            values[(head * capacity + position) * words + word] = pack::<V>(v, start, features, value_factor);
            i += UNITS;
        }
        if UNIT_POS == 0 {
            scales[(sequence * runs + run) * capacity + position] =
                bfloat16_bits(key_scale) | (bfloat16_bits(value_scale) << 16);
        }
    }
}

/// A word of [`PER_WORD`] features, or the `features` that are left, the first in the lowest byte: half to even, saturated.
#[cube]
fn pack<E: Float>(x: &[E], start: usize, features: usize, factor: f32) -> u32 {
    let mut word = 0u32;
    #[unroll]
    for i in 0..PER_WORD {
        if i < features {
            let scaled = f32::cast_from(E::cast_from(f32::cast_from(x[start + i]) * factor));
            let rounded = max(min(scaled.round(), f32::new(127.0)), f32::new(-128.0));
            // Of the 0 / 0 of a vector of zeros comes 0.
            let byte = u32::cast_from(select(is_nan(scaled), f32::new(0.0), rounded) + f32::new(128.0));
            word |= byte << comptime!(8 * i as u32);
        }
    }
    // Less 128, in two's complement; of features that aren't there comes what nobody reads.
    word ^ 0x8080_8080
}
