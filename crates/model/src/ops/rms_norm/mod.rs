//! Root-mean-square normalisation of every row, times a learned scale.
//!
//! ```text
//! r    = 1 / sqrt(mean_j x[j]^2 + eps)          one per row
//! n[j] = x[j] r                                  rounded to x's type
//! y[j] = n[j] scale[j]
//! dscale[j] = sum_rows dy[j] n[j]
//! g[j]  = dy[j] scale[j]
//! dx[j] = r (g[j] - n[j] mean_k(g[k] n[k]))
//! ```
//!
//! Statistics are float32. The backward pass computes r again from x, which costs less than keeping it. A norm per head
//! (Qwen 3's query and key norm) is the same operation on `[T * heads, head_dim]`.

mod cpu;
#[cfg(feature = "gpu")]
mod cube;
mod plain;

use burn::tensor::Tensor;

#[cfg(feature = "gpu")]
use super::cube::tensor;
use super::engine::{Placed, placed};
use crate::profile::{Kind, span};

/// `x: [T, E]`, `scale: [1, E]` -> `[T, E]` of x's type.
pub fn forward(x: Tensor<2>, scale: Tensor<2>, eps: f64) -> Tensor<2> {
    let _span = span(Kind::Operation, "rms_norm.forward");
    match placed([x, scale]) {
        Placed::Host([x, scale]) => cpu::forward(&x, &scale, eps as f32).into_tensor(),
        #[cfg(feature = "gpu")]
        Placed::Cube([x, scale]) => tensor(cube::forward(&x, &scale, eps as f32)),
        Placed::Other([x, scale]) => plain::forward(x, scale, eps),
    }
}

/// Gradients of input and scale. `x, dy: [T, E]`, `scale: [1, E]` -> (`dx: [T, E]` of x's type, `dscale: [1, E]` float32).
pub fn backward(x: Tensor<2>, scale: Tensor<2>, eps: f64, dy: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
    let _span = span(Kind::Operation, "rms_norm.backward");
    match placed([x, scale, dy]) {
        Placed::Host([x, scale, dy]) => {
            let (dx, dscale) = cpu::backward(&x, &scale, eps as f32, &dy);
            (dx.into_tensor(), dscale.into_tensor())
        }
        #[cfg(feature = "gpu")]
        Placed::Cube([x, scale, dy]) => {
            let (dx, dscale) = cube::backward(&x, &scale, eps as f32, &dy);
            (tensor(dx), tensor(dscale))
        }
        Placed::Other([x, scale, dy]) => plain::backward(x, scale, eps, dy),
    }
}
