//! Between tensors and the kernels' own arrangement: float32, gathered by document, padded to whole vectors.
//!
//! The query heads that share a kv head are handled together. For one kv head and one document, *column*
//! `c = query * group + head` numbers its (query, head in group) pairs; a *panel* is a run of columns as wide as
//! two vectors. Keys and values are gathered once, `[kv head, token in document order, width]`.

use std::ops::Range;

use rayon::prelude::*;

use super::super::real::Real;
use super::Spec;
use super::layout::{Layout, first_visible};

/// Zeroed float32 values that start on a cache line.
pub(super) struct Aligned {
    values: Vec<f32>,
    start: usize,
}

impl Aligned {
    pub(super) fn zeroed(len: usize) -> Self {
        const LINE: usize = 64;
        const MOST: usize = LINE / size_of::<f32>() - 1;
        let values = vec![0.0; len + MOST];
        // The vector never grows, so the values stay where they are. (Alignment only serves speed.)
        let start = values.as_ptr().align_offset(LINE).min(MOST);
        Self { values, start }
    }

    pub(super) fn get(&self) -> &[f32] {
        &self.values[self.start..]
    }

    pub(super) fn get_mut(&mut self) -> &mut [f32] {
        &mut self.values[self.start..]
    }
}

/// Sizes that every kernel needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) num_query_heads: usize,
    pub(super) num_kv_heads: usize,
    /// Query heads per kv head.
    pub(super) group: usize,
    pub(super) head_dim: usize,
    /// `head_dim` rounded up to whole vectors.
    pub(super) width: usize,
}

impl Sizes {
    pub(super) fn new(spec: &Spec, lanes: usize) -> Self {
        Self {
            num_query_heads: spec.num_query_heads,
            num_kv_heads: spec.num_kv_heads,
            group: spec.num_query_heads / spec.num_kv_heads,
            head_dim: spec.head_dim,
            width: spec.head_dim.next_multiple_of(lanes),
        }
    }
}

/// The columns of one kv head in one document.
#[derive(Clone, Copy)]
pub(super) struct Columns<'a> {
    pub(super) sizes: Sizes,
    pub(super) kv_head: usize,
    /// Token indices of the document.
    pub(super) document: &'a [u32],
    pub(super) window: Option<usize>,
}

impl Columns<'_> {
    pub(super) fn len(&self) -> usize {
        self.document.len() * self.sizes.group
    }

    /// Index of a column in `[tokens, query heads]`.
    #[inline(always)]
    pub(super) fn head_index(&self, column: usize) -> usize {
        let Sizes { group, num_query_heads, .. } = self.sizes;
        let token = self.document[column / group] as usize;
        token * num_query_heads + self.kv_head * group + column % group
    }

    /// Copies columns of `x`, `[tokens, query heads * head_dim]`, to `out`, `[head_dim, panel]`; `out` is as wide as a
    /// panel and columns past the range are zero.
    pub(super) fn pack_transposed<E: Real>(
        &self,
        x: &[E],
        range: Range<usize>,
        panel: usize,
        out: &mut [f32],
    ) {
        let head_dim = self.sizes.head_dim;
        if range.len() < panel {
            out[..head_dim * panel].fill(0.0);
        }
        for (i, column) in range.enumerate() {
            let features = &x[self.head_index(column) * head_dim..][..head_dim];
            for (out, feature) in out[i..].iter_mut().step_by(panel).zip(features) {
                *out = feature.to_f32();
            }
        }
    }

    /// Copies columns of `x` to the rows of `out`, `[columns, width]`; `rows` rows are written, those past the range with zeros.
    pub(super) fn pack_rows<E: Real>(&self, x: &[E], range: Range<usize>, rows: usize, out: &mut [f32]) {
        let Sizes { head_dim, width, .. } = self.sizes;
        out[range.len() * width..rows * width].fill(0.0);
        for (column, out) in range.zip(out.chunks_exact_mut(width)) {
            widen(&x[self.head_index(column) * head_dim..][..head_dim], out);
        }
    }

    /// The keys that each column of a panel sees; columns past the range repeat the last one.
    pub(super) fn bounds(&self, range: Range<usize>, bounds: &mut Bounds) {
        let last = range.end - 1;
        for (i, (first, end)) in bounds.first.iter_mut().zip(&mut bounds.end).enumerate() {
            let query = (range.start + i).min(last) / self.sizes.group;
            *first = first_visible(self.document, query, self.window) as i32;
            *end = query as i32 + 1;
        }
        let extremes = |values: &[i32]| {
            values.iter().fold((i32::MAX, 0), |(low, high), &value| (low.min(value), high.max(value)))
        };
        let ((first_low, first_high), (end_low, end_high)) = (extremes(&bounds.first), extremes(&bounds.end));
        bounds.any = first_low as usize..end_high as usize;
        bounds.all = first_high as usize..end_low as usize;
    }
}

/// Visible keys of the columns of a panel, as indices in the document.
#[derive(Clone, Default)]
pub(super) struct Bounds {
    /// First visible key per column.
    pub(super) first: Vec<i32>,
    /// One past the last visible key per column.
    pub(super) end: Vec<i32>,
    /// Keys that some column sees.
    pub(super) any: Range<usize>,
    /// Keys that all columns see (may be empty).
    pub(super) all: Range<usize>,
}

impl Bounds {
    pub(super) fn new(panel: usize) -> Self {
        Self { first: vec![0; panel], end: vec![0; panel], any: 0..0, all: 0..0 }
    }
}

/// Gathers keys or values `[tokens, kv heads * head_dim]` to `[kv head, token in document order, width]`, float32.
pub(super) fn gather_heads<E: Real>(x: &[E], layout: &Layout, sizes: Sizes) -> Aligned {
    let Sizes { num_kv_heads, head_dim, width, .. } = sizes;
    let tokens = layout.grouped_tokens();
    let mut gathered = Aligned::zeroed(num_kv_heads * tokens.len() * width);
    if tokens.is_empty() {
        return gathered;
    }
    const TOKENS_PER_TASK: usize = 256;
    let heads =
        gathered.get_mut()[..num_kv_heads * tokens.len() * width].par_chunks_exact_mut(tokens.len() * width);
    heads.enumerate().for_each(|(head, out)| {
        let chunks = out.par_chunks_mut(TOKENS_PER_TASK * width).zip(tokens.par_chunks(TOKENS_PER_TASK));
        chunks.for_each(|(out, tokens)| {
            for (&token, out) in tokens.iter().zip(out.chunks_exact_mut(width)) {
                let start = (token as usize * num_kv_heads + head) * head_dim;
                widen(&x[start..start + head_dim], out);
            }
        });
    });
    gathered
}

/// Copies the features of one head to float32, zeros behind them.
#[inline(always)]
fn widen<E: Real>(features: &[E], out: &mut [f32]) {
    let (values, padding) = out.split_at_mut(features.len());
    for (out, feature) in values.iter_mut().zip(features) {
        *out = feature.to_f32();
    }
    padding.fill(0.0);
}
