//! The decoder: its operations, blocks, layer scan, rematerialisation, parameters and loss.
//!
//! [`Model`] holds the parameters and computes losses, gradients and logits. Gradients are computed layer by layer
//! ([`scan`]), each with a tape of its own ([`vjp`]) that recomputes what the remat policy didn't keep ([`remat`]). The numbers
//! come from [`ops`], the seam under which CPU and GPU implementations lie.

pub mod batch;
pub mod block;
pub mod decode;
pub mod device;
pub mod init;
pub mod loss;
pub mod ops;
pub mod params;
pub mod profile;
mod random;
pub mod remat;
pub mod scan;
pub mod shard;
pub mod tree;
pub mod vjp;
pub mod weights;

pub use batch::BatchTensors;
pub use loss::LossOutput;
pub use params::{LayerParams, Params};
pub use scan::{GradSink, HeadGradients, Model};
pub use shard::Shard;
pub use weights::{Part, Weights};

use mt_config::{DType, DecoderBlock, ModelConfig};

/// Burn's name of an element type.
pub fn burn_dtype(dtype: DType) -> burn::tensor::DType {
    match dtype {
        DType::Float32 => burn::tensor::DType::F32,
        DType::BFloat16 => burn::tensor::DType::BF16,
        DType::Float16 => burn::tensor::DType::F16,
    }
}

/// What queries are multiplied with before attention: 1/sqrt(head_dim) in the Qwen blocks. None in the Llama blocks, whose
/// query kernels carry that factor since their initialisation.
pub fn query_pre_attn_scalar(config: &ModelConfig) -> Option<f64> {
    match config.decoder_block {
        DecoderBlock::Llama2 | DecoderBlock::Mistral => None,
        DecoderBlock::Qwen2 | DecoderBlock::Qwen3 => Some((config.head_dim as f64).powf(-0.5)),
    }
}
