//! Flash attention for AMD's matrix units, written by hand in HIP: [`super`]'s operation for bfloat16 and heads of 64 or 128.
//!
//! The texts beside this file are compiled by hiprtc at run time, as kernels of CubeCL that bring their own source: they run on its
//! stream and its buffers. They are chosen on gfx942 only, and only for what they do ([`covers`]); everything else
//! keeps to the portable kernels. No AMD GPU has run them yet: docs/rocm.md says what is proved instead.

#[cfg(feature = "rocm")]
pub(super) mod launch;
mod ranges;

use burn::tensor::DType;

use super::Spec;

/// One of the three kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kernel {
    /// `out` and `lse`.
    Forward,
    /// `dq` and the sums that the next one needs.
    BackwardQueries,
    /// `dk` and `dv`.
    BackwardKeys,
}

/// Queries or keys of a workgroup.
const BLOCK: usize = 128;
/// Queries or keys of a wave.
const WAVE: usize = 32;

impl Kernel {
    /// Name of the function.
    pub(super) const fn entry(self) -> &'static str {
        match self {
            Self::Forward => "attention_forward",
            Self::BackwardQueries => "attention_backward_queries",
            Self::BackwardKeys => "attention_backward_keys",
        }
    }

    /// The text for heads of `head_dim`, complete.
    pub(super) fn source(self, head_dim: usize) -> String {
        let text = match self {
            Self::Forward => include_str!("forward.hip"),
            Self::BackwardQueries => include_str!("backward_queries.hip"),
            Self::BackwardKeys => include_str!("backward_keys.hip"),
        };
        format!("#define HEAD_DIM {head_dim}\n{}\n{text}", include_str!("tile.h"))
    }
}

/// Whether the kernels compute `spec` for tensors of `dtype`.
pub(super) fn covers(spec: &Spec, dtype: DType) -> bool {
    dtype == DType::BF16 && matches!(spec.head_dim, 64 | 128) && spec.soft_cap.is_none()
}

/// What the kernels read of a window: distances below it are seen.
fn window(spec: &Spec) -> i32 {
    spec.window.and_then(|window| i32::try_from(window).ok()).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
