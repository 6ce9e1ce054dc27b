//! The cache on slices, and attention that streams it once.
//!
//! Keys lie `[sequence, kv head, position, head_dim]`: what a head reads is one run of memory. The query heads of a kv head are
//! handled together, so each key is widened once. Long sequences are cut into chunks of [`CHUNK`] positions, which threads
//! share; the chunks' results are merged in order with their maxima and sums, as in flash attention:
//! ```text
//! m = max_c m_c      l = sum_c exp(m_c - m) l_c      out = sum_c exp(m_c - m) o_c / l
//! ```

use std::ops::Range;

use burn::tensor::DType;
use half::bf16;
use rayon::prelude::*;

use super::quantize::{MAX, quantize_vector};
use super::{Shape, Slot, Storage, visible};
use crate::ops::attention::Spec;
use crate::ops::engine::{Host, by_dtype};
use crate::ops::real::{Real, Stored};
use crate::ops::reduce::sum_of_three;
use crate::ops::vector::{exp, tanh, vectorized};

/// Positions that one task visits.
const CHUNK: usize = 1024;

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
        Self { shape, keys: Vectors::new(shape, storage), values: Vectors::new(shape, storage) }
    }

    pub(super) fn bytes(&self) -> usize {
        self.keys.bytes() + self.values.bytes()
    }

    pub(super) fn write(&mut self, k: &Host, v: &Host, slots: &[Slot]) {
        let shape = self.shape;
        by_dtype!(k.dtype(), E => self.keys.write::<E>(&k.values::<f32>(), slots, shape));
        by_dtype!(v.dtype(), E => self.values.write::<E>(&v.values::<f32>(), slots, shape));
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
        let (d, n) = (spec.head_dim, task.keys.len());
        let mut scores = vec![0.0; queries.len() / d * n]; // [query head, key]
        let run = self.shape.vectors(task.slot.sequence, task.head, &task.keys);
        match &self.keys {
            Vectors::F32(keys) => dots(&mut scores, queries, &keys[run.clone()], d),
            Vectors::Bf16(keys) => dots(&mut scores, queries, &keys[run.clone()], d),
            Vectors::Int8 { values, .. } => dots(&mut scores, queries, &values[run.clone()], d),
        }
        if let Some(scales) = self.keys.scales(self.shape, task) {
            scores.chunks_exact_mut(n).for_each(|scores| multiply(scores, scales));
        }
        let mut part = Part { max: Vec::new(), sum: Vec::new(), out: vec![0.0; queries.len()] };
        for scores in scores.chunks_exact_mut(n) {
            if let Some(cap) = spec.soft_cap {
                cap_scores(scores, cap as f32);
            }
            let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            part.sum.push(weights(scores, max));
            part.max.push(max);
        }
        if let Some(scales) = self.values.scales(self.shape, task) {
            scores.chunks_exact_mut(n).for_each(|weights| multiply(weights, scales));
        }
        match &self.values {
            Vectors::F32(values) => add_weighted(&mut part.out, &scores, &values[run], d),
            Vectors::Bf16(values) => add_weighted(&mut part.out, &scores, &values[run], d),
            Vectors::Int8 { values, .. } => add_weighted(&mut part.out, &scores, &values[run], d),
        }
        part
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
    /// Where the vectors of a head lie.
    fn vectors(&self, sequence: usize, head: usize, positions: &Range<usize>) -> Range<usize> {
        let start = (sequence * self.num_kv_heads + head) * self.capacity;
        (start + positions.start) * self.head_dim..(start + positions.end) * self.head_dim
    }

    fn num_vectors(&self) -> usize {
        self.sequences * self.num_kv_heads * self.capacity
    }
}

impl Vectors {
    fn new(shape: Shape, storage: Storage) -> Self {
        let len = shape.num_vectors() * shape.head_dim;
        match storage {
            Storage::Float(DType::BF16) => Self::Bf16(vec![bf16::ZERO; len]),
            Storage::Float(_) => Self::F32(vec![0.0; len]),
            Storage::Int8 { per_head } => {
                let scales = if per_head { shape.num_vectors() } else { shape.sequences * shape.capacity };
                Self::Int8 { values: vec![0; len], scales: vec![bf16::ZERO; scales], per_head }
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
    fn write<E: Real>(&mut self, rows: &[f32], slots: &[Slot], shape: Shape) {
        let (heads, d) = (shape.num_kv_heads, shape.head_dim);
        for (row, &Slot { sequence, position }) in rows.chunks_exact(heads * d).zip(slots) {
            let place = |head| shape.vectors(sequence, head, &(position..position + 1));
            match self {
                Self::F32(values) => {
                    row.chunks_exact(d)
                        .enumerate()
                        .for_each(|(h, head)| values[place(h)].copy_from_slice(head));
                }
                Self::Bf16(values) => {
                    for (h, head) in row.chunks_exact(d).enumerate() {
                        for (value, x) in values[place(h)].iter_mut().zip(head) {
                            *value = <bf16 as Real>::from_f32(*x);
                        }
                    }
                }
                Self::Int8 { values, scales, per_head: true } => {
                    for (h, head) in row.chunks_exact(d).enumerate() {
                        let scale = &mut scales[(sequence * heads + h) * shape.capacity + position];
                        *scale = quantize_vector::<E>(head, &mut values[place(h)]);
                    }
                }
                Self::Int8 { values, scales, per_head: false } => {
                    let mut quantized = vec![0; row.len()];
                    scales[sequence * shape.capacity + position] = quantize_vector::<E>(row, &mut quantized);
                    quantized
                        .chunks_exact(d)
                        .enumerate()
                        .for_each(|(h, head)| values[place(h)].copy_from_slice(head));
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
    /// Products of every query `[query head, head_dim]` with every key `[key, head_dim]`, `[query head, key]`.
    fn dots<K: Stored>(scores: &mut [f32], queries: &[f32], keys: &[K], head_dim: usize) {
        let n = keys.len() / head_dim;
        let mut wide = vec![0.0f32; head_dim];
        for (k, key) in keys.chunks_exact(head_dim).enumerate() {
            for (wide, key) in wide.iter_mut().zip(key) {
                *wide = key.widen();
            }
            for (h, query) in queries.chunks_exact(head_dim).enumerate() {
                scores[h * n + k] = sum_of_three(query, &wide, &wide, |q, k, _| q * k);
            }
        }
    }
}

vectorized! {
    /// Adds to every head's `out` `[query head, head_dim]` the values `[key, head_dim]` by its weights `[query head, key]`.
    fn add_weighted<K: Stored>(out: &mut [f32], weights: &[f32], values: &[K], head_dim: usize) {
        let n = values.len() / head_dim;
        let mut wide = vec![0.0f32; head_dim];
        for (k, value) in values.chunks_exact(head_dim).enumerate() {
            for (wide, value) in wide.iter_mut().zip(value) {
                *wide = value.widen();
            }
            for (h, out) in out.chunks_exact_mut(head_dim).enumerate() {
                let weight = weights[h * n + k];
                for (out, value) in out.iter_mut().zip(&wide) {
                    *out += weight * value;
                }
            }
        }
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
