//! The training loop's state and what it leaves behind: schedule, optimizer, checkpoints, metrics.

pub mod metrics;
pub mod schedule;
