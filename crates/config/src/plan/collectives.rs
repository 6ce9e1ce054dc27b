//! Bytes that a rank sends in a training step, by collective.
//!
//! In a ring of N ranks each sends `(N - 1) / N` of a tensor to gather it or to reduce it to shards, and twice that to sum it up
//! everywhere. The schedule, with F shards of each of D copies: per micro batch every layer is gathered in the forward and again
//! in the backward, the embedding and the head once (a tied head is the embedding once more), in `weight_dtype`; gradients are
//! reduced to float32 shards as they come. Once per step the shards of the copies are summed up.

use super::activations::bytes_of;
use super::parameters::{Parameter, Parameters};
use crate::keys::Config;

/// Bytes that each rank sends per step. Values of the host, such as losses, aren't counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Weights gathered over fsdp before they're used in the forward.
    pub gather_forward: u64,
    /// Weights gathered over fsdp for the backward.
    pub gather_backward: u64,
    /// Gradients reduced to shards over fsdp.
    pub reduce_scatter: u64,
    /// Gradients summed up over copies.
    pub all_reduce: u64,
}

impl Traffic {
    pub(super) fn of(config: &Config, parameters: &Parameters) -> Self {
        let Moves { embedding, layer, head } = Moves::of(config, parameters);
        let [layers, micro_batches] =
            [config.num_decoder_layers(), config.gradient_accumulation_steps].map(|n| n as u64);
        // Gradients that are collected in host memory are whole sums: they can't wait for the last micro batch.
        let sums = if config.offloads_optimizer() { micro_batches } else { 1 };
        let all = |of: &dyn Fn(&Moved) -> u64| of(&embedding) + layers * of(&layer) + of(&head);
        Self {
            gather_forward: micro_batches * all(&|moved| moved.gather),
            gather_backward: micro_batches * layers * layer.gather,
            reduce_scatter: micro_batches * all(&|moved| moved.reduce_scatter),
            all_reduce: sums * all(&|moved| moved.all_reduce),
        }
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.gather_forward + self.gather_backward + self.reduce_scatter + self.all_reduce
    }
}

/// Bytes that a rank sends for one part of the model, each collective once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Moved {
    pub(super) gather: u64,
    pub(super) reduce_scatter: u64,
    pub(super) all_reduce: u64,
}

/// The same for the parts that are moved at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moves {
    pub(super) embedding: Moved,
    /// One layer.
    pub(super) layer: Moved,
    /// The last norm and the output projection.
    pub(super) head: Moved,
}

impl Moves {
    pub(super) fn of(config: &Config, parameters: &Parameters) -> Self {
        let degrees = config.mesh();
        let (data, fsdp) = (degrees.data as u64, degrees.fsdp as u64);
        let weight = bytes_of(config.weight_dtype);
        // A tensor is filled up with zeros so that all shards are as long.
        let shard = |kind: &Parameter| kind.shard_len(fsdp);
        let gather = |kind: &Parameter| shard(kind) * weight * (fsdp - 1);
        let moved = |kind: &Parameter| Moved {
            gather: gather(kind),
            reduce_scatter: shard(kind) * 4 * (fsdp - 1),
            all_reduce: 2 * shard(kind) * 4 * (data - 1) / data,
        };
        let sum = |belongs: &dyn Fn(&Parameter) -> bool| {
            let kinds = parameters.0.iter().filter(|kind| belongs(kind));
            kinds.map(moved).fold(Moved::default(), |a, b| Moved {
                gather: a.gather + b.gather,
                reduce_scatter: a.reduce_scatter + b.reduce_scatter,
                all_reduce: a.all_reduce + b.all_reduce,
            })
        };
        let embedding = sum(&Parameter::is_embedding);
        let mut head = sum(&|kind| !kind.in_layers && !kind.is_embedding());
        if config.logits_via_embedding {
            head.gather += embedding.gather;
        }
        Self { embedding, layer: sum(&|kind| kind.in_layers), head }
    }
}
