//! Checkpoints of quantized weights: written once, loaded without the float ones (`save_quantized_params_path`,
//! `checkpoint_is_quantized`).
//!
//! A folder with `model.safetensors`. Every layer has its own tensors; a kernel of integers is `<path>` in int8, `[in, bytes of a row]`,
//! with `<path>_scale` in float32, `[out]`; int4 has two integers to a byte. The rest is in the type in which it is multiplied.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{DType, Device, Shape, Tensor, TensorData};
use mt_config::Config;
use mt_model::decode::{Bits, Decoder, Integers, StoredWeight};
use safetensors::Dtype;

use super::DecodeError;
use crate::checkpoint::{
    Body, CheckpointError, Manifest, TensorFiles, TensorSpec, find_params, write_tensors,
};
use crate::convert::create_folder;

const QUANTIZATION: &str = "quantization";

/// Writes the weights of `decoder` to the folder `save_quantized_params_path`, whole or not at all.
pub(super) fn save(config: &Config, decoder: &Decoder) -> Result<(), DecodeError> {
    let target = Path::new(&config.save_quantized_params_path);
    let mut tensors: Vec<(TensorSpec, Vec<u8>)> = Vec::new();
    for (name, weight) in decoder.weights() {
        match weight {
            StoredWeight::Float(tensor) => {
                let (dtype, shape) = (float_dtype(tensor.dtype()), tensor.dims().to_vec());
                let data = tensor.try_into_data().map_err(|error| {
                    CheckpointError::tensor(target, &name, format!("the device doesn't give it: {error}"))
                })?;
                tensors.push((TensorSpec { name, dtype, shape }, data.bytes().to_vec()));
            }
            StoredWeight::Integers(integers) => {
                let (values, scales) = integers.parts();
                let shape = vec![integers.dims()[0], values.len() / integers.dims()[0].max(1)];
                let bytes = values.iter().map(|&value| value as u8).collect();
                let scale = TensorSpec {
                    name: format!("{name}_scale"),
                    dtype: Dtype::F32,
                    shape: vec![scales.len()],
                };
                tensors.push((TensorSpec { name, dtype: Dtype::I8, shape }, bytes));
                tensors.push((scale, scales.iter().flat_map(|scale| scale.to_le_bytes()).collect()));
            }
        }
    }
    let specs: Vec<TensorSpec> = tensors.iter().map(|(spec, _)| spec.clone()).collect();
    let metadata = BTreeMap::from([(QUANTIZATION.to_owned(), name_of(config))]);
    create_folder(target, |folder| {
        let body = |index: usize, body: &mut Body<'_>| body.write(&tensors[index].1);
        let limit = config.checkpoint_storage_target_data_file_size_bytes;
        Ok(write_tensors(folder, "model", &mut Manifest::new(0), &metadata, &specs, limit, body)?)
    })?;
    Ok(())
}

/// The decoder of the quantized weights that `load_parameters_path` names.
pub(super) fn load(config: &Config, device: &Device) -> Result<Decoder, DecodeError> {
    let files = find_params(Path::new(&config.load_parameters_path))?;
    eprintln!("restoring quantized params from {}", files.path().display());
    let found = files.metadata(QUANTIZATION).unwrap_or("none");
    if found != name_of(config) {
        let reason = format!("its quantization is {found}, the configuration's {}", name_of(config));
        return Err(CheckpointError::NotACheckpoint { path: files.path().to_path_buf(), reason }.into());
    }
    Ok(Decoder::from_weights(config.model(), |name, dims, bits| match bits {
        None => float(&files, name, dims, device),
        Some(bits) => integers(&files, name, dims, bits),
    })?)
}

fn float(
    files: &TensorFiles,
    name: &str,
    dims: [usize; 2],
    device: &Device,
) -> Result<StoredWeight, CheckpointError> {
    let dtype = match check(files, name, &dims)? {
        Dtype::F32 => DType::F32,
        Dtype::BF16 => DType::BF16,
        Dtype::F16 => DType::F16,
        other => return Err(wrong(files, name, format!("its type is {other:?}, expected F32, BF16 or F16"))),
    };
    let data = TensorData::from_bytes_vec(files.read(name)?, Shape::from(dims), dtype);
    Ok(StoredWeight::Float(Tensor::from_data(data, (device, dtype))))
}

fn integers(
    files: &TensorFiles,
    name: &str,
    dims: [usize; 2],
    bits: Bits,
) -> Result<StoredWeight, CheckpointError> {
    let scale = format!("{name}_scale");
    for (name, shape, expected) in
        [(name, &Integers::stored_dims(bits, dims)[..], Dtype::I8), (&scale, &dims[1..], Dtype::F32)]
    {
        let found = check(files, name, shape)?;
        if found != expected {
            return Err(wrong(files, name, format!("its type is {found:?}, expected {expected:?}")));
        }
    }
    let values = files.read(name)?.into_iter().map(|byte| byte as i8).collect();
    let scales =
        files.read(&scale)?.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let weight = Integers::from_parts(bits, dims, values, scales);
    weight
        .map(StoredWeight::Integers)
        .ok_or_else(|| wrong(files, name, "its bytes don't make a matrix".to_owned()))
}

/// The type of a tensor that is there in this shape.
fn check(files: &TensorFiles, name: &str, shape: &[usize]) -> Result<Dtype, CheckpointError> {
    let info = files.info(name).ok_or_else(|| files.missing(name))?;
    match info.shape == shape {
        true => Ok(info.dtype),
        false => {
            Err(wrong(files, name, format!("its shape is {:?}, the model expects {shape:?}", info.shape)))
        }
    }
}

fn wrong(files: &TensorFiles, name: &str, reason: String) -> CheckpointError {
    CheckpointError::tensor(files.path(), name, reason)
}

fn float_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::BF16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        _ => Dtype::F32,
    }
}

fn name_of(config: &Config) -> String {
    let is_int4 = config.quantization == mt_config::Quantization::Int4w;
    (if is_int4 { "int4w" } else { "int8w" }).to_owned()
}
