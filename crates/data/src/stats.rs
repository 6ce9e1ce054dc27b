//! Counts of what the loader has handed out.

use serde::{Deserialize, Serialize};

/// Counts up to the last batch handed out, from the start of the run's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Stats {
    /// Pass over the data that the next document comes from, from 0.
    pub epoch: u64,
    /// Batches handed out.
    pub batches: u64,
    /// Documents used up.
    pub documents: u64,
    /// Tokens in the rows.
    pub tokens: u64,
    /// Places in the rows that hold padding.
    pub padding: u64,
    /// Tokens cut off the ends of documents longer than a row.
    pub dropped_tokens: u64,
    /// Rows that couldn't be read (`skip_bad_rows`).
    pub skipped_rows: u64,
}

impl Stats {
    /// Share of places that hold padding, 0 to 1.
    pub fn padding_share(&self) -> f64 {
        share(self.padding, self.tokens)
    }

    /// Share of tokens that were cut off, 0 to 1.
    pub fn dropped_share(&self) -> f64 {
        share(self.dropped_tokens, self.tokens)
    }
}

fn share(part: u64, rest: u64) -> f64 {
    if part == 0 { 0.0 } else { part as f64 / (part + rest) as f64 }
}
