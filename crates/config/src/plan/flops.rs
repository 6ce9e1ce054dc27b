//! Floating-point operations of a step, by MaxText's formula.
//!
//! Counted are the matrix products of forward and backward (twice the forward), with causal attention at half of its full
//! square. Not counted: the embedding lookup, norms and other elementwise work, and what remat computes again.

use crate::keys::Config;
use crate::model::ModelConfig;

/// Operations of one training step on one device, all micro batches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flops {
    /// In products with weights.
    pub weights: f64,
    /// In attention's two products.
    pub attention: f64,
}

impl Flops {
    /// `3 * [2*B*S*(L*(E*(Hq+2*Hkv)*D + Hq*D*E + 3*E*M) + E*V) + L*4*B*S^2*Hq*D/2]`, times micro batches.
    pub(super) fn of(config: &Config, model: &ModelConfig) -> Self {
        let [e, m, v, d] = [model.emb_dim, model.mlp_dim, model.vocab_size, model.head_dim].map(|n| n as f64);
        let [hq, hkv, layers] =
            [model.num_query_heads, model.num_kv_heads, model.num_decoder_layers].map(|n| n as f64);
        let rows = (config.rows_per_rank() * config.gradient_accumulation_steps) as f64;
        let length = config.max_target_length as f64;

        let layer = e * (hq + 2.0 * hkv) * d + hq * d * e + 3.0 * e * m;
        let causal_half = 0.5;
        Self {
            weights: 3.0 * 2.0 * rows * length * (layers * layer + e * v),
            attention: 3.0 * layers * 4.0 * rows * length * length * hq * d * causal_half,
        }
    }

    /// Both.
    pub fn total(&self) -> f64 {
        self.weights + self.attention
    }
}
