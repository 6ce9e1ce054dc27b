//! Tells the world about each step: the log line, the metric files, the progress bar, and the figures for the end.

use std::time::Duration;

use mt_config::Config;
use tracing::info;

use super::totals::Slowest;
use crate::log::Progress;
use crate::log::lines::{EvalLine, StepLine};
use crate::memory::Memory;
use crate::metrics::{Evaluation, EventFile, Metrics, MetricsError, MetricsFile, Scalar, TrainStep};

/// What a step has beside MaxText's figures.
#[derive(Debug, Clone, Copy, Default)]
pub struct StepExtras {
    /// Time that the step waited for its batch.
    pub data_wait: Duration,
    /// Share of padding in the batch, 0..=1.
    pub padding: f64,
    /// Tokens of text used since the start of the run.
    pub tokens_seen: u64,
    /// Share of all tokens so far that were cut off documents longer than a row, 0..=1.
    pub dropped: f64,
    /// Rows so far that couldn't be read (`skip_bad_rows`).
    pub skipped_rows: u64,
    /// Bytes of tensors on the GPU after the step; none on the CPU.
    pub device_bytes: Option<u64>,
    /// The rank that took longest, where there are several.
    pub slowest: Option<Slowest>,
}

/// All sinks of a run.
pub struct Reporter {
    metrics: Metrics,
    progress: Progress,
    totals: Totals,
    log_period: u64,
    tensorboard: Option<String>,
}

/// Sums over the steps of this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Totals {
    /// Steps done.
    pub steps: u64,
    /// Positions trained on.
    pub tokens: u64,
    /// Time within steps.
    pub training: Duration,
    /// Loss of the first and of the last step.
    pub losses: Option<(f64, f64)>,
    /// Loss of the last evaluation.
    pub eval_loss: Option<f64>,
}

impl Reporter {
    /// Opens the sinks that the configuration asks for; `metrics/metrics.jsonl` is always there.
    ///
    /// # Errors
    /// [`MetricsError`] names the file that can't be written.
    pub fn new(config: &Config, first_step: u64, steps: u64) -> Result<Self, MetricsError> {
        let own_file = config.metrics_dir().join(super::METRICS_FILE);
        let mut metrics =
            Metrics::default().with(MetricsFile::open(&own_file, &config.run_name, first_step)?);
        if !config.metrics_file.is_empty() {
            let file = MetricsFile::open(config.metrics_file.as_ref(), &config.run_name, first_step)?;
            metrics = metrics.with(file);
        }
        if config.enable_tensorboard {
            // MaxText appends the run's name once more, which is the name that TensorBoard shows.
            let folder = config.tensorboard_dir().join(&config.run_name);
            metrics = metrics.with(EventFile::create(&folder, first_step)?);
        }
        for setting in config.settings().filter(|_| first_step == 0) {
            metrics.text(setting.spec().name, &setting.value().to_string())?;
        }
        Ok(Self {
            metrics,
            progress: Progress::new(first_step, steps),
            totals: Totals::default(),
            log_period: config.log_period as u64,
            tensorboard: config.enable_tensorboard.then(|| config.tensorboard_dir().display().to_string()),
        })
    }

    /// Counts, and tells nobody: for ranks beside the first.
    pub fn silent(steps: u64) -> Self {
        Self {
            metrics: Metrics::default(),
            progress: Progress::hidden(steps),
            totals: Totals::default(),
            log_period: 0,
            tensorboard: None,
        }
    }

    /// A text for the metric files, such as the number of parameters.
    ///
    /// # Errors
    /// [`MetricsError`].
    pub fn text(&mut self, tag: &str, text: &str) -> Result<(), MetricsError> {
        self.metrics.text(tag, text)
    }

    /// One training step, everywhere.
    ///
    /// # Errors
    /// [`MetricsError`]: a metric file can't be written any more.
    pub fn step(&mut self, step: u64, figures: &TrainStep, extras: &StepExtras) -> Result<(), MetricsError> {
        info!("{}", StepLine { step, figures, extras });
        self.totals.add(figures);
        let speed = figures.per_device_tokens / figures.step_time_seconds;
        self.progress.update(step + 1, figures.loss, speed);

        let mut scalars = figures.scalars();
        scalars.extend(extras.scalars());
        self.metrics.scalars(step, &scalars)?;
        if let Some(folder) = &self.tensorboard
            && self.log_period > 0
            && step.is_multiple_of(self.log_period)
        {
            info!("To see full metrics 'tensorboard --logdir={folder}'");
        }
        Ok(())
    }

    /// One evaluation, everywhere.
    ///
    /// # Errors
    /// [`MetricsError`].
    pub fn evaluation(&mut self, step: u64, evaluation: &Evaluation) -> Result<(), MetricsError> {
        info!("{}", EvalLine { step, evaluation });
        self.totals.eval_loss = Some(evaluation.avg_loss());
        self.metrics.scalars(step, &evaluation.scalars())
    }

    /// Says beside the progress bar what goes on between two steps.
    pub fn note(&self, what: &str) {
        self.progress.note(what);
    }

    /// The sums so far.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }
}

impl Totals {
    fn add(&mut self, figures: &TrainStep) {
        self.steps += 1;
        self.tokens += figures.per_device_tokens as u64;
        self.training += Duration::try_from_secs_f64(figures.step_time_seconds).unwrap_or_default();
        let first = self.losses.map_or(figures.loss, |(first, _)| first);
        self.losses = Some((first, figures.loss));
    }
}

impl StepExtras {
    fn scalars(&self) -> Vec<Scalar<'static>> {
        let mut scalars = vec![
            ("perf/data_wait_seconds", self.data_wait.as_secs_f64()),
            ("data/padding_share", self.padding),
            ("data/tokens_seen", self.tokens_seen as f64),
            ("data/dropped_share", self.dropped),
            ("data/skipped_rows", self.skipped_rows as f64),
        ];
        if let Some(Slowest { rank, seconds }) = self.slowest {
            scalars.push(("perf/slowest_rank", rank as f64));
            scalars.push(("perf/slowest_rank_step_time_seconds", seconds));
        }
        if let Some(bytes) = self.device_bytes {
            scalars.push(("perf/device_memory_bytes", bytes as f64));
        }
        if let Some(memory) = Memory::now() {
            scalars.push(("perf/host_memory_bytes", memory.resident as f64));
            scalars.push(("perf/host_memory_peak_bytes", memory.peak as f64));
        }
        scalars
    }
}
