//! A folder of Hugging Face's into parameters and a configuration of ours.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use mt_config::{Config, LoadArgs};
use mt_model::tree::{Entry, Layout, Tree};
use safetensors::Dtype;

use super::architecture::HfConfig;
use super::error::ConvertError;
use super::folder;
use super::mapping::{Weight, weights};
use crate::checkpoint::{Body, CheckpointError, Manifest, TensorFiles, TensorSpec, layout, write_tensors};

/// Converts the folder `source` to the folder `target`: `model.safetensors` in MaxText's tree, `config.yml` and the tokenizer's files.
/// `overrides` are keys for config.yml; `scan_layers` and `param_scan_axis` shape the tree.
///
/// # Errors
/// [`ConvertError`]; then `target` doesn't exist.
pub fn from_hf(source: &Path, target: &Path, overrides: &[(String, String)]) -> Result<Config, ConvertError> {
    let keys = HfConfig::read(&source.join("config.json"))?.keys()?;
    let keys = keys.into_iter().map(|(key, value)| (key.to_owned(), value)).chain(overrides.iter().cloned());
    let keys: Vec<(String, String)> = keys.collect();
    let config =
        mt_config::load(&LoadArgs { config_path: None, overrides: keys.clone(), env: BTreeMap::new() })?;
    let model = config.model();
    let files = TensorFiles::open(source, "model")?;
    let weights = weights(&model);
    check(&files, &weights, model.logits_via_embedding)?;

    let layout = Layout { scan_layers: model.scan_layers, param_scan_axis: model.param_scan_axis };
    let tree = Tree::with_layout(&model, layout);
    let by_path: HashMap<&str, &Weight> =
        weights.iter().map(|weight| (weight.ours.as_str(), weight)).collect();
    let arrays =
        tree.entries().map(|entry| Array::new(entry, &by_path, &files)).collect::<Result<Vec<_>, _>>()?;
    let specs: Vec<TensorSpec> = arrays.iter().map(|array| array.spec.clone()).collect();

    folder::create(target, |unfinished| {
        let limit = config.checkpoint_storage_target_data_file_size_bytes;
        let body = |index: usize, body: &mut Body<'_>| arrays[index].write(&files, body);
        write_tensors(
            unfinished,
            "model",
            &mut Manifest::new(0),
            &layout::metadata(layout),
            &specs,
            limit,
            body,
        )?;
        let has_tokenizer = folder::copy_tokenizer(source, unfinished)?;
        folder::write_file(unfinished, "config.yml", &config_text(&keys, target, has_tokenizer))?;
        Ok(())
    })?;
    Ok(config)
}

/// The keys as YAML, with where parameters and tokenizer are.
fn config_text(keys: &[(String, String)], target: &Path, has_tokenizer: bool) -> String {
    let target = std::path::absolute(target).unwrap_or_else(|_| target.to_path_buf());
    let quoted = format!("'{}'", target.display().to_string().replace('\'', "''"));
    let mut text = String::from("# Written by mt-convert; the model as its config.json describes it.\n");
    let last: BTreeMap<&str, &str> = keys.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let mut seen = Vec::new();
    for (key, _) in keys.iter().filter(|(key, _)| key != "load_parameters_path") {
        if !seen.contains(&key) {
            text.push_str(&format!("{key}: {}\n", scalar(last[key.as_str()])));
            seen.push(key);
        }
    }
    text.push_str(&format!("load_parameters_path: {quoted}\n"));
    if has_tokenizer && !last.contains_key("tokenizer_path") {
        text.push_str(&format!("tokenizer_type: huggingface\ntokenizer_path: {quoted}\n"));
    }
    text
}

/// A value as YAML: quoted where it could be read as something else.
fn scalar(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./+-[], ".contains(c);
    match !value.is_empty() && value.chars().all(is_plain) {
        true => value.to_owned(),
        false => format!("'{}'", value.replace('\'', "''")),
    }
}

/// Every tensor of the model is there in its shape, and nothing else is.
fn check(files: &TensorFiles, weights: &[Weight], tied: bool) -> Result<(), ConvertError> {
    for weight in weights {
        let Some(info) = files.info(&weight.theirs) else { continue }; // reading it will say so, with the nearest name
        if info.shape != weight.shape {
            let reason = format!("its shape is {:?}, config.json makes it {:?}", info.shape, weight.shape);
            return Err(CheckpointError::tensor(files.path(), &weight.theirs, reason).into());
        }
        if !matches!(info.dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16) {
            let reason = format!("its type is {:?}, expected F32, BF16 or F16", info.dtype);
            return Err(CheckpointError::tensor(files.path(), &weight.theirs, reason).into());
        }
    }
    if let Some(missing) = weights.iter().find(|weight| files.info(&weight.theirs).is_none()) {
        return Err(files.missing(&missing.theirs).into());
    }
    let is_known = |name: &str| {
        // Constants that old exports carry along, and the copy of a tied head.
        name.ends_with("rotary_emb.inv_freq")
            || (tied && name == "lm_head.weight")
            || weights.iter().any(|weight| weight.theirs == name)
    };
    match files.names().find(|name| !is_known(name)) {
        None => Ok(()),
        Some(name) => {
            let reason = "this architecture has no such parameter";
            Err(CheckpointError::tensor(files.path(), name, reason).into())
        }
    }
}

/// An array of our tree and the tensors that it is made of.
struct Array<'a> {
    spec: TensorSpec,
    outer: usize,
    parts: Vec<&'a Weight>,
}

impl<'a> Array<'a> {
    fn new(
        entry: &Entry,
        by_path: &HashMap<&str, &'a Weight>,
        files: &TensorFiles,
    ) -> Result<Self, ConvertError> {
        let parts: Vec<&Weight> = entry.leaves.iter().map(|path| by_path[path.as_str()]).collect();
        let ours = |weight: &Weight| -> Option<Dtype> {
            Some(weight.transform.our_dtype(files.info(&weight.theirs)?.dtype))
        };
        // Layers in several element types: the widest holds them all.
        let dtype = parts.iter().filter_map(|weight| ours(weight)).max_by_key(|dtype| dtype.bitsize());
        let dtype = dtype.ok_or_else(|| files.missing(&parts[0].theirs))?;
        let mixes_halves = parts.iter().any(|weight| ours(weight) != Some(dtype) && dtype.bitsize() == 16);
        let dtype = if mixes_halves { Dtype::F32 } else { dtype };
        let spec = TensorSpec { name: entry.spec.name.clone(), dtype, shape: entry.spec.shape.clone() };
        Ok(Self { spec, outer: entry.outer, parts })
    }

    fn write(&self, files: &TensorFiles, body: &mut Body<'_>) -> Result<(), CheckpointError> {
        let parts = self.parts.iter().map(|weight| {
            let bytes = files.read(&weight.theirs)?;
            let dtype = files.info(&weight.theirs).map_or(Dtype::F32, |info| info.dtype);
            Ok(weight.transform.import(bytes, dtype, self.spec.dtype))
        });
        let parts = parts.collect::<Result<Vec<Vec<u8>>, CheckpointError>>()?;
        let inner = parts[0].len() / self.outer;
        for block in 0..self.outer {
            for part in &parts {
                body.write(&part[block * inner..][..inner])?;
            }
        }
        Ok(())
    }
}
