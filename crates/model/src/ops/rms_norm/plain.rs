//! RMSNorm composed of burn's operations.

use burn::tensor::{DType, Tensor};

pub(super) fn forward(x: Tensor<2>, scale: Tensor<2>, eps: f64) -> Tensor<2> {
    let dtype = x.dtype();
    let x = x.cast(DType::F32);
    let r = inverse_rms(x.clone(), eps);
    (x * r).cast(dtype) * scale.cast(dtype)
}

pub(super) fn backward(x: Tensor<2>, scale: Tensor<2>, eps: f64, dy: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
    let dtype = x.dtype();
    let (x, dy) = (x.cast(DType::F32), dy.cast(DType::F32));
    let r = inverse_rms(x.clone(), eps); // [T, 1]
    let n = x * r.clone();
    let dscale = (dy.clone() * n.clone()).sum_dim(0);
    let g = dy * scale.cast(dtype).cast(DType::F32);
    let mean = (g.clone() * n.clone()).mean_dim(1);
    let dx = (g - n * mean) * r;
    (dx.cast(dtype), dscale)
}

fn inverse_rms(x: Tensor<2>, eps: f64) -> Tensor<2> {
    (x.clone() * x).mean_dim(1).add_scalar(eps).sqrt().recip()
}
