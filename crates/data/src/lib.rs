//! Text sources, tokenizers and packing: from shards on disk or the Hub to batches.

mod batch;

pub use batch::Batch;
