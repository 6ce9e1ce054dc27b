//! The rows of one batch while they are filled, and their shift to inputs and targets.

use crate::Batch;

/// Rows of equal length being filled from the left; padding is 0 in every field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rows {
    seq_len: usize,
    /// Token ids, `[rows, seq_len]`.
    pub(crate) tokens: Vec<i32>,
    /// Document number in the row from 1, `[rows, seq_len]`.
    pub(crate) segmentation: Vec<i32>,
    /// Position in the document from 0, `[rows, seq_len]`.
    pub(crate) position: Vec<i32>,
    /// Tokens in each row.
    used: Vec<usize>,
    /// Documents in each row.
    documents: Vec<usize>,
}

impl Rows {
    /// `rows` empty rows of `seq_len` tokens.
    pub fn new(rows: usize, seq_len: usize) -> Self {
        Self {
            seq_len,
            tokens: vec![0; rows * seq_len],
            segmentation: vec![0; rows * seq_len],
            position: vec![0; rows * seq_len],
            used: vec![0; rows],
            documents: vec![0; rows],
        }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.used.len()
    }

    /// No row holds a token.
    pub fn is_empty(&self) -> bool {
        self.used.iter().all(|&used| used == 0)
    }

    /// Tokens that `row` still has room for.
    pub fn room(&self, row: usize) -> usize {
        self.seq_len - self.used[row]
    }

    /// Documents in `row`.
    pub fn documents(&self, row: usize) -> usize {
        self.documents[row]
    }

    /// Tokens in all rows.
    pub fn token_count(&self) -> usize {
        self.used.iter().sum()
    }

    /// Appends `document` to `row`, which has room for it.
    pub fn push(&mut self, row: usize, document: &[u32]) {
        self.documents[row] += 1;
        let start = row * self.seq_len + self.used[row];
        let end = start + document.len();
        for (slot, &id) in self.tokens[start..end].iter_mut().zip(document) {
            *slot = id as i32; // ids are below vocab_size, an i32
        }
        self.segmentation[start..end].fill(self.documents[row] as i32);
        for (slot, position) in self.position[start..end].iter_mut().zip(0..) {
            *slot = position;
        }
        self.used[row] += document.len();
    }

    /// The same rows in another order: row `i` is the old row `order[i]`.
    pub fn reordered(&self, order: &[usize]) -> Self {
        let pick = |field: &[i32]| {
            order.iter().flat_map(|&row| &field[row * self.seq_len..][..self.seq_len]).copied().collect()
        };
        Self {
            seq_len: self.seq_len,
            tokens: pick(&self.tokens),
            segmentation: pick(&self.segmentation),
            position: pick(&self.position),
            used: order.iter().map(|&row| self.used[row]).collect(),
            documents: order.iter().map(|&row| self.documents[row]).collect(),
        }
    }

    /// Inputs and targets for next-token prediction.
    pub fn into_batch(self, shift: &Shift) -> Batch {
        let mut targets = self.tokens.clone();
        let mut targets_segmentation = self.segmentation.clone();
        for row in 0..self.len() {
            let range = row * self.seq_len..(row + 1) * self.seq_len;
            shift.row(&mut targets[range.clone()], &mut targets_segmentation[range]);
        }
        Batch {
            batch_size: self.len(),
            seq_len: self.seq_len,
            inputs: self.tokens,
            inputs_segmentation: self.segmentation,
            inputs_position: self.position.clone(),
            targets,
            targets_segmentation,
            targets_position: self.position,
        }
    }
}

/// MaxText's `ShiftData`: targets are the inputs moved one to the left.
#[derive(Debug, Clone, Default)]
pub struct Shift {
    /// Fills the last target of a row.
    pub pad_id: Option<u32>,
    /// Targets that carry no loss (MaxText: padding and BOS).
    pub ignored: Vec<u32>,
}

impl Shift {
    /// Shifts one row of tokens and segments in place.
    ///
    /// A target is masked when it is the row's end, padding, an ignored id, or (where MaxText relies on BOS being
    /// ignored) the first token of another document.
    fn row(&self, targets: &mut [i32], segmentation: &mut [i32]) {
        let last = targets.len() - 1;
        for i in 0..last {
            let same_document = segmentation[i] == segmentation[i + 1];
            targets[i] = targets[i + 1];
            if !same_document || self.ignored.iter().any(|&id| id as i32 == targets[i]) {
                // segmentation[i + 1] is still needed: only slot i changes.
                segmentation[i] = 0;
            }
        }
        targets[last] = self.pad_id.map_or(0, |id| id as i32);
        segmentation[last] = 0;
    }
}
