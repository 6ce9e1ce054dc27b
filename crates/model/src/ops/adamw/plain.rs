//! The step composed of burn's operations. Rounds to nearest: stochastic rounding is the kernels'.

use burn::tensor::{DType, Tensor};

use super::{Hyper, Updated};
use crate::ops::elementwise::sum_of_squares;

pub(super) fn update(
    param: Tensor<2>,
    grad: Tensor<2>,
    mu: Tensor<2>,
    nu: Tensor<2>,
    hyper: &Hyper,
) -> Updated {
    let types = [param.dtype(), mu.dtype(), nu.dtype()];
    let [param, grad, mu, nu] = [param, grad, mu, nu].map(|x| x.cast(DType::F32));
    let grad = grad.mul_scalar(hyper.grad_scale);
    let mu = mu.mul_scalar(hyper.b1) + grad.clone().mul_scalar(1.0 - hyper.b1);
    let direction = match hyper.look_ahead {
        None => mu.clone().div_scalar(hyper.bias_correction1),
        Some(next) => {
            let gradient = grad.clone().mul_scalar((1.0 - hyper.b1) / hyper.bias_correction1);
            mu.clone().mul_scalar(hyper.b1 / next) + gradient
        }
    };
    let nu = nu.mul_scalar(hyper.b2) + (grad.clone() * grad).mul_scalar(1.0 - hyper.b2);
    let root = nu.clone().div_scalar(hyper.bias_correction2).add_scalar(hyper.eps_root).sqrt();
    let update = direction / root.add_scalar(hyper.eps);
    let update = update + param.clone().mul_scalar(hyper.weight_decay);
    let param = (param - update.mul_scalar(hyper.learning_rate)).cast(types[0]);
    let param_squares = sum_of_squares(param.clone());
    Updated { param, mu: mu.cast(types[1]), nu: nu.cast(types[2]), param_squares }
}
