//! A few steps of a tiny model, on any grid of ranks.

use burn::tensor::{DType, Device, Tensor};
use mt_config::{Config, LoadArgs};
use mt_data::Batch;
use mt_model::tree::layer_matrices;
use mt_model::{Model, init};
use mt_train::collective::{Collective, Group};
use mt_train::optim::Optimizer;
use mt_train::run::gradients::{MicroBatches, StepError, loss_and_gradients};
use mt_train::run::totals;
use mt_train::shard::{shard_of, whole};

/// What all ranks know after some steps, and what this one moved.
#[derive(Debug, Clone)]
pub struct Run {
    pub losses: Vec<f64>,
    /// Of the gradients and of the parameters, by step.
    pub norms: Vec<[f64; 2]>,
    /// By path, float32.
    pub params: Vec<(String, Vec<f32>)>,
    pub bytes_moved: u64,
}

/// How many steps, of what.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub steps: usize,
    pub micro_batches: usize,
    /// Rows of a micro batch, over all ranks.
    pub rows: usize,
    /// Moments in main memory, by way of the copying thread.
    pub host: bool,
}

pub const PLAN: Plan = Plan { steps: 3, micro_batches: 1, rows: 12, host: false };

/// A small Llama; `keys` come on top.
pub fn config(keys: &[(&str, &str)]) -> Config {
    let base = [
        ("base_emb_dim", "32"),
        ("base_num_query_heads", "2"),
        ("base_num_kv_heads", "1"),
        ("head_dim", "16"),
        ("base_mlp_dim", "48"),
        ("base_num_decoder_layers", "3"),
        ("vocab_size", "96"),
        ("dtype", "float32"),
        ("max_target_length", "16"),
        ("dataset_type", "synthetic"),
        // Where a gradient is next to nothing, its rounding must not decide where a parameter goes.
        ("adam_eps", "1e-3"),
        ("gradient_clipping_threshold", "0.5"),
    ];
    let keys = base.iter().filter(|(key, _)| keys.iter().all(|(other, _)| other != key)).chain(keys);
    let overrides = keys.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    mt_config::load(&LoadArgs { overrides, ..Default::default() }).unwrap()
}

/// Rows of documents of many lengths, and of padding: no two ranks have the same weights.
pub fn batch(rows: usize, seq_len: usize, vocab_size: usize, step: usize) -> Batch {
    let mut batch = Batch { batch_size: rows, seq_len, ..Default::default() };
    let mut state = 77 + step as u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for _ in 0..rows {
        let first = 1 + random(seq_len - 1);
        let filled = first + random(seq_len - first + 1);
        for column in 0..seq_len {
            let (segment, position) = match column {
                column if column < first => (1, column),
                column if column < filled => (2, column - first),
                _ => (0, 0),
            };
            batch.inputs.push(random(vocab_size) as i32);
            batch.inputs_segmentation.push(segment);
            batch.inputs_position.push(position as i32);
            batch.targets.push(random(vocab_size) as i32);
            batch.targets_segmentation.push(segment);
            batch.targets_position.push(position as i32);
        }
    }
    batch
}

/// This rank's part of the model and its optimizer.
pub fn start(config: &Config, host: bool, collective: &dyn Collective) -> (Model, Optimizer) {
    let (shard, device) = (shard_of(collective.mesh()), Device::flex());
    let params = init::init_shard(&config.model(), shard, &device);
    let model = Model::with_params(config.model(), params);
    let host = host.then_some(device);
    let optimizer = Optimizer::with_host(config, &model.params, shard, host).unwrap();
    (model, optimizer)
}

/// Trains as the loop does, and reads the parameters out.
pub fn train(config: &Config, plan: Plan, collective: &dyn Collective) -> Result<Run, StepError> {
    let (model, run) = steps(config, plan, collective)?;
    Ok(Run { params: whole_params(&model, collective)?, ..run })
}

/// Trains as the loop does; the parameters stay where they are.
pub fn steps(config: &Config, plan: Plan, collective: &dyn Collective) -> Result<(Model, Run), StepError> {
    let (mut model, mut optimizer) = start(config, plan.host, collective);
    let ranks = collective.mesh().size(Group::World);
    let micro = MicroBatches { count: plan.micro_batches, rows: plan.rows / ranks };
    let (mut losses, mut norms) = (Vec::new(), Vec::new());
    for step in 0..plan.steps {
        let batch =
            batch(plan.rows * plan.micro_batches, config.max_target_length, model.config().vocab_size, step);
        let (loss, gradients) =
            loss_and_gradients(&model, &batch, micro, step as u64, optimizer.sink(), collective)?;
        let mut gradients = optimizer.rounded(gradients);
        let (loss, squares) = totals::of_gradients(collective, loss, gradients.squares)?;
        gradients.squares = squares;
        let update = optimizer.update(&mut model.params, gradients, 1e-2, loss.loss())?;
        let (param_squares, _) = totals::of_update(collective, update.param_squares, 0.0)?;
        losses.push(loss.loss());
        norms.push([update.raw_grad_norm, param_squares.sqrt()]);
    }
    Ok((model, Run { losses, norms, params: Vec::new(), bytes_moved: collective.bytes_moved() }))
}

fn whole_params(model: &Model, collective: &dyn Collective) -> Result<Vec<(String, Vec<f32>)>, StepError> {
    let config = model.config();
    let (v, e) = (config.vocab_size, config.emb_dim);
    let mut dims = vec![[v, e]];
    dims.extend((0..config.num_decoder_layers).flat_map(|_| {
        // A configuration's layers lack what it doesn't have.
        let layer = &model.params.layers[0];
        layer.as_ref().zip(layer_matrices(config)).map(|(_, dims)| dims).into_vec()
    }));
    dims.push([1, e]);
    dims.extend(model.params.logits_dense.as_ref().map(|_| [e, v]));
    let leaves = model.params.leaves();
    assert_eq!(leaves.len(), dims.len());
    let leaves = leaves.into_iter().zip(dims);
    leaves.map(|((path, shard), dims)| Ok((path, floats(&whole(collective, shard, dims)?)))).collect()
}

pub fn floats(tensor: &Tensor<2>) -> Vec<f32> {
    tensor.clone().cast(DType::F32).into_data().try_to_vec().unwrap()
}
