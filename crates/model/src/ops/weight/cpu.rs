//! Products of few rows on slices: `y[t, o] = sum_i x[t, i] w[i, o]`, w read once, in the order in which it lies.
//!
//! The matrix is cut into blocks, each with its own partial sums, which are added in order: results depend neither on the
//! number of threads nor on the other rows.

use half::bf16;
use rayon::prelude::*;

use super::{Bits, FEW, Integers};
use crate::ops::engine::{Host, by_dtype};
use crate::ops::gemm::{Elements, Output, View, ViewMut, product as dense_product};
use crate::ops::memory::Buffer;
use crate::ops::real::{Real, Stored};
use crate::ops::reduce::column_maxima;
use crate::ops::vector::vectorized;

/// Columns of a block: its partial sums stay in the first-level cache.
const COLS: usize = 1024;
/// Rows of a block.
const DEPTH: usize = 1024;
/// Rows that all rows of x visit while they are in the second-level cache.
const CACHED: usize = 64;
/// Rows that are added at once, so that sums are loaded and stored a quarter as often.
const STEP: usize = 4;

pub(super) fn product(x: &Host, w: &Host) -> Host {
    let ([rows, depth], cols) = (x.dims(), w.dims()[1]);
    assert_eq!(depth, w.dims()[0], "inputs of a product");
    let floats = x.values::<f32>();
    let y = by_dtype!(w.dtype(), E => {
        let w = w.values::<E>();
        multiply(&floats, [rows, depth], cols, |sums, x, row, col| add_block(sums, x, &w[row * cols + col..], cols))
    });
    by_dtype!(x.dtype(), E => Host::new(y, [rows, cols]).cast::<E>())
}

/// Half of the columns of a block of 4-bit integers: byte j holds column j in its lower bits and column `HALF + j` in the
/// upper ones, so that a vector of bytes widens to two vectors of neighbours.
const HALF: usize = 64;

pub(super) fn quantize(w: &Host, bits: Bits) -> Integers {
    let dims @ [rows, cols] = w.dims();
    let w = w.values::<f32>();
    let (bound, most) = match bits {
        Bits::Eight => (127.5, 127.0),
        Bits::Four => (7.5, 7.0),
    };
    let max = column_maxima(&w, cols);
    let factors: Vec<f32> = max.iter().map(|&max| bound / if max == 0.0 { 1.0 } else { max }).collect();
    let stride = stride(bits, cols);
    let mut values = vec![0; rows * stride];
    values.par_chunks_mut(stride.max(1)).zip(w.par_chunks(cols.max(1))).for_each(|(values, row)| {
        for (col, (w, factor)) in row.iter().zip(&factors).enumerate() {
            let q = (w * factor).round_ties_even().clamp(-most, most) as i8;
            match bits {
                Bits::Eight => values[col] = q,
                Bits::Four => {
                    let (block, place) = (col / (2 * HALF), col % (2 * HALF));
                    let byte = &mut values[block * HALF + place % HALF];
                    *byte |= if place < HALF { q & 0xf } else { q << 4 };
                }
            }
        }
    });
    Integers { bits, dims, values, scales: max.into_iter().map(|max| max / bound).collect() }
}

/// Bytes of a row.
pub(super) fn stride(bits: Bits, cols: usize) -> usize {
    match bits {
        Bits::Eight => cols,
        Bits::Four => cols.div_ceil(2 * HALF) * HALF,
    }
}

/// The integers as floats, `[in, out]`.
pub(super) fn integers(w: &Integers) -> Vec<f32> {
    widened::<f32>(w).to_vec()
}

fn widened<E: Real>(w: &Integers) -> Buffer<E> {
    let [rows, cols] = w.dims;
    let mut wide = Buffer::<E>::new(rows * cols);
    let rows = wide.par_chunks_mut(cols.max(1)).zip(w.values.par_chunks(stride(w.bits, cols).max(1)));
    rows.for_each(|(wide, values)| match w.bits {
        Bits::Eight => {
            wide.iter_mut().zip(values).for_each(|(wide, q)| *wide = E::from_f32(q.widen()));
        }
        Bits::Four => {
            for (wide, bytes) in wide.chunks_mut(2 * HALF).zip(values.chunks_exact(HALF)) {
                let (low, high) = wide.split_at_mut(HALF.min(wide.len()));
                low.iter_mut().zip(bytes).for_each(|(wide, byte)| *wide = E::from_f32(lower(*byte)));
                high.iter_mut().zip(bytes).for_each(|(wide, byte)| *wide = E::from_f32(upper(*byte)));
            }
        }
    });
    wide
}

#[inline(always)]
fn lower(byte: i8) -> f32 {
    f32::from((byte << 4) >> 4)
}

#[inline(always)]
fn upper(byte: i8) -> f32 {
    f32::from(byte >> 4)
}

pub(super) fn integer_product(x: &Host, w: &Integers) -> Host {
    let ([rows, depth], cols) = (x.dims(), w.dims[1]);
    assert_eq!(depth, w.dims[0], "inputs of a product");
    let stride = stride(w.bits, cols);
    let mut y = match (rows <= FEW, w.bits) {
        (true, Bits::Eight) => multiply(&x.values::<f32>(), [rows, depth], cols, |sums, x, row, col| {
            add_block(sums, x, &w.values[row * stride + col..], stride);
        }),
        (true, Bits::Four) => {
            // Sums of whole blocks; those past the last column are zeros.
            let padded = 2 * stride;
            let sums = multiply(&x.values::<f32>(), [rows, depth], padded, |sums, x, row, col| {
                add_packed_block(sums, x, &w.values[row * stride + col / 2..], stride);
            });
            sums.chunks_exact(padded.max(1)).flat_map(|row| &row[..cols]).copied().collect()
        }
        (false, _) => {
            let wide = widened::<bf16>(w); // bfloat16 holds every integer of 8 bits
            let mut y = vec![0.0; rows * cols];
            let (x, w) = (View::new(x.elements(), x.dims()), View::new(Elements::Bf16(&wide), w.dims));
            dense_product(x, w, ViewMut::new(&mut y, [rows, cols]), Output::Assign);
            y
        }
    };
    y.par_chunks_mut(cols.max(1))
        .for_each(|y| y.iter_mut().zip(&w.scales).for_each(|(y, scale)| *y *= scale));
    by_dtype!(x.dtype(), E => Host::new(y, [rows, cols]).cast::<E>())
}

/// `x: [rows, depth]` by a matrix `[depth, cols]`, in float32; `add` adds to sums of columns from `col` on what some x give with the
/// matrix's rows from `row` on.
fn multiply(
    x: &[f32],
    [rows, depth]: [usize; 2],
    cols: usize,
    add: impl Fn(&mut [f32], &[f32], usize, usize) + Sync,
) -> Vec<f32> {
    let blocks: Vec<_> = (0..cols)
        .step_by(COLS)
        .flat_map(|col| (0..depth).step_by(DEPTH).map(move |row| (col, row)))
        .collect();
    let sums: Vec<Vec<f32>> = blocks
        .par_iter()
        .map(|&(col, row)| {
            let (width, height) = (COLS.min(cols - col), DEPTH.min(depth - row));
            let mut sums = vec![0.0; rows * width];
            for start in (row..row + height).step_by(CACHED) {
                let height = CACHED.min(row + height - start);
                for (t, sums) in sums.chunks_exact_mut(width).enumerate() {
                    add(sums, &x[t * depth + start..][..height], start, col);
                }
            }
            sums
        })
        .collect();
    let mut y = vec![0.0; rows * cols];
    for ((col, _), sums) in blocks.into_iter().zip(sums) {
        let width = COLS.min(cols - col);
        for (y, sums) in y.chunks_exact_mut(cols.max(1)).zip(sums.chunks_exact(width)) {
            y[col..col + width].iter_mut().zip(sums).for_each(|(y, sum)| *y += sum);
        }
    }
    y
}

vectorized! {
    /// Adds `x[i] w[i, ..]` over the rows of a block that starts at `w[0]` in a matrix of `stride` columns.
    fn add_block<E: Stored>(sums: &mut [f32], x: &[f32], w: &[E], stride: usize) {
        let width = sums.len();
        let (steps, rest) = x.as_chunks::<STEP>();
        for (i, x) in steps.iter().enumerate() {
            let row = |j: usize| &w[(i * STEP + j) * stride..][..width];
            let [a, b, c, d] = [row(0), row(1), row(2), row(3)];
            for ((((sum, a), b), c), d) in sums.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                *sum += x[0] * a.widen() + x[1] * b.widen() + x[2] * c.widen() + x[3] * d.widen();
            }
        }
        for (i, x) in rest.iter().enumerate() {
            let row = &w[(steps.len() * STEP + i) * stride..][..width];
            for (sum, w) in sums.iter_mut().zip(row) {
                *sum += x * w.widen();
            }
        }
    }
}

vectorized! {
    /// As [`add_block`], of 4-bit integers in blocks of columns.
    fn add_packed_block(sums: &mut [f32], x: &[f32], w: &[i8], stride: usize) {
        let width = sums.len() / 2;
        for (i, x) in x.iter().enumerate() {
            let row = &w[i * stride..][..width];
            for (sums, bytes) in sums.chunks_exact_mut(2 * HALF).zip(row.chunks_exact(HALF)) {
                let (low, high) = sums.split_at_mut(HALF);
                for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
                    *low += x * lower(*byte);
                    *high += x * upper(*byte);
                }
            }
        }
    }
}
