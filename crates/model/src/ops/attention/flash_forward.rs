//! Blocked attention, forward: online softmax, never a [seq, seq] matrix.
//!
//! For one query with keys visited in blocks, m the running maximum of the scores s, l the running sum:
//! ```text
//! m' = max(m, max_k s_k)      alpha = exp(m - m')      p_k = exp(s_k - m')
//! l' = alpha l + sum_k p_k    o' = alpha o + sum_k p_k v_k
//! out = o / l                 lse = m + ln l
//! ```
//! Scores are held transposed, `[key, column]`, so that everything per query is a plain vector operation along
//! columns. S^T = K Q^T and O^T = V^T P^T read K and V as they lie; only Q is transposed, once per panel.

use std::ops::Range;

use macerator::{AutoArch, Simd, WithSimd};

use super::super::real::Real;
use super::Spec;
use super::layout::Layout;
use super::pack::{Aligned, Bounds, Columns, Sizes, gather_heads};
use super::product::{Product, Start, Strided, VECTORS, panel_width};
use super::tasks::{self, Shared};
use super::vector::{V, exp, load, load_i32, splat, store, tanh};

/// Keys in a block: scores of a panel stay in the first-level cache.
pub(super) const KEY_BLOCK: usize = 144;

/// Panels that visit a block of keys while it is in the second-level cache.
const PANELS_PER_TASK: usize = 12;

/// The running maximum before any key: finite, so that a block without visible keys changes nothing.
const LOWEST: f32 = -1e30;

/// Writes `out`, `[tokens, query heads * head_dim]`, and `lse`, `[tokens, query heads]`.
pub(super) fn forward<E: Real>(
    q: &[E],
    k: &[E],
    v: &[E],
    layout: &Layout,
    spec: &Spec,
    out: &mut [E],
    lse: &mut [f32],
) {
    AutoArch::new().dispatch(Forward { q, k, v, layout, spec, out: Shared::new(out), lse: Shared::new(lse) });
}

struct Forward<'a, E> {
    q: &'a [E],
    k: &'a [E],
    v: &'a [E],
    layout: &'a Layout,
    spec: &'a Spec,
    out: Shared<'a, E>,
    lse: Shared<'a, f32>,
}

/// A run of columns of one kv head in one document.
struct Task {
    document: usize,
    kv_head: usize,
    columns: Range<usize>,
}

impl<E: Real> WithSimd for Forward<'_, E> {
    type Output = ();

    fn with_simd<S: Simd>(self) {
        let sizes = Sizes::new(self.spec, S::lanes32());
        let keys = gather_heads(self.k, self.layout, sizes);
        let values = gather_heads(self.v, self.layout, sizes);
        let tasks = plan(self.layout, sizes, PANELS_PER_TASK * panel_width::<S>());
        tasks::run(
            &tasks,
            || Scratch::new::<S>(sizes),
            |scratch, task| {
                let document = self.layout.document_range(task.document);
                let head = (task.kv_head * self.layout.num_tokens() + document.start) * sizes.width;
                let len = document.len() * sizes.width;
                let columns = Columns {
                    sizes,
                    kv_head: task.kv_head,
                    document: self.layout.document(task.document),
                    window: self.spec.window,
                };
                let (keys, values) = (&keys.get()[head..head + len], &values.get()[head..head + len]);
                let run = Run { forward: &self, columns, range: task.columns.clone(), keys, values, scratch };
                // SAFETY: `S` was chosen by `AutoArch`, so the CPU has its features.
                unsafe { S::vectorize(run) }
            },
        );
    }
}

/// All tasks, dearest first.
fn plan(layout: &Layout, sizes: Sizes, columns_per_task: usize) -> Vec<Task> {
    let mut tasks = Vec::new();
    for document in 0..layout.num_documents() {
        let columns = layout.document(document).len() * sizes.group;
        for kv_head in 0..sizes.num_kv_heads {
            for start in (0..columns).step_by(columns_per_task) {
                tasks.push(Task { document, kv_head, columns: start..columns.min(start + columns_per_task) });
            }
        }
    }
    // Causal: cost grows with the number of keys before the last column.
    tasks.sort_by_key(|task| std::cmp::Reverse(task.columns.end * task.columns.len()));
    tasks
}

/// A worker's memory; its size does not depend on the length.
struct Scratch {
    bounds: Vec<Bounds>,
    /// `[panel, head_dim, column]`
    queries: Aligned,
    /// `[panel, width, column]`
    outs: Aligned,
    /// `[panel, column]`
    max: Aligned,
    sum: Aligned,
    /// `[key, column]`
    scores: Aligned,
    /// `[column]`
    factors: Aligned,
}

impl Scratch {
    fn new<S: Simd>(sizes: Sizes) -> Self {
        let panel = panel_width::<S>();
        Self {
            bounds: vec![Bounds::new(panel); PANELS_PER_TASK],
            queries: Aligned::zeroed(PANELS_PER_TASK * sizes.width * panel),
            outs: Aligned::zeroed(PANELS_PER_TASK * sizes.width * panel),
            max: Aligned::zeroed(PANELS_PER_TASK * panel),
            sum: Aligned::zeroed(PANELS_PER_TASK * panel),
            scores: Aligned::zeroed(KEY_BLOCK * panel),
            factors: Aligned::zeroed(panel),
        }
    }
}

/// One task on its worker.
struct Run<'a, E> {
    forward: &'a Forward<'a, E>,
    columns: Columns<'a>,
    range: Range<usize>,
    /// `[key in document, width]`
    keys: &'a [f32],
    values: &'a [f32],
    scratch: &'a mut Scratch,
}

impl<E: Real> WithSimd for Run<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self) {
        let Run { forward, columns, range, keys, values, scratch } = self;
        let Sizes { head_dim, width, .. } = columns.sizes;
        let panel = panel_width::<S>();
        let state = width * panel;
        let panels = range.len().div_ceil(panel);
        let soft_cap = forward.spec.soft_cap.map(|cap| cap as f32);
        let scores = scratch.scores.get_mut();
        let factors = scratch.factors.get_mut();
        let max = scratch.max.get_mut();
        let sum = scratch.sum.get_mut();

        for p in 0..panels {
            let columns_of_panel = range.start + p * panel..range.end.min(range.start + (p + 1) * panel);
            columns.bounds(columns_of_panel.clone(), &mut scratch.bounds[p]);
            columns.pack_transposed(
                forward.q,
                columns_of_panel,
                panel,
                &mut scratch.queries.get_mut()[p * state..],
            );
        }
        max[..panels * panel].fill(LOWEST);
        sum[..panels * panel].fill(0.0);
        scratch.outs.get_mut()[..panels * state].fill(0.0);

        let bounds = &scratch.bounds[..panels];
        let first_key = bounds.iter().map(|bounds| bounds.any.start).min().unwrap_or(0);
        let end_key = bounds.iter().map(|bounds| bounds.any.end).max().unwrap_or(0);
        // Blocks are counted from the start of the document.
        for block in (first_key / KEY_BLOCK * KEY_BLOCK..end_key).step_by(KEY_BLOCK) {
            for (p, bounds) in bounds.iter().enumerate() {
                let block = block.max(bounds.any.start)..(block + KEY_BLOCK).min(bounds.any.end);
                if block.is_empty() {
                    continue;
                }
                Product {
                    rows: block.len(),
                    depth: head_dim,
                    columns: panel,
                    a: Strided { data: &keys[block.start * width..], row: width, depth: 1 },
                    b: &scratch.queries.get()[p * state..],
                    b_stride: panel,
                    c: scores,
                    c_stride: panel,
                    start: Start::Zero,
                }
                .run::<S>();
                if let Some(cap) = soft_cap {
                    cap_scores::<S>(&mut scores[..block.len() * panel], cap);
                }
                mask_scores::<S>(scores, panel, block.clone(), bounds);
                let (max, sum) = (&mut max[p * panel..][..panel], &mut sum[p * panel..][..panel]);
                softmax::<S>(&mut scores[..block.len() * panel], max, sum, factors);
                Product {
                    rows: width,
                    depth: block.len(),
                    columns: panel,
                    a: Strided { data: &values[block.start * width..], row: 1, depth: width },
                    b: scores,
                    b_stride: panel,
                    c: &mut scratch.outs.get_mut()[p * state..],
                    c_stride: panel,
                    start: Start::Scaled(factors),
                }
                .run::<S>();
            }
        }

        for (i, column) in range.enumerate() {
            let at = columns.head_index(column);
            let (p, j) = (i / panel, i % panel);
            // SAFETY: each (token, head) belongs to one column of one task.
            let (out, lse) =
                unsafe { (forward.out.range(at * head_dim, head_dim), forward.lse.range(at, 1)) };
            let normalizer = 1.0 / sum[i];
            let features = scratch.outs.get()[p * state + j..].iter().step_by(panel);
            for (out, feature) in out.iter_mut().zip(features) {
                *out = E::from_f32(feature * normalizer);
            }
            lse[0] = max[i] + sum[i].ln();
        }
    }
}

/// s -> cap tanh(s / cap).
#[inline(always)]
pub(super) fn cap_scores<S: Simd>(scores: &mut [f32], cap: f32) {
    for at in (0..scores.len()).step_by(S::lanes32()) {
        let score = load::<S>(scores, at);
        store::<S>(scores, at, tanh(score * splat(1.0 / cap)) * splat(cap));
    }
}

/// Sets scores `[key, column]` of invisible pairs to -inf; `keys` are the block's indices in the document.
#[inline(always)]
pub(super) fn mask_scores<S: Simd>(scores: &mut [f32], stride: usize, keys: Range<usize>, bounds: &Bounds) {
    let lowest = splat::<S>(f32::NEG_INFINITY).reinterpret::<i32>();
    for (i, key) in keys.enumerate() {
        if bounds.all.contains(&key) {
            continue;
        }
        let key = macerator::Scalar::splat::<S>(key as i32);
        for j in 0..VECTORS {
            let (column, at) = (j * S::lanes32(), i * stride + j * S::lanes32());
            let score = load::<S>(scores, at).reinterpret::<i32>();
            let past = key.lt(load_i32(&bounds.end, column));
            let recent = load_i32::<S>(&bounds.first, column).gt(key);
            let visible = recent.select(lowest, past.select(score, lowest));
            store::<S>(scores, at, visible.reinterpret::<f32>());
        }
    }
}

/// Scores `[key, column]` to exp(score - max), with `max` and `sum` brought up to date and `factors` set to what
/// earlier sums have to be multiplied with.
#[inline(always)]
fn softmax<S: Simd>(scores: &mut [f32], max: &mut [f32], sum: &mut [f32], factors: &mut [f32]) {
    let (lanes, panel) = (S::lanes32(), panel_width::<S>());
    let mut new_max = [splat::<S>(0.0); VECTORS];
    for (j, new_max) in new_max.iter_mut().enumerate() {
        *new_max = load::<S>(max, j * lanes);
    }
    for row in scores.chunks_exact(panel) {
        for (j, max) in new_max.iter_mut().enumerate() {
            *max = load::<S>(row, j * lanes).max(*max);
        }
    }
    let mut block_sum = [splat::<S>(0.0); VECTORS];
    for row in scores.chunks_exact_mut(panel) {
        for j in 0..VECTORS {
            let p = exp(load::<S>(row, j * lanes) - new_max[j]);
            store::<S>(row, j * lanes, p);
            block_sum[j] += p;
        }
    }
    for j in 0..VECTORS {
        let at = j * lanes;
        let factor: V<S> = exp(load::<S>(max, at) - new_max[j]);
        store::<S>(factors, at, factor);
        store::<S>(max, at, new_max[j]);
        store::<S>(sum, at, load::<S>(sum, at).mul_add(factor, block_sum[j]));
    }
}
