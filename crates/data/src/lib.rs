//! Text sources, tokenizers and packing: from shards on disk or the Hub to batches.

mod batch;
mod error;
pub mod pack;
mod rng;
pub mod tokenizer;

pub use batch::Batch;
pub use error::DataError;
pub use tokenizer::Tokenizer;
