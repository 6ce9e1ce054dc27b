//! What must hold across keys. Every check adds to the list, so that all problems are seen at once.

use crate::error::Problem;
use crate::keys::choices::*;
use crate::keys::{Config, State};
use crate::layers::{Resolved, default_value};
use crate::model::{Activation, DType, Placement};

/// Keys that may only have their default.
pub(crate) fn refused(resolved: &Resolved, problems: &mut Vec<Problem>) {
    for setting in resolved.iter() {
        let State::Rejected(reason) = setting.spec.state else { continue };
        // A value of the wrong type has no canonical form; it is refused all the same.
        let allowed =
            (setting.spec.check)(&setting.node).is_ok_and(|value| value == default_value(setting.spec));
        if !allowed {
            let found = setting.node.to_value();
            let message = format!("`{}: {found}` isn't available: {reason}", setting.spec.name);
            problems.push(Problem::new(setting.place.clone(), message));
        }
    }
    for setting in resolved.iter().filter(|setting| matches!(setting.spec.state, State::Accepted(_))) {
        if let Err(error) = (setting.spec.check)(&setting.node) {
            problems.push(Problem::new(setting.place.clone(), format!("`{}`: {error}", setting.spec.name)));
        }
    }
}

/// All checks on typed values.
pub(crate) fn whole(config: &Config, problems: &mut Vec<Problem>) {
    let mut checks = Checks { config, problems };
    checks.shapes();
    checks.batch();
    checks.schedule();
    checks.optimizer();
    checks.data();
    checks.checkpoints();
    checks.memory();
    checks.run();
    checks.decoding();
    checks.not_built_yet();
}

struct Checks<'a> {
    config: &'a Config,
    problems: &'a mut Vec<Problem>,
}

impl Checks<'_> {
    /// Unless `holds`, `key` has a problem.
    fn require(&mut self, holds: bool, key: &str, message: impl FnOnce() -> String) {
        if holds {
            return;
        }
        let Some(setting) = self.config.resolved.setting(key) else { return };
        let message = format!("`{key}: {}`: {}", setting.value, message());
        self.problems.push(Problem::new(setting.place.clone(), message));
    }

    fn positive(&mut self, keys: &[(&str, usize)]) {
        for (key, value) in keys {
            self.require(*value > 0, key, || "must be above 0".to_owned());
        }
    }

    fn between(&mut self, key: &str, value: f64, low: f64, high: f64) {
        self.require((low..=high).contains(&value), key, || format!("must be between {low} and {high}"));
    }

    fn not_negative(&mut self, keys: &[(&str, f64)]) {
        for (key, value) in keys {
            self.require(*value >= 0.0, key, || "must be 0 or more".to_owned());
        }
    }

    fn shapes(&mut self) {
        let c = self.config;
        // Far above any model, and low enough for products of shapes to fit in 64 bits.
        const LARGEST: usize = 1 << 24;
        let shapes = [
            ("base_emb_dim", c.base_emb_dim, c.emb_dim()),
            ("base_num_query_heads", c.base_num_query_heads, c.num_query_heads()),
            ("base_num_kv_heads", c.base_num_kv_heads, c.num_kv_heads()),
            ("base_mlp_dim", c.base_mlp_dim, c.mlp_dim()),
            ("base_num_decoder_layers", c.base_num_decoder_layers, c.num_decoder_layers()),
            ("head_dim", c.head_dim, c.head_dim),
            ("vocab_size", c.vocab_size, c.vocab_size),
        ];
        for (key, base, scaled) in shapes {
            self.require(base > 0, key, || "must be above 0".to_owned());
            self.require(scaled <= LARGEST, key, || {
                format!("is {scaled} after scaling; at most {LARGEST} is possible")
            });
        }
        self.require(c.global_parameter_scale.is_power_of_two(), "global_parameter_scale", || {
            "must be a power of two".to_owned()
        });
        let (query, kv) = (c.num_query_heads(), c.num_kv_heads());
        self.require(kv == 0 || query.is_multiple_of(kv), "base_num_kv_heads", || {
            format!("must divide the {query} query heads (base_num_query_heads)")
        });
        self.require(c.head_dim.is_multiple_of(2), "head_dim", || {
            "must be even, as rotary embeddings turn pairs".to_owned()
        });
        let gated =
            matches!(c.mlp_activations.as_slice(), [gate, Activation::Linear] if *gate != Activation::Linear);
        self.require(gated, "mlp_activations", || {
            "must be a gate and `linear`, such as [silu, linear]".to_owned()
        });
        self.require(c.param_scan_axis <= 1, "param_scan_axis", || "must be 0 or 1".to_owned());
        self.require(c.normalization_layer_epsilon > 0.0, "normalization_layer_epsilon", || {
            "must be above 0".to_owned()
        });
        self.positive(&[
            ("rope_min_timescale", c.rope_min_timescale),
            ("rope_max_timescale", c.rope_max_timescale),
            ("num_vocab_tiling", c.num_vocab_tiling),
        ]);
        self.require(c.rope_linear_scaling_factor > 0.0, "rope_linear_scaling_factor", || {
            "must be above 0".to_owned()
        });
        self.require(c.dense_init_scale > 0.0, "dense_init_scale", || "must be above 0".to_owned());
        let windowed = c.attention_type == AttentionType::LocalSliding;
        self.require(!windowed || c.sliding_window_size > 0, "sliding_window_size", || {
            "must be above 0 with `attention_type: local_sliding`".to_owned()
        });
        self.not_negative(&[
            ("attn_logits_soft_cap", c.attn_logits_soft_cap),
            ("final_logits_soft_cap", c.final_logits_soft_cap),
            ("z_loss_multiplier", c.z_loss_multiplier),
        ]);
        self.require((0.0..1.0).contains(&c.dropout_rate), "dropout_rate", || "must be in 0..1".to_owned());
    }

    fn batch(&mut self) {
        let c = self.config;
        const LARGEST: f64 = (1u32 << 24) as f64;
        self.require(
            c.per_device_batch_size > 0.0 && c.per_device_batch_size <= LARGEST,
            "per_device_batch_size",
            || format!("must be above 0 and at most {LARGEST}"),
        );
        self.between("eval_per_device_batch_size", c.eval_per_device_batch_size, 0.0, LARGEST);
        self.positive(&[
            ("max_target_length", c.max_target_length),
            ("gradient_accumulation_steps", c.gradient_accumulation_steps),
        ]);
        self.require(c.max_target_length <= 1 << 24, "max_target_length", || {
            format!("at most {} is possible", 1 << 24)
        });
        self.require(c.gradient_accumulation_steps <= 1 << 24, "gradient_accumulation_steps", || {
            format!("at most {} is possible", 1 << 24)
        });
        let rows = c.rows_per_rank().saturating_mul(c.max_target_length);
        self.require(
            c.num_vocab_tiling == 0 || rows.is_multiple_of(c.num_vocab_tiling),
            "num_vocab_tiling",
            || format!("must divide the {rows} tokens of a micro batch"),
        );
    }

    fn schedule(&mut self) {
        let c = self.config;

        self.require(c.steps >= 0, "steps", || {
            "must be 0 or more, or -1 with learning_rate_schedule_steps".to_owned()
        });
        self.require(
            c.steps < 0 || c.learning_rate_schedule_steps >= 0,
            "learning_rate_schedule_steps",
            || "must be 0 or more, or -1 for steps".to_owned(),
        );
        self.not_negative(&[("learning_rate", c.learning_rate), ("hub_cache_gb", c.hub_cache_gb)]);
        self.between("warmup_steps_fraction", c.warmup_steps_fraction, 0.0, 1.0);
        self.between("learning_rate_final_fraction", c.learning_rate_final_fraction, 0.0, 1.0);
        self.between("wsd_decay_steps_fraction", c.wsd_decay_steps_fraction, 0.0, 1.0);
        let parts = c.warmup_steps_fraction + c.wsd_decay_steps_fraction;
        self.require(
            c.lr_schedule_type != LrScheduleType::Wsd || parts <= 1.0,
            "wsd_decay_steps_fraction",
            || format!("with warmup_steps_fraction it makes {parts}; together they must be at most 1"),
        );
    }

    fn optimizer(&mut self) {
        let c = self.config;
        for (key, beta) in [("adam_b1", c.adam_b1), ("adam_b2", c.adam_b2), ("muon_beta", c.muon_beta)] {
            self.require((0.0..1.0).contains(&beta), key, || "must be in 0..1".to_owned());
        }
        self.not_negative(&[
            ("gradient_clipping_threshold", c.gradient_clipping_threshold),
            ("adam_eps", c.adam_eps),
            ("adam_eps_root", c.adam_eps_root),
            ("adam_weight_decay", c.adam_weight_decay),
            ("muon_weight_decay", c.muon_weight_decay),
            ("skip_step_scaling_factor", c.skip_step_scaling_factor),
        ]);
        self.positive(&[("skip_step_interval", c.skip_step_interval)]);
        for pattern in &c.adamw_mask {
            if let Err(error) = regex::Regex::new(pattern) {
                // The last line says what is wrong, the ones above it draw where.
                let reason = error.to_string();
                let reason = reason.lines().last().unwrap_or_default().to_owned();
                self.require(false, "adamw_mask", || {
                    format!("`{pattern}` isn't a regular expression: {reason}")
                });
            }
        }
    }

    fn data(&mut self) {
        let c = self.config;
        self.positive(&[("num_epoch", c.num_epoch)]);
        self.require(c.train_data_columns.len() == 1, "train_data_columns", || {
            "must name one column".to_owned()
        });
        self.require(c.eval_data_columns.len() == 1, "eval_data_columns", || {
            "must name one column".to_owned()
        });
        let evaluates = c.eval_interval > 0;
        match c.dataset_type {
            DatasetType::Synthetic => {}
            DatasetType::Hf => {
                let local = ["json", "parquet", "text"].contains(&c.hf_path.as_str());
                self.require(!c.hf_path.is_empty() || !c.hf_train_files.is_empty(), "hf_path", || {
                    "`dataset_type: hf` needs a Hub dataset, or json, parquet or text with hf_train_files"
                        .to_owned()
                });
                self.require(!local || !c.hf_train_files.is_empty(), "hf_train_files", || {
                    format!("`hf_path: {}` reads local files; name them here", c.hf_path)
                });
                let has_eval = !c.hf_eval_split.is_empty() || !c.hf_eval_files.is_empty();
                self.require(!evaluates || has_eval, "eval_interval", || {
                    "evaluation needs hf_eval_files or hf_eval_split".to_owned()
                });
            }
            DatasetType::Grain => {
                self.require(!c.grain_train_files.is_empty(), "grain_train_files", || {
                    "`dataset_type: grain` needs training files".to_owned()
                });
                self.require(c.grain_file_type == GrainFileType::Parquet, "grain_file_type", || {
                    "only `parquet` files are read here".to_owned()
                });
                self.require(!evaluates || !c.grain_eval_files.is_empty(), "eval_interval", || {
                    "evaluation needs grain_eval_files".to_owned()
                });
            }
        }
    }

    fn checkpoints(&mut self) {
        let c = self.config;
        self.positive(&[("checkpoint_period", c.checkpoint_period)]);
        self.require(c.max_num_checkpoints_to_keep != Some(0), "max_num_checkpoints_to_keep", || {
            "must be above 0, or None to keep all".to_owned()
        });
        let both = !c.load_parameters_path.is_empty() && !c.load_full_state_path.is_empty();
        self.require(!both, "load_full_state_path", || {
            "load_parameters_path is set as well; a run starts from one of the two".to_owned()
        });
    }

    fn memory(&mut self) {
        let c = self.config;
        let dropped = c.remat_policy == RematPolicyName::Custom && c.decoder_layer_input == Placement::Remat;
        self.require(!dropped, "decoder_layer_input", || {
            "a layer's input can't be recomputed; use device or offload".to_owned()
        });
    }

    fn run(&mut self) {
        let c = self.config;
        self.require(c.trainable, "trainable", || "leaves nothing to do here".to_owned());
        self.positive(&[("log_period", c.log_period)]);
        let profiles = c.profiler != Profiler::Off;
        self.require(!profiles || c.profiler_steps > 0, "profiler_steps", || "must be above 0".to_owned());
        for (key, degree) in [
            ("ici_data_parallelism", c.ici_data_parallelism),
            ("ici_fsdp_parallelism", c.ici_fsdp_parallelism),
            ("dcn_data_parallelism", c.dcn_data_parallelism),
            ("dcn_fsdp_parallelism", c.dcn_fsdp_parallelism),
        ] {
            self.require(degree == -1 || degree > 0, key, || {
                "must be above 0, or -1 for the rest".to_owned()
            });
        }
        for (key, message) in c.unclear_degrees() {
            self.require(false, key, || message);
        }
    }

    fn decoding(&mut self) {
        let c = self.config;
        let has_integers = matches!(c.quantization, Quantization::Int8w | Quantization::Int4w);
        self.require(!c.checkpoint_is_quantized || has_integers, "checkpoint_is_quantized", || {
            "needs `quantization: int8w` or `int4w`, whichever the weights are in".to_owned()
        });
        self.require(
            !c.checkpoint_is_quantized || !c.load_parameters_path.is_empty(),
            "checkpoint_is_quantized",
            || "needs `load_parameters_path`, the folder of the quantized weights".to_owned(),
        );
        self.require(
            c.save_quantized_params_path.is_empty() || has_integers,
            "save_quantized_params_path",
            || "needs `quantization: int8w` or `int4w`".to_owned(),
        );
        self.require(!c.quantize_kvcache || c.kv_quant_axis != KvQuantAxis::Unset, "kv_quant_axis", || {
            "`quantize_kvcache: true` needs dkv or heads_and_dkv".to_owned()
        });
        self.require(!c.quantize_kvcache || c.kv_quant_dtype == KvQuantDtype::Int8, "kv_quant_dtype", || {
            "a quantized cache holds int8 values in this build".to_owned()
        });
        let nucleus =
            matches!(c.decode_sampling_strategy, SamplingStrategy::Nucleus | SamplingStrategy::Composite);
        let mass = c.decode_sampling_nucleus_p;
        self.require(!nucleus || (mass > 0.0 && mass <= 1.0), "decode_sampling_nucleus_p", || {
            "must be above 0 and at most 1 with nucleus or composite sampling".to_owned()
        });
        let top = matches!(c.decode_sampling_strategy, SamplingStrategy::Topk | SamplingStrategy::Composite);
        self.require(!top || c.decode_sampling_top_k > 0, "decode_sampling_top_k", || {
            "must be above 0 with topk or composite sampling".to_owned()
        });
        self.require(c.decode_sampling_temperature > 0.0, "decode_sampling_temperature", || {
            "must be above 0".to_owned()
        });
    }

    /// Values that the table knows and that nothing computes yet: better refused than ignored.
    fn not_built_yet(&mut self) {
        let c = self.config;
        for (key, dtype) in
            [("dtype", c.dtype), ("weight_dtype", c.weight_dtype), ("grad_dtype", c.grad_dtype)]
        {
            self.require(dtype != DType::Float16, key, || {
                "this build computes in float32 or bfloat16".to_owned()
            });
        }
        self.require(c.mu_dtype != Some(DType::Float16), "mu_dtype", || {
            "this build computes in float32 or bfloat16".to_owned()
        });
    }
}
