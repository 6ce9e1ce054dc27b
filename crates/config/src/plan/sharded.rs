//! The peak of a step whose parameters, gradients and moments are in shards.

use super::activations::{Activity, bytes_of};
use super::parameters::{Parameter, Parameters};
use crate::keys::Config;

/// Bytes of the parts of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) head: u64,
    /// All layers.
    pub(super) layers: u64,
    pub(super) embedding: u64,
}

impl Parts {
    /// Sums of `bytes` over the kinds of each part.
    pub(super) fn of(parameters: &Parameters, bytes: impl Fn(&Parameter) -> u64) -> Self {
        let sum = |belongs: &dyn Fn(&Parameter) -> bool| {
            parameters.0.iter().filter(|kind| belongs(kind)).map(&bytes).sum()
        };
        Self {
            head: sum(&|kind| !kind.in_layers && !kind.is_embedding()),
            layers: sum(&|kind| kind.in_layers),
            embedding: sum(&Parameter::is_embedding),
        }
    }

    pub(super) fn all(&self) -> u64 {
        self.head + self.layers + self.embedding
    }
}

/// What passes through a device that holds shards: whole weights for a while, whole gradients until they're reduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sharded {
    /// Whole weights, in `weight_dtype`.
    weights: Parts,
    /// Whole gradients, float32.
    gradients: Parts,
    /// This rank's shards of the gradients, float32.
    shards: Parts,
    num_layers: u64,
    tied: bool,
    accumulates: bool,
    offloads: bool,
}

impl Sharded {
    pub(super) fn of(config: &Config, parameters: &Parameters) -> Self {
        let (fsdp, weight) = (config.mesh().fsdp as u64, bytes_of(config.weight_dtype));
        Self {
            weights: Parts::of(parameters, |kind| kind.count * weight),
            gradients: Parts::of(parameters, |kind| kind.count * 4),
            shards: Parts::of(parameters, |kind| kind.shards(fsdp) * 4),
            num_layers: config.num_decoder_layers().max(1) as u64,
            tied: config.logits_via_embedding,
            accumulates: config.gradient_accumulation_steps > 1,
            offloads: config.offloads_optimizer(),
        }
    }

    /// Bytes at the dearest moment, beside the shards of weights and moments; `head_working` are those at work in the head.
    ///
    /// Two layers are whole, the one that is computed with and the next; so are the gradients of two, those that are made and
    /// those that are on their way to shards.
    pub(super) fn peak(&self, activity: &Activity, head_working: u64) -> u64 {
        let layers = self.num_layers;
        let layer = |of: u64| of / layers;
        let gathered = |count: u64| layer(self.weights.layers) * count.min(layers);
        let output = self.weights.head + if self.tied { self.weights.embedding } else { 0 };
        // A tied head's gradient of the embedding waits, whole, for the other one.
        let tied = if self.tied { self.gradients.embedding } else { 0 };

        let first = self.weights.embedding + gathered(1);
        let head = output + gathered(1) + tied + self.gradients.head + activity.kept + head_working;
        let backward = |done: u64| {
            let above = if done == 0 { self.gradients.head } else { layer(self.gradients.layers) };
            let kept = activity.kept * (layers - done) / layers;
            let whole = gathered(2.min(layers - done)) + above + layer(self.gradients.layers) + tied;
            whole + kept + activity.working + self.shards_after(done)
        };
        let embedding =
            self.gradients.embedding + tied + layer(self.gradients.layers) + self.shards_after(layers);
        let earlier = if self.accumulates { self.shards_after(layers) } else { 0 };
        let moments = [first + earlier, head + earlier, backward(0), backward(layers - 1), embedding];
        moments.into_iter().max().unwrap_or(0)
    }

    /// Shards of gradients on the device when `done` layers have theirs; all, and those of one more layer, where earlier micro
    /// batches have left theirs. With offloading three layers' shards at most: one that is made, one that waits, one that is copied.
    fn shards_after(&self, done: u64) -> u64 {
        let per_layer = self.shards.layers / self.num_layers;
        match (self.offloads, self.accumulates) {
            (true, _) => 3 * per_layer,
            (false, true) => self.shards.all() + per_layer,
            (false, false) if done == self.num_layers => self.shards.all(),
            (false, false) => self.shards.head + per_layer * done,
        }
    }
}
