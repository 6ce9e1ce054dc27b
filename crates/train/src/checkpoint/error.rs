//! What can go wrong with a checkpoint.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::collective::CollectiveError;

/// A checkpoint that can't be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The system refused.
    #[error("can't {action} `{}`: {source}{}", path.display(), hint(source.kind()))]
    Io {
        /// What was tried: `write`, `rename` and so on.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Not the bytes that were written, or not all of them.
    #[error("`{}` is damaged: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor that doesn't fit.
    #[error("tensor `{tensor}` in `{}`: {reason}", path.display())]
    Tensor {
        /// The file or folder of the tensor.
        path: PathBuf,
        /// Its name.
        tensor: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Something else than a checkpoint of this program.
    #[error("`{}` isn't a checkpoint: {reason}", path.display())]
    NotACheckpoint {
        /// The folder.
        path: PathBuf,
        /// What was looked for.
        reason: String,
    },
    /// There are checkpoints, and none is whole: starting afresh would be silent loss.
    #[error("no checkpoint in `{}` is whole; move the folder away to start afresh:{}", folder.display(), List(damaged))]
    NoneWhole {
        /// The folder of the checkpoints.
        folder: PathBuf,
        /// Each checkpoint and what is wrong with it, newest first.
        damaged: Vec<CheckpointError>,
    },
    /// The checkpoint is of a run that differs where it must not.
    #[error("can't go on from `{}`; this run differs where it must not:{}", path.display(), List(differences))]
    Changed {
        /// The checkpoint.
        path: PathBuf,
        /// The keys that differ.
        differences: Vec<Difference>,
    },
    /// Another rank can't be reached.
    #[error(transparent)]
    Ranks(#[from] CollectiveError),
    /// Another rank failed in its part of a checkpoint.
    #[error("{whose} of the checkpoint of step {step} {reason}")]
    Part {
        /// Whose part it is, as in `the part of rank 3`.
        whose: String,
        /// Step of the checkpoint.
        step: u64,
        /// What became of it.
        reason: String,
    },
    /// The thread that saved is gone without a word.
    #[error("the save of step {step} in the background died: {reason}")]
    Panicked {
        /// Step of the checkpoint.
        step: u64,
        /// Message of the panic.
        reason: String,
    },
}

/// A key that must be what it was when the checkpoint was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The key.
    pub key: String,
    /// Its value in the checkpoint.
    pub saved: String,
    /// Its value now.
    pub current: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {} now, {} in the checkpoint", self.key, self.current, self.saved)
    }
}

/// One item a line.
struct List<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|item| write!(f, "\n  {item}"))
    }
}

impl CheckpointError {
    pub(super) fn io<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Self + use<'a> {
        move |source| Self::Io { action, path: path.to_path_buf(), source }
    }

    pub(super) fn damaged(path: &Path, reason: impl fmt::Display) -> Self {
        Self::Damaged { path: path.to_path_buf(), reason: reason.to_string() }
    }

    pub(crate) fn tensor(path: &Path, tensor: &str, reason: impl fmt::Display) -> Self {
        Self::Tensor { path: path.to_path_buf(), tensor: tensor.to_owned(), reason: reason.to_string() }
    }

    /// The system's reason, when it was the system that refused: `StorageFull`, `ReadOnlyFilesystem`,
    /// `PermissionDenied` and so on.
    pub fn io_kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Io { source, .. } => Some(source.kind()),
            _ => None,
        }
    }
}

fn hint(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "; free some space, or keep fewer checkpoints with max_num_checkpoints_to_keep"
        }
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "; base_output_directory must be a folder that this user may write to"
        }
        _ => "",
    }
}
