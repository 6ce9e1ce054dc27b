//! Experts and multi-token prediction.

known! {
"MoEGeneral" {
    Rejected("mixture-of-experts layers aren't part of this build") {
        num_experts: i64 = "1";
    }
    Accepted("it acts only with experts") {
        float32_weight_sum: bool = "true";
        float32_gate_logits: bool = "false";
        num_experts_per_tok: i64 = "1";
        capacity_factor: f64 = "-1.0";
        num_moe_token_chunks: i64 = "1";
        moe_chunk_barrier: bool = "false";
        moe_log_max_load_ratio: bool = "false";
        ragged_buffer_factor: f64 = "-1.0";
        eval_ragged_buffer_factor: f64 = "-1.0";
        moe_dropless_fallback: String = "None";
        retry_dropless_first_steps: i64 = "0";
        first_phase_ragged_buffer_factor: f64 = "0.0";
        log_required_ragged_buffer_factor: bool = "false";
        warmup_programs_in_init: bool = "false";
        moe_expert_input_dim: i64 = "-1";
        base_moe_mlp_dim: i64 = "-1";
        load_balance_loss_weight: f64 = "0.0";
        moe_use_megatron_seq_aux_loss: bool = "false";
        use_random_routing: bool = "false";
        use_custom_sort_vjp: bool = "true";
        router_topk_matmul_vjp: bool = "false";
        use_ring_of_experts: bool = "false";
        moe_topk_before_ep_all_gather: bool = "false";
        te_moe_block: bool = "false";
        te_ep_overflow_check_every_n_steps: i64 = "20";
        te_gmm_quantization: String = "\"\"";
        moe_quantize_token_all_gather: bool = "false";
        moe_quantize_combine_bwd_method: String = "\"\"";
        moe_dispatch_no_expert_sharding: bool = "false";
        use_ragged_sort: bool = "false";
        moe_use_direct_token_gather: bool = "false";
        use_gather_mosaic_kernel: bool = "false";
        ragged_gather_fallback: bool = "false";
        ragged_gather_reduce_fallback: bool = "false";
        ragged_gather_cost_estimate_flops: i64 = "-1";
        ragged_gather_reduce_cost_estimate_flops: i64 = "-1";
        ragged_gather_cost_estimate_bytes_accessed: i64 = "-1";
        ragged_gather_reduce_cost_estimate_bytes_accessed: i64 = "-1";
        moe_pin_sparse_core_all_gathers: bool = "false";
        moe_pin_sparse_core_ep_all_gathers: bool = "false";
        moe_pin_sparse_core_fsdp_all_gathers: bool = "false";
        moe_pin_sparse_core_fsdp_all_gathers_fwd_only: bool = "false";
        moe_fsdp_all_gather_sparse_core_id: i64 = "0";
        moe_ep_all_gather_sparse_core_id: i64 = "1";
        norm_topk_prob: bool = "false";
        return_routed_experts: bool = "false";
        moe_fsdp_use_two_stage_all_gather: bool = "false";
        shard_exp_on_fsdp: bool = "false";
        shard_embed_moe_on_fsdp: bool = "false";
        use_2d_fsdp_sharding: bool = "false";
        interleave_moe_layer_step: i64 = "1";
        padded_base_moe_mlp_dim: Option<i64> = "None";
        ragged_sort_use_single_sparsecore: bool = "false";
        prefuse_moe_weights: bool = "false";
        fuse_expert_scales: bool = "false";
    }
}
"MoEKernels" {
    Accepted("it acts only with experts") {
        megablox: bool = "true";
        sparse_matmul: bool = "true";
        num_moe_emb_chunks: i64 = "0";
        wi_tile_fwd_batch_seq: i64 = "512";
        wi_tile_fwd_embed_dim: i64 = "1024";
        wi_tile_fwd_mlp_dim: i64 = "1024";
        eval_wi_tile_fwd_batch_seq: i64 = "512";
        eval_wi_tile_fwd_embed_dim: i64 = "1024";
        eval_wi_tile_fwd_mlp_dim: i64 = "1024";
        wi_tile_dlhs_batch_seq: i64 = "512";
        wi_tile_dlhs_embed_dim: i64 = "1024";
        wi_tile_dlhs_mlp_dim: i64 = "1024";
        wi_tile_drhs_batch_seq: i64 = "512";
        wi_tile_drhs_embed_dim: i64 = "1024";
        wi_tile_drhs_mlp_dim: i64 = "1024";
        wo_tile_fwd_batch_seq: i64 = "512";
        wo_tile_fwd_embed_dim: i64 = "1024";
        wo_tile_fwd_mlp_dim: i64 = "1024";
        eval_wo_tile_fwd_batch_seq: i64 = "512";
        eval_wo_tile_fwd_embed_dim: i64 = "1024";
        eval_wo_tile_fwd_mlp_dim: i64 = "1024";
        wo_tile_dlhs_batch_seq: i64 = "512";
        wo_tile_dlhs_embed_dim: i64 = "1024";
        wo_tile_dlhs_mlp_dim: i64 = "1024";
        wo_tile_drhs_batch_seq: i64 = "512";
        wo_tile_drhs_embed_dim: i64 = "1024";
        wo_tile_drhs_mlp_dim: i64 = "1024";
        merge_gating_gmm: bool = "false";
        use_tokamax_gmm: bool = "false";
        use_gmm_v2: bool = "false";
        use_gmm_v2_heuristic_tiling: bool = "false";
    }
}
"DeepSeekMoE" {
    Rejected("mixture-of-experts layers and MLP biases aren't part of this build") {
        first_num_dense_layers: i64 = "0";
        shared_experts: i64 = "0";
        mlp_bias: bool = "false";
    }
    Accepted("it acts only with experts") {
        log_step_diagnostics: bool = "false";
        routed_scaling_factor: f64 = "1.0";
        routed_score_func: String = "\"\"";
        routed_bias: bool = "false";
        routed_bias_update_rate: f64 = "0.0";
        defer_small_all_reduces: bool = "false";
        n_routing_groups: i64 = "-1";
        first_num_hash_layers: i64 = "0";
        topk_routing_group: i64 = "-1";
        use_batch_split_schedule: bool = "false";
        batch_split_factor: i64 = "1";
        use_lineage: bool = "false";
        log_moe_bias_norms: bool = "false";
    }
}
"MTP" {
    Rejected("multi-token prediction isn't part of this build") {
        mtp_num_layers: i64 = "0";
    }
    Accepted("it acts only with mtp_num_layers") {
        mtp_loss_scaling_factor: f64 = "0.1";
        mtp_eval_target_module: i64 = "0";
        mtp_reuse_input_embedding: bool = "false";
    }
}
}
