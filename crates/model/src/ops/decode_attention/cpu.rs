//! The cache on slices, and attention that streams it once.
//!
//! Values lie `[sequence, kv head, position, head_dim]`, keys in blocks of [`BLOCK`] positions, `[sequence, kv head, block, head_dim,
//! position in block]`: what a head reads is one run of memory, and both products run along vectors without sums across one. The
//! query heads of a kv head are handled together, so each key and value is read and widened once, a block at a time. Long sequences are cut into chunks of [`CHUNK`] positions, which threads
//! share; the chunks' results are merged in order with their maxima and sums, as in flash attention:
//! ```text
//! m = max_c m_c      l = sum_c exp(m_c - m) l_c      out = sum_c exp(m_c - m) o_c / l
//! ```

use std::ops::Range;

use burn::tensor::DType;
use half::bf16;
use macerator::{AutoArch, Simd, WithSimd};
use rayon::prelude::*;

use super::quantize::{MAX, quantize_vector};
use super::{Shape, Slot, Storage, visible};
use crate::ops::attention::Spec;
use crate::ops::attention::product::{Product, Start, Strided};
use crate::ops::engine::{Host, by_dtype};
use crate::ops::real::{Real, Stored};
use crate::ops::reduce::sum_of_three;
use crate::ops::vector::{LANES, exp, tanh, vectorized};

/// Positions that one task visits.
const CHUNK: usize = 1024;
/// Positions of a block: whole vectors, whatever the instruction set.
const BLOCK: usize = 32;

/// Keys and values of one layer.
#[derive(Debug)]
pub(super) struct Cache {
    shape: Shape,
    keys: Vectors,
    values: Vectors,
}

/// Vectors of all heads and positions.
#[derive(Debug)]
enum Vectors {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    Int8 {
        values: Vec<i8>,
        /// `[sequence, kv head, position]`, or without the axis of the heads.
        scales: Vec<bf16>,
        per_head: bool,
    },
}

impl Cache {
    pub(super) fn new(shape: Shape, storage: Storage) -> Self {
        Self {
            shape,
            keys: Vectors::new(shape, storage, Order::Blocks),
            values: Vectors::new(shape, storage, Order::Runs),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.keys.bytes() + self.values.bytes()
    }

    pub(super) fn write(&mut self, k: &Host, v: &Host, slots: &[Slot]) {
        let shape = self.shape;
        by_dtype!(k.dtype(), E => self.keys.write::<E>(&k.values::<f32>(), slots, shape, Order::Blocks));
        by_dtype!(v.dtype(), E => self.values.write::<E>(&v.values::<f32>(), slots, shape, Order::Runs));
    }

    pub(super) fn attend(&self, q: &Host, slots: &[Slot], spec: &Spec) -> Host {
        let group = spec.num_query_heads / spec.num_kv_heads * spec.head_dim; // features of one kv head's queries
        let queries = q.values::<f32>();
        let mut out = vec![0.0; queries.len()];
        let tasks: Vec<Task> = slots
            .iter()
            .enumerate()
            .flat_map(|(row, slot)| {
                (0..spec.num_kv_heads).flat_map(move |head| {
                    chunks(visible(slot, spec)).map(move |keys| Task { row, slot: *slot, head, keys })
                })
            })
            .collect();
        let parts: Vec<Part> = tasks
            .par_iter()
            .map(|task| {
                let queries = &queries[(task.row * spec.num_kv_heads + task.head) * group..][..group];
                self.part(task, queries, spec)
            })
            .collect();
        let mut parts = tasks.iter().zip(&parts).peekable();
        while let Some((task, first)) = parts.next() {
            let mut sum = first.clone();
            while let Some((_, part)) =
                parts.next_if(|(next, _)| (next.row, next.head) == (task.row, task.head))
            {
                sum.merge(part, spec.head_dim);
            }
            sum.finish(
                &mut out[(task.row * spec.num_kv_heads + task.head) * group..][..group],
                spec.head_dim,
            );
        }
        by_dtype!(q.dtype(), E => Host::new(out, q.dims()).cast::<E>())
    }

    /// Attention of a kv head's queries to some keys.
    fn part(&self, task: &Task, queries: &[f32], spec: &Spec) -> Part {
        let d = spec.head_dim;
        let blocks = task.keys.start / BLOCK..task.keys.end.div_ceil(BLOCK);
        let width = blocks.len() * BLOCK;
        let mut scores = vec![0.0; queries.len() / d * width]; // [query head, position]
        let keys = self.shape.keys(task.slot.sequence, task.head, &blocks);
        match &self.keys {
            Vectors::F32(all) => run(Scores { scores: &mut scores, queries, keys: &all[keys], d }),
            Vectors::Bf16(all) => run(Scores { scores: &mut scores, queries, keys: &all[keys], d }),
            Vectors::Int8 { values, .. } => {
                run(Scores { scores: &mut scores, queries, keys: &values[keys], d })
            }
        }
        let seen = task.keys.start - blocks.start * BLOCK..task.keys.end - blocks.start * BLOCK;
        let mut part = Part { max: Vec::new(), sum: Vec::new(), out: Vec::new() };
        for scores in scores.chunks_exact_mut(width).map(|scores| &mut scores[seen.clone()]) {
            if let Some(scales) = self.keys.scales(self.shape, task) {
                multiply(scores, scales);
            }
            if let Some(cap) = spec.soft_cap {
                cap_scores(scores, cap as f32);
            }
            let max = largest(scores);
            part.sum.push(weights(scores, max));
            part.max.push(max);
            if let Some(scales) = self.values.scales(self.shape, task) {
                multiply(scores, scales);
            }
        }
        let values = self.shape.values(task.slot.sequence, task.head, &task.keys);
        let weights = &scores[seen.start..];
        part.out = match &self.values {
            Vectors::F32(all) => run(Sums { weights, width, values: &all[values], d, heads: part.sum.len() }),
            Vectors::Bf16(all) => {
                run(Sums { weights, width, values: &all[values], d, heads: part.sum.len() })
            }
            Vectors::Int8 { values: all, .. } => {
                run(Sums { weights, width, values: &all[values], d, heads: part.sum.len() })
            }
        };
        part
    }
}

/// Runs a kernel with the best instructions of this CPU.
fn run<K: WithSimd>(kernel: K) -> K::Output {
    AutoArch::new().dispatch(kernel)
}

/// Products of every query `[query head, head_dim]` with every key of some blocks, into `[query head, position]`.
struct Scores<'a, E> {
    scores: &'a mut [f32],
    queries: &'a [f32],
    keys: &'a [E],
    d: usize,
}

impl<E: Stored> WithSimd for Scores<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self) {
        let Self { scores, queries, keys, d } = self;
        let (heads, width) = (queries.len() / d, keys.len() / d);
        let mut wide = vec![0.0f32; if E::as_floats(keys).is_some() { 0 } else { BLOCK * d }];
        for (i, block) in keys.chunks_exact(BLOCK * d).enumerate() {
            Product {
                rows: heads,
                depth: d,
                columns: BLOCK,
                a: Strided { data: queries, row: d, depth: 1 },
                b: floats(block, &mut wide),
                b_stride: BLOCK,
                c: &mut scores[i * BLOCK..],
                c_stride: width,
                start: Start::Zero,
            }
            .run::<S>();
        }
    }
}

/// Sums of values `[position, head_dim]` by every head's weights: `[query head, head_dim]`.
struct Sums<'a, E> {
    /// Those of a head are `width` apart.
    weights: &'a [f32],
    width: usize,
    values: &'a [E],
    d: usize,
    heads: usize,
}

impl<E: Stored> WithSimd for Sums<'_, E> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn with_simd<S: Simd>(self) -> Vec<f32> {
        let Self { weights, width, values, d, heads } = self;
        let padded = d.next_multiple_of(S::lanes32());
        let mut out = vec![0.0f32; heads * padded];
        let is_direct = padded == d && E::as_floats(values).is_some();
        let mut wide = vec![0.0f32; if is_direct { 0 } else { BLOCK * padded }];
        for (i, block) in values.chunks(BLOCK * d).enumerate() {
            let b = if padded == d {
                floats(block, &mut wide)
            } else {
                for (wide, value) in wide.chunks_exact_mut(padded).zip(block.chunks_exact(d)) {
                    widen(&mut wide[..d], value);
                }
                &wide
            };
            Product {
                rows: heads,
                depth: block.len() / d,
                columns: padded,
                a: Strided { data: &weights[i * BLOCK..], row: width, depth: 1 },
                b,
                b_stride: padded,
                c: &mut out,
                c_stride: padded,
                start: Start::Sum,
            }
            .run::<S>();
        }
        out.chunks_exact(padded).flat_map(|head| &head[..d]).copied().collect()
    }
}

/// A block in float32: itself, or widened into `wide`.
#[inline(always)]
fn floats<'a, E: Stored>(block: &'a [E], wide: &'a mut [f32]) -> &'a [f32] {
    match E::as_floats(block) {
        Some(floats) => floats,
        None => {
            widen(&mut wide[..block.len()], block);
            wide
        }
    }
}

#[inline(always)]
fn widen<E: Stored>(wide: &mut [f32], values: &[E]) {
    for (wide, value) in wide.iter_mut().zip(values) {
        *wide = value.widen();
    }
}

/// Some keys of one kv head for the queries of one row.
struct Task {
    row: usize,
    slot: Slot,
    head: usize,
    keys: Range<usize>,
}

/// Cuts positions at multiples of [`CHUNK`].
fn chunks(positions: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let first = positions.start / CHUNK * CHUNK;
    (first..positions.end)
        .step_by(CHUNK)
        .map(move |start| start.max(positions.start)..(start + CHUNK).min(positions.end))
}

/// A softmax and its weighted sum over some of the keys, for each query head of a kv head.
#[derive(Clone)]
struct Part {
    max: Vec<f32>,
    sum: Vec<f32>,
    /// `[query head, head_dim]`
    out: Vec<f32>,
}

impl Part {
    fn merge(&mut self, other: &Self, head_dim: usize) {
        let heads = self.out.chunks_exact_mut(head_dim).zip(other.out.chunks_exact(head_dim));
        for (h, (out, other_out)) in heads.enumerate() {
            let max = self.max[h].max(other.max[h]);
            let (ours, theirs) = ((self.max[h] - max).exp(), (other.max[h] - max).exp());
            self.max[h] = max;
            self.sum[h] = self.sum[h] * ours + other.sum[h] * theirs;
            for (out, other) in out.iter_mut().zip(other_out) {
                *out = *out * ours + other * theirs;
            }
        }
    }

    fn finish(&self, out: &mut [f32], head_dim: usize) {
        for ((out, sum), part) in
            out.chunks_exact_mut(head_dim).zip(&self.sum).zip(self.out.chunks_exact(head_dim))
        {
            for (out, part) in out.iter_mut().zip(part) {
                *out = part / sum;
            }
        }
    }
}

impl Shape {
    /// Where some blocks of a head's keys lie.
    fn keys(&self, sequence: usize, head: usize, blocks: &Range<usize>) -> Range<usize> {
        let start = (sequence * self.num_kv_heads + head) * self.capacity.div_ceil(BLOCK);
        let size = BLOCK * self.head_dim;
        (start + blocks.start) * size..(start + blocks.end) * size
    }

    /// Where the values of a head lie.
    fn values(&self, sequence: usize, head: usize, positions: &Range<usize>) -> Range<usize> {
        let start = (sequence * self.num_kv_heads + head) * self.capacity;
        (start + positions.start) * self.head_dim..(start + positions.end) * self.head_dim
    }
}

/// How vectors lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// In blocks, features first: keys.
    Blocks,
    /// One after the other: values.
    Runs,
}

impl Order {
    /// Elements of all vectors.
    fn len(self, shape: Shape) -> usize {
        let capacity = match self {
            Self::Blocks => shape.capacity.next_multiple_of(BLOCK),
            Self::Runs => shape.capacity,
        };
        shape.sequences * shape.num_kv_heads * capacity * shape.head_dim
    }

    /// Writes a head's vector.
    fn write<E: Copy>(
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
    fn new(shape: Shape, storage: Storage, order: Order) -> Self {
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

    fn bytes(&self) -> usize {
        match self {
            Self::F32(values) => size_of_val(values.as_slice()),
            Self::Bf16(values) => size_of_val(values.as_slice()),
            Self::Int8 { values, scales, .. } => {
                size_of_val(values.as_slice()) + size_of_val(scales.as_slice())
            }
        }
    }

    /// Writes rows `[slots, Hkv * D]` of elements of type `E`.
    fn write<E: Real>(&mut self, rows: &[f32], slots: &[Slot], shape: Shape, order: Order) {
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

    /// The scales of a task's vectors, none of floats.
    fn scales(&self, shape: Shape, task: &Task) -> Option<&[bf16]> {
        let Self::Int8 { scales, per_head, .. } = self else { return None };
        let run = match per_head {
            true => task.slot.sequence * shape.num_kv_heads + task.head,
            false => task.slot.sequence,
        };
        Some(&scales[run * shape.capacity..][task.keys.clone()])
    }
}

vectorized! {
    /// Multiplies with `scale / 127.5`.
    fn multiply(x: &mut [f32], scales: &[bf16]) {
        for (x, scale) in x.iter_mut().zip(scales) {
            *x *= scale.widen() * (1.0 / MAX);
        }
    }
}

vectorized! {
    fn cap_scores(scores: &mut [f32], cap: f32) {
        for score in scores {
            *score = cap * tanh(*score / cap);
        }
    }
}

vectorized! {
    /// Turns scores into exp(score - max); returns their sum.
    fn weights(scores: &mut [f32], max: f32) -> f32 {
        for score in scores.iter_mut() {
            *score = exp(*score - max);
        }
        sum_of_three(scores, scores, scores, |x, _, _| x)
    }
}

vectorized! {
    fn largest(scores: &[f32]) -> f32 {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        for scores in scores.chunks(LANES) {
            for (lane, score) in lanes.iter_mut().zip(scores) {
                *lane = if *score > *lane { *score } else { *lane };
            }
        }
        lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
}
