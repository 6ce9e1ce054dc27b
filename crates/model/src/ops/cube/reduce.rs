//! Sums over rows, and sums of squares, on a GPU; no atomics, in an order that shapes decide.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{UNITS, arg, cube_dim, dims, element, empty, grid, len, sum};

/// Rows that one partial sum of columns covers.
pub(crate) const ROWS: usize = 64;
/// Elements that one partial sum of squares covers.
pub(crate) const BLOCK: usize = 64 * UNITS;

/// Sum of every column of `x: [rows, cols]` -> `[1, cols]` float32. Each pass adds blocks of [`ROWS`] rows, so that rounding
/// grows with the logarithm of their number.
pub(crate) fn column_sums(mut x: CubeTensor) -> CubeTensor {
    while dims(&x)[0] > 1 || x.dtype != DType::F32 {
        let [rows, cols] = dims(&x);
        let blocks = rows.div_ceil(ROWS);
        let sums = empty([blocks, cols], DType::F32, &x);
        let count = grid(blocks * cols.div_ceil(UNITS));
        column_sums_kernel::launch(
            &x.client,
            count,
            cube_dim(),
            arg(&x),
            arg(&sums),
            rows,
            cols,
            element(&x),
        );
        x = sums;
    }
    x
}

/// `sums[b, j] = sum over rows i of block b of x[i, j]`: a cube per block and [`UNITS`] columns, a unit per column.
#[cube(launch)]
pub(crate) fn column_sums_kernel<E: Float>(
    x: &[E],
    sums: &mut [f32],
    rows: usize,
    cols: usize,
    #[define(E)] _type: ElemType,
) {
    let tiles = cols.div_ceil(UNITS);
    let block = CUBE_POS / tiles;
    let col = CUBE_POS % tiles * UNITS + UNIT_POS as usize;
    let first = block * ROWS;
    if first < rows && col < cols {
        let mut total = f32::new(0.0);
        for row in first..min(first + ROWS, rows) {
            total += f32::cast_from(x[row * cols + col]);
        }
        sums[block * cols + col] = total;
    }
}

/// Sums of the squares of every [`BLOCK`] elements, in float32.
pub(crate) fn squares(x: CubeTensor) -> CubeTensor {
    let len = len(&x);
    let partials = empty([len.div_ceil(BLOCK)], DType::F32, &x);
    squares_kernel::launch(
        &x.client,
        grid(len.div_ceil(BLOCK)),
        cube_dim(),
        arg(&x),
        arg(&partials),
        len,
        element(&x),
    );
    partials
}

/// `partials[b] = sum over block b of x^2`: a cube per block of [`BLOCK`] elements.
#[cube(launch)]
pub(crate) fn squares_kernel<E: Float>(
    x: &[E],
    partials: &mut [f32],
    len: usize,
    #[define(E)] _type: ElemType,
) {
    let first = CUBE_POS * BLOCK;
    let end = min(first + BLOCK, len);
    let mut squares = f32::new(0.0);
    let mut i = first + UNIT_POS as usize;
    while i < end {
        let v = f32::cast_from(x[i]);
        squares += v * v;
        i += UNITS;
    }
    let block = sum(squares);
    if UNIT_POS == 0 && first < len {
        partials[CUBE_POS] = block;
    }
}

#[cfg(all(test, feature = "rocm"))]
mod hip {
    use crate::ops::cube::hip_text::{BF16, F32, Kernel};

    use super::*;

    #[test]
    fn hip_text() {
        for e in [BF16, F32] {
            let sizes = [("rows", 100), ("cols", 1000), ("ceil(rows/64)", 2), ("ceil(cols/256)", 4)];
            Kernel::new("column_sums", &[e], sizes)
                .buffer("x", e, "rows, cols")
                .buffer("sums", F32, "ceil(rows/64), cols")
                .size("rows")
                .size("cols")
                .cubes("ceil(rows/64)*ceil(cols/256)")
                .write(|k, p, t, b| column_sums_kernel::ColumnSumsKernel::new(k, p, t, b(), b(), (), (), e));
            Kernel::new("sum_of_squares", &[e], [("len", 100_000), ("ceil(len/16384)", 7)])
                .buffer("x", e, "len")
                .buffer("partials", F32, "ceil(len/16384)")
                .size("len")
                .cubes("ceil(len/16384)")
                .write(|k, p, t, b| squares_kernel::SquaresKernel::new(k, p, t, b(), b(), (), e));
        }
    }
}
