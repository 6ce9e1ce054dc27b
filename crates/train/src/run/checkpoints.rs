//! When this run saves, what it saves, and what it goes on from.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use mt_config::Config;
use mt_model::Model;
use mt_model::tree::{Layout, Tree};
use serde_json::Value;
use tracing::info;

use crate::checkpoint::{
    Checkpoint, CheckpointError, CheckpointFolder, Format, GLOBAL_BATCH_SIZE, Identity, Saver, Snapshot,
    TrainState, find_checkpoint, find_params, load_optimizer, load_params,
};
use crate::collective::{Collective, Group};
use crate::optim::Optimizer;

/// The checkpoints of a run.
pub struct Checkpoints {
    saver: Saver,
    tree: Tree,
    format: Format,
    period: u64,
    on_start: bool,
    identity: Identity,
    config_yaml: String,
    config_hash: String,
    /// The checkpoint that this process started from.
    resumed_from: Option<PathBuf>,
}

/// Where a run starts.
#[derive(Default)]
pub struct Start {
    /// Number of the first step.
    pub step: u64,
    /// Place in the data, `None` for its beginning.
    pub data: Option<Value>,
    /// The checkpoint, if there is one.
    pub from: Option<PathBuf>,
}

/// Fills `model` and `optimizer` from where the configuration says that the run starts: MaxText's order is the run's own newest
/// checkpoint, else `load_parameters_path` or `load_full_state_path`, else the fresh weights that are already there.
///
/// The first rank looks for it and reads all of it once; the others take its word, and each reads what it holds.
///
/// # Errors
/// [`CheckpointError`]: nothing usable is there, or it belongs to another model, batch geometry or tokenizer.
pub fn start(
    config: &Config,
    model: &mut Model,
    optimizer: &mut Optimizer,
    ranks: &dyn Collective,
) -> Result<Start, CheckpointError> {
    let mesh = ranks.mesh();
    if let Some(checkpoint) = agree(ranks, || full_state(config))? {
        identity(config).check(&checkpoint.state.identity, checkpoint.path())?;
        load_params(&checkpoint.params()?, &config.model(), &mut model.params, mesh)?;
        load_optimizer(&checkpoint, &config.model(), optimizer, mesh)?;
        return Ok(Start {
            step: checkpoint.state.step + 1,
            data: Some(checkpoint.state.data.clone()),
            from: Some(checkpoint.path().to_owned()),
        });
    }
    if !config.load_parameters_path.is_empty() {
        let params = find_params(Path::new(&config.load_parameters_path))?;
        info!("restoring params from {}", params.path().display());
        load_params(&params, &config.model(), &mut model.params, mesh)?;
    }
    Ok(Start::default())
}

/// The checkpoint to go on from, if there is one. All of it is read and compared with its sums.
fn full_state(config: &Config) -> Result<Option<Checkpoint>, CheckpointError> {
    if config.enable_checkpointing
        && let Some(checkpoint) = CheckpointFolder::open(&config.checkpoint_dir())?.newest_whole()?
    {
        info!("restoring from this run's directory step {}", checkpoint.state.step);
        return Ok(Some(checkpoint));
    }
    if !config.load_full_state_path.is_empty() {
        let checkpoint = find_checkpoint(Path::new(&config.load_full_state_path))?;
        info!("restoring full state from {}", checkpoint.path().display());
        return Ok(Some(checkpoint));
    }
    Ok(None)
}

/// What `find` finds on the first rank, on every rank.
fn agree(
    ranks: &dyn Collective,
    find: impl FnOnce() -> Result<Option<Checkpoint>, CheckpointError>,
) -> Result<Option<Checkpoint>, CheckpointError> {
    if ranks.mesh().is_first() {
        // A failure ends the first rank, and with it the others.
        let found = find()?;
        let path = found.as_ref().map(|checkpoint| checkpoint.path().as_os_str().as_bytes().to_vec());
        ranks.from_first(path.unwrap_or_default())?;
        return Ok(found);
    }
    let path = ranks.from_first(Vec::new())?;
    let path = Path::new(OsStr::from_bytes(&path));
    if path.as_os_str().is_empty() { Ok(None) } else { Checkpoint::open_verified(path).map(Some) }
}

impl Checkpoints {
    /// `None` when `enable_checkpointing` is off.
    ///
    /// # Errors
    /// [`CheckpointError`]: the folder can't be used.
    pub fn new(
        config: &Config,
        start: &Start,
        ranks: &dyn Collective,
    ) -> Result<Option<Self>, CheckpointError> {
        if !config.enable_checkpointing {
            return Ok(None);
        }
        let mesh = ranks.mesh();
        let folder = match mesh.is_first() {
            true => CheckpointFolder::open(&config.checkpoint_dir())?,
            false => CheckpointFolder::beside(&config.checkpoint_dir()),
        };
        let model = config.model();
        let saver = Saver::new(folder, config.max_num_checkpoints_to_keep, config.async_checkpointing);
        Ok(Some(Self {
            saver: saver.of_rank(mesh.rank, mesh.size(Group::World)),
            tree: Tree::new(&model),
            format: Format {
                layout: Layout { scan_layers: model.scan_layers, param_scan_axis: model.param_scan_axis },
                max_file_bytes: config.checkpoint_storage_target_data_file_size_bytes,
            },
            period: config.checkpoint_period as u64,
            on_start: config.save_checkpoint_on_start,
            identity: identity(config),
            config_yaml: config.to_yaml(),
            config_hash: config.hash(),
            resumed_from: start.from.clone(),
        }))
    }

    /// MaxText's cadence: every `checkpoint_period` steps, counting from step 0.
    pub fn is_due(&self, step: u64) -> bool {
        match step {
            0 => self.on_start,
            step => self.period > 0 && step.is_multiple_of(self.period),
        }
    }

    /// Saves the state right after `step`; all ranks call it together.
    ///
    /// # Errors
    /// [`CheckpointError`], possibly that of the save before, which ran in the background.
    pub fn save(
        &mut self,
        step: u64,
        model: &Model,
        optimizer: &Optimizer,
        data: Value,
        ranks: &dyn Collective,
    ) -> Result<(), CheckpointError> {
        if self.saver.has(step) {
            return Ok(());
        }
        if ranks.mesh().size(Group::World) > 1 {
            if ranks.mesh().is_first() {
                self.saver.prepare(step)?;
            }
            // Nobody writes before the folder is there.
            ranks.from_first(Vec::new())?;
        }
        let state = TrainState {
            step,
            identity: self.identity.clone(),
            optimizer: optimizer.state(),
            data,
            // Every random number of a step is a function of the seed and the step.
            rng: Value::Null,
            config_hash: self.config_hash.clone(),
        };
        let yaml = self.config_yaml.clone();
        let snapshot = Snapshot::take(&model.params, optimizer, &self.tree, self.format, state, yaml, ranks)?;
        self.saver.save(step, snapshot.into_write())
    }

    /// Surfaces the error of a background save.
    ///
    /// # Errors
    /// That error.
    pub fn poll(&mut self) -> Result<(), CheckpointError> {
        self.saver.poll()
    }

    /// Waits for the save in flight.
    ///
    /// # Errors
    /// Its error.
    pub fn finish(&mut self) -> Result<(), CheckpointError> {
        self.saver.finish()
    }

    /// The newest checkpoint of this run that is on the disk.
    pub fn last_saved(&self) -> Option<PathBuf> {
        self.saver.last_saved().map(|saved| saved.path.clone()).or_else(|| self.resumed_from.clone())
    }
}

/// What a run can't change halfway without another meaning of its numbers.
fn identity(config: &Config) -> Identity {
    let model = config.model();
    Identity::default()
        .with("decoder_block", format!("{:?}", model.decoder_block))
        .with("vocab_size", model.vocab_size)
        .with("emb_dim", model.emb_dim)
        .with("mlp_dim", model.mlp_dim)
        .with("num_query_heads", model.num_query_heads)
        .with("num_kv_heads", model.num_kv_heads)
        .with("head_dim", model.head_dim)
        .with("num_decoder_layers", model.num_decoder_layers)
        .with("logits_via_embedding", model.logits_via_embedding)
        .with("attention_bias", model.attention_bias)
        .with("use_qk_norm", model.use_qk_norm)
        .with("opt_type", format!("{:?}", config.opt_type))
        .with(GLOBAL_BATCH_SIZE, config.global_batch_size_to_train_on())
        .with("max_target_length", config.max_target_length)
        .with("packing", config.packing)
        .with("tokenizer_type", format!("{:?}", config.tokenizer_type))
        .with("tokenizer_path", file_name(&config.tokenizer_path))
}

/// A tokenizer is the same file wherever it lies.
fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
