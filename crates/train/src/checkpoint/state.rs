//! The part of a checkpoint that isn't tensors.

use super::error::{CheckpointError, Difference};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Everything that a run needs to go on as if it had never stopped, besides its tensors: `state.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainState {
    /// The step just completed; the run goes on with the next.
    pub step: u64,
    /// What must be the same when a run goes on.
    pub identity: Identity,
    /// State of the optimizer besides its moments.
    pub optimizer: Value,
    /// Where the data iterator stands, right after the last batch trained on.
    pub data: Value,
    /// State of the random number generators.
    pub rng: Value,
    /// Hash of the resolved configuration, which is beside as `config.yml`.
    pub config_hash: String,
}

/// Rows of a step over all ranks: however many these are, they are the same run's.
pub const GLOBAL_BATCH_SIZE: &str = "per_device_batch_size * gradient_accumulation_steps * ranks";

/// Keys whose values a run can't change halfway: model shape, batch geometry, tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Identity(BTreeMap<String, String>);

impl Identity {
    /// Adds a key and its value.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl ToString) -> Self {
        self.0.insert(key.to_owned(), value.to_string());
        self
    }

    /// The same with the rows of a step under one key. Checkpoints of earlier versions have the keys that they are the product of.
    fn by_rows(mut self) -> Self {
        let [per_device, steps] =
            ["per_device_batch_size", "gradient_accumulation_steps"].map(|key| self.0.remove(key));
        let product = || Some(per_device?.parse::<f64>().ok()? * steps?.parse::<f64>().ok()?);
        match product() {
            Some(rows) => self.with(GLOBAL_BATCH_SIZE, rows),
            None => self,
        }
    }

    /// Fails with every key that differs between a checkpoint, at `path`, and this run.
    pub fn check(&self, saved: &Self, path: &Path) -> Result<(), CheckpointError> {
        let saved = &saved.clone().by_rows();
        let value = |of: &Self, key: &str| of.0.get(key).cloned().unwrap_or_else(|| "absent".to_owned());
        let keys: std::collections::BTreeSet<&String> = self.0.keys().chain(saved.0.keys()).collect();
        let differences: Vec<Difference> = keys
            .into_iter()
            .map(|key| Difference { key: key.clone(), saved: value(saved, key), current: value(self, key) })
            .filter(|difference| difference.saved != difference.current)
            .collect();
        if differences.is_empty() {
            return Ok(());
        }
        Err(CheckpointError::Changed { path: path.to_path_buf(), differences })
    }
}
