//! The gated linear unit on a GPU: a unit per element.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use mt_config::Activation;

use crate::ops::cube::{arg, cube_dim, dims, element, empty, len, tanh, units};

pub(super) fn forward(gate: &CubeTensor, up: &CubeTensor, act: Activation) -> CubeTensor {
    let h = empty(dims(gate), gate.dtype, gate);
    forward_kernel::launch(
        &gate.client,
        units(len(gate)),
        cube_dim(),
        arg(gate),
        arg(up),
        arg(&h),
        act,
        [element(gate), element(up)],
    );
    h
}

pub(super) fn backward(
    gate: &CubeTensor,
    up: &CubeTensor,
    act: Activation,
    dh: &CubeTensor,
) -> (CubeTensor, CubeTensor) {
    let [dgate, dup] = [(); 2].map(|()| empty(dims(gate), gate.dtype, gate));
    backward_kernel::launch(
        &gate.client,
        units(len(gate)),
        cube_dim(),
        arg(gate),
        arg(up),
        arg(dh),
        arg(&dgate),
        arg(&dup),
        act,
        [element(gate), element(up), element(dh)],
    );
    (dgate, dup)
}

/// `h = act(gate) up`
#[cube(launch)]
pub(crate) fn forward_kernel<E: Float, U: Float>(
    gate: &[E],
    up: &[U],
    h: &mut [E],
    #[comptime] act: Activation,
    #[define(E, U)] _types: [ElemType; 2],
) {
    let i = ABSOLUTE_POS;
    if i < h.len() {
        h[i] = E::cast_from(value(f32::cast_from(gate[i]), act) * f32::cast_from(up[i]));
    }
}

/// `dgate = dh up act'(gate)`, `dup = dh act(gate)`
#[cube(launch)]
pub(crate) fn backward_kernel<E: Float, U: Float, D: Float>(
    gate: &[E],
    up: &[U],
    dh: &[D],
    dgate: &mut [E],
    dup: &mut [E],
    #[comptime] act: Activation,
    #[define(E, U, D)] _types: [ElemType; 3],
) {
    let i = ABSOLUTE_POS;
    if i < dgate.len() {
        let (g, d) = (f32::cast_from(gate[i]), f32::cast_from(dh[i]));
        dgate[i] = E::cast_from(d * f32::cast_from(up[i]) * slope(g, act));
        dup[i] = E::cast_from(d * value(g, act));
    }
}

const C: f32 = 0.797_884_6; // sqrt(2/pi)
const CUBIC: f32 = 0.044_715;

#[cube]
fn value(x: f32, #[comptime] act: Activation) -> f32 {
    match act {
        Activation::Silu => x * sigmoid(x),
        Activation::Gelu => f32::new(0.5) * x * (f32::new(1.0) + inner(x)),
        Activation::Relu => relu(x),
        Activation::Linear => x,
    }
}

#[cube]
fn slope(x: f32, #[comptime] act: Activation) -> f32 {
    match act {
        Activation::Silu => {
            let s = sigmoid(x);
            s * (f32::new(1.0) + x * (f32::new(1.0) - s))
        }
        Activation::Gelu => {
            let t = inner(x);
            let u = C * (1.0 + 3.0 * CUBIC * x * x);
            f32::new(0.5) * (f32::new(1.0) + t + x * (f32::new(1.0) - t * t) * u)
        }
        Activation::Relu => step(x),
        Activation::Linear => f32::new(1.0),
    }
}

#[cube]
fn sigmoid(x: f32) -> f32 {
    f32::new(1.0) / (f32::new(1.0) + (-x).exp())
}

/// tanh of gelu's argument.
#[cube]
fn inner(x: f32) -> f32 {
    tanh(C * (x + CUBIC * x * x * x))
}

/// max(x, 0), written so that NaN stays NaN.
#[cube]
fn relu(x: f32) -> f32 {
    if x <= 0.0 { f32::new(0.0) } else { x }
}

#[cube]
fn step(x: f32) -> f32 {
    if x <= 0.0 { f32::new(0.0) } else { f32::new(1.0) }
}

#[cfg(all(test, feature = "rocm"))]
mod hip {
    use crate::ops::cube::hip_text::{BF16, F32, Kernel};

    use super::*;

    #[test]
    fn hip_text() {
        let acts = [Activation::Silu, Activation::Gelu, Activation::Relu, Activation::Linear];
        for (e, act) in [BF16, F32].into_iter().flat_map(|e| acts.map(|act| (e, act))) {
            let name = |pass: &str| format!("glu_{pass}_{act:?}").to_lowercase();
            let sizes = [("tokens", 50), ("features", 1000)];
            Kernel::new(&name("forward"), &[e], sizes)
                .buffer("gate", e, "tokens, features")
                .buffer("up", e, "tokens, features")
                .buffer("h", e, "tokens, features")
                .units("tokens*features")
                .write(|k, p, t, b| forward_kernel::ForwardKernel::new(k, p, t, b(), b(), b(), act, [e; 2]));
            Kernel::new(&name("backward"), &[e], sizes)
                .buffer("gate", e, "tokens, features")
                .buffer("up", e, "tokens, features")
                .buffer("dh", e, "tokens, features")
                .buffer("dgate", e, "tokens, features")
                .buffer("dup", e, "tokens, features")
                .units("tokens*features")
                .write(|k, p, t, b| {
                    backward_kernel::BackwardKernel::new(k, p, t, b(), b(), b(), b(), b(), act, [e; 3])
                });
        }
    }
}
