//! The weights to decode with, found where a run of the same configuration would start.

use std::path::Path;

use burn::tensor::Device;
use mt_config::Config;
use mt_model::{Params, init};

use super::DecodeError;
use crate::checkpoint::{CheckpointError, TensorFiles, find_checkpoint, find_params, load_params};
use crate::collective::Mesh;

/// Parameters on `device` in `weight_dtype`: of the run's own newest checkpoint, else of `load_full_state_path` or
/// `load_parameters_path`.
pub(crate) fn params(config: &Config, device: &Device) -> Result<Params, DecodeError> {
    let files = files(config)?;
    eprintln!("restoring params from {}", files.path().display());
    let model = config.model();
    let mut params = init::zeros(&model, device);
    load_params(&files, &model, &mut params, Mesh::SOLO)?;
    Ok(params)
}

fn files(config: &Config) -> Result<TensorFiles, DecodeError> {
    let own = config.checkpoint_dir();
    // Read only: the run may be training.
    match find_checkpoint(&own) {
        Ok(checkpoint) => return Ok(checkpoint.params()?),
        Err(CheckpointError::NotACheckpoint { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    match (config.load_full_state_path.as_str(), config.load_parameters_path.as_str()) {
        ("", "") => Err(DecodeError::NoWeights { folder: own }),
        ("", path) | (path, _) => Ok(find_params(Path::new(path))?),
    }
}
