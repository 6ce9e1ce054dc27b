//! Where rows come from: files of a data set split, in a fixed order.

mod decode;
pub(crate) mod hub;
mod local;
mod reader;
mod split;

pub(crate) use decode::{Content, decode};
pub(crate) use local::{resolve, resolve_folder};
pub(crate) use reader::{Column, Format, RawRow, RowReader, TextUnit};

use std::path::PathBuf;

use hub::HubFiles;

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
    pub(crate) fn open(&self, file: usize, path: &std::path::Path) -> Result<Box<dyn RowReader>, DataError> {
        reader::open(path, &self.name(file), self.format, &self.column)
    }
}
