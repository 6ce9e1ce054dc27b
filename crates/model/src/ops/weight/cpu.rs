//! Products of few rows on slices: `y[t, o] = sum_i x[t, i] w[i, o]`, w read once, in the order in which it lies.
//!
//! The matrix is cut into blocks, each with its own partial sums, which are added in order: results depend neither on the
//! number of threads nor on the other rows.

use rayon::prelude::*;

use crate::ops::engine::{Host, by_dtype};
use crate::ops::real::Stored;
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
    let dims @ [rows, depth] = [x.dims()[0], x.dims()[1]];
    let cols = w.dims()[1];
    let x_values = x.values::<f32>();
    let y = by_dtype!(w.dtype(), E => multiply::<E>(&x_values, dims, &w.values::<E>(), cols));
    debug_assert_eq!(depth, w.dims()[0]);
    by_dtype!(x.dtype(), E => Host::new(y, [rows, cols]).cast::<E>())
}

/// `x: [rows, depth]` by `w: [depth, cols]`, in float32.
pub(super) fn multiply<E: Stored>(x: &[f32], [rows, depth]: [usize; 2], w: &[E], cols: usize) -> Vec<f32> {
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
                    add_block(sums, &x[t * depth + start..][..height], &w[start * cols + col..], cols);
                }
            }
            sums
        })
        .collect();
    let mut y = vec![0.0; rows * cols];
    for ((col, _), sums) in blocks.into_iter().zip(sums) {
        let width = COLS.min(cols - col);
        for (y, sums) in y.chunks_exact_mut(cols).zip(sums.chunks_exact(width)) {
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
