//! Float64 matrices, which references compute with, and where operands come from.

use burn::tensor::{DType, Device, Tensor, TensorData};

/// Rows of float64 values.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    /// Rows and columns.
    pub dims: [usize; 2],
    /// By rows.
    pub data: Vec<f64>,
}

impl Matrix {
    /// `f(row, column)` everywhere.
    pub fn new([rows, cols]: [usize; 2], f: impl Fn(usize, usize) -> f64) -> Self {
        Self { dims: [rows, cols], data: (0..rows * cols).map(|i| f(i / cols, i % cols)).collect() }
    }

    /// Zeros.
    pub fn zeros(dims: [usize; 2]) -> Self {
        Self::new(dims, |_, _| 0.0)
    }

    /// The values of a tensor, whatever its type.
    pub fn of(tensor: &Tensor<2>) -> Self {
        Self { dims: tensor.dims(), data: tensor.to_data().iter::<f64>().collect() }
    }

    /// The values on a device, rounded to `dtype`.
    pub fn on(&self, device: &Device, dtype: DType) -> Tensor<2> {
        let values: Vec<f32> = self.data.iter().map(|&value| value as f32).collect();
        Tensor::<2>::from_data(TensorData::new(values, self.dims), (device, DType::F32)).cast(dtype)
    }

    /// A row.
    pub fn row(&self, row: usize) -> &[f64] {
        let cols = self.dims[1];
        &self.data[row * cols..(row + 1) * cols]
    }

    /// One element.
    pub fn at(&self, row: usize, col: usize) -> f64 {
        self.data[row * self.dims[1] + col]
    }

    /// Sum of the products of all elements.
    pub fn dot(&self, other: &Self) -> f64 {
        dot(&self.data, &other.data)
    }

    /// Largest magnitude.
    pub fn largest(&self) -> f64 {
        self.data.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()))
    }
}

/// Sum of products.
pub fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

/// An operand that is drawn at random: uniform in `-scale .. scale`.
#[derive(Debug, Clone, Copy)]
pub struct Operand {
    /// `x` has the gradient `dx`.
    pub name: &'static str,
    /// Rows and columns.
    pub dims: [usize; 2],
    /// Largest magnitude.
    pub scale: f64,
    /// Without a sign.
    pub positive: bool,
}

impl Operand {
    /// Values in -1 .. 1.
    pub fn new(name: &'static str, dims: [usize; 2]) -> Self {
        Self { name, dims, scale: 1.0, positive: false }
    }

    /// The same for the same seed, in float32 exactly.
    pub fn draw(&self, seed: u64) -> Matrix {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let value = (state >> 40) as f64 / f64::from(1 << 23) - 1.0;
            let value = if self.positive { value.abs() } else { value };
            f64::from((value * self.scale) as f32)
        };
        Matrix { dims: self.dims, data: (0..self.dims[0] * self.dims[1]).map(|_| next()).collect() }
    }
}
