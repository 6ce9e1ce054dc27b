//! The decoder in float64, written with loops from its definition and sharing no code with the crate: what the crate must
//! reproduce, and what finite differences are taken of.

use std::collections::HashMap;

use burn::tensor::{DType, Tensor};
use mt_config::{Activation, DecoderBlock, ModelConfig, Rope};
use mt_model::Params;

use super::{Packed, values};

/// Parameters by unscanned path, in float64.
pub type Weights = HashMap<String, Vec<f64>>;

/// Where [`weights`] puts a tied output head: the embedding, rounded to bfloat16 as MaxText does.
pub const TIED_HEAD: &str = "tied head";

pub fn weights(params: &Params) -> Weights {
    let wide = |tensor: &Tensor<2>| values(tensor).into_iter().map(f64::from).collect::<Vec<_>>();
    let mut weights: Weights =
        params.leaves().into_iter().map(|(path, tensor)| (path, wide(tensor))).collect();
    if params.logits_dense.is_none() {
        weights.insert(TIED_HEAD.to_owned(), wide(&params.embedding.clone().cast(DType::BF16)));
    }
    weights
}

/// `(sum of cross-entropies with z-loss, sum of z-losses)` over the targets that count.
pub fn loss_sums(config: &ModelConfig, weights: &Weights, batch: &Packed) -> (f64, f64) {
    let logits = logits(config, weights, batch);
    let mut sums = (0.0, 0.0);
    for (t, row) in logits.chunks(config.vocab_size).enumerate() {
        if batch.targets_segmentation[t] == 0 {
            continue;
        }
        let max = row.iter().copied().fold(f64::MIN, f64::max);
        let log_z = max + row.iter().map(|l| (l - max).exp()).sum::<f64>().ln();
        let z_loss = config.z_loss_multiplier * log_z * log_z;
        sums.0 += log_z - row[batch.targets[t] as usize] + z_loss;
        sums.1 += z_loss;
    }
    sums
}

/// `[tokens, V]`.
pub fn logits(config: &ModelConfig, weights: &Weights, batch: &Packed) -> Vec<f64> {
    let e = config.emb_dim;
    let table = &weights["token_embedder/embedding"];
    let mut x: Vec<f64> =
        batch.inputs.iter().flat_map(|&id| &table[id as usize * e..][..e]).copied().collect();
    for i in 0..config.num_decoder_layers {
        x = layer(config, &|name| weights.get(&format!("decoder/layers_{i}/{name}")), batch, &x);
    }
    let x = rms_norm(&x, &weights["decoder/decoder_norm/scale"], config.normalization_layer_epsilon);
    let mut logits = match weights.get("decoder/logits_dense/kernel") {
        Some(kernel) => matmul(&x, kernel, e),
        None => {
            let head = &weights[TIED_HEAD];
            let scale = if config.normalize_embedding_logits { (e as f64).sqrt() } else { 1.0 };
            let transposed: Vec<f64> =
                (0..e).flat_map(|i| (0..config.vocab_size).map(move |v| head[v * e + i] / scale)).collect();
            matmul(&x, &transposed, e)
        }
    };
    if let Some(cap) = config.final_logits_soft_cap {
        logits.iter_mut().for_each(|l| *l = cap * (*l / cap).tanh());
    }
    logits
}

fn layer<'a>(
    config: &ModelConfig,
    get: &dyn Fn(&str) -> Option<&'a Vec<f64>>,
    batch: &Packed,
    x: &[f64],
) -> Vec<f64> {
    let (e, m, d, eps) =
        (config.emb_dim, config.mlp_dim, config.head_dim, config.normalization_layer_epsilon);
    let kernel = |name: &str| get(name).unwrap_or_else(|| panic!("no parameter {name}"));
    let project = |x: &[f64], name: &str| {
        let mut y = matmul(x, kernel(&format!("self_attention/{name}/kernel")), e);
        if let Some(bias) = get(&format!("self_attention/{name}/bias")) {
            y.iter_mut().zip(bias.iter().cycle()).for_each(|(y, b)| *y += b);
        }
        y
    };
    let normed = rms_norm(x, kernel("pre_self_attention_layer_norm/scale"), eps);
    let (mut q, mut k, v) = (project(&normed, "query"), project(&normed, "key"), project(&normed, "value"));
    if config.use_qk_norm {
        q = rms_norm(&q, kernel("self_attention/query_norm/scale"), eps);
        k = rms_norm(&k, kernel("self_attention/key_norm/scale"), eps);
    }
    rotate(&mut q, config, batch);
    rotate(&mut k, config, batch);
    if matches!(config.decoder_block, DecoderBlock::Qwen2 | DecoderBlock::Qwen3) {
        q.iter_mut().for_each(|q| *q /= (d as f64).sqrt());
    }
    let context = attend(config, batch, &q, &k, &v);
    let out = matmul(&context, kernel("self_attention/out/kernel"), config.num_query_heads * d);
    let x: Vec<f64> = x.iter().zip(&out).map(|(x, o)| x + o).collect();

    let normed = rms_norm(&x, kernel("post_self_attention_layer_norm/scale"), eps);
    let gate = matmul(&normed, kernel("mlp/wi_0/kernel"), e);
    let up = matmul(&normed, kernel("mlp/wi_1/kernel"), e);
    let hidden: Vec<f64> =
        gate.iter().zip(&up).map(|(&g, u)| activate(config.mlp_activation, g) * u).collect();
    let down = matmul(&hidden, kernel("mlp/wo/kernel"), m);
    x.iter().zip(&down).map(|(x, d)| x + d).collect()
}

fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Activation::Relu => x.max(0.0),
        Activation::Linear => x,
    }
}

/// `[rows, inner]` by `[inner, columns]`.
fn matmul(x: &[f64], w: &[f64], inner: usize) -> Vec<f64> {
    let columns = w.len() / inner;
    let mut y = vec![0.0; x.len() / inner * columns];
    for (x, y) in x.chunks(inner).zip(y.chunks_mut(columns)) {
        for (x, w) in x.iter().zip(w.chunks(columns)) {
            y.iter_mut().zip(w).for_each(|(y, w)| *y += x * w);
        }
    }
    y
}

fn rms_norm(x: &[f64], scale: &[f64], eps: f64) -> Vec<f64> {
    let norm = |x: &[f64]| {
        let r = (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + eps).sqrt().recip();
        x.iter().zip(scale).map(|(x, s)| x * r * s).collect::<Vec<_>>()
    };
    x.chunks(scale.len()).flat_map(norm).collect()
}

fn rotate(x: &mut [f64], config: &ModelConfig, batch: &Packed) {
    let (d, half) = (config.head_dim, config.head_dim / 2);
    let width = x.len() / batch.inputs.len();
    for (x, &position) in x.chunks_mut(width).zip(&batch.inputs_position) {
        for head in x.chunks_mut(d) {
            for i in 0..half {
                let (a, b) = if config.rope.interleaved { (2 * i, 2 * i + 1) } else { (i, i + half) };
                let (sin, cos) = (f64::from(position) * frequency(&config.rope, i, d)).sin_cos();
                (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[b] * cos + head[a] * sin);
            }
        }
    }
}

fn frequency(rope: &Rope, i: usize, head_dim: usize) -> f64 {
    let growth = (rope.max_timescale / rope.min_timescale).powf(2.0 * i as f64 / head_dim as f64);
    let frequency = 1.0 / (rope.min_timescale * growth * rope.linear_scaling_factor);
    if !rope.llama31_scaling {
        return frequency;
    }
    let wavelength = 2.0 * std::f64::consts::PI / frequency;
    if wavelength < 8192.0 / 4.0 {
        frequency
    } else if wavelength > 8192.0 {
        frequency / 8.0
    } else {
        let smooth = (8192.0 / wavelength - 1.0) / 3.0;
        (1.0 - smooth) * frequency / 8.0 + smooth * frequency
    }
}

fn attend(config: &ModelConfig, batch: &Packed, q: &[f64], k: &[f64], v: &[f64]) -> Vec<f64> {
    let (d, s) = (config.head_dim, batch.seq_len);
    let (query_heads, kv_heads) = (config.num_query_heads, config.num_kv_heads);
    let window = config.sliding_window_size.unwrap_or(usize::MAX);
    let mut out = vec![0.0; q.len()];
    for t in 0..batch.inputs.len() {
        let row = t / s * s;
        let seen: Vec<usize> = (row..=t)
            .filter(|&u| batch.inputs_segmentation[u] == batch.inputs_segmentation[t] && t - u < window)
            .collect();
        for h in 0..query_heads {
            let g = h / (query_heads / kv_heads);
            let head = |x: &[f64], u: usize, heads: usize, h: usize| x[(u * heads + h) * d..][..d].to_vec();
            let query = head(q, t, query_heads, h);
            let scores: Vec<f64> = seen
                .iter()
                .map(|&u| head(k, u, kv_heads, g).iter().zip(&query).map(|(k, q)| k * q).sum::<f64>())
                .map(|score| config.attn_logits_soft_cap.map_or(score, |cap| cap * (score / cap).tanh()))
                .collect();
            let max = scores.iter().copied().fold(f64::MIN, f64::max);
            let total: f64 = scores.iter().map(|score| (score - max).exp()).sum();
            for (&u, score) in seen.iter().zip(&scores) {
                let p = (score - max).exp() / total;
                let value = head(v, u, kv_heads, g);
                out[(t * query_heads + h) * d..][..d].iter_mut().zip(value).for_each(|(o, v)| *o += p * v);
            }
        }
    }
    out
}
