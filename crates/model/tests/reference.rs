//! Logits, loss and every gradient against an independent float64 decoder, for all that a configuration can ask for; and
//! against burn's autodiff of the same model.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use burn::tensor::{Tensor, activation};
use mt_config::ModelConfig;
use mt_model::Model;
use mt_model::params::{EMBEDDING, Params};
use support::cases::{batch, configurations, model};
use support::reference::{self, TIED_HEAD, Weights};
use support::{Packed, mean_gradients, relative_l2, values};

#[test]
fn logits_and_loss() {
    for (name, config) in configurations() {
        let (model, packed) = (model(&config), batch(&config));
        let batch = packed.on_cpu(&config);
        let weights = reference::weights(&model.params);

        let expected = reference::logits(&config, &weights, &packed);
        let found = values(&model.logits(&batch));
        for (t, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(
                (f64::from(*found) - expected).abs() < 1e-5,
                "{name}: logit {t} is {found}, expected {expected}"
            );
        }
        let (xent, z_loss) = reference::loss_sums(&config, &weights, &packed);
        let loss = model.eval_loss(&batch);
        assert!((loss.xent_sum - xent).abs() < 1e-5 * xent, "{name}: {} and {xent}", loss.xent_sum);
        assert!(
            (loss.z_loss_sum - z_loss).abs() <= 1e-5 * z_loss,
            "{name}: {} and {z_loss}",
            loss.z_loss_sum
        );
    }
}

/// Every scalar of every parameter, by central differences of the float64 loss.
#[test]
fn gradients_are_finite_differences() {
    for (name, config) in configurations() {
        let (model, packed) = (model(&config), batch(&config));
        let (loss, gradients) = mean_gradients(&model, &packed.on_cpu(&config));
        let mut weights = reference::weights(&model.params);
        for (path, gradient) in gradients.leaves() {
            let found = values(gradient);
            let expected: Vec<f32> = (0..found.len())
                .map(|i| {
                    let mut derivative = difference(&config, &mut weights, &packed, &path, i);
                    if is_tied(&config, &path) {
                        derivative += difference(&config, &mut weights, &packed, TIED_HEAD, i);
                    }
                    (derivative / loss.total_weights) as f32
                })
                .collect();
            let error = relative_l2(&found, &expected);
            assert!(error < bound(&config, &path), "{name}: gradient of {path} is off by {error:e}");
        }
    }
}

/// Whether the parameter is an embedding that is the output head too.
fn is_tied(config: &ModelConfig, path: &str) -> bool {
    config.logits_via_embedding && path == EMBEDDING
}

/// Relative error allowed in a gradient. A tied head's is rounded to bfloat16, by definition.
fn bound(config: &ModelConfig, path: &str) -> f64 {
    if is_tied(config, path) { 3e-3 } else { 1e-5 }
}

fn difference(config: &ModelConfig, weights: &mut Weights, packed: &Packed, path: &str, i: usize) -> f64 {
    const STEP: f64 = 1e-5;
    let mut loss_at = |offset: f64| {
        let original = weights[path][i];
        weights.get_mut(path).unwrap()[i] = original + offset;
        let loss = reference::loss_sums(config, weights, packed).0;
        weights.get_mut(path).unwrap()[i] = original;
        loss
    };
    (loss_at(STEP) - loss_at(-STEP)) / (2.0 * STEP)
}

/// The same model with its parameters under burn's autodiff, where every operation is the plain composition.
#[test]
fn gradients_are_those_of_autodiff() {
    for (name, config) in configurations() {
        for dropout in [0.0, 0.4] {
            let (model, packed) = (model(&config), batch(&config));
            let batch = packed.on_cpu(&config).with_dropout(dropout, 7);
            let (loss, gradients) = mean_gradients(&model, &batch);

            let tracked = Params::map(&model.params, |tensor| tensor.clone().autodiff().require_grad());
            let tracked = Model::with_params(config.clone(), tracked);
            let sum = cross_entropy(tracked.logits(&batch), &packed, config.z_loss_multiplier);
            let value = f64::from(sum.clone().into_scalar::<f32>());
            assert!((value - loss.xent_sum).abs() < 1e-5 * value, "{name}, dropout {dropout}");

            let grads = (sum / loss.total_weights).backward();
            for ((path, tracked), (_, found)) in tracked.params.leaves().into_iter().zip(gradients.leaves()) {
                let expected = values(&tracked.grad(&grads).unwrap());
                let error = relative_l2(&values(found), &expected);
                assert!(
                    error < bound(&config, &path),
                    "{name}, dropout {dropout}: gradient of {path} is off by {error:e}"
                );
            }
        }
    }
}

/// Sum over the targets that count, z-loss included, of plain tensor operations.
fn cross_entropy(logits: Tensor<2>, packed: &Packed, z_loss_multiplier: f64) -> Tensor<1> {
    let [tokens, vocab_size] = logits.dims();
    let mut picks = vec![0.0; tokens * vocab_size];
    let mut weights = vec![0.0; tokens];
    for t in (0..tokens).filter(|&t| packed.targets_segmentation[t] != 0) {
        picks[t * vocab_size + packed.targets[t] as usize] = 1.0;
        weights[t] = 1.0;
    }
    let (picks, weights) =
        (support::tensor(picks, [tokens, vocab_size]), support::tensor(weights, [tokens, 1]));
    let (picks, weights) = (picks.autodiff(), weights.autodiff());
    let log_z = logits.clone() - activation::log_softmax(logits.clone(), 1);
    let log_z = log_z.mean_dim(1);
    let z_loss = log_z.clone().powi_scalar(2).mul_scalar(z_loss_multiplier);
    ((log_z + z_loss) * weights).sum() - (logits * picks).sum()
}
