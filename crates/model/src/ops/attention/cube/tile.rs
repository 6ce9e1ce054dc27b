//! How the kernels are cut, and the two products that all of them are made of.
//!
//! A cube of 16 by 16 units holds a `[rows, columns]` block of scores; unit (r, c) holds rows r, r + 16, ... and columns c, c + 16,
//! ... of it in registers, and of a `[rows, head_dim]` result the same rows and features c, c + 16, ... Neighbouring units so
//! read neighbouring words of shared memory, or the same one.
//! ```text
//! scores[i, j]   += sum_d a[i, d] b[j, d]          depth features at a time, staged transposed
//! result[i, d]   += sum_j weights[i, j] x[j, d]    some columns at a time, staged as they are
//! ```
//! Both operands of the first and x of the second pass through one piece of shared memory, [`Tile::staging`]; the weights
//! lie in another, [`Tile::weights`]. What lies behind a document's end or behind `head_dim` is staged as zero, and never read.
//! Every sum is one chain of multiply-adds in an order that only the tile decides.

use cubecl::prelude::*;

/// Units along the rows and along the columns of a block.
pub(crate) const SIDE: usize = 16;
/// Units of a cube: what every WebGPU device has.
pub(crate) const UNITS: usize = SIDE * SIDE;

/// Sizes that a kernel is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Tile {
    /// Width of a head.
    pub(crate) head_dim: usize,
    /// Tokens whose results a cube computes; a multiple of [`SIDE`].
    pub(crate) rows: usize,
    /// Tokens that it looks at per step; a multiple of [`SIDE`].
    pub(crate) columns: usize,
    /// Features staged at a time; a divisor of [`UNITS`], so that `rows * depth` and `columns * depth` are multiples of it.
    pub(crate) depth: usize,
}

impl Tile {
    /// Rows of a unit.
    pub(crate) const fn unit_rows(self) -> usize {
        self.rows / SIDE
    }

    /// Columns of a unit.
    pub(crate) const fn unit_columns(self) -> usize {
        self.columns / SIDE
    }

    /// Features of a unit.
    pub(crate) const fn unit_features(self) -> usize {
        self.head_dim.div_ceil(SIDE)
    }

    /// Features of a staged row.
    pub(crate) const fn padded(self) -> usize {
        self.unit_features() * SIDE
    }

    /// Distance of two features in the staged rows; one word more than the rows spreads them over the banks.
    const fn row_stride(self) -> usize {
        self.rows + 1
    }

    /// As [`Self::row_stride`], of the staged columns.
    pub(crate) const fn column_stride(self) -> usize {
        self.columns + 1
    }

    /// Columns staged at a time for the second product: as many as fit where the first product stages, 4 at least.
    pub(crate) const fn slice(self) -> usize {
        let mut columns = self.columns;
        while columns > 4 && columns * self.padded() > self.depth * (self.row_stride() + self.column_stride())
        {
            columns /= 2;
        }
        columns
    }

    /// Words of shared memory that operands pass through.
    pub(crate) const fn staging(self) -> usize {
        let first = self.depth * (self.row_stride() + self.column_stride());
        let second = self.slice() * self.padded();
        let maxima = self.rows * (SIDE + 1);
        let most = if first > second { first } else { second };
        if most > maxima { most } else { maxima }
    }

    /// Words of shared memory for the weights.
    pub(crate) const fn weights(self) -> usize {
        self.rows * self.column_stride()
    }

    /// Bytes of shared memory of a cube.
    pub(crate) const fn shared_bytes(self) -> usize {
        size_of::<f32>() * (self.staging() + self.weights())
    }
}

/// Consecutive tokens of a document, seen by one head.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Span {
    /// Where the tokens lie in the order of documents.
    pub(crate) start: usize,
    /// Their number; at most the rows or columns of the tile matter.
    pub(crate) len: usize,
    /// The head.
    pub(crate) head: usize,
    /// Heads of the tensor.
    pub(crate) heads: usize,
}

/// Where the features of token `i` of the span begin.
#[cube]
pub(crate) fn features(span: &Span, tokens: &[u32], i: usize, #[comptime] head_dim: usize) -> usize {
    (tokens[span.start + i] as usize * span.heads + span.head) * head_dim
}

/// Features `first..first + depth` of `count` tokens, transposed: `stage[at + d * (count + 1) + i]`.
#[cube]
#[expect(clippy::too_many_arguments, reason = "half of them are constants")]
fn stage_transposed<E: Float>(
    x: &[E],
    tokens: &[u32],
    span: &Span,
    first: usize,
    stage: &mut Shared<[f32]>,
    #[comptime] at: usize,
    #[comptime] count: usize,
    #[comptime] tile: Tile,
) {
    let unit = UNIT_POS as usize;
    let depth = comptime!(tile.depth);
    let d = unit % depth;
    #[unroll]
    for step in 0..comptime!(count * tile.depth / UNITS) {
        let i = unit / depth + comptime!(step * (UNITS / tile.depth));
        let feature = first + d;
        let mut value = f32::new(0.0);
        if i < span.len && feature < comptime!(tile.head_dim) {
            value = f32::cast_from(x[features(span, tokens, i, tile.head_dim) + feature]);
        }
        stage[comptime!(at) + d * comptime!(count + 1) + i] = value;
    }
}

/// `sums[i, j] = a[i] . b[j]`, the unit's part of the block. All units of the cube must call.
#[cube]
#[expect(clippy::too_many_arguments, reason = "two operands and where they lie")]
pub(crate) fn scores<E: Float>(
    a: &[E],
    a_span: &Span,
    b: &[E],
    b_span: &Span,
    tokens: &[u32],
    stage: &mut Shared<[f32]>,
    sums: &mut Array<f32>,
    #[comptime] tile: Tile,
) {
    let (r, c) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    let (rows, columns) = comptime!((tile.unit_rows(), tile.unit_columns()));
    let b_at = comptime!(tile.depth * tile.row_stride());
    #[unroll]
    for i in 0..comptime!(rows * columns) {
        sums[i] = f32::new(0.0);
    }
    let mut row = Array::<f32>::new(rows);
    let mut column = Array::<f32>::new(columns);
    for chunk in 0..comptime!(tile.head_dim.div_ceil(tile.depth)) {
        let first = chunk * tile.depth;
        sync_cube();
        stage_transposed::<E>(a, tokens, a_span, first, stage, 0usize, tile.rows, tile);
        stage_transposed::<E>(b, tokens, b_span, first, stage, b_at, tile.columns, tile);
        sync_cube();
        for d in 0..comptime!(tile.depth) {
            #[unroll]
            for i in 0..rows {
                row[i] = stage[d * comptime!(tile.row_stride()) + r + i * SIDE];
            }
            #[unroll]
            for j in 0..columns {
                column[j] = stage[b_at + d * comptime!(tile.column_stride()) + c + j * SIDE];
            }
            #[unroll]
            for i in 0..rows {
                #[unroll]
                for j in 0..columns {
                    sums[i * columns + j] = fma(row[i], column[j], sums[i * columns + j]);
                }
            }
        }
    }
}

/// `result[i, d] += sum_j weights[i, j] x[j, d]`, the unit's part of the result. All units of the cube must call.
#[cube]
pub(crate) fn weighted_sum<E: Float>(
    weights: &Shared<[f32]>,
    x: &[E],
    span: &Span,
    tokens: &[u32],
    stage: &mut Shared<[f32]>,
    result: &mut Array<f32>,
    #[comptime] tile: Tile,
) {
    let unit = UNIT_POS as usize;
    let (r, c) = (unit / SIDE, unit % SIDE);
    let (rows, width, slice) = comptime!((tile.unit_rows(), tile.unit_features(), tile.slice()));
    let padded = comptime!(tile.padded());
    let mut weight = Array::<f32>::new(rows);
    let mut feature = Array::<f32>::new(width);
    let count = min(span.len, comptime!(tile.columns));
    for chunk in 0..count.div_ceil(slice) {
        let first = chunk * slice;
        sync_cube();
        let mut at = unit;
        while at < comptime!(slice * padded) {
            let j = first + at / padded;
            let d = at % padded;
            let mut value = f32::new(0.0);
            if j < span.len && d < comptime!(tile.head_dim) {
                value = f32::cast_from(x[features(span, tokens, j, tile.head_dim) + d]);
            }
            stage[at] = value;
            at += UNITS;
        }
        sync_cube();
        for j in 0..slice {
            #[unroll]
            for i in 0..rows {
                weight[i] = weights[(r + i * SIDE) * comptime!(tile.column_stride()) + first + j];
            }
            #[unroll]
            for w in 0..width {
                feature[w] = stage[j * padded + c + w * SIDE];
            }
            #[unroll]
            for i in 0..rows {
                #[unroll]
                for w in 0..width {
                    result[i * width + w] = fma(weight[i], feature[w], result[i * width + w]);
                }
            }
        }
    }
}

/// Writes the unit's part of a result, rounded once.
#[cube]
pub(crate) fn write<E: Float>(
    result: &Array<f32>,
    to: &mut [E],
    span: &Span,
    tokens: &[u32],
    #[comptime] tile: Tile,
) {
    let (r, c) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    let width = comptime!(tile.unit_features());
    #[unroll]
    for i in 0..comptime!(tile.unit_rows()) {
        let row = r + i * SIDE;
        if row < span.len {
            let start = features(span, tokens, row, tile.head_dim);
            #[unroll]
            for w in 0..width {
                if c + w * SIDE < comptime!(tile.head_dim) {
                    to[start + c + w * SIDE] = E::cast_from(result[i * width + w]);
                }
            }
        }
    }
}
