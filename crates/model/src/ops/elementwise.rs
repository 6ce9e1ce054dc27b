//! Element-wise operations between the fused ones: residual sums and casts, and the sum of squares of a gradient.

use burn::tensor::{DType, Tensor};
use rayon::prelude::*;

use super::engine::{BLOCK, Host, Placed, by_dtype, hosts, placed};
use super::real::Real;
use super::reduce;
use super::vector::vectorized;
use crate::profile::{Kind, span};

/// `x + y` (residual connections and sums of gradients), both `[T, E]` of one type; into x's memory when nobody else holds it.
pub fn add(x: Tensor<2>, y: Tensor<2>) -> Tensor<2> {
    let _span = span(Kind::Operation, "add");
    match hosts([x, y]) {
        Ok([x, y]) => add_host(x, &y).into_tensor(),
        Err([x, y]) => x + y,
    }
}

fn add_host(mut x: Host, y: &Host) -> Host {
    by_dtype!(x.dtype(), E => {
        let y = y.values::<E>();
        x.values_mut::<E>().par_chunks_mut(BLOCK).zip(y.par_chunks(BLOCK)).for_each(|(x, y)| {
            add_block(x, y);
        });
    });
    x
}

vectorized! {
    fn add_block<E: Real>(x: &mut [E], y: &[E]) {
        for (x, y) in x.iter_mut().zip(y) {
            *x = E::from_f32(x.to_f32() + y.to_f32());
        }
    }
}

/// `x` as `dtype`, rounded to nearest even; `x` itself when it is of that type.
pub fn cast(x: Tensor<2>, dtype: DType) -> Tensor<2> {
    if x.dtype() == dtype {
        return x;
    }
    let _span = span(Kind::Operation, "cast");
    if !matches!(dtype, DType::F32 | DType::BF16) {
        return x.cast(dtype);
    }
    match hosts([x]) {
        Ok([x]) => by_dtype!(dtype, E => x.cast::<E>()).into_tensor(),
        Err([x]) => x.cast(dtype),
    }
}

/// Sum of the squares of all elements, in float64 on the CPU and over blocks of elements on a GPU: the global norm's part from one gradient.
pub fn sum_of_squares(x: Tensor<2>) -> f64 {
    let _span = span(Kind::Operation, "sum_of_squares");
    match placed([x]) {
        Placed::Host([x]) => by_dtype!(x.dtype(), E => reduce::sum_of_squares(&x.values::<E>())),
        #[cfg(feature = "gpu")]
        Placed::Cube([x]) => super::cube::reduce::sum_of_squares(x),
        Placed::Other([x]) => {
            let x = x.cast(DType::F32);
            (x.clone() * x).sum().into_scalar::<f32>() as f64
        }
    }
}
