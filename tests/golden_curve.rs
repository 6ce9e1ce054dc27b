//! A loss curve of MaxText's, from its parameters and documents, through the binary and a YAML file. The vectors lie beside the
//! repository; where they don't, the test skips itself.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

#[allow(dead_code, reason = "shared with the tests of the model, which need more of it")]
#[path = "../crates/model/tests/support/npz.rs"]
mod npz;

use std::collections::BTreeMap;
use std::path::Path;

use common::Bench;
use npz::{Npz, golden};
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};

/// MaxText's own, from tests/reference/maxtext_curve.py.
const LOSSES: [f64; 20] = [
    6.181753, 6.181753, 4.090190, 2.297034, 1.256773, 0.715892, 0.460845, 0.347987, 0.291840, 0.260806,
    0.243212, 0.232332, 0.225215, 0.220607, 0.217586, 0.215491, 0.213982, 0.212899, 0.212120, 0.211526,
];

/// The parameters of the vectors as a safetensors file, under MaxText's names.
fn write_parameters(vectors: &Npz, path: &Path) {
    let arrays: BTreeMap<&str, (Vec<usize>, Vec<u8>)> = vectors
        .under("param0/")
        .map(|(name, array)| {
            let bytes = array.values.iter().flat_map(|value| value.to_le_bytes()).collect();
            (name, (array.shape.clone(), bytes))
        })
        .collect();
    let view =
        |(name, (shape, bytes))| (name, TensorView::new(Dtype::F32, Vec::clone(shape), bytes).unwrap());
    serialize_to_file(arrays.iter().map(|(name, array)| view((*name, (&array.0, &array.1)))), None, path)
        .unwrap();
}

/// The documents of the vectors' batch as rows of token ids: what the packer has to put together again.
fn write_documents(vectors: &Npz, path: &Path) {
    let [inputs, segments] =
        ["inputs", "inputs_segmentation"].map(|name| vectors.integers(&format!("data/{name}")));
    let mut documents: Vec<Vec<i32>> = Vec::new();
    for row in 0..2 {
        let tokens = (row * 32..(row + 1) * 32).filter(|&t| segments[t] != 0).collect::<Vec<_>>();
        documents.extend(
            tokens
                .chunk_by(|&a, &b| segments[a] == segments[b])
                .map(|run| run.iter().map(|&t| inputs[t]).collect()),
        );
    }
    assert_eq!(documents.iter().map(Vec::len).collect::<Vec<_>>(), [10, 14, 5, 7, 9, 16]);
    let lines: String = documents.iter().map(|ids| format!("{{\"ids\": {ids:?}}}\n")).collect();
    std::fs::write(path, lines).unwrap();
}

#[test]
fn twenty_steps_follow_maxtexts_curve() {
    let Some(path) = golden("model_scan_axis1.npz") else { return };
    let vectors = Npz::open(&path);
    let bench = Bench::new();
    let [parameters, documents] = ["golden.safetensors", "documents.jsonl"].map(|name| bench.path(name));
    write_parameters(&vectors, &parameters);
    write_documents(&vectors, &documents);
    let documents = documents.display().to_string();
    let keys = [
        ("load_parameters_path", parameters.to_str().unwrap()),
        ("base_emb_dim", "64"),
        ("base_num_query_heads", "4"),
        ("base_num_kv_heads", "2"),
        ("base_mlp_dim", "128"),
        ("vocab_size", "256"),
        ("rope_max_timescale", "500000"),
        ("normalization_layer_epsilon", "1e-5"),
        ("dataset_type", "hf"),
        ("hf_path", "json"),
        ("hf_train_files", &documents),
        ("train_data_columns", "ids"),
        ("tokenize_train_data", "false"),
        ("add_bos", "false"),
        ("add_eos", "false"),
        ("enable_data_shuffling", "false"),
        ("num_epoch", "100"),
        ("reuse_example_batch", "1"),
        ("steps", "20"),
        ("warmup_steps_fraction", "0.1"),
        ("learning_rate", "1e-2"),
        ("adam_b2", "0.95"),
        ("adam_weight_decay", "0.1"),
        ("gradient_clipping_threshold", "1.0"),
    ];
    let bench = keys.into_iter().fold(bench, |bench, (key, value)| bench.with(key, value));
    bench.run(&[]).expect(0);

    let metrics = bench.metrics();
    assert_eq!(metrics.len(), 20);
    let series =
        |name: &str| -> Vec<f64> { metrics.values().map(|line| line[name].as_f64().unwrap()).collect() };
    for (step, (found, expected)) in series("learning/loss").into_iter().zip(LOSSES).enumerate() {
        assert!(
            (found - expected).abs() < 2e-5 * expected.max(1.0),
            "step {step}: {found}, MaxText's is {expected}"
        );
    }
    assert!(series("learning/total_weights").iter().all(|&weights| weights == 55.0));
    let of_maxtext = [
        ("loss", "learning/loss", 1e-5),
        ("raw_grad_norm", "learning/raw_grad_norm", 1e-4),
        ("grad_norm", "learning/grad_norm", 1e-4),
        ("param_norm", "learning/param_norm", 1e-4),
        ("lr", "learning/current_learning_rate", 1e-9),
    ];
    for (theirs, ours, bound) in of_maxtext {
        let expected = &vectors.get(&format!("steps/{theirs}")).values;
        for (step, (found, &expected)) in series(ours).into_iter().zip(expected).enumerate() {
            let off = (found - f64::from(expected)).abs();
            assert!(
                off < bound * f64::from(expected).max(1.0),
                "{ours} of step {step} is {found}, MaxText's {expected}"
            );
        }
    }
}
