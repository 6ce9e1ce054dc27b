//! Hugging Face in and out: the same model in the files that everybody else reads.
//!
//! Tensors pass one at a time: `transform` turns the bytes of one, `mapping` says which is which, `architecture` reads and writes
//! config.json. What comes of it appears under its name when it is whole.

mod architecture;
mod cli;
mod error;
mod folder;
mod from_hf;
mod mapping;
mod to_hf;
mod transform;

pub use cli::{Command, ConvertCli};
pub use error::ConvertError;
pub(crate) use folder::create as create_folder;
pub use from_hf::from_hf;
pub use to_hf::{Options, to_hf};
