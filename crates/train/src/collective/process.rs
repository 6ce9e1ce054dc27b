//! Which of the processes that were started together this one is: fixed at launch, known everywhere.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

static THIS: OnceLock<Launched> = OnceLock::new();
static STEP: AtomicU64 = AtomicU64::new(0);

/// What doesn't change while a process lives.
#[derive(Debug, Clone, Copy)]
struct Launched {
    rank: usize,
    ranks: usize,
    /// By the clock of rank 0, in all processes.
    at: SystemTime,
}

/// Says who this process is, before anything asks. Once: a second call changes nothing.
#[cfg_attr(not(feature = "mpi"), expect(dead_code, reason = "without it a process is always alone"))]
pub(super) fn launched(rank: usize, ranks: usize, since_1970: Duration) {
    let _ = THIS.set(Launched { rank, ranks, at: SystemTime::UNIX_EPOCH + since_1970 });
}

/// This process's rank; 0 when it's alone.
pub fn rank() -> usize {
    THIS.get().map_or(0, |this| this.rank)
}

/// This process's rank if there are others, for names of what each of them writes.
pub fn rank_among_others() -> Option<usize> {
    THIS.get().filter(|this| this.ranks > 1).map(|this| this.rank)
}

/// When the processes were started, the same time in all of them; none when this one is alone.
pub fn launched_at() -> Option<SystemTime> {
    THIS.get().filter(|this| this.ranks > 1).map(|this| this.at)
}

/// Notes the step that this process is at, which others name when it dies.
pub fn at_step(step: u64) {
    STEP.store(step, Ordering::Relaxed);
}

/// The last step that was noted.
#[cfg_attr(not(feature = "mpi"), expect(dead_code, reason = "told to other ranks"))]
pub(super) fn step() -> u64 {
    STEP.load(Ordering::Relaxed)
}
