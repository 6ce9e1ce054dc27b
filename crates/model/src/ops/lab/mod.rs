//! Implementations of an operation side by side, for kernel research: `benches` checks every one of them against float64 and
//! measures it (docs/kernels.md, "Adding a kernel").
//!
//! A folder per operation lists what there is: `fused` is what the model runs (the operation's own dispatch to `cpu.rs` and
//! `cube.rs`), `plain` the composition of burn's tensor operations. A new implementation is a file in the folder, with a constant
//! `IMPLEMENTATION`, and its name in the list at the end of the folder's `mod.rs`. The model doesn't run it: that takes an arm in the
//! operation's own `mod.rs`, once it has proved itself here.

pub mod adamw;
pub mod attention;
pub mod cross_entropy;
pub mod decode_attention;
pub mod glu;
pub mod rms_norm;
pub mod rope;

use burn::tensor::{DType, Device, Tensor};

/// One way to compute an operation, `F` being its functions.
#[derive(Debug, Clone, Copy)]
pub struct Implementation<F> {
    /// What reports call it: letters, digits and `_`.
    pub name: &'static str,
    /// Whether it runs there with operands of this type; it's neither checked nor measured elsewhere.
    pub runs_on: fn(&Device, DType) -> bool,
    /// What it computes.
    pub functions: F,
}

/// For [`Implementation::runs_on`]: every device, every type that the device has.
pub fn everywhere(_device: &Device, _dtype: DType) -> bool {
    true
}

/// For [`Implementation::runs_on`]: the CPU, in float32 and bfloat16 (`engine::hosts` takes no other type).
pub fn on_cpu(device: &Device, dtype: DType) -> bool {
    *device == Device::flex() && matches!(dtype, DType::F32 | DType::BF16)
}

/// For [`Implementation::runs_on`]: GPUs, every type that the device has.
pub fn on_gpu(device: &Device, _dtype: DType) -> bool {
    *device != Device::flex()
}

/// Has operations take the plain composition: what runs under burn's autodiff. Nothing is recorded.
fn plain<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    Tensor::from_inner(x)
}

/// Declares the files of an operation's folder and lists their constants `IMPLEMENTATION`.
macro_rules! experiments {
    ($functions:ty: $($name:ident)*) => {
        $(mod $name;)*

        fn experiments() -> Vec<$crate::ops::lab::Implementation<$functions>> {
            vec![$($name::IMPLEMENTATION),*]
        }
    };
}
use experiments;
