//! Quantized operands and their products on slices.

use half::bf16;
use rayon::prelude::*;

use super::float8::{Format, Rounding};
use super::{Along, Recipe, Role};
use crate::ops::engine::{BLOCK, Host, by_dtype};
use crate::ops::gemm::{Elements, Output, View, ViewMut, product};
use crate::ops::memory::Buffer;
use crate::ops::real::Real;
use crate::ops::reduce::column_maxima;
use crate::ops::vector::vectorized;

/// int8's largest magnitude is mapped to this: AQT's bound of 8 bits.
pub(crate) const INT8_BOUND: f32 = 127.5;
/// Rows that one task takes.
const ROWS: usize = 64;

pub(super) fn forward(x: &Host, w: &Host, recipe: Recipe) -> Host {
    by_dtype!(x.dtype(), E => {
        let x = Operand::new::<E>(x, Along::Columns, Role::Forward, recipe);
        let w = Operand::new::<E>(w, Along::Rows, Role::Forward, recipe);
        multiply::<E>(x.view(), w.view(), &x.scales, &w.scales)
    })
}

pub(super) fn backward_input(dy: &Host, w: &Host, recipe: Recipe) -> Host {
    by_dtype!(dy.dtype(), E => {
        let dy = Operand::new::<E>(dy, Along::Columns, Role::Cotangent, recipe);
        let w = Operand::new::<E>(w, Along::Columns, Role::Forward, recipe);
        multiply::<E>(dy.view(), w.view().transpose(), &dy.scales, &w.scales)
    })
}

pub(super) fn backward_weight(x: &Host, dy: &Host, recipe: Recipe) -> Host {
    by_dtype!(dy.dtype(), E => {
        let x = Operand::new::<E>(x, Along::Rows, Role::Forward, recipe);
        let dy = Operand::new::<E>(dy, Along::Rows, Role::Cotangent, recipe);
        multiply::<f32>(x.view().transpose(), dy.view(), &x.scales, &dy.scales)
    })
}

/// A quantized matrix: numbers that bfloat16 holds, and scales.
struct Operand {
    values: Buffer<bf16>,
    dims: [usize; 2],
    /// One for each row or column that isn't summed over, or one for all.
    scales: Vec<f32>,
}

impl Operand {
    /// Quantizes `x`, rounded to `E` first, for a product that sums along a dimension.
    fn new<E: Real>(x: &Host, along: Along, role: Role, recipe: Recipe) -> Self {
        let dims @ [_, cols] = x.dims();
        let x = x.values::<E>();
        let mut values = Buffer::<bf16>::new(x.len());
        let scales = match (recipe, along) {
            (Recipe::Float8 { forward, backward }, _) => {
                let format = if role == Role::Forward { forward } else { backward };
                vec![float8(&mut values, &x, format)]
            }
            (Recipe::Int8, Along::Columns) => by_rows(&mut values, &x, cols, role),
            (Recipe::Int8, Along::Rows) => by_columns(&mut values, &x, cols, role),
        };
        Self { values, dims, scales }
    }

    fn view(&self) -> View<'_> {
        View::new(Elements::Bf16(&self.values), self.dims)
    }
}

/// `a b`, each element times the scales of its row and column.
fn multiply<E: Real>(a: View, b: View, row_scales: &[f32], col_scales: &[f32]) -> Host {
    let shape @ [rows, cols] = [a.dims()[0], b.dims()[1]];
    let mut y = Buffer::new(rows * cols);
    product(a, b, ViewMut::new(&mut y, shape), Output::Assign);
    y.par_chunks_mut(cols.max(1)).enumerate().for_each(|(row, y)| {
        let scale = if row_scales.len() == 1 { row_scales[0] } else { row_scales[row] };
        match col_scales {
            [other] => rescale(y, scale * other),
            scales => rescale_by(y, scale, scales),
        }
    });
    Host::new(y, shape).cast::<E>()
}

/// Every row by its own scale.
fn by_rows<E: Real>(values: &mut [bf16], x: &[E], cols: usize, role: Role) -> Vec<f32> {
    let cols = cols.max(1);
    let rows = values.par_chunks_mut(cols).zip(x.par_chunks(cols)).enumerate();
    rows.map(|(row, (values, x))| {
        let max = largest(x);
        quantize_row(values, x, INT8_BOUND / nonzero(max), (role == Role::Cotangent).then_some(row * cols));
        max / INT8_BOUND
    })
    .collect()
}

/// Every column by its own scale.
fn by_columns<E: Real>(values: &mut [bf16], x: &[E], cols: usize, role: Role) -> Vec<f32> {
    let block = ROWS * cols.max(1);
    let max = column_maxima(x, cols);
    let factors: Vec<f32> = max.iter().map(|&max| INT8_BOUND / nonzero(max)).collect();
    values.par_chunks_mut(block).zip(x.par_chunks(block)).enumerate().for_each(|(i, (values, x))| {
        for (j, (values, x)) in values.chunks_exact_mut(cols).zip(x.chunks_exact(cols)).enumerate() {
            let noise = (role == Role::Cotangent).then_some(i * block + j * cols);
            quantize_by(values, x, &factors, noise);
        }
    });
    max.into_iter().map(|max| max / INT8_BOUND).collect()
}

/// All by one scale, which is returned.
fn float8<E: Real>(values: &mut [bf16], x: &[E], format: Format) -> f32 {
    let max = x.par_chunks(BLOCK).map(|x| largest(x)).reduce(|| 0.0, f32::max);
    let scale = nonzero(max) / format.max();
    let rounding = format.rounding();
    values.par_chunks_mut(BLOCK).zip(x.par_chunks(BLOCK)).for_each(|(values, x)| {
        round_float8(values, x, scale, rounding);
    });
    scale
}

/// A scale for what is all zeros: any will do.
fn nonzero(max: f32) -> f32 {
    if max == 0.0 { 1.0 } else { max }
}

/// A number of [-1/2, 1/2) from a value and its place: a finaliser of MurmurHash3.
#[inline(always)]
fn noise(place: usize, value: f32) -> f32 {
    let mut hash = (place as u32).wrapping_mul(0x9e37_79b9) ^ value.to_bits();
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^= hash >> 16;
    (hash >> 8) as f32 / 16_777_216.0 - 0.5
}

/// Rounds to an integer of +-127; NaN stays NaN.
#[inline(always)]
fn to_int8(x: f32) -> bf16 {
    let x = x.round_ties_even();
    let x = if x > 127.0 { 127.0 } else { x };
    let x = if x < -127.0 { -127.0 } else { x };
    <bf16 as Real>::from_f32(x)
}

vectorized! {
    /// Largest magnitude; NaN when there is one.
    fn largest<E: Real>(x: &[E]) -> f32 {
        let mut lanes = [0.0f32; 32];
        let (chunks, rest) = x.as_chunks::<32>();
        for chunk in chunks {
            for (lane, x) in lanes.iter_mut().zip(chunk) {
                let x = x.to_f32().abs();
                *lane = if x > *lane || x.is_nan() { x } else { *lane };
            }
        }
        for (lane, x) in lanes.iter_mut().zip(rest) {
            let x = x.to_f32().abs();
            *lane = if x > *lane || x.is_nan() { x } else { *lane };
        }
        let mut max = 0.0f32;
        for x in lanes {
            max = if x > max || x.is_nan() { x } else { max };
        }
        max
    }
}

vectorized! {
    /// Rounds `x factor`, with noise by place when the first one's is given.
    fn quantize_row<E: Real>(values: &mut [bf16], x: &[E], factor: f32, place: Option<usize>) {
        match place {
            None => {
                for (value, x) in values.iter_mut().zip(x) {
                    *value = to_int8(x.to_f32() * factor);
                }
            }
            Some(place) => {
                for (i, (value, x)) in values.iter_mut().zip(x).enumerate() {
                    let x = x.to_f32();
                    *value = to_int8(x * factor + noise(place + i, x));
                }
            }
        }
    }
}

vectorized! {
    /// As [`quantize_row`], each column by its own factor.
    fn quantize_by<E: Real>(values: &mut [bf16], x: &[E], factors: &[f32], place: Option<usize>) {
        match place {
            None => {
                for ((value, x), factor) in values.iter_mut().zip(x).zip(factors) {
                    *value = to_int8(x.to_f32() * factor);
                }
            }
            Some(place) => {
                for (i, ((value, x), factor)) in values.iter_mut().zip(x).zip(factors).enumerate() {
                    let x = x.to_f32();
                    *value = to_int8(x * factor + noise(place + i, x));
                }
            }
        }
    }
}

vectorized! {
    fn round_float8<E: Real>(values: &mut [bf16], x: &[E], scale: f32, rounding: Rounding) {
        for (value, x) in values.iter_mut().zip(x) {
            *value = <bf16 as Real>::from_f32(rounding.round(x.to_f32() / scale));
        }
    }
}

vectorized! {
    fn rescale(y: &mut [f32], factor: f32) {
        for y in y {
            *y *= factor;
        }
    }
}

vectorized! {
    fn rescale_by(y: &mut [f32], factor: f32, scales: &[f32]) {
        for (y, scale) in y.iter_mut().zip(scales) {
            *y *= factor * scale;
        }
    }
}
