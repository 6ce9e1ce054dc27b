//! What a checkpoint holds, taken out of a running trainer.
//!
//! A tensor in main memory is shared, not copied: the optimizer writes into memory that it alone holds and otherwise into a
//! copy of it (copy on write), so a snapshot never sees half an update. What training pays is one copy of each tensor that
//! is updated before it has been written, and the snapshot lets go of every tensor as soon as it is. A tensor on another
//! device is copied to main memory here and now.
//!
//! With several ranks the files of the checkpoint are dealt out among them; a rank takes the arrays of its files, gathered leaf by leaf
//! where the ranks hold shards.

use super::error::CheckpointError;
use super::folder::{CONFIG, OPTIMIZER, PARAMS, STATE};
use super::layout;
use super::saver::Write;
use super::state::TrainState;
use super::write::{Body, FilePlan, TensorSpec, plan_files, write_file, write_index};
use crate::collective::{Collective, Group};
use crate::optim::{Moment, Optimizer};
use crate::shard::whole;
use burn::backend::{BackendTensor, DispatchTensorKind};
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_flex::FlexTensor;
use mt_model::Params;
use mt_model::tree::{Entry, Layout, Tree};
use safetensors::Dtype;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

/// What one rank writes of a checkpoint, independent of the trainer.
pub struct Snapshot {
    stems: Vec<Stem>,
    /// What the first rank alone writes.
    rest: Option<(TrainState, String)>,
    metadata: BTreeMap<String, String>,
}

/// The tensor files of one name.
struct Stem {
    name: &'static str,
    /// All tensors, whoever writes them.
    specs: Vec<TensorSpec>,
    files: Vec<FilePlan>,
    /// Whether this rank writes a file, for each of them.
    mine: Vec<bool>,
    /// The tensors of this rank's files, none for the others.
    arrays: Vec<Option<Array>>,
}

/// A tensor of the checkpoint to be, still in the trainer.
struct Source<'a> {
    spec: TensorSpec,
    leaves: Leaves<'a>,
}

enum Leaves<'a> {
    /// One for each part, and the number of pieces that parts are cut into. Whole, or this rank's shards.
    Tensors(Vec<&'a Tensor<2>>, usize),
    /// The same numbers on every rank.
    Record(&'a [f32]),
}

/// How a checkpoint is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// How the layers' parameters are stacked.
    pub layout: Layout,
    /// Files are at most this large where tensors allow (`checkpoint_storage_target_data_file_size_bytes`).
    pub max_file_bytes: u64,
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
    /// Takes everything that this rank writes; all ranks call it together. `tree` says how the layers' parameters are stacked on
    /// disk, in the layout of `format`; `config_yaml` is the resolved configuration.
    ///
    /// # Errors
    /// [`CheckpointError::Tensor`] when a device doesn't give its memory, [`CheckpointError::Ranks`] when another rank is gone.
    pub fn take(
        params: &Params,
        optimizer: &Optimizer,
        tree: &Tree,
        format: Format,
        state: TrainState,
        config_yaml: String,
        ranks: &dyn Collective,
    ) -> Result<Self, CheckpointError> {
        let leaves: HashMap<String, &Tensor<2>> = params.leaves().into_iter().collect();
        let model = sources(tree, "", |path| leaves.get(path).copied())?;
        let mut moments = sources(tree, "mu/", |path| optimizer.moment(Moment::Mu, path))?;
        moments.extend(sources(tree, "nu/", |path| optimizer.moment(Moment::Nu, path))?);
        moments.extend(optimizer.records().into_iter().map(|(name, values)| Source {
            spec: TensorSpec { name: name.to_owned(), dtype: Dtype::F32, shape: vec![values.len()] },
            leaves: Leaves::Record(values),
        }));

        let all = [(PARAMS, model), (OPTIMIZER, moments)];
        let mut dealer =
            Dealer::new(ranks, all.iter().flat_map(|(_, sources)| sources), format.max_file_bytes);
        let device = params.embedding.device();
        let stems = all
            .into_iter()
            .map(|(name, sources)| Stem::take(name, &sources, &mut dealer, ranks, &device))
            .collect::<Result<_, _>>()?;
        let rest = ranks.mesh().is_first().then_some((state, config_yaml));
        Ok(Self { stems, rest, metadata: layout::metadata(format.layout) })
    }

    /// Turns the snapshot into the work of writing it.
    pub fn into_write(self) -> Write {
        Box::new(move |folder, manifest| {
            for stem in self.stems {
                let Stem { name, specs, files, mine, mut arrays } = stem;
                let mut body = |index: usize, body: &mut Body<'_>| {
                    let array =
                        arrays[index].take().expect("every tensor of this rank's files is there, once");
                    array.write(body)
                };
                for (file, _) in files.iter().zip(mine).filter(|(_, mine)| *mine) {
                    write_file(folder, file, manifest, &self.metadata, &specs, &mut body)?;
                }
                if self.rest.is_some() {
                    write_index(folder, name, manifest, &specs, &files)?;
                }
            }
            let Some((state, config_yaml)) = self.rest else { return Ok(()) };
            let state = serde_json::to_vec_pretty(&state).expect("plain data");
            manifest.write_file(folder, STATE, &state)?;
            manifest.write_file(folder, CONFIG, config_yaml.as_bytes())
        })
    }
}

/// Deals files out: each goes to the rank that has least to write, so that all agree without a word.
struct Dealer {
    max_file_bytes: u64,
    rank: usize,
    /// Bytes that each rank writes.
    loads: Vec<u64>,
}

impl Dealer {
    fn new<'a>(
        ranks: &dyn Collective,
        all: impl Iterator<Item = &'a Source<'a>>,
        max_file_bytes: u64,
    ) -> Self {
        let mesh = ranks.mesh();
        let count = mesh.size(Group::World);
        let bytes: u64 = all.map(|source| source.spec.num_bytes()).sum();
        let share = bytes.div_ceil(count as u64);
        Self { max_file_bytes: max_file_bytes.min(share), rank: mesh.rank, loads: vec![0; count] }
    }

    /// Whether the next file, of so many bytes, is this rank's.
    fn next(&mut self, bytes: u64) -> bool {
        let least = (0..self.loads.len()).min_by_key(|&rank| self.loads[rank]).expect("there is a rank");
        self.loads[least] += bytes;
        least == self.rank
    }
}

impl Stem {
    /// Takes the arrays of this rank's files. A leaf that is cut into shards is gathered by all ranks at a time; one such is whole on
    /// the device, no more.
    fn take(
        name: &'static str,
        sources: &[Source<'_>],
        dealer: &mut Dealer,
        ranks: &dyn Collective,
        device: &Device,
    ) -> Result<Self, CheckpointError> {
        let specs: Vec<TensorSpec> = sources.iter().map(|source| source.spec.clone()).collect();
        let files = plan_files(name, &specs, dealer.max_file_bytes);
        let mine: Vec<bool> = files.iter().map(|file| dealer.next(file.num_bytes(&specs))).collect();
        let mut arrays: Vec<Option<Array>> = sources.iter().map(|_| None).collect();
        for (file, &mine) in files.iter().zip(&mine) {
            for &index in &file.tensors {
                arrays[index] = sources[index].take(mine, ranks, device)?;
            }
        }
        Ok(Self { name, specs, files, mine, arrays })
    }
}

impl Source<'_> {
    /// The array in main memory, if it's wanted here.
    fn take(
        &self,
        wanted: bool,
        ranks: &dyn Collective,
        device: &Device,
    ) -> Result<Option<Array>, CheckpointError> {
        let (leaves, outer) = match &self.leaves {
            Leaves::Tensors(leaves, outer) => (leaves, *outer),
            Leaves::Record(values) => {
                let parts = vec![Host::Copied(TensorData::from(*values))];
                return Ok(wanted.then(|| Array { spec: self.spec.clone(), parts, outer: 1 }));
            }
        };
        let len = self.spec.shape.iter().product::<usize>() / leaves.len();
        let mut parts = Vec::new();
        for leaf in leaves {
            // Moments in main memory take the way of the parameters, on the device.
            let shared = ranks.mesh().size(Group::Fsdp) > 1;
            let leaf = if shared { (*leaf).clone().to_device(device) } else { (*leaf).clone() };
            let whole = whole(ranks, &leaf, [1, len])?;
            if wanted {
                parts.push(host(&self.spec.name, whole)?);
            }
        }
        Ok(wanted.then(|| Array { spec: self.spec.clone(), parts, outer }))
    }
}

/// The arrays of `tree` made of the leaves that `leaf` finds. An array without leaves is left out: what isn't trained has no
/// moments.
fn sources<'a>(
    tree: &Tree,
    prefix: &str,
    leaf: impl Fn(&str) -> Option<&'a Tensor<2>>,
) -> Result<Vec<Source<'a>>, CheckpointError> {
    let source = |entry: &Entry| {
        let leaves: Vec<&Tensor<2>> = entry.leaves.iter().filter_map(|path| leaf(path)).collect();
        let first = leaves.first().filter(|_| leaves.len() == entry.leaves.len())?;
        let name = format!("{prefix}{}", entry.spec.name);
        let spec = file_dtype(&name, first.dtype()).map(|dtype| TensorSpec {
            dtype,
            shape: entry.spec.shape.clone(),
            name,
        });
        Some(spec.map(|spec| Source { spec, leaves: Leaves::Tensors(leaves, entry.outer) }))
    };
    tree.entries().filter_map(source).collect()
}

fn host(name: &str, tensor: Tensor<2>) -> Result<Host, CheckpointError> {
    if let DispatchTensorKind::Flex(BackendTensor::Float(tensor)) = tensor.clone().into_dispatch().kind {
        return Ok(Host::Shared(tensor.to_contiguous()));
    }
    let data = tensor.try_into_data();
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
