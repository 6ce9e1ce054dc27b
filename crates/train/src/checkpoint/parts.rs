//! A checkpoint that several ranks write: each leaves word of its part in the folder, the first waits for all of them and takes the
//! words away again.
//!
//! Word goes through the folder, since saving goes on in the background, where no collective may be started; the ranks share a file
//! system anyway, or there would be no one checkpoint.

use super::disk::{self, NewFile};
use super::error::CheckpointError;
use super::manifest::{FileSum, Manifest, read_json};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const POLL: Duration = Duration::from_millis(10);

/// What a rank says of its part.
#[derive(Serialize, Deserialize)]
enum Word {
    /// Its files are on the disk.
    Written(BTreeMap<String, FileSum>),
    /// They aren't, and why.
    Failed(String),
}

/// Leaves word of the part of `rank`, whose files `manifest` lists, or of its failure.
pub(super) fn leave(
    folder: &Path,
    rank: usize,
    manifest: Manifest,
    written: &Result<(), CheckpointError>,
) -> Result<(), CheckpointError> {
    let word = match written {
        Ok(()) => Word::Written(manifest.files),
        Err(error) => Word::Failed(error.to_string()),
    };
    let path = path(folder, rank);
    // Whoever waits for the name must find the whole word.
    let partial = path.with_extension("partial");
    let mut file = NewFile::create(&partial)?;
    file.write(&serde_json::to_vec(&word).expect("a word is plain data"))?;
    file.finish()?;
    disk::rename(&partial, &path)
}

/// Waits until ranks 1 to `count` have left word, and notes their files in `manifest`.
///
/// # Errors
/// [`CheckpointError::Part`]: a rank has failed, or `given_up` was set before it was heard of.
pub(super) fn collect(
    folder: &Path,
    count: usize,
    manifest: &mut Manifest,
    given_up: &AtomicBool,
) -> Result<(), CheckpointError> {
    for rank in 1..count {
        let failed = |reason: String| CheckpointError::Part {
            whose: format!("the part of rank {rank}"),
            step: manifest.step,
            reason,
        };
        let path = path(folder, rank);
        while !path.exists() {
            if given_up.load(Ordering::Relaxed) {
                return Err(failed("was waited for in vain".to_owned()));
            }
            std::thread::sleep(POLL);
        }
        match read_json(&path)? {
            Word::Written(files) => manifest.files.extend(files),
            Word::Failed(reason) => return Err(failed(format!("failed: {reason}"))),
        }
        disk::remove_file(&path)?;
    }
    Ok(())
}

fn path(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("part-{rank:05}.json"))
}
