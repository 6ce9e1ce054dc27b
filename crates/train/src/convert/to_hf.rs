//! Parameters of ours into a folder that Hugging Face's tools open.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use mt_config::{Config, LoadArgs};
use mt_model::tree::{Entry, Layout, Tree};
use safetensors::Dtype;
use serde_json::Value;

use super::architecture::HfConfig;
use super::error::ConvertError;
use super::folder;
use super::mapping::{Weight, weights};
use super::transform::has_infinity;
use crate::checkpoint::{
    Body, CheckpointError, Manifest, TensorFiles, TensorSpec, find_params, layout, write_tensors,
};

/// Files of Hugging Face's are at most so large.
const MAX_FILE_BYTES: u64 = 5_000_000_000;

/// What can be chosen.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Element type of all tensors; none for that of the embedding table.
    pub dtype: Option<Dtype>,
    /// The run's configuration, if none lies beside the tensors.
    pub config: Option<PathBuf>,
    /// A folder of Hugging Face's that lends the tokenizer and what config.json says beyond the model's shape.
    pub like: Option<PathBuf>,
}

/// Converts `source` (a run's folder, a folder of checkpoints, a checkpoint, or what [`from_hf`](super::from_hf) made) to the folder
/// `target`: `model.safetensors` or its shards, config.json, generation_config.json and the tokenizer's files.
///
/// # Errors
/// [`ConvertError`]; then `target` doesn't exist.
pub fn to_hf(source: &Path, target: &Path, options: &Options) -> Result<(), ConvertError> {
    let checkpoints = source.join("checkpoints");
    let files = find_params(if checkpoints.is_dir() { &checkpoints } else { source })?;
    let config = config(source, &files, options)?;
    let model = config.model();
    let expected = Layout { scan_layers: model.scan_layers, param_scan_axis: model.param_scan_axis };
    let tree = Tree::with_layout(&model, layout::of_files(&files, model.num_decoder_layers, expected));
    let weights = weights(&model);
    let by_path: HashMap<&str, &Weight> =
        weights.iter().map(|weight| (weight.ours.as_str(), weight)).collect();
    for entry in tree.entries() {
        check(&files, entry)?;
    }
    let dtype = match options.dtype {
        Some(dtype) => dtype,
        None => dtype_of(&files, mt_model::params::EMBEDDING)?,
    };
    let tensors: Vec<Tensor> = tree.entries().flat_map(|entry| Tensor::of(entry, &by_path, dtype)).collect();
    let specs: Vec<TensorSpec> = tensors.iter().map(|tensor| tensor.spec.clone()).collect();

    let name = match dtype {
        Dtype::BF16 => "bfloat16",
        Dtype::F16 => "float16",
        _ => "float32",
    };
    let described = HfConfig::of_model(&model, config.max_target_length, name)?;
    let values = match &options.like {
        Some(like) => described.merged_into(HfConfig::read(&like.join("config.json"))?.into_values()),
        None => described.into_values(),
    };
    let ids: serde_json::Map<String, Value> = ["bos_token_id", "eos_token_id", "pad_token_id"]
        .into_iter()
        .filter_map(|key| Some((key.to_owned(), values.get(key)?.clone())))
        .collect();

    folder::create(target, |unfinished| {
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        let mut array = Cache::default();
        let body = |index: usize, body: &mut Body<'_>| {
            let tensor = &tensors[index];
            let bytes = array.part(&files, tensor)?;
            let from = dtype_of(&files, &tensor.entry.spec.name)?;
            let was_finite = dtype == Dtype::F16 && from != dtype && !has_infinity(&bytes, from);
            let exported = tensor.weight.transform.export(bytes, from, dtype);
            if was_finite && has_infinity(&exported, dtype) {
                let reason = "it has values beyond float16; take --dtype bfloat16 or float32";
                return Err(CheckpointError::tensor(files.path(), &tensor.entry.spec.name, reason));
            }
            body.write(&exported)
        };
        write_tensors(unfinished, "model", &mut Manifest::new(0), &metadata, &specs, MAX_FILE_BYTES, body)?;
        folder::write_file(unfinished, "config.json", &format!("{:#}\n", Value::Object(values)))?;
        folder::write_file(unfinished, "generation_config.json", &format!("{:#}\n", Value::Object(ids)))?;
        for place in [options.like.as_deref(), Some(files.path()), Some(Path::new(&config.tokenizer_path))] {
            if let Some(place) = place.filter(|place| place.is_dir()) {
                folder::copy_tokenizer(place, unfinished)?;
            }
        }
        Ok(())
    })
}

fn config(source: &Path, files: &TensorFiles, options: &Options) -> Result<Config, ConvertError> {
    let beside = [source, files.path()].map(|folder| folder.join("config.yml"));
    let found = options.config.clone().or_else(|| beside.into_iter().find(|path| path.is_file()));
    let path = found.ok_or_else(|| ConvertError::NoConfig { path: source.to_path_buf() })?;
    Ok(mt_config::load(&LoadArgs { config_path: Some(path), overrides: Vec::new(), env: BTreeMap::new() })?)
}

fn dtype_of(files: &TensorFiles, name: &str) -> Result<Dtype, CheckpointError> {
    files.info(name).map(|info| info.dtype).ok_or_else(|| files.missing(name))
}

fn check(files: &TensorFiles, entry: &Entry) -> Result<(), CheckpointError> {
    let name = &entry.spec.name;
    let info = files.info(name).ok_or_else(|| files.missing(name))?;
    if info.shape != entry.spec.shape {
        let reason =
            format!("its shape is {:?}, the configuration makes it {:?}", info.shape, entry.spec.shape);
        return Err(CheckpointError::tensor(files.path(), name, reason));
    }
    match info.dtype {
        Dtype::F64 | Dtype::F32 | Dtype::BF16 | Dtype::F16 => Ok(()),
        other => {
            let reason = format!("its type is {other:?}, expected F64, F32, BF16 or F16");
            Err(CheckpointError::tensor(files.path(), name, reason))
        }
    }
}

/// A tensor to write: part of an array of ours.
struct Tensor<'a> {
    spec: TensorSpec,
    weight: &'a Weight,
    entry: &'a Entry,
    part: usize,
}

impl<'a> Tensor<'a> {
    fn of(entry: &'a Entry, by_path: &HashMap<&str, &'a Weight>, dtype: Dtype) -> Vec<Self> {
        let tensor = |(part, path): (usize, &String)| {
            let weight = by_path[path.as_str()];
            let spec = TensorSpec { name: weight.theirs.clone(), dtype, shape: weight.shape.clone() };
            Self { spec, weight, entry, part }
        };
        entry.leaves.iter().enumerate().map(tensor).collect()
    }
}

/// The array read last: its parts are written one after the other.
#[derive(Default)]
struct Cache {
    name: String,
    bytes: Vec<u8>,
}

impl Cache {
    /// The bytes of one part, cut out of `[outer, part, inner]`.
    fn part(&mut self, files: &TensorFiles, tensor: &Tensor<'_>) -> Result<Vec<u8>, CheckpointError> {
        let (entry, name) = (tensor.entry, &tensor.entry.spec.name);
        if self.name != *name {
            self.bytes = Vec::new();
            self.bytes = files.read(name)?;
            self.name.clone_from(name);
        }
        let parts = entry.leaves.len();
        if parts == 1 {
            self.name.clear();
            return Ok(std::mem::take(&mut self.bytes));
        }
        let inner = self.bytes.len() / (entry.outer * parts);
        let piece = |block: usize| &self.bytes[(block * parts + tensor.part) * inner..][..inner];
        Ok((0..entry.outer).flat_map(piece).copied().collect())
    }
}
