//! The gated linear unit of the MLP: `h = act(gate) * up`, element by element.
//!
//! ```text
//! silu(x)   = x s,  s = 1 / (1 + e^-x)                    silu'   = s (1 + x (1 - s))
//! gelu(x)   = x (1 + t) / 2,  t = tanh(u)                 gelu'   = (1 + t) / 2 + x (1 - t^2) u' / 2
//!             u = sqrt(2/pi) (x + 0.044715 x^3)           u'      = sqrt(2/pi) (1 + 3 * 0.044715 x^2)
//! relu(x)   = max(x, 0)                                   relu'   = 1 where x > 0, else 0
//! linear(x) = x                                           linear' = 1
//!
//! dgate = dh up act'(gate)         dup = dh act(gate)
//! ```
//!
//! Arithmetic is float32 for every element type; only results are rounded.

mod cpu;
#[cfg(feature = "gpu")]
mod cube;
mod plain;

use burn::tensor::Tensor;
use mt_config::Activation;

#[cfg(feature = "gpu")]
use super::cube::tensor;
use super::engine::{Placed, placed};
use crate::profile::{Kind, span};

/// `gate, up: [T, M]` -> `[T, M]` of gate's type.
pub fn forward(gate: Tensor<2>, up: Tensor<2>, activation: Activation) -> Tensor<2> {
    let _span = span(Kind::Operation, "glu.forward");
    match placed([gate, up]) {
        Placed::Host([gate, up]) => cpu::forward(&gate, &up, activation).into_tensor(),
        #[cfg(feature = "gpu")]
        Placed::Cube([gate, up]) => tensor(cube::forward(&gate, &up, activation)),
        Placed::Other([gate, up]) => plain::forward(gate, up, activation),
    }
}

/// Gradients of both branches. `gate, up, dh: [T, M]` -> (`dgate`, `dup`), `[T, M]` of gate's type.
pub fn backward(
    gate: Tensor<2>,
    up: Tensor<2>,
    activation: Activation,
    dh: Tensor<2>,
) -> (Tensor<2>, Tensor<2>) {
    let _span = span(Kind::Operation, "glu.backward");
    match placed([gate, up, dh]) {
        Placed::Host([gate, up, dh]) => {
            let (dgate, dup) = cpu::backward(&gate, &up, activation, &dh);
            (dgate.into_tensor(), dup.into_tensor())
        }
        #[cfg(feature = "gpu")]
        Placed::Cube([gate, up, dh]) => {
            let (dgate, dup) = cube::backward(&gate, &up, activation, &dh);
            (tensor(dgate), tensor(dup))
        }
        Placed::Other([gate, up, dh]) => plain::backward(gate, up, activation, dh),
    }
}
