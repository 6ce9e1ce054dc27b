//! Sharding, checkpoints of Orbax, cloud and compiler switches.

use crate::keys::kinds::{Anything, Single};

known! {
"RunInfo" {
    Rejected("it belongs to a model that isn't part of this build") {
        use_m3_model: bool = "false";
    }
    Accepted("a switch of XLA or of Google's cloud; it changes nothing here") {
        override_logical_axis_rules: bool = "false";
        enable_mllog: bool = "false";
        mllog_file: String = "\"\"";
        debug_sharding: bool = "false";
        sharding_strategy: String = "None";
    }
}
"HardwareAndMesh" {
    Rejected("all layers are alike in this build") {
        inhomogeneous_layer_cycle_interval: i64 = "1";
    }
    Accepted("a switch of XLA's partitioner; it changes nothing here") {
        shard_mode: String = "auto";
        custom_mesh_and_rule: String = "\"\"";
        mesh_axes: Vec<String> = "['diloco', 'data', 'stage', 'fsdp', 'fsdp_transpose', 'context', 'context_usp_ulysses', 'context_autoregressive', 'tensor', 'tensor_sequence', 'expert', 'autoregressive']";
        custom_mesh_and_rule_for_eval: String = "\"\"";
        num_slices: i64 = "-1";
        custom_mesh: String = "\"\"";
        allow_split_physical_axes: bool = "false";
        optimize_mesh_for_tpu_v6e: bool = "false";
        shardy: bool = "true";
        remove_size_one_mesh_axis_from_type: bool = "true";
        context_parallel_load_balance: bool = "true";
        context_parallel_strategy: String = "all_gather";
        context_parallel_reorder_strategy: String = "auto";
    }
}
"LayoutAndSharding" {
    Accepted("a switch of XLA's partitioner; it changes nothing here") {
        internal_compile: bool = "false";
        internal_compile_num_devices: i64 = "-1";
        compile_xla_flags: String = "\"\"";
        logical_axis_rules: Anything = "[]";
        data_sharding: Anything = "[['data', 'stage', 'fsdp', 'fsdp_transpose', 'context', 'context_usp_ulysses', 'context_autoregressive', 'tensor', 'tensor_sequence', 'expert', 'autoregressive']]";
        input_data_sharding_logical_axes: Vec<String> = "['activation_embed_and_logits_batch', 'activation_norm_length']";
        context_sharding: String = "context";
        ulysses_context_sharding: String = "context_usp_ulysses";
        logical_axis_rules_for_eval: Anything = "[]";
        sharding_tolerance: f64 = "0.02";
        check_vma: bool = "false";
        shard_optimizer_over_data: bool = "false";
        dense_fsdp_use_two_stage_all_gather: bool = "false";
    }
}
"DcnParallelism" {
    Rejected("only the data and fsdp axes can be above 1 in this build") {
        dcn_diloco_parallelism: Single = "1";
        dcn_fsdp_transpose_parallelism: Single = "1";
        dcn_sequence_parallelism: Single = "1";
        dcn_context_parallelism: Single = "1";
        dcn_context_usp_ulysses_parallelism: Single = "1";
        dcn_context_autoregressive_parallelism: Single = "1";
        dcn_tensor_parallelism: Single = "1";
        dcn_tensor_sequence_parallelism: Single = "1";
        dcn_pipeline_parallelism: Single = "1";
        dcn_expert_parallelism: Single = "1";
        dcn_autoregressive_parallelism: Single = "1";
    }
}
"IciParallelism" {
    Rejected("only the data and fsdp axes can be above 1 in this build") {
        ici_diloco_parallelism: Single = "1";
        ici_fsdp_transpose_parallelism: Single = "1";
        ici_sequence_parallelism: Single = "1";
        ici_context_parallelism: Single = "1";
        ici_context_usp_ulysses_parallelism: Single = "1";
        ici_context_autoregressive_parallelism: Single = "1";
        ici_tensor_parallelism: Single = "1";
        ici_tensor_sequence_parallelism: Single = "1";
        ici_autoregressive_parallelism: Single = "1";
        ici_pipeline_parallelism: Single = "1";
        ici_expert_parallelism: Single = "1";
    }
}
"PipelineParallelism" {
    Accepted("it acts only with pipeline parallelism, which isn't part of this build") {
        num_layers_per_pipeline_stage: i64 = "1";
        num_pipeline_repeats: i64 = "-1";
        pipeline_parallel_layers: i64 = "-1";
        num_pipeline_microbatches: i64 = "-1";
        pipeline_delay_activation_forwarding: bool = "false";
        pipeline_fsdp_ag_once: bool = "false";
        pipeline_fsdp_ag_per_repeat: bool = "false";
        scan_pipeline_iterations: bool = "true";
        scan_pipeline_repeats: bool = "false";
        scan_layers_per_stage: bool = "false";
        set_remat_policy_on_pipeline_iterations: bool = "true";
        set_remat_policy_on_layers_per_stage: bool = "false";
    }
}
"DilocoParams" {
    Rejected("DiLoCo isn't part of this build") {
        enable_diloco: bool = "false";
        enable_streaming_diloco: bool = "false";
    }
    Accepted("it acts only with enable_diloco") {
        diloco_sync_period: i64 = "36";
        diloco_outer_lr: f64 = "0.3";
        diloco_outer_momentum: f64 = "0.9";
        dcn_bandwidth_limit: String = "\"\"";
        dcn_bandwidth_burst: String = "10mb";
        dcn_bandwidth_latency: String = "50ms";
        dcn_bandwidth_interface: String = "eth0";
        num_diloco_fragments: Option<i64> = "None";
        use_sequential_layers: bool = "false";
        num_communication_overlapping_steps: i64 = "0";
        communication_overlapping_alpha: f64 = "0.0";
    }
}
"ElasticTraining" {
    Rejected("elastic training isn't part of this build; a restarted run resumes from its last checkpoint") {
        elastic_enabled: bool = "false";
    }
    Accepted("it acts only with elastic_enabled") {
        elastic_backup_kind: String = "snapshot";
        elastic_timeout_seconds: i64 = "300";
        elastic_max_retries: i64 = "10";
        elastic_min_slice_count: i64 = "-1";
    }
}
"Checkpointing" {
    Rejected("this build has neither adapters nor continuous saves; use checkpoint_period") {
        lora_input_adapters_path: String = "\"\"";
        hf_lora_adapter_path: String = "\"\"";
        enable_continuous_checkpointing: bool = "false";
        checkpoint_conversion_fn: String = "none";
    }
    Accepted("it tunes Orbax; checkpoints here are safetensors, loaded from any layout") {
        enable_single_replica_ckpt_restoring: bool = "false";
        checkpoint_todelete_subdir: String = "None";
        checkpoint_todelete_full_path: String = "None";
        standalone_checkpointer_per_step_interval: f64 = "0.0";
        standalone_checkpointer_drop_page_cache_before_restore: bool = "false";
        standalone_checkpointer_enable_restore_in_loop: bool = "true";
        standalone_checkpointer_start_from_checkpoint: bool = "false";
        force_unroll: bool = "false";
        enable_orbax_v1: bool = "false";
        source_checkpoint_layout: String = "orbax";
        colocated_python_checkpointing: bool = "false";
        enable_autocheckpoint: bool = "false";
        convert_checkpoint_if_possible: bool = "false";
        load_checkpoint_only_once: bool = "false";
    }
}
"OrbaxStorage" {
    Accepted("it tunes Orbax; checkpoints here are safetensors") {
        checkpoint_storage_use_ocdbt: bool = "true";
        checkpoint_storage_use_zarr3: bool = "true";
        checkpoint_storage_concurrent_gb: i64 = "96";
        checkpoint_storage_device_host_concurrent_gb: Option<i64> = "8";
    }
}
"EmergencyCheckpointing" {
    Rejected("checkpoints go to one place in this build; use checkpoint_period") {
        enable_multi_tier_checkpointing: bool = "false";
        enable_emergency_checkpoint: bool = "false";
    }
    Accepted("it acts only with emergency or multi-tier checkpoints") {
        multi_tier_checkpointing_backup_interval_minutes: Option<i64> = "None";
        multi_tier_checkpointing_backup_interval_steps: Option<i64> = "None";
        mtc_data_parallelism: i64 = "0";
        local_checkpoint_directory: String = "\"\"";
        local_checkpoint_period: i64 = "0";
        use_replicator_service: bool = "false";
        replicator_backup_interval_minutes: i64 = "0";
    }
}
"Metrics" {
    Rejected("this build writes metrics_file and TensorBoard only") {
        enable_wandb: bool = "false";
        record_internal_nn_metrics: i64 = "0";
    }
    Accepted("a sink that isn't built in; metrics_file and TensorBoard hold the same numbers, and the resolved configuration is always saved") {
        gcs_metrics: bool = "false";
        wandb_project_name: String = "maxtext";
        wandb_run_name: String = "\"\"";
        save_config_to_gcs: bool = "false";
        prometheus_port: i64 = "0";
        enable_checkpoint_cloud_logger: bool = "false";
    }
}
"Tensorboard" {
    Accepted("a switch of XLA or of Google's cloud; it changes nothing here") {
        use_vertex_tensorboard: bool = "false";
        vertex_tensorboard_project: String = "\"\"";
        vertex_tensorboard_region: String = "\"\"";
    }
}
"Profiling" {
    Accepted("it tunes the profiler of JAX or of TPUs") {
        upload_all_profiler_results: bool = "false";
        enable_tpu_profiling_options: bool = "false";
        tpu_num_chips_to_profile_per_task: i64 = "1";
        tpu_num_sparse_core_tiles_to_trace: i64 = "1";
        tpu_num_sparse_cores_to_trace: i64 = "2";
        enable_jax_profiler: bool = "false";
        jax_profiler_port: i64 = "9999";
        xprof_tpu_power_trace_level: i64 = "0";
        xprof_e2e_enable_fw_throttle_event: bool = "false";
        xprof_e2e_enable_fw_power_level_event: bool = "false";
        xprof_e2e_enable_fw_thermal_event: bool = "false";
        profile_power_events: bool = "false";
    }
}
"ManagedMLDiagnostics" {
    Accepted("a switch of XLA or of Google's cloud; it changes nothing here") {
        managed_mldiagnostics: bool = "false";
        managed_mldiagnostics_on_demand_profiling: bool = "true";
        managed_mldiagnostics_run_group: String = "\"\"";
        managed_mldiagnostics_region: String = "\"\"";
        managed_mldiagnostics_storage_path: String = "\"\"";
    }
}
"HloDump" {
    Accepted("there is no HLO here") {
        dump_hlo: bool = "false";
        dump_step: i64 = "-1";
        dump_hlo_local_dir: String = "/tmp/xla_dump/";
        dump_hlo_delete_local_after: bool = "true";
        dump_hlo_gcs_dir: String = "\"\"";
        dump_hlo_local_module_name: String = "jit_train_step";
        dump_hlo_module_name: String = "jit_train_step";
        dump_hlo_xla_flags: String = "\"\"";
        dump_hlo_upload_all: bool = "false";
        dump_jaxpr: bool = "false";
        dump_jaxpr_local_dir: String = "/tmp/jaxpr_dump/";
        dump_jaxpr_delete_local_after: bool = "true";
        dump_jaxpr_gcs_dir: String = "\"\"";
    }
}
"AOT" {
    Accepted("nothing is compiled ahead of time here") {
        compiled_trainstep_file: String = "\"\"";
        compile_topology: String = "\"\"";
        compile_topology_num_slices: i64 = "-1";
        write_estimator_result: bool = "false";
    }
}
"Goodput" {
    Accepted("a switch of XLA or of Google's cloud; it changes nothing here") {
        enable_goodput_recording: bool = "false";
        goodput_job_name: String = "\"\"";
        monitor_goodput: bool = "false";
        goodput_upload_interval_seconds: i64 = "30";
        enable_pathways_goodput: bool = "false";
        monitor_step_time_deviation: bool = "true";
        step_deviation_interval_seconds: i64 = "30";
        enable_gcp_goodput_metrics: bool = "true";
        enable_gcp_step_deviation_metrics: bool = "true";
    }
}
"GcpMonitoring" {
    Accepted("a switch of XLA or of Google's cloud; it changes nothing here") {
        report_heartbeat_metric_for_gcp_monitoring: bool = "false";
        heartbeat_reporting_interval_in_seconds: i64 = "5";
        report_performance_metric_for_gcp_monitoring: bool = "false";
    }
}
"DevelopmentAndDebugging" {
    Rejected("bounds on activations aren't part of this build") {
        constant_bound_config: Vec<f64> = "[]";
    }
    Accepted("a switch of JAX; it changes nothing here") {
        jax_cache_dir: String = "~/jax_cache";
        jax_distributed_initialization_timeout: i64 = "300";
        jax_debug_log_modules: String = "\"\"";
        skip_jax_distributed_system: bool = "false";
        max_checkify: bool = "false";
        enable_single_controller: bool = "false";
        subslice_shape: String = "\"\"";
    }
}
"Optimizer" {
    Accepted("it belongs to MaxText's post-training") {
        use_tunix_gradient_accumulation: bool = "false";
    }
}
"Muon" {
    Rejected("there is one Muon in this build") {
        muon_type: String = "optax_muon";
    }
    Accepted("it acts only with experts or with a Muon that is spread over devices") {
        muon_include_routers: bool = "true";
        muon_use_all_to_all: bool = "false";
    }
}
"TrainingLoop" {
    Rejected("this build trains causal language models") {
        training_objective: String = "causal_lm";
    }
    Accepted("it tunes JAX's loop, or a training objective that isn't part of this build") {
        max_inflight_computations: i64 = "2";
        block_diffusion_mask_id: i64 = "-1";
        block_diffusion_min_noise: f64 = "0.001";
        block_diffusion_logit_alignment: String = "same_position";
        block_diffusion_canvas_policy: String = "all_masked";
        block_state_before_run_start: bool = "false";
        warm_input_reshard_before_run_start: bool = "false";
        train_shard_in_read: bool = "false";
        train_interleave_cycle_length: i64 = "-1";
    }
}
}
