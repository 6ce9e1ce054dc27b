//! Implementations of [`adamw`].

use burn::tensor::Tensor;

use super::{Implementation, everywhere, experiments, plain};
use crate::ops::adamw::{self, Hyper};

/// As [`adamw::update`]: `[param, grad, mu, nu]` -> `[param, mu, nu]`.
pub type AdamW = fn([Tensor<2>; 4], &Hyper) -> [Tensor<2>; 3];

/// All of them, experiments last.
pub fn implementations() -> Vec<Implementation<AdamW>> {
    let mut all: Vec<Implementation<AdamW>> = vec![
        Implementation { name: "fused", runs_on: everywhere, functions: update },
        Implementation {
            name: "plain",
            runs_on: everywhere,
            functions: |operands, hyper| update(operands.map(plain), hyper).map(Tensor::inner),
        },
    ];
    all.extend(experiments());
    all
}

fn update([param, grad, mu, nu]: [Tensor<2>; 4], hyper: &Hyper) -> [Tensor<2>; 3] {
    let updated = adamw::update(param, grad, mu, nu, hyper);
    [updated.param, updated.mu, updated.nu]
}

// A name a line: `mine` is the file `mine.rs` of this folder, which has
// `pub(super) const IMPLEMENTATION: Implementation<AdamW>`.
experiments! { AdamW:
}
