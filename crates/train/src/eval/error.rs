//! What ends an evaluation with exit code 1.

use std::io;
use std::path::PathBuf;

use mt_data::DataError;
use mt_model::batch::BatchError;
use mt_model::device::DeviceError;

use crate::decode::DecodeError;
use crate::run::RunError;

/// Why a model can't be evaluated.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// The device can't be had.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The parameters can't be read.
    #[error(transparent)]
    Weights(#[from] DecodeError),
    /// The evaluation data can't be opened.
    #[error("the evaluation data: {0}")]
    Data(DataError),
    /// Reading on failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Nothing to measure a loss on.
    #[error(
        "the evaluation data holds no token that carries loss; see hf_eval_split, hf_eval_files and eval_steps"
    )]
    NoData,
    /// A file of token ids that can't be used.
    #[error("`{}`: {reason}", path.display())]
    Tokens {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The tokens aren't the model's.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The logits can't be written.
    #[error("can't write `{}`: {reason}", path.display())]
    Logits {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// Nobody reads the result.
    #[error("can't write the result: {0}")]
    Output(io::Error),
}
