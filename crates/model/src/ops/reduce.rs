//! Sums whose order of additions depends on shapes only.

use rayon::prelude::*;

use super::engine::{Host, by_dtype};
use super::real::Real;
use super::vector::{LANES, vectorized};

/// Rows that one partial sum of columns covers.
const ROWS: usize = 64;
/// Elements that one partial sum of squares covers.
const BLOCK: usize = 1 << 14;

/// Sum of `f(x)`, in independent lanes, which vector instructions add up.
#[inline(always)]
pub(crate) fn sum_of<X: Copy>(x: &[X], f: impl Fn(X) -> f32) -> f32 {
    sum_of_three(x, x, x, |x, _, _| f(x))
}

/// Sum of `f(x, y, z)` over equally long slices.
#[inline(always)]
pub(crate) fn sum_of_three<X: Copy, Y: Copy, Z: Copy>(
    x: &[X],
    y: &[Y],
    z: &[Z],
    f: impl Fn(X, Y, Z) -> f32,
) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let ((x, x_rest), (y, y_rest), (z, z_rest)) =
        (x.as_chunks::<LANES>(), y.as_chunks::<LANES>(), z.as_chunks::<LANES>());
    for ((x, y), z) in x.iter().zip(y).zip(z) {
        for i in 0..LANES {
            lanes[i] += f(x[i], y[i], z[i]);
        }
    }
    for (((lane, x), y), z) in lanes.iter_mut().zip(x_rest).zip(y_rest).zip(z_rest) {
        *lane += f(*x, *y, *z);
    }
    fold(lanes)
}

/// Adds lanes up in a tree.
#[inline(always)]
fn fold(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// Sum of every column, in float32.
pub(crate) fn column_sums(x: &Host) -> Vec<f32> {
    let cols = x.dims()[1];
    by_dtype!(x.dtype(), E => {
        let x = x.values::<E>();
        let partials = x.par_chunks(ROWS * cols.max(1)).map(|rows| {
            let mut sums = vec![0.0; cols];
            add_rows(&mut sums, rows);
            sums
        }).collect();
        add_up(partials, cols)
    })
}

vectorized! {
    fn add_rows<E: Real>(sums: &mut [f32], rows: &[E]) {
        for row in rows.chunks_exact(sums.len()) {
            for (sum, v) in sums.iter_mut().zip(row) {
                *sum += v.to_f32();
            }
        }
    }
}

/// Largest magnitude of every column; NaN where there is one.
pub(crate) fn column_maxima<E: Real>(x: &[E], cols: usize) -> Vec<f32> {
    let maxima = x.par_chunks(ROWS * cols.max(1)).map(|rows| {
        let mut max = vec![0.0; cols];
        rows.chunks_exact(cols).for_each(|row| raise(&mut max, row));
        max
    });
    maxima.reduce(
        || vec![0.0; cols],
        |mut a, b| {
            raise(&mut a, &b);
            a
        },
    )
}

vectorized! {
    /// Raises every column's largest magnitude.
    fn raise<E: Real>(max: &mut [f32], row: &[E]) {
        for (max, x) in max.iter_mut().zip(row) {
            let x = x.to_f32().abs();
            *max = if x > *max || x.is_nan() { x } else { *max };
        }
    }
}

/// Adds equally long vectors in a tree, so that rounding grows with the logarithm of their number.
pub(crate) fn add_up(mut partials: Vec<Vec<f32>>, len: usize) -> Vec<f32> {
    while partials.len() > 1 {
        let (even, odd) = (partials.len().div_ceil(2), partials.len() / 2);
        let tail = partials.split_off(even);
        for (a, b) in partials.iter_mut().zip(&tail[..odd]) {
            add_rows(a, b);
        }
    }
    partials.pop().unwrap_or_else(|| vec![0.0; len])
}

/// Sum of squares of all elements in float64, in blocks of fixed length that are added in order.
pub(crate) fn sum_of_squares<E: Real>(x: &[E]) -> f64 {
    let partials: Vec<f64> = x.par_chunks(BLOCK).map(|block| squares(block)).collect();
    partials.iter().sum()
}

vectorized! {
    /// Sum of squares in float64, where products of float32 numbers are exact.
    pub(crate) fn squares<E: Real>(x: &[E]) -> f64 {
        let mut lanes = [0.0f64; 16];
        let (chunks, rest) = x.as_chunks::<16>();
        for chunk in chunks {
            for (lane, v) in lanes.iter_mut().zip(chunk) {
                let v = v.to_f32() as f64;
                *lane += v * v;
            }
        }
        let rest: f64 = rest.iter().map(|v| (v.to_f32() as f64).powi(2)).sum();
        lanes.iter().sum::<f64>() + rest
    }
}
