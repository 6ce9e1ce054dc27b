//! What ends a run with exit code 1.

use std::path::PathBuf;

use mt_data::DataError;
use mt_model::batch::BatchError;
use mt_model::device::DeviceError;

use super::folder::FolderError;
use super::gradients::StepError;
use crate::checkpoint::CheckpointError;
use crate::collective::CollectiveError;
use crate::log::LogFileError;
use crate::metrics::MetricsError;
use crate::optim::{OffloadError, PatternError};
use crate::profile::ProfileError;
use crate::report::ReportError;

/// Why a run can't start or go on.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the variants are the rooms that failed, in their own words")]
pub enum RunError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    LogFile(#[from] LogFileError),
    #[error(
        "`quantization: int8w` and `int4w` quantize weights for decoding (mt-decode); to train, use int8, fp8 or nanoo_fp8, or \
         leave it empty"
    )]
    WeightsOnly,
    #[error("can't listen for SIGTERM and SIGINT: {0}")]
    Signals(std::io::Error),
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("training data: {0}")]
    Data(#[from] DataError),
    #[error("evaluation data: {0}")]
    EvalData(DataError),
    #[error("evaluation data: {0}")]
    EvalBatch(BatchError),
    #[error("step {step}: {source}")]
    Step { step: u64, source: StepError },
    #[error(transparent)]
    Offload(#[from] OffloadError),
    #[error(transparent)]
    Pattern(#[from] PatternError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error(transparent)]
    Report(#[from] ReportError),
    #[error(transparent)]
    BadLoss(#[from] Box<BadLoss>),
}

/// A loss or gradient that isn't a number; nothing of its step was kept.
#[derive(Debug, thiserror::Error)]
#[error(
    "Aborting training due to {what} {of}. It came at step {step}, in the batch that ends at {data}; {}",
    last_good(last_checkpoint)
)]
pub struct BadLoss {
    /// `NaN` or `Inf`.
    pub what: &'static str,
    /// `loss` or `gradient`.
    pub of: &'static str,
    /// The step.
    pub step: u64,
    /// Place of the data right after the batch.
    pub data: serde_json::Value,
    /// The newest checkpoint, which doesn't have it.
    pub last_checkpoint: Option<PathBuf>,
}

fn last_good(checkpoint: &Option<PathBuf>) -> String {
    match checkpoint {
        Some(path) => format!("the last good checkpoint is {}", path.display()),
        None => "there is no checkpoint".to_owned(),
    }
}
