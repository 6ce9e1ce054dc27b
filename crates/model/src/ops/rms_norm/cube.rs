//! RMSNorm on a GPU: a cube per row. The scale's gradient is a sum over rows, in passes of its own.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use crate::ops::cube::reduce::{ROWS, column_sums};
use crate::ops::cube::{UNITS, arg, cube_dim, dims, element, empty, grid, sum};

pub(super) fn forward(x: &CubeTensor, scale: &CubeTensor, eps: f32) -> CubeTensor {
    let [rows, cols] = dims(x);
    let y = empty([rows, cols], x.dtype, x);
    let types = [element(x), element(scale)];
    forward_kernel::launch(
        &x.client,
        grid(rows),
        cube_dim(),
        arg(x),
        arg(scale),
        arg(&y),
        eps,
        rows,
        cols,
        types,
    );
    y
}

pub(super) fn backward(
    x: &CubeTensor,
    scale: &CubeTensor,
    eps: f32,
    dy: &CubeTensor,
) -> (CubeTensor, CubeTensor) {
    let [rows, cols] = dims(x);
    let types = [element(x), element(scale)];
    let dx = empty([rows, cols], x.dtype, x);
    let r = empty([rows], DType::F32, x);
    backward_kernel::launch(
        &x.client,
        grid(rows),
        cube_dim(),
        arg(x),
        arg(scale),
        arg(dy),
        arg(&dx),
        arg(&r),
        eps,
        rows,
        cols,
        types,
    );
    let blocks = rows.div_ceil(ROWS);
    let partials = empty([blocks, cols], DType::F32, x);
    scale_kernel::launch(
        &x.client,
        grid(blocks * cols.div_ceil(UNITS)),
        cube_dim(),
        arg(x),
        arg(dy),
        arg(&r),
        arg(&partials),
        rows,
        cols,
        element(x),
    );
    (dx, column_sums(partials))
}

/// `r = 1 / sqrt(mean x^2 + eps)`, `n = x r` rounded to E, `y = n scale` with scale rounded to E.
#[cube(launch)]
pub(crate) fn forward_kernel<E: Float, S: Float>(
    x: &[E],
    scale: &[S],
    y: &mut [E],
    eps: f32,
    rows: usize,
    cols: usize,
    #[define(E, S)] _types: [ElemType; 2],
) {
    if CUBE_POS < rows {
        let first = CUBE_POS * cols;
        let r = inverse_rms(x, first, cols, eps);
        let mut col = UNIT_POS as usize;
        while col < cols {
            let n = E::cast_from(f32::cast_from(x[first + col]) * r);
            y[first + col] = E::cast_from(f32::cast_from(n) * rounded::<E, S>(scale[col]));
            col += UNITS;
        }
    }
}

/// `dx = r (g - n mean(g n))` with `g = dy scale`; leaves r for the scale's gradient.
#[cube(launch)]
pub(crate) fn backward_kernel<E: Float, S: Float>(
    x: &[E],
    scale: &[S],
    dy: &[E],
    dx: &mut [E],
    r_of_rows: &mut [f32],
    eps: f32,
    rows: usize,
    cols: usize,
    #[define(E, S)] _types: [ElemType; 2],
) {
    if CUBE_POS < rows {
        let first = CUBE_POS * cols;
        let r = inverse_rms(x, first, cols, eps);
        let mut dot = f32::new(0.0);
        let mut col = UNIT_POS as usize;
        while col < cols {
            let g = f32::cast_from(dy[first + col]) * rounded::<E, S>(scale[col]);
            dot += f32::cast_from(x[first + col]) * g;
            col += UNITS;
        }
        let mean = r * sum(dot) / f32::cast_from(cols);
        let mut col = UNIT_POS as usize;
        while col < cols {
            let n = f32::cast_from(x[first + col]) * r;
            let g = f32::cast_from(dy[first + col]) * rounded::<E, S>(scale[col]);
            dx[first + col] = E::cast_from((g - n * mean) * r);
            col += UNITS;
        }
        if UNIT_POS == 0 {
            r_of_rows[CUBE_POS] = r;
        }
    }
}

/// `partials[b, j] = sum over rows of block b of dy[j] n[j]`: a cube per block and [`UNITS`] columns, a unit per column.
#[cube(launch)]
pub(crate) fn scale_kernel<E: Float>(
    x: &[E],
    dy: &[E],
    r_of_rows: &[f32],
    partials: &mut [f32],
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
        let end = min(first + ROWS, rows);
        let mut row = first;
        while row < end {
            let at = row * cols + col;
            total += f32::cast_from(dy[at]) * (f32::cast_from(x[at]) * r_of_rows[row]);
            row += 1;
        }
        partials[block * cols + col] = total;
    }
}

#[cube]
fn inverse_rms<E: Float>(x: &[E], first: usize, cols: usize, eps: f32) -> f32 {
    let mut squares = f32::new(0.0);
    let mut col = UNIT_POS as usize;
    while col < cols {
        let v = f32::cast_from(x[first + col]);
        squares += v * v;
        col += UNITS;
    }
    f32::new(1.0) / (sum(squares) / f32::cast_from(cols) + eps).sqrt()
}

/// A parameter's value in the compute type.
#[cube]
fn rounded<E: Float, S: Float>(scale: S) -> f32 {
    f32::cast_from(E::cast_from(scale))
}

#[cfg(all(test, feature = "rocm"))]
mod hip {
    use crate::ops::cube::hip_text::{BF16, F32, Kernel};

    use super::*;

    #[test]
    fn hip_text() {
        let sizes = [("rows", 100), ("cols", 4096), ("ceil(rows/64)", 2), ("ceil(cols/256)", 16)];
        for types in [[BF16, F32], [BF16, BF16], [F32, F32]] {
            let [e, s] = types;
            Kernel::new("rms_norm_forward", &types, sizes)
                .buffer("x", e, "rows, cols")
                .buffer("scale", s, "cols")
                .buffer("y", e, "rows, cols")
                .scalar("eps", 1e-6f32)
                .size("rows")
                .size("cols")
                .cubes("rows")
                .write(|k, p, t, b| {
                    forward_kernel::ForwardKernel::new(k, p, t, b(), b(), b(), (), (), (), types)
                });
            Kernel::new("rms_norm_backward", &types, sizes)
                .buffer("x", e, "rows, cols")
                .buffer("scale", s, "cols")
                .buffer("dy", e, "rows, cols")
                .buffer("dx", e, "rows, cols")
                .buffer("r", F32, "rows")
                .scalar("eps", 1e-6f32)
                .size("rows")
                .size("cols")
                .cubes("rows")
                .write(|k, p, t, b| {
                    backward_kernel::BackwardKernel::new(k, p, t, b(), b(), b(), b(), b(), (), (), (), types)
                });
        }
        for e in [BF16, F32] {
            Kernel::new("rms_norm_scale", &[e], sizes)
                .buffer("x", e, "rows, cols")
                .buffer("dy", e, "rows, cols")
                .buffer("r", F32, "rows")
                .buffer("partials", F32, "ceil(rows/64), cols")
                .size("rows")
                .size("cols")
                .cubes("ceil(rows/64)*ceil(cols/256)")
                .write(|k, p, t, b| scale_kernel::ScaleKernel::new(k, p, t, b(), b(), b(), b(), (), (), e));
        }
    }
}
