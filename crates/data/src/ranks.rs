//! Which rows of a batch a rank trains on.
//!
//! Every rank makes the same batches, those of all ranks: how documents are packed, and where a run goes on, don't depend on the
//! number of ranks, and every rank knows the weights of the whole batch.

use std::ops::Range;

/// A rank's part of every batch. Micro batches follow one another in a batch, and in each the rows of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankRows {
    /// Which rank, from 0.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
    /// Rows of one rank in a micro batch.
    pub rows: usize,
}

impl RankRows {
    /// The rank's rows of a batch in its micro batch `i`, from 0. A batch for evaluation is one micro batch.
    pub fn of_micro_batch(&self, i: usize) -> Range<usize> {
        let first = (i * self.ranks + self.rank) * self.rows;
        first..first + self.rows
    }
}
