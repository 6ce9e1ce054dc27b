//! The seam for GPUs: a tensor as the buffer that a CubeCL kernel reads or writes, and how a kernel is launched.
//!
//! One implementation serves every runtime of CubeCL (HIP, CUDA, Vulkan, Metal, WebGPU). A kernel is a `#[cube(launch)]`
//! function in an operation's `cube.rs`, generic over the element types of its arguments, which it's given at launch
//! ([`element`]); it computes in float32 and rounds a result once, when it's stored. Kernels read slices: every tensor that
//! [`cubes`] hands out is contiguous by rows. All of them take [`UNITS`] units a cube, are bounds-checked by CubeCL, and use no
//! atomics: sums run in an order that shapes decide.

#[cfg(all(test, feature = "rocm"))]
pub(crate) mod hip_text;
pub(crate) mod int8;
pub(crate) mod reduce;

use burn::backend::{BackendTensor, Cube, DispatchTensorKind, TensorMetadata};
use burn::tensor::{DType, Int, Shape, Tensor};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

/// Units of a cube: what WebGPU guarantees, and a multiple of every GPU's plane.
pub(crate) const UNITS: usize = 256;

/// Cubes along a side of the grid that every runtime takes.
const SIDE: usize = 65_535;

/// Takes the tensors as contiguous buffers when all of them are floats on one CubeCL device and none is empty; hands them
/// back unchanged otherwise: then the plain composition runs.
pub(crate) fn cubes<const N: usize, const D: usize>(
    tensors: [Tensor<D>; N],
) -> Result<[CubeTensor; N], [Tensor<D>; N]> {
    let device = tensors[0].device();
    match tensors.iter().all(|tensor| is_cube(tensor) && tensor.device() == device) {
        true => Ok(tensors.map(float)),
        false => Err(tensors),
    }
}

fn is_cube<const D: usize>(tensor: &Tensor<D>) -> bool {
    let kind = tensor.clone().into_dispatch().kind;
    matches!(kind, DispatchTensorKind::Cube(BackendTensor::Float(t))
        if matches!(t.dtype, DType::F32 | DType::BF16 | DType::F16) && t.shape().num_elements() > 0)
}

/// Ids, positions or targets, next to tensors that [`cubes`] took; contiguous.
///
/// # Panics
/// When they are on another device: the caller mixes devices.
pub(crate) fn integers(tensor: &Tensor<1, Int>) -> CubeTensor {
    match tensor.clone().into_dispatch().kind {
        DispatchTensorKind::Cube(BackendTensor::Int(tensor)) => into_contiguous(tensor),
        _ => panic!("integers are on {:?}, the other operands on a GPU", tensor.device()),
    }
}

/// A float tensor made by burn next to tensors that [`cubes`] took; contiguous.
///
/// # Panics
/// When it is on another device: the caller mixes devices.
pub(crate) fn float<const D: usize>(tensor: Tensor<D>) -> CubeTensor {
    match tensor.into_dispatch().kind {
        DispatchTensorKind::Cube(BackendTensor::Float(tensor)) => into_contiguous(tensor),
        other => panic!("an operand is on {:?}, the others on a GPU", other.device()),
    }
}

/// The tensor whose buffer this is.
pub(crate) fn tensor<const D: usize>(buffer: CubeTensor) -> Tensor<D> {
    Tensor::from_primitive::<Cube>(buffer)
}

/// An uninitialised buffer on the device of `like`, contiguous: every element is the kernel's to write.
pub(crate) fn empty<const D: usize>(shape: [usize; D], dtype: DType, like: &CubeTensor) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), Shape::new(shape), dtype)
}

/// Integers of main memory in a buffer beside `like`.
pub(crate) fn upload(values: &[u32], like: &CubeTensor) -> CubeTensor {
    let handle = like.client.create_from_slice(bytemuck::cast_slice(values));
    let shape = Shape::new([values.len()]);
    CubeTensor::new_contiguous(like.client.clone(), like.device.clone(), shape, handle, DType::U32)
}

/// Itself when nobody else holds its memory, a copy otherwise: what a kernel may write in place.
pub(crate) fn owned(buffer: CubeTensor) -> CubeTensor {
    if buffer.can_mut() { buffer } else { buffer.copy() }
}

/// Number of elements.
pub(crate) fn len(buffer: &CubeTensor) -> usize {
    buffer.shape().num_elements()
}

/// Rows and columns.
pub(crate) fn dims(buffer: &CubeTensor) -> [usize; 2] {
    let shape = buffer.shape();
    [shape[0], shape[1]]
}

/// The argument that a kernel reads or writes `buffer` through.
pub(crate) fn arg(buffer: &CubeTensor) -> BufferArg {
    buffer.clone().into_buffer_arg()
}

/// What a `#[define]` of a kernel is given for the elements of `buffer`.
pub(crate) fn element(buffer: &CubeTensor) -> ElemType {
    burn::backend::cubecl::dtype_to_storage_type(buffer.dtype)
}

/// A grid of at least `cubes` cubes; the kernel has those from `CUBE_POS = cubes` on do nothing.
pub(crate) fn grid(cubes: usize) -> CubeCount {
    let x = cubes.clamp(1, SIDE);
    let y = cubes.div_ceil(x).clamp(1, SIDE);
    let z = cubes.div_ceil(x * y).max(1);
    CubeCount::Static(x as u32, y as u32, z as u32)
}

/// A grid with a unit for each of `elements`; the kernel has those from `ABSOLUTE_POS = elements` on do nothing.
pub(crate) fn units(elements: usize) -> CubeCount {
    grid(elements.div_ceil(UNITS))
}

/// [`UNITS`] units in a row.
pub(crate) fn cube_dim() -> CubeDim {
    CubeDim::new_1d(UNITS as u32)
}

/// The sum of every unit's `value`, in a tree over shared memory; all units of the cube get it, and all must call.
#[cube]
pub(crate) fn sum(value: f32) -> f32 {
    let unit = UNIT_POS as usize;
    let mut shared = Shared::<[f32]>::new_slice(UNITS);
    shared[unit] = value;
    sync_cube();
    #[unroll]
    for step in 1..comptime!(UNITS.ilog2() as usize + 1) {
        let half = comptime!(UNITS >> step);
        if unit < half {
            let other = shared[unit + half];
            shared[unit] += other;
        }
        sync_cube();
    }
    shared[0]
}

/// The largest of every unit's `value`, as [`sum`].
#[cube]
pub(crate) fn largest(value: f32) -> f32 {
    let unit = UNIT_POS as usize;
    let mut shared = Shared::<[f32]>::new_slice(UNITS);
    shared[unit] = value;
    sync_cube();
    #[unroll]
    for step in 1..comptime!(UNITS.ilog2() as usize + 1) {
        let half = comptime!(UNITS >> step);
        if unit < half {
            let other = shared[unit + half];
            shared[unit] = max(shared[unit], other);
        }
        sync_cube();
    }
    shared[0]
}

/// tanh that doesn't overflow: some drivers compute it from e^x without care.
#[cube]
pub(crate) fn tanh(x: f32) -> f32 {
    let e = (f32::new(-2.0) * x.abs()).exp();
    let t = (f32::new(1.0) - e) / (f32::new(1.0) + e);
    if x < 0.0 { -t } else { t }
}
