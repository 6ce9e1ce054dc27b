//! Shared helpers of the benches.

pub mod criterion_files;
pub mod lab;
pub mod machine;
pub mod peer;
pub mod report;

use std::collections::BTreeMap;
use std::error::Error;

use mt_config::{Config, LoadArgs};
use mt_model::batch::Rows;
use mt_model::{BatchTensors, Model};

/// The model of the benches of a step: a Llama with 4 layers, rows of 512 tokens.
pub const STEP_MODEL: [(&str, &str); 8] = [
    ("decoder_block", "llama2"),
    ("base_emb_dim", "512"),
    ("base_mlp_dim", "1408"),
    ("base_num_query_heads", "8"),
    ("base_num_kv_heads", "4"),
    ("head_dim", "64"),
    ("base_num_decoder_layers", "4"),
    ("vocab_size", "32000"),
];

/// A configuration on synthetic data from keys alone.
pub fn config(keys: &[&[(&str, &str)]]) -> Result<Config, Box<dyn Error>> {
    let always = [("run_name", "bench"), ("dataset_type", "synthetic")];
    let keys = always.iter().chain(keys.iter().copied().flatten());
    let overrides = keys.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Ok(mt_config::load(&LoadArgs { config_path: None, overrides, env: BTreeMap::new() })?)
}

/// `batch` rows of `seq` tokens, every row one document.
pub fn whole_rows(model: &Model, batch: usize, seq: usize) -> Result<BatchTensors, Box<dyn Error>> {
    let tokens: Vec<i32> =
        (0..batch * seq + 1).map(|i| (i * 7919 % model.config().vocab_size) as i32).collect();
    let positions: Vec<i32> = (0..batch).flat_map(|_| 0..seq as i32).collect();
    let segments = vec![1; batch * seq];
    let rows = Rows {
        batch_size: batch,
        seq_len: seq,
        inputs: &tokens[..batch * seq],
        inputs_segmentation: &segments,
        inputs_position: &positions,
        targets: &tokens[1..],
        targets_segmentation: &segments,
    };
    Ok(BatchTensors::new(&rows, model.config(), &model.device())?)
}

/// Rounds that a bench without criterion is to run: the number among the arguments, or `default`. `None` when there are arguments that
/// are none: filters and options for `kernels`, since `cargo bench` hands all arguments to all benches.
pub fn rounds(default: usize) -> Option<usize> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.as_slice() {
        [] => Some(default),
        [rounds] => rounds.parse().ok(),
        _ => None,
    }
}

/// The Python that runs the peers: `$PYTHON`, else `python3`.
pub fn python() -> String {
    std::env::var("PYTHON").unwrap_or_else(|_| "python3".into())
}

/// The middle one; NaN of nothing.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Largest resident set of this process so far, in MiB; NaN where the system doesn't tell.
pub fn peak_rss_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kilobytes.unwrap_or(f64::NAN) / 1024.0
}
