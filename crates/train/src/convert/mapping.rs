//! Which tensor of Hugging Face's is which parameter of ours.

use mt_config::ModelConfig;
use mt_model::params::{DECODER_NORM, EMBEDDING, LAYER_NAMES, LOGITS_DENSE, layer_path};
use mt_model::query_pre_attn_scalar;
use mt_model::tree::{layer_matrices, layer_shapes};

use super::transform::Transform;

/// One tensor on both sides.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Weight {
    /// Hugging Face's name.
    pub theirs: String,
    /// Its shape there.
    pub shape: Vec<usize>,
    /// Our path, with a layer's number in it where layers have their own.
    pub ours: String,
    /// From there to here.
    pub transform: Transform,
}

/// All tensors of a model.
pub(super) fn weights(config: &ModelConfig) -> Vec<Weight> {
    let (v, e) = (config.vocab_size, config.emb_dim);
    let as_is = |theirs: &str, ours: &str, shape: Vec<usize>| Weight {
        theirs: theirs.to_owned(),
        ours: ours.to_owned(),
        transform: plain(shape.iter().product()),
        shape,
    };
    let mut weights = vec![as_is("model.embed_tokens.weight", EMBEDDING, vec![v, e])];
    for layer in 0..config.num_decoder_layers {
        weights.extend(layer_weights(config, layer));
    }
    weights.push(as_is("model.norm.weight", DECODER_NORM, vec![e]));
    if !config.logits_via_embedding {
        weights.push(Weight {
            theirs: "lm_head.weight".to_owned(),
            shape: vec![v, e],
            ours: LOGITS_DENSE.to_owned(),
            transform: Transform { input: e, ..plain(v) },
        });
    }
    weights
}

fn plain(len: usize) -> Transform {
    Transform { out: len, input: 1, interleaved_heads: None, divisor: None }
}

fn layer_weights(config: &ModelConfig, layer: usize) -> Vec<Weight> {
    let names = LAYER_NAMES.zip(layer_shapes(config)).map(|(name, _)| name).zip(layer_matrices(config));
    let weight = |(name, [input, out]): (&'static str, [usize; 2])| {
        let transform = Transform {
            out,
            input,
            interleaved_heads: (config.rope.interleaved && is_rotated(name)).then_some(config.head_dim),
            divisor: (carries_scale(name) && query_pre_attn_scalar(config).is_none())
                .then(|| (config.head_dim as f64).sqrt()),
        };
        Weight {
            theirs: format!("model.layers.{layer}.{}", their_name(name)),
            shape: if input == 1 { vec![out] } else { vec![out, input] },
            ours: layer_path(layer, name),
            transform,
        }
    };
    names.map(weight).into_vec()
}

/// Whether the rotary embedding turns this tensor's features.
fn is_rotated(name: &str) -> bool {
    name.contains("/query") || name.contains("/key")
}

/// Whether attention's 1/sqrt(D) may be folded into this tensor.
fn carries_scale(name: &str) -> bool {
    name.contains("/query/")
}

fn their_name(ours: &str) -> &'static str {
    match ours {
        "pre_self_attention_layer_norm/scale" => "input_layernorm.weight",
        "self_attention/query/kernel" => "self_attn.q_proj.weight",
        "self_attention/key/kernel" => "self_attn.k_proj.weight",
        "self_attention/value/kernel" => "self_attn.v_proj.weight",
        "self_attention/query/bias" => "self_attn.q_proj.bias",
        "self_attention/key/bias" => "self_attn.k_proj.bias",
        "self_attention/value/bias" => "self_attn.v_proj.bias",
        "self_attention/query_norm/scale" => "self_attn.q_norm.weight",
        "self_attention/key_norm/scale" => "self_attn.k_norm.weight",
        "self_attention/out/kernel" => "self_attn.o_proj.weight",
        "post_self_attention_layer_norm/scale" => "post_attention_layernorm.weight",
        "mlp/wi_0/kernel" => "mlp.gate_proj.weight",
        "mlp/wi_1/kernel" => "mlp.up_proj.weight",
        "mlp/wo/kernel" => "mlp.down_proj.weight",
        other => unreachable!("`{other}` isn't a parameter of a layer"),
    }
}
