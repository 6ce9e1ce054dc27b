//! A file that isn't there until something is written to it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

/// Appends to a file, which the first write makes.
pub(super) struct LateFile {
    path: PathBuf,
    file: Option<File>,
}

impl LateFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, file: None }
    }
}

impl Write for LateFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(OpenOptions::new().create(true).append(true).open(&self.path)?),
        };
        file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), File::flush)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_written_makes_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train-rank3.log");
        let mut file = LateFile::new(path.clone());
        file.flush().unwrap();
        assert!(!path.exists());
        file.write_all(b"one\n").unwrap();
        drop(file);
        LateFile::new(path.clone()).write_all(b"two\n").unwrap();
        assert_eq!(std::fs::read_to_string(path).unwrap(), "one\ntwo\n");
    }
}
