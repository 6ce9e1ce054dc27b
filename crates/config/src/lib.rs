//! Flat MaxText and Primus YAML to a typed, resolved configuration.

mod model;

pub use model::{
    Activation, Activations, AttentionKernel, DType, DecoderBlock, ModelConfig, Placement, RematPolicy, Rope,
};
