//! The list of a checkpoint's files with their sizes and sums: what makes a folder a checkpoint, and whole.

use super::disk::NewFile;
use super::error::CheckpointError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Name of the manifest in a checkpoint's folder.
pub const MANIFEST: &str = "manifest.json";
const FORMAT: &str = "mt-train checkpoint";
const VERSION: u32 = 1;
/// No sane JSON file of a checkpoint is larger.
const MAX_JSON_BYTES: u64 = 100 << 20;

/// The files of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    format: String,
    version: u32,
    /// The step just completed when the checkpoint was taken.
    pub step: u64,
    /// By name.
    pub files: BTreeMap<String, FileSum>,
}

/// Size and sum of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSum {
    /// Size.
    pub bytes: u64,
    /// CRC-32C (Castagnoli) of all bytes.
    pub crc32c: u32,
}

impl Manifest {
    /// A manifest of no files yet.
    pub fn new(step: u64) -> Self {
        Self { format: FORMAT.to_owned(), version: VERSION, step, files: BTreeMap::new() }
    }

    /// Writes a whole small file into `folder` and notes it.
    pub fn write_file(&mut self, folder: &Path, name: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        let mut file = NewFile::create(&folder.join(name))?;
        file.write(bytes)?;
        self.add(name, file.finish()?);
        Ok(())
    }

    /// Notes a file that is on the disk.
    pub(super) fn add(&mut self, name: &str, sum: FileSum) {
        self.files.insert(name.to_owned(), sum);
    }

    /// Writes the manifest into `folder`, after all other files.
    pub(super) fn write(&self, folder: &Path) -> Result<(), CheckpointError> {
        let json = serde_json::to_vec_pretty(self).expect("a manifest is plain data");
        let mut file = NewFile::create(&folder.join(MANIFEST))?;
        file.write(&json)?;
        file.finish().map(drop)
    }

    /// Reads the manifest of `folder` without looking at the other files.
    pub(super) fn read(folder: &Path) -> Result<Self, CheckpointError> {
        let path = folder.join(MANIFEST);
        let manifest: Self = read_json(&path)?;
        if manifest.format != FORMAT || manifest.version != VERSION {
            let found = format!("`{}` version {}", manifest.format, manifest.version);
            let reason = format!("{MANIFEST} says {found}, this program reads `{FORMAT}` version {VERSION}");
            return Err(CheckpointError::NotACheckpoint { path: folder.to_path_buf(), reason });
        }
        Ok(manifest)
    }

    /// Reads every file of the manifest once and compares its size and sum.
    pub(super) fn verify(&self, folder: &Path) -> Result<(), CheckpointError> {
        for (name, expected) in &self.files {
            let path = folder.join(name);
            let found = sum(&path)?;
            if found.bytes != expected.bytes {
                let reason = format!("{} bytes, {} were written", found.bytes, expected.bytes);
                return Err(CheckpointError::damaged(&path, reason));
            }
            if found.crc32c != expected.crc32c {
                let reason = format!("CRC-32C {:08x}, written as {:08x}", found.crc32c, expected.crc32c);
                return Err(CheckpointError::damaged(&path, reason));
            }
        }
        Ok(())
    }
}

/// Size and sum of a file, read in pieces.
fn sum(path: &Path) -> Result<FileSum, CheckpointError> {
    let mut file = open(path)?;
    let mut piece = vec![0; 1 << 20];
    let mut sum = FileSum { bytes: 0, crc32c: 0 };
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(sum),
            Ok(read) => {
                sum.bytes += read as u64;
                sum.crc32c = crc32c::crc32c_append(sum.crc32c, &piece[..read]);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(CheckpointError::damaged(path, error)),
        }
    }
}

/// Opens a file that must be there: a missing one is damage, not a missing checkpoint.
pub(super) fn open(path: &Path) -> Result<File, CheckpointError> {
    File::open(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => CheckpointError::damaged(path, "the file is missing"),
        _ => CheckpointError::io("read", path)(error),
    })
}

/// Reads a JSON file of bounded size.
pub(super) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, CheckpointError> {
    let mut text = Vec::new();
    open(path)?
        .take(MAX_JSON_BYTES + 1)
        .read_to_end(&mut text)
        .map_err(|error| CheckpointError::damaged(path, error))?;
    if MAX_JSON_BYTES < text.len() as u64 {
        return Err(CheckpointError::damaged(path, format!("more than {MAX_JSON_BYTES} bytes of JSON")));
    }
    serde_json::from_slice(&text).map_err(|error| CheckpointError::damaged(path, error))
}
