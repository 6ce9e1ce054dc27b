//! How long a step takes on many devices: a model of computing and moving at once, not a measurement.
//!
//! Per layer, what is moved is moved while something else is computed, so a layer takes the longer of the two:
//! in the forward, computing it or gathering the next one; in the backward, computing it (and again what remat dropped), or gathering
//! the layer below and reducing the gradients of the layer above. What nothing hides is added: gathering the embedding and the
//! first layer, reducing the first layer and the embedding. Operations of a rank follow one another.
//!
//! Left out: the optimizer's update, norms and other elementwise work, reading data, stragglers, congestion.

use super::Plan;
use super::collectives::{Moved, Moves};
use crate::keys::Config;

/// What is assumed of a machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine {
    /// Operations per second of a device while it computes.
    pub flops: f64,
    /// Bytes per second that a device sends in a ring within its node.
    pub node_bandwidth: f64,
    /// Bytes per second that a device's own network card sends.
    pub nic_bandwidth: f64,
    /// Seconds that a collective takes beside what it moves.
    pub latency: f64,
}

impl Machine {
    /// A node of eight MI300X. The device computes in bfloat16 at 34 % of its peak of 1307 TFLOP/s; xGMI carries two thirds of
    /// the 448 GB/s of its seven links; a card of 400 Gb/s carries nine tenths of that.
    pub const MI300X: Self =
        Self { flops: 450e12, node_bandwidth: 300e9, nic_bandwidth: 45e9, latency: 30e-6 };

    /// Bytes per second that a rank of a group sends, where `members` of the group are on its node, or `None` where all are. A
    /// ring crosses from node to node through the cards of all its members there.
    fn bandwidth(&self, members: Option<usize>) -> f64 {
        members.map_or(self.node_bandwidth, |members| {
            self.node_bandwidth.min(members as f64 * self.nic_bandwidth)
        })
    }
}

/// Seconds of a training step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepTime {
    /// Computing alone.
    pub compute: f64,
    /// Moving alone.
    pub communication: f64,
    /// Both, as far as they can be done at once.
    pub step: f64,
}

impl StepTime {
    /// Of `config`, which is resolved for its ranks ([`Config::for_ranks`]), on `machine`.
    pub fn of(config: &Config, machine: &Machine) -> Self {
        let plan = config.plan();
        let parts = Parts::of(config, &plan, machine);
        let micro_batches = config.gradient_accumulation_steps as f64;
        // Only the last micro batch sums over the copies, unless gradients are collected on the host.
        let last = if config.offloads_optimizer() { micro_batches } else { 1.0 };
        let sum = |of: &dyn Fn(&Parts) -> f64| {
            (micro_batches - last) * of(&parts.without_all_reduce()) + last * of(&parts)
        };
        Self {
            compute: micro_batches * parts.compute(),
            communication: sum(&Parts::communication),
            step: sum(&Parts::micro_batch),
        }
    }

    /// The share of the step in which the device computes.
    pub fn efficiency(&self) -> f64 {
        self.compute / self.step
    }
}

/// Seconds that the collectives of one part of the model take.
#[derive(Debug, Clone, Copy)]
struct Seconds {
    gather: f64,
    reduce_scatter: f64,
    all_reduce: f64,
}

impl Seconds {
    fn reduce(&self) -> f64 {
        self.reduce_scatter + self.all_reduce
    }
}

/// A micro batch in parts.
#[derive(Debug, Clone, Copy)]
struct Parts {
    layers: f64,
    /// Computing a layer forward.
    forward: f64,
    /// And backward, with what is computed again.
    backward: f64,
    /// Computing the head, both ways.
    head_compute: f64,
    embedding: Seconds,
    layer: Seconds,
    head: Seconds,
}

impl Parts {
    fn of(config: &Config, plan: &Plan, machine: &Machine) -> Self {
        let model = config.model();
        let layers = model.num_decoder_layers as f64;
        let micro_batches = config.gradient_accumulation_steps as f64;
        let tokens = (config.rows_per_rank() * config.max_target_length) as f64;
        let head = 3.0 * 2.0 * tokens * model.emb_dim as f64 * model.vocab_size as f64;
        let layer = (plan.flops.total() / micro_batches - head) / layers;
        let policy = plan.memory.policies.iter().find(|planned| planned.policy == config.remat_policy);
        let again = policy.map_or(0.0, |planned| planned.activity.recomputed_flops) / micro_batches / layers;

        let (ranks, mesh) = (config.ranks(), config.mesh());
        // Shards of a copy are on neighbouring ranks; copies are that many ranks apart.
        let within_node = mesh.fsdp <= ranks.per_node && ranks.per_node.is_multiple_of(mesh.fsdp);
        let over_shards = machine.bandwidth((!within_node).then_some(ranks.per_node.min(mesh.fsdp)));
        let copies_on_node = (ranks.per_node / mesh.fsdp).max(1);
        let over_copies = machine.bandwidth((mesh.data > copies_on_node).then_some(copies_on_node));
        let seconds = |bytes: u64, bandwidth: f64| match bytes {
            0 => 0.0,
            bytes => bytes as f64 / bandwidth + machine.latency,
        };
        let part = |moved: &Moved| Seconds {
            gather: seconds(moved.gather, over_shards),
            reduce_scatter: seconds(moved.reduce_scatter, over_shards),
            all_reduce: seconds(moved.all_reduce, over_copies),
        };
        let moves = Moves::of(config, &plan.parameters);
        Self {
            layers,
            forward: layer / 3.0 / machine.flops,
            backward: (layer * 2.0 / 3.0 + again) / machine.flops,
            head_compute: head / machine.flops,
            embedding: part(&moves.embedding),
            layer: part(&moves.layer),
            head: part(&moves.head),
        }
    }

    fn without_all_reduce(&self) -> Self {
        let without = |part: Seconds| Seconds { all_reduce: 0.0, ..part };
        Self {
            embedding: without(self.embedding),
            layer: without(self.layer),
            head: without(self.head),
            ..*self
        }
    }

    fn compute(&self) -> f64 {
        self.layers * (self.forward + self.backward) + self.head_compute
    }

    fn communication(&self) -> f64 {
        let gathers = self.embedding.gather + 2.0 * self.layers * self.layer.gather + self.head.gather;
        gathers + self.embedding.reduce() + self.layers * self.layer.reduce() + self.head.reduce()
    }

    fn micro_batch(&self) -> f64 {
        let (gather, reduce) = (self.layer.gather, self.layer.reduce());
        let first = self.embedding.gather + gather;
        let forward = (self.layers - 1.0) * self.forward.max(gather) + self.forward.max(self.head.gather);
        let head = self.head_compute.max(gather);
        // The topmost layer is computed while the head's gradients are reduced, the lowest one gathers nothing.
        let backward = if self.layers > 1.0 {
            self.backward.max(gather + self.head.reduce())
                + (self.layers - 2.0) * self.backward.max(gather + reduce)
                + self.backward.max(reduce)
        } else {
            self.backward.max(self.head.reduce())
        };
        first + forward + head + backward + reduce + self.embedding.reduce()
    }
}
