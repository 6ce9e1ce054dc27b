//! A model in shards: whole weights for as long as they're computed with, sums of gradients for what a rank holds.
//!
//! With `fsdp` ranks each holds one [`Shard`] of every parameter and of its moments, and updates nothing else. A pass over the
//! layers [gathers](Gathered) one part at a time, the next while one is computed; its gradients are [reduced](ReducingSink) to the
//! rank's shard while the next ones are computed. Without `fsdp` every rank holds all and gradients are summed over the copies.

mod gather;
mod reduce;

pub use gather::{Gathered, whole};
pub use reduce::ReducingSink;

use mt_model::Shard;

use crate::collective::{Group, Mesh};

/// The part of the parameters that a rank holds.
pub fn shard_of(mesh: Mesh) -> Shard {
    Shard { index: mesh.index(Group::Fsdp), count: mesh.size(Group::Fsdp) }
}
