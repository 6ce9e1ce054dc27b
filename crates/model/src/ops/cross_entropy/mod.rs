//! The output head and the loss in one: logits, softmax cross-entropy with z-loss, and both gradients, tile by tile.
//!
//! ```text
//! a[t, v]  = scale * sum_e h[t, e] w[e, v]                  scale 1, or 1/sqrt(E) with tied embeddings
//! l[t, v]  = a, or cap tanh(a / cap) with a soft cap
//! z[t]     = log sum_v exp l[t, v]
//! xent[t]  = z[t] - l[t, target[t]] + m z[t]^2              m = z_loss_multiplier
//! sums     = sum_t weight[t] xent[t],  sum_t weight[t] m z[t]^2
//! dl[t, v] = factor weight[t] ((1 + 2 m z[t]) exp(l[t, v] - z[t]) - [v = target[t]])
//! da       = scale dl, times 1 - (l / cap)^2 with a soft cap
//! dh[t, e] = sum_v da[t, v] w[e, v]
//! dw[e, v] = sum_t h[t, e] da[t, v]
//! ```
//!
//! A tile is a block of rows: its logits are computed, turned into `da` in place and used for both products, so that never
//! more than a tile of `[T, V]` exists. The loss includes the z-loss, as MaxText's does. Rows of weight 0 have no loss and no
//! gradient, whatever their target is.
//!
//! Precision. The kernel is rounded to the type of the product: h's, or float32 with `dot_in_fp32`. A bfloat16 product's
//! logits are rounded to bfloat16 as MaxText's are. From there on everything is float32 (also without `cast_fp32`, where
//! MaxText takes the softmax in bfloat16), sums over tokens are float64, `dh` has h's type and `dw` is float32.

mod cpu;
#[cfg(feature = "gpu")]
mod cube;
mod plain;
mod softmax;

use burn::tensor::{Int, Tensor};

use super::engine::{Placed, placed};
use crate::profile::{Kind, span};

/// How logits and loss are computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spec {
    /// `z_loss_multiplier`: weight of the squared log-partition in the loss.
    pub z_loss_multiplier: f64,
    /// `final_logits_soft_cap`.
    pub soft_cap: Option<f64>,
    /// Factor on the product: 1/sqrt(E) for tied embeddings with `normalize_embedding_logits`, else 1.
    pub logits_scale: f64,
    /// `logits_dot_in_fp32`: the product in float32 whatever h's type is.
    pub dot_in_fp32: bool,
    /// `cast_logits_to_fp32`. The softmax is float32 in any case.
    pub cast_fp32: bool,
    /// `num_vocab_tiling`: at least this many tiles; more when a tile would be larger than the kernel wants.
    pub tiling: usize,
}

/// The matrix that turns a hidden state into logits.
#[derive(Debug, Clone)]
pub enum Head {
    /// `logits_dense`: [E, V].
    Dense(Tensor<2>),
    /// The embedding table (`logits_via_embedding`): [V, E].
    Embedding(Tensor<2>),
}

/// Sums over the tokens of a batch, each times its weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sums {
    /// Cross-entropy, including the z-loss, in nats.
    pub xent_sum: f64,
    /// The z-loss alone.
    pub z_loss_sum: f64,
}

/// The loss and its gradients.
#[derive(Debug, Clone)]
pub struct Backward {
    /// As [`Sums::xent_sum`].
    pub xent_sum: f64,
    /// As [`Sums::z_loss_sum`].
    pub z_loss_sum: f64,
    /// Gradient of the hidden states, [T, E] of their type.
    pub dh: Tensor<2>,
    /// Gradient of the head's matrix, shaped as it is, float32.
    pub dw: Tensor<2>,
}

impl Head {
    fn into_parts(self) -> (Tensor<2>, bool) {
        match self {
            Self::Dense(w) => (w, false),
            Self::Embedding(w) => (w, true),
        }
    }

    fn from_parts(w: Tensor<2>, tied: bool) -> Self {
        match tied {
            false => Self::Dense(w),
            true => Self::Embedding(w),
        }
    }
}

/// Logits `[T, V]` in float32 of `h: [T, E]`, scaled and capped.
pub fn logits(h: Tensor<2>, head: Head, spec: &Spec) -> Tensor<2> {
    let (w, tied) = head.into_parts();
    match placed([h, w]) {
        Placed::Host([h, w]) => cpu::logits(&h, &cpu::Kernel { w, tied }, spec).into_tensor(),
        #[cfg(feature = "gpu")]
        Placed::Cube([h, w]) => super::cube::tensor(cube::logits(h, w, tied, spec)),
        Placed::Other([h, w]) => plain::logits(h, Head::from_parts(w, tied), spec),
    }
}

/// The loss alone. `h: [T, E]`, `targets: [T]`, `weights: [T]` float32 (the mask; rows of weight 0 don't count). A target
/// outside 0..V on a row that counts makes the loss NaN.
pub fn forward(h: Tensor<2>, head: Head, targets: &Tensor<1, Int>, weights: &Tensor<1>, spec: &Spec) -> Sums {
    let _span = span(Kind::Operation, "cross_entropy.forward");
    let (w, tied) = head.into_parts();
    match placed([h, w]) {
        Placed::Host([h, w]) => cpu::forward(&h, &cpu::Kernel { w, tied }, cpu::rows(targets, weights), spec),
        #[cfg(feature = "gpu")]
        Placed::Cube([h, w]) => cube::forward(h, w, tied, targets, weights, spec),
        Placed::Other([h, w]) => plain::forward(h, Head::from_parts(w, tied), targets, weights, spec),
    }
}

/// The loss and the gradients of `factor` times its sum, `factor` being one over the total weight of the global batch.
/// Arguments as [`forward`]'s.
pub fn forward_backward(
    h: Tensor<2>,
    head: Head,
    targets: &Tensor<1, Int>,
    weights: &Tensor<1>,
    factor: f64,
    spec: &Spec,
) -> Backward {
    let _span = span(Kind::Operation, "cross_entropy.backward");
    let (w, tied) = head.into_parts();
    match placed([h, w]) {
        Placed::Host([h, w]) => cpu::forward_backward(
            &h,
            &cpu::Kernel { w, tied },
            cpu::rows(targets, weights),
            factor as f32,
            spec,
        ),
        #[cfg(feature = "gpu")]
        Placed::Cube([h, w]) => cube::forward_backward(h, w, tied, targets, weights, factor, spec),
        Placed::Other([h, w]) => {
            plain::forward_backward(h, Head::from_parts(w, tied), targets, weights, factor, spec)
        }
    }
}
