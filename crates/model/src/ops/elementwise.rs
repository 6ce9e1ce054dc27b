//! Element-wise operations between the fused ones: residual sums and casts, and the sum of squares of a gradient.

use burn::tensor::{DType, Tensor, Transaction};
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

/// The transpose of `x`, contiguous by rows.
pub fn transposed(x: Tensor<2>) -> Tensor<2> {
    match hosts([x.transpose()]) {
        Ok([x]) => x.into_tensor(),
        Err([x]) => x,
    }
}

/// Sum of the squares of all elements, in float64 on the CPU and over blocks of elements on a GPU: the global norm's part from one
/// gradient.
pub fn sum_of_squares(x: Tensor<2>) -> SumOfSquares {
    let _span = span(Kind::Operation, "sum_of_squares");
    match placed([x]) {
        Placed::Host([x]) => {
            SumOfSquares::known(by_dtype!(x.dtype(), E => reduce::sum_of_squares(&x.values::<E>())))
        }
        #[cfg(feature = "gpu")]
        Placed::Cube([x]) => SumOfSquares::of_blocks(super::cube::reduce::squares(x)),
        Placed::Other([x]) => {
            let x = x.cast(DType::F32);
            SumOfSquares::known((x.clone() * x).sum().into_scalar::<f32>() as f64)
        }
    }
}

/// A sum of squares, which a GPU may still be at work on.
#[derive(Debug, Clone)]
pub struct SumOfSquares(Squares);

#[derive(Debug, Clone)]
enum Squares {
    Known(f64),
    /// Sums of blocks in float32, on the GPU.
    #[cfg_attr(not(feature = "gpu"), expect(dead_code, reason = "made by kernels"))]
    Blocks(Box<Tensor<1>>),
}

impl SumOfSquares {
    pub(crate) fn known(sum: f64) -> Self {
        Self(Squares::Known(sum))
    }

    #[cfg(feature = "gpu")]
    pub(crate) fn of_blocks(blocks: burn_cubecl::tensor::CubeTensor) -> Self {
        Self(Squares::Blocks(Box::new(super::cube::tensor(blocks))))
    }

    /// The number. Waits for the GPU.
    pub fn read(self) -> f64 {
        Self::read_all(vec![self])[0]
    }

    /// The numbers of several sums on one device, in their order. Waits for the GPU once.
    pub fn read_all(sums: Vec<Self>) -> Vec<f64> {
        let on_device = sums.iter().filter_map(|sum| match &sum.0 {
            Squares::Known(_) => None,
            Squares::Blocks(blocks) => Some((**blocks).clone()),
        });
        let mut read = on_device.fold(Transaction::default(), Transaction::register).execute().into_iter();
        let sums = sums.into_iter().map(|sum| match sum.0 {
            Squares::Known(sum) => sum,
            // In float64, in the order of the blocks.
            Squares::Blocks(_) => read.next().expect("what was registered is read").iter::<f64>().sum(),
        });
        sums.collect()
    }
}
