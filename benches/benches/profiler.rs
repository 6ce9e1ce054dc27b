//! What recording a profile costs: steps with and without it, in turns. `cargo bench -p benches --bench profiler [-- ROUNDS]`
//!
//! The model is the quick start's, whose operations are short, so that spans weigh more than in any real run: forward and
//! backward of 4 layers, emb 128, on 16 rows of 256 tokens.

use std::error::Error;
use std::time::Instant;

use benches::{config, median, rounds, whole_rows};
use burn::tensor::Device;
use mt_model::scan::Gradients;
use mt_model::{Model, profile};

const BATCH: usize = 16;
const SEQ: usize = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let Some(rounds) = rounds(40) else { return Ok(()) };
    let keys = [
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
    ];
    let config = config(&[&keys])?.model();
    let model = Model::new(config, &Device::flex());
    let batch = whole_rows(&model, BATCH, SEQ)?;
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
