//! Evaluation between training steps: the loss of held-out batches, from the first one every time.

use std::time::Instant;

use mt_config::Config;
use mt_data::{Batches, DataError, Loader};
use mt_model::{BatchTensors, Model};
use serde_json::Value;
use tracing::info;

use super::RunError;
use super::gradients::{LossSums, rows};
use crate::log::lines::EvalStepLine;
use crate::metrics::Evaluation;

/// Holds the evaluation data and knows when it is due.
pub struct Evaluator {
    data: Loader,
    /// Place of the first batch.
    start: Value,
    start_step: u64,
    interval: u64,
    /// Batches per evaluation, `None` for all that there are.
    steps: Option<u64>,
}

impl Evaluator {
    /// `None` when `eval_interval` asks for no evaluation.
    ///
    /// # Errors
    /// [`DataError`]: the evaluation data can't be opened.
    pub fn new(config: &Config) -> Result<Option<Self>, DataError> {
        let Ok(interval @ 1..) = u64::try_from(config.eval_interval) else { return Ok(None) };
        Ok(Some(Self { interval, ..Self::always(config)? }))
    }

    /// An evaluation after every step, whatever `eval_interval` says.
    ///
    /// # Errors
    /// As [`Evaluator::new`].
    pub fn always(config: &Config) -> Result<Self, DataError> {
        let data = mt_data::eval_batches(config)?;
        let start = data.state();
        let steps = u64::try_from(config.eval_steps).ok();
        Ok(Self { data, start, start_step: config.eval_start_step as u64, interval: 1, steps })
    }

    /// Whether an evaluation follows train step `step`.
    pub fn is_due(&self, step: u64) -> bool {
        self.start_step <= step && (step - self.start_step).is_multiple_of(self.interval)
    }

    /// Runs over the evaluation data and logs MaxText's line per batch.
    ///
    /// # Errors
    /// The data can't be read, or holds what the model doesn't know.
    pub fn run(&mut self, model: &Model) -> Result<Evaluation, RunError> {
        self.data.restore(&self.start).map_err(RunError::EvalData)?;
        let mut sums = LossSums::default();
        let mut evaluation = Evaluation::default();
        while self.steps.is_none_or(|steps| evaluation.steps < steps) {
            let clock = Instant::now();
            let Some(batch) = self.data.next_batch().map_err(RunError::EvalData)? else { break };
            let tensors =
                BatchTensors::new(&rows(&batch, 0, batch.batch_size), model.config(), &model.device())
                    .map_err(RunError::EvalBatch)?;
            let output = model.eval_loss(&tensors);
            sums.add(&output);
            evaluation.z_loss += output.z_loss_sum / output.total_weights.max(1.0);
            let line = EvalStepLine {
                step: evaluation.steps,
                seconds: clock.elapsed().as_secs_f64(),
                running_loss: sums.loss(),
                running_total_weights: sums.total_weights,
            };
            info!("{line}");
            evaluation.steps += 1;
        }
        evaluation.total_loss = sums.xent;
        evaluation.total_weights = sums.total_weights;
        Ok(evaluation)
    }
}
