//! Tensors from safetensors files, one at a time. The files may be anybody's: nothing in them is trusted.

use super::error::CheckpointError;
use super::manifest::{open, read_json};
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

/// The largest header that the format allows.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The tensors of one file, or of several files and their index.
pub struct TensorFiles {
    folder: PathBuf,
    files: Vec<TensorFile>,
    /// Name of a tensor to its file.
    by_name: BTreeMap<String, usize>,
}

struct TensorFile {
    file: File,
    path: PathBuf,
    /// Where the first tensor starts.
    data_start: u64,
    metadata: Metadata,
}

/// The part of an index file that matters.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl TensorFiles {
    /// Whether `folder` has a tensor file or an index of this name.
    pub fn exist(folder: &Path, stem: &str) -> bool {
        folder.join(format!("{stem}.safetensors")).is_file() || index_path(folder, stem).is_file()
    }

    /// Opens `<stem>.safetensors`, or the files of `<stem>.safetensors.index.json`, and checks their headers.
    pub fn open(folder: &Path, stem: &str) -> Result<Self, CheckpointError> {
        let index = index_path(folder, stem);
        if index.is_file() {
            Self::open_index(folder, &index)
        } else {
            Self::new(folder, vec![TensorFile::open(&folder.join(format!("{stem}.safetensors")))?])
        }
    }

    /// Opens a single file.
    pub fn open_file(path: &Path) -> Result<Self, CheckpointError> {
        Self::new(path, vec![TensorFile::open(path)?])
    }

    fn open_index(folder: &Path, index: &Path) -> Result<Self, CheckpointError> {
        let Index { weight_map } = read_json(index)?;
        let names: BTreeSet<&String> = weight_map.values().collect();
        for name in &names {
            let mut parts = Path::new(name.as_str()).components();
            if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
                let reason = format!("`{name}` isn't a file name in its own folder");
                return Err(CheckpointError::damaged(index, reason));
            }
        }
        let files =
            names.iter().map(|name| TensorFile::open(&folder.join(name))).collect::<Result<_, _>>()?;
        let tensors = Self::new(folder, files)?;
        for (tensor, file) in &weight_map {
            let found = tensors.by_name.get(tensor).map(|&i| &tensors.files[i].path);
            if found.and_then(|path| path.file_name()).is_none_or(|name| name != file.as_str()) {
                return Err(CheckpointError::tensor(index, tensor, format!("it isn't in `{file}`")));
            }
        }
        Ok(tensors)
    }

    fn new(folder: &Path, files: Vec<TensorFile>) -> Result<Self, CheckpointError> {
        let mut by_name = BTreeMap::new();
        for (i, file) in files.iter().enumerate() {
            for name in file.metadata.offset_keys() {
                if let Some(other) = by_name.insert(name.clone(), i) {
                    let reason = format!("it is in `{}` too", files[other].path.display());
                    return Err(CheckpointError::tensor(&file.path, &name, reason));
                }
            }
        }
        Ok(Self { folder: folder.to_path_buf(), files, by_name })
    }

    /// Names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// Type, shape and place of a tensor; none when there is no tensor of this name.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.files[*self.by_name.get(name)?].metadata.info(name)
    }

    /// A value of the free-form metadata of the first file.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.files.first()?.metadata.metadata().as_ref()?.get(key).map(String::as_str)
    }

    /// Folder or file that was opened.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Reads a tensor's bytes.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, CheckpointError> {
        let (start, end) = self.place(name)?.1.data_offsets;
        // The header was compared with the size of the file, so this much is there.
        let mut bytes = vec![0; end - start];
        self.read_at(name, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads some of a tensor's bytes, from `offset` on.
    pub(super) fn read_at(&self, name: &str, offset: usize, bytes: &mut [u8]) -> Result<(), CheckpointError> {
        let (file, info) = self.place(name)?;
        let (start, end) = info.data_offsets;
        if end - start < offset + bytes.len() {
            let reason = format!("it has {} bytes, {} were asked for", end - start, offset + bytes.len());
            return Err(CheckpointError::tensor(&file.path, name, reason));
        }
        file.file
            .read_exact_at(bytes, file.data_start + (start + offset) as u64)
            .map_err(|error| CheckpointError::tensor(&file.path, name, error))
    }

    fn place(&self, name: &str) -> Result<(&TensorFile, &TensorInfo), CheckpointError> {
        let file = self.by_name.get(name).map(|&i| &self.files[i]);
        file.and_then(|file| Some((file, file.metadata.info(name)?))).ok_or_else(|| self.missing(name))
    }

    /// The error that a tensor isn't there, with the nearest name.
    pub(crate) fn missing(&self, name: &str) -> CheckpointError {
        let shared =
            |other: &&str| other.bytes().rev().zip(name.bytes().rev()).take_while(|(a, b)| a == b).count();
        let nearest = self.names().max_by_key(shared).map(|name| format!("; the nearest is `{name}`"));
        CheckpointError::tensor(&self.folder, name, format!("it isn't there{}", nearest.unwrap_or_default()))
    }
}

fn index_path(folder: &Path, stem: &str) -> PathBuf {
    folder.join(format!("{stem}.safetensors.index.json"))
}

impl TensorFile {
    /// Opens a file and reads its header, which must account for every byte of the file.
    fn open(path: &Path) -> Result<Self, CheckpointError> {
        let file = open(path)?;
        let damaged = |reason: String| CheckpointError::damaged(path, reason);
        let size = file.metadata().map_err(CheckpointError::io("read", path))?.len();
        let read = |offset: u64, bytes: &mut [u8]| {
            file.read_exact_at(bytes, offset).map_err(|error| damaged(error.to_string()))
        };

        let mut length = [0; 8];
        if size < 8 {
            return Err(damaged(format!("{size} bytes are no safetensors file")));
        }
        read(0, &mut length)?;
        let length = u64::from_le_bytes(length);
        if MAX_HEADER_BYTES.min(size - 8) < length {
            return Err(damaged(format!("a header of {length} bytes in a file of {size}")));
        }
        let mut header = vec![0; length as usize];
        read(8, &mut header)?;
        // Parsing checks that the tensors lie end to end and that shapes and types give their sizes.
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|error| damaged(format!("its header: {error}")))?;
        let data_start = 8 + length;
        if metadata.data_len() as u64 != size - data_start {
            let (expected, found) = (metadata.data_len(), size - data_start);
            return Err(damaged(format!("{found} bytes of tensors, its header speaks of {expected}")));
        }
        Ok(Self { file, path: path.to_path_buf(), data_start, metadata })
    }
}
