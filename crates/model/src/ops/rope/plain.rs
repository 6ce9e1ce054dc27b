//! The rotation composed of burn's operations.

use burn::tensor::{DType, Int, Tensor};

use super::{Direction, Table};

pub(super) fn apply(
    x: Tensor<2>,
    positions: &Tensor<1, Int>,
    table: &Table,
    head_dim: usize,
    direction: Direction,
) -> Tensor<2> {
    let ([tokens, features], dtype) = (x.dims(), x.dtype());
    let (heads, half) = (features / head_dim, head_dim / 2);
    let (pairs, angles, axis) = match table.interleaved {
        true => ([tokens, heads, half, 2], [tokens, 1, half, 1], 3),
        false => ([tokens, heads, 2, half], [tokens, 1, 1, half], 2),
    };
    let at_positions =
        |values: &Tensor<2>| -> Tensor<4> { values.clone().select(0, positions.clone()).reshape(angles) };
    let cos = at_positions(&table.cos);
    let sin = match direction {
        Direction::Forward => at_positions(&table.sin),
        Direction::Inverse => at_positions(&table.sin).neg(),
    };
    let x: Tensor<4> = x.cast(DType::F32).reshape(pairs);
    let (a, b) = (x.clone().narrow(axis, 0, 1), x.narrow(axis, 1, 1));
    let rotated = vec![a.clone() * cos.clone() - b.clone() * sin.clone(), b * cos + a * sin];
    Tensor::cat(rotated, axis).reshape([tokens, features]).cast(dtype)
}
