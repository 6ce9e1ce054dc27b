//! Checkpoints: everything that a run needs to go on, in a folder that is whole or isn't there.
//!
//! `checkpoints/<step>/` holds `model.safetensors` (MaxText's parameter tree), `optimizer.safetensors` (its moments), `state.json`
//! ([`TrainState`]), `config.yml` and `manifest.json`, the sizes and sums of the others. Layers, from the disk up:
//!
//! - `disk`: file operations of a durable commit;
//! - [`Manifest`], [`write_tensors`], [`TensorFiles`]: the files of one checkpoint, streamed;
//! - [`CheckpointFolder`]: commits, retention, the newest whole checkpoint;
//! - [`Saver`]: saves in the background.

pub(crate) mod disk;
mod error;
mod folder;
pub(crate) mod layout;
mod manifest;
mod parts;
mod read;
mod restore;
mod saver;
mod snapshot;
mod state;
mod write;

pub use error::{CheckpointError, Difference};
pub use folder::{Checkpoint, CheckpointFolder, find_checkpoint, find_params};
pub use manifest::{FileSum, MANIFEST, Manifest};
pub use read::TensorFiles;
pub use restore::{load_optimizer, load_params};
pub use saver::{Saved, Saver, Write};
pub use snapshot::{Format, Snapshot};
pub use state::{GLOBAL_BATCH_SIZE, Identity, TrainState};
pub use write::{Body, FilePlan, TensorSpec, plan_files, write_tensors};

#[cfg(test)]
mod tests;
