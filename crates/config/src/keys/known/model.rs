//! Model features outside dense Llama, Mistral and Qwen, and what follows from other keys.

use crate::keys::kinds::Anything;
use crate::model::Placement;

known! {
"ModelArchitecture" {
    Rejected("the dense blocks of Llama, Mistral and Qwen don't have it") {
        attention_output_dim: i64 = "-1";
        global_head_dim: i64 = "0";
        mlp_activations_limit: f64 = "-1.0";
        qk_norm_with_scale: bool = "true";
        fused_qkv: bool = "false";
        fused_mlp: bool = "false";
    }
    Accepted("the norm of values exists only in blocks that aren't part of this build") {
        v_norm_with_scale: bool = "true";
    }
}
"Attention" {
    Rejected("the dense blocks of Llama, Mistral and Qwen don't have it") {
        global_num_kv_heads: i64 = "0";
        share_kv_projections: bool = "false";
        attention_sink: bool = "false";
        use_post_attn_norm: bool = "false";
        use_post_ffw_norm: bool = "false";
        hidden_size_per_layer_input: i64 = "0";
        num_kv_shared_layers: i64 = "0";
        use_double_wide_mlp: bool = "false";
        use_qk_clip: bool = "false";
    }
    Accepted("it tunes kernels or features that aren't part of this build; padding is always masked") {
        mla_qk_head_chunk_size: i64 = "0";
        csa_qk_head_chunk_size: i64 = "0";
        chunk_attn_window_size: i64 = "0";
        causal_block_size: i64 = "32";
        vocab_size_per_layer_input: i64 = "0";
        qk_clip_threshold: f64 = "100.0";
        use_ragged_attention: bool = "false";
        ragged_block_size: i64 = "256";
        enable_padding_causal_mask: bool = "true";
        use_tokamax_splash: bool = "false";
        use_jax_splash: bool = "false";
        force_q_layout: bool = "false";
    }
}
"SplashAttention" {
    Accepted("it sets tiles of a TPU kernel; the kernels here choose their own") {
        sa_block_q: i64 = "512";
        sa_block_kv: i64 = "512";
        sa_block_kv_compute: i64 = "512";
        eval_sa_block_q: i64 = "512";
        eval_sa_block_kv: i64 = "512";
        eval_sa_block_kv_compute: i64 = "512";
        sa_block_q_dkv: i64 = "512";
        sa_block_kv_dkv: i64 = "512";
        sa_block_kv_dkv_compute: i64 = "512";
        sa_block_q_dq: i64 = "512";
        sa_block_kv_dq: i64 = "512";
        sa_use_fused_bwd_kernel: bool = "false";
        sa_bwd_dkv_megacore: bool = "false";
        sa_q_layout: String = "HEAD_DIM_MINOR";
        sa_k_layout: String = "HEAD_DIM_MINOR";
        sa_v_layout: String = "HEAD_DIM_MINOR";
        eval_sa_q_layout: String = "HEAD_DIM_MINOR";
        eval_sa_k_layout: String = "HEAD_DIM_MINOR";
        eval_sa_v_layout: String = "HEAD_DIM_MINOR";
        use_splash_scheduler: bool = "false";
        ring_scan_unroll: i64 = "1";
        sa_fuse_reciprocal: bool = "true";
        sa_use_base2_exp: bool = "true";
        local_sa_block_q: Option<i64> = "None";
        local_sa_block_kv: Option<i64> = "None";
        local_sa_block_kv_compute: Option<i64> = "None";
        eval_local_sa_block_q: Option<i64> = "None";
        eval_local_sa_block_kv: Option<i64> = "None";
        eval_local_sa_block_kv_compute: Option<i64> = "None";
        local_sa_block_q_dkv: Option<i64> = "None";
        local_sa_block_kv_dkv: Option<i64> = "None";
        local_sa_block_kv_dkv_compute: Option<i64> = "None";
        local_sa_block_q_dq: Option<i64> = "None";
        local_sa_block_kv_dq: Option<i64> = "None";
        local_sa_use_fused_bwd_kernel: Option<bool> = "None";
        local_sa_q_layout: String = "None";
        local_sa_k_layout: String = "None";
        local_sa_v_layout: String = "None";
        eval_local_sa_q_layout: String = "None";
        eval_local_sa_k_layout: String = "None";
        eval_local_sa_v_layout: String = "None";
        local_use_splash_scheduler: Option<bool> = "None";
        local_sa_fuse_reciprocal: Option<bool> = "None";
        local_sa_use_base2_exp: Option<bool> = "None";
        experimental_sa_quant_q_fp8: bool = "false";
        experimental_sa_quant_k_fp8: bool = "false";
        use_max_logit_estimate: i64 = "-1";
        cost_estimate_flops_fwd: i64 = "-1";
        cost_estimate_flops_bwd: i64 = "-1";
        dq_reduction_steps: i64 = "0";
    }
}
"MlaAttention" {
    Accepted("it acts only with attention_type mla") {
        mla_naive_kvcache: bool = "true";
        q_lora_rank: i64 = "0";
        kv_lora_rank: i64 = "512";
        qk_nope_head_dim: i64 = "128";
        qk_rope_head_dim: i64 = "64";
        v_head_dim: i64 = "128";
        use_sliced_mla_proj: bool = "false";
        use_mla_absorbed_mqa: bool = "false";
    }
}
"MoBa" {
    Rejected("mixture-of-blocks attention isn't part of this build") {
        moba: bool = "false";
    }
    Accepted("it acts only with moba") {
        moba_chunk_size: i64 = "1024";
        moba_topk: i64 = "8";
    }
}
"AttentionIndexer" {
    Rejected("sparse attention by an indexer isn't part of this build") {
        use_indexer: bool = "false";
    }
    Accepted("it acts only with use_indexer") {
        indexer_head_dim: i64 = "128";
        indexer_n_heads: i64 = "64";
        indexer_topk: i64 = "2048";
        indexer_use_approx_top_k: bool = "false";
        indexer_approx_top_k_recall: f64 = "0.95";
        indexer_mask_exact_topk: bool = "true";
        indexer_sparse_training: bool = "false";
        indexer_loss_scaling_factor: f64 = "0.0";
    }
}
"CompressedAttention" {
    Accepted("it acts only with attention_type compressed") {
        o_lora_rank: i64 = "0";
        o_groups: i64 = "0";
        compress_ratios: Vec<i64> = "[]";
        compressed_rope_max_timescale: i64 = "160000";
        use_csa_streamindex_kernel: bool = "false";
    }
}
"Llama4Attention" {
    Rejected("Llama 4 isn't part of this build") {
        temperature_tuning: bool = "false";
    }
}
"PositionalEmbedding" {
    Rejected("rotary embeddings on every layer are the only positions in this build") {
        use_untrainable_positional_embedding: bool = "false";
        trainable_position_size: i64 = "-1";
        nope_layer_interval: i64 = "-1";
    }
}
"Rope" {
    Accepted("it acts only in Gemma's blocks") {
        local_rope_max_timescale: i64 = "-1";
        global_rope_max_timescale: i64 = "-1";
        global_rope_proportion: f64 = "0.25";
        local_rope_proportion: f64 = "1.0";
    }
}
"YarnRope" {
    Accepted("it acts only with rope_type yarn") {
        max_position_embeddings: i64 = "163840";
        original_max_position_embeddings: i64 = "4096";
        rope_factor: i64 = "40";
        beta_fast: i64 = "32";
        beta_slow: i64 = "1";
        mscale: f64 = "1.0";
        rope_interleave: bool = "true";
        rope_truncate: bool = "true";
        rope_attention_scaling: bool = "false";
        rope_pairwise: bool = "false";
    }
}
"Qwen3Next" {
    Accepted("it acts only in Qwen 3 Next's blocks") {
        gdn_conv_kernel_dim: i64 = "4";
        gdn_key_head_dim: i64 = "128";
        gdn_value_head_dim: i64 = "128";
        gdn_num_key_heads: i64 = "16";
        gdn_num_value_heads: i64 = "32";
        gdn_chunk_size: i64 = "64";
        use_qk_norm_in_gdn: bool = "true";
        partial_rotary_factor: f64 = "1.0";
        gdn_mamba_block_size: i64 = "0";
    }
}
"ManifoldConstrainedHyperConnections" {
    Rejected("hyper-connections aren't part of this build") {
        mhc_expansion_rate: i64 = "1";
    }
    Accepted("it acts only with mhc_expansion_rate") {
        sinkhorn_iterations: i64 = "20";
        enable_mhc_lite: bool = "false";
        use_mhc_pallas_kernel: bool = "false";
        mhc_pallas_kernel_fwd_block_size: i64 = "256";
        mhc_pallas_kernel_bwd_block_size: i64 = "128";
        mhc_pallas_kernel_bwd_feature_block_size: i64 = "1024";
    }
}
"Engram" {
    Rejected("n-gram memories aren't part of this build") {
        engram_layers: Vec<i64> = "[]";
    }
    Accepted("it acts only with engram_layers") {
        engram_max_ngram_size: i64 = "3";
        engram_num_heads: i64 = "8";
        engram_head_dim: i64 = "1280";
        engram_vocab_bases: Vec<i64> = "[]";
        engram_kernel_size: i64 = "4";
        engram_seed: i64 = "0";
    }
}
"LogitsAndLoss" {
    Accepted("the head is gathered once per micro batch here, whatever it says") {
        vocab_tiling_ag_once: bool = "false";
    }
}
"DataTypes" {
    Accepted("float32 products and nonlinearities are computed in float32 here whatever it says") {
        matmul_precision: String = "default";
        activations_in_float32: bool = "false";
        dtype_mm: String = "float32";
    }
}
"RematAndOffload" {
    Rejected("parameters stay in device memory in this build") {
        parameter_memory_host_offload: bool = "false";
    }
    Accepted("it names an activation or tower that the dense blocks don't have") {
        indexer_cutoff_threshold: Placement = "remat";
        moe_mlpwi_0: Placement = "remat";
        moe_mlpwi_1: Placement = "remat";
        moe_mlpwo: Placement = "remat";
        moe_x_sorted: Placement = "remat";
        moe_routing_maps: Placement = "remat";
        query_wa_proj: Placement = "remat";
        kv_wa_proj: Placement = "remat";
        mla_q: Placement = "remat";
        mla_kv: Placement = "remat";
        attention_out: Placement = "remat";
        engram: Placement = "remat";
        remat_policy_for_vit: String = "minimal";
    }
}
"Quantization" {
    Rejected("this build has no sparsity and no per-module quantization") {
        quant_cfg_path: String = "\"\"";
        use_manual_quantization: bool = "false";
        weight_sparsity_n: Option<i64> = "None";
        weight_sparsity_m: Option<i64> = "None";
    }
    Accepted("it tunes a quantizer that isn't used here; the recipe is fixed") {
        replicate_quant_scale: bool = "false";
        quantize_mtp: bool = "false";
        quantize_router_proj: bool = "true";
        quantize_logits_proj: bool = "false";
        logits_proj_quant_calibration_method: String = "\"\"";
        use_qwix_quantization: bool = "false";
        weight_quantization_calibration_method: String = "absmax";
        act_quantization_calibration_method: String = "absmax";
        bwd_quantization_calibration_method: String = "absmax";
        drhs_grad_quantization_calibration_method: String = "None";
        quantization_local_shard_count: i64 = "-1";
        weight_sparsity_update_step: i64 = "10";
        weight_sparsity_start_step: i64 = "50";
        te_comm_gemm_overlap: String = "disabled";
        unquantized_modules: Vec<String> = "[]";
        weight_block_size: Anything = "None";
    }
}
"DerivedValues" {
    Accepted("it is computed from other keys; a value in a file is ignored") {
        emb_dim: Anything = "None";
        mlp_dim: Anything = "None";
        moe_mlp_dim: Anything = "None";
        num_decoder_layers: Anything = "None";
        num_kv_heads: Anything = "None";
        num_query_heads: Anything = "None";
        num_diloco_replicas: Anything = "None";
        ici_parallelism: Anything = "None";
        dcn_parallelism: Anything = "None";
        using_pipeline_parallelism: Anything = "None";
        num_target_devices: Anything = "None";
        global_batch_size_to_train_on: Anything = "None";
        global_batch_size_to_eval_on: Anything = "None";
        global_batch_size_to_load: Anything = "None";
        global_batch_size_to_load_eval: Anything = "None";
        micro_batch_size_to_train_on: Anything = "None";
        micro_batch_size_to_eval_on: Anything = "None";
        checkpoint_dir: Anything = "None";
        metrics_dir: Anything = "None";
        tensorboard_dir: Anything = "None";
        managed_mldiagnostics_dir: Anything = "None";
        rampup_end_step: Anything = "None";
        tensors_on_device: Anything = "None";
        tensors_to_offload: Anything = "None";
        global_batch_size_to_load_start: Anything = "None";
        global_batch_size_to_load_increment: Anything = "None";
        rampup_samples_per_increment_to_load: Anything = "None";
    }
}
}
