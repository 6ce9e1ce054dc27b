//! Tests of the files and folders; those of what is in them are in `tests/checkpoints.rs`.

mod crash;
mod files;
mod folder;
mod hostile;
mod ranks;
mod saver;

use super::*;
use safetensors::Dtype;
use std::collections::BTreeMap;
use std::path::Path;

/// Tensors of several types and shapes, and the bytes of each.
fn some_tensors(seed: u8) -> Vec<(TensorSpec, Vec<u8>)> {
    let tensor = |name: &str, dtype: Dtype, shape: &[usize]| {
        let spec = TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec() };
        let bytes = (0..spec.num_bytes()).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect();
        (spec, bytes)
    };
    vec![
        tensor("token_embedder/embedding", Dtype::F32, &[16, 4]),
        tensor("decoder/layers/mlp/wo/kernel", Dtype::BF16, &[3, 2, 5]),
        tensor("decoder/decoder_norm/scale", Dtype::F32, &[4]),
        tensor("empty", Dtype::F32, &[0, 4]),
        tensor("scalar", Dtype::F32, &[]),
    ]
}

fn write_some(
    folder: &Path,
    manifest: &mut Manifest,
    seed: u8,
    max_file_bytes: u64,
) -> Result<(), CheckpointError> {
    let tensors = some_tensors(seed);
    let specs: Vec<_> = tensors.iter().map(|(spec, _)| spec.clone()).collect();
    let metadata = BTreeMap::from([("scan_layers".to_owned(), "true".to_owned())]);
    write_tensors(folder, "model", manifest, &metadata, &specs, max_file_bytes, |index, body| {
        tensors[index].1.chunks(7).try_for_each(|piece| body.write(piece))
    })
}

/// A whole checkpoint of `step`: tensors over several files, and a state.
fn commit_some(folder: &CheckpointFolder, step: u64) -> Result<(), CheckpointError> {
    let work = move |path: &Path, manifest: &mut Manifest| {
        write_some(path, manifest, step as u8, 200)?;
        let state = serde_json::to_vec(&some_state(step)).unwrap();
        manifest.write_file(path, "state.json", &state)
    };
    folder.commit(step, work).map(drop)
}

fn some_state(step: u64) -> TrainState {
    TrainState {
        step,
        identity: Identity::default().with("emb_dim", 64).with("max_target_length", 32),
        optimizer: serde_json::json!({ "count": step + 1 }),
        data: serde_json::json!({ "row": 17 }),
        rng: serde_json::Value::Null,
        config_hash: "abc".to_owned(),
    }
}

/// Asserts that the checkpoint of `step` is whole and has the bytes of that step.
fn assert_whole(folder: &CheckpointFolder, step: u64) {
    let checkpoint = Checkpoint::open(&folder.path().join(step.to_string())).unwrap();
    assert_eq!(checkpoint.state, some_state(step));
    let files = checkpoint.params().unwrap();
    for (spec, bytes) in some_tensors(step as u8) {
        assert_eq!(files.read(&spec.name).unwrap(), bytes, "{}", spec.name);
    }
}
