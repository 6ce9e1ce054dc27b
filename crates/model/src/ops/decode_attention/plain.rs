//! The cache as tensors, and attention composed of burn's operations. An int8 cache stays int8; the part that a token sees is
//! widened while it is read.

use burn::tensor::{DType, Device, Int, Tensor};

use super::quantize::MAX;
use super::{Shape, Slot, Storage, visible};
use crate::ops::attention::Spec;

/// Keys and values of one layer.
#[derive(Debug)]
pub(super) struct Cache {
    shape: Shape,
    keys: Vectors,
    values: Vectors,
}

/// Vectors of all heads and positions.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there are two of them per layer")]
enum Vectors {
    /// `[sequence, kv head, position, head_dim]`
    Float(Tensor<4>),
    Int8(Box<Int8>),
}

#[derive(Debug)]
struct Int8 {
    /// As floats lie.
    values: Tensor<4, Int>,
    /// `[sequence, kv head or 1, position, 1]`, float32 that bfloat16 holds.
    scales: Tensor<4>,
    per_head: bool,
}

impl Cache {
    pub(super) fn new(shape: Shape, storage: Storage, device: &Device) -> Self {
        Self {
            shape,
            keys: Vectors::new(shape, storage, device),
            values: Vectors::new(shape, storage, device),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.keys.bytes() + self.values.bytes()
    }

    pub(super) fn write(&mut self, k: Tensor<2>, v: Tensor<2>, slots: &[Slot]) {
        let Shape { num_kv_heads, head_dim, .. } = self.shape;
        for (row, slot) in slots.iter().enumerate() {
            let heads = |x: &Tensor<2>| -> Tensor<4> {
                x.clone().slice_dim(0, row..row + 1).reshape([1, num_kv_heads, 1, head_dim])
            };
            self.keys.write(heads(&k), *slot);
            self.values.write(heads(&v), *slot);
        }
    }

    pub(super) fn attend(&self, q: Tensor<2>, slots: &[Slot], spec: &Spec) -> Tensor<2> {
        let (kv_heads, d) = (spec.num_kv_heads, spec.head_dim);
        let group = spec.num_query_heads / kv_heads;
        let rows = slots.iter().enumerate().map(|(row, slot)| {
            let queries: Tensor<3> =
                q.clone().slice_dim(0, row..row + 1).cast(DType::F32).reshape([kv_heads, group, d]);
            let (keys, values) = (self.keys.read(slot, spec), self.values.read(slot, spec)); // [Hkv, n, D]
            let mut scores = queries.matmul(keys.transpose());
            if let Some(cap) = spec.soft_cap {
                scores = (scores / cap).tanh() * cap;
            }
            let weights = (scores.clone() - scores.max_dim(2)).exp();
            let weights = weights.clone() / weights.sum_dim(2);
            weights.matmul(values).reshape([1, kv_heads * group * d]).cast(q.dtype())
        });
        let rows: Vec<Tensor<2>> = rows.collect();
        if rows.is_empty() { q } else { Tensor::cat(rows, 0) }
    }
}

impl Vectors {
    fn new(shape: Shape, storage: Storage, device: &Device) -> Self {
        let Shape { sequences, capacity, num_kv_heads, head_dim } = shape;
        let dims = [sequences, num_kv_heads, capacity, head_dim];
        match storage {
            Storage::Float(dtype) => Self::Float(Tensor::zeros(dims, (device, dtype))),
            Storage::Int8 { per_head } => Self::Int8(Box::new(Int8 {
                values: Tensor::zeros(dims, (device, DType::I8)),
                scales: Tensor::zeros(
                    [sequences, if per_head { num_kv_heads } else { 1 }, capacity, 1],
                    (device, DType::F32),
                ),
                per_head,
            })),
        }
    }

    fn bytes(&self) -> usize {
        let of = |dims: [usize; 4], dtype: DType| dims.iter().product::<usize>() * dtype.size();
        match self {
            Self::Float(values) => of(values.dims(), values.dtype()),
            Self::Int8(cache) => {
                let Int8 { values, scales, .. } = &**cache;
                of(values.dims(), values.dtype()) + of(scales.dims(), scales.dtype())
            }
        }
    }

    /// Writes `x: [1, Hkv, 1, D]`.
    fn write(&mut self, x: Tensor<4>, slot: Slot) {
        let (sequence, position) = (slot.sequence, slot.position);
        let [_, heads, _, d] = x.dims();
        let place = [sequence..sequence + 1, 0..heads, position..position + 1, 0..d];
        match self {
            Self::Float(values) => {
                let x = x.cast(values.dtype());
                *values = values.clone().slice_assign(place, x);
            }
            Self::Int8(cache) => {
                let Int8 { values, scales, per_head } = &mut **cache;
                let per_vector = x.clone().abs().max_dim(3);
                let scale = if *per_head { per_vector } else { per_vector.max_dim(1) };
                // A vector of zeros has scale 0 and values 0.
                let nonzero = scale.clone().mask_fill(scale.clone().equal_elem(0.0), 1.0);
                let quantized =
                    (x * (nonzero.recip() * MAX)).cast(DType::F32).round().clamp(-128.0, 127.0).int();
                *values = values.clone().slice_assign(place, quantized.cast(DType::I8));
                let [_, scale_heads, ..] = scale.dims();
                let place = [sequence..sequence + 1, 0..scale_heads, position..position + 1, 0..1];
                *scales = scales.clone().slice_assign(place, scale.cast(DType::BF16).cast(DType::F32));
            }
        }
    }

    /// What a token sees, in float32: `[Hkv, n, D]`.
    fn read(&self, slot: &Slot, spec: &Spec) -> Tensor<3> {
        let positions = visible(slot, spec);
        let dims = [spec.num_kv_heads, positions.len(), spec.head_dim];
        let (sequence, heads) = (slot.sequence..slot.sequence + 1, 0..spec.num_kv_heads);
        let place = [sequence.clone(), heads, positions.clone(), 0..spec.head_dim];
        match self {
            Self::Float(values) => values.clone().slice(place).cast(DType::F32).reshape(dims),
            Self::Int8(cache) => {
                let Int8 { values, scales, .. } = &**cache;
                let [_, scale_heads, ..] = scales.dims();
                let scales = scales.clone().slice([sequence, 0..scale_heads, positions, 0..1]);
                let values = values.clone().slice(place).float().cast(DType::F32);
                (values * (scales / MAX)).reshape(dims)
            }
        }
    }
}
