//! `checkpoints/`: one folder for each step, there only when it is whole.
//!
//! A checkpoint is written into `<step>.tmp`, its files are brought to the disk, and only then it gets its name. What a
//! crash leaves behind therefore never looks like a checkpoint; it is removed at the next start. A checkpoint is
//! removed the same way backwards: it loses its name first.

use super::disk;
use super::error::CheckpointError;
use super::manifest::{MANIFEST, Manifest, read_json};
use super::read::TensorFiles;
use super::state::TrainState;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use tracing::{error, info, warn};

/// Suffix of what isn't a checkpoint yet, or no more.
const UNFINISHED: &str = ".tmp";
/// Name of the tensor files of the parameters.
pub(super) const PARAMS: &str = "model";
/// Name of the tensor files of the optimizer.
pub(super) const OPTIMIZER: &str = "optimizer";
pub(super) const STATE: &str = "state.json";
pub(super) const CONFIG: &str = "config.yml";

/// The folder that holds a run's checkpoints. One process at a time may write to it.
#[derive(Debug, Clone)]
pub struct CheckpointFolder {
    path: PathBuf,
}

/// A whole checkpoint: all its files were read and have the sums that they were written with.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    path: PathBuf,
    /// The state besides the tensors.
    pub state: TrainState,
}

impl CheckpointFolder {
    /// Takes `path`, which need not exist yet, and removes what a crash left in it.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let folder = Self { path: path.to_path_buf() };
        for name in folder.names()?.iter().filter(|name| name.ends_with(UNFINISHED)) {
            let leftover = path.join(name);
            warn!("removing `{}`: a save or removal that didn't end", leftover.display());
            disk::remove_folder(&leftover)?;
        }
        Ok(folder)
    }

    /// As [`CheckpointFolder::open`], and nothing is removed: for ranks beside the one that did.
    pub fn beside(path: &Path) -> Self {
        Self { path: path.to_path_buf() }
    }

    /// Where the folder is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the checkpoint of `step` is to be.
    pub fn checkpoint(&self, step: u64) -> PathBuf {
        self.path.join(step.to_string())
    }

    /// Where its files lie until it's whole.
    pub(super) fn unfinished(&self, step: u64) -> PathBuf {
        self.path.join(format!("{step}{UNFINISHED}"))
    }

    /// Steps of all checkpoints, rising. A folder of an interrupted save isn't among them.
    pub fn steps(&self) -> Result<Vec<u64>, CheckpointError> {
        let mut steps: Vec<u64> = self
            .names()?
            .iter()
            .filter_map(|name| name.parse().ok().filter(|step: &u64| step.to_string() == *name))
            .collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// The newest whole checkpoint; none when there are no checkpoints.
    ///
    /// A damaged one is passed over with an error in the log for the one before it. When all are damaged, that is an
    /// error: a run must not start afresh beside its own remains.
    pub fn newest_whole(&self) -> Result<Option<Checkpoint>, CheckpointError> {
        let mut damaged = Vec::new();
        for step in self.steps()?.into_iter().rev() {
            match Checkpoint::open(&self.path.join(step.to_string())) {
                Ok(checkpoint) => {
                    if !damaged.is_empty() {
                        error!(
                            "GOING BACK to the checkpoint of step {step}: {} newer damaged",
                            damaged.len()
                        );
                    }
                    return Ok(Some(checkpoint));
                }
                Err(denied) if denied.io_kind().is_some() => return Err(denied),
                Err(reason) => {
                    error!("the checkpoint of step {step} can't be used: {reason}");
                    damaged.push(reason);
                }
            }
        }
        if damaged.is_empty() {
            return Ok(None);
        }
        Err(CheckpointError::NoneWhole { folder: self.path.clone(), damaged })
    }

    /// Makes the checkpoint of `step` out of the files that `write` puts into the folder it is given.
    ///
    /// When this returns, the checkpoint is on the disk under its final name; when it fails, or the machine does,
    /// there is no folder of that name. An older folder of the same step is replaced: a run only comes to a step again
    /// when it didn't start from that step's checkpoint.
    pub fn commit(
        &self,
        step: u64,
        write: impl FnOnce(&Path, &mut Manifest) -> Result<(), CheckpointError>,
    ) -> Result<PathBuf, CheckpointError> {
        self.prepare(step)?;
        self.complete(step, write)
    }

    /// The first half of [`CheckpointFolder::commit`]: an empty folder, for several ranks to write to.
    pub(super) fn prepare(&self, step: u64) -> Result<(), CheckpointError> {
        let unfinished = self.unfinished(step);
        if unfinished.exists() {
            disk::remove_folder(&unfinished)?;
        }
        disk::create_folder(&unfinished)
    }

    /// The second half.
    pub(super) fn complete(
        &self,
        step: u64,
        write: impl FnOnce(&Path, &mut Manifest) -> Result<(), CheckpointError>,
    ) -> Result<PathBuf, CheckpointError> {
        let unfinished = self.unfinished(step);
        let written = self.write(step, &unfinished, write).and_then(|()| self.name(step, &unfinished));
        if written.is_err() {
            // Frees the space; what is left if this fails too is removed at the next start.
            _ = disk::remove_folder(&unfinished);
        }
        written
    }

    fn write(
        &self,
        step: u64,
        unfinished: &Path,
        write: impl FnOnce(&Path, &mut Manifest) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        let mut manifest = Manifest::new(step);
        write(unfinished, &mut manifest)?;
        manifest.write(unfinished)?;
        disk::sync_folder(unfinished)
    }

    /// Gives the folder of a checkpoint its name.
    fn name(&self, step: u64, unfinished: &Path) -> Result<PathBuf, CheckpointError> {
        let path = self.checkpoint(step);
        let replaced = if path.exists() { Some(self.unname(step)?) } else { None };
        disk::rename(unfinished, &path)?;
        replaced.map_or(Ok(()), |replaced| disk::remove_folder(&replaced))?;
        Ok(path)
    }

    /// Takes the name from the checkpoint of `step`; returns where it is now.
    fn unname(&self, step: u64) -> Result<PathBuf, CheckpointError> {
        let nameless = self.path.join(format!("{step}.removed{UNFINISHED}"));
        disk::rename(&self.path.join(step.to_string()), &nameless)?;
        Ok(nameless)
    }

    /// Removes the oldest checkpoints but `keep`.
    pub fn retain(&self, keep: usize) -> Result<(), CheckpointError> {
        let steps = self.steps()?;
        let superfluous = steps.len().saturating_sub(keep.max(1));
        for &step in &steps[..superfluous] {
            disk::remove_folder(&self.unname(step)?)?;
            info!("removed the checkpoint of step {step}: max_num_checkpoints_to_keep is {keep}");
        }
        Ok(())
    }

    /// Names of all folders in this folder.
    fn names(&self) -> Result<Vec<String>, CheckpointError> {
        let error = || CheckpointError::io("list", &self.path);
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(missing) if missing.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(other) => return Err(error()(other)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(error())?;
            if entry.path().is_dir()
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
        Ok(names)
    }
}

impl Checkpoint {
    /// Opens the checkpoint in `path` after reading every file of it once and comparing the sums.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        Manifest::read(path)?.verify(path)?;
        Self::open_verified(path)
    }

    /// Opens a checkpoint that another rank has just found whole.
    pub fn open_verified(path: &Path) -> Result<Self, CheckpointError> {
        let manifest = Manifest::read(path)?;
        let state: TrainState = read_json(&path.join(STATE))?;
        if state.step != manifest.step {
            let reason = format!("it is of step {}, {MANIFEST} of step {}", state.step, manifest.step);
            return Err(CheckpointError::damaged(&path.join(STATE), reason));
        }
        Ok(Self { path: path.to_path_buf(), state })
    }

    /// The checkpoint's folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its parameters.
    pub fn params(&self) -> Result<TensorFiles, CheckpointError> {
        TensorFiles::open(&self.path, PARAMS)
    }

    /// The tensors of its optimizer.
    pub fn optimizer(&self) -> Result<TensorFiles, CheckpointError> {
        TensorFiles::open(&self.path, OPTIMIZER)
    }
}

/// The checkpoint that a path of the user's means (`load_full_state_path`): `.../<step>`, MaxText's `.../<step>/items`, or
/// a folder of checkpoints, of which the newest whole one is taken.
pub fn find_checkpoint(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let step_folder = if path.ends_with("items") { path.parent().unwrap_or(path) } else { path };
    if step_folder.join(MANIFEST).is_file() {
        return Checkpoint::open(step_folder);
    }
    if let Some(checkpoint) = (CheckpointFolder { path: path.to_path_buf() }).newest_whole()? {
        return Ok(checkpoint);
    }
    Err(not_a_checkpoint(path))
}

/// The parameters that a path of the user's means (`load_parameters_path`): a checkpoint as for [`find_checkpoint`], a
/// folder with `model.safetensors` or its index, or a safetensors file.
pub fn find_params(path: &Path) -> Result<TensorFiles, CheckpointError> {
    if path.is_file() {
        return TensorFiles::open_file(path);
    }
    match find_checkpoint(path) {
        Ok(checkpoint) => checkpoint.params(),
        Err(CheckpointError::NotACheckpoint { .. }) if TensorFiles::exist(path, PARAMS) => {
            TensorFiles::open(path, PARAMS)
        }
        Err(error) => Err(error),
    }
}

fn not_a_checkpoint(path: &Path) -> CheckpointError {
    let has = |name: &str| path.join(name).exists() || path.join("..").join(name).exists();
    let reason = if !path.exists() {
        "there is nothing of that name".to_owned()
    } else if has("_CHECKPOINT_METADATA") || has("manifest.ocdbt") {
        "it is one of Orbax; export it to safetensors with MaxText's to_huggingface, then run mt-convert"
            .to_owned()
    } else {
        format!("it has no {MANIFEST}, no folder named by a step, no {PARAMS}.safetensors")
    };
    CheckpointError::NotACheckpoint { path: path.to_path_buf(), reason }
}
