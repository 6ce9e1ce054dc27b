//! Logits, loss and every gradient against an independent float64 decoder, for all that a configuration can ask for; and
//! against burn's autodiff of the same model.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use burn::tensor::{Tensor, activation};
use mt_config::{Activation, AttentionKernel, DecoderBlock, ModelConfig, Rope};
use mt_model::Model;
use mt_model::params::{EMBEDDING, Params};
use support::reference::{self, TIED_HEAD, Weights};
use support::{Packed, mean_gradients, relative_l2, tiny, values};

/// Every axis on which layers differ, one at a time and some together.
fn configurations() -> Vec<(&'static str, ModelConfig)> {
    let base = tiny();
    let rope = |rope: Rope| ModelConfig { rope, ..tiny() };
    vec![
        ("llama2", base.clone()),
        ("one layer", ModelConfig { num_decoder_layers: 1, ..base.clone() }),
        ("three layers", ModelConfig { num_decoder_layers: 3, ..base.clone() }),
        ("multi-head", ModelConfig { num_kv_heads: 4, ..base.clone() }),
        ("multi-query", ModelConfig { num_kv_heads: 1, ..base.clone() }),
        ("dot product", ModelConfig { attention: AttentionKernel::DotProduct, ..base.clone() }),
        (
            "mistral, window",
            ModelConfig {
                decoder_block: DecoderBlock::Mistral,
                sliding_window_size: Some(3),
                ..base.clone()
            },
        ),
        (
            "qwen2, tied",
            ModelConfig {
                decoder_block: DecoderBlock::Qwen2,
                attention_bias: true,
                logits_via_embedding: true,
                ..base.clone()
            },
        ),
        ("qwen3", ModelConfig { decoder_block: DecoderBlock::Qwen3, use_qk_norm: true, ..base.clone() }),
        ("llama3.1 rope", rope(Rope { interleaved: true, llama31_scaling: true, ..base.rope })),
        ("stretched rope", rope(Rope { linear_scaling_factor: 2.0, max_timescale: 1e4, ..base.rope })),
        (
            "tied, not normalised",
            ModelConfig { logits_via_embedding: true, normalize_embedding_logits: false, ..base.clone() },
        ),
        (
            "soft caps and z-loss",
            ModelConfig {
                attn_logits_soft_cap: Some(0.5),
                final_logits_soft_cap: Some(2.0),
                z_loss_multiplier: 1e-2,
                ..base.clone()
            },
        ),
        (
            "gelu, tiled vocabulary",
            ModelConfig {
                mlp_activation: Activation::Gelu,
                num_vocab_tiling: 4,
                use_iota_embed: true,
                ..base
            },
        ),
    ]
}

fn batch(config: &ModelConfig) -> Packed {
    Packed::documents(&[&[4, 5], &[11], &[1, 6, 2]], config.max_target_length, config.vocab_size)
}

/// Initial weights, with what starts at 0 or 1 moved off it so that it matters.
fn model(config: &ModelConfig) -> Model {
    let mut model = Model::new(config.clone(), &burn::tensor::Device::flex());
    for (path, tensor) in model.params.leaves_mut() {
        if path.ends_with("scale") || path.ends_with("bias") {
            let [rows, columns] = tensor.dims();
            let wave =
                (0..rows * columns).map(|i| 0.3 * (1.7 * i as f32 + path.len() as f32).sin()).collect();
            *tensor = tensor.clone() + support::tensor(wave, [rows, columns]);
        }
    }
    model
}

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
