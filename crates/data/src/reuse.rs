//! `reuse_example_batch: 1`: the first batch for ever.

use serde_json::Value;

use crate::{Batch, Batches, DataError, Stats};

/// Hands out the first batch of a stream again and again.
pub(crate) struct Reuse {
    batches: Box<dyn Batches>,
    first: Option<Batch>,
    start: Value,
}

impl Reuse {
    pub(crate) fn new(batches: Box<dyn Batches>) -> Self {
        let start = batches.state();
        Self { batches, first: None, start }
    }
}

impl Batches for Reuse {
    fn next_batch(&mut self) -> Result<Option<Batch>, DataError> {
        if self.first.is_none() {
            self.first = self.batches.next_batch()?;
        }
        Ok(self.first.clone())
    }

    /// The start of the stream: that is where the batch comes from.
    fn state(&self) -> Value {
        self.start.clone()
    }

    fn restore(&mut self, state: &Value) -> Result<(), DataError> {
        self.first = None;
        self.start = state.clone();
        self.batches.restore(state)
    }

    fn stats(&self) -> Stats {
        self.batches.stats()
    }
}
