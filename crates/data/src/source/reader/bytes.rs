//! Plain bytes of a file that may be compressed.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use crate::DataError;

const BUFFER: usize = 256 << 10;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A stream of bytes.
pub(super) type Bytes = Box<dyn BufRead + Send>;

/// Opens `path`, inflating gzip and zstd (told by their first bytes) and dropping a byte order mark.
///
/// # Errors
/// The file can't be opened, or holds nothing.
pub(super) fn open(path: &Path, name: &str) -> Result<Bytes, DataError> {
    let io = |source| DataError::io(path, source);
    let mut file = BufReader::with_capacity(BUFFER, File::open(path).map_err(io)?);
    let magic = file.fill_buf().map_err(io)?;
    let mut bytes: Bytes = if magic.starts_with(&[0x1f, 0x8b]) {
        Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(file)))
    } else if magic.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let decoder = zstd::Decoder::with_buffer(file).map_err(io)?;
        Box::new(BufReader::with_capacity(BUFFER, decoder))
    } else {
        Box::new(file)
    };
    let first = bytes.fill_buf().map_err(|error| broken(name, 1, &error))?;
    if first.is_empty() {
        return Err(DataError::File { file: name.into(), reason: "the file is empty".into() });
    }
    if first.starts_with(BYTE_ORDER_MARK) {
        bytes.consume(BYTE_ORDER_MARK.len());
    }
    Ok(bytes)
}

/// The error for a stream that breaks inside row `row`.
pub(super) fn broken(name: &str, row: u64, error: &io::Error) -> DataError {
    let reason = match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            format!("compressed data ends early, the file is truncated ({error})")
        }
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::Other => {
            format!("compressed data is corrupt ({error})")
        }
        _ => format!("can't be read ({error})"),
    };
    DataError::Row { file: name.into(), row, reason }
}
