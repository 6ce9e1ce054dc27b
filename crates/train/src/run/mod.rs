//! A run, from its configuration to the table at its end.

mod checkpoints;
mod error;
pub(crate) mod evaluate;
pub mod folder;
mod gradients;
pub mod report;
pub mod signals;
mod start;
mod summary;
mod trainer;

use mt_config::{Config, Quantization};
use mt_data::{Batches, Shard};
use mt_model::ops::{linear, tuning};
use mt_model::{Model, device};
use tracing::info;

pub use error::{BadLoss, RunError};
pub use summary::{End, Summary};

use crate::log::{self, LOG_FILE};
use crate::optim::Optimizer;
use crate::profile::{self, Profiler};
use crate::schedule::{Schedule, ScheduleOptions};
use checkpoints::Checkpoints;
use evaluate::Evaluator;
use folder::RunFolder;
use report::Reporter;
use signals::StopRequest;
use trainer::Trainer;

/// The scalars of a run, a line per step, in its folder of metrics.
pub const METRICS_FILE: &str = "metrics.jsonl";
/// The plots of a run, in its folder.
pub const REPORT_FILE: &str = "report.html";

/// Trains as `config` says.
///
/// # Errors
/// [`RunError`]: why the run can't start or go on; the process is expected to exit with code 1.
pub fn run(config: &Config) -> Result<Summary, RunError> {
    if matches!(config.quantization, Quantization::Int8w | Quantization::Int4w) {
        return Err(RunError::WeightsOnly);
    }
    let folder = RunFolder::open(&config.run_dir())?;
    log::init(config, folder.path())?;
    start::log_config(config);
    profile::announce_ranges(config);
    let stop = StopRequest::listen().map_err(RunError::Signals)?;

    let device = device::choose(config.hardware, 0)?;
    info!("{}", device.reason);
    tuning::set(tuning::Tuning::from_key(&config.kernel_tuning_dir), |line| info!("{line}"));
    // Not a key: numbers don't depend on it beyond rounding, and no other trainer's files know it.
    let gemm = std::env::var("MT_GEMM").ok();
    if let Some(line) = linear::choose_gemm(gemm.as_deref(), &device.device)? {
        info!("{line}");
    }
    let mut model = Model::new(config.model(), &device.device);
    let mut optimizer = Optimizer::new(config, &model.params)?;
    let start = checkpoints::start(config, &mut model, &mut optimizer)?;
    let mut data = mt_data::train_batches(config, Shard::WHOLE)?;
    if let Some(place) = &start.data {
        data.restore(place)?;
    }
    folder.save_config(&config.to_yaml())?;
    start::log_parameters(model.params.num_parameters());
    start::log_memory("After params initialized");
    let plan = config.plan();
    start::print_flops(&plan.flops);

    let options = ScheduleOptions::from(config);
    let mut trainer = Trainer {
        config,
        schedule: Schedule::new(&options),
        evaluator: Evaluator::new(config).map_err(RunError::EvalData)?,
        checkpoints: Checkpoints::new(config, &start)?,
        reporter: Reporter::new(config, start.step, options.steps)?,
        profiler: Profiler::new(config, start.step, options.steps)?,
        breakdown: None,
        tflops_per_step: plan.flops.total() / 1e12,
        next_step: start.step,
        steps: options.steps,
        model,
        optimizer,
        data,
    };
    let end = trainer.train(&stop)?;
    let summary = trainer.summary(end, start.step, outputs(config));
    let report = config.run_dir().join(REPORT_FILE);
    let metrics = config.metrics_dir().join(METRICS_FILE);
    crate::report::write(&report, &summary.run_name, &metrics, &summary.rows(), trainer.breakdown.as_ref())?;
    Ok(summary)
}

/// What a run writes, for the table.
fn outputs(config: &Config) -> Vec<(&'static str, std::path::PathBuf)> {
    let mut outputs = vec![
        ("report", config.run_dir().join(REPORT_FILE)),
        ("metrics", config.metrics_dir().join(METRICS_FILE)),
    ];
    if config.enable_tensorboard {
        outputs.push(("tensorboard", config.tensorboard_dir()));
    }
    if config.enable_checkpointing {
        outputs.push(("checkpoints", config.checkpoint_dir()));
    }
    outputs.push(("log", config.run_dir().join(LOG_FILE)));
    outputs.push(("configuration", config.run_dir().join(folder::CONFIG_FILE)));
    outputs
}
