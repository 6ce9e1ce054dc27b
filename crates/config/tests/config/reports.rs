//! What is printed and saved: complete, readable back, and without secrets.

use crate::support::{Setup, assert_contains};

#[test]
fn the_resolved_configuration_loads_back() {
    let setup = Setup::yaml(
        "model_name: llama3.1-8b\noverride_model_config: true\nbase_emb_dim: 512\nrun_name: 'a: b'\nlearning_rate: 3.e-5\n\
         hf_train_files: [a, 'b*']\nsteps: -1\nlearning_rate_schedule_steps: 12\nprompt: \"line\\nbreak \\\" # \\\\\"\n\
         logical_axis_rules: [['a', ['b', null]], ['c: d', 1.5]]\nshardy: false\nmax_num_checkpoints_to_keep: 3\n",
    );
    let config = setup.loaded();
    let again = Setup::yaml(&config.to_yaml()).loaded();
    assert_eq!(config.to_yaml(), again.to_yaml());
    assert_eq!(config.hash(), again.hash());
    assert_eq!(config.model(), again.model());
    assert_eq!(again.prompt, "line\nbreak \" # \\");
    assert_ne!(config.hash(), setup.arg("steps=13").loaded().hash());
}

#[test]
fn secrets_stay_secret() {
    let setup = Setup::yaml("hf_access_token: hf_s3cret\n");
    let config = setup.loaded();
    assert_eq!(config.hf_access_token.expose(), Some("hf_s3cret"));
    let mut texts = vec![
        format!("{config:?}"),
        format!("{config:#?}"),
        config.to_yaml(),
        config.render_diff(),
        config.render_all(),
        config.dry_run_report(true),
        config.dry_run_report(false),
        setup.arg("stps=1").refused(),
    ];
    texts.push(Setup::yaml("hf_access_token: [hf_s3cret]\n").refused());
    texts.push(Setup::yaml("hf_access_token: {hf_s3cret: 1}\n").refused());
    texts.push(format!("{:?}", Setup::new().env("M_HF_ACCESS_TOKEN", "hf_s3cret").loaded()));
    texts.extend(config.settings().map(|setting| format!("{} {:?}", setting.value(), setting.value())));
    for text in texts {
        assert!(!text.contains("s3cret"), "{text}");
    }
}

#[test]
fn the_dry_run_says_what_a_run_costs() {
    let report = Setup::yaml("model_name: llama3-8b\nsteps: 10\nrun_name: r\n")
        .arg("per_device_batch_size=1")
        .loaded()
        .dry_run_report(false);
    assert_contains(
        &report,
        &[
            "number parameters: 8.030 billion (8,030,261,248)",
            "base_emb_dim",
            "built-in:configs/models/llama3-8b.yml",
            "run.yml:2:1",
            "command line",
            "Total TFLOPs:",
            "* full",
            "minimal_with_context",
            "29.92 GiB",
        ],
    );
    assert!(!report.contains("adam_b1"), "only what differs is listed");
    assert_contains(&Setup::new().loaded().dry_run_report(true), &["adam_b1", "default"]);
}
