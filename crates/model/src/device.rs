//! Where tensors live: the CPU, or a GPU that this build knows how to drive.

use burn::tensor::Device;
use thiserror::Error;

/// A device, and a sentence about why it was chosen.
#[derive(Debug, Clone)]
pub struct Choice {
    /// Where to compute.
    pub device: Device,
    /// For the log, such as `computing on the CPU: no GPU support was built in`.
    pub reason: String,
}

/// A device that can't be had.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum DeviceError {
    /// `hardware: gpu` in a build without GPU support.
    #[error(
        "hardware: {hardware} needs a build with GPU support; rebuild with `--features rocm`, `wgpu` or `cuda`"
    )]
    NotBuiltIn {
        /// Value of the `hardware` key.
        hardware: String,
    },
    /// No GPU answered.
    #[error("hardware: {hardware}, but no GPU was found; looked for {looked_for}")]
    NotFound {
        /// Value of the `hardware` key.
        hardware: String,
        /// What was tried, and what came of it.
        looked_for: String,
    },
    /// A value of `hardware` that isn't supported.
    #[error("hardware: {hardware} isn't supported, expected cpu, gpu or gpu_multiprocess")]
    Unknown {
        /// Value of the `hardware` key.
        hardware: String,
    },
}

/// Chooses the device by the `hardware` key: `cpu`, `gpu` or `gpu_multiprocess` (number `index` of this machine's), or unset:
/// the first GPU found, else the CPU.
pub fn choose(hardware: Option<&str>, _index: usize) -> Result<Choice, DeviceError> {
    match hardware {
        Some("cpu") => Ok(Choice { device: Device::flex(), reason: "computing on the CPU".to_owned() }),
        Some(hardware @ ("gpu" | "gpu_multiprocess")) => {
            Err(DeviceError::NotBuiltIn { hardware: hardware.to_owned() })
        }
        None | Some("") => Ok(Choice {
            device: Device::flex(),
            reason: "computing on the CPU: no GPU support was built in".to_owned(),
        }),
        Some(hardware) => Err(DeviceError::Unknown { hardware: hardware.to_owned() }),
    }
}
