//! The cache on a GPU, and attention that streams it once.
//!
//! Features of int8 vectors lie four to a word, so that every runtime can store them, WebGPU too. A head's keys lie with the
//! positions next to each other, `[sequence, kv head, word, position]`, its values position by position, `[sequence, kv head,
//! position, word]`: units that stand side by side read words that lie side by side, a unit per position for scores and per word for
//! sums. The bfloat16 scales of a position's key and value share a word. A cache of floats lies the same way, a feature to a word.
//!
//! Sequences are cut into parts of [`UNITS`] positions, one cube each for some query heads of a kv head, whose results are merged
//! in order with their maxima and sums (`attend.rs`).

mod attend;
#[cfg(all(test, feature = "rocm"))]
mod hip_text;
mod write;

use burn::tensor::{DType, Shape as TensorShape};
use burn_cubecl::ops::numeric::zeros_client;
use burn_cubecl::tensor::CubeTensor;

use self::attend::{Options, attend_kernel, merge_kernel};
use self::write::{quantize_kernel, store_kernel};
use super::{Shape, Slot, Storage, visible};
use crate::ops::attention::Spec;
use crate::ops::cube::{UNITS, arg, cube_dim, dims, element, empty, grid, len, units, upload};

/// Features to a word of an int8 cache.
const PER_WORD: usize = 4;
/// Query heads of a kv head that one cube takes at most.
const MAX_TOGETHER: usize = 4;
/// Features of queries that it keeps: with all else less than the 16 KiB of shared memory that WebGPU guarantees.
const MAX_QUERIES: usize = 1024;

/// Keys and values of one layer.
#[derive(Debug)]
pub(super) struct Cache {
    shape: Shape,
    keys: CubeTensor,
    values: CubeTensor,
    int8: Option<Scales>,
}

#[derive(Debug)]
struct Scales {
    /// `[sequence, kv head or 1, position]`: the key's scale in the lower half of a word, the value's in the upper one.
    words: CubeTensor,
    per_head: bool,
}

impl Cache {
    /// An empty cache on the device of `like`.
    pub(super) fn new(shape: Shape, storage: Storage, like: &CubeTensor) -> Self {
        let Shape { sequences, capacity, num_kv_heads, head_dim } = shape;
        let zeros = |len: usize, dtype| {
            zeros_client(like.client.clone(), like.device.clone(), TensorShape::new([len]), dtype)
        };
        let vectors = sequences * num_kv_heads * capacity;
        let ([keys, values], int8) = match storage {
            Storage::Float(dtype) => ([0; 2].map(|_| zeros(vectors * head_dim, dtype)), None),
            Storage::Int8 { per_head } => {
                let runs = if per_head { num_kv_heads } else { 1 };
                let words = zeros(sequences * runs * capacity, DType::U32);
                let vectors = [0; 2].map(|_| zeros(vectors * head_dim.div_ceil(PER_WORD), DType::U32));
                (vectors, Some(Scales { words, per_head }))
            }
        };
        Self { shape, keys, values, int8 }
    }

    pub(super) fn bytes(&self) -> usize {
        let scales = self.int8.as_ref().map(|scales| &scales.words);
        [Some(&self.keys), Some(&self.values), scales]
            .into_iter()
            .flatten()
            .map(|x| len(x) * x.dtype.size())
            .sum()
    }

    /// Writes rows `[slots, Hkv * D]`.
    pub(super) fn write(&mut self, k: &CubeTensor, v: &CubeTensor, slots: &[Slot]) {
        let Shape { capacity, num_kv_heads, head_dim, .. } = self.shape;
        let places: Vec<u32> =
            slots.iter().flat_map(|slot| [slot.sequence as u32, slot.position as u32]).collect();
        let places = upload(&places, k);
        match &self.int8 {
            None => store_kernel::launch(
                &k.client,
                units(len(k)),
                cube_dim(),
                arg(k),
                arg(v),
                arg(&places),
                arg(&self.keys),
                arg(&self.values),
                num_kv_heads,
                head_dim,
                capacity,
                [element(k), element(v), element(&self.keys)],
            ),
            Some(scales) => {
                let runs = if scales.per_head { num_kv_heads } else { 1 };
                quantize_kernel::launch(
                    &k.client,
                    grid(slots.len() * runs),
                    cube_dim(),
                    arg(k),
                    arg(v),
                    arg(&places),
                    arg(&self.keys),
                    arg(&self.values),
                    arg(&scales.words),
                    slots.len(),
                    runs,
                    num_kv_heads,
                    head_dim,
                    capacity,
                    [element(k), element(v)],
                );
            }
        }
    }

    /// Attention of `q: [slots, Hq * D]`.
    pub(super) fn attend(&self, q: &CubeTensor, slots: &[Slot], spec: &Spec) -> CubeTensor {
        let (heads, kv_heads) = (spec.num_query_heads, spec.num_kv_heads);
        let Plan { tasks, words } = Plan::new(slots, spec);
        let plan = upload(&words, q);
        let together = together(heads / kv_heads, spec.head_dim);
        let sums = empty([tasks, heads, spec.head_dim], DType::F32, q);
        let softmax = empty([tasks, heads, 2], DType::F32, q);
        let options = Options {
            int8: self.int8.is_some(),
            scale_per_head: self.int8.as_ref().is_some_and(|scales| scales.per_head),
            capped: spec.soft_cap.is_some(),
            head_dim: spec.head_dim,
            together,
        };
        attend_kernel::launch(
            &q.client,
            grid(tasks * heads / together),
            cube_dim(),
            arg(q),
            arg(&self.keys),
            arg(&self.values),
            // Where there are no scales, they aren't read.
            arg(self.int8.as_ref().map_or(&plan, |scales| &scales.words)),
            arg(&plan),
            arg(&sums),
            arg(&softmax),
            tasks,
            heads,
            kv_heads,
            self.shape.capacity,
            spec.soft_cap.unwrap_or(1.0) as f32,
            options,
            [element(q), element(&self.keys)],
        );
        let out = empty(dims(q), q.dtype, q);
        merge_kernel::launch(
            &q.client,
            grid(slots.len() * heads),
            cube_dim(),
            arg(&sums),
            arg(&softmax),
            arg(&plan),
            arg(&out),
            tasks,
            slots.len(),
            heads,
            spec.head_dim,
            element(q),
        );
        out
    }
}

/// Query heads of a group of `group` that a cube takes.
fn together(group: usize, head_dim: usize) -> usize {
    let most = (MAX_QUERIES / head_dim.max(1)).clamp(1, MAX_TOGETHER);
    (1..=most.min(group)).rev().find(|&heads| group.is_multiple_of(heads)).unwrap_or(1)
}

/// What cubes read of their work.
struct Plan {
    /// Parts of all rows.
    tasks: usize,
    /// `[row, sequence, first position, positions]` per part, then `[first part, parts]` per row.
    words: Vec<u32>,
}

impl Plan {
    /// A row's parts depend on what it sees alone, so neighbours change no bit of it.
    fn new(slots: &[Slot], spec: &Spec) -> Self {
        let (mut words, mut rows, mut tasks) = (Vec::new(), Vec::new(), 0);
        for (row, slot) in slots.iter().enumerate() {
            let seen = visible(slot, spec);
            let parts = seen.len().div_ceil(UNITS);
            for first in seen.clone().step_by(UNITS) {
                words.extend([row, slot.sequence, first, UNITS.min(seen.end - first)].map(|x| x as u32));
            }
            rows.extend([tasks, parts].map(|x| x as u32));
            tasks += parts;
        }
        words.append(&mut rows);
        Self { tasks, words }
    }
}
