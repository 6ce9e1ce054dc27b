//! Tensors on a GPU as the memory that a vendor's library reads and writes.
//!
//! CubeCL keeps its stream to itself: [`finish`] waits for what it has enqueued, so that another stream may use the memory, and
//! nothing of CubeCL's may use it before that stream is done. Only the thread that computes comes here, since every thread that
//! touches a GPU through CubeCL gets a stream and a memory pool of its own.

use std::any::Any;
use std::ffi::c_void;

use burn::tensor::{DType, Device, Tensor};
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;

use crate::ops::cube::{cubes, empty, owned, tensor};

/// Whose GPU it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vendor {
    /// AMD's, driven by HIP.
    Hip,
    /// NVIDIA's, driven by CUDA.
    Cuda,
}

/// A tensor's memory, held as long as this value lives.
pub struct RawTensor {
    buffer: CubeTensor,
    pointer: *mut c_void,
    /// The pool doesn't give the memory to others meanwhile.
    _held: Box<dyn Any>,
}

/// Which GPU `device` is, by the number of its vendor's runtime; none unless it's driven by HIP or CUDA.
pub fn vendor(device: &Device) -> Option<(Vendor, usize)> {
    let [buffer] = cubes([Tensor::<1>::zeros([1], device)]).ok()?;
    vendor_of(&buffer)
}

fn vendor_of(buffer: &CubeTensor) -> Option<(Vendor, usize)> {
    match &buffer.device {
        CubeDevice::Hip(device) => Some((Vendor::Hip, device.index)),
        CubeDevice::Cuda(device) => Some((Vendor::Cuda, device.index)),
        _ => None,
    }
}

/// Waits until the GPU that the tensor is on has done what CubeCL asked of it.
///
/// # Errors
/// What the driver says.
pub fn finish(tensor: &RawTensor) -> Result<(), String> {
    cubecl::future::block_on(tensor.buffer.client.sync()).map_err(|error| error.to_string())
}

impl RawTensor {
    /// The memory of a tensor, which may be written to: if somebody else holds the tensor too, it's a copy.
    ///
    /// # Errors
    /// The tensor is empty, of another type than float32, bfloat16 and float16, or not on a GPU of HIP's or CUDA's; or the driver
    /// fails.
    pub fn of(tensor: Tensor<1>) -> Result<Self, String> {
        let [buffer] = cubes([tensor]).map_err(|[tensor]| {
            format!("{:?} elements on {:?} aren't in a GPU's memory", tensor.dtype(), tensor.device())
        })?;
        Self::hold(owned(buffer))
    }

    /// New memory for `[len]` elements of the same type beside it; its values are anything.
    ///
    /// # Errors
    /// The driver fails.
    pub fn beside(&self, len: usize) -> Result<Self, String> {
        Self::hold(empty([len], self.buffer.dtype, &self.buffer))
    }

    fn hold(buffer: CubeTensor) -> Result<Self, String> {
        let handle = buffer.handle.clone();
        let (pointer, held): (*mut c_void, Box<dyn Any>) = match vendor_of(&buffer) {
            #[cfg(feature = "rocm")]
            Some((Vendor::Hip, _)) => {
                type Server = cubecl::hip::compute::HipServer;
                let resource =
                    buffer.client.get_resource::<Server>(handle).map_err(|error| error.to_string())?;
                (resource.resource().ptr, Box::new(resource))
            }
            #[cfg(feature = "cuda")]
            Some((Vendor::Cuda, _)) => {
                // CubeCL doesn't export the server's name, nor the trait that knows it but for its own macros.
                type Server = <cubecl::cuda::CudaRuntime as cubecl::__private::Runtime>::Server;
                let resource =
                    buffer.client.get_resource::<Server>(handle).map_err(|error| error.to_string())?;
                (resource.resource().ptr as *mut c_void, Box::new(resource))
            }
            _ => return Err(format!("{:?} isn't a GPU of HIP's or CUDA's", buffer.device)),
        };
        Ok(Self { buffer, pointer, _held: held })
    }

    /// Where it begins, as the device sees it.
    pub fn pointer(&self) -> *mut c_void {
        self.pointer
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        crate::ops::cube::len(&self.buffer)
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.buffer.dtype
    }

    /// The tensor, `[elements]`.
    pub fn into_tensor(self) -> Tensor<1> {
        tensor(self.buffer)
    }
}
