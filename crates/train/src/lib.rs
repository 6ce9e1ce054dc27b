//! The training loop and what stands around it: command line, log, run folder, schedule, optimizer, checkpoints, metrics.

pub mod checkpoint;
pub mod cli;
pub mod devices;
pub mod log;
pub mod memory;
pub mod metrics;
pub mod optim;
pub mod run;
pub mod schedule;
