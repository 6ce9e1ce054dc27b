//! What a device can do at most, measured: the roofs over every other figure.

use std::time::Instant;

use burn::tensor::{DType, Device, Distribution, Tensor};
use mt_model::ops::linear;
use rayon::prelude::*;

/// The roofs of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct Roofs {
    /// FLOP/s of the fastest matrix product at hand, by the type of its operands.
    pub matmul: Vec<(DType, f64)>,
    /// Bytes per second of a copy, reads and writes counted.
    pub copy: f64,
}

impl Roofs {
    /// Measures products in these types, and a copy.
    pub fn measure(device: &Device, types: &[DType]) -> Self {
        let matmul = types.iter().map(|&dtype| (dtype, matmul_peak(device, dtype))).collect();
        let copy = if is_cpu(device) { copy_in_memory() } else { copy_on(device) };
        Self { matmul, copy }
    }

    /// The product's speed in a type, that of the first type if it wasn't measured.
    pub fn peak(&self, dtype: DType) -> f64 {
        let measured = self.matmul.iter().find(|(of, _)| *of == dtype).or(self.matmul.first());
        measured.map_or(f64::NAN, |(_, peak)| *peak)
    }
}

fn is_cpu(device: &Device) -> bool {
    *device == Device::flex()
}

/// The best of some repetitions, in seconds; the first ones warm up.
fn fastest(device: &Device, repetitions: usize, mut run: impl FnMut()) -> f64 {
    let mut seconds = || {
        let start = Instant::now();
        run();
        device.sync().expect("the device finishes what it was given");
        start.elapsed().as_secs_f64()
    };
    (0..repetitions).map(|_| seconds()).fold(f64::INFINITY, f64::min)
}

/// FLOP/s of a product of square matrices: the faster of the model's (`ops::linear`) and burn's.
pub fn matmul_peak(device: &Device, dtype: DType) -> f64 {
    // A GPU needs more to be busy; an emulated one would take minutes.
    let software = mt_model::device::available()
        .iter()
        .any(|found| found.device == *device && found.name.contains("software"));
    let side: usize = match (is_cpu(device), software) {
        (true, _) => 1024,
        (_, true) => 256,
        _ => 4096,
    };
    let x = Tensor::<2>::random([side, side], Distribution::Default, device).cast(dtype);
    let ours = fastest(device, 20, || drop(linear::forward(x.clone(), x.clone())));
    let burns = fastest(device, 10, || drop(x.clone().matmul(x.clone())));
    2.0 * (side as f64).powi(3) / ours.min(burns)
}

/// Words of an array that fits no cache.
const WORDS: usize = 1 << 25;
const CHUNK: usize = 1 << 16;

fn copy_in_memory() -> f64 {
    let from = vec![1u64; WORDS];
    let mut to = vec![0u64; WORDS];
    let seconds = fastest(&Device::flex(), 8, || {
        to.par_chunks_mut(CHUNK).zip(from.par_chunks(CHUNK)).for_each(|(to, from)| to.copy_from_slice(from));
        std::hint::black_box(&to);
    });
    2.0 * size_of_val(from.as_slice()) as f64 / seconds
}

fn copy_on(device: &Device) -> f64 {
    let x = Tensor::<2>::ones([4096, 4096], (device, DType::F32));
    let seconds = fastest(device, 10, || drop(std::hint::black_box(x.clone() + 1.0)));
    2.0 * (4096.0 * 4096.0 * 4.0) / seconds
}

/// Bytes per second of reading an array that fits no cache, by all threads.
pub fn read_bandwidth() -> f64 {
    let values = vec![1u64; WORDS];
    let seconds = fastest(&Device::flex(), 8, || {
        let sum: u64 = values.par_chunks(CHUNK).map(|chunk| chunk.iter().fold(0, |a, b| a ^ b)).sum();
        std::hint::black_box(sum);
    });
    size_of_val(values.as_slice()) as f64 / seconds
}
