//! Where tensors live: the CPU, or a GPU that this build knows how to drive.
//!
//! GPU support is a matter of cargo features: `rocm` (HIP), `cuda`, `wgpu` (Vulkan, Metal or DirectX 12 through WGSL) and
//! `vulkan` (SPIR-V). All of them load their drivers at run time, so a build with GPU support starts on a machine without a
//! GPU; here it's found out what there is, before a tensor touches it.

#[cfg(feature = "rocm")]
mod amd;
#[cfg(any(feature = "rocm", feature = "cuda"))]
pub mod raw;

use burn::tensor::Device;
use mt_config::Hardware;
use thiserror::Error;

/// A device of this machine.
#[derive(Debug, Clone)]
pub struct Available {
    /// For people, such as `ROCm GPU 0`.
    pub name: String,
    /// Product, architecture, memory and matrix units, as far as its driver tells without opening it.
    pub details: Option<String>,
    /// What tensors are created on.
    pub device: Device,
}

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
    /// A GPU is wanted from a build without support for any.
    #[error(
        "hardware: {hardware} needs a build with GPU support: rebuild with `--features rocm`, `cuda` or `wgpu`, or set hardware: cpu"
    )]
    NotBuiltIn {
        /// Value of the `hardware` key.
        hardware: String,
    },
    /// A GPU is wanted and none answered.
    #[error("hardware: {hardware}, but no GPU was found. Looked for {}. Set hardware: cpu to train without", looked_for.join("; "))]
    NotFound {
        /// Value of the `hardware` key.
        hardware: String,
        /// What was tried, and what came of it.
        looked_for: Vec<String>,
    },
    /// This process is to use a GPU beyond those that there are.
    #[error("hardware: {hardware}: this process is number {index} on its machine, which has {found} GPU(s)")]
    TooFew {
        /// Value of the `hardware` key.
        hardware: String,
        /// Number of this process on its machine.
        index: usize,
        /// GPUs of this machine.
        found: usize,
    },
}

/// Chooses by the `hardware` key: the CPU; a GPU, of which process `index` of this machine gets number `index`; or unset,
/// the GPU if there is one, else the CPU. A software rasterizer counts as a GPU only when asked for one.
pub fn choose(hardware: Hardware, index: usize) -> Result<Choice, DeviceError> {
    match hardware {
        Hardware::Cpu => Ok(cpu("as hardware: cpu says")),
        Hardware::Gpu => gpu("gpu", index),
        Hardware::GpuMultiprocess => gpu("gpu_multiprocess", index),
        Hardware::Auto if RUNTIMES.is_empty() => Ok(cpu("no GPU support was built in")),
        Hardware::Auto => Ok(match gpus(false).into_iter().nth(index) {
            Some(gpu) => chosen(gpu),
            None => cpu(&format!("no GPU was found (looked for {})", looked_for().join("; "))),
        }),
    }
}

/// All devices of this machine that this build can drive, the GPUs first; a card once for each runtime that reaches it.
pub fn available() -> Vec<Available> {
    let mut devices: Vec<Available> = RUNTIMES.iter().flat_map(Runtime::devices).collect();
    devices.push(Available { name: "CPU".to_owned(), details: None, device: Device::flex() });
    devices
}

/// Bytes that tensors take of a GPU's memory now; none on the CPU. Waits until the device has taken all that was asked of it.
pub fn bytes_in_use(device: &Device) -> Option<u64> {
    #[cfg(feature = "gpu")]
    {
        use burn::backend::{BackendTensor, DispatchTensorKind};
        let tensor = burn::tensor::Tensor::<1>::empty([1], device);
        if let DispatchTensorKind::Cube(BackendTensor::Float(tensor)) = tensor.into_dispatch().kind {
            return Some(tensor.client.memory_report(cubecl::MemoryScope::Device).usage().bytes_in_use);
        }
    }
    let _ = device;
    None
}

fn gpu(hardware: &str, index: usize) -> Result<Choice, DeviceError> {
    let hardware = hardware.to_owned();
    if RUNTIMES.is_empty() {
        return Err(DeviceError::NotBuiltIn { hardware });
    }
    let gpus = gpus(true);
    match (gpus.len(), gpus.into_iter().nth(index)) {
        (_, Some(gpu)) => Ok(chosen(gpu)),
        (0, None) => Err(DeviceError::NotFound { hardware, looked_for: looked_for() }),
        (found, None) => Err(DeviceError::TooFew { hardware, index, found }),
    }
}

fn cpu(why: &str) -> Choice {
    Choice { device: Device::flex(), reason: format!("computing on the CPU: {why}") }
}

fn chosen(gpu: Available) -> Choice {
    Choice { reason: format!("computing on {}", gpu.name), device: gpu.device }
}

/// A way to drive GPUs.
struct Runtime {
    name: &'static str,
    enumerate: fn() -> Vec<Device>,
    /// What it needs on the machine, and whether that was there.
    needs: fn() -> String,
    /// [`Available::details`] of the device of this number.
    details: fn(usize) -> Option<String>,
}

/// The runtimes of this build, in the order of preference. Listing devices opens none and, without a driver, lists none.
static RUNTIMES: &[Runtime] = &[
    #[cfg(feature = "rocm")]
    Runtime { name: "ROCm", enumerate: amd::devices, needs: amd::needs, details: amd::details },
    #[cfg(feature = "cuda")]
    Runtime {
        name: "CUDA",
        enumerate: || list(burn::tensor::DeviceType::Cuda),
        needs: || "CUDA: the driver library libcuda.so and a device that it lists".to_owned(),
        details: |_| None,
    },
    #[cfg(feature = "vulkan")]
    Runtime {
        name: "Vulkan",
        enumerate: || list(burn::tensor::DeviceType::Vulkan),
        needs: || "Vulkan: the loader libvulkan.so.1 and a driver that it lists".to_owned(),
        details: |_| None,
    },
    #[cfg(feature = "wgpu")]
    Runtime {
        name: "wgpu",
        enumerate: || if speaks_vulkan() { list(burn::tensor::DeviceType::Wgpu) } else { Vec::new() },
        needs: || {
            "wgpu: a driver for Vulkan (the loader libvulkan.so.1 and what it lists in vulkan/icd.d), Metal or DirectX 12"
                .to_owned()
        },
        details: |_| None,
    },
];

#[cfg(any(feature = "rocm", feature = "cuda", feature = "wgpu"))]
fn list(device_type: burn::tensor::DeviceType) -> Vec<Device> {
    Device::enumerate(device_type).into_vec()
}

/// Whether Linux has a Vulkan driver. Without one, CubeCL would fall through to OpenGL, which lacks what the kernels need.
#[cfg(feature = "wgpu")]
fn speaks_vulkan() -> bool {
    cfg!(not(target_os = "linux"))
        || cubecl::Device::vulkan(cubecl::device::WgpuDeviceKind::default()).is_ok()
}

impl Runtime {
    fn devices(&self) -> Vec<Available> {
        let describe = |(i, device): (usize, Device)| {
            let kind = if is_software(&device) { "software device" } else { "GPU" };
            Available { name: format!("{} {kind} {i}", self.name), details: (self.details)(i), device }
        };
        (self.enumerate)().into_iter().enumerate().map(describe).collect()
    }
}

/// The GPUs to choose from: those of the first runtime that has any, since another runtime would list the same cards again.
/// Software rasterizers only if there is nothing else.
fn gpus(software_is_allowed: bool) -> Vec<Available> {
    let of_kind = |software: bool| {
        let of_runtime = |runtime: &Runtime| -> Vec<Available> {
            runtime.devices().into_iter().filter(|gpu| is_software(&gpu.device) == software).collect()
        };
        RUNTIMES.iter().map(of_runtime).find(|gpus| !gpus.is_empty())
    };
    let software = || if software_is_allowed { of_kind(true) } else { None };
    of_kind(false).or_else(software).unwrap_or_default()
}

fn looked_for() -> Vec<String> {
    RUNTIMES.iter().map(|runtime| (runtime.needs)()).collect()
}

/// Whether a device is a Vulkan driver that runs on the CPU, such as Mesa's llvmpipe.
fn is_software(device: &Device) -> bool {
    #[cfg(feature = "vulkan")]
    if *device == Device::vulkan(burn::tensor::DeviceKind::Cpu) {
        return true;
    }
    #[cfg(feature = "wgpu")]
    return *device == Device::wgpu(burn::tensor::DeviceKind::Cpu);
    #[cfg(not(feature = "wgpu"))]
    {
        let _ = device;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_is_always_there() {
        let choice = choose(Hardware::Cpu, 0).expect("the CPU");
        assert_eq!(choice.device, Device::flex());
        assert_eq!(available().last().map(|available| available.name.clone()), Some("CPU".to_owned()));
    }

    #[test]
    fn an_unset_key_falls_back_to_the_cpu_and_says_why() {
        let choice = choose(Hardware::Auto, 1000).expect("the CPU");
        assert_eq!(choice.device, Device::flex());
        assert!(choice.reason.starts_with("computing on the CPU: no GPU"), "{}", choice.reason);
    }

    #[test]
    fn errors_say_what_to_do() {
        #[cfg(not(any(feature = "rocm", feature = "cuda", feature = "wgpu")))]
        {
            let error =
                choose(Hardware::Gpu, 0).map(|choice| choice.reason).expect_err("nothing was built in");
            assert!(error.to_string().contains("--features rocm"), "{error}");
        }
        #[cfg(feature = "rocm")]
        if !cubecl_hip_sys::is_available() {
            let error = choose(Hardware::Gpu, 1000).map(|choice| choice.reason).expect_err("no such device");
            assert!(error.to_string().contains("libamdhip64"), "{error}");
        }
    }
}
