//! The keys that have a field in [`Config`]: name, type, default, effect and, where a key doesn't work yet, why. This table makes the fields of [`Config`].

use super::choices::*;
use super::kinds::{Files, KeyType, Secret};
use super::{KeySpec, State};
use crate::error::Problem;
use crate::layers::Resolved;
use crate::model::{Activation, DType, DecoderBlock, Placement};
use crate::ranks::Layout;

macro_rules! key_table {
    ($( $group:literal { $( $name:ident: $ty:ty = $default:literal, $doc:literal $(, $state:ident $reason:literal)?; )* } )*) => {
        /// The resolved configuration of a run: one field per implemented key, named as the key.
        ///
        /// Built by [`load`](crate::load) and not changed afterwards. `Debug` and every printed form hide secrets.
        #[derive(Debug, Clone)]
        pub struct Config {
            $($( #[doc = $doc] pub $name: $ty, )*)*
            pub(crate) resolved: Resolved,
            pub(crate) layout: Layout,
        }

        pub(super) static IMPLEMENTED: &[KeySpec] = &[ $($(
            KeySpec::new::<$ty>(stringify!($name), $group, $default, $doc, state!($($state $reason)?)),
        )*)* ];

        impl Config {
            /// Types every setting; values of the wrong type are added to `problems`.
            pub(crate) fn typed(resolved: Resolved, problems: &mut Vec<Problem>) -> Option<Self> {
                $($( let $name = field::<$ty>(&resolved, stringify!($name), problems); )*)*
                Some(Self { $($( $name: $name?, )*)* resolved, layout: Layout::ONE })
            }
        }
    };
}

/// A key of the table works, unless its row ends with another state and the reason.
macro_rules! state {
    () => {
        State::Implemented
    };
    (accepted $reason:literal) => {
        State::Accepted($reason)
    };
    (rejected $reason:literal) => {
        State::Rejected($reason)
    };
}

fn field<T: KeyType>(resolved: &Resolved, name: &'static str, problems: &mut Vec<Problem>) -> Option<T> {
    let setting = resolved.setting(name)?;
    T::parse(&setting.node)
        .map_err(|error| problems.push(Problem::new(setting.place.clone(), format!("`{name}`: {error}"))))
        .ok()
}

key_table! {
"RunInfo" {
    run_name: String = "\"\"", "Name of the run; output goes to base_output_directory/run_name. Empty: $JOBSET_NAME, or the model's name and the time.";
    base_output_directory: String = "\"\"", "Root of all output. Empty: ./maxtext_output.";
    base_config: String = "\"\"", "A parent file, looked up next to this one, then in configs/; `base.yml` is built in.";
    model_name: String = "default", "Takes the shapes of configs/models/NAME.yml; `default` takes none. A suffix -Instruct is ignored.";
    override_model_config: bool = "false", "Your own value wins where it differs from the model preset's; otherwise that is an error.";
    log_config: bool = "true", "Log every resolved key at the start.";
    log_period: usize = "100", "Steps between flushes of metrics.";
}
"HardwareAndMesh" {
    hardware: Hardware = "\"\"", "cpu, gpu or gpu_multiprocess. Unset: a GPU if there is one, else the CPU.";
    scan_layers: bool = "true", "Saved parameters of all layers are stacked; false saves layers_0, layers_1, ...";
    param_scan_axis: usize = "1", "Axis of the layers in stacked parameters, in saved files.";
}
"IciParallelism" {
    ici_data_parallelism: i64 = "1", "Copies of the model within a node; -1 takes the ranks that are left. The ici_* keys multiply to the ranks per node.";
    ici_fsdp_parallelism: i64 = "-1", "Shards of a copy within a node, of parameters, gradients and moments; -1 takes the ranks that are left.";
}
"DcnParallelism" {
    dcn_data_parallelism: i64 = "-1", "Copies of the model over nodes, times those within a node; -1 takes the nodes that are left. The dcn_* keys multiply to the nodes.";
    dcn_fsdp_parallelism: i64 = "1", "Shards of a copy over nodes, times those within a node; -1 takes the nodes that are left.";
}
"ModelArchitecture" {
    decoder_block: DecoderBlock = "llama2", "Decoder layer family.";
    global_parameter_scale: usize = "1", "A power of two that scales width, heads, MLP and layers together.";
    base_emb_dim: usize = "2048", "Model width before scaling.";
    base_num_query_heads: usize = "16", "Query heads before scaling.";
    base_num_kv_heads: usize = "16", "Key and value heads before scaling; divides the query heads.";
    base_mlp_dim: usize = "7168", "MLP hidden width before scaling.";
    base_num_decoder_layers: usize = "16", "Layers before scaling.";
    head_dim: usize = "128", "Width of a head, even; not scaled.";
    mlp_activations: Vec<Activation> = "[silu, linear]", "Branches of the MLP, multiplied: a gate and `linear`.";
    dense_init_scale: f64 = "1.0", "Variance scale of the initial dense kernels.";
    normalization_layer_epsilon: f64 = "1.0e-05", "Epsilon of every RMSNorm.";
    attention_bias: bool = "false", "Bias on the query, key and value projections.";
    vocab_size: usize = "32000", "Rows of the embedding table; at least the tokenizer's vocabulary.";
    init_weights_seed: u64 = "0", "Seed of the initial parameters.";
    enable_dropout: bool = "true", "Apply dropout while training.";
    dropout_rate: f64 = "0.0", "Dropout probability.";
}
"Attention" {
    attention: AttentionChoice = "autoselected", "Attention implementation; autoselected, flash and cudnn_flash_* mean this build's blocked kernel.";
    attention_type: AttentionType = "global", "Which positions a query sees.";
    sliding_window_size: usize = "0", "Window of local_sliding, in positions.";
    attn_logits_soft_cap: f64 = "0.0", "Caps attention scores as cap*tanh(score/cap); 0 is off.";
    float32_qk_product: bool = "false", "Query-key products in float32.";
    float32_logits: bool = "false", "Attention softmax in float32.";
    use_qk_norm: bool = "false", "RMSNorm on every query and key head.";
}
"PositionalEmbedding" {
    use_iota_embed: bool = "false", "Embedding lookup as a product with one-hot rows.";
    rope_type: RopeType = "default", "Rotary embedding: halves, or Llama 3.1's pairs. A model_name that starts with llama3.1 sets llama3.1.";
    rope_linear_scaling_factor: f64 = "1.0", "Multiplies every rotary timescale.";
    rope_use_scale: bool = "true", "Llama 3.1's frequency scaling.";
    rope_min_timescale: usize = "1", "Smallest rotary timescale.";
    rope_max_timescale: usize = "10000", "Rotary base, theta.";
}
"LogitsAndLoss" {
    logits_via_embedding: bool = "false", "The output head is the embedding table.";
    normalize_embedding_logits: bool = "true", "With tied embeddings, divide logits by sqrt(emb_dim).";
    logits_dot_in_fp32: bool = "false", "Output projection in float32.";
    cast_logits_to_fp32: bool = "true", "Logits in float32 before the loss.";
    final_logits_soft_cap: f64 = "0.0", "Caps output logits as cap*tanh(x/cap); 0 is off.";
    z_loss_multiplier: f64 = "0.0", "Adds multiplier*log(Z)^2 per token to the loss.";
    num_vocab_tiling: usize = "1", "Chunks of rows in which the loss is computed.";
}
"DataTypes" {
    dtype: DType = "bfloat16", "Compute dtype.";
    weight_dtype: DType = "float32", "Dtype of the stored parameters.";
    grad_dtype: DType = "float32", "Gradients are cast to it before clipping.";
    mu_dtype: Option<DType> = "\"\"", "Dtype of the first moment; empty is weight_dtype.";
}
"Quantization" {
    quantization: Quantization = "\"\"", "Matrix products of the decoder layers: int8, fp8 or nanoo_fp8 to train (emulated on the CPU), int8w or int4w to decode.";
    quantize_kvcache: bool = "false", "Quantize the KV cache when decoding.";
    kv_quant_axis: KvQuantAxis = "heads_and_dkv", "Axes that share a scale in a quantized KV cache; dkv is more accurate and needs more scales.";
    kv_quant_dtype: KvQuantDtype = "int8", "Element type of a quantized KV cache: int8.";
    checkpoint_is_quantized: bool = "false", "load_parameters_path holds the integers of int8w or int4w, as save_quantized_params_path wrote them.";
    save_quantized_params_path: String = "\"\"", "With int8w or int4w, mt-decode writes the integers to this new folder.";
}
"RematAndOffload" {
    remat_policy: RematPolicyName = "full", "Which activations of a layer are kept for the backward pass.";
    decoder_layer_input: Placement = "device", "custom policy: the input of each layer (device or offload).";
    query_proj: Placement = "remat", "custom policy: query projection.";
    key_proj: Placement = "remat", "custom policy: key projection.";
    value_proj: Placement = "remat", "custom policy: value projection.";
    kv_proj: Placement = "remat", "custom policy: key and value projections, where they have no value of their own.";
    qkv_proj: Placement = "remat", "custom policy: query, key and value projections, where they have no value of their own.";
    context: Placement = "remat", "custom policy: attention output before its projection.";
    out_proj: Placement = "remat", "custom policy: attention output projection.";
    mlpwi: Placement = "remat", "custom policy: both MLP inputs, where they have no value of their own.";
    mlpwi_0: Placement = "remat", "custom policy: gate branch of the MLP.";
    mlpwi_1: Placement = "remat", "custom policy: linear branch of the MLP.";
    mlpwo: Placement = "remat", "custom policy: MLP output.";
    optimizer_memory_host_offload: bool = "false", "Optimizer moments live in host memory, and the CPU updates.";
}
"Checkpointing" {
    enable_checkpointing: bool = "true", "Save and restore checkpoints in the run's folder.";
    async_checkpointing: bool = "true", "Write checkpoints in the background.";
    checkpoint_period: usize = "10000", "Steps between checkpoints.";
    max_num_checkpoints_to_keep: Option<usize> = "None", "Older checkpoints are removed; None keeps all.";
    save_checkpoint_on_start: bool = "true", "Save after the first step.";
    save_checkpoint_on_completion: bool = "true", "Save after the last step.";
    load_parameters_path: String = "\"\"", "Parameters to start from; the step starts at 0.";
    load_full_state_path: String = "\"\"", "Parameters, optimizer and step to start from.";
    checkpoint_storage_target_data_file_size_bytes: u64 = "2147483648", "Size from which parameters are split over several files.";
}
"DatasetGeneral" {
    dataset_type: DatasetType = "synthetic", "Where training text comes from.";
    per_device_batch_size: f64 = "12.0", "Rows per device and micro batch; may be a fraction.";
    eval_per_device_batch_size: f64 = "0.0", "Rows per device in evaluation; 0 is as in training.";
    expansion_factor_real_data: f64 = "-1.0", "Loads this many times the batch; 0 or less is off.";
    max_target_length: usize = "2048", "Length of a row, in tokens.";
    train_data_columns: Vec<String> = "[text]", "Column with the training text (or token ids).";
    eval_data_columns: Vec<String> = "[text]", "Column with the evaluation text (or token ids).";
    packing: bool = "true", "Several documents per row.";
    grain_packing_type: GrainPackingType = "first_fit", "How documents become rows.";
    max_segments_per_seq: i64 = "-1", "Most documents per row; 0 or less is no limit.";
    num_epoch: usize = "1", "Passes over the data.";
    enable_data_shuffling: bool = "true", "Shuffle the training data.";
    data_shuffle_seed: u64 = "0", "Seed of the shuffle.";
    generate_padding_batch_train: bool = "false", "At the end of the data go on with padding instead of stopping.";
    generate_padding_batch_eval: bool = "false", "The same for evaluation.";
    reuse_example_batch: usize = "0", "1: train on the first batch for ever.";
}
"HfDataset" {
    hf_path: String = "\"\"", "Hub dataset such as allenai/c4, or json, parquet, text for local files.";
    hf_name: String = "\"\"", "Configuration of the dataset.";
    hf_data_dir: String = "\"\"", "Folder within the dataset.";
    hf_train_files: Files = "\"\"", "Training files: names or glob patterns.";
    hf_eval_split: String = "\"\"", "Split for evaluation.";
    hf_eval_files: Files = "\"\"", "Evaluation files: names or glob patterns.";
    hf_access_token: Secret = "\"\"", "Hub token; never printed or saved.";
    train_split: String = "train", "Split for training.";
}
"GrainDataset" {
    grain_train_files: Files = "\"\"", "Training files for dataset_type grain.";
    grain_eval_files: Files = "\"\"", "Evaluation files for dataset_type grain.";
    grain_file_type: GrainFileType = "arrayrecord", "Format of these files; parquet is the one that is read here.";
}
"Tokenizer" {
    tokenizer_path: String = "\"\"", "Tokenizer file, folder or Hub id.";
    tokenizer_type: TokenizerType = "sentencepiece", "Format of the tokenizer; byte needs no file.";
    add_bos: bool = "true", "Begin each document with the BOS token.";
    add_eos: bool = "true", "End each document with the EOS token.";
    tokenize_train_data: bool = "true", "false: the column already holds token ids.";
    tokenize_eval_data: bool = "true", "The same for evaluation.";
    use_truncation: bool = "true", "Cut long documents to max_target_length; false splits them over rows (grain).";
}
"TrainingLoop" {
    steps: i64 = "150001", "Training steps; -1 is learning_rate_schedule_steps.";
    gradient_accumulation_steps: usize = "1", "Micro batches per update.";
    eval_interval: i64 = "-1", "Steps between evaluations; 0 or less is never.";
    eval_steps: i64 = "-1", "Batches per evaluation; -1 is all.";
    eval_start_step: usize = "0", "First step after which evaluation may run.";
    target_eval_loss: f64 = "0.0", "Stop when the evaluation loss reaches it; 0 is never.";
    abort_on_nan_loss: bool = "true", "Exit with code 1 on a NaN loss.";
    abort_on_inf_loss: bool = "true", "Exit with code 1 on an infinite loss.";
}
"Optimizer" {
    opt_type: OptType = "adamw", "Optimizer.";
    learning_rate: f64 = "3.0e-05", "Peak learning rate.";
    lr_schedule_type: LrScheduleType = "cosine", "Shape of the schedule.";
    learning_rate_schedule_steps: i64 = "-1", "Length of the schedule; -1 is steps.";
    warmup_steps_fraction: f64 = "0.1", "Share of the schedule that warms up.";
    learning_rate_final_fraction: f64 = "0.1", "Final learning rate as a share of the peak.";
    wsd_decay_steps_fraction: f64 = "0.1", "Share of the schedule that decays in wsd.";
    wsd_decay_style: WsdDecayStyle = "linear", "Shape of that decay.";
    gradient_clipping_threshold: f64 = "1.0", "Largest global gradient norm; 0 is off.";
    skip_step_on_spikes: bool = "false", "Skip the update when loss or gradient norm jumps.";
    skip_step_interval: usize = "128", "Steps over which the usual loss and norm are measured.";
    skip_step_scaling_factor: f64 = "6.0", "Standard deviations above the mean that count as a jump.";
    trainable_parameters_mask: Vec<String> = "[]", "Regular expressions of parameter paths to train; the rest is frozen.";
}
"AdamW" {
    adam_b1: f64 = "0.9", "Decay of the first moment.";
    adam_b2: f64 = "0.95", "Decay of the second moment.";
    adam_eps: f64 = "1.0e-08", "Epsilon outside the root.";
    adam_eps_root: f64 = "0.0", "Epsilon inside the root.";
    adam_weight_decay: f64 = "0.1", "Decoupled weight decay, on every parameter unless masked.";
    adamw_mask: Vec<String> = "[]", "Regular expressions of parameter paths without weight decay.";
}
"Muon" {
    muon_beta: f64 = "0.95", "Momentum.";
    muon_weight_decay: f64 = "0.0", "Decoupled weight decay of the matrices.";
    muon_consistent_rms: Option<f64> = "None", "Scales updates to this RMS; None scales by shape.";
}
"Metrics" {
    enable_tensorboard: bool = "true", "Write TensorBoard event files.";
    metrics_file: String = "\"\"", "JSON lines, one object per step.";
}
"Profiling" {
    profiler: Profiler = "\"\"", "Trace writer; empty is none.";
    skip_first_n_steps_for_profiler: usize = "1", "Steps before the profile.";
    profiler_steps: usize = "5", "Steps in the profile.";
    profile_periodically_period: i64 = "-1", "Profile again every so many steps; -1 is once.";
    profile_cleanly: bool = "true", "Wait for the device at both ends of the profile.",
        accepted "operations on the CPU end before they return, so there is nothing to wait for";
    hide_profiler_step_metric: bool = "false", "No speed in the log lines of steps at which the profile starts or stops.",
        accepted "every step is logged with its speed";
}
"Decoding" {
    prompt: String = "\"I love to\"", "mt-decode: text to continue.";
    max_prefill_predict_length: usize = "64", "Longest prompt, in tokens; max_target_length minus this many are decoded.";
    decode_sampling_strategy: SamplingStrategy = "greedy", "How the next token is drawn.";
    decode_sampling_nucleus_p: f64 = "-1.0", "Probability mass of nucleus sampling.";
    decode_sampling_top_k: usize = "0", "Candidates of top-k sampling.";
    decode_sampling_temperature: f64 = "1.0", "Divides the logits of the candidates before sampling.";
}
"Primus" {
    trainable: bool = "true", "Whether the module trains; false leaves nothing to do and is refused.";
    model: String = "\"\"", "Name of Primus's model preset; informational in a flat file.";
    sink_level: Option<LogLevel> = "None", "Level of both log sinks; None leaves each its own.";
    file_sink_level: LogLevel = "DEBUG", "Level of the log file in the run's folder.";
    stderr_sink_level: LogLevel = "INFO", "Level of the log on stderr.";
}
"mt-train" {
    gemm: Gemm = "hipblaslt", "Matrix products on AMD GPUs: hipblaslt, used where it is installed and agrees with burn, or burn. Variable: MT_GEMM.";
    decode_sampling_seed: u64 = "0", "Seed of sampled decoding.";
    stochastic_rounding: bool = "false", "AdamW and adam_pax round updated bfloat16 weights up or down at random, in proportion.";
    tied_head_in_bf16: bool = "true", "With logits_via_embedding: the head is the embedding rounded to bfloat16, as in MaxText; false keeps it in the compute dtype, as Hugging Face does.";
    hub_cache_gb: f64 = "64", "Downloaded data to keep on disk, in GB; the oldest shards of this run are deleted beyond it.";
    kernel_tuning_dir: String = "\"\"", "Folder for the fastest tiles of GPU kernels, measured at first use. Empty: mt-train in $XDG_CACHE_HOME or ~/.cache; `off`: nothing is measured, a built-in table says.";
    text_unit: TextUnit = "line", "With `hf_path: text`, what one document is: a line, or a whole file.";
    skip_bad_rows: bool = "false", "Count and skip rows that can't be read instead of stopping.";
}
}
