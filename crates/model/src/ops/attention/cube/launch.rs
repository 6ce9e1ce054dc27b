//! A call's operands, tables and scalars, and the launches of its kernels.

use std::sync::Arc;

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::super::{Layout, Spec};
use super::mask::Options;
use super::tables::{self, Blocks, Key};
use super::tile::{SIDE, UNITS};
use super::variants::Variant;
use super::{backward, forward, matrix};
use crate::ops::cube::{arg, dims, element, empty, grid};

/// What the kernels of a call share.
pub(super) struct Call<'a> {
    /// The queries: results are like them.
    pub(super) like: &'a CubeTensor,
    pub(super) layout: &'a Layout,
    pub(super) spec: &'a Spec,
    /// Pairs of a query and a key that the mask lets through.
    pub(super) pairs: u64,
}

/// Launches a kernel without or with matrix units, whose arguments are the same.
macro_rules! launch {
    ($call:ident, $variant:ident, $heads:expr, $blocks:ident, $($plain:ident)::+, $($matrix:ident)::+, [$($operand:expr),*], [$($result:expr),*]) => {{
        let client = &$call.like.client;
        let grid = grid($blocks.count * $heads);
        let dim = CubeDim::new_1d(UNITS as u32);
        let Spec { num_query_heads, num_kv_heads, soft_cap, window, .. } = *$call.spec;
        let (capped, windowed) = (soft_cap.is_some(), window.is_some());
        let (cap, window) = (soft_cap.unwrap_or(0.0) as f32, window.unwrap_or(0));
        let dtype = element($call.like);
        match $variant {
            Variant::Plain(tile) => $($plain)::+::launch(
                client, grid, dim, $(arg($operand),)* arg(&$blocks.tokens), arg(&$blocks.entries), $(arg($result),)*
                $blocks.count, num_query_heads, num_kv_heads, cap, window, Options { tile, capped, windowed }, dtype,
            ),
            Variant::Matrix(tile) => $($matrix)::+::launch(
                client, grid, dim, $(arg($operand),)* arg(&$blocks.tokens), arg(&$blocks.entries), $(arg($result),)*
                $blocks.count, num_query_heads, num_kv_heads, cap, window, Options { tile, capped, windowed }, dtype,
            ),
        }
    }};
}

impl<'a> Call<'a> {
    /// `None` when operands are of several types.
    pub(super) fn new(operands: &[&'a CubeTensor], layout: &'a Layout, spec: &'a Spec) -> Option<Self> {
        let like = operands[0];
        operands.iter().all(|operand| operand.dtype == like.dtype).then(|| Self {
            like,
            layout,
            spec,
            pairs: layout.visible_pairs(spec.window),
        })
    }

    /// Multiply-adds of one product.
    pub(super) fn work(&self) -> u64 {
        self.pairs * (self.spec.num_query_heads * self.spec.head_dim) as u64
    }

    fn blocks(&self, of_keys: bool, variant: Variant) -> Arc<Blocks> {
        let key =
            Key { device: self.like.device.clone(), of_keys, rows: variant.rows(), window: self.spec.window };
        tables::blocks(self.layout, &key, self.like)
    }

    /// `out` and `lse` of q, k and v.
    pub(super) fn forward(&self, variant: Variant, [q, k, v]: &[CubeTensor; 3]) -> [CubeTensor; 2] {
        let heads = self.spec.num_query_heads;
        let out = empty(dims(q), q.dtype, q);
        let lse = empty([self.layout.num_tokens(), heads], DType::F32, q);
        let blocks = self.blocks(false, variant);
        launch!(
            self,
            variant,
            heads,
            blocks,
            forward::forward_kernel,
            matrix::forward::matrix_forward_kernel,
            [q, k, v],
            [&out, &lse]
        );
        [out, lse]
    }

    /// The dot products of the rows of `out` and `dout`.
    pub(super) fn delta(&self, out: &CubeTensor, dout: &CubeTensor) -> CubeTensor {
        let Spec { num_query_heads, head_dim, .. } = *self.spec;
        let rows = self.layout.num_tokens() * num_query_heads;
        let delta = empty([self.layout.num_tokens(), num_query_heads], DType::F32, out);
        backward::delta_kernel::launch(
            &out.client,
            grid(rows.div_ceil(SIDE)),
            CubeDim::new_1d(UNITS as u32),
            arg(out),
            arg(dout),
            arg(&delta),
            rows,
            head_dim,
            element(out),
        );
        delta
    }

    /// `dq` of q, k, v, dout, lse and delta.
    pub(super) fn queries(
        &self,
        variant: Variant,
        [q, k, v, dout, lse, delta]: [&CubeTensor; 6],
    ) -> [CubeTensor; 1] {
        let dq = empty(dims(q), q.dtype, q);
        let blocks = self.blocks(false, variant);
        launch!(
            self,
            variant,
            self.spec.num_query_heads,
            blocks,
            backward::dq_kernel,
            matrix::backward::matrix_dq_kernel,
            [q, k, v, dout, lse, delta],
            [&dq]
        );
        [dq]
    }

    /// `dk` and `dv` of q, k, v, dout, lse and delta.
    pub(super) fn keys(
        &self,
        variant: Variant,
        [q, k, v, dout, lse, delta]: [&CubeTensor; 6],
    ) -> [CubeTensor; 2] {
        let (dk, dv) = (empty(dims(k), k.dtype, q), empty(dims(v), v.dtype, q));
        let blocks = self.blocks(true, variant);
        launch!(
            self,
            variant,
            self.spec.num_kv_heads,
            blocks,
            backward::dkv_kernel,
            matrix::backward::matrix_dkv_kernel,
            [q, k, v, dout, lse, delta],
            [&dk, &dv]
        );
        [dk, dv]
    }
}
