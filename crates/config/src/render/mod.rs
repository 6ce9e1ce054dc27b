//! The configuration as text: for the terminal, for files, for docs/config.md.

mod docs;
mod dry_run;
mod scaling;
mod settings;

pub use docs::{docs_markdown, help_keys};
pub use scaling::scaling_markdown;
