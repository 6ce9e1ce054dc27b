//! Evaluation between training steps: the loss of held-out batches, from the first one every time.

use std::time::Instant;

use mt_config::Config;
use mt_data::{Batch, Batches, DataError, Loader};
use mt_model::{BatchTensors, Model};
use serde_json::Value;
use tracing::info;

use super::gradients::{LossSums, rows};
use super::{RunError, totals};
use crate::collective::{Collective, Group};
use crate::log::lines::EvalStepLine;
use crate::metrics::Evaluation;
use crate::shard::Gathered;

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

    /// Runs over the evaluation data, of every batch each rank its part, and logs MaxText's line per batch.
    ///
    /// # Errors
    /// The data can't be read, or holds what the model doesn't know; or another rank is gone.
    pub fn run(&mut self, model: &Model, collective: &dyn Collective) -> Result<Evaluation, RunError> {
        self.data.restore(&self.start).map_err(RunError::EvalData)?;
        let mut sums = LossSums::default();
        let mut evaluation = Evaluation::default();
        while self.steps.is_none_or(|steps| evaluation.steps < steps) {
            let clock = Instant::now();
            let Some(batch) = self.data.next_batch().map_err(RunError::EvalData)? else { break };
            let loss = loss(model, &batch, collective)?;
            sums.add(&loss);
            evaluation.z_loss += loss.z_loss / loss.total_weights.max(1.0);
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

/// The loss of `batch` over all ranks.
fn loss(model: &Model, batch: &Batch, collective: &dyn Collective) -> Result<LossSums, RunError> {
    let mesh = collective.mesh();
    let ranks = mesh.size(Group::World);
    if ranks > 1 {
        // What is wrong is found on all ranks alike.
        rows(batch, 0, batch.batch_size).check(model.config()).map_err(RunError::EvalBatch)?;
    }
    let first_of = |rank: usize| batch.batch_size * rank / ranks;
    let (first, end) = (first_of(mesh.rank), first_of(mesh.rank + 1));
    let tensors = BatchTensors::new(&rows(batch, first, end - first), model.config(), &model.device())
        .map_err(RunError::EvalBatch)?;
    let loss = model.eval_loss_of(&Gathered::new(model, collective), &tensors)?;
    Ok(totals::of_losses(collective, loss.into())?)
}
