//! AdamW in optax's form, one pass over parameter, gradient and moments.
//!
//! ```text
//! g  = grad * grad_scale                              the clipping factor
//! mu = b1 mu + (1 - b1) g
//! nu = b2 nu + (1 - b2) g^2
//! update = (mu / c1) / (sqrt(nu / c2 + eps_root) + eps) + weight_decay param
//! param  = param - learning_rate update
//! ```
//!
//! c1 and c2 are the bias corrections, `1 - b^t` at the t-th step (t from 1). With Nesterov's momentum, `b1 mu / c1' + (1 - b1) g / c1`
//! with the next step's c1' stands in place of `mu / c1`. Arithmetic is float32; parameter and moments
//! are rounded to the types they are stored in only when stored, so the update uses the exact new moments. A bfloat16
//! parameter may be rounded stochastically: up with the probability of the distance from the value below, so that
//! updates smaller than its precision count on average.

mod cpu;
#[cfg(feature = "gpu")]
pub(crate) mod cube;
mod plain;

use burn::tensor::Tensor;

use super::elementwise::SumOfSquares;
use super::engine::{Placed, placed};
use crate::profile::{Kind, span};

/// The numbers of one step, equal for all parameters that share a decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hyper {
    /// The step's learning rate.
    pub learning_rate: f64,
    /// Decay of the first moment.
    pub b1: f64,
    /// Decay of the second moment.
    pub b2: f64,
    /// What the first moment is divided by: `1 - b1^t`.
    pub bias_correction1: f64,
    /// What the second moment is divided by: `1 - b2^t`.
    pub bias_correction2: f64,
    /// Nesterov's momentum: what the first moment will be divided by at the next step, `1 - b1^(t+1)`. None without.
    pub look_ahead: Option<f64>,
    /// Added outside of the root.
    pub eps: f64,
    /// Added inside the root.
    pub eps_root: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Factor on the gradient (clipping by the global norm).
    pub grad_scale: f64,
    /// Stochastic rounding of bfloat16 parameters; none rounds to nearest.
    pub stochastic_rounding: Option<Dither>,
}

/// What decides how an element is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dither {
    /// Different for every parameter and step.
    pub seed: u64,
    /// The number of the tensor's first element in the parameter, which may be cut into shards; modulo 2^32.
    pub first: u32,
}

/// A parameter after its step, and its moments.
#[derive(Debug, Clone)]
pub struct Updated {
    /// The parameter, of its type.
    pub param: Tensor<2>,
    /// First moment, of its type.
    pub mu: Tensor<2>,
    /// Second moment, of its type.
    pub nu: Tensor<2>,
    /// Sum of the squares of the new parameter: its part of the parameters' norm, free in the same pass.
    pub param_squares: SumOfSquares,
}

/// One step. All tensors of one shape, each float32 or bfloat16; written in place when nobody else holds them.
pub fn update(param: Tensor<2>, grad: Tensor<2>, mu: Tensor<2>, nu: Tensor<2>, hyper: &Hyper) -> Updated {
    let _span = span(Kind::Operation, "adamw");
    match placed([param, grad, mu, nu]) {
        Placed::Host([param, grad, mu, nu]) => cpu::update(param, &grad, mu, nu, hyper),
        #[cfg(feature = "gpu")]
        Placed::Cube([param, grad, mu, nu]) => cube::update(param, &grad, mu, nu, hyper),
        Placed::Other([param, grad, mu, nu]) => plain::update(param, grad, mu, nu, hyper),
    }
}
