//! Head and loss composed of burn's operations. Holds all logits: the reference, and the way on devices without a kernel.

use burn::tensor::{DType, Int, Tensor};

use super::{Backward, Head, Spec, Sums};

pub(super) fn logits(h: Tensor<2>, head: Head, spec: &Spec) -> Tensor<2> {
    let w = kernel(&head, &h, spec);
    logits_of_products(h.cast(w.dtype()).matmul(w), spec)
}

pub(super) fn logits_of_products(products: Tensor<2>, spec: &Spec) -> Tensor<2> {
    let logits = products.cast(DType::F32).mul_scalar(spec.logits_scale);
    match spec.soft_cap {
        Some(cap) => logits.div_scalar(cap).tanh().mul_scalar(cap),
        None => logits,
    }
}

pub(super) fn forward(
    h: Tensor<2>,
    head: Head,
    targets: &Tensor<1, Int>,
    weights: &Tensor<1>,
    spec: &Spec,
) -> Sums {
    sums(&logits(h, head, spec), targets, weights, spec)
}

pub(super) fn forward_backward(
    h: Tensor<2>,
    head: Head,
    targets: &Tensor<1, Int>,
    weights: &Tensor<1>,
    factor: f64,
    spec: &Spec,
) -> Backward {
    let (dtype, w) = (h.dtype(), kernel(&head, &h, spec));
    let logits = logits(h.clone(), head.clone(), spec);
    let Sums { xent_sum, z_loss_sum } = sums(&logits, targets, weights, spec);

    let [tokens, vocab] = logits.dims();
    let log_z = log_sum_exp(&logits); // [T, 1]
    let p = (logits.clone() - log_z.clone()).exp();
    let one_hot: Tensor<2> = targets.clone().one_hot::<2>(vocab).float().cast(DType::F32);
    let weight = weights.clone().reshape([tokens, 1]).mul_scalar(factor * spec.logits_scale);
    let mut da = (p * log_z.mul_scalar(2.0 * spec.z_loss_multiplier).add_scalar(1.0) - one_hot) * weight;
    if let Some(cap) = spec.soft_cap {
        let share = logits.div_scalar(cap);
        da = da * (share.clone() * share).neg().add_scalar(1.0);
    }

    // Cotangents of the product are of its type.
    let (da, h, w) = (da.cast(w.dtype()).cast(DType::F32), h.cast(DType::F32), w.cast(DType::F32));
    let dw = match head {
        Head::Dense(_) => h.transpose().matmul(da.clone()),
        Head::Embedding(_) => da.clone().transpose().matmul(h),
    };
    let dh = da.matmul(w.transpose()).cast(dtype);
    Backward { xent_sum, z_loss_sum, dh, dw }
}

/// The matrix as [E, V] in the type of the product.
fn kernel(head: &Head, h: &Tensor<2>, spec: &Spec) -> Tensor<2> {
    let dtype = if spec.dot_in_fp32 { DType::F32 } else { h.dtype() };
    match head {
        Head::Dense(w) => w.clone().cast(dtype),
        Head::Embedding(w) => w.clone().cast(dtype).transpose(),
    }
}

fn log_sum_exp(logits: &Tensor<2>) -> Tensor<2> {
    let max = logits.clone().max_dim(1);
    (logits.clone() - max.clone()).exp().sum_dim(1).log() + max
}

fn sums(logits: &Tensor<2>, targets: &Tensor<1, Int>, weights: &Tensor<1>, spec: &Spec) -> Sums {
    let tokens = logits.dims()[0];
    let weights: Tensor<2> = weights.clone().reshape([tokens, 1]);
    let log_z = log_sum_exp(logits);
    let picked = logits.clone().gather(1, targets.clone().reshape([tokens, 1]));
    let z_loss = (log_z.clone() * log_z.clone()).mul_scalar(spec.z_loss_multiplier) * weights.clone();
    let xent = (log_z - picked) * weights + z_loss.clone();
    let total = |x: Tensor<2>| x.to_data().iter::<f64>().sum();
    Sums { xent_sum: total(xent), z_loss_sum: total(z_loss) }
}
