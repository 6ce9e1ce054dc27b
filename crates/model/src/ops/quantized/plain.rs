//! Quantized products composed of burn's operations. Cotangents are rounded to nearest here, without noise.

use burn::tensor::{DType, Tensor};

use super::cpu::INT8_BOUND;
use super::{Along, Format, Recipe, Role};

pub(super) fn forward(x: Tensor<2>, w: Tensor<2>, recipe: Recipe) -> Tensor<2> {
    let (dtype, w) = (x.dtype(), w.cast(x.dtype()));
    let x = quantized(x, Along::Columns, Role::Forward, recipe);
    x.matmul(quantized(w, Along::Rows, Role::Forward, recipe)).cast(dtype)
}

pub(super) fn backward_input(dy: Tensor<2>, w: Tensor<2>, recipe: Recipe) -> Tensor<2> {
    let (dtype, w) = (dy.dtype(), w.cast(dy.dtype()));
    let dy = quantized(dy, Along::Columns, Role::Cotangent, recipe);
    dy.matmul(quantized(w, Along::Columns, Role::Forward, recipe).transpose()).cast(dtype)
}

pub(super) fn backward_weight(x: Tensor<2>, dy: Tensor<2>, recipe: Recipe) -> Tensor<2> {
    let x = quantized(x, Along::Rows, Role::Forward, recipe).transpose();
    x.matmul(quantized(dy, Along::Rows, Role::Cotangent, recipe))
}

/// Q(x) in float32.
fn quantized(x: Tensor<2>, along: Along, role: Role, recipe: Recipe) -> Tensor<2> {
    let x = x.cast(DType::F32);
    if x.dims().contains(&0) {
        return x;
    }
    match recipe {
        Recipe::Int8 => {
            let max = x.clone().abs().max_dim(if along == Along::Columns { 1 } else { 0 });
            let scale = nonzero(max) / INT8_BOUND;
            (x / scale.clone()).round().clamp(-127.0, 127.0) * scale
        }
        Recipe::Float8 { forward, backward } => {
            let format = if role == Role::Forward { forward } else { backward };
            let scale = nonzero(x.clone().abs().max_dim(1).max_dim(0)) / format.max();
            round(x / scale.clone(), format) * scale
        }
    }
}

/// Rounds to the format; a tie may go either way. Normal numbers by Veltkamp's splitting, `c - (c - x)` with `c = (2^n + 1) x`, which
/// drops n bits; below them, adding and subtracting a number whose last bit is worth their spacing.
fn round(x: Tensor<2>, format: Format) -> Tensor<2> {
    let (mantissa, min_exponent, max) = format.parameters();
    let x = x.clamp(-max, max);
    let c = x.clone() * ((1 << (23 - mantissa)) + 1) as f32;
    let normal = c.clone() - (c - x.clone());
    let shift = (min_exponent as f32 - mantissa as f32).exp2() * 1.5 * 8_388_608.0;
    let subnormal = x.clone().add_scalar(shift).sub_scalar(shift);
    normal.mask_where(x.abs().lower_elem((min_exponent as f32).exp2()), subnormal)
}

fn nonzero(max: Tensor<2>) -> Tensor<2> {
    let zeros = max.clone().equal_elem(0.0);
    max.mask_fill(zeros, 1.0)
}
