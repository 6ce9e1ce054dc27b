//! Why ranks can't go on together.

/// A collective that failed; its rank can't go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank}: {operation}: {reason}")]
pub struct CollectiveError {
    /// The rank that says so.
    pub rank: usize,
    /// What it was about.
    pub operation: String,
    /// In the library's words, or ours.
    pub reason: String,
}
