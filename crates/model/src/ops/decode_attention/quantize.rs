//! int8 vectors with a scale, as MaxText's KV cache has them.

use burn::tensor::DType;
use half::bf16;

use crate::ops::engine::by_dtype;
use crate::ops::real::Real;

/// What the largest magnitude is mapped to: MaxText's `MAX_INT8`.
pub(super) const MAX: f32 = 127.5;

/// Vectors in int8.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantized {
    /// As many as the input had.
    pub values: Vec<i8>,
    /// Largest magnitude of every vector, rounded to bfloat16.
    pub scales: Vec<bf16>,
}

/// Quantizes vectors of `width` features that lie end to end, in the arithmetic of `dtype`, in which they're exact.
pub fn quantize(x: &[f32], width: usize, dtype: DType) -> Quantized {
    let mut values = vec![0; x.len()];
    let vectors = x.chunks_exact(width).zip(values.chunks_exact_mut(width));
    let scales = vectors.map(|(x, values)| by_dtype!(dtype, E => quantize_vector::<E>(x, values))).collect();
    Quantized { values, scales }
}

/// Writes the values and returns the scale.
pub(super) fn quantize_vector<E: Real>(x: &[f32], values: &mut [i8]) -> bf16 {
    let scale = x.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    let factor = E::from_f32(MAX / scale).to_f32();
    for (value, x) in values.iter_mut().zip(x) {
        // The cast saturates, and of the 0 / 0 of a vector of zeros it makes 0.
        *value = E::from_f32(x * factor).to_f32().round_ties_even() as i8;
    }
    <bf16 as Real>::from_f32(scale)
}
