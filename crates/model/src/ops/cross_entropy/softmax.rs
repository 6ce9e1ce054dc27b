//! The loss of rows of products that arrive in chunks of columns, and the gradient of a chunk in place. A product is stored in
//! the type in which it was computed; its logit, scaled and capped, is float32 and never stored.

use half::bf16;

use super::Spec;
use crate::ops::real::Real;
use crate::ops::reduce::sum_of;
use crate::ops::vector::{exp, tanh, vectorized};

/// The row-wise constants of the loss in float32.
#[derive(Clone, Copy)]
pub(super) struct Loss {
    z_loss_multiplier: f32,
    soft_cap: f32, // infinite without a cap
    scale: f32,
    round: bool, // products are bfloat16
}

/// One token: its target and weight, and what was seen of its logits.
#[derive(Clone, Copy)]
pub(super) struct Row {
    target: usize,
    weight: f32,
    max: f32,
    sum: f64, // of exp(logit - max)
    picked: f32,
}

/// One token's weighted losses.
#[derive(Clone, Copy, Default)]
pub(super) struct RowLoss {
    pub(super) xent: f32,
    pub(super) z_loss: f32,
}

impl Row {
    /// A target outside of the vocabulary is never seen and leaves the loss NaN.
    pub(super) fn new(target: i64, weight: f32) -> Self {
        let target = usize::try_from(target).unwrap_or(usize::MAX);
        Self { target, weight, max: f32::NEG_INFINITY, sum: 0.0, picked: f32::NAN }
    }

    /// Rows of weight 0 have neither loss nor gradient.
    pub(super) fn counts(&self) -> bool {
        self.weight != 0.0
    }

    fn log_z(&self) -> f32 {
        (self.max as f64 + self.sum.ln()) as f32
    }
}

impl Loss {
    pub(super) fn new(spec: &Spec, round: bool) -> Self {
        Self {
            z_loss_multiplier: spec.z_loss_multiplier as f32,
            soft_cap: spec.soft_cap.map_or(f32::INFINITY, |cap| cap as f32),
            scale: spec.logits_scale as f32,
            round,
        }
    }

    /// Turns products into logits in place: rounded as the product's type is, scaled, capped.
    pub(super) fn finish(&self, products: &mut [f32]) {
        if self.round {
            round(products);
        }
        match self.soft_cap.is_finite() {
            true => finished(products, Capped { scale: self.scale, cap: self.soft_cap }),
            false => finished(products, Scaled(self.scale)),
        }
    }

    /// A row takes the products of columns `first..` into account.
    pub(super) fn see<E: Real>(&self, products: &[E], row: &mut Row, first: usize) {
        if !row.counts() {
            return;
        }
        match self.soft_cap.is_finite() {
            true => self.see_logits(products, row, first, Capped { scale: self.scale, cap: self.soft_cap }),
            false => self.see_logits(products, row, first, Scaled(self.scale)),
        }
    }

    fn see_logits<E: Real, L: Logit>(&self, products: &[E], row: &mut Row, first: usize, logit: L) {
        let max = row.max.max(max_of(products, logit));
        // -inf - -inf would be NaN; a chunk of nothing but -inf adds nothing.
        if max > f32::NEG_INFINITY {
            row.sum = row.sum * ((row.max - max) as f64).exp() + exp_sum(products, logit, max);
        } else if products.iter().any(|p| p.to_f32().is_nan()) {
            row.sum = f64::NAN;
        }
        row.max = max;
        if let Some(product) = row.target.checked_sub(first).and_then(|v| products.get(v)) {
            row.picked = logit.of(product.to_f32());
        }
    }

    /// The loss of a row whose logits were all seen.
    pub(super) fn loss(&self, row: &Row) -> RowLoss {
        if !row.counts() {
            return RowLoss::default();
        }
        let log_z = row.log_z();
        let z_loss = self.z_loss_multiplier * log_z * log_z;
        RowLoss { xent: row.weight * (log_z - row.picked + z_loss), z_loss: row.weight * z_loss }
    }

    /// Turns the products of columns `first..` into their gradient, times `factor`.
    pub(super) fn gradient<E: Real>(&self, products: &mut [E], row: &Row, first: usize, factor: f32) {
        if !row.counts() {
            return products.fill(E::zeroed());
        }
        let log_z = row.log_z();
        let factor = factor * row.weight * self.scale;
        let slope = factor * (1.0 + 2.0 * self.z_loss_multiplier * log_z);
        match self.soft_cap.is_finite() {
            true => {
                let logit = Capped { scale: self.scale, cap: self.soft_cap };
                row_gradient(products, row.target.checked_sub(first), logit, log_z, slope, factor);
            }
            false => {
                let logit = Scaled(self.scale);
                row_gradient(products, row.target.checked_sub(first), logit, log_z, slope, factor);
            }
        }
    }
}

/// `slope exp(logit - log_z)`, less `factor` at the target, times the logit's slope.
fn row_gradient<E: Real, L: Logit>(
    products: &mut [E],
    target: Option<usize>,
    logit: L,
    log_z: f32,
    slope: f32,
    factor: f32,
) {
    let at_target = target.and_then(|v| products.get(v)).map(|product| {
        let l = logit.of(product.to_f32());
        (slope * exp(l - log_z) - factor) * logit.slope(l)
    });
    gradient(products, logit, log_z, slope);
    if let (Some(v), Some(gradient)) = (target, at_target) {
        products[v] = E::from_f32(gradient);
    }
}

/// How a logit comes from a product.
trait Logit: Copy + Send + Sync {
    fn of(self, product: f32) -> f32;
    /// The logit's derivative, beside the scale.
    fn slope(self, logit: f32) -> f32;
}

/// Times a factor.
#[derive(Clone, Copy)]
struct Scaled(f32);

impl Logit for Scaled {
    #[inline(always)]
    fn of(self, product: f32) -> f32 {
        self.0 * product
    }

    #[inline(always)]
    fn slope(self, _: f32) -> f32 {
        1.0
    }
}

/// Times a factor, then capped.
#[derive(Clone, Copy)]
struct Capped {
    scale: f32,
    cap: f32,
}

impl Logit for Capped {
    #[inline(always)]
    fn of(self, product: f32) -> f32 {
        self.cap * tanh(self.scale * product / self.cap)
    }

    #[inline(always)]
    fn slope(self, logit: f32) -> f32 {
        let share = logit / self.cap;
        1.0 - share * share
    }
}

vectorized! {
    fn round(x: &mut [f32]) {
        for x in x {
            *x = bf16::from_f32(*x).to_f32();
        }
    }
}

vectorized! {
    fn finished<L: Logit>(products: &mut [f32], logit: L) {
        for p in products {
            *p = logit.of(*p);
        }
    }
}

vectorized! {
    fn max_of<E: Real, L: Logit>(products: &[E], logit: L) -> f32 {
        let mut lanes = [f32::NEG_INFINITY; 32];
        let (chunks, rest) = products.as_chunks::<32>();
        for chunk in chunks {
            for (lane, p) in lanes.iter_mut().zip(chunk) {
                let l = logit.of(p.to_f32());
                *lane = if l > *lane { l } else { *lane };
            }
        }
        let rest = rest.iter().map(|p| logit.of(p.to_f32()));
        lanes.into_iter().chain(rest).fold(f32::NEG_INFINITY, f32::max)
    }
}

vectorized! {
    /// Sum of exp(logit - max): stretches in float32, their sum in float64, since a row is as long as the vocabulary.
    fn exp_sum<E: Real, L: Logit>(products: &[E], logit: L, max: f32) -> f64 {
        let mut sum = 0.0;
        for products in products.chunks(1024) {
            sum += sum_of(products, |p| exp(logit.of(p.to_f32()) - max)) as f64;
        }
        sum
    }
}

vectorized! {
    fn gradient<E: Real, L: Logit>(products: &mut [E], logit: L, log_z: f32, slope: f32) {
        for p in products {
            let l = logit.of(p.to_f32());
            *p = E::from_f32(slope * exp(l - log_z) * logit.slope(l));
        }
    }
}
