//! Weights as decoding stores them, and products with few rows of activations.
//!
//! A decoded token reads every weight once and computes little with it, so what counts is bytes. A product with at most
//! [`FEW`] rows streams the matrix as it is stored, without packing it; one with more rows, as a prompt's, is
//! [`linear`](super::linear)'s.

mod cpu;

use burn::tensor::Tensor;

use super::engine::hosts;
use super::linear;
use crate::profile::{Kind, span};

/// Rows up to which a product streams the matrix.
pub(crate) const FEW: usize = 8;

/// A matrix `[in, out]`, or another parameter, of a model that decodes.
#[derive(Debug, Clone)]
pub enum Weight {
    /// As it was trained, in the type in which it is multiplied.
    Float(Tensor<2>),
}

impl Weight {
    /// The tensor of a parameter that is never quantized: a norm's scale, a bias.
    pub(crate) fn float(&self) -> Tensor<2> {
        match self {
            Self::Float(tensor) => tensor.clone(),
        }
    }

    /// Bytes of its elements.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Float(w) => w.dims().iter().product::<usize>() * w.dtype().size(),
        }
    }

    /// `x: [T, I]` -> `[T, O]` of x's type. Sums run in float32.
    pub fn product(&self, x: Tensor<2>) -> Tensor<2> {
        match self {
            Self::Float(w) if x.dims()[0] <= FEW => {
                let [i, o] = w.dims();
                let bytes = i * o * w.dtype().size();
                let _span = span(Kind::Matmul, "weight.product").work(2 * x.dims()[0] * i * o, bytes);
                match hosts([x, w.clone()]) {
                    Ok([x, w]) => cpu::product(&x, &w).into_tensor(),
                    Err([x, w]) => linear::forward(x, w),
                }
            }
            Self::Float(w) => linear::forward(x, w.clone()),
        }
    }
}
