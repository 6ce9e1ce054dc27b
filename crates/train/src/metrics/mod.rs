//! Where the figures of a run go: TensorBoard event files and JSON lines, under MaxText's names.
//!
//! The loop builds one list of named scalars a step ([`TrainStep::scalars`] plus its own) and hands it to
//! [`Metrics`], which passes it on to every writer that the configuration asks for.

mod jsonl;
mod tensorboard;

pub use jsonl::MetricsFile;
pub use tensorboard::EventFile;

use std::path::{Path, PathBuf};

/// A name and its value at a step.
pub type Scalar<'a> = (&'a str, f64);

/// A metrics file that can't be written.
#[derive(Debug, thiserror::Error)]
#[error("can't write metrics to `{}`: {source}", path.display())]
pub struct MetricsError {
    /// The file or folder.
    pub path: PathBuf,
    /// What the system said.
    pub source: std::io::Error,
}

impl MetricsError {
    fn at(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        |source| Self { path: path.to_path_buf(), source }
    }
}

/// Something that keeps scalars.
pub trait Sink: Send {
    /// Keeps the scalars of one step. What was kept survives a crash of this process right after the call.
    fn scalars(&mut self, step: u64, scalars: &[Scalar<'_>]) -> Result<(), MetricsError>;

    /// Keeps a text, such as one key of the configuration. Sinks without texts ignore it.
    fn text(&mut self, _tag: &str, _text: &str) -> Result<(), MetricsError> {
        Ok(())
    }
}

/// All writers of a run. Without writers every call does nothing.
#[derive(Default)]
pub struct Metrics {
    sinks: Vec<Box<dyn Sink>>,
}

impl Metrics {
    /// Adds a writer.
    #[must_use]
    pub fn with(mut self, sink: impl Sink + 'static) -> Self {
        self.sinks.push(Box::new(sink));
        self
    }

    /// Writes the scalars of one step everywhere. A writer that fails doesn't keep the others from theirs; the
    /// first error is returned.
    pub fn scalars(&mut self, step: u64, scalars: &[Scalar<'_>]) -> Result<(), MetricsError> {
        self.each(|sink| sink.scalars(step, scalars))
    }

    /// Writes a text everywhere, as [`Metrics::scalars`] does.
    pub fn text(&mut self, tag: &str, text: &str) -> Result<(), MetricsError> {
        self.each(|sink| sink.text(tag, text))
    }

    fn each(
        &mut self,
        mut write: impl FnMut(&mut dyn Sink) -> Result<(), MetricsError>,
    ) -> Result<(), MetricsError> {
        self.sinks.iter_mut().map(|sink| write(sink.as_mut())).fold(Ok(()), Result::and)
    }
}

/// The figures of one training step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TrainStep {
    /// Mean loss over the batch, with z-loss.
    pub loss: f64,
    /// Cross-entropy part; its exponential is the perplexity.
    pub lm_loss: f64,
    /// Mean z-loss.
    pub z_loss: f64,
    /// Number of target tokens that carry loss.
    pub total_weights: f64,
    /// Global norm of the gradient after clipping.
    pub grad_norm: f64,
    /// Global norm of the gradient before clipping.
    pub raw_grad_norm: f64,
    /// Global norm of the parameters after the update.
    pub param_norm: f64,
    /// Learning rate of this step's update.
    pub current_learning_rate: f64,
    /// Wall time of the step in seconds.
    pub step_time_seconds: f64,
    /// TFLOP of a step on one device.
    pub per_device_tflops: f64,
    /// Tokens of a step on one device.
    pub per_device_tokens: f64,
}

impl TrainStep {
    /// The scalars under MaxText's tags.
    pub fn scalars(&self) -> Vec<Scalar<'static>> {
        vec![
            ("learning/loss", self.loss),
            ("learning/lm_loss", self.lm_loss),
            ("learning/perplexity", self.lm_loss.exp()),
            ("learning/z_loss", self.z_loss),
            // Always 0 in a dense decoder; kept since MaxText's readers expect the tags.
            ("learning/moe_lb_loss", 0.0),
            ("learning/indexer_loss", 0.0),
            ("learning/mtp_loss", 0.0),
            ("learning/total_weights", self.total_weights),
            ("learning/grad_norm", self.grad_norm),
            ("learning/raw_grad_norm", self.raw_grad_norm),
            ("learning/param_norm", self.param_norm),
            ("learning/current_learning_rate", self.current_learning_rate),
            ("perf/step_time_seconds", self.step_time_seconds),
            ("perf/per_device_tflops", self.per_device_tflops),
            ("perf/per_device_tflops_per_sec", self.per_device_tflops / self.step_time_seconds),
            ("perf/per_device_tokens", self.per_device_tokens),
            ("perf/per_device_tokens_per_sec", self.per_device_tokens / self.step_time_seconds),
        ]
    }
}

/// The figures of one evaluation: sums over its batches.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Evaluation {
    /// Number of batches.
    pub steps: u64,
    /// Sum of the loss over all target tokens.
    pub total_loss: f64,
    /// Number of target tokens that carry loss.
    pub total_weights: f64,
    /// Sum over batches of their mean z-loss.
    pub z_loss: f64,
}

impl Evaluation {
    /// Mean loss of a target token.
    pub fn avg_loss(&self) -> f64 {
        self.total_loss / (self.total_weights + 1e-8)
    }

    /// Mean over batches of the z-loss.
    pub fn avg_z_loss(&self) -> f64 {
        self.z_loss / self.steps as f64
    }

    /// The scalars under MaxText's tags.
    pub fn scalars(&self) -> Vec<Scalar<'static>> {
        vec![
            ("eval/total_loss", self.total_loss),
            ("eval/total_weights", self.total_weights),
            ("eval/moe_lb_loss", 0.0),
            ("eval/indexer_loss", 0.0),
            ("eval/mtp_loss", 0.0),
            ("eval/mtp_acceptance_rate_percent", 0.0),
            ("eval/z_loss", self.z_loss),
            ("eval/avg_loss", self.avg_loss()),
            ("eval/avg_perplexity", self.avg_loss().exp()),
            ("eval/avg_moe_lb_loss", 0.0),
            ("eval/avg_indexer_loss", 0.0),
            ("eval/avg_mtp_loss", 0.0),
            ("eval/avg_mtp_acceptance_rate_percent", 0.0),
            ("eval/avg_z_loss", self.avg_z_loss()),
        ]
    }
}

#[cfg(test)]
mod tests;
