//! Muon as optax's: the momentum of a matrix, made orthogonal by five Newton-Schulz iterations.
//!
//! ```text
//! mu     = beta mu + (1 - beta) g
//! ahead  = beta mu / (1 - beta^(t+1)) + (1 - beta) g / (1 - beta^t)
//! update = scale * orthogonal(ahead) + weight_decay param
//! ```
//!
//! The matrix is `[in, out]` with heads flattened, as parameters lie in memory, one per layer. Everything else (embedding,
//! output head, norm scales, biases) goes through AdamW with Nesterov momentum.

use super::{Step, descend};
use burn::tensor::{DType, Tensor};
use mt_config::Config;
use mt_model::ops::elementwise;

/// Iterations, and the coefficients of x, x x^T x and (x x^T)^2 x in each.
const STEPS: usize = 5;
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];

/// `muon_*` keys.
#[derive(Debug, Clone, Copy)]
pub(super) struct Muon {
    beta: f64,
    eps: f64,
    weight_decay: f64,
    consistent_rms: Option<f64>,
}

/// Whether the parameter of this path is a matrix between hidden features.
pub(super) fn takes(path: &str) -> bool {
    const OTHERS: [&str; 4] = ["scale", "embedding", "logits_dense", "bias"];
    !path.split('/').any(|segment| OTHERS.iter().any(|other| segment.contains(other)))
}

impl Muon {
    pub fn new(config: &Config) -> Self {
        Self {
            beta: config.muon_beta,
            eps: config.adam_eps,
            weight_decay: config.muon_weight_decay,
            consistent_rms: config.muon_consistent_rms,
        }
    }

    /// The new parameter and momentum.
    pub fn update(
        &self,
        param: Tensor<2>,
        gradient: Tensor<2>,
        mu: Tensor<2>,
        step: &Step,
    ) -> (Tensor<2>, Tensor<2>) {
        let mu_dtype = mu.dtype();
        let [gradient, mu] = [gradient, mu].map(|x| elementwise::cast(x, DType::F32));
        let gradient = gradient.mul_scalar(step.grad_scale * (1.0 - self.beta));
        let mu = mu.mul_scalar(self.beta) + gradient.clone();

        let t = step.count as f32 + 1.0;
        let correction = |t: f32| f64::from(1.0 - (self.beta as f32).powf(t));
        let ahead =
            mu.clone().mul_scalar(self.beta / correction(t + 1.0)) + gradient.div_scalar(correction(t));

        let [fan_in, fan_out] = param.dims().map(|n| n as f64);
        let scale = match self.consistent_rms {
            Some(rms) => fan_in.max(fan_out).sqrt() * rms,
            None => (fan_out / fan_in).max(1.0).sqrt(),
        };
        let decay = elementwise::cast(param.clone(), DType::F32).mul_scalar(self.weight_decay);
        let direction = orthogonal(ahead, self.eps).mul_scalar(scale) + decay;
        (descend(param, direction, step.learning_rate), elementwise::cast(mu, mu_dtype))
    }
}

/// Brings all singular values near 1: a matrix of the same row and column spaces, `[in, out]`.
fn orthogonal(x: Tensor<2>, eps: f64) -> Tensor<2> {
    let [a, b, c] = COEFFICIENTS;
    let tall = x.dims()[1] < x.dims()[0];
    let norm = elementwise::sum_of_squares(x.clone()).read().sqrt();
    // The Gram matrix is made of the shorter side.
    let mut x = if tall { x.transpose() } else { x }.div_scalar(norm + eps);
    for _ in 0..STEPS {
        let gram = x.clone().matmul(x.clone().transpose());
        let polynomial = gram.clone().mul_scalar(b) + gram.clone().matmul(gram).mul_scalar(c);
        x = x.clone().mul_scalar(a) + polynomial.matmul(x);
    }
    if tall { x.transpose() } else { x }
}
