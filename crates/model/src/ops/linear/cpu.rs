//! Dense layers on slices.

use rayon::prelude::*;

use crate::ops::engine::{Host, by_dtype};
use crate::ops::gemm::{Output, View, ViewMut, product};
use crate::ops::memory::Buffer;
use crate::ops::real::Real;
use crate::ops::vector::vectorized;

/// Rows that one task takes where no product is involved.
const ROWS: usize = 64;

pub(super) fn forward(x: &Host, w: &Host) -> Host {
    let (x_view, w) = (View::new(x.elements(), x.dims()), View::new(w.elements_as(x.dtype()), w.dims()));
    by_dtype!(x.dtype(), E => multiply::<E>(x_view, w))
}

pub(super) fn backward_input(dy: &Host, w: &Host) -> Host {
    let (dy_view, w) = (View::new(dy.elements(), dy.dims()), View::new(w.elements_as(dy.dtype()), w.dims()));
    by_dtype!(dy.dtype(), E => multiply::<E>(dy_view, w.transpose()))
}

pub(super) fn backward_weight(x: &Host, dy: &Host) -> Host {
    let (x, dy) = (View::new(x.elements(), x.dims()), View::new(dy.elements(), dy.dims()));
    multiply::<f32>(x.transpose(), dy)
}

pub(super) fn add_bias(mut y: Host, bias: &Host) -> Host {
    by_dtype!(y.dtype(), E => {
        let bias = bias.rounded::<E>();
        y.values_mut::<E>().par_chunks_mut(ROWS * bias.len().max(1)).for_each(|rows| add_to_rows(rows, &bias));
    });
    y
}

vectorized! {
    fn add_to_rows<E: Real>(rows: &mut [E], bias: &[f32]) {
        for row in rows.chunks_exact_mut(bias.len()) {
            for (y, b) in row.iter_mut().zip(bias) {
                *y = E::from_f32(y.to_f32() + b);
            }
        }
    }
}

fn multiply<E: Real>(a: View, b: View) -> Host {
    let shape = [a.dims()[0], b.dims()[1]];
    let mut y = Buffer::<E>::new(shape[0] * shape[1]);
    product(a, b, ViewMut::new(&mut y, shape), Output::Assign);
    Host::new(y, shape)
}
