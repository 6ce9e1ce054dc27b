//! Primus experiments: presets, `extends`, `${VAR}`, overrides, and the flat file that Primus writes.

use mt_config::{AttentionChoice, DType, Degrees, Profiler, Quantization, Ranks, RematPolicyName};

use crate::support::{Setup, assert_contains, value};

const RECIPE: &str = include_str!("data/llama3_8B-bf16-pretrain.yaml");

fn experiment(module: &str) -> Setup {
    let head = "work_group: amd\nuser_name: root\nexp_name: exp\nworkspace: ./output\nmodules:\n  pre_trainer:\n    framework: maxtext\n";
    Setup::new().file("exp.yaml", format!("{head}{module}")).config("exp.yaml")
}

#[test]
fn a_recipe_loads_as_it_is() {
    let config = Setup::new().file("exp.yaml", RECIPE).config("exp.yaml").loaded();
    assert_eq!((config.steps, config.max_target_length, config.per_device_batch_size), (50, 8192, 4.0));
    assert_eq!(
        (config.model_name.as_str(), config.base_emb_dim, config.vocab_size),
        ("llama3-8b", 4096, 128_256)
    );
    assert_eq!(config.remat_policy, RematPolicyName::MinimalWithContext);
    assert_eq!((config.weight_dtype, config.attention), (DType::BFloat16, AttentionChoice::CudnnFlashTe));
    assert_eq!((config.profiler, config.skip_first_n_steps_for_profiler), (Profiler::Off, 3));
    assert_eq!(config.hf_access_token.expose(), None);
    assert_eq!(config.run_dir(), std::path::Path::new("./output/llama3_8b_training"));
    assert_eq!(config.plan().parameters.total(), 8_030_261_248);

    let notes: Vec<String> = config.notes().iter().map(ToString::to_string).collect();
    assert_eq!(notes.len(), 2, "{notes:#?}");
    assert_contains(&notes.join("\n"), &["exp.yaml:7:1: `env`", "own flash kernel"]);
}

#[test]
fn a_recipe_is_for_the_ranks_of_its_keys() {
    let config = || Setup::new().file("exp.yaml", RECIPE).config("exp.yaml").loaded();
    let planned = config().for_ranks_of_its_keys().expect("8 ranks");
    assert_eq!((planned.mesh(), planned.num_ranks()), (Degrees { data: 1, fsdp: 8 }, 8));
    assert_contains(
        &planned.notes()[2].to_string(),
        &["exp.yaml:30:7", "planned for 8 ranks, 8 per node, as the parallelism keys ask", "mpirun -n 8"],
    );
    let two_nodes = config().for_ranks(Ranks { count: 16, per_node: 8 }).expect("16 ranks");
    assert_eq!(two_nodes.mesh(), Degrees { data: 2, fsdp: 8 });
    assert_eq!(two_nodes.global_batch_size_to_train_on(), 64);

    let alone = config().for_ranks(Ranks::ONE).expect_err("one process isn't eight");
    assert_contains(
        &alone.to_string(),
        &[
            "exp.yaml:30:7: `ici_data_parallelism: 1` times `ici_fsdp_parallelism: 8` is 8, but this run has 1 rank per node (1 rank in all)",
            "`mpirun -n 8 mt-train ...`",
            "or set `ici_fsdp_parallelism: -1`",
        ],
    );
}

#[test]
fn variables_fill_in() {
    let setup = Setup::new().file("exp.yaml", RECIPE).config("exp.yaml");
    let config = setup.env("HF_TOKEN", "hf_secret").env("M_STEPS", "7").loaded();
    assert_eq!(config.hf_access_token.expose(), Some("hf_secret"));
    assert_eq!(config.steps, 7);
}

#[test]
fn references_follow_primuss_rules() {
    let overrides = |line: &str| experiment(&format!("    overrides:\n      {line}\n"));
    let is = |setup: Setup, key: &str, expected: &str| assert_eq!(value(&setup.loaded(), key), expected);
    is(overrides("steps: ${N:12}"), "steps", "12");
    is(overrides("steps: ${N:12}").env("N", "13"), "steps", "13");
    is(overrides("learning_rate: ${LR:1e-3}"), "learning_rate", "0.001");
    is(overrides("packing: ${P:False}"), "packing", "false");
    is(overrides("hf_name: \"${A:x}-${B:y}\"").env("B", "z"), "hf_name", "x-z");
    is(overrides("hf_name: ${A:}"), "hf_name", "\"\"");
    is(overrides("hf_name: ${A:x}").env("A", ""), "hf_name", "\"\"");
    is(overrides("tokenizer_path: ${A:a:b/c}"), "tokenizer_path", "\"a:b/c\"");
    is(overrides("hf_name: $A ${ {x}"), "hf_name", "\"$A ${ {x}\"");
    is(overrides("hf_name: $${A}-$$${A}-${A:b}"), "hf_name", "\"${A}-$${A}-b\"");
    // A value from outside is never YAML 1.1: only true, false and numbers are retyped.
    is(overrides("hf_name: ${A:yes}"), "hf_name", "\"yes\"");
    let report = overrides("steps: ${N}").refused();
    assert_contains(&report, &["exp.yaml:9:14", "the environment variable N isn't set"]);
}

#[test]
fn overrides_win_over_presets_and_the_preset_of_the_model_adds() {
    let config = experiment("    config: pre_trainer.yaml\n    model: llama2_7B\n    overrides:\n      base_num_decoder_layers: 2\n").loaded();
    assert_eq!((config.base_num_decoder_layers, config.base_emb_dim, config.steps), (2, 4096, 1000));
    assert_contains(&config.provenance("steps").expect("a key").to_string(), &["pre_trainer.yaml"]);

    let nested = experiment(
        "    model: llama3_8B.yaml\n    overrides:\n      override_model:\n        base_num_decoder_layers: 4\n",
    );
    assert_eq!(nested.loaded().base_num_decoder_layers, 4);

    let report = experiment("    config: m.yaml\n    model: k.yaml\n")
        .file("m.yaml", "steps: 1\n")
        .file("k.yaml", "steps: 2\n")
        .refused();
    assert_contains(&report, &["`steps` is 2 in the model preset and 1 in the module preset", "overrides"]);
}

#[test]
fn presets_are_found_around_the_experiment() {
    let text = "work_group: a\nuser_name: b\nexp_name: c\nworkspace: w\nmodules:\n  pre_trainer:\n    framework: maxtext\n    config: mine.yaml\n";
    let setup = Setup::new()
        .file("examples/maxtext/configs/MI300X/exp.yaml", text)
        .file("primus/configs/modules/maxtext/mine.yaml", "extends: [../base.yaml]\nsteps: 3\n")
        .file("primus/configs/modules/base.yaml", "steps: 1\nlog_period: 9\n")
        .config("examples/maxtext/configs/MI300X/exp.yaml");
    let config = setup.loaded();
    assert_eq!((config.steps, config.log_period), (3, 9));
}

#[test]
fn output_goes_where_primus_puts_it() {
    let config = experiment("    overrides:\n      steps: 1\n").loaded();
    assert_eq!(config.run_dir(), std::path::Path::new("./output/amd/root/exp"));
    let config =
        experiment("    overrides:\n      run_name: mine\n").arg("base_output_directory=/data").loaded();
    assert_eq!(config.run_dir(), std::path::Path::new("/data/mine"));
}

#[test]
fn modules_may_be_a_list() {
    let text = "work_group: a\nuser_name: b\nexp_name: c\nworkspace: w\nmodules:\n  - name: stage\n    module: pre_trainer\n    framework: maxtext\n    model: llama3_8B\n    params:\n      steps: 3\n";
    let config = Setup::new().file("exp.yaml", text).config("exp.yaml").loaded();
    assert_eq!((config.steps, config.base_emb_dim), (3, 4096));
}

#[test]
fn what_is_wrong_with_an_experiment() {
    let report = Setup::new()
        .file("exp.yaml", "exp_name: x\nmodule: 1\nmodules:\n  pretrainer: {}\n")
        .config("exp.yaml")
        .refused();
    assert_contains(
        &report,
        &[
            "no `work_group`",
            "no `user_name`",
            "no `workspace`",
            "did you mean `modules`?",
            "`pretrainer` isn't run here",
        ],
    );
    let refused = |module: &str, parts: &[&str]| assert_contains(&experiment(module).refused(), parts);
    refused("    overrides:\n      stps: 1\n", &["exp.yaml:9:7: unknown key `stps`"]);
    refused("    steps: 1\n", &["a module has no `steps`; it belongs under `overrides`"]);
    refused("    overides: {}\n", &["did you mean `overrides`?"]);
    refused("    model: llama3_9B.yaml\n", &["did you mean `llama3_8B.yaml`?"]);
    refused("    config: nothing.yaml\n", &["built in are pre_trainer.yaml"]);
    refused("    config: ../../etc/passwd\n", &["leaves the preset folder"]);
    refused("    config: /etc/passwd\n", &["leaves the preset folder"]);
    refused("    config: [a]\n", &["`config` needs the name of a preset"]);
    refused("    overrides: 3\n", &["`overrides` needs `key: value` lines"]);

    let megatron = Setup::new()
        .file("exp.yaml", RECIPE.replace("framework: maxtext", "framework: megatron"))
        .config("exp.yaml");
    assert_contains(&megatron.refused(), &["`framework` is `megatron`"]);
}

#[test]
fn a_later_recipe_of_a_bigger_model() {
    let overrides = "    config: pre_trainer.yaml\n    model: llama3.3_70B.yaml\n    overrides:\n      per_device_batch_size: 7\n      remat_policy: full\n      quantization: \"\"\n      use_iota_embed: true\n      dcn_pipeline_parallelism: 1\n      ici_sequence_parallelism: 1\n";
    let config = experiment(overrides).loaded();
    assert_eq!(config.plan().parameters.total(), 70_553_706_496);
    assert_eq!(config.tokenizer_path, "meta-llama/Llama-3.3-70B-Instruct");
}

/// The fp8 recipes of MI355X and MI300X differ from the bfloat16 ones in a line.
#[test]
fn quantized_recipes() {
    for (text, quantization) in [("fp8", Quantization::Fp8), ("nanoo_fp8", Quantization::NanooFp8)] {
        let overrides = format!(
            "    config: pre_trainer.yaml\n    model: llama3.1_8B.yaml\n    overrides:\n      quantization: \"{text}\"\n"
        );
        assert_eq!(experiment(&overrides).loaded().model().quantization, quantization);
    }
}

#[test]
fn every_built_in_model_preset_loads() {
    for model in [
        "llama2_7B",
        "llama2_70B",
        "llama3_8B",
        "llama3_70B",
        "llama3.1_8B",
        "llama3.1_70B",
        "llama3.1_405B",
        "llama3.2_1B",
        "llama3.3_70B",
        "qwen3_14B",
    ] {
        experiment(&format!("    config: pre_trainer.yaml\n    model: {model}.yaml\n")).loaded();
    }
}

#[test]
fn the_flat_file_that_primus_writes() {
    let yaml = "attention: cudnn_flash_te\nbase_config: base.yml\nfile_sink_level: DEBUG\nhardware: gpu\nmodel: llama3_8B.yaml\n\
                model_name: llama3-8b\noverride_model_config: true\nsink_level: null\nstderr_sink_level: INFO\nsteps: 50\n\
                trainable: true\nuse_iota_embed: true\nhf_access_token: '\"\"'\n";
    let config = Setup::yaml(yaml).loaded();
    assert_eq!((config.steps, config.base_emb_dim, config.model.as_str()), (50, 4096, "llama3_8B.yaml"));
    assert_eq!(config.hf_access_token.expose(), None);
}
