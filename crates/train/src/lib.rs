//! The training loop and what stands around it: command line, log, run folder, schedule, optimizer, checkpoints, metrics,
//! profiles and the report.

pub mod checkpoint;
pub mod cli;
pub mod collective;
pub mod convert;
pub mod decode;
pub mod devices;
pub mod eval;
pub mod log;
pub mod memory;
pub mod metrics;
pub mod optim;
pub mod profile;
pub mod report;
pub mod run;
pub mod schedule;
pub mod shard;
