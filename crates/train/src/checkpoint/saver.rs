//! Saving while training goes on: one save in flight, and no error lost.

use super::error::CheckpointError;
use super::folder::CheckpointFolder;
use super::manifest::Manifest;
use super::parts;
use mt_model::ops::memory;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// This rank, of how many.
    rank: usize,
    count: usize,
    /// Other ranks aren't waited for any more.
    given_up: Arc<AtomicBool>,
}

/// How long the end of a run that failed waits for what other ranks still write.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 10_000 });

impl Saver {
    /// Saves to `folder` and removes all but the newest `keep` checkpoints (`max_num_checkpoints_to_keep`) after each
    /// save; `background` is `async_checkpointing`.
    pub fn new(folder: CheckpointFolder, keep: Option<usize>, background: bool) -> Self {
        Self {
            folder,
            keep,
            background,
            in_flight: None,
            last_saved: None,
            rank: 0,
            count: 1,
            given_up: Arc::default(),
        }
    }

    /// The saver of rank `rank` of `count`, of which each saves its part: the first commits what all have written.
    #[must_use]
    pub fn of_rank(mut self, rank: usize, count: usize) -> Self {
        (self.rank, self.count) = (rank, count);
        self
    }

    /// Whether the checkpoint of `step` is saved, or this rank's part of it.
    pub fn has(&self, step: u64) -> bool {
        self.last_saved.as_ref().is_some_and(|saved| saved.step == step)
    }

    /// With several ranks, to be called on the first before any of them saves: ends the save before and makes an empty folder.
    ///
    /// # Errors
    /// That of the save before, or the folder can't be made.
    pub fn prepare(&mut self, step: u64) -> Result<(), CheckpointError> {
        self.finish()?;
        self.folder.prepare(step)
    }

    /// Saves the checkpoint of `step`. Nothing is done if that step is already saved.
    ///
    /// In the background this returns as soon as the save before is done and this one has begun. An error of the save
    /// before is returned here, then the new one isn't begun.
    pub fn save(&mut self, step: u64, write: Write) -> Result<(), CheckpointError> {
        self.finish()?;
        if self.has(step) {
            return Ok(());
        }
        let (folder, keep, given_up) = (self.folder.clone(), self.keep, Arc::clone(&self.given_up));
        let (rank, count) = (self.rank, self.count);
        let work = move || match (rank, count) {
            (0, 1) => commit(&folder, keep, step, |step| folder.commit(step, write)),
            (0, _) => commit(&folder, keep, step, |step| {
                folder.complete(step, |path, manifest| {
                    write(path, manifest)?;
                    parts::collect(path, count, manifest, &given_up)
                })
            }),
            _ => write_part(&folder, step, rank, write),
        };
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
        if self.count > 1
            && let Some((_, handle)) = &self.in_flight
        {
            let clock = Instant::now();
            while !handle.is_finished() && clock.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(10));
            }
            self.given_up.store(true, Ordering::Relaxed);
        }
        if let Err(error) = self.finish() {
            tracing::error!("{error}");
        }
    }
}

fn commit(
    folder: &CheckpointFolder,
    keep: Option<usize>,
    step: u64,
    commit: impl FnOnce(u64) -> Result<PathBuf, CheckpointError>,
) -> Result<Saved, CheckpointError> {
    // What a process left that was killed between a commit and the removal of what it replaced.
    if let Some(keep) = keep {
        folder.retain(keep)?;
    }
    let clock = Instant::now();
    let path = commit(step)?;
    let took = clock.elapsed();
    info!("saved a checkpoint at step {step} to `{}` in {:.3} s", path.display(), took.as_secs_f64());
    if let Some(keep) = keep {
        folder.retain(keep)?;
    }
    Ok(Saved { step, path, took })
}

/// Writes the part of a rank that isn't the first, and leaves word of it.
fn write_part(
    folder: &CheckpointFolder,
    step: u64,
    rank: usize,
    write: Write,
) -> Result<Saved, CheckpointError> {
    let (clock, unfinished) = (Instant::now(), folder.unfinished(step));
    let mut manifest = Manifest::new(step);
    let written = write(&unfinished, &mut manifest);
    let left = parts::leave(&unfinished, rank, manifest, &written);
    // The cause comes before what it led to.
    written.and(left)?;
    Ok(Saved { step, path: folder.checkpoint(step), took: clock.elapsed() })
}
