//! The optimizer's state for a checkpoint: moments by the path of their parameter, the rest as JSON.

use super::Optimizer;
use burn::tensor::Tensor;
use serde_json::{Value, json};
use tracing::warn;

/// Which moment of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The first: the mean of gradients, or momentum.
    Mu,
    /// The second: the mean of their squares.
    Nu,
}

impl Optimizer {
    /// A moment of the parameter of this unscanned path; none when the rule for the parameter has no such moment.
    pub fn moment(&self, moment: Moment, path: &str) -> Option<&Tensor<2>> {
        let leaf = &self.leaves[self.index(path)?];
        match moment {
            Moment::Mu => leaf.mu.as_ref(),
            Moment::Nu => leaf.nu.as_ref(),
        }
    }

    /// As [`Optimizer::moment`], to be restored.
    pub fn moment_mut(&mut self, moment: Moment, path: &str) -> Option<&mut Tensor<2>> {
        let index = self.index(path)?;
        let leaf = &mut self.leaves[index];
        match moment {
            Moment::Mu => leaf.mu.as_mut(),
            Moment::Nu => leaf.nu.as_mut(),
        }
    }

    fn index(&self, path: &str) -> Option<usize> {
        self.leaves.iter().position(|leaf| leaf.path == path)
    }

    /// What isn't a moment and isn't worth a word in JSON: the losses and norms by which `skip_step_on_spikes` judges.
    pub fn records(&self) -> Vec<(&'static str, &[f32])> {
        match &self.spikes {
            None => Vec::new(),
            Some(spikes) => vec![("losses", &spikes.losses), ("grad_norms", &spikes.grad_norms)],
        }
    }

    /// The counters.
    pub fn state(&self) -> Value {
        json!({ "count": self.count, "spikes_count": self.spikes.as_ref().map(|spikes| spikes.count) })
    }

    /// Takes the counters and records back. Records of another length than `skip_step_interval` now asks for start anew.
    pub fn restore(&mut self, state: &Value, record: impl Fn(&str) -> Option<Vec<f32>>) {
        self.count = state["count"].as_u64().unwrap_or(self.count);
        let Some(spikes) = &mut self.spikes else { return };
        let fits = |record: &Vec<f32>| record.len() == spikes.losses.len();
        let records = (record("losses").filter(fits), record("grad_norms").filter(fits));
        match (records, state["spikes_count"].as_u64()) {
            ((Some(losses), Some(grad_norms)), Some(count)) => {
                (spikes.losses, spikes.grad_norms, spikes.count) = (losses, grad_norms, count);
            }
            _ => {
                warn!("no record of the last {} losses: skip_step_on_spikes starts anew", spikes.losses.len())
            }
        }
    }
}
