//! Packed flash attention on GPUs, as CubeCL kernels for any runtime: no matrix units, float32 arithmetic.
//!
//! `forward.rs` and `backward.rs` state the maths above each kernel, `tile.rs` how a block is spread over the units of a
//! cube, `tables.rs` which blocks there are. Beside its results a call needs `delta` and nothing more.

pub(super) mod backward;
pub(super) mod forward;
pub(super) mod mask;
mod tables;
pub(super) mod tile;

use std::sync::Arc;

use burn::tensor::{DType, Tensor};
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::Client;
use cubecl::prelude::*;

use self::mask::Options;
use self::tables::{Key, Tables};
use self::tile::{SIDE, Tile, UNITS};
use super::{Layout, Spec};
use crate::ops::cube::{arg, dims, element, empty, grid, tensor};

pub(super) use self::tables::Cache;

/// The widest head that a unit's registers hold.
const MAX_HEAD_DIM: usize = 256;

/// The two ways of cutting: by queries (forward and dq) and by keys (dk and dv).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tiles {
    pub(super) queries: Tile,
    pub(super) keys: Tile,
}

/// Devices that the table of tiles tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// 32 KiB of shared memory and more: every GPU of a data centre.
    Large,
    /// The 16 KiB that WebGPU guarantees.
    Small,
}

impl Class {
    fn of(client: &Client) -> Self {
        match client.properties().hardware.max_shared_memory_size {
            32_768.. => Self::Large,
            _ => Self::Small,
        }
    }
}

/// The table of tiles, `None` for heads that are too wide. A unit keeps `head_dim / 16` results per row, and dk and dv at once:
/// blocks shrink as heads widen, so that everything stays in registers.
pub(super) fn tiles(class: Class, head_dim: usize) -> Option<Tiles> {
    let tile = |rows, columns| Tile { head_dim, rows, columns, depth: 16 };
    match (class, head_dim) {
        (_, 0) => None,
        (Class::Small, ..=MAX_HEAD_DIM) => Some(Tiles { queries: tile(32, 32), keys: tile(32, 32) }),
        (Class::Large, ..=64) => Some(Tiles { queries: tile(64, 64), keys: tile(64, 64) }),
        (Class::Large, ..=128) => Some(Tiles { queries: tile(64, 64), keys: tile(64, 32) }),
        (Class::Large, ..=MAX_HEAD_DIM) => Some(Tiles { queries: tile(64, 32), keys: tile(32, 32) }),
        _ => None,
    }
}

/// A call's kernels, tables and scalars.
struct Call {
    tiles: Tiles,
    tables: Arc<Tables>,
    heads: usize,
    kv_heads: usize,
    cap: Option<f64>,
    window: Option<usize>,
}

impl Call {
    /// `None` when the kernels can't run there: too wide a head, too few units, too little shared memory, mixed types.
    fn new(operands: &[&CubeTensor], layout: &Layout, spec: &Spec) -> Option<Self> {
        let like = operands[0];
        let hardware = &like.client.properties().hardware;
        let tiles = tiles(Class::of(&like.client), spec.head_dim)?;
        let shared = tiles.queries.shared_bytes().max(tiles.keys.shared_bytes());
        if shared > hardware.max_shared_memory_size
            || UNITS as u32 > hardware.max_units_per_cube
            || operands.iter().any(|operand| operand.dtype != like.dtype)
        {
            return None;
        }
        let key = Key {
            device: like.device.clone(),
            query_rows: tiles.queries.rows,
            key_rows: tiles.keys.rows,
            window: spec.window,
        };
        Some(Self {
            tiles,
            tables: tables::tables(layout, &key, like),
            heads: spec.num_query_heads,
            kv_heads: spec.num_kv_heads,
            cap: spec.soft_cap,
            window: spec.window,
        })
    }

    fn options(&self, tile: Tile) -> Options {
        Options { tile, capped: self.cap.is_some(), windowed: self.window.is_some() }
    }

    fn cap(&self) -> f32 {
        self.cap.unwrap_or(0.0) as f32
    }

    fn window(&self) -> usize {
        self.window.unwrap_or(0)
    }
}

fn cube_dim() -> CubeDim {
    CubeDim::new_1d(UNITS as u32)
}

/// As [`super::forward`]; `None` where the kernels can't run.
pub(super) fn forward(
    [q, k, v]: &[CubeTensor; 3],
    layout: &Layout,
    spec: &Spec,
) -> Option<(Tensor<2>, Tensor<2>)> {
    let call = Call::new(&[q, k, v], layout, spec)?;
    let out = empty(dims(q), q.dtype, q);
    let lse = empty([layout.num_tokens(), call.heads], DType::F32, q);
    let blocks = &call.tables.queries;
    forward::forward_kernel::launch(
        &q.client,
        grid(blocks.count * call.heads),
        cube_dim(),
        arg(q),
        arg(k),
        arg(v),
        arg(&call.tables.tokens),
        arg(&blocks.entries),
        arg(&out),
        arg(&lse),
        blocks.count,
        call.heads,
        call.kv_heads,
        call.cap(),
        call.window(),
        call.options(call.tiles.queries),
        element(q),
    );
    Some((tensor(out), tensor(lse)))
}

/// As [`super::backward`]; `None` where the kernels can't run.
pub(super) fn backward(
    [q, k, v, out, lse, dout]: &[CubeTensor; 6],
    layout: &Layout,
    spec: &Spec,
) -> Option<(Tensor<2>, Tensor<2>, Tensor<2>)> {
    let call = Call::new(&[q, k, v, out, dout], layout, spec)?;
    let delta = empty(dims(lse), DType::F32, q);
    let rows = layout.num_tokens() * call.heads;
    backward::delta_kernel::launch(
        &q.client,
        grid(rows.div_ceil(SIDE)),
        cube_dim(),
        arg(out),
        arg(dout),
        arg(&delta),
        rows,
        spec.head_dim,
        element(q),
    );
    let (dq, dk, dv) = (empty(dims(q), q.dtype, q), empty(dims(k), k.dtype, q), empty(dims(v), v.dtype, q));
    let blocks = &call.tables.queries;
    backward::dq_kernel::launch(
        &q.client,
        grid(blocks.count * call.heads),
        cube_dim(),
        arg(q),
        arg(k),
        arg(v),
        arg(dout),
        arg(lse),
        arg(&delta),
        arg(&call.tables.tokens),
        arg(&blocks.entries),
        arg(&dq),
        blocks.count,
        call.heads,
        call.kv_heads,
        call.cap(),
        call.window(),
        call.options(call.tiles.queries),
        element(q),
    );
    let blocks = &call.tables.keys;
    backward::dkv_kernel::launch(
        &q.client,
        grid(blocks.count * call.kv_heads),
        cube_dim(),
        arg(q),
        arg(k),
        arg(v),
        arg(dout),
        arg(lse),
        arg(&delta),
        arg(&call.tables.tokens),
        arg(&blocks.entries),
        arg(&dk),
        arg(&dv),
        blocks.count,
        call.heads,
        call.kv_heads,
        call.cap(),
        call.window(),
        call.options(call.tiles.keys),
        element(q),
    );
    Some((tensor(dq), tensor(dk), tensor(dv)))
}

#[cfg(all(test, feature = "rocm"))]
mod hip_text;
