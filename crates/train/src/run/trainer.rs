//! The loop.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use mt_config::Config;
use mt_data::{Batch, Batches, Loader};
use mt_model::profile::{Kind, span};
use mt_model::{Model, device};
use tracing::{info, warn};

use super::checkpoints::Checkpoints;
use super::error::{BadLoss, RunError};
use super::evaluate::Evaluator;
use super::gradients::{MicroBatches, loss_and_gradients};
use super::report::{Reporter, StepExtras};
use super::signals::StopRequest;
use super::summary::{End, Summary};
use super::totals;
use crate::collective::{Collective, at_step};
use crate::metrics::TrainStep;
use crate::optim::Optimizer;
use crate::profile::{Breakdown, Profile, Profiler};
use crate::schedule::Schedule;

/// Everything that a step needs.
pub struct Trainer<'a> {
    /// The run's configuration.
    pub config: &'a Config,
    /// The ranks that train together, as this one sees them.
    pub collective: Box<dyn Collective>,
    /// What this rank holds of the parameters, and how to compute with them.
    pub model: Model,
    /// The moments.
    pub optimizer: Optimizer,
    /// The learning rate.
    pub schedule: Schedule,
    /// Training batches.
    pub data: Loader,
    /// Evaluation, if any is asked for.
    pub evaluator: Option<Evaluator>,
    /// Saving, if any is asked for.
    pub checkpoints: Option<Checkpoints>,
    /// Log lines, metric files, progress bar.
    pub reporter: Reporter,
    /// Recording where the time goes, if it is asked for.
    pub profiler: Option<Profiler>,
    /// Where it went in the last profile.
    pub breakdown: Option<Breakdown>,
    /// FLOPs of a step in units of 1e12.
    pub tflops_per_step: f64,
    /// Number of the next step.
    pub next_step: u64,
    /// Where to stop.
    pub steps: u64,
}

impl Trainer<'_> {
    /// Trains until the steps are done, or something ends it sooner, and saves what was reached.
    ///
    /// # Errors
    /// [`RunError`]: what made it impossible to go on.
    pub fn train(&mut self, stop: &StopRequest) -> Result<End, RunError> {
        let end = self.steps(stop)?;
        if let Some(profiler) = &mut self.profiler {
            let profile = profiler.finish()?;
            self.profiled(profile);
        }
        let keep = matches!(end, End::Stopped) || self.config.save_checkpoint_on_completion;
        if let Some(last_step) = self.next_step.checked_sub(1)
            && keep
        {
            self.save(last_step)?;
        }
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.finish()?;
        }
        Ok(end)
    }

    fn steps(&mut self, stop: &StopRequest) -> Result<End, RunError> {
        if self.steps <= self.next_step {
            let done = self.next_step;
            info!(
                "nothing left to do: {done} steps are done; raise steps, or choose another run_name to start over"
            );
        }
        while self.next_step < self.steps {
            let step = self.next_step;
            at_step(step);
            if !self.profiled_step(step)? {
                return Ok(End::OutOfData);
            }
            self.next_step += 1;
            self.save_if_due(step)?;
            if let Some(eval_loss) = self.evaluate_if_due(step)?
                && eval_loss <= self.config.target_eval_loss
            {
                info!("target_eval_loss {} is reached", self.config.target_eval_loss);
                return Ok(End::TargetReached { eval_loss });
            }
            if totals::any(&*self.collective, stop.asked())? {
                info!("asked to stop: step {step} is finished and will be saved");
                return Ok(End::Stopped);
            }
        }
        Ok(End::Completed)
    }

    /// One update, under the profiler when its turn has come; false when the data has ended.
    fn profiled_step(&mut self, step: u64) -> Result<bool, RunError> {
        if let Some(profiler) = &mut self.profiler {
            profiler.before_step(step);
        }
        let done = {
            let _span = span(Kind::Step, "step").index(step as usize);
            self.step(step)?
        };
        if let Some(profiler) = &mut self.profiler {
            let profile = profiler.after_step(step)?;
            self.profiled(profile);
        }
        Ok(done)
    }

    fn profiled(&mut self, profile: Option<Profile>) {
        if let Some(Profile { breakdown, .. }) = profile {
            info!("{breakdown}");
            self.breakdown = Some(breakdown);
        }
    }

    /// One update; false when the data has ended.
    fn step(&mut self, step: u64) -> Result<bool, RunError> {
        let clock = Instant::now();
        let batch = {
            let _span = span(Kind::Data, "next_batch");
            self.data.next_batch()?
        };
        let Some(batch) = batch else { return Ok(false) };
        let data_wait = clock.elapsed();

        let (micro, seed, sink) = (self.micro_batches(), self.dropout_seed(step), self.optimizer.sink());
        let ranks = &*self.collective;
        let (loss, gradients) = loss_and_gradients(&self.model, &batch, micro, seed, sink, ranks)
            .map_err(|source| RunError::Step { step, source })?;
        let mut gradients = self.optimizer.rounded(gradients);
        let (loss, grad_squares) = totals::of_gradients(ranks, loss, gradients.squares)?;
        gradients.squares = grad_squares;
        // As in MaxText the schedule counts updates, which fall behind the steps when some are skipped.
        let learning_rate = self.schedule.at(self.optimizer.count());
        let norms = {
            let _span = span(Kind::Optimizer, "optimizer.update");
            self.optimizer.update(&mut self.model.params, gradients, learning_rate, loss.loss())?
        };
        let seconds = clock.elapsed().as_secs_f64();
        let (param_squares, slowest) = totals::of_update(ranks, norms.param_squares, seconds)?;
        let figures = TrainStep {
            loss: loss.loss(),
            lm_loss: loss.loss(),
            z_loss: loss.mean_z_loss(),
            total_weights: loss.total_weights,
            grad_norm: norms.grad_norm,
            raw_grad_norm: norms.raw_grad_norm,
            param_norm: param_squares.sqrt(),
            current_learning_rate: f64::from(learning_rate),
            step_time_seconds: seconds,
            per_device_tflops: self.tflops_per_step,
            per_device_tokens: self.tokens_per_step(),
        };
        if norms.skipped {
            warn!(
                "step {step}: the loss or the gradient norm jumped; the update is skipped (skip_step_on_spikes)"
            );
        }
        let extras = StepExtras { slowest, ..self.extras(&batch, data_wait) };
        self.reporter.step(step, &figures, &extras)?;
        self.refuse(step, "loss", loss.loss())?;
        self.refuse(step, "gradient", norms.raw_grad_norm)?;
        Ok(true)
    }

    /// What this process came to.
    pub fn summary(&self, end: End, first_step: u64, outputs: Vec<(&'static str, PathBuf)>) -> Summary {
        Summary {
            run_name: self.config.run_name.clone(),
            end,
            first_step,
            all_steps: self.steps,
            tflops_per_step: self.tflops_per_step,
            totals: *self.reporter.totals(),
            outputs,
        }
    }

    fn micro_batches(&self) -> MicroBatches {
        MicroBatches { count: self.config.gradient_accumulation_steps, rows: self.config.rows_per_rank() }
    }

    /// Positions that this rank trains on in a step, padding included.
    fn tokens_per_step(&self) -> f64 {
        let rows = self.config.rows_per_rank() * self.config.gradient_accumulation_steps;
        (rows * self.config.max_target_length) as f64
    }

    /// Every step and micro batch has masks of its own, the same after a resume.
    fn dropout_seed(&self, step: u64) -> u64 {
        self.config
            .init_weights_seed
            .wrapping_add(step.wrapping_mul(self.config.gradient_accumulation_steps as u64))
    }

    fn extras(&self, batch: &Batch, data_wait: Duration) -> StepExtras {
        let stats = self.data.stats();
        let padding = batch.inputs_segmentation.iter().filter(|&&segment| segment == 0).count();
        StepExtras {
            data_wait,
            padding: padding as f64 / batch.inputs_segmentation.len().max(1) as f64,
            tokens_seen: stats.tokens,
            dropped: stats.dropped_share(),
            skipped_rows: stats.skipped_rows,
            device_bytes: device::bytes_in_use(&self.model.device()),
            slowest: None,
        }
    }

    /// Ends the run on a NaN or infinity, if `abort_on_nan_loss` and `abort_on_inf_loss` say so.
    fn refuse(&self, step: u64, of: &'static str, value: f64) -> Result<(), RunError> {
        let what = match value {
            value if value.is_nan() && self.config.abort_on_nan_loss => "NaN",
            value if value.is_infinite() && self.config.abort_on_inf_loss => "Inf",
            _ => return Ok(()),
        };
        let last_checkpoint = self.checkpoints.as_ref().and_then(Checkpoints::last_saved);
        Err(Box::new(BadLoss { what, of, step, data: self.data.state(), last_checkpoint }).into())
    }

    fn save_if_due(&mut self, step: u64) -> Result<(), RunError> {
        if self.checkpoints.as_ref().is_some_and(|checkpoints| checkpoints.is_due(step)) {
            self.save(step)?;
        }
        match &mut self.checkpoints {
            Some(checkpoints) => Ok(checkpoints.poll()?),
            None => Ok(()),
        }
    }

    fn save(&mut self, step: u64) -> Result<(), RunError> {
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        let _span = span(Kind::Checkpoint, "checkpoint.save");
        Ok(checkpoints.save(step, &self.model, &self.optimizer, self.data.state(), &*self.collective)?)
    }

    fn evaluate_if_due(&mut self, step: u64) -> Result<Option<f64>, RunError> {
        let Some(evaluator) = self.evaluator.as_mut().filter(|evaluator| evaluator.is_due(step)) else {
            return Ok(None);
        };
        self.reporter.note("evaluating");
        let evaluation = evaluator.run(&self.model, &*self.collective)?;
        self.reporter.evaluation(step, &evaluation)?;
        Ok(Some(evaluation.avg_loss()))
    }
}
