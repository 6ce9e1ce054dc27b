//! Text sources, tokenizers and packing: from shards on disk or the Hub to batches.

mod batch;
mod document;
mod error;
mod inspect;
mod iterator;
mod loader;
mod order;
pub mod pack;
mod profile;
mod ranks;
mod reuse;
mod rng;
mod setup;
mod source;
mod stats;
mod synthetic;
pub mod tokenizer;

pub use batch::Batch;
pub use error::DataError;
pub use inspect::inspect;
pub use iterator::Batches;
pub use loader::Loader;
pub use profile::{Profile, profile};
pub use ranks::RankRows;
pub use setup::{eval_batches, tokenizer_of, train_batches};
pub use stats::Stats;
pub use tokenizer::Tokenizer;
