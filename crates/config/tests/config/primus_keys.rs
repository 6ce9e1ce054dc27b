//! One test per key of Primus's parameter reference: what it accepts, what it refuses, and what comes of it.

use mt_config::*;

use crate::support::{Setup, assert_contains, value};

/// `key: value` in a file gives this canonical value.
#[track_caller]
fn accepts(key: &str, values: &[(&str, &str)]) {
    for (text, expected) in values {
        assert_eq!(
            value(&Setup::yaml(&format!("{key}: {text}\n")).loaded(), key),
            *expected,
            "{key}: {text}"
        );
    }
}

#[track_caller]
fn refuses(key: &str, values: &[(&str, &str)]) {
    for (text, expected) in values {
        assert_contains(&Setup::yaml(&format!("{key}: {text}\n")).refused(), &["run.yml:1:1", key, expected]);
    }
}

fn booleans(key: &str, default: bool) {
    assert_eq!(value(&Setup::new().loaded(), key), default.to_string(), "the default of {key}");
    accepts(key, &[("true", "true"), ("false", "false"), ("yes", "true"), ("off", "false")]);
    refuses(
        key,
        &[
            ("maybe", "expected true or false"),
            ("3", "expected true or false"),
            ("", "expected true or false"),
        ],
    );
}

#[test]
fn trainable() {
    accepts("trainable", &[("true", "true")]);
    refuses("trainable", &[("false", "leaves nothing to do"), ("x", "expected true or false")]);
}

#[test]
fn sink_level() {
    accepts("sink_level", &[("null", "null"), ("WARNING", "WARNING"), ("info", "INFO")]);
    refuses("sink_level", &[("LOUD", "expected one of TRACE, DEBUG, INFO, WARNING, ERROR")]);
    let config = Setup::yaml("sink_level: ERROR\nfile_sink_level: DEBUG\n").loaded();
    assert_eq!((config.file_log_level(), config.stderr_log_level()), (LogLevel::Error, LogLevel::Error));
}

#[test]
fn file_sink_level() {
    accepts("file_sink_level", &[("DEBUG", "DEBUG"), ("critical", "ERROR")]);
    refuses("file_sink_level", &[("debgu", "did you mean `DEBUG`?")]);
    assert_eq!(Setup::new().loaded().file_log_level(), LogLevel::Debug);
}

#[test]
fn stderr_sink_level() {
    accepts("stderr_sink_level", &[("SUCCESS", "INFO"), ("trace", "TRACE")]);
    refuses("stderr_sink_level", &[("null", "expected one of")]);
    assert_eq!(Setup::new().loaded().stderr_log_level(), LogLevel::Info);
}

#[test]
fn base_config() {
    accepts("base_config", &[("base.yml", "base.yml"), ("null", "\"\"")]);
    refuses(
        "base_config",
        &[("gone.yml", "neither beside the file nor in configs/"), ("[a]", "expected text")],
    );
}

#[test]
fn hardware() {
    accepts("hardware", &[("cpu", "cpu"), ("gpu", "gpu"), ("gpu_multiprocess", "gpu_multiprocess")]);
    refuses("hardware", &[("tpu", "this build runs on CPUs and GPUs"), ("gpus", "did you mean `gpu`?")]);
    assert_eq!(Setup::new().loaded().hardware, Hardware::Auto);
}

#[test]
fn steps() {
    accepts("steps", &[("150_001", "150001"), ("0", "0")]);
    refuses(
        "steps",
        &[("-2", "0 or more"), ("many", "expected a whole number"), ("1.5", "expected a whole number")],
    );
}

#[test]
fn log_period() {
    accepts("log_period", &[("10", "10")]);
    refuses("log_period", &[("0", "must be above 0"), ("-1", "0 or more")]);
}

#[test]
fn dataset_type() {
    accepts("dataset_type", &[("synthetic", "synthetic")]);
    refuses("dataset_type", &[("tfds", "dataset_type: hf"), ("c4", "expected one of synthetic, hf, grain")]);
    assert_eq!(Setup::yaml("dataset_type: hf\nhf_path: allenai/c4\n").loaded().dataset_type, DatasetType::Hf);
}

#[test]
fn hf_path() {
    accepts("hf_path", &[("allenai/c4", "allenai/c4")]);
    refuses("hf_path", &[("[a]", "expected text")]);
}

#[test]
fn hf_data_dir() {
    accepts("hf_data_dir", &[("en", "en"), ("no", "\"no\""), ("None", "\"\"")]);
}

#[test]
fn hf_train_files() {
    accepts(
        "hf_train_files",
        &[("\"\"", "\"\""), ("\"a*.json.gz\"", "\"a*.json.gz\""), ("a, b", "[a, b]"), ("[a, b]", "[a, b]")],
    );
    refuses("hf_train_files", &[("{a: b}", "expected a list")]);
}

#[test]
fn packing() {
    booleans("packing", true);
}

#[test]
fn enable_checkpointing() {
    booleans("enable_checkpointing", true);
}

#[test]
fn async_checkpointing() {
    booleans("async_checkpointing", true);
}

#[test]
fn profiler() {
    accepts("profiler", &[("\"\"", "\"\""), ("xplane", "xplane"), ("nsys", "nsys"), ("rocprof", "rocprof")]);
    refuses("profiler", &[("xplan", "did you mean `xplane`?")]);
}

#[test]
fn skip_first_n_steps_for_profiler() {
    accepts("skip_first_n_steps_for_profiler", &[("3", "3"), ("0", "0")]);
    refuses("skip_first_n_steps_for_profiler", &[("-3", "0 or more")]);
}

#[test]
fn profiler_steps() {
    accepts("profiler_steps", &[("1", "1")]);
    refuses("profiler_steps", &[("0\nprofiler: xplane", "must be above 0")]);
}

#[test]
fn remat_policy() {
    let names = [
        "full",
        "minimal",
        "minimal_with_context",
        "save_dot_with_context_except_mlp",
        "save_dot_except_mlpwi",
        "save_dot_except_mlp",
        "save_qkv_proj",
        "qkv_proj_offloaded",
        "minimal_offloaded",
        "custom",
        "save_out_proj",
    ];
    accepts("remat_policy", &names.map(|name| (name, name)));
    accepts("remat_policy", &[("none", "\"none\""), ("None", "\"none\"")]);
    accepts(
        "remat_policy",
        &[("minimal_flash", "minimal_with_context"), ("minimal_with_quantization", "minimal")],
    );
    refuses("remat_policy", &[("minimal_flsh", "did you mean `minimal_flash`?")]);
}

#[test]
fn optimizer_memory_host_offload() {
    booleans("optimizer_memory_host_offload", false);
    let plan = |yaml: &str| Setup::yaml(yaml).loaded().plan().memory;
    let name = RematPolicyName::Full;
    let on_gpu = plan("optimizer_memory_host_offload: true\nhardware: gpu\n");
    let kept = plan("hardware: gpu\n");
    let saved = kept.peak(name).unwrap() - on_gpu.peak(name).unwrap();
    assert!(saved >= kept.states.moments, "the device is rid of the moments, and of most gradients");

    // Main memory: float32 gradients and both moments, three of the largest parameter, and moved activations as gradients come.
    let parameters = Setup::yaml("hardware: gpu\n").loaded().plan().parameters;
    let largest = parameters.0.iter().find(|kind| kind.name == "token_embedder/embedding").unwrap().count;
    let host = 4 * parameters.total() + 8 * parameters.total() + 3 * 4 * largest;
    assert_eq!(on_gpu.host_peak(name), Some(host));
    assert_eq!(kept.host_peak(name), Some(0));
    let offloaded = kept.policies.iter().find(|p| p.policy == RematPolicyName::MinimalOffloaded).unwrap();
    assert_eq!(kept.host_peak(RematPolicyName::MinimalOffloaded), Some(offloaded.activity.offloaded));
    let report = |yaml: &str| Setup::yaml(yaml).loaded().dry_run_report(false);
    assert!(report("optimizer_memory_host_offload: true\nhardware: gpu\n").contains("\nhost memory "));
    assert!(!report("hardware: gpu\n").contains("host memory"));

    let config = Setup::yaml("optimizer_memory_host_offload: true\nhardware: cpu\n").loaded();
    let note = "`optimizer_memory_host_offload` has no effect";
    assert!(config.notes().iter().any(|found| found.to_string().contains(note)));
    assert_eq!(config.plan().memory, plan("hardware: cpu\n"));
}

#[test]
fn scan_layers() {
    booleans("scan_layers", true);
    assert!(!Setup::yaml("scan_layers: false\n").loaded().model().scan_layers);
}

#[test]
fn param_scan_axis() {
    accepts("param_scan_axis", &[("0", "0"), ("1", "1")]);
    refuses("param_scan_axis", &[("2", "must be 0 or 1")]);
}

#[test]
fn dtype() {
    accepts("dtype", &[("bfloat16", "bfloat16"), ("float32", "float32")]);
    refuses("dtype", &[("bf61", "expected one of"), ("float16", "float32 or bfloat16")]);
}

#[test]
fn quantization() {
    accepts(
        "quantization",
        &[("\"\"", "\"\""), ("null", "\"\""), ("fp8", "fp8"), ("nanoo_fp8", "nanoo_fp8"), ("int8", "int8")],
    );
    refuses("quantization", &[("fp9", "expected one of"), ("fp8_nanoo", "did you mean `nanoo_fp8`?")]);
}

#[test]
fn quantize_kvcache() {
    booleans("quantize_kvcache", false);
}

#[test]
fn kv_quant_axis() {
    accepts("kv_quant_axis", &[("dkv", "dkv"), ("heads_and_dkv", "heads_and_dkv"), ("\"\"", "\"\"")]);
    refuses(
        "kv_quant_axis",
        &[("heads", "expected one of"), ("\"\"\nquantize_kvcache: true", "needs dkv or heads_and_dkv")],
    );
}

#[test]
fn kv_quant_dtype() {
    accepts("kv_quant_dtype", &[("int8", "int8"), ("int4", "int4")]);
    refuses(
        "kv_quant_dtype",
        &[("fp8", "int8 or int4"), ("int4\nquantize_kvcache: true", "holds int8 values")],
    );
}

#[test]
fn weight_dtype() {
    accepts("weight_dtype", &[("bfloat16", "bfloat16"), ("float32", "float32")]);
    assert_eq!(Setup::yaml("weight_dtype: bfloat16\n").loaded().moment_dtype(), DType::BFloat16);
    assert_eq!(
        Setup::yaml("weight_dtype: bfloat16\nmu_dtype: float32\n").loaded().moment_dtype(),
        DType::Float32
    );
}

#[test]
fn checkpoint_is_quantized() {
    accepts("checkpoint_is_quantized", &[("false", "false")]);
    refuses("checkpoint_is_quantized", &[("true", "needs `quantization: int8w` or `int4w`")]);
}

#[test]
fn logits_dot_in_fp32() {
    booleans("logits_dot_in_fp32", false);
    assert!(Setup::yaml("logits_dot_in_fp32: true\n").loaded().model().logits_dot_in_fp32);
}

#[test]
fn model_name() {
    accepts(
        "model_name",
        &[
            ("default", "default"),
            ("llama3-8b", "llama3-8b"),
            ("llama3.1-8b-Instruct", "llama3.1-8b-Instruct"),
        ],
    );
    refuses(
        "model_name",
        &[("lama3-8b", "did you mean `llama3-8b`?"), ("grok-1", "known are default, llama2-13b")],
    );
}

#[test]
fn override_model_config() {
    booleans("override_model_config", false);
}

#[test]
fn attention() {
    let kernels = [
        ("dot_product", AttentionKernel::DotProduct),
        ("flash", AttentionKernel::Flash),
        ("autoselected", AttentionKernel::Flash),
        ("cudnn_flash_te", AttentionKernel::Flash),
    ];
    for (name, kernel) in kernels {
        assert_eq!(Setup::yaml(&format!("attention: {name}\n")).loaded().model().attention, kernel);
    }
    refuses("attention", &[("cudnn_flash", "did you mean"), ("paged", "serves inference")]);
}

#[test]
fn use_iota_embed() {
    booleans("use_iota_embed", false);
    assert!(Setup::yaml("use_iota_embed: true\n").loaded().model().use_iota_embed);
}

#[test]
fn tokenizer_path() {
    let config = Setup::yaml("tokenizer_path: a/tokenizer_llama3.tiktoken\n").loaded();
    assert_eq!(config.tokenizer_type, TokenizerType::Tiktoken);
    let config = Setup::yaml("model_name: qwen3-0.6b\n").loaded();
    assert_eq!(
        (config.tokenizer_path.as_str(), config.tokenizer_type),
        ("Qwen/Qwen3-0.6B", TokenizerType::Huggingface)
    );
}

#[test]
fn shardy() {
    booleans("shardy", true);
    assert_contains(
        &Setup::yaml("shardy: false\n").loaded().notes()[0].to_string(),
        &["`shardy` has no effect"],
    );
}
