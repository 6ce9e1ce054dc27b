//! Dense layers with quantized operands: both sides of every product are rounded to few bits before they are multiplied.
//!
//! ```text
//! forward          y[t, o]  = sum_i Q(x)[t, i] Q(w)[i, o]
//! backward_input   dx[t, i] = sum_o Q(dy)[t, o] Q(w)[i, o]
//! backward_weight  dw[i, o] = sum_t Q(x)[t, i] Q(dy)[t, o]
//! ```
//! Gradients pass straight through the rounding. Q(a) = s q(a / s) with a scale s from the largest magnitude of what shares it,
//! taken anew for every product (current scaling):
//!
//! | recipe | q | s | shared by |
//! |---|---|---|---|
//! | int8 | nearest integer, ties to even, clipped to +-127 | max / 127.5 | what one output element sums over |
//! | fp8 | e4m3fn; of dy e5m2 | max / largest number of the format | the tensor |
//! | nanoo_fp8 | e4m3fnuz; of dy e5m2fnuz | the same | the tensor |
//!
//! int8 is MaxText's AQT recipe: cotangents are rounded up or down at random, in proportion; here the noise is a function of
//! the value and its place, so a step can be computed again. fp8 differs from MaxText (Flax) in one point: there the scale comes
//! from the largest magnitudes of the last 1024 steps (delayed scaling), a state that checkpoints would carry.
//!
//! Quantized numbers are kept as bfloat16, which holds all of them exactly, and multiplied by the bfloat16 kernels with float32
//! sums. Sums of int8 products are exact integers up to 2^24, hence over 1024 terms; beyond that they are rounded to float32 as
//! an int32 sum is when it is rescaled. fp8 is thus emulated, bit for bit in its operands, at bfloat16's speed.

mod cpu;
#[cfg(feature = "gpu")]
pub(crate) mod cube;
mod float8;
mod plain;

use burn::tensor::Tensor;
use mt_config::Quantization;

#[cfg(feature = "gpu")]
use super::cube::tensor;
use super::engine::{Placed, placed};
use crate::profile::{Kind, span};

pub use float8::Format;

/// How operands are rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recipe {
    /// 8-bit integers.
    Int8,
    /// 8-bit floats.
    Float8 {
        /// Of activations and weights.
        forward: Format,
        /// Of cotangents.
        backward: Format,
    },
}

impl Recipe {
    /// The recipe that quantizes both sides of a product; none where `quantization` leaves products alone or means weights
    /// only.
    pub fn of(quantization: Quantization) -> Option<Self> {
        match quantization {
            Quantization::Off | Quantization::Int8w | Quantization::Int4w => None,
            Quantization::Int8 => Some(Self::Int8),
            Quantization::Fp8 => Some(Self::Float8 { forward: Format::E4M3FN, backward: Format::E5M2 }),
            Quantization::NanooFp8 => {
                Some(Self::Float8 { forward: Format::E4M3FNUZ, backward: Format::E5M2FNUZ })
            }
        }
    }
}

/// Which part an operand plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// An activation or a weight.
    Forward,
    /// A cotangent.
    Cotangent,
}

/// The dimension over which a product sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Along {
    Rows,
    Columns,
}

/// `x: [T, I]`, `w: [I, O]` -> `[T, O]` of x's type. The kernel is rounded to x's type first.
pub fn forward(x: Tensor<2>, w: Tensor<2>, recipe: Recipe) -> Tensor<2> {
    let _span = span(Kind::Matmul, "quantized.forward").work(work(&x, &w), 0);
    match placed([x, w]) {
        Placed::Host([x, w]) => cpu::forward(&x, &w, recipe).into_tensor(),
        #[cfg(feature = "gpu")]
        Placed::Cube([x, w]) if recipe == Recipe::Int8 => tensor(cube::forward(&x, &w)),
        #[cfg(feature = "gpu")]
        Placed::Cube([x, w]) => plain::forward(tensor(x), tensor(w), recipe),
        Placed::Other([x, w]) => plain::forward(x, w, recipe),
    }
}

/// Gradient of the input. `dy: [T, O]`, `w: [I, O]` -> `[T, I]` of dy's type.
pub fn backward_input(dy: Tensor<2>, w: Tensor<2>, recipe: Recipe) -> Tensor<2> {
    let _span = span(Kind::Matmul, "quantized.backward_input").work(work(&dy, &w), 0);
    match placed([dy, w]) {
        Placed::Host([dy, w]) => cpu::backward_input(&dy, &w, recipe).into_tensor(),
        #[cfg(feature = "gpu")]
        Placed::Cube([dy, w]) if recipe == Recipe::Int8 => tensor(cube::backward_input(&dy, &w)),
        #[cfg(feature = "gpu")]
        Placed::Cube([dy, w]) => plain::backward_input(tensor(dy), tensor(w), recipe),
        Placed::Other([dy, w]) => plain::backward_input(dy, w, recipe),
    }
}

/// Gradient of the kernel. `x: [T, I]`, `dy: [T, O]` -> `[I, O]` float32.
pub fn backward_weight(x: Tensor<2>, dy: Tensor<2>, recipe: Recipe) -> Tensor<2> {
    let _span = span(Kind::Matmul, "quantized.backward_weight")
        .work(2 * x.dims()[1] * dy.dims()[0] * dy.dims()[1], 0);
    match placed([x, dy]) {
        Placed::Host([x, dy]) => cpu::backward_weight(&x, &dy, recipe).into_tensor(),
        #[cfg(feature = "gpu")]
        Placed::Cube([x, dy]) if recipe == Recipe::Int8 => tensor(cube::backward_weight(&x, &dy)),
        #[cfg(feature = "gpu")]
        Placed::Cube([x, dy]) => plain::backward_weight(tensor(x), tensor(dy), recipe),
        Placed::Other([x, dy]) => plain::backward_weight(x, dy, recipe),
    }
}

/// FLOPs of a product of an activation with a kernel.
fn work(activation: &Tensor<2>, kernel: &Tensor<2>) -> usize {
    2 * activation.dims()[0] * kernel.dims()[0] * kernel.dims()[1]
}
