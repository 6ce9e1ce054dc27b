//! Implementations of [`cross_entropy`].

use burn::tensor::{Int, Tensor};

use super::{Implementation, everywhere, experiments, plain};
use crate::ops::cross_entropy::{self, Backward, Head, Spec};

/// As [`cross_entropy::forward_backward`]: `h, head, targets, weights, factor, spec`.
pub type CrossEntropy = fn(Tensor<2>, Head, &Tensor<1, Int>, &Tensor<1>, f64, &Spec) -> Backward;

/// All of them, experiments last.
pub fn implementations() -> Vec<Implementation<CrossEntropy>> {
    let mut all: Vec<Implementation<CrossEntropy>> = vec![
        Implementation { name: "fused", runs_on: everywhere, functions: cross_entropy::forward_backward },
        Implementation {
            name: "plain",
            runs_on: everywhere,
            functions: |h, head, targets, weights, factor, spec| {
                let head = match head {
                    Head::Dense(w) => Head::Dense(plain(w)),
                    Head::Embedding(w) => Head::Embedding(plain(w)),
                };
                let weights = plain(weights.clone());
                let got = cross_entropy::forward_backward(plain(h), head, targets, &weights, factor, spec);
                Backward { dh: got.dh.inner(), dw: got.dw.inner(), ..got }
            },
        },
    ];
    all.extend(experiments());
    all
}

// A name a line: `mine` is the file `mine.rs` of this folder, which has
// `pub(super) const IMPLEMENTATION: Implementation<CrossEntropy>`.
experiments! { CrossEntropy:
}
