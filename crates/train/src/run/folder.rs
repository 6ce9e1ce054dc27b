//! The run's folder: `base_output_directory/run_name/`, made once and held by one process, rank 0 if there are several.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// The lock file; its content is the process id of the run that holds it.
const LOCK_FILE: &str = ".lock";
/// The resolved configuration, secrets removed.
pub const CONFIG_FILE: &str = "config.yml";

/// Why a run folder can't be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another process trains in it.
    #[error(
        "another run (process {holder}) is using {path}; wait for it, stop it, or choose another run_name or \
         base_output_directory"
    )]
    Locked {
        /// The folder.
        path: PathBuf,
        /// Process id as the lock file tells it.
        holder: String,
    },
    /// The file system said no.
    #[error("can't {action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
}

/// A run folder that this process holds until the value is dropped or the process ends, however it ends.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// The kernel frees this lock with the process, so a killed run never leaves a stale one.
    _lock: Option<File>,
}

impl RunFolder {
    /// Makes the folder and takes its lock.
    ///
    /// # Errors
    /// [`FolderError::Locked`] when another process holds it, [`FolderError::Io`] when it can't be made.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        fs::create_dir_all(path).map_err(io_error("create", path))?;
        let lock = lock(path)?;
        Ok(Self { path: path.to_owned(), _lock: Some(lock) })
    }

    /// A folder that rank 0 has opened, for another rank of its run.
    pub fn of_rank_0(path: &Path) -> Self {
        Self { path: path.to_owned(), _lock: None }
    }

    /// Where the run writes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Saves the resolved configuration beside what the run writes; a reader never sees half a file. Rank 0's task.
    ///
    /// # Errors
    /// [`FolderError::Io`].
    pub fn save_config(&self, yaml: &str) -> Result<(), FolderError> {
        let path = self.path.join(CONFIG_FILE);
        let partial = self.path.join(format!(".{CONFIG_FILE}.partial"));
        fs::write(&partial, yaml).map_err(io_error("write", &partial))?;
        fs::rename(&partial, &path).map_err(io_error("write", &path))
    }
}

fn lock(folder: &Path) -> Result<File, FolderError> {
    let path = folder.join(LOCK_FILE);
    let mut file = OpenOptions::new()
        .create(true)
        .read(true)
        .write(true)
        .truncate(false)
        .open(&path)
        .map_err(io_error("open", &path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // The id is a courtesy: a lock without one still says enough.
            let _ = file.read_to_string(&mut holder);
            let holder = if holder.trim().is_empty() { "unknown" } else { holder.trim() }.to_owned();
            return Err(FolderError::Locked { path: folder.to_owned(), holder });
        }
        Err(TryLockError::Error(source)) => return Err(io_error("lock", &path)(source)),
    }
    let record = |file: &mut File| {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    };
    record(&mut file).map_err(io_error("write", &path))?;
    Ok(file)
}

fn io_error<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> FolderError + 'a {
    move |source| FolderError::Io { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_is_refused_and_told_who_holds_it() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("runs/tiny");
        let first = RunFolder::open(&path).unwrap();
        let error = RunFolder::open(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        drop(first);
        RunFolder::open(&path).unwrap();
    }

    #[test]
    fn the_config_is_replaced_whole() {
        let base = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(base.path()).unwrap();
        folder.save_config("steps: 20\nrun_name: tiny\n").unwrap();
        folder.save_config("steps: 5\n").unwrap();
        assert_eq!(fs::read_to_string(base.path().join(CONFIG_FILE)).unwrap(), "steps: 5\n");
    }

    #[test]
    fn a_file_in_the_way_is_named() {
        let base = tempfile::tempdir().unwrap();
        fs::write(base.path().join("taken"), "").unwrap();
        let error = RunFolder::open(&base.path().join("taken/run")).unwrap_err().to_string();
        assert!(error.starts_with("can't create ") && error.contains("taken/run"), "{error}");
    }
}
