//! Against MaxText: logits, loss, gradients and three steps of AdamW from the same parameters, computed by MaxText 0.2.5.
//! The vectors lie beside the repository; where they don't, these tests skip themselves.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use burn::tensor::TensorData;
use mt_config::{DType, ModelConfig};
use mt_model::params::Params;
use mt_model::tree::Tree;
use mt_model::{Model, init};
use support::npz::{Npz, golden};
use support::{Packed, mean_gradients, norm, relative_l2, small, tensor, values};

/// What the vectors were computed with, beside the model.
const LEARNING_RATES: [f32; 3] = [0.0, 0.005, 0.01];

fn packed(npz: &Npz) -> Packed {
    let data = |name: &str| npz.integers(&format!("data/{name}"));
    Packed {
        batch_size: 2,
        seq_len: 32,
        inputs: data("inputs"),
        inputs_segmentation: data("inputs_segmentation"),
        inputs_position: data("inputs_position"),
        targets: data("targets"),
        targets_segmentation: data("targets_segmentation"),
    }
}

/// Parameters from the arrays under `prefix`, which are stacked along axis 1.
fn params(npz: &Npz, prefix: &str, config: &ModelConfig) -> Params {
    let stacked = ModelConfig { scan_layers: true, param_scan_axis: 1, ..config.clone() };
    let mut params = init::init(config, &burn::tensor::Device::flex());
    let tree = Tree::new(&stacked);
    for spec in tree.specs() {
        let array = npz.get(&format!("{prefix}/{}", spec.name));
        let data = TensorData::new(array.values.clone(), array.shape.clone());
        tree.write_leaf(&mut params, &spec.name, data).unwrap();
    }
    params
}

/// Values of a leaf of the saved tree.
fn leaf(params: &Params, tree: &Tree, name: &str) -> Vec<f32> {
    tree.read_leaf(params, name).unwrap().convert::<f32>().try_into_vec().unwrap()
}

#[test]
fn logits_loss_and_gradients_are_maxtexts() {
    let Some(path) = golden("model_scan_axis1.npz") else { return };
    let npz = Npz::open(&path);
    let config = small();
    let packed = packed(&npz);
    let batch = packed.on_cpu(&config);
    let model = Model::with_params(config.clone(), params(&npz, "param0", &config));

    let logits = values(&model.logits(&batch));
    let expected = &npz.get("logits").values;
    let is_counted = |t: usize| packed.inputs_segmentation[t] != 0;
    let worst = (0..logits.len())
        .filter(|i| is_counted(i / config.vocab_size))
        .map(|i| (logits[i] - expected[i]).abs())
        .fold(0.0, f32::max);
    assert!(worst < 2e-5, "logits differ by {worst}");

    let (loss, gradients) = mean_gradients(&model, &batch);
    assert_eq!(loss.total_weights, npz.scalar("total_weights"));
    assert!((loss.total_loss - npz.scalar("loss0")).abs() < 1e-5);
    assert!((loss.xent_sum - npz.scalar("xent_sum0")).abs() < 1e-5 * npz.scalar("xent_sum0"));
    let eval = model.eval_loss(&batch);
    assert_eq!((eval.xent_sum, eval.z_loss_sum), (loss.xent_sum, loss.z_loss_sum));

    let tree = Tree::new(&config);
    assert_eq!(tree.specs().len(), npz.under("grad0/").count());
    for (name, expected) in npz.under("grad0/") {
        let error = relative_l2(&leaf(&gradients, &tree, name), &expected.values);
        assert!(error < 1e-4, "gradient of {name} is off by {error:e}");
    }
}

/// AdamW as optax has it, with clipping to norm 1, in float64: the tests' own.
struct Adam {
    mu: Vec<Vec<f64>>,
    nu: Vec<Vec<f64>>,
    step: i32,
}

impl Adam {
    fn new(params: &Params) -> Self {
        let zeros = || params.leaves().iter().map(|(_, tensor)| vec![0.0; values(tensor).len()]).collect();
        Self { mu: zeros(), nu: zeros(), step: 0 }
    }

    fn update(&mut self, params: &mut Params, gradients: &Params, learning_rate: f64) {
        let (b1, b2, decay) = (0.9_f64, 0.95_f64, 0.1);
        self.step += 1;
        let gradients: Vec<Vec<f32>> = gradients.leaves().iter().map(|(_, tensor)| values(tensor)).collect();
        let clip = 1.0 / total_norm(&gradients).max(1.0);
        for (i, (_, param)) in params.leaves_mut().into_iter().enumerate() {
            let shape = param.dims();
            let mut updated = values(param);
            for (j, p) in updated.iter_mut().enumerate() {
                let g = f64::from(gradients[i][j]) * clip;
                let (mu, nu) = (&mut self.mu[i][j], &mut self.nu[i][j]);
                *mu = b1 * *mu + (1.0 - b1) * g;
                *nu = b2 * *nu + (1.0 - b2) * g * g;
                let (mu, nu) = (*mu / (1.0 - b1.powi(self.step)), *nu / (1.0 - b2.powi(self.step)));
                let update = mu / (nu.sqrt() + 1e-8) + decay * f64::from(*p);
                *p = (f64::from(*p) - learning_rate * update) as f32;
            }
            *param = tensor(updated, shape);
        }
    }
}

fn total_norm(leaves: &[Vec<f32>]) -> f64 {
    leaves.iter().map(|leaf| norm(leaf).powi(2)).sum::<f64>().sqrt()
}

fn all_values(params: &Params) -> Vec<Vec<f32>> {
    params.leaves().iter().map(|(_, tensor)| values(tensor)).collect()
}

/// How closely a run must follow.
struct Bounds {
    /// Absolute, of the loss at each step.
    loss: f64,
    /// Relative, of norms of gradients and parameters; a tenth of what a parameter may be off by in the L2 norm.
    norm: f64,
}

/// Trains three steps from the golden parameters and compares all series and norms of `file`.
fn three_steps(file: &str, config: &ModelConfig, bounds: &Bounds) {
    let (Some(vectors), Some(meta)) = (golden("model_scan_axis1.npz"), golden(file)) else { return };
    let (vectors, meta) = (Npz::open(&vectors), Npz::open(&meta));
    let batch = packed(&vectors).on_cpu(config);
    let mut model = Model::with_params(config.clone(), params(&vectors, "param0", config));
    let mut adam = Adam::new(&model.params);
    let tree = Tree::new(config);

    let close = |name: &str, step: usize, found: f64, expected: f64, bound: f64| {
        assert!(
            (found - expected).abs() <= bound,
            "{file}: {name} of step {step} is {found}, MaxText has {expected}"
        );
    };
    let series = |name: &str, step: usize| f64::from(meta.get(&format!("steps/{name}")).values[step]);
    for (step, &lr) in LEARNING_RATES.iter().enumerate() {
        let (loss, gradients) = mean_gradients(&model, &batch);
        close("loss", step, loss.total_loss, series("loss", step), bounds.loss);
        let z_loss = loss.z_loss_sum / loss.total_weights;
        close("z_loss", step, z_loss, series("z_loss", step), bounds.loss);
        close("total_weights", step, loss.total_weights, series("total_weights", step), 0.0);

        let raw = total_norm(&all_values(&gradients));
        close("raw_grad_norm", step, raw, series("raw_grad_norm", step), bounds.norm * raw);
        if step == 0 {
            for (name, expected) in meta.under("grad0_norm/") {
                let found = norm(&leaf(&gradients, &tree, name));
                close(name, step, found, f64::from(expected.values[0]), bounds.norm * found);
            }
        }
        adam.update(&mut model.params, &gradients, f64::from(lr));
        let param_norm = total_norm(&all_values(&model.params));
        close("param_norm", step, param_norm, series("param_norm", step), bounds.norm * param_norm);
    }
    for (name, expected) in meta.under("param3_norm/") {
        let found = norm(&leaf(&model.params, &tree, name));
        close(name, 3, found, f64::from(expected.values[0]), bounds.norm * found);
    }
    for (name, expected) in vectors.under("param3/").filter(|_| file == "model_scan_axis1.npz") {
        let error = relative_l2(&leaf(&model.params, &tree, name), &expected.values);
        assert!(error < 10.0 * bounds.norm, "{name} after three steps is off by {error:e}");
    }
}

const EXACT: Bounds = Bounds { loss: 1e-5, norm: 1e-5 };

#[test]
fn three_steps_stacked() {
    three_steps("model_scan_axis1.npz", &small(), &EXACT);
}

#[test]
fn three_steps_stacked_along_axis_0() {
    three_steps("model_scan_axis0_meta.npz", &ModelConfig { param_scan_axis: 0, ..small() }, &EXACT);
}

#[test]
fn three_steps_unstacked() {
    three_steps("model_unscanned_meta.npz", &ModelConfig { scan_layers: false, ..small() }, &EXACT);
}

#[test]
fn three_steps_with_z_loss() {
    three_steps("model_zloss_1e-2_meta.npz", &ModelConfig { z_loss_multiplier: 1e-2, ..small() }, &EXACT);
}

#[test]
fn three_steps_with_tied_embeddings() {
    three_steps("model_tied_embed_meta.npz", &ModelConfig { logits_via_embedding: true, ..small() }, &EXACT);
}

/// In bfloat16 two implementations round differently in every operation; both stay near the float32 result.
#[test]
fn three_steps_in_bfloat16() {
    let config = ModelConfig { dtype: DType::BFloat16, ..small() };
    three_steps("model_bf16_meta.npz", &config, &Bounds { loss: 1e-2, norm: 2e-2 });
    three_steps("model_scan_axis1.npz", &config, &Bounds { loss: 2e-2, norm: 2e-2 });
}
