//! The grid of ranks.

use super::Group;

/// Where a rank stands among `data * fsdp` ranks: rank = `data_index * fsdp + fsdp_index`, so that the shards of one copy lie on
/// neighbouring ranks, within a node where they fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mesh {
    /// This rank, from 0.
    pub rank: usize,
    /// Copies of the model.
    pub data: usize,
    /// Shards of each.
    pub fsdp: usize,
}

impl Mesh {
    /// One rank alone.
    pub const SOLO: Self = Self { rank: 0, data: 1, fsdp: 1 };

    /// Ranks in a group.
    pub fn size(&self, group: Group) -> usize {
        match group {
            Group::World => self.data * self.fsdp,
            Group::Fsdp => self.fsdp,
            Group::Data => self.data,
        }
    }

    /// This rank's place in a group, from 0.
    pub fn index(&self, group: Group) -> usize {
        match group {
            Group::World => self.rank,
            Group::Fsdp => self.rank % self.fsdp,
            Group::Data => self.rank / self.fsdp,
        }
    }

    /// Whether this rank speaks for all: it logs, reports and commits checkpoints.
    pub fn is_first(&self) -> bool {
        self.rank == 0
    }
}
