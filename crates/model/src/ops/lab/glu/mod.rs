//! Implementations of [`glu`].

use burn::tensor::Tensor;
use mt_config::Activation;

use super::{Implementation, everywhere, experiments, plain};
use crate::ops::glu;

/// Both passes.
#[derive(Debug, Clone, Copy)]
pub struct Glu {
    /// As [`glu::forward`]: `gate, up` -> `h`.
    pub forward: fn(Tensor<2>, Tensor<2>, Activation) -> Tensor<2>,
    /// As [`glu::backward`]: `gate, up, dh` -> (`dgate`, `dup`).
    pub backward: fn(Tensor<2>, Tensor<2>, Activation, Tensor<2>) -> (Tensor<2>, Tensor<2>),
}

/// All of them, experiments last.
pub fn implementations() -> Vec<Implementation<Glu>> {
    let mut all = vec![
        Implementation {
            name: "fused",
            runs_on: everywhere,
            functions: Glu { forward: glu::forward, backward: glu::backward },
        },
        Implementation {
            name: "plain",
            runs_on: everywhere,
            functions: Glu {
                forward: |gate, up, activation| glu::forward(plain(gate), plain(up), activation).inner(),
                backward: |gate, up, activation, dh| {
                    let (dgate, dup) = glu::backward(plain(gate), plain(up), activation, plain(dh));
                    (dgate.inner(), dup.inner())
                },
            },
        },
    ];
    all.extend(experiments());
    all
}

// A name a line: `mine` is the file `mine.rs` of this folder, which has
// `pub(super) const IMPLEMENTATION: Implementation<Glu>`.
experiments! { Glu:
}
