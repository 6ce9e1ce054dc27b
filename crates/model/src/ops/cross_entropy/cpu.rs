//! Head and loss on slices: tiles of rows, each in chunks of columns while these are in the last-level cache.

use std::ops::Range;

use burn::tensor::{DType, Int, Tensor};
use mt_config::plan::head_tile_rows;
use rayon::prelude::*;

use super::softmax::{Loss, Row, RowLoss};
use super::{Backward, Spec, Sums};
use crate::ops::engine::{Host, by_dtype, integers};
use crate::ops::gemm::{Elements, Output, View, ViewMut, product};
use crate::ops::memory::Buffer;
use crate::ops::real::Real;
use crate::profile::{Kind, span};

/// Columns of a chunk.
const CHUNK: usize = 2048;

/// The head's matrix: [E, V], or [V, E] when tied.
pub(super) struct Kernel {
    pub(super) w: Host,
    pub(super) tied: bool,
}

/// One row per token: its target and weight.
pub(super) fn rows(targets: &Tensor<1, Int>, weights: &Tensor<1>) -> Vec<Row> {
    let weights = weights.to_data();
    integers(targets)
        .into_iter()
        .zip(weights.iter::<f32>())
        .map(|(target, weight)| Row::new(target, weight))
        .collect()
}

pub(super) fn logits(h: &Host, kernel: &Kernel, spec: &Spec) -> Host {
    let operands = Operands::new(h, kernel, spec);
    let [tokens, _, v] = operands.shape();
    let mut logits = Buffer::new(tokens * v);
    product(operands.h, operands.w, ViewMut::new(&mut logits, [tokens, v]), Output::Assign);
    logits.par_chunks_mut(v.max(1)).for_each(|row| operands.loss.finish(row));
    Host::new::<f32>(logits, [tokens, v])
}

pub(super) fn logits_of_products(products: Host, spec: &Spec) -> Host {
    let v = products.dims()[1];
    let mut logits = products.cast::<f32>();
    let loss = Loss::new(spec, false);
    logits.values_mut::<f32>().par_chunks_mut(v.max(1)).for_each(|row| loss.finish(row));
    logits
}

pub(super) fn forward(h: &Host, kernel: &Kernel, mut rows: Vec<Row>, spec: &Spec) -> Sums {
    let operands = Operands::new(h, kernel, spec);
    by_dtype!(operands.dtype, E => for_each_tile::<E>(&operands, &mut rows, spec, |_, _, _| {}));
    operands.sums(&rows)
}

pub(super) fn forward_backward(
    h: &Host,
    kernel: &Kernel,
    mut rows: Vec<Row>,
    factor: f32,
    spec: &Spec,
) -> Backward {
    let operands = Operands::new(h, kernel, spec);
    let [tokens, e, _] = operands.shape();
    let (dh, dw) =
        by_dtype!(operands.dtype, E => gradients::<E>(&operands, kernel.tied, &mut rows, factor, spec));
    let Sums { xent_sum, z_loss_sum } = operands.sums(&rows);
    let dh = by_dtype!(h.dtype(), E => Host::new(dh, [tokens, e]).cast::<E>());
    let dw = Host::new(dw, kernel.w.dims());
    Backward { xent_sum, z_loss_sum, dh: dh.into_tensor(), dw: dw.into_tensor() }
}

/// Gradients of h and of the head's matrix; the rows see their logits. `E` is the type of the products, so that of their
/// cotangents.
fn gradients<E: Real>(
    operands: &Operands,
    tied: bool,
    rows: &mut [Row],
    factor: f32,
    spec: &Spec,
) -> (Buffer<f32>, Buffer<f32>) {
    let [tokens, e, v] = operands.shape();
    let mut dh = Buffer::zeroed(tokens * e);
    let mut dw = Buffer::zeroed(e * v);
    for_each_tile::<E>(operands, rows, spec, |tokens, rows, tile| {
        let dh = &mut dh[tokens.start * e..tokens.end * e];
        for columns in chunks(v) {
            operands.gradient(tile, rows, columns.clone(), factor);
            let da = View::new(Elements::of(tile), [tokens.len(), v]).columns(columns.clone());
            let (h, w) = (operands.h.rows(tokens.clone()), operands.w.columns(columns.clone()));
            let work = || (2 * (tokens.len() * e * columns.len()) as u64, 0);
            {
                let _span = span(Kind::Matmul, "cross_entropy.backward_input").work_by(work);
                product(da, w.transpose(), ViewMut::new(dh, [tokens.len(), e]), Output::Add);
            }
            let _span = span(Kind::Matmul, "cross_entropy.backward_weight").work_by(work);
            match tied {
                true => product(da.transpose(), h, ViewMut::new(&mut dw, [v, e]).rows(columns), Output::Add),
                false => {
                    product(h.transpose(), da, ViewMut::new(&mut dw, [e, v]).columns(columns), Output::Add)
                }
            }
        }
    });
    (dh, dw)
}

/// What the products need.
struct Operands<'a> {
    h: View<'a>,  // [T, E]
    w: View<'a>,  // [E, V]
    dtype: DType, // of the products
    loss: Loss,
}

impl<'a> Operands<'a> {
    fn new(h: &'a Host, kernel: &'a Kernel, spec: &Spec) -> Self {
        let dtype = if spec.dot_in_fp32 { DType::F32 } else { h.dtype() };
        let w = View::new(kernel.w.elements_as(dtype), kernel.w.dims());
        let w = if kernel.tied { w.transpose() } else { w };
        Self { h: View::new(h.elements(), h.dims()), w, dtype, loss: Loss::new(spec, dtype == DType::BF16) }
    }

    /// Tokens, E, V.
    fn shape(&self) -> [usize; 3] {
        let ([tokens, e], [_, v]) = (self.h.dims(), self.w.dims());
        [tokens, e, v]
    }

    /// Products of `tokens` and `columns` into the tile; the rows see their logits.
    fn products<E: Real>(
        &self,
        tile: &mut [E],
        rows: &mut [Row],
        tokens: Range<usize>,
        columns: Range<usize>,
    ) {
        let [_, e, v] = self.shape();
        let target = ViewMut::new(tile, [rows.len(), v]).columns(columns.clone());
        {
            let work = || (2 * (tokens.len() * e * columns.len()) as u64, 0);
            let _span = span(Kind::Matmul, "cross_entropy.logits").work_by(work);
            product(self.h.rows(tokens.clone()), self.w.columns(columns.clone()), target, Output::Assign);
        }
        tile.par_chunks(v).zip(rows).with_min_len(8).for_each(|(products, row)| {
            self.loss.see(&products[columns.clone()], row, columns.start);
        });
    }

    /// Turns the tile's products of `columns` into their gradient.
    fn gradient<E: Real>(&self, tile: &mut [E], rows: &[Row], columns: Range<usize>, factor: f32) {
        let [_, _, v] = self.shape();
        tile.par_chunks_mut(v).zip(rows).with_min_len(8).for_each(|(products, row)| {
            self.loss.gradient(&mut products[columns.clone()], row, columns.start, factor);
        });
    }

    /// Sums in the order of tokens.
    fn sums(&self, rows: &[Row]) -> Sums {
        let losses: Vec<RowLoss> = rows.iter().map(|row| self.loss.loss(row)).collect();
        Sums {
            xent_sum: losses.iter().map(|loss| loss.xent as f64).sum(),
            z_loss_sum: losses.iter().map(|loss| loss.z_loss as f64).sum(),
        }
    }
}

/// Computes tile after tile of products in one buffer and hands each to `body`: its tokens, their rows and the tile.
fn for_each_tile<E: Real>(
    operands: &Operands,
    rows: &mut [Row],
    spec: &Spec,
    mut body: impl FnMut(Range<usize>, &[Row], &mut [E]),
) {
    let [tokens, _, v] = operands.shape();
    let size = head_tile_rows(tokens, v, size_of::<E>(), spec.tiling);
    let mut buffer = Buffer::new(size * v);
    for (i, rows) in rows.chunks_mut(size).enumerate() {
        let tokens = i * size..i * size + rows.len();
        let tile = &mut buffer[..rows.len() * v];
        for columns in chunks(v) {
            operands.products(tile, rows, tokens.clone(), columns);
        }
        body(tokens, rows, tile);
    }
}

fn chunks(v: usize) -> impl Iterator<Item = Range<usize>> {
    (0..v).step_by(CHUNK).map(move |start| start..v.min(start + CHUNK))
}
