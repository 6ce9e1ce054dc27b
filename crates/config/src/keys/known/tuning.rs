//! Post-training: adapters, preferences, reinforcement learning, distillation.

use crate::keys::kinds::Anything;

known! {
"FineTuning" {
    Rejected("this build pre-trains") {
        use_dpo: bool = "false";
        use_sft: bool = "false";
        use_grpo: Option<bool> = "None";
    }
    Accepted("it belongs to MaxText's post-training") {
        sft_train_on_completion_only: bool = "false";
        formatting_func_path: String = "\"\"";
        formatting_func_kwargs: Anything = "{}";
    }
}
"DPO" {
    Accepted("it belongs to MaxText's post-training") {
        algo: String = "dpo";
        dpo_beta: f64 = "0.1";
        orpo_lambda: f64 = "0.1";
        dpo_label_smoothing: f64 = "0.0";
        max_prompt_length: Option<i64> = "None";
    }
}
"LoRA" {
    Rejected("adapters aren't part of this build") {
        enable_lora: bool = "false";
        lora_rank: i64 = "0";
        lora_module_path: String = "\"\"";
        lora_restore_path: String = "\"\"";
    }
    Accepted("it acts only with enable_lora") {
        lora_alpha: f64 = "0.0";
        lora_weight_qtype: String = "None";
        lora_tile_size: Option<i64> = "None";
    }
}
"Distillation" {
    Accepted("it belongs to MaxText's distillation") {
        distill_alpha: f64 = "0.5";
        distill_temperature: f64 = "1.0";
        distill_beta: f64 = "0.0";
        distill_feature_loss_type: String = "cosine";
        distill_layer_indices: Anything = "None";
        distill_alpha_end: Option<f64> = "None";
        distill_alpha_schedule: String = "constant";
        distill_temperature_end: Option<f64> = "None";
        distill_temperature_schedule: String = "constant";
        distill_beta_end: Option<f64> = "None";
        distill_beta_schedule: String = "constant";
        student_overrides: Anything = "{}";
        teacher_overrides: Anything = "{}";
        offline_data_dir: String = "None";
        learn_to_init_mode: bool = "false";
        lti_use_general_linear_map: bool = "false";
        distill_weights_copy_map: Anything = "{}";
        distill_student_weights_share_map: Anything = "{}";
        attn_module_name: String = "None";
        lti_layer_indices: Anything = "None";
        student_params_to_update: Anything = "None";
    }
}
"RL" {
    Accepted("it belongs to MaxText's reinforcement learning") {
        system_prompt: String = "\"\"";
        num_generations: i64 = "2";
        num_iterations: i64 = "1";
        grpo_beta: f64 = "0.08";
        grpo_epsilon: f64 = "0.2";
        loss_algo: String = "grpo";
        loss_agg_mode: String = "sequence-mean-token-mean";
        use_agentic_rollout: bool = "false";
        max_concurrency: i64 = "256";
        off_policy_steps: i64 = "0";
        epsilon_high: Option<f64> = "None";
        reshard_chunk_size: Option<i64> = "None";
        use_rollout_logps: bool = "true";
        force_on_policy_ratio: bool = "false";
        log_sampler_trainer_agreement: bool = "false";
    }
}
"RLCluster" {
    Accepted("it belongs to MaxText's reinforcement learning") {
        trainer_devices_fraction: f64 = "0.5";
        sampler_devices_fraction: f64 = "0.5";
        chips_per_vm: i64 = "4";
        use_pathways: bool = "true";
        num_trainer_slices: i64 = "-1";
        num_samplers_slices: i64 = "-1";
        rollout_data_parallelism: i64 = "-1";
        rollout_expert_parallelism: i64 = "1";
        inference_replicas: i64 = "1";
        inference_devices_per_replica: i64 = "4";
        inference_rollouts: i64 = "1";
        use_pathways_reshard: bool = "true";
        gc_collect_after_weight_sync: bool = "true";
    }
}
"RLEvaluation" {
    Accepted("it belongs to MaxText's reinforcement learning") {
        eval_sampling_strategy: String = "greedy";
        generation_configs: Anything = "{}";
        num_eval_passes: i64 = "1";
        eval_corr_lst: bool = "false";
        eval_make_lst: bool = "false";
        eval_mode: String = "pass";
    }
}
"RLReward" {
    Accepted("it belongs to MaxText's reinforcement learning") {
        reward_exact_answer: f64 = "5.0";
        reward_exact_format_match: f64 = "3.0";
        reward_white_space_format_match: f64 = "1.5";
        reward_partial_format_match: f64 = "0.5";
        reward_ratio_guess_to_answer_high: f64 = "0.5";
        reward_ratio_guess_to_answer_low: f64 = "0.25";
        penalty_incorrect_format: f64 = "-0.5";
        penalty_incorrect_answer: f64 = "-1.0";
        math_verify_timeout: i64 = "300";
        math_verify_num_procs: Option<i64> = "None";
        reward_num_workers: i64 = "0";
        reward_worker_timeout_seconds: f64 = "180.0";
        reward_functions_path: String = "\"\"";
        reward_functions: String = "\"\"";
    }
}
"RLSpecialTokens" {
    Accepted("it belongs to MaxText's reinforcement learning") {
        reasoning_start_token: String = "<reasoning>";
        reasoning_end_token: String = "</reasoning>";
        reasoning_start_token_in_prompt: bool = "false";
        solution_start_token: String = "<answer>";
        solution_end_token: String = "</answer>";
    }
}
"RLConfig" {
    Accepted("it belongs to MaxText's reinforcement learning") {
        enable_tunix_perf_metrics: bool = "false";
        debug: bool = "false";
        cluster: Anything = "{}";
        rl: Anything = "{}";
        dataset: Anything = "{}";
        reward: Anything = "{}";
        special_tokens: Anything = "{}";
        evaluation: Anything = "{}";
        vllm: Anything = "{}";
    }
}
"MaxTextConfig" {
    Accepted("it belongs to MaxText's post-training") {
        dpo: Anything = "{}";
        lora: Anything = "{}";
    }
}
}
