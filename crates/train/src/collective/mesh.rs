//! The grid of ranks.

use std::ops::Range;

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

    /// Length of a shard of `len` numbers: the last shards may hold fewer, and zeros after them.
    pub fn chunk(&self, len: usize) -> usize {
        len.div_ceil(self.fsdp)
    }

    /// Which of `len` numbers this rank's shard holds.
    pub fn range(&self, len: usize) -> Range<usize> {
        let chunk = self.chunk(len);
        let start = self.index(Group::Fsdp) * chunk;
        start.min(len)..(start + chunk).min(len)
    }

    /// Whether this rank speaks for all: it logs, reports and commits checkpoints.
    pub fn is_first(&self) -> bool {
        self.rank == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shards_are_the_whole_cut_in_order(fsdp in 1usize..9, data in 1usize..4, len in 0usize..50) {
            let of = |rank| Mesh { rank, data, fsdp };
            for copy in 0..data {
                let mut end = 0;
                for rank in copy * fsdp..(copy + 1) * fsdp {
                    let range = of(rank).range(len);
                    prop_assert_eq!(range.start, end.min(len));
                    prop_assert!(range.len() <= of(rank).chunk(len));
                    prop_assert_eq!(of(rank).index(Group::Data), copy);
                    end = range.end;
                }
                prop_assert_eq!(end, len);
            }
        }
    }
}
