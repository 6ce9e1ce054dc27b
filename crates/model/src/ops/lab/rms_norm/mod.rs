//! Implementations of [`rms_norm`].

use burn::tensor::Tensor;

use super::{Implementation, everywhere, experiments, plain};
use crate::ops::rms_norm;

/// Both passes.
#[derive(Debug, Clone, Copy)]
pub struct RmsNorm {
    /// As [`rms_norm::forward`]: `x, scale, eps` -> `y`.
    pub forward: fn(Tensor<2>, Tensor<2>, f64) -> Tensor<2>,
    /// As [`rms_norm::backward`]: `x, scale, eps, dy` -> (`dx`, `dscale`).
    pub backward: fn(Tensor<2>, Tensor<2>, f64, Tensor<2>) -> (Tensor<2>, Tensor<2>),
}

/// All of them, experiments last.
pub fn implementations() -> Vec<Implementation<RmsNorm>> {
    let mut all = vec![
        Implementation {
            name: "fused",
            runs_on: everywhere,
            functions: RmsNorm { forward: rms_norm::forward, backward: rms_norm::backward },
        },
        Implementation {
            name: "plain",
            runs_on: everywhere,
            functions: RmsNorm {
                forward: |x, scale, eps| rms_norm::forward(plain(x), plain(scale), eps).inner(),
                backward: |x, scale, eps, dy| {
                    let (dx, dscale) = rms_norm::backward(plain(x), plain(scale), eps, plain(dy));
                    (dx.inner(), dscale.inner())
                },
            },
        },
    ];
    all.extend(experiments());
    all
}

// A name a line: `mine` is the file `mine.rs` of this folder, which has
// `pub(super) const IMPLEMENTATION: Implementation<RmsNorm>`.
experiments! { RmsNorm:
}
