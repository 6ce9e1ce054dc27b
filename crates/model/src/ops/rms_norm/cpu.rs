//! RMSNorm on slices: one pass over a row for its statistics, one for its values, while the row is in the first cache.

use rayon::prelude::*;

use crate::ops::engine::{Host, by_dtype};
use crate::ops::memory::Buffer;
use crate::ops::real::Real;
use crate::ops::reduce::{add_up, sum_of, sum_of_three};
use crate::ops::vector::vectorized;

/// Rows that one task takes; fixed, so that sums over rows don't depend on the number of threads.
const ROWS: usize = 64;

pub(super) fn forward(x: &Host, scale: &Host, eps: f32) -> Host {
    let [rows, cols] = x.dims();
    by_dtype!(x.dtype(), E => {
        let (x, scale) = (x.values::<E>(), scale.rounded::<E>());
        let mut y = Buffer::<E>::new(rows * cols);
        let block = ROWS * cols.max(1);
        y.par_chunks_mut(block).zip(x.par_chunks(block)).for_each(|(y, x)| forward_rows(y, x, &scale, eps));
        Host::new(y, [rows, cols])
    })
}

pub(super) fn backward(x: &Host, scale: &Host, eps: f32, dy: &Host) -> (Host, Host) {
    let [rows, cols] = x.dims();
    by_dtype!(x.dtype(), E => {
        let (x, scale, dy) = (x.values::<E>(), scale.rounded::<E>(), dy.values::<E>());
        let mut dx = Buffer::<E>::new(rows * cols);
        let block = ROWS * cols.max(1);
        let partials = dx
            .par_chunks_mut(block)
            .zip(x.par_chunks(block).zip(dy.par_chunks(block)))
            .map(|(dx, (x, dy))| {
                let mut dscale = vec![0.0; cols];
                backward_rows(dx, x, dy, &scale, eps, &mut dscale);
                dscale
            })
            .collect();
        (Host::new(dx, [rows, cols]), Host::new(add_up(partials, cols), [1, cols]))
    })
}

vectorized! {
    fn forward_rows<E: Real>(y: &mut [E], x: &[E], scale: &[f32], eps: f32) {
        for (y, x) in y.chunks_exact_mut(scale.len()).zip(x.chunks_exact(scale.len())) {
            let r = inverse_rms(x, eps);
            for ((y, x), s) in y.iter_mut().zip(x).zip(scale) {
                *y = E::from_f32(E::from_f32(x.to_f32() * r).to_f32() * s);
            }
        }
    }
}

vectorized! {
    /// Adds the rows' part to `dscale`.
    fn backward_rows<E: Real>(dx: &mut [E], x: &[E], dy: &[E], scale: &[f32], eps: f32, dscale: &mut [f32]) {
        let cols = scale.len();
        for ((dx, x), dy) in dx.chunks_exact_mut(cols).zip(x.chunks_exact(cols)).zip(dy.chunks_exact(cols)) {
            let r = inverse_rms(x, eps);
            let mean = r * sum_of_three(x, dy, scale, |x, dy, s| x.to_f32() * dy.to_f32() * s) / cols as f32;
            for ((((dx, x), dy), s), dscale) in dx.iter_mut().zip(x).zip(dy).zip(scale).zip(&mut *dscale) {
                let n = x.to_f32() * r;
                *dscale += dy.to_f32() * n;
                *dx = E::from_f32((dy.to_f32() * s - n * mean) * r);
            }
        }
    }
}

#[inline(always)]
fn inverse_rms<E: Real>(x: &[E], eps: f32) -> f32 {
    let squares = sum_of(x, |x| x.to_f32() * x.to_f32());
    1.0 / (squares / x.len() as f32 + eps).sqrt()
}
