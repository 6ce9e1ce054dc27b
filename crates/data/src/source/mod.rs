//! Where rows come from: files of a data set split, in a fixed order.

mod decode;
mod local;
mod reader;

pub(crate) use decode::{Content, decode};
pub(crate) use local::resolve;
pub(crate) use reader::{Column, Format, RawRow, RowReader, TextUnit};

use std::path::PathBuf;

use crate::DataError;

/// The files of one split.
#[derive(Debug)]
pub(crate) struct Files {
    /// Path of each file, which is its name too.
    paths: Vec<PathBuf>,
    format: Format,
    column: Column,
}

impl Files {
    /// Files on the local disk, all of one format.
    pub(crate) fn local(paths: Vec<PathBuf>, format: Format, column: Column) -> Self {
        Self { paths, format, column }
    }

    /// Number of files.
    pub(crate) fn len(&self) -> usize {
        self.paths.len()
    }

    /// Name of a file, for messages.
    pub(crate) fn name(&self, file: usize) -> String {
        self.paths[file].display().to_string()
    }

    /// The column that documents are in.
    pub(crate) fn column(&self) -> &Column {
        &self.column
    }

    /// Opens a file.
    pub(crate) fn open(&self, file: usize) -> Result<Box<dyn RowReader>, DataError> {
        reader::open(&self.paths[file], &self.name(file), self.format, &self.column)
    }
}
