//! Where rows come from: files of a data set split, in a fixed order.

mod decode;
pub(crate) mod hub;
mod local;
mod reader;
mod split;

pub(crate) use decode::{Content, decode};
pub(crate) use local::{resolve, resolve_folder};
pub(crate) use reader::{Column, Format, RawRow, RowReader, TextUnit};

use std::path::{Path, PathBuf};

use hub::HubFiles;
use sha2::{Digest, Sha256};

use crate::DataError;

/// The files of one split, all of one format.
#[derive(Debug)]
pub(crate) struct Files {
    place: Place,
    format: Format,
    column: Column,
}

/// Where the files lie.
#[derive(Debug)]
enum Place {
    Local(Vec<PathBuf>),
    Hub(HubFiles),
}

impl Files {
    /// Files on the local disk.
    pub(crate) fn local(paths: Vec<PathBuf>, format: Format, column: Column) -> Self {
        Self { place: Place::Local(paths), format, column }
    }

    /// Files on the Hub.
    pub(crate) fn hub(files: HubFiles, format: Format, column: Column) -> Self {
        Self { place: Place::Hub(files), format, column }
    }

    /// Number of files.
    pub(crate) fn len(&self) -> usize {
        match &self.place {
            Place::Local(paths) => paths.len(),
            Place::Hub(files) => files.len(),
        }
    }

    /// Name of a file, for messages.
    pub(crate) fn name(&self, file: usize) -> String {
        match &self.place {
            Place::Local(paths) => paths[file].display().to_string(),
            Place::Hub(files) => files.name(file),
        }
    }

    /// Stands for the files' number, names and order, wherever they lie: tells other data apart.
    pub(crate) fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        for file in 0..self.len() {
            let name = self.name(file);
            hash.update(name.rsplit(['/', '\\']).next().unwrap_or(&name));
            hash.update([0]);
        }
        let hash: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        format!("{} ({hash})", self.len())
    }

    /// The column that documents are in.
    pub(crate) fn column(&self) -> &Column {
        &self.column
    }

    /// The file's place on disk; waits for it when it is on the Hub, and has the `upcoming` ones fetched.
    ///
    /// # Errors
    /// A file of the Hub that can't be had. Never to be skipped: it isn't the file that is bad.
    pub(crate) fn fetch(&self, file: usize, upcoming: &[usize]) -> Result<PathBuf, DataError> {
        match &self.place {
            Place::Local(paths) => Ok(paths[file].clone()),
            Place::Hub(files) => files.fetch(file, upcoming),
        }
    }

    /// Opens a file that has been fetched to `path`.
    ///
    /// # Errors
    /// The file can't be read or isn't what it should be.
    pub(crate) fn open(&self, file: usize, path: &Path) -> Result<Box<dyn RowReader>, DataError> {
        reader::open(path, &self.name(file), self.format, &self.column)
    }

    /// Reads and inflates a fetched file and does nothing with it; its bytes after inflating.
    ///
    /// # Errors
    /// As for [`Files::open`].
    pub(crate) fn inflate(&self, file: usize, path: &Path) -> Result<u64, DataError> {
        reader::inflate(path, &self.name(file), self.format)
    }
}
