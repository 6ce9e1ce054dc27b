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

/// One safetensors file of several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePlan {
    /// Its name.
    pub name: String,
    /// Its tensors, as indices of the list that the plan is made of, in their order in the file.
    pub tensors: Vec<usize>,
}

impl FilePlan {
    /// Size of its tensors.
    pub fn num_bytes(&self, specs: &[TensorSpec]) -> u64 {
        self.tensors.iter().map(|&index| specs[index].num_bytes()).sum()
    }
}

/// Which files hold the tensors: `<stem>.safetensors` if they fit into `max_file_bytes`; more are split by size into
/// `<stem>-00001-of-0000N.safetensors`.
pub fn plan_files(stem: &str, specs: &[TensorSpec], max_file_bytes: u64) -> Vec<FilePlan> {
    let shards = shards(specs, max_file_bytes);
    let count = shards.len();
    let name = |i: usize| match count {
        1 => format!("{stem}.safetensors"),
        n => format!("{stem}-{:05}-of-{n:05}.safetensors", i + 1),
    };
    shards.into_iter().enumerate().map(|(i, tensors)| FilePlan { name: name(i), tensors }).collect()
}

/// Writes the tensors into `folder` and notes the files in `manifest`: those of [`plan_files`], and the index of several. `body`
/// is called once for each tensor, in the order of the files, with its index in `specs`; it hands over the bytes.
pub fn write_tensors(
    folder: &Path,
    stem: &str,
    manifest: &mut Manifest,
    metadata: &BTreeMap<String, String>,
    specs: &[TensorSpec],
    max_file_bytes: u64,
    mut body: impl FnMut(usize, &mut Body<'_>) -> Result<(), CheckpointError>,
) -> Result<(), CheckpointError> {
    let files = plan_files(stem, specs, max_file_bytes);
    for file in &files {
        write_file(folder, file, manifest, metadata, specs, &mut body)?;
    }
    write_index(folder, stem, manifest, specs, &files)
}

/// Writes one file and notes it. `body` is called once for each of its tensors, in their order, with the tensor's index in `specs`;
/// it hands over the bytes.
pub(super) fn write_file(
    folder: &Path,
    file: &FilePlan,
    manifest: &mut Manifest,
    metadata: &BTreeMap<String, String>,
    specs: &[TensorSpec],
    mut body: impl FnMut(usize, &mut Body<'_>) -> Result<(), CheckpointError>,
) -> Result<(), CheckpointError> {
    let FilePlan { name, tensors } = file;
    let mut file = NewFile::create(&folder.join(name))?;
    file.write(&header(metadata, tensors.iter().map(|&index| &specs[index])))?;
    for &index in tensors {
        let spec = &specs[index];
        let end = file.bytes() + spec.num_bytes();
        body(index, &mut Body(&mut file))?;
        if file.bytes() != end {
            let reason = format!("its bytes end at {}, expected {end}", file.bytes());
            return Err(CheckpointError::tensor(file.path(), &spec.name, reason));
        }
    }
    manifest.add(name, file.finish()?);
    Ok(())
}

/// Writes `<stem>.safetensors.index.json`, which says what lies where, if there is more than one file.
pub(super) fn write_index(
    folder: &Path,
    stem: &str,
    manifest: &mut Manifest,
    specs: &[TensorSpec],
    files: &[FilePlan],
) -> Result<(), CheckpointError> {
    if files.len() < 2 {
        return Ok(());
    }
    let total_size: u64 = specs.iter().map(TensorSpec::num_bytes).sum();
    let places =
        files.iter().flat_map(|file| file.tensors.iter().map(move |&i| (&specs[i].name, &file.name)));
    let weight_map: BTreeMap<&String, &String> = places.collect();
    let index = json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map });
    let name = format!("{stem}.safetensors.index.json");
    manifest.write_file(folder, &name, format!("{index:#}").as_bytes())
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
