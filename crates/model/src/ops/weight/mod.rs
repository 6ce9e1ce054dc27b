//! Weights as decoding stores them, and products with few rows of activations.
//!
//! A decoded token reads every weight once and computes little with it, so what counts is bytes. A product with at most
//! 8 rows streams the matrix as it is stored, without packing it; one with more rows, as a prompt's, widens it and is an
//! ordinary product.
//!
//! Weights in int8 (`quantization: int8w`) and int4 (`int4w`) have one scale per output, as MaxText's AQT gives them:
//! ```text
//! scale[o]  = max_i |w[i, o]| / b            b = 127.5, or 7.5
//! q[i, o]   = round(w[i, o] / scale[o])      half to even, clipped to +-127, or +-7
//! y[t, o]   = scale[o] sum_i x[t, i] q[i, o]
//! ```

mod cpu;

use burn::tensor::{Device, Tensor, TensorData};

use super::engine::hosts;
use super::linear;
use crate::profile::{Kind, span};

/// Rows up to which a product streams the matrix.
pub(crate) const FEW: usize = 8;

/// A matrix `[in, out]`, or another parameter, of a model that decodes.
#[derive(Debug, Clone)]
#[allow(
    clippy::large_enum_variant,
    reason = "a tensor is large in GPU builds only, and there are few weights"
)]
pub enum Weight {
    /// As it was trained, in the type in which it is multiplied.
    Float(Tensor<2>),
    /// Integers with a scale per column; on the CPU.
    Integers(Integers),
}

/// Width of quantized weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bits {
    /// One byte each.
    Eight,
    /// Two to a byte.
    Four,
}

/// A matrix of integers.
#[derive(Debug, Clone)]
pub struct Integers {
    bits: Bits,
    dims: [usize; 2],
    /// `[in, out]` by rows; of 4 bits, a row is padded to whole blocks (`cpu.rs`).
    values: Vec<i8>,
    /// `[out]`
    scales: Vec<f32>,
}

impl Weight {
    /// Quantizes a kernel `[in, out]`. On devices other than the CPU the rounded numbers stay floats: the result is the same, the
    /// memory isn't saved.
    pub fn quantized(w: Tensor<2>, bits: Bits) -> Self {
        let (device, dtype) = (w.device(), w.dtype());
        match hosts([w]) {
            Ok([w]) => Self::Integers(cpu::quantize(&w, bits)),
            Err([w]) => {
                let host = Tensor::from_data(w.to_data(), (&Device::flex(), dtype));
                let Ok([host]) = hosts([host]) else { panic!("a tensor of the CPU lives on the CPU") };
                let floats = cpu::quantize(&host, bits).dequantized();
                let floats = TensorData::new(floats, host.dims());
                Self::Float(Tensor::from_data(floats, (&device, dtype)))
            }
        }
    }

    /// The tensor of a parameter that isn't quantized: a norm's scale, a bias.
    ///
    /// # Panics
    /// When it is.
    pub(crate) fn float(&self) -> Tensor<2> {
        match self {
            Self::Float(tensor) => tensor.clone(),
            Self::Integers(_) => panic!("only kernels are quantized, and read by product"),
        }
    }

    /// Bytes of its elements.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Float(w) => w.dims().iter().product::<usize>() * w.dtype().size(),
            Self::Integers(w) => size_of_val(w.values.as_slice()) + size_of_val(w.scales.as_slice()),
        }
    }

    fn dims(&self) -> [usize; 2] {
        match self {
            Self::Float(w) => w.dims(),
            Self::Integers(w) => w.dims,
        }
    }

    /// `x: [T, I]` -> `[T, O]` of x's type. Sums run in float32.
    pub fn product(&self, x: Tensor<2>) -> Tensor<2> {
        let (rows, [i, o]) = (x.dims()[0], self.dims());
        let _span = span(Kind::Matmul, "weight.product").work(2 * rows * i * o, self.bytes());
        match self {
            Self::Float(w) if rows <= FEW => match hosts([x, w.clone()]) {
                Ok([x, w]) => cpu::product(&x, &w).into_tensor(),
                Err([x, w]) => linear::forward(x, w),
            },
            Self::Float(w) => linear::forward(x, w.clone()),
            Self::Integers(w) => match hosts([x]) {
                Ok([x]) => cpu::integer_product(&x, w).into_tensor(),
                Err(_) => panic!("activations live where the weights do"),
            },
        }
    }
}

impl Integers {
    /// A matrix `dims: [in, out]` from what [`Integers::parts`] gave; none when the lengths aren't those of such a matrix.
    pub fn from_parts(bits: Bits, dims: [usize; 2], values: Vec<i8>, scales: Vec<f32>) -> Option<Self> {
        let fits = values.len() == dims[0] * cpu::stride(bits, dims[1]) && scales.len() == dims[1];
        fits.then_some(Self { bits, dims, values, scales })
    }

    /// The integers as they are stored, `[in, bytes of a row]`, and the scales, `[out]`.
    pub fn parts(&self) -> (&[i8], &[f32]) {
        (&self.values, &self.scales)
    }

    /// Shape `[in, bytes of a row]` of the stored integers of a matrix `dims: [in, out]`.
    pub fn stored_dims(bits: Bits, dims: [usize; 2]) -> [usize; 2] {
        [dims[0], cpu::stride(bits, dims[1])]
    }

    /// `[in, out]`.
    pub fn dims(&self) -> [usize; 2] {
        self.dims
    }

    /// The numbers that the integers stand for, `[in, out]`.
    pub fn dequantized(&self) -> Vec<f32> {
        let [_, cols] = self.dims;
        let scaled = |(i, q): (usize, f32)| q * self.scales[i % cols];
        cpu::integers(self).into_iter().enumerate().map(scaled).collect()
    }
}
