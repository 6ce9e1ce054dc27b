//! What a run will cost, from its configuration alone: parameters, FLOPs and memory.

mod activations;
mod collectives;
mod flops;
mod memory;
mod parameters;
mod scaling;
mod sharded;

pub use activations::{Activity, head_tile_rows};
pub use collectives::Traffic;
pub use flops::Flops;
pub use memory::{MemoryPlan, PolicyMemory, States};
pub use parameters::{Parameter, Parameters};
pub use scaling::{Machine, StepTime};

use crate::keys::Config;

/// The plan of a run, as one of its devices sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Number of scalars by kind of parameter.
    pub parameters: Parameters,
    /// Floating-point operations of a step.
    pub flops: Flops,
    /// Rows times their length, over all micro batches and ranks of a step; padding included.
    pub tokens_per_step: u64,
    /// Bytes on the device.
    pub memory: MemoryPlan,
    /// Bytes that it sends to other ranks in a step.
    pub traffic: Traffic,
}

impl Config {
    /// Parameters, FLOPs and memory of this run. No device is touched.
    pub fn plan(&self) -> Plan {
        let model = self.model();
        let parameters = Parameters::of(&model);
        let tokens = (self.rows_per_rank() * self.max_target_length) as u64;
        Plan {
            flops: Flops::of(self, &model),
            tokens_per_step: (tokens * self.gradient_accumulation_steps as u64)
                .saturating_mul(self.num_ranks() as u64),
            memory: MemoryPlan::of(self, &model, &parameters, tokens),
            traffic: Traffic::of(self, &parameters),
            parameters,
        }
    }
}
