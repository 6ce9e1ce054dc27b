//! Which tiles the kernels visit, worked out once per batch on the host: for every 32 queries, the keys that they see, and for
//! every 32 keys, the queries that see them.

use super::super::Layout;
use super::{BLOCK, WAVE};

/// `struct Range` of tile.h: `[first, end)` holds all that any of the 32 sees, `[plain_first, plain_end)` only what all of them see.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct Range {
    first: i32,
    plain_first: i32,
    plain_end: i32,
    end: i32,
}

/// Ranges of a batch, row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ranges {
    /// Keys by groups of queries.
    pub keys: Vec<Range>,
    /// Queries by groups of keys.
    pub queries: Vec<Range>,
}

/// Where documents begin and end around each token of a row.
struct Row<'a> {
    segments: &'a [i32],
    /// First and last token of the token's document.
    document: Vec<(usize, usize)>,
    /// First token of the run of equal ids around the token, and the end of the run.
    run: Vec<(usize, usize)>,
}

impl Ranges {
    /// For a `window` as the kernels read it.
    pub(super) fn new(layout: &Layout, window: i32) -> Self {
        let seq = layout.seq();
        let window = window as usize;
        let mut document = vec![(0, 0); layout.num_tokens()];
        for index in 0..layout.num_documents() {
            let tokens = layout.document(index);
            let ends = (tokens[0] as usize % seq, tokens[tokens.len() - 1] as usize % seq);
            tokens.iter().for_each(|&token| document[token as usize] = ends);
        }
        let mut ranges = Self { keys: Vec::new(), queries: Vec::new() };
        for (row, segments) in layout.segment_ids().chunks_exact(seq.max(1)).enumerate() {
            let document = document[row * seq..(row + 1) * seq].to_vec();
            let row = Row { segments, document, run: runs(segments) };
            let groups = seq.div_ceil(BLOCK) * (BLOCK / WAVE);
            ranges.keys.extend((0..groups).map(|group| row.keys(group * WAVE, window)));
            ranges.queries.extend((0..groups).map(|group| row.queries(group * WAVE, window)));
        }
        ranges
    }
}

impl Row<'_> {
    /// Keys that the queries from `start` on see.
    fn keys(&self, start: usize, window: usize) -> Range {
        let Some(end) = self.end_of_group(start) else { return self.nothing() };
        let seen_from = |query: usize| self.document[query].0.max((query + 1).saturating_sub(window));
        let first = (start..end).map(seen_from).min().unwrap_or(start);
        let plain = self.one_document(start, end).then(|| {
            let first = self.run[start].0.max(end.saturating_sub(window));
            (first, start + 1)
        });
        Range::new(first, plain, end)
    }

    /// Queries that see the keys from `start` on.
    fn queries(&self, start: usize, window: usize) -> Range {
        let Some(end) = self.end_of_group(start) else { return self.nothing() };
        let seen_until = |key: usize| (self.document[key].1 + 1).min(key.saturating_add(window));
        let last = (start..end).map(seen_until).max().unwrap_or(end);
        let plain = self.one_document(start, end).then(|| {
            let last = self.run[start].1.min(start.saturating_add(window));
            (end - 1, last)
        });
        Range::new(start, plain, last)
    }

    /// End of the group that begins at `start`, none if it begins past the row.
    fn end_of_group(&self, start: usize) -> Option<usize> {
        let seq = self.segments.len();
        (start < seq).then(|| (start + WAVE).min(seq))
    }

    fn one_document(&self, start: usize, end: usize) -> bool {
        self.run[start].1 >= end
    }

    /// Neither the least `first` nor the greatest `end` of a workgroup.
    fn nothing(&self) -> Range {
        Range::new(self.segments.len(), None, 0)
    }
}

impl Range {
    fn new(first: usize, plain: Option<(usize, usize)>, end: usize) -> Self {
        // Tokens of a batch fit an i32, see Layout::new.
        let (plain_first, plain_end) = plain.unwrap_or((0, 0));
        let [first, plain_first, plain_end, end] = [first, plain_first, plain_end, end].map(|at| at as i32);
        Self { first, plain_first, plain_end, end }
    }
}

/// Start and end of the run of equal ids around each token.
fn runs(segments: &[i32]) -> Vec<(usize, usize)> {
    let mut start = 0;
    let of_run = |run: &[i32]| {
        let ends = (start, start + run.len());
        start = ends.1;
        vec![ends; run.len()]
    };
    segments.chunk_by(|a, b| a == b).flat_map(of_run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pair that the mask lets through lies inside `[first, end)`, and no other lies inside the plain part, both ways.
    #[test]
    fn ranges_hold_what_is_seen() {
        let rows: [Vec<i32>; 4] = [
            vec![1; 300],
            (0..300).map(|token| token / 70).collect(),
            (0..300).map(|token| token / 40 % 3).collect(),
            (0..300).map(|token| token * token % 5).collect(),
        ];
        for segments in rows {
            for window in [1, 17, 64, 250, i32::MAX] {
                let layout = Layout::new(&segments, &[0; 300], 1, 300);
                let ranges = Ranges::new(&layout, window);
                let sees = |query: usize, key: usize| {
                    key <= query && segments[key] == segments[query] && query - key < window as usize
                };
                for a in 0..300 {
                    for b in 0..300 {
                        let (keys, queries) = (ranges.keys[a / WAVE], ranges.queries[a / WAVE]);
                        check(keys, sees(a, b), b);
                        check(queries, sees(b, a), b);
                    }
                }
            }
        }
    }

    fn check(range: Range, seen: bool, at: usize) {
        let within = |first: i32, end: i32| (first as usize..end as usize).contains(&at);
        assert!(!seen || within(range.first, range.end), "{range:?} leaves out {at}");
        assert!(seen || !within(range.plain_first, range.plain_end), "{range:?} lets in {at}");
    }
}
