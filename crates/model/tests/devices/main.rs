//! The same numbers on every device that this build can drive. The tests of the operations (`tests/ops`) run on the first GPU,
//! software devices included: against float64 maths, finite differences, and burn's autodiff of the plain composition on the
//! same GPU; then the whole model against the CPU. A build without GPU support, or a machine without a GPU, skips them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod model;

#[cfg(feature = "gpu")]
#[path = "../ops"]
mod ops {
    pub mod adamw;
    pub mod cross_entropy;
    pub mod decode_attention;
    pub mod embedding;
    pub mod glu;
    pub mod quantized;
    pub mod rms_norm;
    pub mod rope;
}

#[cfg(feature = "gpu")]
#[path = "../ops/common.rs"]
mod common;

#[cfg(feature = "gpu")]
#[path = "../decode/sessions.rs"]
mod decode;

#[cfg(feature = "gpu")]
mod reductions;

#[cfg(feature = "gpu")]
mod launches;

mod device {
    use std::sync::OnceLock;

    use burn::tensor::Device;

    /// Factor on the tolerances of the CPU's tests: exponentials, roots and divisions of a GPU are off by a few units in the
    /// last place.
    #[cfg(feature = "gpu")]
    pub const SLACK: f64 = 4.0;
    /// Relative error of a sum of squares: float32 within a block.
    #[cfg(feature = "gpu")]
    pub const SUM_OF_SQUARES: f64 = 1e-6;

    /// Shapes of products to leave out, from the smallest: burn tunes its kernels anew for every one.
    #[cfg(feature = "gpu")]
    pub const SKIP_SHAPES: usize = 2;

    /// Configurations that decoding is tested with, for the same reason: those that its kernels tell apart.
    #[cfg(feature = "gpu")]
    pub fn is_wanted(name: &str) -> bool {
        ["llama2", "multi-query", "mistral, window", "soft caps and z-loss"].contains(&name)
    }

    /// The first GPU, looked for once.
    pub fn gpu() -> Option<Device> {
        static FOUND: OnceLock<Option<Device>> = OnceLock::new();
        FOUND.get_or_init(find).clone()
    }

    fn find() -> Option<Device> {
        let found = mt_model::device::available().into_iter().next();
        let gpu = found.map(|first| first.device).filter(|device| *device != Device::flex());
        if gpu.is_none() {
            eprintln!("skipped: this build drives no GPU of this machine");
        }
        gpu
    }

    /// Where the operations run: the CPU again when there is no GPU.
    #[cfg(feature = "gpu")]
    pub fn device() -> Device {
        gpu().unwrap_or_else(Device::flex)
    }
}
