//! Rows of one file, whatever its format and compression.

mod bytes;
mod json_array;
mod lines;
mod parquet;

use std::path::Path;

use crate::DataError;

/// Rows longer than this are refused: one such row would take the memory meant for a whole window of rows.
pub(crate) const MAX_ROW_BYTES: usize = 32 << 20;

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// One JSON object a line, or one JSON array of objects; as it is or compressed with gzip or zstd.
    Json,
    /// Plain text; as it is or compressed.
    Text(TextUnit),
    /// Parquet.
    Parquet,
}

/// What one document of a text file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextUnit {
    /// A line, without its end.
    Line,
    /// The file.
    File,
}

/// One row as it lies in the file, not decoded yet.
#[derive(Debug)]
pub(crate) enum RawRow {
    /// A JSON value.
    Json(Vec<u8>),
    /// Text that should be UTF-8.
    Text(Vec<u8>),
    /// Token ids.
    Ids(Vec<i64>),
    /// The row can't be read, the ones after it can.
    Bad(DataError),
}

impl RawRow {
    /// Bytes in memory, about.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Json(bytes) | Self::Text(bytes) => bytes.len(),
            Self::Ids(ids) => ids.len() * size_of::<i64>(),
            Self::Bad(_) => 0,
        }
    }
}

/// Reads the rows of one file in order.
pub(crate) trait RowReader: Send {
    /// The next row and its number in the file, from 1; `None` at the end.
    ///
    /// # Errors
    /// The file can't be read any further.
    fn next_row(&mut self) -> Result<Option<(u64, RawRow)>, DataError>;

    /// Goes on after row number `row`, counted as [`RowReader::next_row`] does.
    ///
    /// # Errors
    /// As for `next_row`.
    fn skip_to(&mut self, row: u64) -> Result<(), DataError>;
}

/// What to take from each row.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    /// Name of the column (`train_data_columns`); text files have only `text`.
    pub(crate) name: String,
    /// The column holds token ids, not text (`tokenize_train_data: false`).
    pub(crate) ids: bool,
}

/// Opens the file at `path`; `name` is what messages call it.
pub(crate) fn open(
    path: &Path,
    name: &str,
    format: Format,
    column: &Column,
) -> Result<Box<dyn RowReader>, DataError> {
    Ok(match format {
        Format::Parquet => Box::new(parquet::ParquetRows::open(path, name, column)?),
        Format::Json => json_array::open_json(bytes::open(path, name)?, name)?,
        Format::Text(TextUnit::Line) => {
            Box::new(lines::Lines::new(bytes::open(path, name)?, name, lines::Kind::Text))
        }
        Format::Text(TextUnit::File) => Box::new(lines::WholeFile::new(bytes::open(path, name)?, name)),
    })
}

/// Reads and inflates a file; its bytes after that. Parquet inflates piece by piece as it is decoded: 0.
pub(crate) fn inflate(path: &Path, name: &str, format: Format) -> Result<u64, DataError> {
    if format == Format::Parquet {
        return Ok(0);
    }
    let mut bytes = bytes::open(path, name)?;
    std::io::copy(&mut bytes, &mut std::io::sink()).map_err(|source| DataError::io(path, source))
}

#[cfg(test)]
mod tests;
