//! The folder that a conversion makes: whole, or not there.

use std::path::{Path, PathBuf};

use super::error::ConvertError;
use crate::checkpoint::{CheckpointError, Manifest, disk};

/// Files that make up a tokenizer, as Hugging Face names them.
const TOKENIZER_FILES: [&str; 7] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
];

/// Lets `write` fill a folder beside `path`, brings it to the disk and gives it the name. If anything fails, nothing is left.
pub(crate) fn create(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<(), ConvertError>,
) -> Result<(), ConvertError> {
    // A bare name has no folder above it that could be synced.
    let path = &std::path::absolute(path)
        .map_err(|error| ConvertError::Read { path: path.to_path_buf(), reason: error.to_string() })?;
    if path.exists() {
        return Err(ConvertError::Exists { path: path.to_path_buf() });
    }
    let mut unfinished = path.as_os_str().to_owned();
    // Ours alone: what others have left beside it is none of our business.
    unfinished.push(format!(".{}.tmp", std::process::id()));
    let unfinished = PathBuf::from(unfinished);
    if unfinished.exists() {
        return Err(ConvertError::Exists { path: unfinished });
    }
    disk::create_folder(&unfinished)?;
    let written = write(&unfinished)
        .and_then(|()| Ok(disk::sync_folder(&unfinished)?))
        .and_then(|()| Ok(disk::rename(&unfinished, path)?));
    if written.is_err() {
        _ = disk::remove_folder(&unfinished);
    }
    written
}

/// Writes a small file durably.
pub(super) fn write_file(folder: &Path, name: &str, text: &str) -> Result<(), CheckpointError> {
    Manifest::new(0).write_file(folder, name, text.as_bytes())
}

/// Copies the tokenizer that lies in `from`, whatever files it has.
pub(super) fn copy_tokenizer(from: &Path, to: &Path) -> Result<bool, ConvertError> {
    let mut copied = false;
    for name in TOKENIZER_FILES {
        let file = from.join(name);
        if file.is_file() && !to.join(name).exists() {
            let read =
                |error: std::io::Error| ConvertError::Read { path: file.clone(), reason: error.to_string() };
            let bytes = std::fs::read(&file).map_err(read)?;
            Manifest::new(0).write_file(to, name, &bytes)?;
            copied = true;
        }
    }
    Ok(copied)
}
