//! New tensors, on the CPU in pooled memory of their own type: no copy, no detour over float32.

use burn::tensor::{DType, Device, Tensor, TensorData};
use rayon::prelude::*;

use super::engine::{BLOCK, Host, by_dtype};
use super::memory::Buffer;
use super::real::Real;

/// Zeros; on the CPU the system hands out their memory when it is first written.
pub fn zeros(shape: [usize; 2], dtype: DType, device: &Device) -> Tensor<2> {
    if !is_host(dtype, device) {
        return Tensor::zeros(shape, (device, dtype));
    }
    by_dtype!(dtype, E => Host::new(Buffer::<E>::zeroed(shape[0] * shape[1]), shape).into_tensor())
}

/// `at(i)` as the i-th element by rows, rounded to `dtype`.
pub fn from_fn(
    shape: [usize; 2],
    dtype: DType,
    device: &Device,
    at: impl Fn(usize) -> f32 + Sync,
) -> Tensor<2> {
    let len = shape[0] * shape[1];
    if !is_host(dtype, device) {
        let values: Vec<f32> = (0..len).into_par_iter().map(&at).collect();
        return Tensor::from_data(TensorData::new(values, shape), (device, dtype));
    }
    by_dtype!(dtype, E => {
        let mut values = Buffer::<E>::new(len);
        values.par_chunks_mut(BLOCK).enumerate().for_each(|(block, values)| {
            for (i, value) in values.iter_mut().enumerate() {
                *value = E::from_f32(at(block * BLOCK + i));
            }
        });
        Host::new(values, shape).into_tensor()
    })
}

fn is_host(dtype: DType, device: &Device) -> bool {
    *device == Device::flex() && matches!(dtype, DType::F32 | DType::BF16)
}
