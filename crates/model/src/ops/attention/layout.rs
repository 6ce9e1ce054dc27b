//! Which tokens may see each other, worked out once per batch on the host.
//!
//! A *document* is the set of tokens of one row that share a segment id, in row order. Attention never
//! crosses a document, and inside one it is causal, so a document is the unit on which the kernels work:
//! tiles are counted from the document's first token, and the arithmetic of one document can't depend on
//! its neighbours. Packed rows hold documents as runs, but nothing here needs that: a document is a list
//! of token indices, and ids may come in any order or come back later in the row.

use std::collections::HashMap;
use std::ops::Range;

/// Documents of a batch. Built once per batch, shared by all layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    batch: usize,
    seq: usize,
    segment_ids: Vec<i32>,
    positions: Vec<i32>,
    /// Token indices in `0..batch * seq`, grouped by document, ascending inside a document.
    tokens: Vec<u32>,
    /// Ranges of `tokens`, one per document, covering it.
    documents: Vec<Range<usize>>,
    /// The same for GPUs, in their memory.
    #[cfg(feature = "gpu")]
    pub(super) cube: super::cube::Cache,
}

impl Layout {
    /// Finds the documents of `segment_ids`, row-major `[batch, seq]`. Padding (id 0) is a document of its own:
    /// it attends among itself, as in MaxText.
    ///
    /// `positions` (inside the documents, `[batch, seq]`) are carried for RoPE; the mask does not read them.
    ///
    /// # Panics
    /// When a slice does not hold `batch * seq` values, or there are more than `i32::MAX` tokens.
    pub fn new(segment_ids: &[i32], positions: &[i32], batch: usize, seq: usize) -> Self {
        assert_eq!(segment_ids.len(), batch * seq, "segment_ids must be [batch, seq] = [{batch}, {seq}]");
        assert_eq!(positions.len(), batch * seq, "positions must be [batch, seq] = [{batch}, {seq}]");
        assert!(i32::try_from(batch * seq).is_ok(), "a batch holds at most 2^31 - 1 tokens");
        let mut tokens = Vec::with_capacity(batch * seq);
        let mut documents = Vec::new();
        for row in 0..batch {
            for members in documents_of_row(segment_ids, row * seq..(row + 1) * seq) {
                documents.push(tokens.len()..tokens.len() + members.len());
                tokens.extend(members);
            }
        }
        Self {
            batch,
            seq,
            segment_ids: segment_ids.to_vec(),
            positions: positions.to_vec(),
            tokens,
            documents,
            #[cfg(feature = "gpu")]
            cube: Default::default(),
        }
    }

    /// One document per row, positions counting from 0.
    pub fn unpacked(batch: usize, seq: usize) -> Self {
        let positions: Vec<i32> = (0..batch).flat_map(|_| 0..seq as i32).collect();
        Self::new(&vec![1; batch * seq], &positions, batch, seq)
    }

    /// Rows of the batch.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Tokens in a row.
    pub fn seq(&self) -> usize {
        self.seq
    }

    /// Tokens in the batch, `batch * seq`.
    pub fn num_tokens(&self) -> usize {
        self.batch * self.seq
    }

    /// Segment id of every token, `[batch, seq]`.
    pub fn segment_ids(&self) -> &[i32] {
        &self.segment_ids
    }

    /// Position of every token inside its document, `[batch, seq]`.
    pub fn positions(&self) -> &[i32] {
        &self.positions
    }

    /// Number of documents, padding included.
    pub fn num_documents(&self) -> usize {
        self.documents.len()
    }

    /// Number of (query, key) pairs that the mask lets through, per head: the work of attention.
    pub fn visible_pairs(&self, window: Option<usize>) -> u64 {
        let pairs = |query: usize, document: &[u32]| query + 1 - first_visible(document, query, window);
        (0..self.num_documents())
            .map(|document| self.document(document))
            .map(|document| match document.len() {
                // The last query sees everything: so does every other.
                len if first_visible(document, len - 1, window) == 0 => len * (len + 1) / 2,
                len => (0..len).map(|query| pairs(query, document)).sum(),
            })
            .sum::<usize>() as u64
    }

    /// Token indices of a document.
    pub(crate) fn document(&self, document: usize) -> &[u32] {
        &self.tokens[self.documents[document].clone()]
    }

    /// Where a document lies in the order of [`Self::grouped_tokens`].
    pub(super) fn document_range(&self, document: usize) -> Range<usize> {
        self.documents[document].clone()
    }

    /// All token indices, document by document.
    pub(super) fn grouped_tokens(&self) -> &[u32] {
        &self.tokens
    }
}

/// Members of each document of one row, documents in order of their first token.
fn documents_of_row(segment_ids: &[i32], row: Range<usize>) -> Vec<Vec<u32>> {
    let mut documents: Vec<Vec<u32>> = Vec::new();
    let mut document_of = HashMap::new();
    for token in row {
        let document = *document_of.entry(segment_ids[token]).or_insert(documents.len());
        if document == documents.len() {
            documents.push(Vec::new());
        }
        documents[document].push(token as u32);
    }
    documents
}

/// The first key (index in the document) that the query at index `query` of the document sees:
/// with a sliding window, keys at `window` or more places of the row before it are out of sight.
pub(super) fn first_visible(document: &[u32], query: usize, window: Option<usize>) -> usize {
    match window {
        Some(window) => {
            let token = document[query] as usize;
            document[..=query].partition_point(|&key| key as usize + window <= token)
        }
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents(segment_ids: &[i32], batch: usize) -> Vec<Vec<u32>> {
        let seq = segment_ids.len() / batch;
        let layout = Layout::new(segment_ids, &vec![0; segment_ids.len()], batch, seq);
        (0..layout.num_documents()).map(|document| layout.document(document).to_vec()).collect()
    }

    #[test]
    fn runs_are_documents_and_rows_do_not_mix() {
        assert_eq!(documents(&[1, 1, 2, 0, 1, 1, 1, 1], 2), [vec![0, 1], vec![2], vec![3], vec![4, 5, 6, 7]]);
    }

    #[test]
    fn ids_in_any_order_and_ids_that_come_back() {
        assert_eq!(documents(&[7, 3, 3, 7, 0, 3], 1), [vec![0, 3], vec![1, 2, 5], vec![4]]);
    }

    #[test]
    fn empty_batch() {
        assert!(documents(&[], 1).is_empty());
        assert_eq!(Layout::unpacked(0, 16).visible_pairs(None), 0);
    }

    #[test]
    fn window_counts_places_of_the_row() {
        let document = [0, 3, 4, 9];
        assert_eq!(first_visible(&document, 3, Some(6)), 2);
        assert_eq!(first_visible(&document, 3, Some(7)), 1);
        assert_eq!(first_visible(&document, 3, Some(1)), 3);
        assert_eq!(first_visible(&document, 3, None), 0);
    }

    #[test]
    fn visible_pairs_are_the_area_of_the_mask() {
        let layout = Layout::new(&[1, 1, 1, 2, 2, 0], &[0; 6], 1, 6);
        assert_eq!(layout.visible_pairs(None), 6 + 3 + 1);
        assert_eq!(layout.visible_pairs(Some(2)), 5 + 3 + 1);
        assert_eq!(layout.visible_pairs(Some(1)), 6);
    }
}
