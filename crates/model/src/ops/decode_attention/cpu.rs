//! The cache on slices, and attention that streams it once.
//!
//! Values lie `[sequence, kv head, position, head_dim]`, keys in blocks of [`BLOCK`] positions, `[sequence, kv head, block, head_dim,
//! position in block]`: what a head reads is one run of memory, and both products run along vectors without sums across one. The
//! query heads of a kv head are handled together, so each key and value is read and widened once, a block at a time. Long sequences
//! are cut into chunks of [`CHUNK`] positions, which threads share; the chunks' results are merged in order with their maxima and
//! sums, as in flash attention:
//! ```text
//! m = max_c m_c      l = sum_c exp(m_c - m) l_c      out = sum_c exp(m_c - m) o_c / l
//! ```

use std::ops::Range;

use rayon::prelude::*;

use super::kernels::{Scores, Sums, cap_scores, largest, multiply, run, weights};
use super::store::{BLOCK, Order, Vectors, elements};
use super::{Shape, Slot, Storage, visible};
use crate::ops::attention::Spec;
use crate::ops::engine::{Host, by_dtype};

/// Positions that one task visits.
const CHUNK: usize = 1024;

/// Keys and values of one layer.
#[derive(Debug)]
pub(super) struct Cache {
    shape: Shape,
    keys: Vectors,
    values: Vectors,
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
        elements!(&self.keys, all => run(Scores { scores: &mut scores, queries, keys: &all[keys], d }));
        let key_scales = self.keys.scales(self.shape, task.slot.sequence, task.head, &task.keys);
        let value_scales = self.values.scales(self.shape, task.slot.sequence, task.head, &task.keys);
        let seen = task.keys.start - blocks.start * BLOCK..task.keys.end - blocks.start * BLOCK;
        let mut part = Part { max: Vec::new(), sum: Vec::new(), out: Vec::new() };
        for scores in scores.chunks_exact_mut(width).map(|scores| &mut scores[seen.clone()]) {
            if let Some(scales) = key_scales {
                multiply(scores, scales);
            }
            if let Some(cap) = spec.soft_cap {
                cap_scores(scores, cap as f32);
            }
            let max = largest(scores);
            part.sum.push(weights(scores, max));
            part.max.push(max);
            if let Some(scales) = value_scales {
                multiply(scores, scales);
            }
        }
        let values = self.shape.values(task.slot.sequence, task.head, &task.keys);
        let (weights, heads) = (&scores[seen.start..], part.sum.len());
        part.out =
            elements!(&self.values, all => run(Sums { weights, width, values: &all[values], d, heads }));
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
