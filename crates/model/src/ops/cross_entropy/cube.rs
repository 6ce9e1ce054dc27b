//! Head and loss on a GPU: tiles of rows. The products are burn's; one kernel takes a tile's softmax, its losses and, in place,
//! its gradient.

use burn::tensor::{DType, Tensor};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use mt_config::plan::head_tile_rows;

use super::{Backward, Spec, Sums};
use crate::ops::cube::{
    UNITS, arg, cube_dim, dims, element, empty, float, grid, integers, largest, len, sum, tanh, tensor, units,
};

/// Logits of `h: [T, E]` in float32.
pub(super) fn logits(h: CubeTensor, w: CubeTensor, tied: bool, spec: &Spec) -> CubeTensor {
    let operands = Operands::new(h, w, tied, spec);
    let products = float(operands.h.clone().matmul(operands.w));
    let logits = empty(dims(&products), DType::F32, &products);
    finish_kernel::launch(
        &products.client,
        units(len(&products)),
        cube_dim(),
        arg(&products),
        arg(&logits),
        spec.logits_scale as f32,
        spec.soft_cap.unwrap_or(1.0) as f32,
        spec.soft_cap.is_some(),
        element(&products),
    );
    logits
}

pub(super) fn forward(
    h: CubeTensor,
    w: CubeTensor,
    tied: bool,
    targets: &Tensor<1, burn::tensor::Int>,
    weights: &Tensor<1>,
    spec: &Spec,
) -> Sums {
    let operands = Operands::new(h, w, tied, spec);
    let losses = Losses::new(targets, weights, None);
    for_each_tile(&operands, &losses, spec, |_, _| {});
    losses.sums()
}

pub(super) fn forward_backward(
    h: CubeTensor,
    w: CubeTensor,
    tied: bool,
    targets: &Tensor<1, burn::tensor::Int>,
    weights: &Tensor<1>,
    factor: f64,
    spec: &Spec,
) -> Backward {
    let dtype = h.dtype;
    let operands = Operands::new(h, w, tied, spec);
    let losses = Losses::new(targets, weights, Some(factor as f32));
    let (mut dh, mut dw) = (Vec::new(), None);
    for_each_tile(&operands, &losses, spec, |h, da| {
        dh.push(da.clone().matmul(operands.w.clone().transpose()).cast(dtype));
        let (h, da) = (h.cast(DType::F32), da.cast(DType::F32));
        let of_tile = if tied { da.transpose().matmul(h) } else { h.transpose().matmul(da) };
        dw = Some(match dw.take() {
            Some(dw) => dw + of_tile,
            None => of_tile,
        });
    });
    let Sums { xent_sum, z_loss_sum } = losses.sums();
    let dw = dw.expect("buffers have at least one row");
    let dh = if dh.len() == 1 { dh.remove(0) } else { Tensor::cat(dh, 0) };
    Backward { xent_sum, z_loss_sum, dh, dw }
}

/// Factors of the product, in its type.
struct Operands {
    h: Tensor<2>, // [T, E]
    w: Tensor<2>, // [E, V]
}

impl Operands {
    fn new(h: CubeTensor, w: CubeTensor, tied: bool, spec: &Spec) -> Self {
        let dtype = if spec.dot_in_fp32 { DType::F32 } else { h.dtype };
        let (h, w) = (tensor::<2>(h).cast(dtype), tensor::<2>(w).cast(dtype));
        Self { h, w: if tied { w.transpose() } else { w } }
    }
}

/// What rows are compared with and what comes of it.
struct Losses {
    targets: CubeTensor, // [T]
    weights: CubeTensor, // [T]
    factor: Option<f32>, // of the gradient; none without one
    losses: CubeTensor,  // [2, T] float32: cross-entropies, then z-losses
}

impl Losses {
    fn new(targets: &Tensor<1, burn::tensor::Int>, weights: &Tensor<1>, factor: Option<f32>) -> Self {
        let (targets, weights) = (integers(targets), float(weights.clone()));
        let losses = empty([2, len(&weights)], DType::F32, &weights);
        Self { targets, weights, factor, losses }
    }

    /// Sees the products of rows `first..`; turns them into their gradient if one is wanted.
    fn see(&self, products: &CubeTensor, first: usize, spec: &Spec) {
        let [rows, vocab] = dims(products);
        softmax_kernel::launch(
            &products.client,
            grid(rows),
            cube_dim(),
            arg(products),
            arg(&self.targets),
            arg(&self.weights),
            arg(&self.losses),
            first,
            rows,
            vocab,
            LossLaunch::new(
                self.factor.unwrap_or_default(),
                spec.z_loss_multiplier as f32,
                spec.logits_scale as f32,
                spec.soft_cap.unwrap_or(1.0) as f32,
                f32::NAN,
            ),
            spec.soft_cap.is_some(),
            self.factor.is_some(),
            [element(products), element(&self.targets), element(&self.weights)],
        );
    }

    /// Sums in the order of tokens. Waits for the GPU.
    fn sums(self) -> Sums {
        let losses: Vec<f64> = tensor::<2>(self.losses).to_data().iter::<f64>().collect();
        let (xent, z_loss) = losses.split_at(losses.len() / 2);
        Sums { xent_sum: xent.iter().sum(), z_loss_sum: z_loss.iter().sum() }
    }
}

/// Computes tile after tile of products, shows them to `losses` and hands each tile's rows of h and gradient to `body`.
fn for_each_tile(
    operands: &Operands,
    losses: &Losses,
    spec: &Spec,
    mut body: impl FnMut(Tensor<2>, Tensor<2>),
) {
    let ([tokens, _], [_, vocab]) = (operands.h.dims(), operands.w.dims());
    let size = head_tile_rows(tokens, vocab, size_of::<f32>(), spec.tiling);
    for first in (0..tokens).step_by(size) {
        let h = operands.h.clone().narrow(0, first, size.min(tokens - first));
        let products = float(h.clone().matmul(operands.w.clone()));
        losses.see(&products, first, spec);
        body(h, tensor(products));
    }
}

/// The loss's numbers.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Loss {
    factor: f32,
    z_loss_multiplier: f32,
    scale: f32,
    cap: f32,
    nan: f32,
}

/// Logits of products: `a = scale product`, `l = cap tanh(a / cap)`.
#[cube(launch)]
pub(crate) fn finish_kernel<E: Float>(
    products: &[E],
    logits: &mut [f32],
    scale: f32,
    cap: f32,
    #[comptime] capped: bool,
    #[define(E)] _type: ElemType,
) {
    if ABSOLUTE_POS < logits.len() {
        logits[ABSOLUTE_POS] = finished(f32::cast_from(products[ABSOLUTE_POS]), scale, cap, capped);
    }
}

/// A cube per row: the log-partition `z` from one pass over the row (every unit keeps its largest logit and the sum of
/// exponentials relative to it), the row's loss, and in a second pass the gradient in the products' place. See the maths of
/// the operation.
#[cube(launch)]
pub(crate) fn softmax_kernel<E: Float, I: Int, W: Float>(
    products: &mut [E],
    targets: &[I],
    weights: &[W],
    losses: &mut [f32],
    first_token: usize,
    rows: usize,
    vocab: usize,
    loss: Loss,
    #[comptime] capped: bool,
    #[comptime] gradient: bool,
    #[define(E, I, W)] _types: [ElemType; 3],
) {
    if CUBE_POS < rows {
        let token = first_token + CUBE_POS;
        let first = CUBE_POS * vocab;
        let weight = f32::cast_from(weights[token]);
        let target = u32::cast_from(targets[token]) as usize; // a negative one wraps beyond the vocabulary

        let mut top = f32::new(-3.0e38);
        let mut exps = f32::new(0.0);
        let mut v = UNIT_POS as usize;
        while v < vocab {
            let l = finished(f32::cast_from(products[first + v]), loss.scale, loss.cap, capped);
            let new = max(top, l);
            exps = exps * (top - new).exp() + (l - new).exp();
            top = new;
            v += UNITS;
        }
        let max_logit = largest(top);
        let log_z = max_logit + sum(exps * (top - max_logit).exp()).ln();

        if UNIT_POS == 0 {
            let mut picked = loss.nan;
            if target < vocab {
                picked = finished(f32::cast_from(products[first + target]), loss.scale, loss.cap, capped);
            }
            let mut xent = f32::new(0.0);
            let mut z_loss = f32::new(0.0);
            if weight != 0.0 {
                z_loss = weight * loss.z_loss_multiplier * log_z * log_z;
                xent = weight * (log_z - picked) + z_loss;
            }
            losses[token] = xent;
            losses[weights.len() + token] = z_loss;
        }

        if gradient {
            sync_cube(); // the target's product was read
            let factor = loss.factor * weight * loss.scale;
            let slope = factor * (1.0 + 2.0 * loss.z_loss_multiplier * log_z);
            let mut v = UNIT_POS as usize;
            while v < vocab {
                let mut da = f32::new(0.0);
                if weight != 0.0 {
                    let l = finished(f32::cast_from(products[first + v]), loss.scale, loss.cap, capped);
                    da = slope * (l - log_z).exp();
                    if v == target {
                        da -= factor;
                    }
                    if capped {
                        let share = l / loss.cap;
                        da *= 1.0 - share * share;
                    }
                }
                products[first + v] = E::cast_from(da);
                v += UNITS;
            }
        }
    }
}

#[cube]
fn finished(product: f32, scale: f32, cap: f32, #[comptime] capped: bool) -> f32 {
    let a = product * scale;
    if capped { cap * tanh(a / cap) } else { a }
}

#[cfg(all(test, feature = "rocm"))]
mod hip {
    use crate::ops::cube::hip_text::{BF16, F32, I32, Kernel};

    use super::*;

    #[test]
    fn hip_text() {
        let sizes = [("rows", 20), ("tokens", 64), ("vocab", 1000)];
        for (e, capped) in [(BF16, false), (BF16, true), (F32, false), (F32, true)] {
            let name =
                |kernel: &str| format!("cross_entropy_{kernel}{}", if capped { "_capped" } else { "" });
            Kernel::new(&name("logits"), &[e], sizes)
                .buffer("products", e, "rows, vocab")
                .buffer("logits", F32, "rows, vocab")
                .scalar("scale", 1.0f32)
                .scalar("cap", 30.0f32)
                .units("rows*vocab")
                .write(|k, p, t, b| finish_kernel::FinishKernel::new(k, p, t, b(), b(), (), (), capped, e));
            for gradient in [false, true] {
                let name = name(if gradient { "backward" } else { "forward" });
                Kernel::new(&name, &[e], sizes)
                    .buffer("products", e, "rows, vocab")
                    .buffer("targets", I32, "tokens")
                    .buffer("weights", F32, "tokens")
                    .buffer("losses", F32, "2, tokens")
                    .named_size("first_token", 40)
                    .size("rows")
                    .size("vocab")
                    .scalar("factor", 0.015625f32)
                    .scalar("z_loss_multiplier", 1e-4f32)
                    .scalar("scale", 1.0f32)
                    .scalar("cap", 30.0f32)
                    .scalar("nan", f32::NAN)
                    .cubes("rows")
                    .write(|k, p, t, b| {
                        let loss = LossCompilationArg {
                            factor: (),
                            z_loss_multiplier: (),
                            scale: (),
                            cap: (),
                            nan: (),
                        };
                        let types = [e, I32, F32];
                        softmax_kernel::SoftmaxKernel::new(
                            k,
                            p,
                            t,
                            b(),
                            b(),
                            b(),
                            b(),
                            (),
                            (),
                            (),
                            loss,
                            capped,
                            gradient,
                            types,
                        )
                    });
            }
        }
    }
}
