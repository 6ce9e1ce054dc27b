//! Implementations of [`attention`].

use burn::tensor::Tensor;
use mt_config::AttentionKernel;

use super::{Implementation, everywhere, experiments};
use crate::ops::attention::{self, Layout, Spec};

/// As [`attention::forward`]: `q, k, v` -> (`out`, `lse`). `spec.kernel` means nothing here.
pub type Forward = fn(Tensor<2>, Tensor<2>, Tensor<2>, &Layout, &Spec) -> (Tensor<2>, Tensor<2>);

/// As [`attention::backward`]: `[q, k, v, out, lse, dout]` -> `[dq, dk, dv]`.
pub type Backward = fn([Tensor<2>; 6], &Layout, &Spec) -> [Tensor<2>; 3];

/// Both passes.
#[derive(Debug, Clone, Copy)]
pub struct Attention {
    /// The forward pass.
    pub forward: Forward,
    /// The backward pass; a forward pass alone is checked and measured alone.
    pub backward: Option<Backward>,
}

/// All of them, experiments last.
pub fn implementations() -> Vec<Implementation<Attention>> {
    let mut all = vec![
        Implementation {
            name: "flash",
            runs_on: everywhere,
            functions: Attention {
                forward: |q, k, v, layout, spec| attention::forward(q, k, v, layout, &of(spec, FLASH)),
                backward: Some(|operands, layout, spec| backward(operands, layout, &of(spec, FLASH))),
            },
        },
        Implementation {
            name: "dot_product",
            runs_on: everywhere,
            functions: Attention {
                forward: |q, k, v, layout, spec| attention::forward(q, k, v, layout, &of(spec, DOT_PRODUCT)),
                backward: Some(|operands, layout, spec| backward(operands, layout, &of(spec, DOT_PRODUCT))),
            },
        },
    ];
    all.extend(experiments());
    all
}

const FLASH: AttentionKernel = AttentionKernel::Flash;
const DOT_PRODUCT: AttentionKernel = AttentionKernel::DotProduct;

fn of(spec: &Spec, kernel: AttentionKernel) -> Spec {
    Spec { kernel, ..*spec }
}

fn backward([q, k, v, out, lse, dout]: [Tensor<2>; 6], layout: &Layout, spec: &Spec) -> [Tensor<2>; 3] {
    let (dq, dk, dv) = attention::backward(q, k, v, out, lse, dout, layout, spec);
    [dq, dk, dv]
}

// A name a line: `mine` is the file `mine.rs` of this folder, which has
// `pub(super) const IMPLEMENTATION: Implementation<Attention>`.
experiments! { Attention:
}
