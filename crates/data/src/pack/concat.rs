//! `grain_packing_type: concat_then_split`.

use super::{Packer, Rows};

/// Lays documents end to end and cuts at the rows' ends: no padding but at the very end of the data.
///
/// A document goes on in the next row (and the next batch) as a new segment whose positions start at 0 again;
/// the one target across the cut is lost.
#[derive(Debug)]
pub struct ConcatThenSplit {
    rows: Rows,
    /// Row being filled; `batch_size` when the batch is complete.
    current: usize,
    batch_size: usize,
    seq_len: usize,
    max_segments: usize,
}

impl ConcatThenSplit {
    /// `max_segments` of `None` is no cap; with a cap a row that reaches it is padded.
    pub fn new(batch_size: usize, seq_len: usize, max_segments: Option<usize>) -> Self {
        let max_segments = max_segments.unwrap_or(usize::MAX);
        Self { rows: Rows::new(batch_size, seq_len), current: 0, batch_size, seq_len, max_segments }
    }
}

impl Packer for ConcatThenSplit {
    fn push(&mut self, document: &[u32]) -> usize {
        let mut taken = 0;
        while taken < document.len() && self.current < self.batch_size {
            let room = self.rows.room(self.current);
            if room == 0 || self.rows.documents(self.current) == self.max_segments {
                self.current += 1;
                continue;
            }
            let end = document.len().min(taken + room);
            self.rows.push(self.current, &document[taken..end]);
            taken = end;
        }
        taken
    }

    fn take(&mut self, _batch: u64) -> Rows {
        self.current = 0;
        std::mem::replace(&mut self.rows, Rows::new(self.batch_size, self.seq_len))
    }

    fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}
