//! Saving while training goes on: one save in flight, and no error lost.

use super::error::CheckpointError;
use super::folder::CheckpointFolder;
use super::manifest::Manifest;
use mt_model::ops::memory;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tracing::info;

/// Writes all files of a checkpoint into a folder and notes them. It owns what it writes.
pub type Write = Box<dyn FnOnce(&Path, &mut Manifest) -> Result<(), CheckpointError> + Send>;

/// A checkpoint that is on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// Its step.
    pub step: u64,
    /// Its folder.
    pub path: PathBuf,
    /// How long writing took, in the background or not.
    pub took: Duration,
}

/// Commits checkpoints to a folder, in the background if asked to.
pub struct Saver {
    folder: CheckpointFolder,
    keep: Option<usize>,
    background: bool,
    in_flight: Option<(u64, JoinHandle<Result<Saved, CheckpointError>>)>,
    last_saved: Option<Saved>,
}

impl Saver {
    /// Saves to `folder` and removes all but the newest `keep` checkpoints (`max_num_checkpoints_to_keep`) after each
    /// save; `background` is `async_checkpointing`.
    pub fn new(folder: CheckpointFolder, keep: Option<usize>, background: bool) -> Self {
        Self { folder, keep, background, in_flight: None, last_saved: None }
    }

    /// Saves the checkpoint of `step`. Nothing is done if that step is already saved.
    ///
    /// In the background this returns as soon as the save before is done and this one has begun. An error of the save
    /// before is returned here, then the new one isn't begun.
    pub fn save(&mut self, step: u64, write: Write) -> Result<(), CheckpointError> {
        self.finish()?;
        if self.last_saved.as_ref().is_some_and(|saved| saved.step == step) {
            return Ok(());
        }
        let (folder, keep) = (self.folder.clone(), self.keep);
        let work = move || commit(&folder, keep, step, write);
        if self.background {
            let thread = std::thread::Builder::new().name("checkpoint".to_owned());
            let handle =
                thread.spawn(work).map_err(CheckpointError::io("start a thread for", self.folder.path()))?;
            self.in_flight = Some((step, handle));
        } else {
            self.last_saved = Some(work()?);
        }
        Ok(())
    }

    /// Notes a finished save without waiting for one; returns its error. To be called at every step.
    pub fn poll(&mut self) -> Result<(), CheckpointError> {
        match &self.in_flight {
            Some((_, handle)) if handle.is_finished() => self.finish(),
            _ => Ok(()),
        }
    }

    /// Waits for the save in flight; returns its error.
    pub fn finish(&mut self) -> Result<(), CheckpointError> {
        let Some((step, handle)) = self.in_flight.take() else { return Ok(()) };
        let result = handle.join().unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let reason = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned();
            Err(CheckpointError::Panicked { step, reason })
        });
        // Training copied each tensor that it changed before it was written: memory that it won't need until the next save.
        memory::release();
        self.last_saved = Some(result?);
        Ok(())
    }

    /// The newest checkpoint that this saver has committed.
    pub fn last_saved(&self) -> Option<&Saved> {
        self.last_saved.as_ref()
    }

    /// Where the checkpoints are.
    pub fn folder(&self) -> &CheckpointFolder {
        &self.folder
    }
}

impl Drop for Saver {
    /// A save in flight is worth waiting for: dying in the middle would lose it.
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::error!("{error}");
        }
    }
}

fn commit(
    folder: &CheckpointFolder,
    keep: Option<usize>,
    step: u64,
    write: Write,
) -> Result<Saved, CheckpointError> {
    // What a process left that was killed between a commit and the removal of what it replaced.
    if let Some(keep) = keep {
        folder.retain(keep)?;
    }
    let clock = Instant::now();
    let path = folder.commit(step, write)?;
    let took = clock.elapsed();
    info!("saved a checkpoint at step {step} to `{}` in {:.3} s", path.display(), took.as_secs_f64());
    if let Some(keep) = keep {
        folder.retain(keep)?;
    }
    Ok(Saved { step, path, took })
}
