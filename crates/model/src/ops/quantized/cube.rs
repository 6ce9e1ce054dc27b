//! int8 operands on a GPU, and their products by burn: integers in the compute type, which holds them exactly, sums in float32. All is
//! the CPU's bit for bit, the noise of cotangents too, but for the order of the sums.

use burn::tensor::DType;
use burn_cubecl::kernel::matmul::{MatmulStrategy, matmul};
use burn_cubecl::ops::permute;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{Along, Role};
use crate::ops::cube::int8::{BOUND, factor, is_nan};
use crate::ops::cube::reduce::ROWS;
use crate::ops::cube::{UNITS, arg, cube_dim, dims, element, empty, grid, largest, len, units};

pub(super) fn forward(x: &CubeTensor, w: &CubeTensor) -> CubeTensor {
    let a = Operand::new(x, Along::Columns, Role::Forward, x.dtype);
    let b = Operand::new(w, Along::Rows, Role::Forward, x.dtype);
    multiply(a, b, x.dtype)
}

pub(super) fn backward_input(dy: &CubeTensor, w: &CubeTensor) -> CubeTensor {
    let a = Operand::new(dy, Along::Columns, Role::Cotangent, dy.dtype);
    let b = Operand::new(w, Along::Columns, Role::Forward, dy.dtype);
    multiply(a, b.transpose(), dy.dtype)
}

pub(super) fn backward_weight(x: &CubeTensor, dy: &CubeTensor) -> CubeTensor {
    let a = Operand::new(x, Along::Rows, Role::Forward, dy.dtype);
    let b = Operand::new(dy, Along::Rows, Role::Cotangent, dy.dtype);
    multiply(a.transpose(), b, DType::F32)
}

/// A quantized matrix.
struct Operand {
    /// Integers of the compute type.
    values: CubeTensor,
    /// float32: one for each row or column that isn't summed over.
    maxima: CubeTensor,
}

impl Operand {
    /// Quantizes `x`, rounded to `dtype` first, for a product that sums along a dimension.
    fn new(x: &CubeTensor, along: Along, role: Role, dtype: DType) -> Self {
        let [rows, cols] = dims(x);
        let values = empty([rows, cols], dtype, x);
        let dithers = role == Role::Cotangent;
        let types = [element(x), element(&values)];
        let maxima = match along {
            Along::Columns => {
                let maxima = empty([rows], DType::F32, x);
                rows_kernel::launch(
                    &x.client,
                    grid(rows),
                    cube_dim(),
                    arg(x),
                    arg(&values),
                    arg(&maxima),
                    rows,
                    cols,
                    dithers,
                    types,
                );
                maxima
            }
            Along::Rows => {
                let maxima = column_maxima(x, dtype);
                columns_kernel::launch(
                    &x.client,
                    units(len(x)),
                    cube_dim(),
                    arg(x),
                    arg(&maxima),
                    arg(&values),
                    cols,
                    dithers,
                    types,
                );
                maxima
            }
        };
        Self { values, maxima }
    }

    fn transpose(self) -> Self {
        Self { values: permute(self.values, &[1, 0]), ..self }
    }
}

/// `a b`, each element times the scales of its row and column.
fn multiply(a: Operand, b: Operand, dtype: DType) -> CubeTensor {
    let sums = matmul(a.values, b.values, None, MatmulStrategy::default(), DType::F32)
        .expect("a product of two matrices on one device is one that burn computes");
    let [rows, cols] = dims(&sums);
    let y = empty([rows, cols], dtype, &sums);
    rescale_kernel::launch(
        &sums.client,
        units(len(&y)),
        cube_dim(),
        arg(&sums),
        arg(&a.maxima),
        arg(&b.maxima),
        arg(&y),
        cols,
        element(&y),
    );
    y
}

/// Largest magnitude of every column of `x`, rounded to `dtype`, in blocks of [`ROWS`] rows.
fn column_maxima(x: &CubeTensor, dtype: DType) -> CubeTensor {
    let (cols, mut rows) = (dims(x)[1], dims(x)[0]);
    let mut from = x.clone();
    let mut rounded = dtype;
    loop {
        let blocks = rows.div_ceil(ROWS);
        let maxima = empty([blocks, cols], DType::F32, x);
        maxima_kernel::launch(
            &x.client,
            grid(blocks * cols.div_ceil(UNITS)),
            cube_dim(),
            arg(&from),
            arg(&maxima),
            rows,
            cols,
            [element(&from), burn::backend::cubecl::dtype_to_storage_type(rounded)],
        );
        if blocks == 1 {
            return maxima;
        }
        (from, rows, rounded) = (maxima, blocks, DType::F32);
    }
}

/// Every row by its own scale: a cube each.
#[cube(launch)]
pub(crate) fn rows_kernel<X: Float, E: Float>(
    x: &[X],
    values: &mut [E],
    maxima: &mut [f32],
    rows: usize,
    cols: usize,
    #[comptime] dithers: bool,
    #[define(X, E)] _types: [ElemType; 2],
) {
    if CUBE_POS < rows {
        let first = CUBE_POS * cols;
        let mut most = f32::new(0.0);
        let mut col = UNIT_POS as usize;
        while col < cols {
            most = max(most, rounded::<X, E>(x[first + col]).abs());
            col += UNITS;
        }
        let most = largest(most);
        let factor = nonzero_factor(most);
        let mut col = UNIT_POS as usize;
        while col < cols {
            let at = first + col;
            values[at] = E::cast_from(to_int8(rounded::<X, E>(x[at]), factor, at, dithers));
            col += UNITS;
        }
        if UNIT_POS == 0 {
            maxima[CUBE_POS] = most;
        }
    }
}

/// `maxima[b, j] = max |x[i, j]|` over the rows i of block b: a cube per block and [`UNITS`] columns, a unit per column.
#[cube(launch)]
pub(crate) fn maxima_kernel<X: Float, E: Float>(
    x: &[X],
    maxima: &mut [f32],
    rows: usize,
    cols: usize,
    #[define(X, E)] _types: [ElemType; 2],
) {
    let tiles = cols.div_ceil(UNITS);
    let block = CUBE_POS / tiles;
    let col = CUBE_POS % tiles * UNITS + UNIT_POS as usize;
    let first = block * ROWS;
    if first < rows && col < cols {
        let mut most = f32::new(0.0);
        for row in first..min(first + ROWS, rows) {
            most = max(most, rounded::<X, E>(x[row * cols + col]).abs());
        }
        maxima[block * cols + col] = most;
    }
}

/// Every column by its own scale: a unit per element.
#[cube(launch)]
pub(crate) fn columns_kernel<X: Float, E: Float>(
    x: &[X],
    maxima: &[f32],
    values: &mut [E],
    cols: usize,
    #[comptime] dithers: bool,
    #[define(X, E)] _types: [ElemType; 2],
) {
    if ABSOLUTE_POS < values.len() {
        let factor = nonzero_factor(maxima[ABSOLUTE_POS % cols]);
        let x = rounded::<X, E>(x[ABSOLUTE_POS]);
        values[ABSOLUTE_POS] = E::cast_from(to_int8(x, factor, ABSOLUTE_POS, dithers));
    }
}

/// `y = sums * row scale * column scale`: a unit per element.
#[cube(launch)]
pub(crate) fn rescale_kernel<E: Float>(
    sums: &[f32],
    row_maxima: &[f32],
    col_maxima: &[f32],
    y: &mut [E],
    cols: usize,
    #[define(E)] _type: ElemType,
) {
    if ABSOLUTE_POS < y.len() {
        let (row, col) = (ABSOLUTE_POS / cols, ABSOLUTE_POS % cols);
        let scale = (row_maxima[row] / f32::new(BOUND)) * (col_maxima[col] / f32::new(BOUND));
        y[ABSOLUTE_POS] = E::cast_from(sums[ABSOLUTE_POS] * scale);
    }
}

/// A value in the compute type.
#[cube]
fn rounded<X: Float, E: Float>(x: X) -> f32 {
    f32::cast_from(E::cast_from(x))
}

/// [`factor`]; any will do for what is all zeros.
#[cube]
fn nonzero_factor(most: f32) -> f32 {
    factor(select(most == 0.0, f32::new(1.0), most))
}

/// An integer of +-127; NaN stays NaN.
#[cube]
fn to_int8(x: f32, factor: f32, place: usize, #[comptime] dithers: bool) -> f32 {
    let mut scaled = x * factor;
    if comptime!(dithers) {
        scaled += noise(place as u32, x);
    }
    let rounded = max(min(scaled.round(), f32::new(127.0)), f32::new(-127.0));
    select(is_nan(scaled), scaled, rounded)
}

/// The CPU's noise of [-1/2, 1/2) from a value and its place: a finaliser of MurmurHash3.
#[cube]
fn noise(place: u32, x: f32) -> f32 {
    let mut hash = (place * 0x9e37_79b9) ^ u32::reinterpret(x);
    hash = (hash ^ (hash >> 16)) * 0x85eb_ca6b;
    hash = (hash ^ (hash >> 13)) * 0xc2b2_ae35;
    hash ^= hash >> 16;
    f32::cast_from(hash >> 8) * f32::new(comptime!(1.0 / 16_777_216.0)) - f32::new(0.5)
}

#[cfg(all(test, feature = "rocm"))]
mod tests {
    use crate::ops::cube::hip_text::{BF16, F32, Kernel};

    use super::*;

    #[test]
    fn hip_text() {
        let sizes = [
            ("rows", 150),
            ("cols", 300),
            ("ceil(rows/64)", 150usize.div_ceil(ROWS)),
            ("ceil(rows/64)*ceil(cols/256)", 150usize.div_ceil(ROWS) * 300usize.div_ceil(UNITS)),
        ];
        for e in [BF16, F32] {
            let types = [e; 2];
            for (suffix, dithers) in [("", false), ("_dithered", true)] {
                Kernel::new(&format!("int8_rows{suffix}"), &[e], sizes)
                    .buffer("x", e, "rows, cols")
                    .buffer("values", e, "rows, cols")
                    .buffer("maxima", F32, "rows")
                    .size("rows")
                    .size("cols")
                    .cubes("rows")
                    .write(|k, p, t, b| {
                        rows_kernel::RowsKernel::new(k, p, t, b(), b(), b(), (), (), dithers, types)
                    });
                Kernel::new(&format!("int8_columns{suffix}"), &[e], sizes)
                    .buffer("x", e, "rows, cols")
                    .buffer("maxima", F32, "cols")
                    .buffer("values", e, "rows, cols")
                    .size("cols")
                    .units("rows*cols")
                    .write(|k, p, t, b| {
                        columns_kernel::ColumnsKernel::new(k, p, t, b(), b(), b(), (), dithers, types)
                    });
            }
            Kernel::new("int8_column_maxima", &[e], sizes)
                .buffer("x", e, "rows, cols")
                .buffer("maxima", F32, "ceil(rows/64), cols")
                .size("rows")
                .size("cols")
                .cubes("ceil(rows/64)*ceil(cols/256)")
                .write(|k, p, t, b| maxima_kernel::MaximaKernel::new(k, p, t, b(), b(), (), (), types));
            Kernel::new("int8_rescale", &[e], sizes)
                .buffer("sums", F32, "rows, cols")
                .buffer("row_maxima", F32, "rows")
                .buffer("col_maxima", F32, "cols")
                .buffer("y", e, "rows, cols")
                .size("cols")
                .units("rows*cols")
                .write(|k, p, t, b| rescale_kernel::RescaleKernel::new(k, p, t, b(), b(), b(), b(), (), e));
        }
    }
}
