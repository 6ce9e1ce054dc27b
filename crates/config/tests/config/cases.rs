//! The rules of layering, of YAML 1.1 scalars, of the environment and of errors, one row each.

use crate::support::{Setup, assert_contains, value};

enum Expect {
    /// The key's resolved value, as YAML.
    Value(&'static str, &'static str),
    /// The report contains all of these.
    Error(&'static [&'static str]),
}
use Expect::{Error, Value};

struct Case {
    yaml: &'static str,
    args: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    expect: Expect,
}

const fn file(yaml: &'static str, expect: Expect) -> Case {
    Case { yaml, args: &[], env: &[], expect }
}

const fn args(args: &'static [&'static str], expect: Expect) -> Case {
    Case { yaml: "", args, env: &[], expect }
}

const fn env(env: &'static [(&'static str, &'static str)], expect: Expect) -> Case {
    Case { yaml: "", args: &[], env, expect }
}

const fn all(
    yaml: &'static str,
    args: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    expect: Expect,
) -> Case {
    Case { yaml, args, env, expect }
}

#[track_caller]
fn check(cases: &[Case]) {
    for case in cases {
        // A file with nothing in it is an error of its own.
        let mut setup = if case.yaml.is_empty() { Setup::new() } else { Setup::yaml(case.yaml) };
        for argument in case.args {
            setup = setup.arg(argument);
        }
        for (name, value) in case.env {
            setup = setup.env(name, value);
        }
        println!("{:?} {:?} {:?}", case.yaml, case.args, case.env);
        match &case.expect {
            Value(key, expected) => assert_eq!(value(&setup.loaded(), key), *expected, "{key}"),
            Error(parts) => assert_contains(&setup.refused(), parts),
        }
    }
}

#[test]
fn scalars_are_yaml_1_1() {
    check(&[
        file("steps: 150_001", Value("steps", "150001")),
        file("steps: 0x10", Value("steps", "16")),
        file("steps: 0b101", Value("steps", "5")),
        file("steps: 010", Value("steps", "8")),
        file("steps: 1:30", Value("steps", "90")),
        file("steps: +7", Value("steps", "7")),
        file("steps: 10.0", Value("steps", "10")),
        file("steps: 1e2", Value("steps", "100")),
        file("steps: \"25\"", Value("steps", "25")),
        file("steps: 09", Value("steps", "9")),
        file("learning_rate: 3.e-5", Value("learning_rate", "3.0e-5")),
        file("learning_rate: 3e-5", Value("learning_rate", "3.0e-5")),
        file("learning_rate: 1", Value("learning_rate", "1.0")),
        file("learning_rate: .5", Value("learning_rate", "0.5")),
        file("learning_rate: 1_0.5", Value("learning_rate", "10.5")),
        file("packing: no", Value("packing", "false")),
        file("packing: Off", Value("packing", "false")),
        file("packing: 0", Value("packing", "false")),
        file("scan_layers: YES\npacking: \"no\"", Value("packing", "false")),
        file("max_num_checkpoints_to_keep: None", Value("max_num_checkpoints_to_keep", "null")),
        file("max_num_checkpoints_to_keep: ~", Value("max_num_checkpoints_to_keep", "null")),
        file("max_num_checkpoints_to_keep: 3", Value("max_num_checkpoints_to_keep", "3")),
        file("run_name: 2024_01", Value("run_name", "\"2024_01\"")),
        file("run_name: 0123", Value("run_name", "\"0123\"")),
        file("hf_name: no", Value("hf_name", "\"no\"")),
        file("hf_name: None", Value("hf_name", "\"\"")),
        file("hf_name:", Value("hf_name", "\"\"")),
        file("run_name: 'it''s'", Value("run_name", "\"it's\"")),
        file("prompt: \"a\\tb\"", Value("prompt", "\"a\\tb\"")),
        file("run_name: a # b", Value("run_name", "a")),
        file("mlp_activations: [gelu, linear]", Value("mlp_activations", "[gelu, linear]")),
        file("mlp_activations:\n  - relu\n  - linear", Value("mlp_activations", "[relu, linear]")),
        file("train_data_columns: content", Value("train_data_columns", "[content]")),
        file("hf_train_files: 'a*.json, b.json'", Value("hf_train_files", "[\"a*.json\", b.json]")),
        file("\u{feff}steps: 3\r\npacking: on\r\n", Value("steps", "3")),
        file("x: &n 4\n", Error(&["unknown key `x`", "run.yml:1:1"])),
        file("steps: &n 4\nlog_period: *n", Value("log_period", "4")),
        file("base_mlp_dim: !!int '512'", Value("base_mlp_dim", "512")),
    ]);
}

#[test]
fn later_layers_win() {
    check(&[
        file("steps: 5", Value("steps", "5")),
        all("steps: 5", &["steps=6"], &[], Value("steps", "6")),
        all("steps: 5", &[], &[("M_STEPS", "7")], Value("steps", "7")),
        args(&["steps=1", "steps=2"], Value("steps", "2")),
        all(
            "steps: 5",
            &["steps=6"],
            &[("M_STEPS", "7")],
            Error(&["environment variable M_STEPS", "command line"]),
        ),
        file("steps: 5\nsteps: 6", Value("steps", "6")),
        all("model_name: llama3-8b", &[], &[], Value("base_emb_dim", "4096")),
        args(&["model_name=llama3-8b-Instruct"], Value("base_num_kv_heads", "8")),
        env(&[("M_MODEL_NAME", "mistral-7b")], Value("decoder_block", "mistral")),
        all("model_name: llama3-8b", &["model_name=llama2-7b"], &[], Value("base_mlp_dim", "11008")),
        file("model_name: llama3-8b\nbase_emb_dim: 4096", Value("base_emb_dim", "4096")),
        file(
            "model_name: llama3-8b\nbase_emb_dim: 512",
            Error(&[
                "run.yml:2:1: `base_emb_dim` is 512 here and 4096 in the model preset (built-in:configs/models/llama3-8b.yml:",
                "override_model_config: true",
            ]),
        ),
        all(
            "model_name: llama3-8b",
            &["base_emb_dim=512"],
            &[],
            Error(&["command line: `base_emb_dim` is 512"]),
        ),
        all(
            "model_name: llama3-8b",
            &[],
            &[("M_BASE_EMB_DIM", "512")],
            Error(&["M_BASE_EMB_DIM: `base_emb_dim` is 512"]),
        ),
        all(
            "model_name: llama3-8b\nbase_emb_dim: 512",
            &["override_model_config=true"],
            &[],
            Value("base_emb_dim", "512"),
        ),
        all(
            "model_name: llama3-8b\noverride_model_config: yes",
            &[],
            &[("M_BASE_EMB_DIM", "512")],
            Value("base_emb_dim", "512"),
        ),
        all("model_name: llama3-8b", &["mlp_activations=[silu,linear]"], &[], Value("vocab_size", "128256")),
    ]);
}

#[test]
fn arguments_follow_their_key() {
    check(&[
        args(&["steps=1e2"], Value("steps", "100")),
        args(&["steps=2_0"], Value("steps", "20")),
        args(&["steps=10.0"], Value("steps", "10")),
        args(&["steps=1.5"], Error(&["command line: `steps`: expected a whole number, found `1.5`"])),
        args(&["steps=abc"], Error(&["found `abc`"])),
        args(&["steps="], Error(&["`steps`: expected a whole number, found nothing"])),
        args(&["packing=off"], Value("packing", "false")),
        args(&["packing=1"], Value("packing", "true")),
        args(&["packing=2"], Error(&["expected true or false, found `2`"])),
        args(&["mlp_activations=[gelu,linear]"], Value("mlp_activations", "[gelu, linear]")),
        args(&["mlp_activations=silu"], Error(&["must be a gate and `linear`"])),
        args(&["hf_train_files=data/*.json.gz"], Value("hf_train_files", "\"data/*.json.gz\"")),
        args(&["prompt=a: b # c"], Value("prompt", "\"a: b # c\"")),
        args(&["prompt=\"quoted\""], Value("prompt", "quoted")),
        args(&["max_num_checkpoints_to_keep="], Value("max_num_checkpoints_to_keep", "null")),
        args(&["hf_eval_split=none"], Value("hf_eval_split", "\"\"")),
        args(&["remat_policy=none"], Value("remat_policy", "\"none\"")),
        args(&["remat_policy=minimal_flash"], Value("remat_policy", "minimal_with_context")),
        args(&["learning_rate=1e-3"], Value("learning_rate", "0.001")),
        args(&["learning_rate=.inf"], Error(&["expected a number"])),
        args(&["steps=99999999999999999999"], Error(&["expected a whole number"])),
    ]);
}

#[test]
fn variables_set_keys() {
    check(&[
        env(&[("M_STEPS", "12")], Value("steps", "12")),
        env(&[("M_STEPS", "7.5")], Error(&["environment variable M_STEPS", "found `7.5`"])),
        env(&[("M_PACKING", "False")], Value("packing", "false")),
        env(&[("M_RUN_NAME", "yes")], Value("run_name", "\"yes\"")),
        env(
            &[("M_MLP_ACTIVATIONS", "[silu, linear]")],
            Error(&["M_MLP_ACTIVATIONS: `mlp_activations` holds a list"]),
        ),
        env(&[("M_FOO", "1"), ("M_4", "2"), ("M_", "3"), ("m_steps", "4")], Value("steps", "150001")),
        env(&[("JOBSET_NAME", "job")], Value("run_name", "job")),
        env(&[("MT_GEMM", "burn")], Value("gemm", "burn")),
        env(&[("M_GEMM", "burn")], Value("gemm", "burn")),
        env(&[], Value("gemm", "hipblaslt")),
        env(
            &[("MT_GEMM", "cublas")],
            Error(&["environment variable MT_GEMM", "hipblaslt, burn", "`cublas`"]),
        ),
        env(&[], Value("kernel_tuning_dir", "\"\"")),
        env(&[("HOME", "/home/me")], Value("kernel_tuning_dir", "/home/me/.cache/mt-train")),
        env(
            &[("HOME", "/home/me"), ("XDG_CACHE_HOME", "/cache")],
            Value("kernel_tuning_dir", "/cache/mt-train"),
        ),
        env(
            &[("HOME", "/home/me"), ("XDG_CACHE_HOME", "not/absolute")],
            Value("kernel_tuning_dir", "/home/me/.cache/mt-train"),
        ),
        env(&[("HOME", "/home/me"), ("M_KERNEL_TUNING_DIR", "off")], Value("kernel_tuning_dir", "\"off\"")),
    ]);
}

#[test]
fn names_are_checked() {
    check(&[
        file("stps: 1", Error(&["run.yml:1:1: unknown key `stps`; did you mean `steps`?"])),
        file("a: 1\n  b: 2", Error(&["run.yml:2", "not YAML"])),
        args(&["lerning_rate=1"], Error(&["did you mean `learning_rate`?"])),
        args(&["learning-rate=1"], Error(&["did you mean `learning_rate`?"])),
        args(&["zzzzzz=1"], Error(&["unknown key `zzzzzz`; `mt-train --help-keys PATTERN`"])),
        args(&["remat_policy=ful"], Error(&["did you mean `full`?"])),
        args(&["attention=flsh"], Error(&["did you mean `flash`?"])),
        args(&["opt_type=adam"], Error(&["expected one of adamw, adam_pax, sgd, muon, found `adam`"])),
        args(
            &["model_name=llama3-9b"],
            Error(&["`model_name: llama3-9b` has no preset", "did you mean `llama3-8b`?"]),
        ),
        args(&["model_name=../x"], Error(&["has no preset"])),
        args(&["hardware=tpu"], Error(&["`tpu` isn't available"])),
        args(&["dataset_type=tfds"], Error(&["`tfds` isn't available", "dataset_type: hf"])),
        args(&["decoder_block=mixtral"], Error(&["mixture-of-experts"])),
        args(&["num_experts=8"], Error(&["`num_experts: 8` isn't available: mixture-of-experts"])),
        args(&["num_experts=1"], Value("num_experts", "1")),
        args(
            &["ici_tensor_parallelism=2"],
            Error(&[
                "`ici_tensor_parallelism: 2` isn't available: only the data and fsdp axes can be above 1",
            ]),
        ),
        args(&["dcn_pipeline_parallelism=4"], Error(&["only the data and fsdp axes can be above 1"])),
        args(&["ici_tensor_parallelism=-1"], Value("ici_tensor_parallelism", "1")),
        args(&["ici_fsdp_parallelism=8"], Value("ici_fsdp_parallelism", "8")),
        args(&["quantization=int8"], Value("quantization", "int8")),
        args(&["save_quantized_params_path=q"], Error(&["`save_quantized_params_path: q`"])),
        args(&["sa_block_q=many"], Error(&["`sa_block_q`: expected a whole number"])),
    ]);
}

#[test]
fn values_must_make_sense_together() {
    check(&[
        args(&["base_num_kv_heads=3"], Error(&["`base_num_kv_heads: 3`: must divide the 16 query heads"])),
        args(&["head_dim=65"], Error(&["`head_dim: 65`: must be even"])),
        args(&["base_emb_dim=0"], Error(&["`base_emb_dim: 0`: must be above 0"])),
        args(&["base_emb_dim=-5"], Error(&["expected a whole number, 0 or more, found `-5`"])),
        args(&["base_mlp_dim=99999999999"], Error(&["at most"])),
        args(&["global_parameter_scale=3"], Error(&["must be a power of two"])),
        args(&["global_parameter_scale=0"], Error(&["must be a power of two"])),
        args(&["per_device_batch_size=0"], Error(&["must be above 0"])),
        args(&["per_device_batch_size=-1"], Error(&["must be above 0"])),
        args(&["steps=-2"], Error(&["`steps: -2`: must be 0 or more"])),
        args(&["steps=-1"], Error(&["`steps: -1`"])),
        args(&["steps=-1", "learning_rate_schedule_steps=40"], Value("steps", "40")),
        args(&["steps=30"], Value("learning_rate_schedule_steps", "30")),
        args(&["steps=30", "learning_rate_schedule_steps=-7"], Error(&["learning_rate_schedule_steps"])),
        args(&["learning_rate=-1"], Error(&["`learning_rate: -1.0`: must be 0 or more"])),
        args(&["warmup_steps_fraction=1.5"], Error(&["must be between 0 and 1"])),
        args(&["gradient_accumulation_steps=0"], Error(&["must be above 0"])),
        args(
            &["load_parameters_path=a", "load_full_state_path=b"],
            Error(&["`load_full_state_path: b`: load_parameters_path is set as well"]),
        ),
        args(&["quantize_kvcache=true", "kv_quant_axis="], Error(&["needs dkv or heads_and_dkv"])),
        args(&["hub_cache_gb=-1"], Error(&["`hub_cache_gb: -1", "0 or more"])),
        args(&["attention_type=local_sliding"], Error(&["`sliding_window_size: 0`: must be above 0"])),
        args(&["dataset_type=hf"], Error(&["`hf_path: \"\"`"])),
        args(&["dataset_type=hf", "hf_path=json"], Error(&["name them here"])),
        args(&["remat_policy=custom", "decoder_layer_input=remat"], Error(&["can't be recomputed"])),
        args(&["adamw_mask=['(']"], Error(&["isn't a regular expression"])),
        args(&["param_scan_axis=2"], Error(&["must be 0 or 1"])),
        args(&["num_vocab_tiling=7"], Error(&["must divide the 24576 tokens"])),
        args(&["trainable=false"], Error(&["leaves nothing to do"])),
        args(&["weight_dtype=float16"], Error(&["float32 or bfloat16"])),
    ]);
}

#[test]
fn all_problems_are_listed_at_once() {
    let report = Setup::yaml("stps: 1\nhead_dim: 65\nlearning_rate: fast\nopt_type: adamv\n")
        .arg("base_emb_dim=0")
        .refused();
    assert_contains(
        &report,
        &[
            "3 problems",
            "run.yml:1:1: unknown key `stps`",
            "run.yml:3:1: `learning_rate`",
            "run.yml:4:1: `opt_type`",
        ],
    );

    let report = Setup::yaml("stps: 1\nhead_dim: 65\nbase_num_kv_heads: 3\n").arg("base_emb_dim=0").refused();
    assert_contains(
        &report,
        &["4 problems", "`stps`", "`head_dim: 65`", "`base_num_kv_heads: 3`", "`base_emb_dim: 0`"],
    );
}

#[test]
fn a_near_miss_in_the_environment_is_noted() {
    let notes = Setup::new().env("M_STEP", "4").env("M_FOO", "1").loaded().notes();
    assert_eq!(notes.len(), 1);
    assert_contains(&notes[0].to_string(), &["environment variable M_STEP", "did you mean M_STEPS?"]);
}

#[test]
fn duplicates_and_keys_without_effect_are_noted() {
    let notes =
        Setup::yaml("steps: 1\nsteps: 2\nshardy: false\nmegablox: true\nemb_dim: 77\n").loaded().notes();
    let notes: Vec<String> = notes.iter().map(ToString::to_string).collect();
    assert_eq!(notes.len(), 3, "{notes:#?}");
    assert_contains(
        &notes.join("\n"),
        &["`steps` is set twice", "`shardy` has no effect", "`emb_dim` has no effect"],
    );
}
