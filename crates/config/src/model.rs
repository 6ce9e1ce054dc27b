//! What the model room needs to know, resolved: the one place where model shapes live.

use crate::keys::choices::Quantization;

/// Element type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision.
    Float32,
    /// bfloat16: the exponent range of float32 with 8 bits of precision.
    BFloat16,
    /// IEEE half precision.
    Float16,
}

/// Which decoder layer family to build (`decoder_block`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DecoderBlock {
    /// Llama 2, 3, 3.1 and 3.3.
    Llama2,
    /// Mistral 7B.
    Mistral,
    /// Qwen 2.5: bias on the query, key and value projections.
    Qwen2,
    /// Qwen 3 dense: RMSNorm on every query and key head.
    Qwen3,
}

/// One branch of the MLP's product (`mlp_activations`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// Gaussian error linear unit, tanh form (as `jax.nn.gelu`).
    Gelu,
    /// `max(x, 0)`.
    Relu,
    /// Identity.
    Linear,
}

/// Which attention implementation runs (`attention`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttentionKernel {
    /// Scores are materialised: the reference on every device.
    DotProduct,
    /// Blocked, memory linear in length.
    Flash,
}

/// Rotary position embedding (`rope_*`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    /// Pairs are (2i, 2i+1) when true (`rope_type: llama3.1`), (i, i + head_dim/2) when false.
    pub interleaved: bool,
    /// Llama 3.1 frequency scaling (factor 8, low 1, high 4, original length 8192).
    pub llama31_scaling: bool,
    /// Smallest timescale, 1 for every known model.
    pub min_timescale: f64,
    /// Base, theta.
    pub max_timescale: f64,
    /// Multiplies every timescale.
    pub linear_scaling_factor: f64,
}

/// Where a named activation of a layer stays between forward and backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Not kept: computed again in the backward pass.
    Remat,
    /// Kept in device memory.
    Device,
    /// Kept in host memory.
    Offload,
}

/// MaxText's checkpoint names of a layer's activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are MaxText's keys")]
pub enum Activations {
    DecoderLayerInput,
    QueryProj,
    KeyProj,
    ValueProj,
    Context,
    OutProj,
    Mlpwi0,
    Mlpwi1,
    Mlpwo,
}

impl Activations {
    /// All names, in the order in which a layer computes them.
    pub const ALL: [Self; 9] = [
        Self::DecoderLayerInput,
        Self::QueryProj,
        Self::KeyProj,
        Self::ValueProj,
        Self::Context,
        Self::OutProj,
        Self::Mlpwi0,
        Self::Mlpwi1,
        Self::Mlpwo,
    ];
}

/// A remat policy as a table: name of an activation to where it stays (`remat_policy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RematPolicy {
    table: [Placement; Activations::ALL.len()],
}

impl RematPolicy {
    /// Builds a policy from where each name stays; the layer input itself is always kept.
    pub fn new(placement: impl Fn(Activations) -> Placement) -> Self {
        Self { table: Activations::ALL.map(placement) }
    }

    /// Where `name` stays.
    pub fn placement(&self, name: Activations) -> Placement {
        self.table[name as usize]
    }
}

/// Everything that the model room reads. Built by `Config::model()`, immutable afterwards.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Decoder layer family.
    pub decoder_block: DecoderBlock,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Model width E.
    pub emb_dim: usize,
    /// MLP hidden width M.
    pub mlp_dim: usize,
    /// Query heads Hq.
    pub num_query_heads: usize,
    /// Key and value heads Hkv; divides `num_query_heads`.
    pub num_kv_heads: usize,
    /// Longest row, hence one more than the largest position.
    pub max_target_length: usize,
    /// Width D of a head; even.
    pub head_dim: usize,
    /// Layers L.
    pub num_decoder_layers: usize,
    /// The gate branch of the MLP; the other branch is linear.
    pub mlp_activation: Activation,
    /// Epsilon of every RMSNorm.
    pub normalization_layer_epsilon: f64,
    /// Rotary position embedding.
    pub rope: Rope,
    /// Bias on the query, key and value projections.
    pub attention_bias: bool,
    /// RMSNorm on every query and key head before RoPE.
    pub use_qk_norm: bool,
    /// The output head is the embedding table.
    pub logits_via_embedding: bool,
    /// A tied head's kernel is the embedding rounded to bfloat16, as in MaxText (`tied_head_in_bf16`).
    pub tied_head_in_bf16: bool,
    /// With tied embeddings divide the logits by sqrt(E).
    pub normalize_embedding_logits: bool,
    /// Cap on attention scores, `cap * tanh(score / cap)`.
    pub attn_logits_soft_cap: Option<f64>,
    /// Cap on output logits.
    pub final_logits_soft_cap: Option<f64>,
    /// Keys older than this many positions are not seen.
    pub sliding_window_size: Option<usize>,
    /// Attention implementation.
    pub attention: AttentionKernel,
    /// Look up embeddings by a one-hot product instead of a gather.
    pub use_iota_embed: bool,
    /// Compute dtype.
    pub dtype: DType,
    /// Stored weights' dtype.
    pub weight_dtype: DType,
    /// Matrix products of the decoder layers.
    pub quantization: Quantization,
    /// Query-key products in float32.
    pub float32_qk_product: bool,
    /// Attention softmax in float32.
    pub float32_logits: bool,
    /// Output projection in float32.
    pub logits_dot_in_fp32: bool,
    /// Logits cast to float32 before the loss.
    pub cast_logits_to_fp32: bool,
    /// Adds multiplier * log(Z)^2 per token to the loss.
    pub z_loss_multiplier: f64,
    /// Number of chunks of rows in which the loss is computed, 1 = the kernel's own tiles.
    pub num_vocab_tiling: usize,
    /// Dropout rate; 0 when `enable_dropout` is false.
    pub dropout_rate: f64,
    /// Parameters of all layers are stacked in the saved tree.
    pub scan_layers: bool,
    /// Axis of the layers in stacked parameters.
    pub param_scan_axis: usize,
    /// Where each activation stays between forward and backward.
    pub remat_policy: RematPolicy,
    /// Variance scale of dense kernels.
    pub dense_init_scale: f64,
    /// Seed of the initial weights.
    pub init_weights_seed: u64,
}
