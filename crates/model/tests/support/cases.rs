//! Models that differ in all that a configuration can ask of a decoder.

use burn::tensor::Device;
use mt_config::{Activation, AttentionKernel, DecoderBlock, ModelConfig, Rope};
use mt_model::Model;

use super::{Packed, tensor, tiny};

/// Every axis on which layers differ, one at a time and some together.
pub fn configurations() -> Vec<(&'static str, ModelConfig)> {
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

/// Three rows of documents; one row is full, one ends in padding.
pub fn batch(config: &ModelConfig) -> Packed {
    Packed::documents(&[&[4, 5], &[11], &[1, 6, 2]], config.max_target_length, config.vocab_size)
}

/// Initial weights, with what starts at 0 or 1 moved off it so that it matters.
pub fn model(config: &ModelConfig) -> Model {
    let mut model = Model::new(config.clone(), &Device::flex());
    for (path, parameter) in model.params.leaves_mut() {
        if path.ends_with("scale") || path.ends_with("bias") {
            let [rows, columns] = parameter.dims();
            let wave =
                (0..rows * columns).map(|i| 0.3 * (1.7 * i as f32 + path.len() as f32).sin()).collect();
            *parameter = parameter.clone() + tensor(wave, [rows, columns]);
        }
    }
    model
}
