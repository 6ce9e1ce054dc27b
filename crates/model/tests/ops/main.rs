//! Every operation against float64 maths, its backward pass against finite differences of that maths and against burn's
//! autodiff of the plain composition; bfloat16 within stated bounds; bitwise equal results under any number of threads.

mod common;

mod device {
    use burn::tensor::Device;

    /// Factor on all tolerances.
    pub const SLACK: f64 = 1.0;
    /// Relative error of a sum of squares.
    pub const SUM_OF_SQUARES: f64 = 1e-9;

    /// Shapes of products to leave out, from the smallest.
    pub const SKIP_SHAPES: usize = 0;

    /// Where the operations run.
    pub fn device() -> Device {
        Device::flex()
    }
}

mod adamw;
mod cross_entropy;
mod elementwise;
mod embedding;
mod glu;
mod linear;
mod rms_norm;
mod rope;
