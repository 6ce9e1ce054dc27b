//! Logits of given tokens, to compare a model with other programs.

use std::path::Path;

use burn::tensor::DType;
use mt_model::batch::Rows;
use mt_model::{BatchTensors, Model};
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize_to_file};

use super::error::EvalError;

/// Reads rows of token ids from the JSON file `tokens`, each row one document, and writes the tensor `logits` `[rows, length,
/// vocabulary]` in float32 to the safetensors file `target`.
///
/// # Errors
/// [`EvalError`]: the rows aren't equally long rows of the model's tokens, or `target` can't be written.
pub fn write_logits(model: &Model, tokens: &Path, target: &Path) -> Result<(), EvalError> {
    let rows = read_rows(tokens)?;
    let (count, length) = (rows.len(), rows[0].len());
    let inputs: Vec<i32> = rows.concat();
    let positions: Vec<i32> = (0..count).flat_map(|_| 0..length as i32).collect();
    let segments = vec![1; inputs.len()];
    let batch = Rows {
        batch_size: count,
        seq_len: length,
        inputs: &inputs,
        inputs_segmentation: &segments,
        inputs_position: &positions,
        targets: &inputs,
        targets_segmentation: &segments,
    };
    let batch = BatchTensors::new(&batch, model.config(), &model.device())?;
    let failed = |reason: String| EvalError::Logits { path: target.to_path_buf(), reason };
    let logits =
        model.logits(&batch).cast(DType::F32).try_into_data().map_err(|error| failed(error.to_string()))?;
    let shape = vec![count, length, model.config().vocab_size];
    let view =
        TensorView::new(Dtype::F32, shape, logits.bytes()).map_err(|error| failed(error.to_string()))?;
    serialize_to_file([("logits", view)], None, target).map_err(|error| failed(error.to_string()))
}

fn read_rows(path: &Path) -> Result<Vec<Vec<i32>>, EvalError> {
    let failed = |reason: String| EvalError::Tokens { path: path.to_path_buf(), reason };
    let text = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    let rows: Vec<Vec<i32>> = serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))?;
    let length = rows.first().map_or(0, Vec::len);
    if length == 0 || rows.iter().any(|row| row.len() != length) {
        return Err(failed("expected a JSON array of equally long arrays of token ids".to_owned()));
    }
    Ok(rows)
}
