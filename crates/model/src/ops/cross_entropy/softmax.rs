//! The loss of rows of logits that arrive in chunks of columns, and the gradient of a chunk in place.

use half::bf16;

use super::Spec;
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

    /// Takes the logits of columns `first..` into account.
    pub(super) fn see(&mut self, logits: &[f32], first: usize) {
        let max = self.max.max(max_of(logits));
        // -inf - -inf would be NaN; a chunk of nothing but -inf adds nothing.
        if max > f32::NEG_INFINITY {
            self.sum = self.sum * ((self.max - max) as f64).exp() + exp_sum(logits, max);
        } else if logits.iter().any(|l| l.is_nan()) {
            self.sum = f64::NAN;
        }
        self.max = max;
        if let Some(logit) = self.target.checked_sub(first).and_then(|v| logits.get(v)) {
            self.picked = *logit;
        }
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

    /// Whether the products are bfloat16.
    pub(super) fn is_of_bf16(&self) -> bool {
        self.round
    }

    /// Turns products into logits: rounded as the product's type is, scaled, capped.
    pub(super) fn finish(&self, products: &mut [f32]) {
        if self.round {
            round(products);
        }
        if self.scale != 1.0 {
            scale(products, self.scale);
        }
        if self.soft_cap.is_finite() {
            cap(products, self.soft_cap);
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

    /// Turns the logits of columns `first..` into the gradient of the products, times `factor`.
    pub(super) fn gradient(&self, logits: &mut [f32], row: &Row, first: usize, factor: f32) {
        if !row.counts() {
            return logits.fill(0.0);
        }
        let log_z = row.log_z();
        let factor = factor * row.weight * self.scale;
        let slope = factor * (1.0 + 2.0 * self.z_loss_multiplier * log_z);
        let target = row.target.checked_sub(first).filter(|&v| v < logits.len());
        let share = target.map_or(0.0, |v| logits[v] / self.soft_cap);
        match self.soft_cap.is_finite() {
            true => capped_gradient(logits, log_z, slope, self.soft_cap),
            false => plain_gradient(logits, log_z, slope),
        }
        if let Some(v) = target {
            logits[v] -= factor * (1.0 - share * share);
        }
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
    fn scale(x: &mut [f32], factor: f32) {
        for x in x {
            *x *= factor;
        }
    }
}

vectorized! {
    fn cap(x: &mut [f32], cap: f32) {
        for x in x {
            *x = cap * tanh(*x / cap);
        }
    }
}

vectorized! {
    fn max_of(x: &[f32]) -> f32 {
        let mut lanes = [f32::NEG_INFINITY; 32];
        let (chunks, rest) = x.as_chunks::<32>();
        for chunk in chunks {
            for (lane, x) in lanes.iter_mut().zip(chunk) {
                *lane = if *x > *lane { *x } else { *lane };
            }
        }
        lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, b| a.max(*b))
    }
}

vectorized! {
    /// Sum of exp(x - max): stretches in float32, their sum in float64, since a row is as long as the vocabulary.
    fn exp_sum(x: &[f32], max: f32) -> f64 {
        let mut sum = 0.0;
        for x in x.chunks(1024) {
            sum += sum_of(x, |x| exp(x - max)) as f64;
        }
        sum
    }
}

vectorized! {
    fn plain_gradient(logits: &mut [f32], log_z: f32, slope: f32) {
        for l in logits {
            *l = slope * exp(*l - log_z);
        }
    }
}

vectorized! {
    fn capped_gradient(logits: &mut [f32], log_z: f32, slope: f32, cap: f32) {
        for l in logits {
            let share = *l / cap;
            *l = slope * exp(*l - log_z) * (1.0 - share * share);
        }
    }
}
