//! Keys with a fixed set of values. A value of MaxText's that this build doesn't have is refused in a sentence.

use super::kinds::{KeyType, Syntax, describe};
use crate::model::{Activation, DType, DecoderBlock, Placement};
use crate::node::{Node, Value};

/// A type with named values.
pub trait Choice: Copy + PartialEq + Sized + 'static {
    /// The values and how they are written; the first text of a value is its canonical one.
    const VALUES: &'static [(&'static str, Self)];
    /// Values that are known and not available, each with the reason.
    const REFUSED: &'static [(&'static str, &'static str)] = &[];
}

impl<T: Choice> KeyType for T {
    const SYNTAX: Syntax = Syntax::Text;

    fn describe() -> String {
        let mut listed: Vec<&str> = Vec::new();
        let mut shown: Vec<T> = Vec::new();
        for (text, value) in T::VALUES {
            if !shown.contains(value) {
                shown.push(*value);
                listed.push(if text.is_empty() { "\"\"" } else { text });
            }
        }
        format!("one of {}", listed.join(", "))
    }

    fn parse(node: &Node) -> Result<Self, String> {
        let named = |name: &str| T::VALUES.iter().find(|(text, _)| text.eq_ignore_ascii_case(name));
        let none = || named("").or_else(|| named("none")).map(|(_, value)| *value);
        if let Some(value) = node.is_none().then(none).flatten() {
            return Ok(value);
        }
        let text = node.scalar_text().unwrap_or_default().trim();
        if let Some((_, value)) = node.scalar_text().and_then(|_| named(text)) {
            return Ok(*value);
        }
        if let Some((_, reason)) = T::REFUSED.iter().find(|(refused, _)| refused.eq_ignore_ascii_case(text)) {
            return Err(format!("`{text}` isn't available: {reason}"));
        }
        let near = super::nearest(text, T::VALUES.iter().map(|(text, _)| *text));
        let suggestion = near.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
        Err(format!("expected {}, found {}{suggestion}", T::describe(), describe(node)))
    }

    fn to_value(&self) -> Value {
        let text = T::VALUES.iter().find(|(_, value)| value == self).map_or("", |(text, _)| text);
        Value::Text(text.to_owned())
    }
}

macro_rules! choice {
    ($(#[$doc:meta])* pub enum $name:ident { $( $(#[$vdoc:meta])* $variant:ident = $($text:literal)|+, )* }
     $(refused { $( $bad:literal => $why:literal, )* })?) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $( $(#[$vdoc])* $variant, )* }
        choice!(impl $name { $( $variant = $($text)|+, )* } $(refused { $( $bad => $why, )* })?);
    };
    (impl $name:ident { $( $variant:ident = $($text:literal)|+, )* } $(refused { $( $bad:literal => $why:literal, )* })?) => {
        impl Choice for $name {
            const VALUES: &'static [(&'static str, Self)] = &[ $( $( ($text, Self::$variant), )+ )* ];
            $( const REFUSED: &'static [(&'static str, &'static str)] = &[ $( ($bad, $why), )* ]; )?
        }
    };
}

choice!(impl DType { Float32 = "float32" | "f32", BFloat16 = "bfloat16" | "bf16", Float16 = "float16" | "f16", });

choice!(impl DecoderBlock { Llama2 = "llama2", Mistral = "mistral", Qwen2 = "qwen2", Qwen3 = "qwen3", }
refused {
    "default" => "choose a block by name; `llama2` is the one of every Llama",
    "mixtral" => "mixture-of-experts layers aren't part of this build, only dense decoders",
    "deepseek" => "mixture-of-experts layers aren't part of this build, only dense decoders",
    "qwen3_moe" => "mixture-of-experts layers aren't part of this build, only dense decoders",
    "gpt_oss" => "mixture-of-experts layers aren't part of this build, only dense decoders",
    "llama4" => "mixture-of-experts layers aren't part of this build, only dense decoders",
    "gemma" => "this build has the blocks of Llama, Mistral and Qwen",
    "gemma2" => "this build has the blocks of Llama, Mistral and Qwen",
    "gemma3" => "this build has the blocks of Llama, Mistral and Qwen",
    "gpt3" => "this build has the blocks of Llama, Mistral and Qwen",
    "simple" => "this build has the blocks of Llama, Mistral and Qwen",
    "olmo3" => "this build has the blocks of Llama, Mistral and Qwen",
});

choice!(impl Activation { Silu = "silu" | "swish", Gelu = "gelu", Relu = "relu", Linear = "linear", });

choice!(impl Placement { Remat = "remat", Device = "device", Offload = "offload", });

choice! {
    /// On which kind of device to run (`hardware`).
    pub enum Hardware {
        /// A GPU if there is one, else the CPU.
        Auto = "" | "auto",
        /// The CPU.
        Cpu = "cpu",
        /// One GPU of this process.
        Gpu = "gpu",
        /// One GPU per process.
        GpuMultiprocess = "gpu_multiprocess",
    }
    refused { "tpu" => "this build runs on CPUs and GPUs; leave hardware unset to take a GPU if there is one", }
}

choice! {
    /// Attention as it is asked for (`attention`); [`Config::model`](crate::Config::model) maps it to a kernel.
    pub enum AttentionChoice {
        /// The blocked kernel wherever it applies.
        Autoselected = "autoselected",
        /// The reference: scores are materialised.
        DotProduct = "dot_product",
        /// The blocked kernel.
        Flash = "flash",
        /// What Primus writes for AMD GPUs: the blocked kernel here.
        CudnnFlashTe = "cudnn_flash_te",
        /// MaxText's other cuDNN path: the blocked kernel here.
        CudnnFlashJax = "cudnn_flash_jax",
    }
    refused {
        "paged" => "paged attention serves inference in MaxText; use `flash`",
        "vllm_rpa" => "it belongs to vLLM; use `flash`",
    }
}

choice! {
    /// Which positions a query sees (`attention_type`).
    pub enum AttentionType {
        /// All earlier positions of its document.
        Global = "global" | "full",
        /// The last `sliding_window_size` of them.
        LocalSliding = "local_sliding",
    }
    refused {
        "chunk" => "chunked attention isn't part of this build; use `global` or `local_sliding`",
        "mla" => "latent attention isn't part of this build; use `global` or `local_sliding`",
        "compressed" => "compressed attention isn't part of this build; use `global` or `local_sliding`",
        "block_diffusion" => "block diffusion isn't part of this build; use `global` or `local_sliding`",
    }
}

choice! {
    /// Rotary embedding family (`rope_type`).
    pub enum RopeType {
        /// Rotates halves, without frequency scaling.
        Default = "default",
        /// Rotates interleaved pairs, with Llama 3.1's frequency scaling.
        Llama31 = "llama3.1",
    }
    refused { "yarn" => "YaRN scaling isn't part of this build; use `default` or `llama3.1`", }
}

choice! {
    /// What of a layer is kept for the backward pass (`remat_policy`), by MaxText's names.
    pub enum RematPolicyName {
        /// Only the layer inputs.
        Full = "full",
        /// Everything: nothing is computed twice. MaxText treats `none` as `full`.
        None = "none",
        /// All projections and MLP matmuls.
        Minimal = "minimal" | "minimal_with_quantization",
        /// `minimal` and the attention output before its projection.
        MinimalWithContext = "minimal_with_context" | "minimal_flash" | "minimal_with_context_and_quantization",
        /// Query, key, value, context and output projection.
        SaveDotWithContextExceptMlp = "save_dot_with_context_except_mlp",
        /// Query, key, value and output projections, and the MLP's output.
        SaveDotExceptMlpwi = "save_dot_except_mlpwi",
        /// Query, key, value and output projections.
        SaveDotExceptMlp = "save_dot_except_mlp",
        /// Query, key and value projections.
        SaveQkvProj = "save_qkv_proj",
        /// Query, key and value projections, in host memory.
        QkvProjOffloaded = "qkv_proj_offloaded",
        /// The set of `minimal`, in host memory.
        MinimalOffloaded = "minimal_offloaded",
        /// Each activation by its own key.
        Custom = "custom",
        /// The output projection.
        SaveOutProj = "save_out_proj",
    }
}

choice! {
    /// Where training text comes from (`dataset_type`).
    pub enum DatasetType {
        /// One fixed random batch.
        Synthetic = "synthetic",
        /// Hugging Face Hub or local text, json and parquet files.
        Hf = "hf",
        /// Local parquet files with grain's packing.
        Grain = "grain",
    }
    refused {
        "tfds" => "TensorFlow datasets aren't read here; `dataset_type: hf` with hf_path and hf_train_files reads the same C4 as json.gz",
        "c4_mlperf" => "use `dataset_type: hf` with `hf_path: allenai/c4`",
        "olmo_grain" => "use `dataset_type: hf` with `hf_path: json` and hf_train_files",
    }
}

choice! {
    /// Tokenizer file format (`tokenizer_type`).
    pub enum TokenizerType {
        /// A sentencepiece `tokenizer.model`.
        Sentencepiece = "sentencepiece",
        /// A tiktoken rank file.
        Tiktoken = "tiktoken",
        /// A `tokenizer.json`.
        Huggingface = "huggingface",
        /// One token per byte; needs no file.
        Byte = "byte",
    }
}

choice! {
    /// How documents become rows (`grain_packing_type`).
    pub enum GrainPackingType {
        /// The first row with room.
        FirstFit = "first_fit",
        /// The fullest row with room.
        BestFit = "best_fit",
        /// One long stream, cut at row ends.
        ConcatThenSplit = "concat_then_split",
    }
}

choice! {
    /// Format of local files for `dataset_type: grain` (`grain_file_type`).
    pub enum GrainFileType {
        /// Parquet.
        Parquet = "parquet",
        /// MaxText's default, which can't be read here; only an error when grain data is asked for.
        Arrayrecord = "arrayrecord",
    }
    refused {
        "tfrecord" => "use parquet files",
        "mmap" => "use parquet files",
    }
}

choice! {
    /// What one document of a text file is (`text_unit`).
    pub enum TextUnit {
        /// A line, as the `text` builder of `datasets` has it.
        Line = "line",
        /// The whole file.
        File = "file",
    }
}

choice! {
    /// Optimizer (`opt_type`).
    pub enum OptType {
        /// AdamW as optax computes it.
        Adamw = "adamw",
        /// Adam as in Pax: bias correction folded in the decay.
        AdamPax = "adam_pax",
        /// Plain gradient descent.
        Sgd = "sgd",
        /// Muon for matrices, AdamW for the rest.
        Muon = "muon",
    }
}

choice! {
    /// Shape of the learning rate over time (`lr_schedule_type`).
    pub enum LrScheduleType {
        /// Warm-up, then a half cosine.
        Cosine = "cosine",
        /// Warm-up, constant, decay.
        Wsd = "wsd",
    }
}

choice! {
    /// Shape of the decay of `wsd` (`wsd_decay_style`).
    pub enum WsdDecayStyle {
        /// A straight line.
        Linear = "linear",
        /// A half cosine.
        Cosine = "cosine",
    }
}

choice! {
    /// Trace writer (`profiler`).
    pub enum Profiler {
        /// No profile.
        Off = "",
        /// XPlane files for XProf and TensorBoard.
        Xplane = "xplane",
        /// NVTX ranges for Nsight Systems.
        Nsys = "nsys",
        /// roctx ranges for rocprof.
        Rocprof = "rocprof",
    }
}

choice! {
    /// Matmul quantization (`quantization`).
    pub enum Quantization {
        /// None.
        Off = "",
        /// Both sides int8, dynamic absmax scales.
        Int8 = "int8",
        /// Weights int8, for decoding.
        Int8w = "int8w",
        /// Weights int4, for decoding.
        Int4w = "int4w",
        /// e4m3 forward, e5m2 backward.
        Fp8 = "fp8",
        /// The fnuz forms of MI300X.
        NanooFp8 = "nanoo_fp8",
    }
    refused {
        "int4" => "this build has int8, int8w, int4w, fp8 and nanoo_fp8",
        "intmp" => "mixed-precision quantization files aren't read here",
        "fp8_full" => "this build has int8, int8w, int4w, fp8 and nanoo_fp8",
        "fp8_gpu" => "this build has int8, int8w, int4w, fp8 and nanoo_fp8",
        "fp8_nanoo" => "this build has int8, int8w, int4w, fp8 and nanoo_fp8; did you mean `nanoo_fp8`?",
        "te_fp8_delayedscaling" => "Transformer Engine recipes belong to JAX; use `fp8`",
    }
}

choice! {
    /// Axes that share one scale in a quantized KV cache (`kv_quant_axis`).
    pub enum KvQuantAxis {
        /// None: only without `quantize_kvcache`.
        Unset = "",
        /// One scale per batch row, position and head.
        Dkv = "dkv",
        /// One scale per batch row and position.
        HeadsAndDkv = "heads_and_dkv",
    }
}

choice! {
    /// Element type of a quantized KV cache (`kv_quant_dtype`).
    pub enum KvQuantDtype {
        /// 8 bits.
        Int8 = "int8",
        /// 4 bits.
        Int4 = "int4",
    }
    refused { "fp8" => "the cache holds int8 or int4 values", }
}

choice! {
    /// How the next token is drawn (`decode_sampling_strategy`).
    pub enum SamplingStrategy {
        /// The most likely one.
        Greedy = "greedy",
        /// In proportion to its probability.
        Weighted = "weighted",
        /// From the smallest set with total probability p.
        Nucleus = "nucleus",
        /// From the k most likely.
        Topk = "topk",
        /// Top-k, then nucleus, then weighted.
        Composite = "composite",
    }
}

choice! {
    /// Who computes matrix products on AMD GPUs (`gemm`).
    pub enum Gemm {
        /// hipBLASLt where it's installed and agrees with burn, else burn.
        HipBlasLt = "hipblaslt",
        /// burn's kernels.
        Burn = "burn",
    }
}

choice! {
    /// Severity from which a sink takes log lines (Primus's sink levels).
    pub enum LogLevel {
        /// Everything.
        Trace = "TRACE",
        /// Debugging.
        Debug = "DEBUG",
        /// Progress.
        Info = "INFO" | "SUCCESS",
        /// Warnings.
        Warning = "WARNING" | "WARN",
        /// Errors only.
        Error = "ERROR" | "CRITICAL",
    }
}
