//! How a cache lies in memory: vectors of keys in blocks, of values in runs, as floats or int8 with scales.

use std::ops::Range;

use burn::tensor::DType;
use half::bf16;

use super::quantize::quantize_vector;
use super::{Shape, Slot, Storage};
use crate::ops::real::Real;

/// Positions of a block: whole vectors, whatever the instruction set.
pub(super) const BLOCK: usize = 32;

/// Vectors of all heads and positions.
#[derive(Debug)]
pub(super) enum Vectors {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    Int8 {
        values: Vec<i8>,
        /// `[sequence, kv head, position]`, or without the axis of the heads.
        scales: Vec<bf16>,
        per_head: bool,
    },
}

/// Runs `$body` with `$all` standing for the elements of `$vectors`, whatever their type.
macro_rules! elements {
    ($vectors:expr, $all:ident => $body:expr) => {
        match $vectors {
            Vectors::F32($all) => $body,
            Vectors::Bf16($all) => $body,
            Vectors::Int8 { values: $all, .. } => $body,
        }
    };
}
pub(super) use elements;

impl Shape {
    /// Where some blocks of a head's keys lie.
    pub(super) fn keys(&self, sequence: usize, head: usize, blocks: &Range<usize>) -> Range<usize> {
        let start = (sequence * self.num_kv_heads + head) * self.capacity.div_ceil(BLOCK);
        let size = BLOCK * self.head_dim;
        (start + blocks.start) * size..(start + blocks.end) * size
    }

    /// Where the values of a head lie.
    pub(super) fn values(&self, sequence: usize, head: usize, positions: &Range<usize>) -> Range<usize> {
        let start = (sequence * self.num_kv_heads + head) * self.capacity;
        (start + positions.start) * self.head_dim..(start + positions.end) * self.head_dim
    }
}

/// How vectors lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// In blocks, features first: keys.
    Blocks,
    /// One after the other: values.
    Runs,
}

impl Order {
    /// Elements of all vectors.
    pub(super) fn len(self, shape: Shape) -> usize {
        let capacity = match self {
            Self::Blocks => shape.capacity.next_multiple_of(BLOCK),
            Self::Runs => shape.capacity,
        };
        shape.sequences * shape.num_kv_heads * capacity * shape.head_dim
    }

    /// Writes a head's vector.
    pub(super) fn write<E: Copy>(
        self,
        all: &mut [E],
        vector: impl Iterator<Item = E>,
        shape: Shape,
        slot: Slot,
        head: usize,
    ) {
        let Slot { sequence, position } = slot;
        let (start, step) = match self {
            Self::Blocks => {
                let block = position / BLOCK;
                (shape.keys(sequence, head, &(block..block)).start + position % BLOCK, BLOCK)
            }
            Self::Runs => (shape.values(sequence, head, &(position..position)).start, 1),
        };
        all[start..].iter_mut().step_by(step).zip(vector).for_each(|(place, x)| *place = x);
    }
}

impl Vectors {
    pub(super) fn new(shape: Shape, storage: Storage, order: Order) -> Self {
        let len = order.len(shape);
        match storage {
            Storage::Float(DType::BF16) => Self::Bf16(vec![bf16::ZERO; len]),
            Storage::Float(_) => Self::F32(vec![0.0; len]),
            Storage::Int8 { per_head } => {
                let heads = if per_head { shape.num_kv_heads } else { 1 };
                let scales = vec![bf16::ZERO; shape.sequences * heads * shape.capacity];
                Self::Int8 { values: vec![0; len], scales, per_head }
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::F32(values) => size_of_val(values.as_slice()),
            Self::Bf16(values) => size_of_val(values.as_slice()),
            Self::Int8 { values, scales, .. } => {
                size_of_val(values.as_slice()) + size_of_val(scales.as_slice())
            }
        }
    }

    /// Writes rows `[slots, Hkv * D]` of elements of type `E`.
    pub(super) fn write<E: Real>(&mut self, rows: &[f32], slots: &[Slot], shape: Shape, order: Order) {
        let (heads, d) = (shape.num_kv_heads, shape.head_dim);
        let mut quantized = vec![0; heads * d];
        for (row, &slot) in rows.chunks_exact(heads * d).zip(slots) {
            if let Self::Int8 { scales, per_head, .. } = self {
                let (runs, width) = if *per_head { (heads, d) } else { (1, heads * d) };
                let vectors = row.chunks_exact(width).zip(quantized.chunks_exact_mut(width));
                for (i, (x, quantized)) in vectors.enumerate() {
                    let place = (slot.sequence * runs + i) * shape.capacity + slot.position;
                    scales[place] = quantize_vector::<E>(x, quantized);
                }
            }
            for (head, (x, q)) in row.chunks_exact(d).zip(quantized.chunks_exact(d)).enumerate() {
                match self {
                    Self::F32(all) => order.write(all, x.iter().copied(), shape, slot, head),
                    Self::Bf16(all) => {
                        order.write(all, x.iter().map(|&x| <bf16 as Real>::from_f32(x)), shape, slot, head);
                    }
                    Self::Int8 { values, .. } => order.write(values, q.iter().copied(), shape, slot, head),
                }
            }
        }
    }

    /// The scales of some of a head's vectors, none of floats.
    pub(super) fn scales(
        &self,
        shape: Shape,
        sequence: usize,
        head: usize,
        positions: &Range<usize>,
    ) -> Option<&[bf16]> {
        let Self::Int8 { scales, per_head, .. } = self else { return None };
        let run = match per_head {
            true => sequence * shape.num_kv_heads + head,
            false => sequence,
        };
        Some(&scales[run * shape.capacity..][positions.clone()])
    }
}
