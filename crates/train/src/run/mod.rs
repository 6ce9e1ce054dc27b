//! A run, from its configuration to the table at its end.

mod checkpoints;
mod error;
pub(crate) mod evaluate;
pub mod folder;
pub mod gradients;
pub mod report;
pub mod signals;
mod start;
mod summary;
pub mod totals;
mod trainer;

use burn::tensor::Device;
use mt_config::{Config, Quantization};
use mt_data::Batches;
use mt_model::ops::{linear, tuning};
use mt_model::{Model, device, init};
use tracing::info;

pub use error::{BadLoss, RunError};
pub use summary::{End, Summary};

use crate::collective::{Collective, World};
use crate::log::{self, LOG_FILE};
use crate::optim::Optimizer;
use crate::profile::{self, Profiler};
use crate::schedule::{Schedule, ScheduleOptions};
use crate::shard::shard_of;
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

/// Trains as `config` says, together with all processes of `world`, for which it is resolved.
///
/// # Errors
/// [`RunError`]: why the run can't start or go on; the process is expected to exit with code 1, and to end the others.
pub fn run(config: &Config, world: &World) -> Result<Summary, RunError> {
    if matches!(config.quantization, Quantization::Int8w | Quantization::Int4w) {
        return Err(RunError::WeightsOnly);
    }
    let folder = match world.is_first() {
        true => RunFolder::open(&config.run_dir())?,
        false => RunFolder::of_rank_0(&config.run_dir()),
    };
    world.meet()?; // the folder is there
    log::init(config, folder.path())?;
    start::log_config(config);
    profile::announce_ranges(config);
    let stop = StopRequest::listen().map_err(RunError::Signals)?;

    let device = device::choose(config.hardware, world.place().local_rank)?;
    info!("{}", device.reason);
    tuning::set(tuning::Tuning::from_key(&config.kernel_tuning_dir), |line| info!("{line}"));
    if let Some(line) = linear::choose_gemm(config.gemm, &device.device) {
        info!("{line}");
    }
    let degrees = config.mesh();
    let collective = world.collective(degrees.data, degrees.fsdp, &device.device)?;
    run_on(config, &folder, &stop, &device.device, collective)
}

/// Trains as `config` says on `device`, as one of the ranks of `collective`. All of them read the data and compute their rows; the
/// first one speaks for all and writes to `folder`, checkpoints apart, which all of them write.
///
/// # Errors
/// As [`run`].
pub fn run_on(
    config: &Config,
    folder: &RunFolder,
    stop: &StopRequest,
    device: &Device,
    collective: Box<dyn Collective>,
) -> Result<Summary, RunError> {
    let mesh = collective.mesh();
    let shard = shard_of(mesh);
    let params = init::init_shard(&config.model(), shard, device);
    let mut model = Model::with_params(config.model(), params);
    let mut optimizer = Optimizer::new(config, &model.params, shard)?;
    let start = checkpoints::start(config, &mut model, &mut optimizer, &*collective)?;
    let mut data = mt_data::train_batches(config)?;
    if let Some(place) = &start.data {
        data.restore(place)?;
    }
    let plan = config.plan();
    start::log_parameters(plan.parameters.total() as usize);
    start::log_memory("After params initialized");
    if mesh.is_first() {
        folder.save_config(&config.to_yaml())?;
        start::print_flops(&plan.flops);
    }

    let options = ScheduleOptions::from(config);
    let reporter = match mesh.is_first() {
        true => Reporter::new(config, start.step, options.steps)?,
        false => Reporter::silent(options.steps),
    };
    let mut trainer = Trainer {
        config,
        schedule: Schedule::new(&options),
        evaluator: Evaluator::new(config).map_err(RunError::EvalData)?,
        checkpoints: Checkpoints::new(config, &start, &*collective)?,
        reporter,
        profiler: Profiler::new(config, start.step, options.steps)?,
        breakdown: None,
        tflops_per_step: plan.flops.total() / 1e12,
        next_step: start.step,
        steps: options.steps,
        collective,
        model,
        optimizer,
        data,
    };
    let end = trainer.train(stop)?;
    let summary = trainer.summary(end, start.step, outputs(config));
    if mesh.is_first() {
        let report = config.run_dir().join(REPORT_FILE);
        let metrics = config.metrics_dir().join(METRICS_FILE);
        let rows = summary.rows();
        crate::report::write(&report, &summary.run_name, &metrics, &rows, trainer.breakdown.as_ref())?;
    }
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
