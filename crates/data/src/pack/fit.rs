//! Packers that keep documents whole.

use super::{Packer, Rows};
use crate::rng::NumpyRng;

/// Which of the rows with room takes a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choose {
    /// The first one.
    First,
    /// The one that the document fills up most; the first of equals.
    Best,
}

/// Places each document in a row of the open batch; when none has room the batch is complete.
#[derive(Debug)]
pub struct FirstFit {
    rows: Rows,
    batch_size: usize,
    seq_len: usize,
    /// Cap on documents in a row.
    max_segments: usize,
    choose: Choose,
    /// grain's packers emit a batch's rows in a seeded order.
    shuffle_rows: bool,
}

impl FirstFit {
    /// grain's `PackAndBatchOperation`, which MaxText's hf pipeline uses; `max_segments` of `None` is no cap.
    pub fn new(batch_size: usize, seq_len: usize, max_segments: Option<usize>) -> Self {
        Self {
            rows: Rows::new(batch_size, seq_len),
            batch_size,
            seq_len,
            max_segments: max_segments.unwrap_or(usize::MAX),
            choose: Choose::First,
            shuffle_rows: false,
        }
    }

    /// grain's `FirstFitPackIterDataset` and `BestFitPackIterDataset` with `batch_size` bins.
    pub fn grain(batch_size: usize, seq_len: usize, max_segments: Option<usize>, choose: Choose) -> Self {
        Self { choose, shuffle_rows: true, ..Self::new(batch_size, seq_len, max_segments) }
    }

    fn row_for(&self, length: usize) -> Option<usize> {
        let mut fitting = (0..self.batch_size)
            .filter(|&row| self.rows.room(row) >= length && self.rows.documents(row) < self.max_segments);
        match self.choose {
            Choose::First => fitting.next(),
            Choose::Best => fitting.min_by_key(|&row| self.rows.room(row)),
        }
    }
}

impl Packer for FirstFit {
    fn push(&mut self, document: &[u32]) -> usize {
        match self.row_for(document.len()) {
            Some(row) => {
                self.rows.push(row, document);
                document.len()
            }
            None => 0,
        }
    }

    fn take(&mut self, batch: u64) -> Rows {
        let rows = std::mem::replace(&mut self.rows, Rows::new(self.batch_size, self.seq_len));
        if !self.shuffle_rows {
            return rows;
        }
        // grain seeds the order with the number of rows emitted so far; empty rows stay behind.
        let filled = (0..self.batch_size).filter(|&row| rows.documents(row) > 0).count();
        let mut order = NumpyRng::new(&[batch * self.batch_size as u64]).permutation(filled);
        order.extend(filled..self.batch_size);
        rows.reordered(&order)
    }

    fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// `packing: false`: one document a row, the rest of the row is padding.
#[derive(Debug)]
pub struct OnePerRow(FirstFit);

impl OnePerRow {
    /// Rows of `seq_len` tokens.
    pub fn new(batch_size: usize, seq_len: usize) -> Self {
        Self(FirstFit::new(batch_size, seq_len, Some(1)))
    }
}

impl Packer for OnePerRow {
    fn push(&mut self, document: &[u32]) -> usize {
        self.0.push(document)
    }

    fn take(&mut self, batch: u64) -> Rows {
        self.0.take(batch)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
