//! The gated linear unit composed of burn's operations.

use burn::tensor::{DType, Tensor, activation};
use mt_config::Activation;

/// sqrt(2/pi)
const C: f64 = 0.797_884_560_802_865_4;
const CUBIC: f64 = 0.044715;

pub(super) fn forward(gate: Tensor<2>, up: Tensor<2>, act: Activation) -> Tensor<2> {
    let dtype = gate.dtype();
    (value(gate.cast(DType::F32), act) * up.cast(DType::F32)).cast(dtype)
}

pub(super) fn backward(
    gate: Tensor<2>,
    up: Tensor<2>,
    act: Activation,
    dh: Tensor<2>,
) -> (Tensor<2>, Tensor<2>) {
    let dtype = gate.dtype();
    let (gate, up, dh) = (gate.cast(DType::F32), up.cast(DType::F32), dh.cast(DType::F32));
    let dup = dh.clone() * value(gate.clone(), act);
    let dgate = dh * up * derivative(gate, act);
    (dgate.cast(dtype), dup.cast(dtype))
}

fn value(x: Tensor<2>, act: Activation) -> Tensor<2> {
    match act {
        Activation::Silu => x.clone() * activation::sigmoid(x),
        Activation::Gelu => x.clone() * inner(x).tanh().add_scalar(1.0).mul_scalar(0.5),
        Activation::Relu => activation::relu(x),
        Activation::Linear => x,
    }
}

fn derivative(x: Tensor<2>, act: Activation) -> Tensor<2> {
    match act {
        Activation::Silu => {
            let s = activation::sigmoid(x.clone());
            s.clone() * (x * s.neg().add_scalar(1.0)).add_scalar(1.0)
        }
        Activation::Gelu => {
            let t = inner(x.clone()).tanh();
            let slope = (x.clone() * x.clone()).mul_scalar(3.0 * CUBIC).add_scalar(1.0).mul_scalar(C);
            let bend = x * (t.clone() * t.clone()).neg().add_scalar(1.0) * slope;
            (t.add_scalar(1.0) + bend).mul_scalar(0.5)
        }
        Activation::Relu => x.clone().greater_elem(0.0).float().cast(DType::F32),
        Activation::Linear => x.ones_like(),
    }
}

fn inner(x: Tensor<2>) -> Tensor<2> {
    let cube = x.clone() * x.clone() * x.clone();
    (x + cube.mul_scalar(CUBIC)).mul_scalar(C)
}
