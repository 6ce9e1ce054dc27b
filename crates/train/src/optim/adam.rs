//! The numbers that a step of AdamW or of Pax's Adam hands to the fused update.

use super::Step;
use mt_config::{Config, OptType};
use mt_model::ops::adamw::{Dither, Hyper};

/// `adam_*` keys.
#[derive(Debug, Clone, Copy)]
pub(super) struct Adam {
    b1: f64,
    b2: f64,
    eps: f64,
    eps_root: f64,
    weight_decay: f64,
    stochastic_rounding: bool,
    form: Form,
}

/// Where the bias correction of the moments is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Moments are divided by `1 - b^t` (`adamw`).
    Optax,
    /// The decay itself is corrected (`adam_pax`).
    Pax,
    /// As optax, with Nesterov's look ahead: what optax's Muon does to everything that isn't a matrix.
    Nesterov,
}

impl Adam {
    pub fn new(config: &Config) -> Self {
        Self {
            b1: config.adam_b1,
            b2: config.adam_b2,
            eps: config.adam_eps,
            eps_root: config.adam_eps_root,
            weight_decay: config.adam_weight_decay,
            stochastic_rounding: config.stochastic_rounding,
            form: match config.opt_type {
                OptType::AdamPax => Form::Pax,
                OptType::Muon => Form::Nesterov,
                _ => Form::Optax,
            },
        }
    }

    /// The numbers of one step for a parameter that decays or doesn't; `number` tells parameters apart, `first` its elements from
    /// those of other shards.
    ///
    /// Powers and what is subtracted from them are float32, as they are in MaxText: for a decay close to 1 that rounding of
    /// `1 - b^t` can be seen in the result.
    pub fn hyper(&self, step: &Step, decays: bool, number: u64, first: u32) -> Hyper {
        let t = step.count as f32 + 1.0;
        let [b1, b2] = [self.b1 as f32, self.b2 as f32];
        let correction = |b: f32, t: f32| f64::from(1.0 - b.powf(t));
        let corrected = |b: f32| f64::from(b * (1.0 - b.powf(t - 1.0)) / (1.0 - b.powf(t)));
        let (decays_of_moments, corrections) = match self.form {
            Form::Pax => ([corrected(b1), corrected(b2)], [1.0, 1.0]),
            Form::Optax | Form::Nesterov => ([self.b1, self.b2], [correction(b1, t), correction(b2, t)]),
        };
        Hyper {
            learning_rate: step.learning_rate,
            b1: decays_of_moments[0],
            b2: decays_of_moments[1],
            bias_correction1: corrections[0],
            bias_correction2: corrections[1],
            look_ahead: (self.form == Form::Nesterov).then(|| correction(b1, t + 1.0)),
            eps: self.eps,
            eps_root: self.eps_root,
            weight_decay: if decays { self.weight_decay } else { 0.0 },
            grad_scale: step.grad_scale,
            stochastic_rounding: self
                .stochastic_rounding
                .then_some(Dither { seed: step.count << 32 | number, first }),
        }
    }
}
