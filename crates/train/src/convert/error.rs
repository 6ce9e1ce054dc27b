//! What can go wrong between Hugging Face's files and ours.

use std::path::PathBuf;

use mt_config::ConfigErrors;

use crate::checkpoint::CheckpointError;

/// A conversion that can't be made. Nothing has been written then.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// A file can't be read.
    #[error("can't read `{}`: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system or the parser said.
        reason: String,
    },
    /// A key of config.json that is missing, or whose value has no counterpart here.
    #[error("`{}`: `{key}` is {found}, expected {expected}", path.display())]
    Key {
        /// The config.json.
        path: PathBuf,
        /// Its key, dots leading into objects.
        key: String,
        /// Its value, or `missing`.
        found: String,
        /// What would do.
        expected: String,
    },
    /// Our model has something that the family doesn't.
    #[error("this model can't be written as {family}: {reason}")]
    NotOfFamily {
        /// Architecture of Hugging Face's.
        family: &'static str,
        /// What stands in the way.
        reason: String,
    },
    /// There is something where the result should go.
    #[error("`{}` is there already; choose another name, or remove it first", path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// No configuration tells what the tensors are.
    #[error("there is no config.yml beside the tensors of `{}`; name the run's with --config", path.display())]
    NoConfig {
        /// What was given to convert.
        path: PathBuf,
    },
    /// The tensors or the disk.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The keys given, or those that config.json stands for.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
}
