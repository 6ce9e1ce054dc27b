//! Bytes on a device: weights, gradients, moments, and activations under each remat policy.

use super::activations::{Activity, size_of};
use super::parameters::Parameters;
use crate::keys::Config;
use crate::keys::choices::{Choice, OptType, RematPolicyName};
use crate::model::ModelConfig;

/// What doesn't depend on the remat policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct States {
    /// Parameters in `weight_dtype`.
    pub weights: u64,
    /// Gradients of all parameters in `grad_dtype`.
    pub gradients: u64,
    /// The optimizer's moments.
    pub moments: u64,
}

impl States {
    fn of(config: &Config, parameters: &Parameters) -> Self {
        let (total, matrices) = (parameters.total(), parameters.matrices());
        let weight = size_of(config.weight_dtype);
        let first = size_of(config.moment_dtype());
        // The second moment has the dtype of the weights, as in optax.
        let moments = match config.opt_type {
            OptType::Adamw | OptType::AdamPax => total * (first + weight),
            OptType::Sgd => 0,
            OptType::Muon => matrices * first + (total - matrices) * (first + weight),
        };
        Self { weights: total * weight, gradients: total * size_of(config.grad_dtype), moments }
    }

    /// Bytes on the device.
    pub fn on_device(&self) -> u64 {
        self.weights + self.gradients + self.moments
    }
}

/// Activations under one policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PolicyMemory {
    /// The policy; `custom` is the one that the keys describe.
    pub policy: RematPolicyName,
    /// Its activations.
    pub activity: Activity,
}

/// The memory of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryPlan {
    /// What doesn't depend on the remat policy.
    pub states: States,
    /// Activations under each policy, from the leanest.
    pub policies: Vec<PolicyMemory>,
}

impl MemoryPlan {
    pub(super) fn of(config: &Config, model: &ModelConfig, parameters: &Parameters, tokens: u64) -> Self {
        let mut names: Vec<RematPolicyName> = Vec::new();
        for (_, name) in RematPolicyName::VALUES {
            let described =
                *name != RematPolicyName::Custom || config.remat_policy == RematPolicyName::Custom;
            if described && !names.contains(name) {
                names.push(*name);
            }
        }
        let mut policies: Vec<PolicyMemory> = names
            .into_iter()
            .map(|policy| {
                let table = if policy == RematPolicyName::Custom { config.remat() } else { policy.policy() };
                PolicyMemory { policy, activity: Activity::of(config, model, &table, tokens) }
            })
            .collect();
        policies.sort_by_key(|policy| policy.activity.kept + policy.activity.working);
        Self { states: States::of(config, parameters), policies }
    }

    /// Bytes on the device at the peak under `policy`; `None` for `custom` where the keys don't describe one.
    pub fn peak(&self, policy: RematPolicyName) -> Option<u64> {
        let found = self.policies.iter().find(|candidate| candidate.policy == policy)?;
        Some(self.states.on_device() + found.activity.kept + found.activity.working)
    }
}
