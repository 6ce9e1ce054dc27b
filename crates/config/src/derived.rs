//! Values that follow from the keys.

use std::path::PathBuf;

use crate::keys::Config;
use crate::keys::choices::{AttentionChoice, AttentionType, Hardware, LogLevel, RopeType};
use crate::layers::Setting;
use crate::load::Note;
use crate::model::{Activation, AttentionKernel, DType, ModelConfig, Rope};
use crate::node::Place;

/// What `global_parameter_scale` multiplies, as powers of two.
struct Scale {
    layers: u32,
    heads_and_mlp: u32,
    width: u32,
}

impl Scale {
    /// Scale 2^(3q + r): layers grow first, then width, then heads and MLP.
    fn of(global_parameter_scale: usize) -> Self {
        let log = global_parameter_scale.max(1).ilog2();
        let (third, rest) = (log / 3, log % 3);
        Self { layers: third, heads_and_mlp: third + u32::from(rest > 0), width: third + u32::from(rest > 1) }
    }
}

fn scaled(base: usize, power: u32) -> usize {
    base.saturating_mul(1usize.checked_shl(power).unwrap_or(usize::MAX))
}

impl Config {
    /// Model width E.
    pub fn emb_dim(&self) -> usize {
        scaled(self.base_emb_dim, Scale::of(self.global_parameter_scale).width)
    }

    /// MLP hidden width M.
    pub fn mlp_dim(&self) -> usize {
        scaled(self.base_mlp_dim, Scale::of(self.global_parameter_scale).heads_and_mlp)
    }

    /// Query heads Hq.
    pub fn num_query_heads(&self) -> usize {
        scaled(self.base_num_query_heads, Scale::of(self.global_parameter_scale).heads_and_mlp)
    }

    /// Key and value heads Hkv.
    pub fn num_kv_heads(&self) -> usize {
        scaled(self.base_num_kv_heads, Scale::of(self.global_parameter_scale).heads_and_mlp)
    }

    /// Layers L.
    pub fn num_decoder_layers(&self) -> usize {
        scaled(self.base_num_decoder_layers, Scale::of(self.global_parameter_scale).layers)
    }

    /// Rows that one rank computes per micro batch. A batch below one row per device becomes one row,
    /// where MaxText would load one and train on none.
    pub fn rows_per_rank(&self) -> usize {
        (self.per_device_batch_size as usize).max(1)
    }

    /// Rows that one rank evaluates at a time.
    pub fn eval_rows_per_rank(&self) -> usize {
        let per_device = self.eval_per_device_batch_size;
        if per_device > 0.0 { (per_device as usize).max(1) } else { self.rows_per_rank() }
    }

    /// Rows that all ranks compute per micro batch.
    pub fn micro_batch_size_to_train_on(&self) -> usize {
        self.rows_per_rank().saturating_mul(self.num_ranks())
    }

    /// Rows per optimizer update, over all ranks.
    pub fn global_batch_size_to_train_on(&self) -> usize {
        self.micro_batch_size_to_train_on().saturating_mul(self.gradient_accumulation_steps)
    }

    /// Rows that the loader hands out per step, over all ranks.
    pub fn global_batch_size_to_load(&self) -> usize {
        let expansion =
            if self.expansion_factor_real_data > 0.0 { self.expansion_factor_real_data } else { 1.0 };
        let rows = self.micro_batch_size_to_train_on() as f64 * expansion;
        (rows as usize).max(1).saturating_mul(self.gradient_accumulation_steps)
    }

    /// Rows per evaluation batch, over all ranks.
    pub fn global_batch_size_to_eval_on(&self) -> usize {
        self.eval_rows_per_rank().saturating_mul(self.num_ranks())
    }

    /// Dtype of the first moment (`mu_dtype`, or `weight_dtype` where it is empty).
    pub fn moment_dtype(&self) -> DType {
        self.mu_dtype.unwrap_or(self.weight_dtype)
    }

    /// Whether moments, and gradients once they are complete, are in host memory (`optimizer_memory_host_offload`): on the CPU
    /// they are there anyway.
    pub fn offloads_optimizer(&self) -> bool {
        self.optimizer_memory_host_offload && self.hardware != Hardware::Cpu
    }

    /// Level of the log file.
    pub fn file_log_level(&self) -> LogLevel {
        self.sink_level.unwrap_or(self.file_sink_level)
    }

    /// Level of the log on stderr.
    pub fn stderr_log_level(&self) -> LogLevel {
        self.sink_level.unwrap_or(self.stderr_sink_level)
    }

    /// The run's folder, `base_output_directory/run_name`.
    pub fn run_dir(&self) -> PathBuf {
        PathBuf::from(&self.base_output_directory).join(&self.run_name)
    }

    /// Where checkpoints go.
    pub fn checkpoint_dir(&self) -> PathBuf {
        self.run_dir().join("checkpoints")
    }

    /// Where TensorBoard files go.
    pub fn tensorboard_dir(&self) -> PathBuf {
        self.run_dir().join("tensorboard")
    }

    /// Where metric files go.
    pub fn metrics_dir(&self) -> PathBuf {
        self.run_dir().join("metrics")
    }

    /// Where the value of `key` comes from; `None` for a name that isn't a key.
    pub fn provenance(&self, key: &str) -> Option<&Place> {
        self.resolved.setting(key).map(Setting::place)
    }

    /// Every key of the table with its value and where it comes from, sorted by name.
    pub fn settings(&self) -> impl Iterator<Item = &Setting> {
        self.resolved.iter()
    }

    /// What a user should hear about once: keys without effect, choices that mean something else here.
    pub fn notes(&self) -> Vec<Note> {
        self.resolved.notes.clone()
    }

    /// What the model room reads.
    pub fn model(&self) -> ModelConfig {
        let cap = |cap: f64| (cap > 0.0).then_some(cap);
        let llama31 = self.rope_type == RopeType::Llama31;
        ModelConfig {
            decoder_block: self.decoder_block,
            vocab_size: self.vocab_size,
            emb_dim: self.emb_dim(),
            mlp_dim: self.mlp_dim(),
            num_query_heads: self.num_query_heads(),
            num_kv_heads: self.num_kv_heads(),
            max_target_length: self.max_target_length,
            head_dim: self.head_dim,
            num_decoder_layers: self.num_decoder_layers(),
            mlp_activation: self.mlp_activations.first().copied().unwrap_or(Activation::Silu),
            normalization_layer_epsilon: self.normalization_layer_epsilon,
            rope: Rope {
                interleaved: llama31,
                llama31_scaling: llama31 && self.rope_use_scale,
                min_timescale: self.rope_min_timescale as f64,
                max_timescale: self.rope_max_timescale as f64,
                linear_scaling_factor: self.rope_linear_scaling_factor,
            },
            attention_bias: self.attention_bias,
            use_qk_norm: self.use_qk_norm,
            logits_via_embedding: self.logits_via_embedding,
            tied_head_in_bf16: self.tied_head_in_bf16,
            normalize_embedding_logits: self.normalize_embedding_logits,
            attn_logits_soft_cap: cap(self.attn_logits_soft_cap),
            final_logits_soft_cap: cap(self.final_logits_soft_cap),
            sliding_window_size: (self.attention_type == AttentionType::LocalSliding)
                .then_some(self.sliding_window_size),
            attention: match self.attention {
                AttentionChoice::DotProduct => AttentionKernel::DotProduct,
                _ => AttentionKernel::Flash,
            },
            use_iota_embed: self.use_iota_embed,
            dtype: self.dtype,
            weight_dtype: self.weight_dtype,
            quantization: self.quantization,
            float32_qk_product: self.float32_qk_product,
            float32_logits: self.float32_logits,
            logits_dot_in_fp32: self.logits_dot_in_fp32,
            cast_logits_to_fp32: self.cast_logits_to_fp32,
            z_loss_multiplier: self.z_loss_multiplier,
            num_vocab_tiling: self.num_vocab_tiling,
            dropout_rate: if self.enable_dropout { self.dropout_rate } else { 0.0 },
            scan_layers: self.scan_layers,
            param_scan_axis: self.param_scan_axis,
            remat_policy: self.remat(),
            dense_init_scale: self.dense_init_scale,
            init_weights_seed: self.init_weights_seed,
        }
    }
}
