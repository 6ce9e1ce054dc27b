//! Matrices in float64, random inputs, comparisons, finite differences.

use burn::tensor::{DType, Device, Tensor, TensorData};

pub use crate::device::{SKIP_SHAPES, SLACK, SUM_OF_SQUARES, device};

/// Whether the device has bfloat16 at all; WebGPU has not.
pub fn bfloat16() -> bool {
    device().supports_dtype(DType::BF16)
}

/// Largest relative error of rounding to bfloat16: half a unit in the last of 8 bits.
pub const BF16: f64 = 1.0 / 256.0;

/// A float64 matrix: what references compute with.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    pub rows: usize,
    pub cols: usize,
    pub data: Vec<f64>,
}

impl Matrix {
    pub fn new(rows: usize, cols: usize, f: impl Fn(usize, usize) -> f64) -> Self {
        Self { rows, cols, data: (0..rows * cols).map(|i| f(i / cols, i % cols)).collect() }
    }

    pub fn at(&self, row: usize, col: usize) -> f64 {
        self.data[row * self.cols + col]
    }

    pub fn row(&self, row: usize) -> &[f64] {
        &self.data[row * self.cols..(row + 1) * self.cols]
    }

    pub fn of(tensor: Tensor<2>) -> Self {
        let [rows, cols] = tensor.dims();
        Self { rows, cols, data: tensor.to_data().iter::<f64>().collect() }
    }

    pub fn on(&self, dtype: DType, device: &Device) -> Tensor<2> {
        let values: Vec<f32> = self.data.iter().map(|&v| v as f32).collect();
        let data = TensorData::new(values, [self.rows, self.cols]);
        Tensor::<2>::from_data(data, (device, DType::F32)).cast(dtype)
    }

    pub fn f32(&self) -> Tensor<2> {
        self.on(DType::F32, &device())
    }

    pub fn bf16(&self) -> Tensor<2> {
        self.on(DType::BF16, &device())
    }

    /// Under burn's autodiff, where the operations are the plain compositions; tracked.
    pub fn tracked(&self) -> Tensor<2> {
        self.on(DType::F32, &device().autodiff()).require_grad()
    }

    pub fn dot(&self, other: &Self) -> f64 {
        self.data.iter().zip(&other.data).map(|(a, b)| a * b).sum()
    }

    pub fn norm(&self) -> f64 {
        self.dot(self).sqrt()
    }
}

/// A small generator of random numbers, so that tests don't depend on a library's streams.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// About standard normal; a float32 (bfloat16 with `matrix_bf16`) value exactly.
    pub fn normal(&mut self) -> f64 {
        let sum: f64 = (0..12).map(|_| self.uniform()).sum();
        ((sum - 6.0) as f32) as f64
    }

    pub fn matrix(&mut self, rows: usize, cols: usize) -> Matrix {
        Matrix { rows, cols, data: (0..rows * cols).map(|_| self.normal()).collect() }
    }

    /// Values that bfloat16 holds exactly.
    pub fn matrix_bf16(&mut self, rows: usize, cols: usize) -> Matrix {
        Matrix::of(self.matrix(rows, cols).on(DType::BF16, &Device::flex()))
    }
}

/// Every element within `relative` of the larger of its reference and the reference's root mean square.
#[track_caller]
pub fn assert_close(name: &str, got: &Matrix, want: &Matrix, relative: f64) {
    assert_eq!((got.rows, got.cols), (want.rows, want.cols), "{name}: shape");
    let relative = relative * SLACK;
    let rms = want.norm() / (want.data.len() as f64).sqrt().max(1.0);
    for (i, (g, w)) in got.data.iter().zip(&want.data).enumerate() {
        let bound = relative * w.abs().max(rms).max(1e-30);
        assert!(
            (g - w).abs() <= bound,
            "{name}: element {i} is {g}, expected {w}, off by {:e} > {bound:e}",
            (g - w).abs()
        );
    }
}

/// Central differences of `loss` by `input` (`step` in float64) against a gradient, for at most 60 elements.
#[track_caller]
pub fn assert_gradient(
    name: &str,
    input: &Matrix,
    gradient: &Matrix,
    relative: f64,
    loss: impl Fn(&Matrix) -> f64,
) {
    assert_eq!((input.rows, input.cols), (gradient.rows, gradient.cols), "{name}: shape");
    let rms = gradient.norm() / (gradient.data.len() as f64).sqrt().max(1.0);
    let count = input.data.len();
    let step = 1e-5;
    for i in (0..count).step_by(count.div_ceil(60).max(1)) {
        let moved = |by: f64| {
            let mut input = input.clone();
            input.data[i] += by;
            loss(&input)
        };
        let want = (moved(step) - moved(-step)) / (2.0 * step);
        let got = gradient.data[i];
        let bound = SLACK * relative * want.abs().max(rms).max(1e-9);
        assert!((got - want).abs() <= bound, "{name}: d/d[{i}] is {got}, finite differences give {want}");
    }
}

/// Runs `f` in pools of several sizes and requires bitwise equal results.
#[track_caller]
pub fn assert_thread_independent(name: &str, f: impl Fn() -> Vec<Tensor<2>> + Send + Sync) {
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads can start");
        pool.install(|| f().into_iter().map(|t| t.to_data()).collect::<Vec<_>>())
    };
    let one = run(1);
    for threads in [2, 3, 7] {
        assert!(run(threads) == one, "{name}: {threads} threads change the result");
    }
}
