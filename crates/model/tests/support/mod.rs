//! What the tests share: small configurations, packed batches, numbers from tensors, an independent float64 decoder, and a
//! reader for golden vectors.
#![allow(dead_code, reason = "every test binary uses its share")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod cases;
pub mod npz;
pub mod reference;

use burn::tensor::{DType as BurnDType, Device, Tensor, TensorData};
use mt_config::{
    Activation, AttentionKernel, DType, DecoderBlock, ModelConfig, Placement, Quantization, RematPolicy, Rope,
};
use mt_model::batch::Rows;
use mt_model::scan::Gradients;
use mt_model::{BatchTensors, LossOutput, Model, Params};

/// The model of the golden vectors: 2 layers, 4 query and 2 key-value heads of 16, width 64, MLP 128, 256 tokens.
pub fn small() -> ModelConfig {
    ModelConfig {
        decoder_block: DecoderBlock::Llama2,
        vocab_size: 256,
        emb_dim: 64,
        mlp_dim: 128,
        num_query_heads: 4,
        num_kv_heads: 2,
        max_target_length: 32,
        head_dim: 16,
        num_decoder_layers: 2,
        mlp_activation: Activation::Silu,
        normalization_layer_epsilon: 1e-5,
        rope: Rope {
            interleaved: false,
            llama31_scaling: false,
            min_timescale: 1.0,
            max_timescale: 500_000.0,
            linear_scaling_factor: 1.0,
        },
        attention_bias: false,
        use_qk_norm: false,
        logits_via_embedding: false,
        tied_head_in_bf16: true,
        normalize_embedding_logits: true,
        attn_logits_soft_cap: None,
        final_logits_soft_cap: None,
        sliding_window_size: None,
        attention: AttentionKernel::Flash,
        use_iota_embed: false,
        dtype: DType::Float32,
        weight_dtype: DType::Float32,
        quantization: Quantization::Off,
        float32_qk_product: false,
        float32_logits: false,
        logits_dot_in_fp32: false,
        cast_logits_to_fp32: true,
        z_loss_multiplier: 0.0,
        num_vocab_tiling: 1,
        dropout_rate: 0.0,
        scan_layers: true,
        param_scan_axis: 1,
        remat_policy: RematPolicy::new(|_| Placement::Remat),
        dense_init_scale: 1.0,
        init_weights_seed: 0,
    }
}

/// A smaller model yet, for what costs many forward passes.
pub fn tiny() -> ModelConfig {
    ModelConfig {
        vocab_size: 29,
        emb_dim: 12,
        mlp_dim: 20,
        num_query_heads: 4,
        num_kv_heads: 2,
        head_dim: 4,
        max_target_length: 11,
        ..small()
    }
}

/// Packed rows that own their numbers.
#[derive(Debug, Clone)]
pub struct Packed {
    pub batch_size: usize,
    pub seq_len: usize,
    pub inputs: Vec<i32>,
    pub inputs_segmentation: Vec<i32>,
    pub inputs_position: Vec<i32>,
    pub targets: Vec<i32>,
    pub targets_segmentation: Vec<i32>,
}

impl Packed {
    /// Rows with documents of these lengths, of pseudo-random tokens; what is left of a row is padding. The target of a
    /// document's last token doesn't count.
    pub fn documents(rows: &[&[usize]], seq_len: usize, vocab_size: usize) -> Self {
        let mut packed = Self {
            batch_size: rows.len(),
            seq_len,
            inputs: Vec::new(),
            inputs_segmentation: Vec::new(),
            inputs_position: Vec::new(),
            targets: Vec::new(),
            targets_segmentation: Vec::new(),
        };
        let mut state = 12_345_u64;
        let mut token = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            2 + ((state >> 33) % (vocab_size as u64 - 2)) as i32
        };
        for row in rows {
            let lengths = row.iter().enumerate();
            let mut tokens: Vec<(i32, i32, i32)> = lengths
                .flat_map(|(d, &length)| (0..length).map(move |p| (d as i32 + 1, p as i32)))
                .map(|(segment, position)| (token(), segment, position))
                .collect();
            tokens.resize(seq_len, (0, 0, 0));
            for (i, &(token, segment, position)) in tokens.iter().enumerate() {
                let next = tokens.get(i + 1).copied().unwrap_or_default();
                packed.inputs.push(token);
                packed.inputs_segmentation.push(segment);
                packed.inputs_position.push(position);
                packed.targets.push(next.0);
                packed.targets_segmentation.push(if next.1 == segment { segment } else { 0 });
            }
        }
        packed
    }

    pub fn rows(&self) -> Rows<'_> {
        Rows {
            batch_size: self.batch_size,
            seq_len: self.seq_len,
            inputs: &self.inputs,
            inputs_segmentation: &self.inputs_segmentation,
            inputs_position: &self.inputs_position,
            targets: &self.targets,
            targets_segmentation: &self.targets_segmentation,
        }
    }

    pub fn on_cpu(&self, config: &ModelConfig) -> BatchTensors {
        BatchTensors::new(&self.rows(), config, &Device::flex()).unwrap()
    }
}

/// Row-major values in float32, whatever the tensor stores.
pub fn values(tensor: &Tensor<2>) -> Vec<f32> {
    tensor.clone().cast(BurnDType::F32).into_data().try_into_vec().unwrap()
}

pub fn tensor(values: Vec<f32>, shape: [usize; 2]) -> Tensor<2> {
    Tensor::from_data(TensorData::new(values, shape), (&Device::flex(), BurnDType::F32))
}

/// Loss and gradients of the mean.
pub fn mean_gradients(model: &Model, batch: &BatchTensors) -> (LossOutput, Params) {
    let mut sink = Gradients::default();
    let loss = model.loss_and_gradients(batch, batch.mean_factor(), &mut sink);
    (loss, sink.into_params().unwrap())
}

/// Euclidean norm in float64.
pub fn norm(values: &[f32]) -> f64 {
    values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt()
}

/// `|a - b| / |b|` in the Euclidean norm.
pub fn relative_l2(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let difference: Vec<f32> = a.iter().zip(b).map(|(a, b)| a - b).collect();
    norm(&difference) / norm(b)
}
