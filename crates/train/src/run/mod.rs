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

use mt_config::{Config, OptType, Quantization};
use mt_data::{Batches, Shard};
use mt_model::ops::linear;
use mt_model::{Model, Shard as PartOfParams, device, init};
use tracing::info;

pub use error::{BadLoss, RunError};
pub use summary::{End, Summary};

use crate::collective::{Collective, Solo};
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

/// Trains as `config` says, alone.
///
/// # Errors
/// [`RunError`]: why the run can't start or go on; the process is expected to exit with code 1.
pub fn run(config: &Config) -> Result<Summary, RunError> {
    run_on(config, Box::new(Solo))
}

/// Trains as `config` says, as one of the ranks of `collective`. All of them read the data and compute their rows; the first one
/// logs and writes for all.
///
/// # Errors
/// As [`run`].
pub fn run_on(config: &Config, collective: Box<dyn Collective>) -> Result<Summary, RunError> {
    let mesh = collective.mesh();
    let shard = shard_of(mesh);
    refuse_what_cannot_be(config, shard)?;
    let folder = mesh.is_first().then(|| RunFolder::open(&config.run_dir())).transpose()?;
    if let Some(folder) = &folder {
        log::init(config, folder.path())?;
    }
    start::log_config(config);
    profile::announce_ranges(config);
    let stop = StopRequest::listen().map_err(RunError::Signals)?;

    let device = device::choose(config.hardware, 0)?;
    info!("{}", device.reason);
    // Not a key: numbers don't depend on it beyond rounding, and no other trainer's files know it.
    let gemm = std::env::var("MT_GEMM").ok();
    if let Some(line) = linear::choose_gemm(gemm.as_deref(), &device.device)? {
        info!("{line}");
    }
    let params = init::init_shard(&config.model(), shard, &device.device);
    let mut model = Model::with_params(config.model(), params);
    let mut optimizer = Optimizer::new(config, &model.params, shard)?;
    let start = checkpoints::start(config, &mut model, &mut optimizer)?;
    let mut data = mt_data::train_batches(config, Shard::WHOLE)?;
    if let Some(place) = &start.data {
        data.restore(place)?;
    }
    let plan = config.plan();
    start::log_parameters(plan.parameters.total() as usize);
    start::log_memory("After params initialized");
    if let Some(folder) = &folder {
        folder.save_config(&config.to_yaml())?;
        start::print_flops(&plan.flops);
    }

    let options = ScheduleOptions::from(config);
    let mut trainer = Trainer {
        config,
        schedule: Schedule::new(&options),
        evaluator: Evaluator::new(config).map_err(RunError::EvalData)?,
        checkpoints: if mesh.is_first() { Checkpoints::new(config, &start)? } else { None },
        reporter: if mesh.is_first() {
            Reporter::new(config, start.step, options.steps)?
        } else {
            Reporter::silent(options.steps)
        },
        profiler: Profiler::new(config, start.step, options.steps)?.map(|profiler| profiler.of_rank(mesh)),
        breakdown: None,
        tflops_per_step: plan.flops.total() / 1e12,
        next_step: start.step,
        steps: options.steps,
        collective,
        model,
        optimizer,
        data,
    };
    let end = trainer.train(&stop)?;
    let summary = trainer.summary(end, start.step, outputs(config));
    if mesh.is_first() {
        let report = config.run_dir().join(REPORT_FILE);
        let metrics = config.metrics_dir().join(METRICS_FILE);
        crate::report::write(
            &report,
            &summary.run_name,
            &metrics,
            &summary.rows(),
            trainer.breakdown.as_ref(),
        )?;
    }
    Ok(summary)
}

/// Says what a configuration asks for that can't be, before anything is made.
fn refuse_what_cannot_be(config: &Config, shard: PartOfParams) -> Result<(), RunError> {
    if matches!(config.quantization, Quantization::Int8w | Quantization::Int4w) {
        return Err(RunError::WeightsOnly);
    }
    let fsdp = shard.count;
    if fsdp > 1 && config.opt_type == OptType::Muon {
        return Err(RunError::MuonOnShards { fsdp });
    }
    let paths = [&config.load_parameters_path, &config.load_full_state_path];
    if fsdp > 1 && (config.enable_checkpointing || paths.iter().any(|path| !path.is_empty())) {
        return Err(RunError::CheckpointsOfShards { fsdp });
    }
    Ok(())
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
