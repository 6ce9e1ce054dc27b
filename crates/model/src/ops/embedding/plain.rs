//! The lookup composed of burn's operations.

use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor};

pub(super) fn forward(ids: &Tensor<1, Int>, table: Tensor<2>) -> Tensor<2> {
    table.select(0, ids.clone())
}

pub(super) fn backward(ids: &Tensor<1, Int>, dy: Tensor<2>, vocab: usize) -> Tensor<2> {
    let zeros = Tensor::zeros([vocab, dy.dims()[1]], (&dy.device(), DType::F32));
    zeros.select_assign(0, ids.clone(), dy.cast(DType::F32), IndexingUpdateOp::Add)
}
