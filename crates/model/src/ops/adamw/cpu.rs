//! The step on slices, in place.

use rayon::prelude::*;

use super::{Dither, Hyper, Updated};
use crate::ops::elementwise::SumOfSquares;
use crate::ops::engine::{BLOCK, Host, by_dtype};
use crate::ops::real::Real;
use crate::ops::reduce::squares;
use crate::ops::vector::vectorized;

/// The step's numbers in float32.
#[derive(Clone, Copy)]
struct Step {
    learning_rate: f32,
    b1: f32,
    b2: f32,
    rest1: f32, // 1 - b1
    rest2: f32,
    of_mu: f32,       // the first moment's factor in the direction: 1 / (1 - b1^t)
    of_grad: f32,     // the gradient's: 0 without Nesterov's momentum
    correction2: f32, // 1 / (1 - b2^t)
    eps: f32,
    eps_root: f32,
    weight_decay: f32,
    grad_scale: f32,
}

impl Step {
    fn new(hyper: &Hyper) -> Self {
        let (of_mu, of_grad) = match hyper.look_ahead {
            None => (1.0 / hyper.bias_correction1, 0.0),
            Some(next) => (hyper.b1 / next, (1.0 - hyper.b1) / hyper.bias_correction1),
        };
        Self {
            learning_rate: hyper.learning_rate as f32,
            b1: hyper.b1 as f32,
            b2: hyper.b2 as f32,
            rest1: (1.0 - hyper.b1) as f32,
            rest2: (1.0 - hyper.b2) as f32,
            of_mu: of_mu as f32,
            of_grad: of_grad as f32,
            correction2: (1.0 / hyper.bias_correction2) as f32,
            eps: hyper.eps as f32,
            eps_root: hyper.eps_root as f32,
            weight_decay: hyper.weight_decay as f32,
            grad_scale: hyper.grad_scale as f32,
        }
    }
}

pub(super) fn update(mut param: Host, grad: &Host, mut mu: Host, mut nu: Host, hyper: &Hyper) -> Updated {
    let grad = grad.values::<f32>();
    let param_squares = by_dtype!(param.dtype(), P => by_dtype!(mu.dtype(), M => by_dtype!(nu.dtype(), N => {
        run::<P, M, N>(param.values_mut(), &grad, mu.values_mut(), nu.values_mut(), hyper)
    })));
    let param_squares = SumOfSquares::known(param_squares);
    Updated { param: param.into_tensor(), mu: mu.into_tensor(), nu: nu.into_tensor(), param_squares }
}

fn run<P: Real, M: Real, N: Real>(
    param: &mut [P],
    grad: &[f32],
    mu: &mut [M],
    nu: &mut [N],
    hyper: &Hyper,
) -> f64 {
    let step = Step::new(hyper);
    let blocks = param.par_chunks_mut(BLOCK).zip(grad.par_chunks(BLOCK));
    let moments = mu.par_chunks_mut(BLOCK).zip(nu.par_chunks_mut(BLOCK));
    let block_squares: Vec<f64> = blocks
        .zip(moments)
        .enumerate()
        .map(|(i, ((param, grad), (mu, nu)))| {
            match hyper.stochastic_rounding {
                None => update_block(param, grad, mu, nu, &step),
                Some(Dither { seed, first }) => {
                    let first = first.wrapping_add((i * BLOCK) as u32);
                    update_block_dithered(param, grad, mu, nu, &step, seed, first);
                }
            }
            squares(param)
        })
        .collect();
    block_squares.iter().sum()
}

vectorized! {
    fn update_block<P: Real, M: Real, N: Real>(param: &mut [P], grad: &[f32], mu: &mut [M], nu: &mut [N], step: &Step) {
        for (((p, g), mu), nu) in param.iter_mut().zip(grad).zip(mu).zip(nu) {
            *p = P::from_f32(advance(p.to_f32(), *g, mu, nu, step));
        }
    }
}

vectorized! {
    /// `first`: the index in the parameter of the block's first element.
    fn update_block_dithered<P: Real, M: Real, N: Real>(
        param: &mut [P], grad: &[f32], mu: &mut [M], nu: &mut [N], step: &Step, seed: u64, first: u32,
    ) {
        for ((((p, g), mu), nu), i) in param.iter_mut().zip(grad).zip(mu).zip(nu).zip(0..) {
            let noise = noise(seed, first.wrapping_add(i));
            *p = P::from_f32_dithered(advance(p.to_f32(), *g, mu, nu, step), noise);
        }
    }
}

/// Advances the moments; returns the new parameter.
#[inline(always)]
fn advance<M: Real, N: Real>(p: f32, grad: f32, mu: &mut M, nu: &mut N, step: &Step) -> f32 {
    let g = grad * step.grad_scale;
    let m = step.b1 * mu.to_f32() + step.rest1 * g;
    let n = step.b2 * nu.to_f32() + step.rest2 * (g * g);
    (*mu, *nu) = (M::from_f32(m), N::from_f32(n));
    let root = (n * step.correction2 + step.eps_root).sqrt();
    let update = (m * step.of_mu + g * step.of_grad) / (root + step.eps) + step.weight_decay * p;
    p - step.learning_rate * update
}

/// 16 random bits per seed and index: a multiply-xorshift hash.
#[inline(always)]
fn noise(seed: u64, index: u32) -> u32 {
    let mut x = index.wrapping_mul(0x9e37_79b9) ^ seed as u32;
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d) ^ (seed >> 32) as u32;
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    (x ^ (x >> 16)) & 0xffff
}
