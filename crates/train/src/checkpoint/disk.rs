//! The file operations that a durable commit is made of. Each is a point where a machine may die, and in tests does.

use super::error::CheckpointError;
use super::manifest::FileSum;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A new file whose bytes are counted and summed as they are written.
pub(crate) struct NewFile {
    file: io::BufWriter<Faulty<File>>,
    path: PathBuf,
    sum: FileSum,
}

impl NewFile {
    pub fn create(path: &Path) -> Result<Self, CheckpointError> {
        let file = fault::point()
            .and_then(|()| OpenOptions::new().write(true).create_new(true).open(path))
            .map_err(CheckpointError::io("create", path))?;
        Ok(Self {
            file: io::BufWriter::with_capacity(1 << 20, Faulty(file)),
            path: path.to_path_buf(),
            sum: FileSum { bytes: 0, crc32c: 0 },
        })
    }

    pub fn write(&mut self, data: &[u8]) -> Result<(), CheckpointError> {
        self.sum.bytes += data.len() as u64;
        self.sum.crc32c = crc32c::crc32c_append(self.sum.crc32c, data);
        self.file.write_all(data).map_err(CheckpointError::io("write", &self.path))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.sum.bytes
    }

    /// Returns once the bytes are on the disk.
    pub fn finish(mut self) -> Result<FileSum, CheckpointError> {
        self.file
            .flush()
            .and_then(|()| fault::point())
            .and_then(|()| self.file.get_ref().0.sync_all())
            .map_err(CheckpointError::io("write", &self.path))?;
        Ok(self.sum)
    }
}

/// Makes a folder and those above it.
pub(crate) fn create_folder(path: &Path) -> Result<(), CheckpointError> {
    fault::point().and_then(|()| fs::create_dir_all(path)).map_err(CheckpointError::io("create", path))
}

/// Returns once the names in a folder are on the disk.
pub(crate) fn sync_folder(path: &Path) -> Result<(), CheckpointError> {
    fault::point().and_then(|()| File::open(path)?.sync_all()).map_err(CheckpointError::io("write", path))
}

/// Gives a folder its new name, at once and for good.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), CheckpointError> {
    fault::point().and_then(|()| fs::rename(from, to)).map_err(CheckpointError::io("rename", from))?;
    to.parent().map_or(Ok(()), sync_folder)
}

/// Removes a folder and what is in it.
pub(crate) fn remove_folder(path: &Path) -> Result<(), CheckpointError> {
    fault::point().and_then(|()| fs::remove_dir_all(path)).map_err(CheckpointError::io("remove", path))
}

/// Removes a file.
pub(crate) fn remove_file(path: &Path) -> Result<(), CheckpointError> {
    fault::point().and_then(|()| fs::remove_file(path)).map_err(CheckpointError::io("remove", path))
}

/// A writer that a test can stop in the middle of its bytes.
struct Faulty<W>(W);

impl<W: Write> Write for Faulty<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match fault::point() {
            Ok(()) => self.0.write(data),
            Err(error) => {
                self.0.write_all(&data[..data.len() / 2])?;
                Err(error)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Outside of tests nothing fails on purpose.
#[cfg(not(test))]
mod fault {
    #[inline(always)]
    pub fn point() -> std::io::Result<()> {
        Ok(())
    }
}

/// Death on demand: after a number of points every further operation of this thread fails.
#[cfg(test)]
pub(super) mod fault {
    use std::cell::Cell;
    use std::io::{Error, ErrorKind, Result};

    thread_local! {
        static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    }

    pub fn point() -> Result<()> {
        match LEFT.get() {
            None => Ok(()),
            Some(0) => Err(Error::from(ErrorKind::BrokenPipe)),
            Some(left) => {
                LEFT.set(Some(left - 1));
                Ok(())
            }
        }
    }

    /// Runs `work`, which dies at its `points`-th operation; true when it got that far.
    pub fn dies_after(points: usize, work: impl FnOnce()) -> bool {
        LEFT.set(Some(points));
        work();
        LEFT.replace(None) == Some(0)
    }
}
