//! Files that refer to files, and files that aren't what they should be.

use crate::support::{Setup, assert_contains, value};

#[test]
fn base_config_is_a_chain() {
    let config = Setup::new()
        .file("a.yml", "base_config: parents/b.yml\nsteps: 1\n")
        .file("parents/b.yml", "base_config: c.yml\nsteps: 2\nlog_period: 2\n")
        .file("parents/c.yml", "base_config: base.yml\nsteps: 3\nlog_period: 3\nhead_dim: 32\n")
        .config("a.yml")
        .loaded();
    assert_eq!((config.steps, config.log_period, config.head_dim), (1, 2, 32));
    assert_contains(&config.provenance("head_dim").expect("a key").to_string(), &["parents/c.yml:4:1"]);
}

#[test]
fn a_parent_ranks_below_the_model_preset() {
    let config = Setup::new()
        .file("a.yml", "base_config: b.yml\nmodel_name: llama3-8b\n")
        .file("b.yml", "base_emb_dim: 512\n")
        .config("a.yml")
        .loaded();
    assert_eq!(config.base_emb_dim, 4096);
    assert_contains(
        &config.notes()[0].to_string(),
        &["b.yml:1:1: `base_emb_dim: 512` is replaced by 4096 of the model preset"],
    );
}

#[test]
fn a_base_yml_beside_the_file_is_read() {
    let config = Setup::new()
        .file("a.yml", "base_config: base.yml\nhardware: cpu\n")
        .file("base.yml", "hardware: tpu\nlog_period: 7\n")
        .config("a.yml")
        .loaded();
    assert_eq!(config.log_period, 7);
}

#[test]
fn a_missing_parent_and_a_cycle_are_errors() {
    assert_contains(
        &Setup::yaml("steps: 1\nbase_config: nowhere.yml\n").refused(),
        &["run.yml:2:1", "`base_config: nowhere.yml` is neither beside the file nor in configs/"],
    );
    let cycle = Setup::new()
        .file("a.yml", "base_config: b.yml\n")
        .file("b.yml", "base_config: a.yml\n")
        .config("a.yml");
    assert_contains(&cycle.refused(), &["b.yml:1:1", "refers back"]);
    assert_contains(&Setup::yaml("base_config: run.yml\n").refused(), &["refers back"]);
    assert_contains(&Setup::yaml("extends: run.yml\nsteps: 1\n").refused(), &["refers back"]);
}

#[test]
fn extends_merges_in_order() {
    let config = Setup::new()
        .file("run.yml", "extends: [one.yml, two.yml]\nsteps: 9\n")
        .file("one.yml", "steps: 1\nlog_period: 1\nhead_dim: 32\n")
        .file("two.yml", "extends: three.yml\nlog_period: 2\n")
        .file("three.yml", "log_period: 3\nhead_dim: 16\n")
        .config("run.yml")
        .loaded();
    assert_eq!((config.steps, config.log_period, config.head_dim), (9, 2, 16));
}

#[test]
fn a_models_folder_beside_the_file_holds_presets() {
    let setup = Setup::yaml("model_name: tiny\n").file("models/tiny.yml", "base_emb_dim: 64\n");
    assert_eq!(setup.loaded().base_emb_dim, 64);
}

#[test]
fn merge_keys_and_anchors() {
    // Anchors need a place to stand; `vllm_hf_overrides` is a mapping that nothing reads.
    let yaml = "vllm_hf_overrides: &x {steps: 5, log_period: 6}\n<<: *x\nlog_period: 7\n";
    let config = Setup::yaml(yaml).loaded();
    assert_eq!((config.steps, config.log_period), (5, 7));
}

#[test]
fn files_that_are_no_configuration() {
    let cases: [(&[u8], &str); 11] = [
        (b"", "the file is empty"),
        (b"# only a comment\n", "the file is empty"),
        (b"- a\n- b\n", "expected `key: value` lines"),
        (b"just words\n", "expected `key: value` lines"),
        (b"steps: 1\n\xff\xfe: 2\n", "run.yml:2:1: the file isn't valid UTF-8"),
        (b"steps: 1\n---\nsteps: 2\n", "a second YAML document"),
        (b"steps: [1, 2\n", "not YAML"),
        (b"steps: *nowhere\n", "not YAML"),
        (b"? [a]\n: 1\n", "a key must be text"),
        (b"steps: !python/object 1\n", "tag"),
        (b"a: &a [*a]\n", "alias"),
    ];
    for (bytes, expected) in cases {
        let report = Setup::new().file("run.yml", bytes).config("run.yml").refused();
        assert_contains(&report, &["run.yml", expected]);
    }
}

#[test]
fn a_missing_file_is_named() {
    let report = Setup::yaml("steps: 1\n").config("other.yml").refused();
    assert_contains(&report, &["other.yml", "can't be read"]);
}

#[test]
fn aliases_do_not_explode() {
    let mut yaml = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for i in 1..20 {
        let items = vec![format!("*a{}", i - 1); 9].join(", ");
        yaml += &format!("a{i}: &a{i} [{items}]\n");
    }
    assert_contains(&Setup::yaml(&yaml).refused(), &["values after expanding aliases"]);
}

#[test]
fn deep_nesting_is_an_error() {
    let deep = format!("steps: {}1{}\n", "[".repeat(200), "]".repeat(200));
    assert_contains(&Setup::yaml(&deep).refused(), &["nested collections"]);
    let block: String = (0..2000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
    assert_contains(&Setup::yaml(&block).refused(), &["run.yml"]);
}

#[test]
fn a_flat_file_with_maxtexts_scalars() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/config/data/flat.yml");
    let args = mt_config::LoadArgs { config_path: Some(path.into()), ..Default::default() };
    let config = mt_config::load(&args).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!((config.steps, config.checkpoint_period, config.vocab_size), (150_001, 10_000, 32_000));
    assert_eq!((config.learning_rate, config.adam_eps, config.adam_b2), (3e-5, 1e-8, 0.95));
    assert_eq!((config.packing, config.enable_dropout), (true, false));
    assert_eq!(
        (config.base_mlp_dim, config.base_num_decoder_layers, config.max_target_length),
        (1408, 4, 90)
    );
    assert_eq!(config.max_num_checkpoints_to_keep, None);
    assert_eq!(value(&config, "jax_cache_dir"), "\"~/jax_cache\"");
}
