//! Tensors to safetensors files, streamed: a tensor's bytes pass through and are gone.

use super::disk::NewFile;
use super::error::CheckpointError;
use super::manifest::Manifest;
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// A tensor to write: everything but its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Row-major shape; empty for a scalar.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// Size of the tensor's bytes.
    pub fn num_bytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * self.dtype.bitsize() as u64 / 8
    }
}

/// Takes the bytes of one tensor, in row-major order, little-endian, in as many pieces as suits.
pub struct Body<'a>(&'a mut NewFile);

impl Body<'_> {
    /// Takes the next bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.0.write(bytes)
    }
}

/// Writes the tensors into `folder` and notes the files in `manifest`.
///
/// What fits into `max_file_bytes` goes into `<stem>.safetensors`; more is split by size into
/// `<stem>-00001-of-0000N.safetensors` with the index `<stem>.safetensors.index.json`. `body` is called once for each
/// tensor, in the order of the files, with the tensor's index in `specs`; it hands over the bytes.
pub fn write_tensors(
    folder: &Path,
    stem: &str,
    manifest: &mut Manifest,
    metadata: &BTreeMap<String, String>,
    specs: &[TensorSpec],
    max_file_bytes: u64,
    mut body: impl FnMut(usize, &mut Body<'_>) -> Result<(), CheckpointError>,
) -> Result<(), CheckpointError> {
    let shards = shards(specs, max_file_bytes);
    let mut weight_map = BTreeMap::new();
    for (i, shard) in shards.iter().enumerate() {
        let name = match shards.len() {
            1 => format!("{stem}.safetensors"),
            n => format!("{stem}-{:05}-of-{n:05}.safetensors", i + 1),
        };
        let mut file = NewFile::create(&folder.join(&name))?;
        file.write(&header(metadata, shard.iter().map(|&index| &specs[index])))?;
        for &index in shard {
            let spec = &specs[index];
            let end = file.bytes() + spec.num_bytes();
            body(index, &mut Body(&mut file))?;
            if file.bytes() != end {
                let reason = format!("its bytes end at {}, expected {end}", file.bytes());
                return Err(CheckpointError::tensor(file.path(), &spec.name, reason));
            }
            weight_map.insert(&spec.name, name.clone());
        }
        manifest.add(&name, file.finish()?);
    }
    if 1 < shards.len() {
        let total_size: u64 = specs.iter().map(TensorSpec::num_bytes).sum();
        let index = json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map });
        let name = format!("{stem}.safetensors.index.json");
        manifest.write_file(folder, &name, format!("{index:#}").as_bytes())?;
    }
    Ok(())
}

/// Which tensors go into which file. Wide elements come first, so that all lie aligned; there is always a file.
fn shards(specs: &[TensorSpec], max_file_bytes: u64) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..specs.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(specs[index].dtype.bitsize()));
    let mut shards = vec![Vec::new()];
    let mut bytes = 0;
    for index in order {
        let more = specs[index].num_bytes();
        if 0 < bytes && max_file_bytes < bytes + more {
            shards.push(Vec::new());
            bytes = 0;
        }
        bytes += more;
        shards.last_mut().expect("starts with one").push(index);
    }
    shards
}

/// The header of a safetensors file: its length, then JSON, padded with spaces to eight bytes.
fn header<'a>(metadata: &BTreeMap<String, String>, specs: impl Iterator<Item = &'a TensorSpec>) -> Vec<u8> {
    let mut entries = Map::new();
    if !metadata.is_empty() {
        entries.insert("__metadata__".to_owned(), json!(metadata));
    }
    let mut start = 0;
    for spec in specs {
        let end = start + spec.num_bytes() as usize;
        let info = TensorInfo { dtype: spec.dtype, shape: spec.shape.clone(), data_offsets: (start, end) };
        entries.insert(spec.name.clone(), json!(info));
        start = end;
    }
    let mut json = Value::Object(entries).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    header
}
