//! What recording a profile costs: steps with and without it, in turns. `cargo bench -p benches --bench profiler [-- ROUNDS]`
//!
//! The model is the quick start's, whose operations are short, so that spans weigh more than in any real run: forward and
//! backward of 4 layers, emb 128, on 16 rows of 256 tokens.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Instant;

use benches::median;
use burn::tensor::Device;
use mt_config::LoadArgs;
use mt_model::batch::Rows;
use mt_model::scan::Gradients;
use mt_model::{BatchTensors, Model, profile};

const BATCH: usize = 16;
const SEQ: usize = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(40);
    let settings = [
        ("decoder_block", "llama2"),
        ("base_emb_dim", "128"),
        ("base_mlp_dim", "384"),
        ("base_num_query_heads", "4"),
        ("base_num_kv_heads", "2"),
        ("head_dim", "32"),
        ("base_num_decoder_layers", "4"),
        ("vocab_size", "259"),
        ("max_target_length", "256"),
        ("dtype", "float32"),
        ("dataset_type", "synthetic"),
        ("run_name", "bench"),
    ];
    let overrides = settings.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    let config = mt_config::load(&LoadArgs { config_path: None, overrides, env: BTreeMap::new() })?.model();
    let model = Model::new(config, &Device::flex());
    let tokens: Vec<i32> = (0..BATCH * SEQ + 1).map(|i| (i * 7919 % 259) as i32).collect();
    let positions: Vec<i32> = (0..BATCH).flat_map(|_| 0..SEQ as i32).collect();
    let segments = vec![1; BATCH * SEQ];
    let rows = Rows {
        batch_size: BATCH,
        seq_len: SEQ,
        inputs: &tokens[..BATCH * SEQ],
        inputs_segmentation: &segments,
        inputs_position: &positions,
        targets: &tokens[1..],
        targets_segmentation: &segments,
    };
    let batch = BatchTensors::new(&rows, model.config(), &model.device())?;
    let step = || {
        let start = Instant::now();
        std::hint::black_box(model.loss_and_gradients(
            &batch,
            batch.mean_factor(),
            &mut Gradients::default(),
        ));
        start.elapsed().as_secs_f64()
    };
    step();
    let (mut with, mut without, mut events) = (Vec::new(), Vec::new(), 0);
    for _ in 0..rounds {
        without.push(step());
        profile::start();
        with.push(step());
        events = profile::stop().len();
    }
    let (with, without) = (median(with), median(without));
    println!(
        "a step without a recording {:.2} ms, with {:.2} ms ({events} spans)",
        1e3 * without,
        1e3 * with
    );
    println!("ratio: {:.3}", with / without);
    Ok(())
}
