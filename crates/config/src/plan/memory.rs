//! Bytes on a device: its share of weights, gradients and moments, and activations under each remat policy.

use super::activations::{Activity, bytes_of, head_working};
use super::parameters::{Parameter, Parameters};
use super::sharded::{Parts, Sharded};
use crate::keys::Config;
use crate::keys::choices::{Choice, OptType, RematPolicyName};
use crate::model::ModelConfig;

/// What doesn't depend on the remat policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct States {
    /// This rank's part of the parameters, in `weight_dtype`.
    pub weights: u64,
    /// The gradients of that part, in `grad_dtype`.
    pub gradients: u64,
    /// The moments of that part.
    pub moments: u64,
}

impl States {
    fn of(config: &Config, parameters: &Parameters) -> Self {
        let fsdp = config.mesh().fsdp as u64;
        let count = |of_all: bool| {
            let kinds = parameters.0.iter().filter(|kind| of_all || kind.is_matrix);
            kinds.map(|kind| kind.shards(fsdp)).sum::<u64>()
        };
        let (total, matrices) = (count(true), count(false));
        let weight = bytes_of(config.weight_dtype);
        let first = bytes_of(config.moment_dtype());
        // The second moment has the dtype of the weights, as in optax.
        let moments = match config.opt_type {
            OptType::Adamw | OptType::AdamPax => total * (first + weight),
            OptType::Sgd => 0,
            OptType::Muon => matrices * first + (total - matrices) * (first + weight),
        };
        Self { weights: total * weight, gradients: total * bytes_of(config.grad_dtype), moments }
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

/// Parameters in main memory at once during an update there: one that is updated, one that waits and one that is being copied.
const PARAMETERS_ON_THE_WAY: u64 = 3;

/// Scalars of the largest parameter, or of the largest shard.
fn largest(parameters: &Parameters, num_layers: u64, fsdp: u64) -> u64 {
    let of = |kind: &Parameter| if kind.in_layers { kind.count / num_layers.max(1) } else { kind.count };
    parameters.0.iter().map(|kind| of(kind).div_ceil(fsdp)).max().unwrap_or(0)
}

/// The memory of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryPlan {
    /// What doesn't depend on the remat policy.
    pub states: States,
    /// Activations under each policy, from the leanest.
    pub policies: Vec<PolicyMemory>,
    /// Bytes of whole gradients; they are float32 until the update casts them.
    gradients: Parts,
    /// What comes and goes where the states are shards.
    sharded: Option<Sharded>,
    num_layers: u64,
    /// Bytes of the largest parameter.
    largest: u64,
    /// Bytes at work in the head.
    head: u64,
    /// The head's kernel is the embedding.
    tied: bool,
    /// Gradients of earlier micro batches wait.
    accumulates: bool,
    /// The update casts gradients to a smaller type.
    casts: bool,
    /// Moments, and gradients once they are complete, are in host memory (`optimizer_memory_host_offload`).
    pub offloads: bool,
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
        let policies = names.into_iter().map(|policy| {
            let table = if policy == RematPolicyName::Custom { config.remat() } else { policy.policy() };
            PolicyMemory { policy, activity: Activity::of(config, model, &table, tokens) }
        });
        let mut plan = Self {
            states: States::of(config, parameters),
            policies: policies.collect(),
            gradients: Parts::of(parameters, |kind| 4 * kind.count),
            sharded: (config.mesh().fsdp > 1).then(|| Sharded::of(config, parameters)),
            num_layers: model.num_decoder_layers as u64,
            largest: largest(parameters, model.num_decoder_layers as u64, config.mesh().fsdp as u64)
                * bytes_of(config.weight_dtype),
            head: head_working(model, config.num_vocab_tiling, tokens),
            tied: model.logits_via_embedding,
            accumulates: config.gradient_accumulation_steps > 1,
            casts: bytes_of(config.grad_dtype) < 4,
            offloads: config.offloads_optimizer(),
        };
        let mut policies = std::mem::take(&mut plan.policies);
        policies.sort_by_key(|policy| plan.peak_of(&policy.activity));
        Self { policies, ..plan }
    }

    /// Bytes on the device at the peak under `policy`; `None` for `custom` where the keys don't describe one.
    pub fn peak(&self, policy: RematPolicyName) -> Option<u64> {
        let found = self.policies.iter().find(|candidate| candidate.policy == policy)?;
        Some(self.peak_of(&found.activity))
    }

    /// Bytes of main memory at the peak under `policy`: activations that it moves there, and with `optimizer_memory_host_offload`
    /// gradients, moments and the parameters on their way. `None` as in [`MemoryPlan::peak`].
    pub fn host_peak(&self, policy: RematPolicyName) -> Option<u64> {
        let found = self.policies.iter().find(|candidate| candidate.policy == policy)?;
        let activations = found.activity.offloaded;
        if !self.offloads {
            return Some(activations);
        }
        // Gradients are float32 until the update, and come as activations go; micro batches keep the earlier ones' sums.
        let gradients = self.gradients.all();
        let earlier = if self.accumulates { gradients } else { 0 };
        let update = gradients + PARAMETERS_ON_THE_WAY * self.largest;
        Some(self.states.moments + update.max(activations + earlier))
    }

    /// The dearest moment of a step: at the head everything that is kept is there but hardly a gradient; from the last layer to
    /// the first, gradients come as kept activations go; at the end there are gradients alone.
    fn peak_of(&self, activity: &Activity) -> u64 {
        if let Some(sharded) = &self.sharded {
            let moments = if self.offloads { 0 } else { self.states.moments };
            return self.states.weights + moments + sharded.peak(activity, self.head);
        }
        if self.offloads {
            return self.peak_with_offload(activity);
        }
        let (gradients, layers) = (&self.gradients, self.num_layers.max(1));
        // A tied head has a gradient of the embedding, which waits for the other one.
        let head_gradients = gradients.head + if self.tied { gradients.embedding } else { 0 };
        let head = head_gradients + activity.kept + self.head;
        let layer = |done: u64| {
            let kept = activity.kept * (layers - done) / layers;
            head_gradients + gradients.layers * (done + 1) / layers + kept + activity.working
        };
        let embedding = head_gradients + gradients.layers + gradients.embedding;
        let earlier = if self.accumulates { gradients.all() } else { 0 };
        let backward = head.max(layer(0)).max(layer(layers - 1)).max(embedding) + earlier;
        // Freed memory is used again for the same sizes; where a gradient has two, one of each may be there.
        let both = if self.casts { gradients.embedding } else { 0 };
        self.states.weights + self.states.moments + backward.max(gradients.all()) + both
    }

    /// The same where gradients leave the device: those of three parts of the model are there at most, one that is being made,
    /// one that waits and one that is being copied.
    fn peak_with_offload(&self, activity: &Activity) -> u64 {
        let (gradients, layers) = (&self.gradients, self.num_layers.max(1));
        let (tied, untied) = if self.tied { (gradients.embedding, 0) } else { (0, gradients.embedding) };
        let of_layers = |count: u64| gradients.layers * count.min(layers) / layers;
        let head = gradients.head + activity.kept + self.head;
        let second_layer = gradients.head + of_layers(2) + activity.kept + activity.working;
        let last_layer = of_layers(3) + activity.kept / layers + activity.working;
        let embedding = of_layers(2) + untied;
        self.states.weights + tied + head.max(second_layer).max(last_layer).max(embedding)
    }
}
