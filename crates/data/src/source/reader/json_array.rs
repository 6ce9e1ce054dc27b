//! JSON files: an array of objects, or lines.

use std::io::BufRead;

use super::bytes::{Bytes, broken};
use super::lines::{Kind, Lines, too_long};
use super::{MAX_ROW_BYTES, RawRow, RowReader};
use crate::DataError;

/// A reader for a JSON file: its first byte tells an array from lines.
pub(super) fn open_json(mut bytes: Bytes, name: &str) -> Result<Box<dyn RowReader>, DataError> {
    let first = bytes.fill_buf().map_err(|error| broken(name, 1, &error))?;
    // A file that starts with more white space than one buffer is read as lines.
    if first.trim_ascii_start().first() == Some(&b'[') {
        Ok(Box::new(Elements { bytes, name: name.into(), element: 0, state: State::Before }))
    } else {
        Ok(Box::new(Lines::new(bytes, name, Kind::Json)))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// `[` is next.
    Before,
    /// An element or `]` is next.
    Inside,
    /// `]` has been read.
    After,
}

/// Elements of one JSON array, found by counting brackets; each is parsed later.
struct Elements {
    bytes: Bytes,
    name: String,
    /// Elements read so far.
    element: u64,
    state: State,
}

impl Elements {
    fn error(&self, reason: &str) -> DataError {
        DataError::Row { file: self.name.clone(), row: self.element + 1, reason: reason.into() }
    }

    /// The next byte, left in the stream.
    fn peek(&mut self) -> Result<Option<u8>, DataError> {
        match self.bytes.fill_buf() {
            Ok(chunk) => Ok(chunk.first().copied()),
            Err(error) => Err(broken(&self.name, self.element + 1, &error)),
        }
    }

    /// The next byte that is neither white space nor in `also`, left in the stream.
    fn skip_space(&mut self, also: &[u8]) -> Result<Option<u8>, DataError> {
        loop {
            match self.peek()? {
                Some(byte) if byte.is_ascii_whitespace() || also.contains(&byte) => self.bytes.consume(1),
                byte => return Ok(byte),
            }
        }
    }

    /// Reads one element up to the comma or bracket after it.
    fn element(&mut self) -> Result<RawRow, DataError> {
        let mut content = Vec::new();
        let (mut depth, mut in_string, mut escaped) = (0_u64, false, false);
        let mut length = 0;
        loop {
            let chunk = match self.bytes.fill_buf() {
                Ok(chunk) => chunk,
                Err(error) => return Err(broken(&self.name, self.element + 1, &error)),
            };
            if chunk.is_empty() {
                return Err(self.error("the JSON array isn't closed, the file is truncated"));
            }
            let end = chunk.iter().position(|&byte| {
                if in_string {
                    in_string = escaped || byte != b'"';
                    escaped = !escaped && byte == b'\\';
                    return false;
                }
                match byte {
                    b'"' => in_string = true,
                    b'{' | b'[' => depth += 1,
                    b',' | b']' if depth == 0 => return true,
                    b'}' | b']' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                false
            });
            let used = end.unwrap_or(chunk.len());
            length += used;
            if length <= MAX_ROW_BYTES {
                content.extend_from_slice(&chunk[..used]);
            }
            self.bytes.consume(used);
            if end.is_some() {
                break;
            }
        }
        self.element += 1;
        Ok(if length > MAX_ROW_BYTES {
            RawRow::Bad(too_long(&self.name, self.element))
        } else {
            RawRow::Json(content)
        })
    }
}

impl RowReader for Elements {
    fn next_row(&mut self) -> Result<Option<(u64, RawRow)>, DataError> {
        if self.state == State::Before {
            self.skip_space(b"")?;
            self.bytes.consume(1); // the bracket that open_json saw
            self.state = State::Inside;
        }
        if self.state == State::Inside {
            match self.skip_space(b",")? {
                None => return Err(self.error("the JSON array isn't closed, the file is truncated")),
                Some(b']') => {
                    self.bytes.consume(1);
                    self.state = State::After;
                }
                Some(_) => {
                    let row = self.element()?;
                    return Ok(Some((self.element, row)));
                }
            }
        }
        match self.skip_space(b"")? {
            None => Ok(None),
            Some(_) => Err(self.error("there is more after the end of the JSON array")),
        }
    }

    fn skip_to(&mut self, row: u64) -> Result<(), DataError> {
        while self.element < row && self.next_row()?.is_some() {}
        Ok(())
    }
}
