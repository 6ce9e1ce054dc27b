//! What can go wrong between a shard and a batch.

use std::path::PathBuf;
use std::thread::JoinHandle;

/// An error of the data room; every variant names the file, row or key at fault.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A key asks for something that can't be had.
    #[error("{key}: {reason}")]
    Setting {
        /// MaxText's name of the key.
        key: &'static str,
        /// The bad value, what was expected, and the nearest valid choice.
        reason: String,
    },
    /// A file can't be opened or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's own words.
        source: std::io::Error,
    },
    /// A file is not what its name says.
    #[error("{file}: {reason}")]
    File {
        /// Path or Hub name of the file.
        file: String,
        /// What was found and what was expected.
        reason: String,
    },
    /// A row can't be read. Rows count from 1.
    #[error("{file}, row {row}: {reason}")]
    Row {
        /// Path or Hub name of the file.
        file: String,
        /// Row in the file, from 1 (for text files, the line).
        row: u64,
        /// What was found and what was expected.
        reason: String,
    },
    /// A tokenizer can't be loaded or refuses a text.
    #[error("tokenizer {tokenizer}: {reason}")]
    Tokenizer {
        /// Path or name of the tokenizer.
        tokenizer: String,
        /// What was found and what was expected.
        reason: String,
    },
    /// A thread of the loader can't be started or has died.
    #[error("loader: {0}")]
    Thread(String),
    /// A saved iterator state doesn't fit this run.
    #[error("saved data position: {0}")]
    State(String),
}

impl DataError {
    /// An [`DataError::Io`] for `path`.
    pub fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }
}

/// Starts a thread of the loader.
pub(crate) fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, DataError> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(run);
    thread.map_err(|error| DataError::Thread(format!("can't start a thread ({error})")))
}
