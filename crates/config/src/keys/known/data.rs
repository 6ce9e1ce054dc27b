//! Data loaders and tokenizing modes.

use crate::keys::kinds::Anything;

known! {
"Tokenizer" {
    Rejected("chat templates serve fine-tuning, which isn't part of this build") {
        use_chat_template: bool = "false";
    }
    Accepted("it acts only with use_chat_template") {
        chat_template_path: String = "\"\"";
        chat_template: String = "\"\"";
        data_template_path: String = "\"\"";
    }
}
"DatasetGeneral" {
    Rejected("the batch size is constant and documents aren't streamed in chunks in this build") {
        use_stream_chunking: Option<bool> = "None";
        enable_rampup_batch_size: bool = "false";
    }
    Accepted("it acts only with images, prompts, rampup or a loader that isn't part of this build") {
        max_corpus_chars: i64 = "10000000";
        train_image_column: Anything = "image";
        eval_image_column: Anything = "image";
        default_prompt: String = "\"\"";
        per_device_batch_size_start: f64 = "4.0";
        per_device_batch_size_increment: f64 = "2.0";
        global_rampup_samples: i64 = "500";
        colocated_python_data_input: bool = "false";
    }
}
"TfdsDataset" {
    Accepted("it is read by dataset_type tfds only") {
        dataset_path: String = "\"\"";
    }
}
"RLDataset" {
    Accepted("it is read by dataset_type tfds or by MaxText's reinforcement learning only") {
        dataset_name: String = "c4/en:3.1.0";
        eval_dataset_name: String = "c4/en:3.1.0";
        eval_split: String = "validation";
        hf_subset: String = "None";
        batch_size: i64 = "1";
        num_batches: i64 = "4";
        num_test_batches: i64 = "5";
        eval_batch_size: i64 = "-1";
        test_batch_start_index: i64 = "0";
        train_fraction: f64 = "1.0";
        train_micro_batch_size: i64 = "-1";
        rollout_micro_batch_size: i64 = "-1";
        max_seq_token_per_tpu: i64 = "0";
        dataset_processor_path: String = "\"\"";
    }
}
"GrainDataset" {
    Rejected("mixtures of datasets aren't part of this build") {
        grain_train_mixture_config_path: String = "\"\"";
    }
    Accepted("the loader chooses its threads and buffers; they never change the order of the data") {
        grain_worker_count: i64 = "1";
        grain_per_worker_buffer_size: i64 = "1";
        grain_num_threads: i64 = "16";
        grain_prefetch_buffer_size: i64 = "500";
        grain_worker_count_eval: i64 = "1";
        grain_per_worker_buffer_size_eval: i64 = "1";
        grain_ram_budget_mb: i64 = "1024";
        grain_num_threads_eval: i64 = "16";
        grain_prefetch_buffer_size_eval: i64 = "500";
        grain_data_source_max_workers: i64 = "16";
        grain_index_storage_option: String = "None";
        grain_shuffle_buffer_size: i64 = "100";
        grain_use_elastic_iterator: bool = "false";
    }
}
"MMapDataset" {
    Accepted("it is read by grain_file_type mmap only") {
        mmap_eod_id: i64 = "0";
        blend_cache_dir: String = "\"\"";
        blend_index_dir: String = "\"\"";
        reset_attention_mask: bool = "true";
        eod_mask_loss: bool = "false";
        packing_max_segments_per_sample: i64 = "25";
        mmap_split_sentences: bool = "false";
        mmap_npy_split: String = "\"\"";
    }
}
"OlmoGrainDataset" {
    Accepted("it is read by dataset_type olmo_grain only") {
        olmo_index_path: String = "\"\"";
        olmo_path_remap_from: String = "\"\"";
        olmo_path_remap_to: String = "\"\"";
        olmo_apply_ngram_filter: bool = "true";
    }
}
}
