//! Operations on bytes in main memory, by MPI's non-blocking collectives.
//!
//! Sums are made in the order of ranks: MPI hands every rank its part of all others' ([MPI_Ialltoall]), and the rank adds them
//! up, first to last. MPI's own reductions may add in any order, which may change with lengths, ranks and versions; it's
//! as many bytes as in a ring.
//!
//! [MPI_Ialltoall]: https://docs.open-mpi.org/en/v5.0.x/man-openmpi/man3/MPI_Ialltoall.3.html

use std::thread;
use std::time::{Duration, Instant};

use burn::tensor::TensorData;
use mpi::request::{Request, Scope, scope};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Root};

use super::super::{Operation, Reduce};
use super::watch::Watch;

/// For how long the thread looks at an operation without a pause: messages take microseconds.
const LOOK: Duration = Duration::from_micros(200);
/// The pauses after that: the cores are for computing.
const PAUSE: Duration = Duration::from_micros(50);

/// Bytes over all ranks when what's gathered must be cut: the pieces are put in their places afterwards.
const CUT: usize = 64 << 20;

/// How much is moved by one call of MPI.
#[derive(Debug, Clone, Copy)]
pub struct Pieces {
    /// Elements of a sum, over all ranks: what a rank holds of others' while it adds up.
    pub sum: usize,
    /// Bytes that are gathered or broadcast, over all ranks: MPI counts in 32 bits.
    pub copy: usize,
}

impl Default for Pieces {
    fn default() -> Self {
        Self { sum: 4 << 20, copy: 1 << 30 }
    }
}

/// A group of ranks.
pub(super) struct Channel<'a> {
    pub ranks: &'a SimpleCommunicator,
    pub pieces: Pieces,
    /// Has its turn between two looks at an operation.
    pub watch: &'a mut Watch,
}

impl Channel<'_> {
    /// `operation` on a tensor that it can be done on.
    pub(super) fn run(&mut self, operation: Operation, tensor: TensorData) -> TensorData {
        if tensor.num_elements() == 0 || self.size() == 1 {
            return tensor;
        }
        let dtype = tensor.dtype();
        match operation {
            Operation::AllReduce => {
                let mut tensor = tensor;
                self.all_reduce(tensor.as_mut_slice().expect(F32));
                tensor
            }
            Operation::ReduceScatter => {
                let sum = self.reduce_scatter(tensor.as_slice().expect(F32));
                let len = sum.len();
                TensorData::new(sum, [len])
            }
            Operation::AllGather => {
                let len = tensor.num_elements() * self.size();
                TensorData::from_bytes_vec(self.all_gather(tensor.as_bytes()), [len], dtype)
            }
            Operation::Broadcast { root } => {
                let (mut bytes, shape, dtype) = tensor.into_parts();
                self.broadcast(root, &mut bytes);
                TensorData::from_bytes(bytes, shape, dtype)
            }
        }
    }

    fn size(&self) -> usize {
        self.ranks.size() as usize
    }

    /// `[N n]` to the sums of this rank's n.
    fn reduce_scatter(&mut self, values: &[f32]) -> Vec<f32> {
        let ranks = self.size();
        let len = values.len() / ranks;
        let piece = (self.pieces.sum / ranks).clamp(1, len);
        let mut sums = vec![0.0; len];
        let mut parts = Vec::new();
        for (i, sum) in sums.chunks_mut(piece).enumerate() {
            let of_rank = |rank: usize| {
                let start = rank * len + i * piece;
                &values[start..start + sum.len()]
            };
            let to_ranks: Vec<f32> = (0..ranks).flat_map(of_rank).copied().collect();
            parts.resize(to_ranks.len(), 0.0);
            self.all_to_all(&to_ranks, &mut parts);
            add_up(&parts, sum);
        }
        sums
    }

    /// `[n]` to the sums of all ranks: each rank makes those of one part, all get them.
    fn all_reduce(&mut self, values: &mut [f32]) {
        let ranks = self.size();
        let (mut to_ranks, mut parts) = (Vec::new(), Vec::new());
        for values in values.chunks_mut(self.pieces.sum.max(1)) {
            let part = values.len().div_ceil(ranks);
            to_ranks.clear();
            to_ranks.extend_from_slice(values);
            to_ranks.resize(part * ranks, 0.0);
            parts.resize(part * ranks, 0.0);
            self.all_to_all(&to_ranks, &mut parts);
            let mut sum = vec![0.0; part];
            add_up(&parts, &mut sum);
            self.gather(&sum, &mut parts);
            values.copy_from_slice(&parts[..values.len()]);
        }
    }

    /// `[n]` to `[N n]`.
    fn all_gather(&mut self, bytes: &[u8]) -> Vec<u8> {
        let ranks = self.size();
        let mut all = vec![0; bytes.len() * ranks];
        if all.len() <= self.pieces.copy {
            self.gather(bytes, &mut all);
            return all;
        }
        let size = (self.pieces.copy.min(CUT) / ranks).max(1);
        let mut pieces = Vec::new();
        for (i, piece) in bytes.chunks(size).enumerate() {
            pieces.resize(piece.len() * ranks, 0);
            self.gather(piece, &mut pieces);
            for (rank, piece) in pieces.chunks_exact(piece.len()).enumerate() {
                let start = rank * bytes.len() + i * size;
                all[start..start + piece.len()].copy_from_slice(piece);
            }
        }
        all
    }

    fn broadcast(&mut self, root: usize, bytes: &mut [u8]) {
        let root = self.ranks.process_at_rank(root as i32);
        for piece in bytes.chunks_mut(self.pieces.copy) {
            scope(|scope| self.wait(root.immediate_broadcast_into(scope, piece)));
        }
    }

    /// Host values, combined in the order of ranks.
    pub(super) fn reduce(&mut self, how: Reduce, values: &mut [f64]) {
        if values.is_empty() {
            return;
        }
        let mut all = vec![0.0; values.len() * self.size()];
        scope(|scope| self.wait(self.ranks.immediate_all_gather_into(scope, &*values, &mut all[..])));
        let combine = |a: f64, b: f64| match how {
            Reduce::Sum => a + b,
            // A value that isn't a number must not be lost.
            Reduce::Max if a.is_nan() || b.is_nan() => f64::NAN,
            Reduce::Max => a.max(b),
        };
        let (first, others) = all.split_at(values.len());
        values.copy_from_slice(first);
        for of_rank in others.chunks_exact(values.len()) {
            values.iter_mut().zip(of_rank).for_each(|(value, &other)| *value = combine(*value, other));
        }
    }

    /// Bytes of rank 0; nobody leaves before all came.
    pub(super) fn first_bytes(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        self.wait(self.ranks.immediate_barrier());
        let first = self.ranks.process_at_rank(0);
        let mut len = [bytes.len() as u64];
        scope(|scope| self.wait(first.immediate_broadcast_into(scope, &mut len[..])));
        bytes.resize(len[0] as usize, 0);
        self.broadcast(0, &mut bytes);
        bytes
    }

    /// Waits until all ranks came.
    pub(super) fn barrier(&mut self) {
        self.wait(self.ranks.immediate_barrier());
    }

    fn all_to_all(&mut self, from: &[f32], to: &mut [f32]) {
        scope(|scope| self.wait(self.ranks.immediate_all_to_all_into(scope, from, to)));
    }

    fn gather<T: mpi::traits::Equivalence>(&mut self, from: &[T], to: &mut [T]) {
        scope(|scope| self.wait(self.ranks.immediate_all_gather_into(scope, from, to)));
    }

    fn wait<'a, D: ?Sized, S: Scope<'a>>(&mut self, request: Request<'a, D, S>) {
        let start = Instant::now();
        let mut request = request;
        while let Err(unfinished) = request.test() {
            request = unfinished;
            self.watch.turn();
            if start.elapsed() < LOOK {
                thread::yield_now();
            } else {
                thread::sleep(PAUSE);
            }
        }
    }
}

const F32: &str = "sums are asked for of float32 only, which is checked before";

/// `parts`: `[N, n]`, their sum over N, first to last: `[n]`.
fn add_up(parts: &[f32], sum: &mut [f32]) {
    let (first, others) = parts.split_at(sum.len());
    sum.copy_from_slice(first);
    for part in others.chunks_exact(sum.len()) {
        sum.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
    }
}

#[cfg(test)]
mod tests {
    use super::add_up;

    #[test]
    fn parts_are_added_first_to_last() {
        // In another order, 1e8 would swallow the ones.
        let parts = [1.0, 1e8, 1.0, 1.0, 1e8, -1e8];
        let mut sum = [0.0; 2];
        add_up(&parts, &mut sum);
        assert_eq!(sum, [1.0 + 1.0 + 1e8, 1e8 + 1.0 - 1e8]);
    }
}
