//! What ranks do together: sums, gathered shards, values from one to all.
//!
//! Ranks are processes, one per device, launched by `mpirun` or Slurm. They form a grid of `data` x `fsdp` ([`Mesh`]): ranks that
//! differ in `fsdp` alone hold the shards of one copy of the model, ranks that differ in `data` alone hold the same shard.
//!
//! An operation on tensors is started and waited for later ([`Pending`]), so that what is moved is moved while something else is
//! computed. All ranks of a group start the same operations in the same order.

use burn::tensor::Tensor;

mod error;
mod launch;
mod launcher;
mod mesh;
#[cfg(feature = "mpi")]
mod mpi;
mod process;
pub mod rccl;
mod solo;

pub use error::CollectiveError;
pub use launch::{LaunchError, Place, World, launch};
pub use mesh::Mesh;
#[cfg(feature = "mpi")]
#[doc(hidden)]
pub use mpi::Pieces;
pub use process::{at_step, launched_at, rank, rank_among_others};
pub use solo::Solo;

/// Which ranks take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Group {
    /// All of them.
    World,
    /// Those that hold the other shards of this rank's copy of the model.
    Fsdp,
    /// Those that hold the same shard of other copies.
    Data,
}

/// What is done with tensors. N is the number of ranks in the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// `[n]` to `[n]`: the sum over the group, the same bits on each rank. float32.
    AllReduce,
    /// `[N n]` to `[n]`: this rank's part of the sum over the group. float32.
    ReduceScatter,
    /// `[n]` to `[N n]`: the parts of all ranks, in their order. Any element type.
    AllGather,
    /// `[n]` to `[n]`: that of the group's rank `root`. Any element type.
    Broadcast {
        /// A rank in the group, from 0.
        root: usize,
    },
}

/// How host values are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduce {
    /// Added up.
    Sum,
    /// The largest.
    Max,
}

/// Ranks that compute together, as one of them sees it.
pub trait Collective {
    /// Where this rank stands in the grid.
    fn mesh(&self) -> Mesh;

    /// Starts `operation` on each of `tensors`; the results come in their order. Tensors must be contiguous and lie on the device
    /// that this rank computes on. Their memory may be used for the results.
    ///
    /// # Errors
    /// [`CollectiveError`]: a rank is gone, or a library failed. The run can't go on then.
    fn start(
        &self,
        group: Group,
        operation: Operation,
        tensors: Vec<Tensor<1>>,
    ) -> Result<Pending, CollectiveError>;

    /// Combines values of all ranks, element by element; waits for it.
    ///
    /// # Errors
    /// As [`Collective::start`].
    fn reduce(&self, how: Reduce, values: &mut [f64]) -> Result<(), CollectiveError>;

    /// Bytes of rank 0 on every rank; `bytes` is only looked at there. Waits for it, so that it's a barrier too.
    ///
    /// # Errors
    /// As [`Collective::start`].
    #[expect(clippy::wrong_self_convention, reason = "it's from the first rank, not a conversion")]
    fn from_first(&self, bytes: Vec<u8>) -> Result<Vec<u8>, CollectiveError>;

    /// Bytes that this process has handed to collectives of tensors so far, by the formulas of [`Operation::bytes_moved`].
    fn bytes_moved(&self) -> u64;
}

impl Operation {
    /// For messages and traces.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Broadcast { .. } => "broadcast",
        }
    }

    /// Bytes of the whole tensor, of which a rank hands in `bytes`.
    pub fn whole(self, bytes: usize, ranks: usize) -> usize {
        match self {
            Self::AllGather => bytes * ranks,
            Self::AllReduce | Self::ReduceScatter | Self::Broadcast { .. } => bytes,
        }
    }

    /// Bytes that each rank sends for one tensor of `bytes` (of its whole, unsharded length) among `ranks` in a ring, the least
    /// that can do: `2 (N - 1) / N` of it for a sum, `(N - 1) / N` for either half of one, and as much for a broadcast.
    pub fn bytes_moved(self, bytes: u64, ranks: usize) -> u64 {
        let n = ranks as u64;
        match self {
            Self::AllReduce => 2 * bytes * (n - 1) / n,
            Self::ReduceScatter | Self::AllGather | Self::Broadcast { .. } => bytes * (n - 1) / n,
        }
    }
}

/// An operation that goes on.
#[must_use = "a collective must be waited for"]
pub struct Pending(Box<dyn FnOnce() -> Result<Vec<Tensor<1>>, CollectiveError>>);

impl Pending {
    /// One that `wait` completes.
    pub fn new(wait: impl FnOnce() -> Result<Vec<Tensor<1>>, CollectiveError> + 'static) -> Self {
        Self(Box::new(wait))
    }

    /// The results, once they're there.
    ///
    /// # Errors
    /// As [`Collective::start`].
    pub fn wait(self) -> Result<Vec<Tensor<1>>, CollectiveError> {
        (self.0)()
    }
}
