//! Line by line: JSON lines and text.

use std::io::{BufRead, Read};

use super::bytes::{Bytes, broken};
use super::{MAX_ROW_BYTES, RawRow, RowReader};
use crate::DataError;

/// What a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A JSON value; blank lines are no rows.
    Json,
    /// A document, blank lines too.
    Text,
}

/// Rows of a file with one row a line. Rows are numbered as lines are.
pub(super) struct Lines {
    bytes: Bytes,
    name: String,
    kind: Kind,
    /// Lines read so far.
    line: u64,
}

/// A line's content, or why there is none.
enum Line {
    End,
    Content(Vec<u8>),
    TooLong,
}

impl Lines {
    pub(super) fn new(bytes: Bytes, name: &str, kind: Kind) -> Self {
        Self { bytes, name: name.into(), kind, line: 0 }
    }

    /// Reads up to the next `\n`; `keep` of false only moves on.
    fn next_line(&mut self, keep: bool) -> Result<Line, DataError> {
        let mut content = Vec::new();
        let (mut length, mut started) = (0, false);
        loop {
            let chunk = match self.bytes.fill_buf() {
                Ok(chunk) => chunk,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(broken(&self.name, self.line + 1, &error)),
            };
            if chunk.is_empty() && !started {
                return Ok(Line::End);
            }
            started = true;
            let end = memchr::memchr(b'\n', chunk);
            let part = &chunk[..end.unwrap_or(chunk.len())];
            length += part.len();
            if keep && length <= MAX_ROW_BYTES {
                content.extend_from_slice(part);
            }
            let (used, ended) = (end.map_or(chunk.len(), |end| end + 1), end.is_some() || chunk.is_empty());
            self.bytes.consume(used);
            if ended {
                self.line += 1;
                return Ok(if length > MAX_ROW_BYTES { Line::TooLong } else { Line::Content(content) });
            }
        }
    }
}

impl RowReader for Lines {
    fn next_row(&mut self) -> Result<Option<(u64, RawRow)>, DataError> {
        loop {
            let row = match (self.next_line(true)?, self.kind) {
                (Line::End, _) => return Ok(None),
                (Line::TooLong, _) => RawRow::Bad(too_long(&self.name, self.line)),
                (Line::Content(line), Kind::Json) if line.trim_ascii().is_empty() => continue,
                (Line::Content(line), Kind::Json) => RawRow::Json(line),
                (Line::Content(mut line), Kind::Text) => {
                    if line.last() == Some(&b'\r') {
                        line.pop();
                    }
                    RawRow::Text(line)
                }
            };
            return Ok(Some((self.line, row)));
        }
    }

    fn skip_to(&mut self, row: u64) -> Result<(), DataError> {
        while self.line < row {
            if let Line::End = self.next_line(false)? {
                break;
            }
        }
        Ok(())
    }
}

/// A text file as one document.
pub(super) struct WholeFile {
    bytes: Option<Bytes>,
    name: String,
}

impl WholeFile {
    pub(super) fn new(bytes: Bytes, name: &str) -> Self {
        Self { bytes: Some(bytes), name: name.into() }
    }
}

impl RowReader for WholeFile {
    fn next_row(&mut self) -> Result<Option<(u64, RawRow)>, DataError> {
        let Some(bytes) = self.bytes.take() else { return Ok(None) };
        let mut text = Vec::new();
        bytes
            .take(MAX_ROW_BYTES as u64 + 1)
            .read_to_end(&mut text)
            .map_err(|error| broken(&self.name, 1, &error))?;
        let row = if text.len() > MAX_ROW_BYTES {
            RawRow::Bad(too_long(&self.name, 1))
        } else {
            RawRow::Text(text)
        };
        Ok(Some((1, row)))
    }

    fn skip_to(&mut self, row: u64) -> Result<(), DataError> {
        if row > 0 {
            self.bytes = None;
        }
        Ok(())
    }
}

/// The error for a row that is longer than [`MAX_ROW_BYTES`].
pub(super) fn too_long(name: &str, row: u64) -> DataError {
    let reason = format!("the row is longer than {} MiB; split it", MAX_ROW_BYTES >> 20);
    DataError::Row { file: name.into(), row, reason }
}
