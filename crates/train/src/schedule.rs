//! The learning rate at every step: MaxText's `cosine` and `wsd` schedules with linear warm-up.
//!
//! A schedule is a row of pieces, each counting steps from its own start: warm-up, then decay (with a stable
//! part before it for `wsd`), then zero when training goes on after the schedule. The last piece has no end:
//! past it, the cosine goes on along its period and rises again, as MaxText's does.
//!
//! Arithmetic is in float32 in MaxText's order, so every step equals its value to the last bit.

use mt_config::{Config, LrScheduleType, WsdDecayStyle};
use std::f64::consts::PI;

/// How the rate falls after the peak (`lr_schedule_type`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decay {
    /// Half a cosine from the peak to the final rate, over everything after the warm-up.
    Cosine,
    /// Warm-up, stable, decay: the peak is held, then left over the last `decay_steps_fraction`.
    Wsd {
        /// Share of the schedule spent in the decay (`wsd_decay_steps_fraction`), 0 to 1.
        decay_steps_fraction: f64,
        /// Shape of that decay (`wsd_decay_style`).
        style: WsdDecayStyle,
    },
}

/// The keys that shape a schedule, under MaxText's names.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScheduleOptions {
    /// Steps of training.
    pub steps: u64,
    /// Steps of the schedule; after them the rate is 0.
    pub learning_rate_schedule_steps: u64,
    /// The peak.
    pub learning_rate: f64,
    /// The rate at the last step of the schedule as a share of the peak.
    pub learning_rate_final_fraction: f64,
    /// Share of the schedule spent in the warm-up, 0 to 1.
    pub warmup_steps_fraction: f64,
    /// What follows the warm-up.
    pub decay: Decay,
}

impl From<&Config> for ScheduleOptions {
    fn from(config: &Config) -> Self {
        // -1 stands for the other of the two.
        let or = |steps: i64, other: i64| u64::try_from(steps).or(u64::try_from(other)).unwrap_or(0);
        let (steps, schedule) = (config.steps, config.learning_rate_schedule_steps);
        Self {
            steps: or(steps, schedule),
            learning_rate_schedule_steps: or(schedule, steps),
            learning_rate: config.learning_rate,
            learning_rate_final_fraction: config.learning_rate_final_fraction,
            warmup_steps_fraction: config.warmup_steps_fraction,
            decay: match config.lr_schedule_type {
                LrScheduleType::Cosine => Decay::Cosine,
                LrScheduleType::Wsd => Decay::Wsd {
                    decay_steps_fraction: config.wsd_decay_steps_fraction,
                    style: config.wsd_decay_style,
                },
            },
        }
    }
}

/// The learning rate as a function of the step.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// (first step, piece), by first step.
    pieces: Vec<(u64, Piece)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Piece {
    Constant(f64),
    Linear { init: f64, end: f64, transition_steps: u64 },
    Cosine { init: f64, end: f64, len: u64 },
}

impl Schedule {
    /// Builds the schedule. Any combination of values gives a schedule: pieces without steps are left out.
    pub fn new(options: &ScheduleOptions) -> Self {
        let peak = options.learning_rate;
        let end = peak * options.learning_rate_final_fraction;
        let total = options.learning_rate_schedule_steps;
        let share = |fraction: f64| ((total as f64 * fraction) as u64).min(total);
        let warmup = share(options.warmup_steps_fraction);

        let mut pieces = Vec::new();
        if warmup > 0 {
            pieces.push((0, Piece::Linear { init: 0.0, end: peak, transition_steps: warmup }));
        }
        match options.decay {
            Decay::Cosine if warmup < total => {
                pieces.push((warmup, Piece::Cosine { init: peak, end, len: total - warmup }));
            }
            Decay::Cosine => {}
            Decay::Wsd { decay_steps_fraction, style } => {
                let decay = share(decay_steps_fraction);
                // A decay that reaches back into the warm-up is cut short at the schedule's end: it starts
                // where the warm-up ends.
                let decay_start = warmup.max(total - decay);
                if warmup < decay_start {
                    pieces.push((warmup, Piece::Constant(peak)));
                }
                if decay > 0 {
                    let piece = match style {
                        // The last of the `decay` steps is already at the final rate.
                        WsdDecayStyle::Linear => {
                            Piece::Linear { init: peak, end, transition_steps: decay - 1 }
                        }
                        WsdDecayStyle::Cosine => Piece::Cosine { init: peak, end, len: decay },
                    };
                    pieces.push((decay_start, piece));
                }
            }
        }
        if total < options.steps {
            pieces.push((total, Piece::Constant(0.0)));
        }
        Self { pieces }
    }

    /// The learning rate of the update made at `step` (0 is the first).
    pub fn at(&self, step: u64) -> f32 {
        self.pieces
            .iter()
            .rev()
            .find(|(start, _)| *start <= step)
            .map_or(0.0, |(start, piece)| piece.at(step - start))
    }
}

impl Piece {
    /// The rate `step` steps after the piece's start.
    fn at(self, step: u64) -> f32 {
        match self {
            Self::Constant(rate) => rate as f32,
            Self::Linear { init, transition_steps: 0, .. } => init as f32,
            Self::Linear { init, end, transition_steps } => {
                let left = 1.0 - step.min(transition_steps) as f32 / transition_steps as f32;
                (init - end) as f32 * left + end as f32
            }
            Self::Cosine { init, end, len } => {
                // The denominator is len - 1, so the final rate is reached at the last step, not after it.
                let progress = if len > 1 { step as f64 / (len - 1) as f64 } else { 1.0 };
                // The angle is rounded to float32 first; its cosine is then rounded once.
                let angle = (PI * progress) as f32;
                let share = 0.5 * (f64::from(angle).cos() as f32 + 1.0);
                init as f32 * share + end as f32 * (1.0 - share)
            }
        }
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
