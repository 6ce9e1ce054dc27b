//! Documents to rows of fixed length, as MaxText and grain pack them.
//!
//! | packer | MaxText's setting | a document that doesn't fit |
//! |---|---|---|
//! | [`FirstFit`] | `dataset_type: hf`, `packing: true` | closes the batch, opens the next |
//! | [`FirstFit`] with shuffled rows | `grain_packing_type: first_fit`, `best_fit` | the same |
//! | [`ConcatThenSplit`] | `grain_packing_type: concat_then_split` | is split at the row's end |
//! | [`OnePerRow`] | `packing: false` | closes the batch |

mod concat;
mod fit;
mod rows;

pub use concat::ConcatThenSplit;
pub use fit::{Choose, FirstFit, OnePerRow};
pub use rows::{Rows, Shift};

/// Builds one batch of rows at a time.
pub trait Packer: Send {
    /// Takes tokens of `document` from its start and returns how many; fewer than all means that the batch is
    /// complete and [`Packer::take`] must be called before the rest is offered again.
    ///
    /// Documents are never empty. A packer that keeps documents whole takes all or nothing and is offered
    /// nothing longer than a row.
    fn push(&mut self, document: &[u32]) -> usize;

    /// Hands out the batch and starts the next one; `batch` counts the batches before it in this run's data.
    fn take(&mut self, batch: u64) -> Rows;

    /// No token has been taken since the last batch.
    fn is_empty(&self) -> bool;
}

#[cfg(test)]
mod tests;
