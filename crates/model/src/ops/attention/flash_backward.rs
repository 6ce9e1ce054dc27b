//! Blocked attention, backward: probabilities are computed again from the saved log-sum-exp.
//!
//! ```text
//! p = exp(s - lse)            delta = dout . out           dp = dout . v
//! ds = p (dp - delta)         (soft cap: ds *= 1 - tanh^2)
//! dv_k = sum_q p dout_q       dk_k = sum_q ds q_q          dq_q = sum_k ds k_k
//! ```
//! The five products are done block by block. A task owns the gradients that it computes: nothing is added
//! from two threads, so there are no atomics and no order to depend on. Usually a task is a kv head of a document
//! and computes everything. Where that leaves threads idle (one long document, few heads), its dq is cut by queries
//! and its dk and dv by keys: seven products instead of five, and not one bit of difference, since every gradient is
//! the same chain of multiply-adds.

use std::ops::Range;

use macerator::{AutoArch, Simd, WithSimd};

use super::super::real::Real;
use super::Spec;
use super::backward_plan::{Task, plan};
use super::flash_forward::{KEY_BLOCK, cap_scores, mask_scores};
use super::layout::Layout;
use super::pack::{Aligned, Bounds, Columns, Sizes, gather_heads};
use super::product::{Product, Start, Strided, VECTORS, panel_width};
use super::tasks::{self, Shared};
use super::vector::{exp, load, splat, store};

/// Panels whose scores are held at the same time: the depth of the sums over queries.
const PANELS: usize = 4;

/// What the forward pass got and gave, and the gradient of what it gave.
pub(super) struct Inputs<'a, E> {
    pub(super) q: &'a [E],
    pub(super) k: &'a [E],
    pub(super) v: &'a [E],
    pub(super) out: &'a [E],
    pub(super) lse: &'a [f32],
    pub(super) dout: &'a [E],
}

/// Gradients, laid out as what they belong to.
pub(super) struct Gradients<'a, E> {
    pub(super) dq: &'a mut [E],
    pub(super) dk: &'a mut [E],
    pub(super) dv: &'a mut [E],
}

/// Writes all three gradients.
pub(super) fn backward<E: Real>(
    inputs: &Inputs<'_, E>,
    layout: &Layout,
    spec: &Spec,
    gradients: Gradients<'_, E>,
    threads: usize,
) {
    let Gradients { dq, dk, dv } = gradients;
    let (dq, dk, dv) = (Shared::new(dq), Shared::new(dk), Shared::new(dv));
    AutoArch::new().dispatch(Backward { inputs, layout, spec, dq, dk, dv, threads });
}

struct Backward<'a, E> {
    inputs: &'a Inputs<'a, E>,
    layout: &'a Layout,
    spec: &'a Spec,
    dq: Shared<'a, E>,
    dk: Shared<'a, E>,
    dv: Shared<'a, E>,
    threads: usize,
}

impl<E: Real> WithSimd for Backward<'_, E> {
    type Output = ();

    fn with_simd<S: Simd>(self) {
        let sizes = Sizes::new(self.spec, S::lanes32());
        let keys = gather_heads(self.inputs.k, self.layout, sizes);
        let values = gather_heads(self.inputs.v, self.layout, sizes);
        let tasks = plan(self.layout, sizes, PANELS * panel_width::<S>(), self.threads);
        let longest = tasks.iter().map(|task| task.dkv.len()).max().unwrap_or(0);
        tasks::run(
            &tasks,
            || Scratch::new::<S>(sizes, longest, self.spec.soft_cap.is_some()),
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
                // SAFETY: `S` was chosen by `AutoArch`, so the CPU has its features.
                unsafe { S::vectorize(Run { backward: &self, task, columns, keys, values, scratch }) }
            },
        );
    }
}

/// A worker's memory: a constant, and dk and dv of the keys of its longest task.
struct Scratch {
    bounds: Vec<Bounds>,
    /// `[panel, head_dim, column]`
    queries_transposed: Aligned,
    douts_transposed: Aligned,
    /// `[column, width]`
    queries: Aligned,
    douts: Aligned,
    /// `[column]`
    lse: Aligned,
    delta: Aligned,
    /// `[key, column]`
    probabilities: Aligned,
    dscores: Aligned,
    /// Derivative of the soft cap, `[key, column]`.
    slopes: Aligned,
    /// `[panel, width, column]`
    dq: Aligned,
    /// `[key, width]`
    dk: Aligned,
    dv: Aligned,
}

impl Scratch {
    fn new<S: Simd>(sizes: Sizes, keys: usize, soft_cap: bool) -> Self {
        let columns = PANELS * panel_width::<S>();
        let block = Aligned::zeroed(KEY_BLOCK * columns);
        let features = || Aligned::zeroed(columns * sizes.width);
        Self {
            bounds: vec![Bounds::new(panel_width::<S>()); PANELS],
            queries_transposed: features(),
            douts_transposed: features(),
            queries: features(),
            douts: features(),
            lse: Aligned::zeroed(columns),
            delta: Aligned::zeroed(columns),
            probabilities: Aligned::zeroed(KEY_BLOCK * columns),
            dscores: block,
            slopes: Aligned::zeroed(if soft_cap { KEY_BLOCK * columns } else { 0 }),
            dq: features(),
            dk: Aligned::zeroed(keys * sizes.width),
            dv: Aligned::zeroed(keys * sizes.width),
        }
    }
}

/// One task on its worker.
struct Run<'a, E> {
    backward: &'a Backward<'a, E>,
    task: &'a Task,
    columns: Columns<'a>,
    /// `[key in document, width]`
    keys: &'a [f32],
    values: &'a [f32],
    scratch: &'a mut Scratch,
}

impl<E: Real> WithSimd for Run<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self) {
        let width = self.columns.sizes.width;
        let (dq, dkv) = (self.task.dq.clone(), self.task.dkv.clone());
        self.scratch.dk.get_mut()[..dkv.len() * width].fill(0.0);
        self.scratch.dv.get_mut()[..dkv.len() * width].fill(0.0);
        let step = PANELS * panel_width::<S>();
        let columns = if dkv.is_empty() { dq } else { 0..self.columns.len() };
        for start in columns.clone().step_by(step) {
            self.step::<S>(start..columns.end.min(start + step));
        }
        self.write_keys();
    }
}

impl<E: Real> Run<'_, E> {
    /// Everything that a few panels of columns contribute.
    #[inline(always)]
    fn step<S: Simd>(&mut self, range: Range<usize>) {
        let panel = panel_width::<S>();
        let panels = range.len().div_ceil(panel);
        for p in 0..panels {
            let columns = range.start + p * panel..range.end.min(range.start + (p + 1) * panel);
            self.columns.bounds(columns, &mut self.scratch.bounds[p]);
        }
        let bounds = &self.scratch.bounds[..panels];
        let mut keys = bounds.iter().map(|bounds| bounds.any.start).min().unwrap_or(0)
            ..bounds.iter().map(|bounds| bounds.any.end).max().unwrap_or(0);
        if self.task.dq.is_empty() {
            keys = intersect(&keys, &self.task.dkv);
        }
        if keys.is_empty() {
            return;
        }
        self.read_columns::<S>(range.clone());
        // Blocks are counted from the start of the document.
        for block in (keys.start / KEY_BLOCK * KEY_BLOCK..keys.end).step_by(KEY_BLOCK) {
            let block = intersect(&(block..block + KEY_BLOCK), &keys);
            for p in 0..panels {
                self.scores::<S>(p, panels, block.clone());
            }
            if !self.task.dkv.is_empty() {
                self.add_to_keys::<S>(range.len(), panels, block);
            }
        }
        if !self.task.dq.is_empty() {
            self.write_queries(range, panel);
        }
    }

    /// Brings queries, gradients and statistics of a step's columns into the scratch memory.
    #[inline(always)]
    fn read_columns<S: Simd>(&mut self, range: Range<usize>) {
        let Sizes { head_dim, width, .. } = self.columns.sizes;
        let Inputs { q, out, lse, dout, .. } = *self.backward.inputs;
        let (columns, scratch, panel) = (&self.columns, &mut *self.scratch, panel_width::<S>());
        for (p, start) in range.clone().step_by(panel).enumerate() {
            let (columns_of_panel, at) = (start..range.end.min(start + panel), p * width * panel);
            columns.pack_transposed(
                q,
                columns_of_panel.clone(),
                panel,
                &mut scratch.queries_transposed.get_mut()[at..],
            );
            columns.pack_transposed(
                dout,
                columns_of_panel,
                panel,
                &mut scratch.douts_transposed.get_mut()[at..],
            );
        }
        columns.pack_rows(q, range.clone(), range.len(), scratch.queries.get_mut());
        columns.pack_rows(dout, range.clone(), range.len(), scratch.douts.get_mut());
        // Columns past the range have no gradient: their probabilities don't matter, but must be finite.
        let (saved, delta) = (scratch.lse.get_mut(), scratch.delta.get_mut());
        saved.fill(0.0);
        delta.fill(0.0);
        for (i, column) in range.enumerate() {
            let at = columns.head_index(column);
            saved[i] = lse[at];
            delta[i] = dot(&out[at * head_dim..][..head_dim], &scratch.douts.get()[i * width..][..head_dim]);
        }
        scratch.dq.get_mut().fill(0.0);
    }

    /// Probabilities and score gradients of panel `p` of `panels`, and what they add to its dq.
    #[inline(always)]
    fn scores<S: Simd>(&mut self, p: usize, panels: usize, block: Range<usize>) {
        let Sizes { head_dim, width, .. } = self.columns.sizes;
        let scratch = &mut *self.scratch;
        let (panel, bounds) = (panel_width::<S>(), &scratch.bounds[p]);
        let stride = panels * panel;
        let visible = intersect(&block, &bounds.any);
        let probabilities = &mut scratch.probabilities.get_mut()[p * panel..];
        let dscores = &mut scratch.dscores.get_mut()[p * panel..];
        for key in block.clone().filter(|key| !visible.contains(key)) {
            let at = (key - block.start) * stride;
            probabilities[at..at + panel].fill(0.0);
            dscores[at..at + panel].fill(0.0);
        }
        if visible.is_empty() {
            return;
        }
        let first = (visible.start - block.start) * stride;
        let (probabilities, dscores) = (&mut probabilities[first..], &mut dscores[first..]);
        let by_key = |data, columns, c| Product {
            rows: visible.len(),
            depth: head_dim,
            columns: panel,
            a: Strided { data, row: width, depth: 1 },
            b: columns,
            b_stride: panel,
            c,
            c_stride: stride,
            start: Start::Zero,
        };
        let at = p * width * panel;
        let keys = &self.keys[visible.start * width..];
        by_key(keys, &scratch.queries_transposed.get()[at..], &mut *probabilities).run::<S>();
        by_key(&self.values[visible.start * width..], &scratch.douts_transposed.get()[at..], &mut *dscores)
            .run::<S>();

        let soft_cap = self.backward.spec.soft_cap.map(|cap| cap as f32);
        let slopes = &mut scratch.slopes.get_mut()[..if soft_cap.is_some() { KEY_BLOCK * stride } else { 0 }];
        if let Some(cap) = soft_cap {
            for row in 0..visible.len() {
                let scores = &mut probabilities[row * stride..][..panel];
                cap_scores::<S>(scores, cap);
                slopes_of_cap::<S>(scores, cap, &mut slopes[row * panel..][..panel]);
            }
        }
        mask_scores::<S>(probabilities, stride, visible.clone(), bounds);
        let statistics =
            (&scratch.lse.get()[p * panel..][..panel], &scratch.delta.get()[p * panel..][..panel]);
        for row in 0..visible.len() {
            let slopes = soft_cap.map(|_| &slopes[row * panel..][..panel]);
            let at = row * stride;
            differentiate::<S>(
                &mut probabilities[at..at + panel],
                &mut dscores[at..at + panel],
                statistics,
                slopes,
            );
        }
        if !self.task.dq.is_empty() {
            Product {
                rows: width,
                depth: visible.len(),
                columns: panel,
                a: Strided { data: keys, row: 1, depth: width },
                b: dscores,
                b_stride: stride,
                c: &mut scratch.dq.get_mut()[at..],
                c_stride: panel,
                start: Start::Sum,
            }
            .run::<S>();
        }
    }

    /// dv += p dout and dk += ds q for a block of keys.
    #[inline(always)]
    fn add_to_keys<S: Simd>(&mut self, columns: usize, panels: usize, block: Range<usize>) {
        let scratch = &mut *self.scratch;
        let (width, stride) = (self.columns.sizes.width, panels * panel_width::<S>());
        let at = (block.start - self.task.dkv.start) * width;
        let add = |data, b, c| Product {
            rows: block.len(),
            depth: columns,
            columns: width,
            a: Strided { data, row: stride, depth: 1 },
            b,
            b_stride: width,
            c,
            c_stride: width,
            start: Start::Sum,
        };
        add(scratch.probabilities.get(), scratch.douts.get(), &mut scratch.dv.get_mut()[at..]).run::<S>();
        add(scratch.dscores.get(), scratch.queries.get(), &mut scratch.dk.get_mut()[at..]).run::<S>();
    }

    fn write_queries(&mut self, range: Range<usize>, panel: usize) {
        let Sizes { head_dim, width, .. } = self.columns.sizes;
        for (i, column) in range.enumerate() {
            let at = self.columns.head_index(column) * head_dim;
            let features =
                self.scratch.dq.get()[i / panel * width * panel + i % panel..].iter().step_by(panel);
            // SAFETY: each (token, query head) belongs to one column of one task that computes dq.
            let dq = unsafe { self.backward.dq.range(at, head_dim) };
            dq.iter_mut().zip(features).for_each(|(out, &feature)| *out = E::from_f32(feature));
        }
    }

    fn write_keys(&mut self) {
        let Sizes { head_dim, width, num_kv_heads, .. } = self.columns.sizes;
        for (i, &token) in self.columns.document[self.task.dkv.clone()].iter().enumerate() {
            let at = (token as usize * num_kv_heads + self.columns.kv_head) * head_dim;
            // SAFETY: each (token, kv head) belongs to one task that computes dk and dv.
            let (dk, dv) =
                unsafe { (self.backward.dk.range(at, head_dim), self.backward.dv.range(at, head_dim)) };
            for (out, sums) in [(dk, &self.scratch.dk), (dv, &self.scratch.dv)] {
                let sums = &sums.get()[i * width..][..head_dim];
                out.iter_mut().zip(sums).for_each(|(out, &sum)| *out = E::from_f32(sum));
            }
        }
    }
}

/// Scores to probabilities and their gradients to score gradients, one row of a panel. `statistics` are lse and delta.
#[inline(always)]
fn differentiate<S: Simd>(
    scores: &mut [f32],
    gradients: &mut [f32],
    statistics: (&[f32], &[f32]),
    slopes: Option<&[f32]>,
) {
    for j in 0..VECTORS {
        let at = j * S::lanes32();
        let p = exp(load::<S>(scores, at) - load(statistics.0, at));
        let mut ds = p * (load::<S>(gradients, at) - load(statistics.1, at));
        if let Some(slopes) = slopes {
            ds *= load(slopes, at);
        }
        store::<S>(scores, at, p);
        store::<S>(gradients, at, ds);
    }
}

/// 1 - tanh^2 from capped scores.
#[inline(always)]
fn slopes_of_cap<S: Simd>(capped: &[f32], cap: f32, slopes: &mut [f32]) {
    for at in (0..capped.len()).step_by(S::lanes32()) {
        let tanh = load::<S>(capped, at) * splat(1.0 / cap);
        store::<S>(slopes, at, splat::<S>(1.0) - tanh * tanh);
    }
}

/// Sum of products, in eight interleaved sums.
#[inline(always)]
fn dot<E: Real>(x: &[E], y: &[f32]) -> f32 {
    let mut sums = [0.0; 8];
    for (x, y) in x.chunks(8).zip(y.chunks(8)) {
        for ((sum, x), y) in sums.iter_mut().zip(x).zip(y) {
            *sum += x.to_f32() * y;
        }
    }
    sums.iter().sum()
}

fn intersect(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}
