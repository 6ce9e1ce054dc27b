//! What a checkpoint holds, taken out of a running trainer.
//!
//! A tensor in main memory is shared, not copied: the optimizer writes into memory that it alone holds and otherwise into a
//! copy of it (copy on write), so a snapshot never sees half an update. What training pays is one copy of each tensor that
//! is updated before it has been written, and the snapshot lets go of every tensor as soon as it is. A tensor on another
//! device is copied to main memory here and now.

use super::error::CheckpointError;
use super::folder::{CONFIG, OPTIMIZER, PARAMS, STATE};
use super::layout;
use super::saver::Write;
use super::state::TrainState;
use super::write::{Body, TensorSpec, write_tensors};
use crate::optim::{Moment, Optimizer};
use burn::backend::{BackendTensor, DispatchTensorKind};
use burn::tensor::{DType, Tensor, TensorData};
use burn_flex::FlexTensor;
use mt_model::Params;
use mt_model::tree::{Layout, Tree};
use safetensors::Dtype;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

/// The tensors and the rest of a checkpoint, independent of the trainer.
pub struct Snapshot {
    params: Vec<Array>,
    optimizer: Vec<Array>,
    state: TrainState,
    config_yaml: String,
    metadata: BTreeMap<String, String>,
}

/// One array of the saved tree: `[outer, part, inner]`, with one part for each leaf that it is made of.
struct Array {
    spec: TensorSpec,
    parts: Vec<Host>,
    outer: usize,
}

/// A tensor's bytes in main memory.
enum Host {
    Shared(FlexTensor),
    Copied(TensorData),
}

impl Snapshot {
    /// Takes everything that is saved. `tree` and `layout` say how the layers' parameters are stacked on disk; `config_yaml` is the
    /// resolved configuration.
    ///
    /// # Errors
    /// [`CheckpointError::Tensor`] when a device doesn't give its memory.
    pub fn take(
        params: &Params,
        optimizer: &Optimizer,
        tree: &Tree,
        layout: Layout,
        state: TrainState,
        config_yaml: String,
    ) -> Result<Self, CheckpointError> {
        let leaves: HashMap<String, &Tensor<2>> = params.leaves().into_iter().collect();
        let params = arrays(tree, "", |path| leaves.get(path).copied())?;
        let mut moments = arrays(tree, "mu/", |path| optimizer.moment(Moment::Mu, path))?;
        moments.extend(arrays(tree, "nu/", |path| optimizer.moment(Moment::Nu, path))?);
        moments.extend(optimizer.records().into_iter().map(|(name, values)| Array {
            spec: TensorSpec { name: name.to_owned(), dtype: Dtype::F32, shape: vec![values.len()] },
            parts: vec![Host::Copied(TensorData::from(values))],
            outer: 1,
        }));
        Ok(Self { params, optimizer: moments, state, config_yaml, metadata: layout::metadata(layout) })
    }

    /// Turns the snapshot into the work of writing it, to files of at most `max_file_bytes` where tensors allow.
    pub fn into_write(self, max_file_bytes: u64) -> Write {
        Box::new(move |folder, manifest| {
            for (stem, arrays) in [(PARAMS, self.params), (OPTIMIZER, self.optimizer)] {
                let specs: Vec<TensorSpec> = arrays.iter().map(|array| array.spec.clone()).collect();
                let mut arrays: Vec<Option<Array>> = arrays.into_iter().map(Some).collect();
                let body = |index: usize, body: &mut Body<'_>| {
                    let array = arrays[index].take().expect("every tensor is written once");
                    array.write(body)
                };
                write_tensors(folder, stem, manifest, &self.metadata, &specs, max_file_bytes, body)?;
            }
            let state = serde_json::to_vec_pretty(&self.state).expect("plain data");
            manifest.write_file(folder, STATE, &state)?;
            manifest.write_file(folder, CONFIG, self.config_yaml.as_bytes())
        })
    }
}

/// The arrays of `tree` made of the leaves that `leaf` finds. An array without leaves is left out: what isn't trained has no
/// moments.
fn arrays<'a>(
    tree: &Tree,
    prefix: &str,
    leaf: impl Fn(&str) -> Option<&'a Tensor<2>>,
) -> Result<Vec<Array>, CheckpointError> {
    let mut arrays = Vec::new();
    for entry in tree.entries() {
        let leaves: Vec<&Tensor<2>> = entry.leaves.iter().filter_map(|path| leaf(path)).collect();
        let Some(first) = leaves.first().filter(|_| leaves.len() == entry.leaves.len()) else { continue };
        let name = format!("{prefix}{}", entry.spec.name);
        let spec =
            TensorSpec { dtype: file_dtype(&name, first.dtype())?, shape: entry.spec.shape.clone(), name };
        let parts = leaves.iter().map(|leaf| host(&spec.name, leaf)).collect::<Result<_, _>>()?;
        arrays.push(Array { spec, parts, outer: entry.outer });
    }
    Ok(arrays)
}

fn host(name: &str, tensor: &Tensor<2>) -> Result<Host, CheckpointError> {
    if let DispatchTensorKind::Flex(BackendTensor::Float(tensor)) = tensor.clone().into_dispatch().kind {
        return Ok(Host::Shared(tensor.to_contiguous()));
    }
    let data = tensor.clone().try_into_data();
    data.map(Host::Copied).map_err(|error| device_error(name, error.to_string()))
}

fn device_error(name: &str, reason: String) -> CheckpointError {
    CheckpointError::tensor(&PathBuf::from("the device"), name, reason)
}

fn file_dtype(name: &str, dtype: DType) -> Result<Dtype, CheckpointError> {
    match dtype {
        DType::F32 => Ok(Dtype::F32),
        DType::BF16 => Ok(Dtype::BF16),
        DType::F16 => Ok(Dtype::F16),
        other => Err(device_error(name, format!("{other:?} isn't a type of parameters"))),
    }
}

impl Array {
    /// Hands over the bytes, the parts interleaved.
    fn write(self, body: &mut Body<'_>) -> Result<(), CheckpointError> {
        let parts: Vec<&[u8]> = self.parts.iter().map(Host::bytes).collect();
        let inner = self.spec.num_bytes() as usize / (self.outer * parts.len());
        for block in 0..self.outer {
            for part in &parts {
                body.write(&part[block * inner..][..inner])?;
            }
        }
        Ok(())
    }
}

impl Host {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Shared(tensor) => {
                let start = tensor.layout().start_offset() * tensor.dtype().size();
                &tensor.bytes()[start..]
            }
            Self::Copied(data) => data.bytes(),
        }
    }
}
