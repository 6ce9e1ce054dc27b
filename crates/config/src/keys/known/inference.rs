//! MaxText's inference server and vLLM.

use crate::keys::kinds::Anything;

known! {
"InferenceGeneral" {
    Rejected("mt-decode doesn't have it") {
        load_from_prefill_dir: bool = "false";
        autoregressive_decode_assert: String = "\"\"";
        multi_sampling: bool = "false";
        return_log_prob: bool = "false";
    }
    Accepted("it tunes MaxText's inference server") {
        model_call_mode: String = "\"\"";
        prefill_cache_dir: String = "\"\"";
        enable_model_warmup: bool = "false";
        enable_llm_inference_pool: bool = "false";
        prefill_chunk_size: i64 = "256";
        use_chunked_prefill: bool = "false";
    }
}
"InferenceBenchmark" {
    Accepted("it tunes MaxText's inference server") {
        inference_microbenchmark_prefill_lengths: String = "64,128,256,512,1024";
        inference_microbenchmark_stages: String = "prefill,generate";
        inference_microbenchmark_loop_iters: i64 = "10";
        inference_microbenchmark_log_file_path: String = "\"\"";
        inference_microbenchmark_num_samples: Vec<i64> = "[1, 2, 3, 4, 5]";
        inference_metadata_file: String = "\"\"";
        inference_benchmark_test: bool = "false";
    }
}
"InferenceServer" {
    Accepted("it tunes MaxText's inference server") {
        inference_server: String = "MaxtextInterleavedServer";
        prefill_slice: String = "v5e-16";
        generate_slice: String = "v5e-16";
    }
}
"InferenceLayout" {
    Accepted("it tunes MaxText's inference server") {
        stack_prefill_result_cache: bool = "false";
        prefill_cache_axis_order: String = "1,2,0,3";
        ar_cache_axis_order: String = "1,2,0,3";
        compute_axis_order: String = "0,1,2,3";
        reshape_q: bool = "false";
    }
}
"PrefixCaching" {
    Accepted("it tunes MaxText's inference server") {
        enable_prefix_caching: bool = "false";
        prefix_caching_hbm_byte: i64 = "10000000000";
        prefix_caching_dram_byte: i64 = "100000000000";
    }
}
"VLLM" {
    Accepted("it belongs to vLLM") {
        vllm_hf_config_path: String = "\"\"";
        vllm_hf_overrides: Anything = "{}";
        vllm_additional_config: Anything = "{}";
        use_weight_converter: bool = "true";
        rollout_tensor_parallelism: i64 = "-1";
        rollout_backend: String = "maxtext";
        kv_tp_size: i64 = "1";
        moe_mlp_tp_size: i64 = "1";
        weight_sync_debug: bool = "false";
        use_raiden_ffi: Option<bool> = "None";
        vllm_load_format: String = "dummy";
        kv_cache_buffer: i64 = "256";
        hbm_utilization_vllm: f64 = "0.72";
        swap_space_vllm_gb: i64 = "2";
        free_kv_cache_during_weight_sync: bool = "true";
        enable_dp_attention: bool = "false";
        enable_expert_parallel: bool = "false";
        async_scheduling: bool = "false";
        max_num_batched_tokens: Option<i64> = "None";
        max_num_seqs: Option<i64> = "None";
        vllm_block_size: Option<i64> = "None";
        stop_strings: Anything = "None";
        use_standalone_converter: bool = "false";
        log_weight_sync_time: bool = "false";
        debug_converter: bool = "false";
        gcs_debug_path: String = "\"\"";
    }
}
}
