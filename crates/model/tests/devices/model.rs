//! The whole model: a GPU's loss, gradients and steps against the CPU's.

use burn::tensor::Device;
use mt_config::{ModelConfig, RematPolicyName};
use mt_model::batch::Rows;
use mt_model::ops::adamw::{self, Hyper};
use mt_model::scan::Gradients;
use mt_model::{BatchTensors, Model, Params};

use crate::device::gpu;
use crate::support::{norm, relative_l2, small, values};

/// Two rows of 32 tokens, in documents, with padding.
fn batch(model: &Model) -> BatchTensors {
    let tokens: Vec<i32> = (0..64).map(|i| 3 + i * 7919 % 250).collect();
    let segments: Vec<i32> = (0..64)
        .map(|i| match i % 32 {
            0..12 => 1,
            12..29 => 2,
            _ => 0,
        })
        .collect();
    let positions: Vec<i32> = (0..64)
        .map(|i| match i % 32 {
            at @ 0..12 => at,
            at @ 12..29 => at - 12,
            _ => 0,
        })
        .collect();
    let rows = Rows {
        batch_size: 2,
        seq_len: 32,
        inputs: &tokens,
        inputs_segmentation: &segments,
        inputs_position: &positions,
        targets: &tokens,
        targets_segmentation: &segments,
    };
    BatchTensors::new(&rows, model.config(), &model.device()).unwrap()
}

fn loss_and_gradients(model: &Model) -> (f64, Params) {
    let mut gradients = Gradients::default();
    let batch = batch(model);
    let loss = model.loss_and_gradients(&batch, batch.mean_factor(), &mut gradients);
    (loss.total_loss, gradients.into_params().unwrap())
}

/// Sizes that no vector of a GPU divides.
fn odd() -> ModelConfig {
    ModelConfig { vocab_size: 259, mlp_dim: 100, num_decoder_layers: 1, ..small() }
}

/// The quick start's sizes, with one layer.
fn wide() -> ModelConfig {
    ModelConfig {
        vocab_size: 259,
        emb_dim: 128,
        mlp_dim: 384,
        head_dim: 32,
        num_decoder_layers: 1,
        ..small()
    }
}

#[test]
fn a_gpu_computes_the_cpus_loss_and_gradients() {
    let Some(gpu) = gpu() else { return };
    let keeps_all = ModelConfig { remat_policy: RematPolicyName::None.policy(), ..wide() };
    for config in [small(), odd(), wide(), keeps_all] {
        compare(&config, &gpu);
    }
}

fn compare(config: &ModelConfig, gpu: &Device) {
    let [on_cpu, on_gpu] = [&Device::flex(), gpu].map(|device| Model::new(config.clone(), device));
    for ((name, a), (_, b)) in on_cpu.params.leaves().into_iter().zip(on_gpu.params.leaves()) {
        assert_eq!(values(a), values(b), "initial {name}");
    }
    let [hidden_cpu, hidden_gpu] = [&on_cpu, &on_gpu].map(|model| values(&model.logits(&batch(model))));
    let off = relative_l2(&hidden_gpu, &hidden_cpu);
    let ((cpu_loss, cpu), (gpu_loss, gpu)) = (loss_and_gradients(&on_cpu), loss_and_gradients(&on_gpu));
    eprintln!("logits off by {off:e}; loss {cpu_loss} {gpu_loss}");
    for ((name, expected), (_, found)) in cpu.leaves().into_iter().zip(gpu.leaves()) {
        let (expected, found) = (values(expected), values(found));
        eprintln!("{name}: {:e} of norm {:e}", relative_l2(&found, &expected), norm(&expected));
    }
    assert!(off < 1e-4 && (cpu_loss - gpu_loss).abs() < 1e-4, "logits {off:e}, loss {cpu_loss} {gpu_loss}");
    for ((name, expected), (_, found)) in cpu.leaves().into_iter().zip(gpu.leaves()) {
        let error = relative_l2(&values(found), &values(expected));
        assert!(error < 1e-3, "gradient of {name} is off by {error:e}");
    }
}

/// The losses before each of three steps of AdamW, and after them.
fn losses(config: &ModelConfig, device: &Device) -> Vec<f64> {
    let mut model = Model::new(config.clone(), device);
    let [mut mu, mut nu] = [0, 1].map(|_| model.params.map(|p| p.zeros_like()));
    let mut losses = Vec::new();
    for step in 1..=3 {
        let (loss, gradients) = loss_and_gradients(&model);
        losses.push(loss);
        let moments = mu.leaves_mut().into_iter().zip(nu.leaves_mut());
        let leaves = model.params.leaves_mut().into_iter().zip(gradients.leaves()).zip(moments);
        for (((_, param), (_, gradient)), ((_, mu), (_, nu))) in leaves {
            let updated =
                adamw::update(param.clone(), gradient.clone(), mu.clone(), nu.clone(), &hyper(step));
            (*param, *mu, *nu) = (updated.param, updated.mu, updated.nu);
        }
    }
    losses.push(loss_and_gradients(&model).0);
    losses
}

fn hyper(step: i32) -> Hyper {
    Hyper {
        learning_rate: 1e-2,
        b1: 0.9,
        b2: 0.95,
        bias_correction1: 1.0 - 0.9f64.powi(step),
        bias_correction2: 1.0 - 0.95f64.powi(step),
        look_ahead: None,
        eps: 1e-8,
        eps_root: 0.0,
        weight_decay: 0.1,
        grad_scale: 1.0,
        stochastic_rounding: None,
    }
}

#[test]
fn a_gpu_trains_as_the_cpu_does() {
    let Some(gpu) = gpu() else { return };
    let [cpu, gpu] = [&Device::flex(), &gpu].map(|device| losses(&small(), device));
    assert!(cpu.iter().zip(&gpu).all(|(a, b)| (a - b).abs() < 1e-4), "{cpu:?} {gpu:?}");
    assert!(cpu[3] < cpu[0], "{cpu:?}");
}
