//! Dense layers composed of burn's operations.

use burn::tensor::{DType, Tensor};

pub(super) fn forward(x: Tensor<2>, w: Tensor<2>) -> Tensor<2> {
    let w = w.cast(x.dtype());
    x.matmul(w)
}

pub(super) fn backward_input(dy: Tensor<2>, w: Tensor<2>) -> Tensor<2> {
    let w = w.cast(dy.dtype());
    dy.matmul(w.transpose())
}

pub(super) fn backward_weight(x: Tensor<2>, dy: Tensor<2>) -> Tensor<2> {
    x.cast(DType::F32).transpose().matmul(dy.cast(DType::F32))
}

pub(super) fn add_bias(y: Tensor<2>, bias: Tensor<2>) -> Tensor<2> {
    let bias = bias.cast(y.dtype());
    y + bias
}

pub(super) fn backward_bias(dy: Tensor<2>) -> Tensor<2> {
    dy.cast(DType::F32).sum_dim(0)
}
