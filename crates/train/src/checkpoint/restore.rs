//! From a checkpoint's files back into parameters and moments, array by array, whatever the layout of the files.

use super::error::CheckpointError;
use super::folder::Checkpoint;
use super::layout;
use super::read::TensorFiles;
use crate::collective::Mesh;
use crate::optim::{Moment, Optimizer};
use burn::tensor::{DType, Shape, Tensor, TensorData};
use mt_config::ModelConfig;
use mt_model::Params;
use mt_model::tree::{Entry, Layout, Tree};
use safetensors::Dtype;
use std::collections::HashMap;
use tracing::{info, warn};

/// Puts the parameters of `files` into `params`; each keeps its element type and device, and is whole or the shard that `mesh` says.
/// Only what this rank holds is read.
///
/// # Errors
/// [`CheckpointError::Tensor`]: a tensor is missing, has another shape than the model, or isn't one of the model's.
pub fn load_params(
    files: &TensorFiles,
    config: &ModelConfig,
    params: &mut Params,
    mesh: Mesh,
) -> Result<(), CheckpointError> {
    let tree = tree_of(files, config);
    let mut leaves: HashMap<String, &mut Tensor<2>> = params.leaves_mut().into_iter().collect();
    for entry in tree.entries() {
        let array = Array::find(files, entry, &entry.spec.name)?;
        for (i, path) in entry.leaves.iter().enumerate() {
            let leaf = leaves.get_mut(path).expect("the tree and the parameters are of one model");
            **leaf = array.part(i, leaf, mesh)?;
        }
    }
    no_strangers(files, &tree)
}

/// Puts the optimizer's state of a checkpoint into `optimizer`.
///
/// A parameter that has no moments in the checkpoint, since it wasn't trained, starts with none; that is logged.
///
/// # Errors
/// As [`load_params`].
pub fn load_optimizer(
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    optimizer: &mut Optimizer,
    mesh: Mesh,
) -> Result<(), CheckpointError> {
    let files = checkpoint.optimizer()?;
    let tree = tree_of(&files, config);
    for (moment, prefix) in [(Moment::Mu, "mu/"), (Moment::Nu, "nu/")] {
        for entry in tree.entries() {
            let name = format!("{prefix}{}", entry.spec.name);
            let wanted = entry.leaves.iter().any(|path| optimizer.moment(moment, path).is_some());
            if wanted && files.info(&name).is_none() {
                warn!("`{name}` isn't in `{}`: it starts at 0", files.path().display());
            } else if wanted {
                let array = Array::find(&files, entry, &name)?;
                for (i, path) in entry.leaves.iter().enumerate() {
                    if let Some(leaf) = optimizer.moment_mut(moment, path) {
                        *leaf = array.part(i, leaf, mesh)?;
                    }
                }
            }
        }
    }
    let mut records = HashMap::new();
    for (name, _) in optimizer.records() {
        if files.info(name).is_some_and(|info| info.dtype == Dtype::F32) {
            let floats = files.read(name)?;
            let floats =
                floats.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            records.insert(name, floats);
        }
    }
    optimizer.restore(&checkpoint.state.optimizer, |name| records.get(name).cloned());
    Ok(())
}

/// The tree of the model in the layout of the files; says so when it isn't the configuration's.
fn tree_of(files: &TensorFiles, config: &ModelConfig) -> Tree {
    let expected = Layout { scan_layers: config.scan_layers, param_scan_axis: config.param_scan_axis };
    let found = layout::of_files(files, config.num_decoder_layers, expected);
    let same = found.scan_layers == expected.scan_layers
        && (!found.scan_layers || found.param_scan_axis == expected.param_scan_axis);
    if !same {
        info!(
            "`{}` has {}; converting to {}",
            files.path().display(),
            layout::describe(found),
            layout::describe(expected)
        );
    }
    Tree::with_layout(config, found)
}

fn no_strangers(files: &TensorFiles, tree: &Tree) -> Result<(), CheckpointError> {
    let known: Vec<&str> = tree.entries().map(|entry| entry.spec.name.as_str()).collect();
    match files.names().find(|name| !known.contains(name)) {
        None => Ok(()),
        Some(name) => Err(CheckpointError::tensor(files.path(), name, "this model has no such parameter")),
    }
}

/// One array of the saved tree: `[outer, part, inner]`.
struct Array<'a> {
    files: &'a TensorFiles,
    name: &'a str,
    dtype: DType,
    parts: usize,
    outer: usize,
    /// Elements of a part in one of its `outer` pieces.
    inner: usize,
}

impl<'a> Array<'a> {
    fn find(files: &'a TensorFiles, entry: &Entry, name: &'a str) -> Result<Self, CheckpointError> {
        let bytes_of = |info: &safetensors::tensor::TensorInfo| -> Result<DType, String> {
            if info.shape != entry.spec.shape {
                return Err(format!(
                    "its shape is {:?}, the model expects {:?}",
                    info.shape, entry.spec.shape
                ));
            }
            match info.dtype {
                Dtype::F32 => Ok(DType::F32),
                Dtype::BF16 => Ok(DType::BF16),
                Dtype::F16 => Ok(DType::F16),
                Dtype::F64 => Ok(DType::F64),
                other => Err(format!("its type is {other:?}, expected F64, F32, BF16 or F16")),
            }
        };
        let info = files.info(name).ok_or_else(|| files.missing(name))?;
        let dtype = bytes_of(info).map_err(|reason| CheckpointError::tensor(files.path(), name, reason))?;
        let (parts, outer) = (entry.leaves.len(), entry.outer);
        let inner = entry.spec.num_elements() / (outer * parts);
        Ok(Self { files, name, dtype, parts, outer, inner })
    }

    /// What `mesh` says of part `i`, all of it or a shard, as a tensor of the shape, element type and device of `like`.
    fn part(&self, i: usize, like: &Tensor<2>, mesh: Mesh) -> Result<Tensor<2>, CheckpointError> {
        let (size, mut next) = (self.dtype.size(), mesh.range(self.outer * self.inner));
        let mut bytes = vec![0; like.dims().iter().product::<usize>() * size];
        let mut done = 0;
        while !next.is_empty() {
            let (block, within) = (next.start / self.inner, next.start % self.inner);
            let count = next.len().min(self.inner - within);
            let offset = (block * self.parts + i) * self.inner + within;
            self.files.read_at(self.name, offset * size, &mut bytes[done * size..][..count * size])?;
            (next.start, done) = (next.start + count, done + count);
        }
        let data = TensorData::from_bytes_vec(bytes, Shape::from(like.dims()), self.dtype);
        Ok(Tensor::from_data(data, (&like.device(), like.dtype())))
    }
}
