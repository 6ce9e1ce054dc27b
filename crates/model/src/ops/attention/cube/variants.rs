//! The ways in which a kernel can run on a device: the built-in table of tiles, and what else is worth measuring there.

use std::fmt;

use cubecl::ir::features::{MmaConfig, Plane};
use cubecl::ir::{DeviceProperties, ElemType, FloatKind};

use super::matrix::{FRAGMENT, Fragments};
use super::tile::{SIDE, Tile, UNITS};

/// The widest head that a unit's registers hold.
const MAX_HEAD_DIM: usize = 256;
/// Bytes of shared memory from which on a device is one of the large ones: every GPU of a data centre.
const LARGE: usize = 32_768;
/// Words that a unit may keep of blocks and results: what compilers for GPUs find registers for, of 256, beside addresses.
const REGISTERS: usize = 128;
/// Variants of a kind that are measured, at most.
const MEASURED: usize = 4;
/// Tiles worth measuring, the likeliest first.
const TILES: [(usize, usize); 6] = [(64, 64), (64, 32), (32, 64), (32, 32), (128, 32), (128, 64)];

/// The kernels that are cut into tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Pass {
    /// `out` and `lse`; rows are queries.
    Forward,
    /// `dq`; rows are queries.
    Queries,
    /// `dk` and `dv`; rows are keys.
    Keys,
}

impl Pass {
    /// Words of registers for a block of `block` words per unit and `result` of a result: the scores and what is kept beside them.
    const fn registers(self, block: usize, result: usize) -> usize {
        match self {
            Self::Forward => block + result,
            Self::Queries => 2 * block + result,
            Self::Keys => 2 * block + 2 * result,
        }
    }

    /// Blocks of rows that a cube with matrix units holds in shared memory.
    const fn operands(self) -> usize {
        match self {
            Self::Forward => 1,
            Self::Queries | Self::Keys => 2,
        }
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forward => "forward",
            Self::Queries => "dq",
            Self::Keys => "dk and dv",
        })
    }
}

/// A way to run a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Variant {
    /// Without matrix units.
    Plain(Tile),
    /// With matrix units.
    Matrix(Fragments),
}

impl Variant {
    /// Tokens whose results a cube computes.
    pub(super) const fn rows(self) -> usize {
        match self {
            Self::Plain(tile) => tile.rows,
            Self::Matrix(tile) => tile.rows,
        }
    }
}

/// Named in the files of measurements.
impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(tile) => write!(f, "{}x{}", tile.rows, tile.columns),
            Self::Matrix(tile) => write!(f, "{}x{} on matrix units", tile.rows, tile.columns),
        }
    }
}

/// What can run there, the table's first; nothing for heads that are too wide or devices that are too small.
pub(super) fn variants(
    pass: Pass,
    head_dim: usize,
    dtype: ElemType,
    properties: &DeviceProperties,
) -> Vec<Variant> {
    let hardware = &properties.hardware;
    let shared = hardware.max_shared_memory_size;
    let Some(first) = table(pass, head_dim, shared) else { return Vec::new() };
    if first.shared_bytes() > shared || UNITS as u32 > hardware.max_units_per_cube {
        return Vec::new();
    }
    let others = TILES.into_iter().map(|(rows, columns)| Tile { rows, columns, ..first }).filter(|tile| {
        *tile != first && tile.shared_bytes() <= shared && registers(pass, *tile) <= REGISTERS
    });
    let plain = std::iter::once(first).chain(others).take(MEASURED).map(Variant::Plain);
    plain.chain(fragments(pass, head_dim, dtype, properties).map(Variant::Matrix)).collect()
}

/// The table of tiles. A unit keeps `head_dim / 16` results per row, and dk and dv at once: blocks shrink as heads widen, so that
/// everything stays in registers.
pub(super) fn table(pass: Pass, head_dim: usize, shared: usize) -> Option<Tile> {
    if head_dim == 0 || head_dim > MAX_HEAD_DIM {
        return None;
    }
    let (rows, columns) = match (shared >= LARGE, head_dim, pass) {
        (false, ..) => (32, 32),
        (true, ..=64, _) => (64, 64),
        (true, ..=128, Pass::Keys) => (64, 32),
        (true, ..=128, _) => (64, 64),
        (true, _, Pass::Keys) => (32, 32),
        (true, ..) => (64, 32),
    };
    Some(Tile { head_dim, rows, columns, depth: 16 })
}

fn registers(pass: Pass, tile: Tile) -> usize {
    pass.registers(tile.unit_rows() * tile.unit_columns(), tile.unit_rows() * tile.unit_features())
}

/// Tiles for the device's matrix units, none where it has none for `dtype`.
fn fragments(
    pass: Pass,
    head_dim: usize,
    dtype: ElemType,
    properties: &DeviceProperties,
) -> impl Iterator<Item = Fragments> {
    let hardware = &properties.hardware;
    let features = &properties.features;
    let lanes = hardware.plane_size_max as usize;
    let product = MmaConfig {
        a_type: dtype,
        b_type: dtype,
        cd_type: ElemType::Float(FloatKind::F32),
        m: FRAGMENT as u32,
        n: FRAGMENT as u32,
        k: FRAGMENT as u32,
    };
    let able = hardware.plane_size_min == hardware.plane_size_max
        && (1..=UNITS).contains(&lanes)
        && matches!(dtype, ElemType::Float(FloatKind::BF16 | FloatKind::F16))
        && features.matmul.cmma.contains(&product)
        && features.plane.contains(Plane::Ops)
        && features.memory_reinterpret
        && features.alignment;
    let shared = hardware.max_shared_memory_size;
    let tile =
        move |(rows, columns)| Fragments { head_dim, rows, columns, planes: UNITS / lanes.clamp(1, UNITS) };
    TILES
        .into_iter()
        .filter(move |_| able)
        .map(tile)
        .filter(move |tile| {
            let block = tile.rows / SIDE * (tile.columns / SIDE);
            let result = tile.rows / SIDE * tile.head_dim.div_ceil(SIDE);
            tile.fit()
                && tile.shared_bytes(pass.operands()) <= shared
                && pass.registers(block, result) <= REGISTERS
        })
        .take(MEASURED)
}

#[cfg(test)]
mod tests;
