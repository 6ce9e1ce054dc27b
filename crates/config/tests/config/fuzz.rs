//! No bytes make the loader panic.

use mt_config::keys;
use proptest::prelude::*;

use crate::support::Setup;

/// Loading ends in a configuration or in a report, and both can be printed.
fn survives(setup: &Setup) {
    match setup.load() {
        Ok(config) => {
            let _ = (config.dry_run_report(true), config.to_yaml(), config.hash());
        }
        Err(errors) => assert!(!errors.problems().is_empty() && !errors.to_string().is_empty()),
    }
}

/// Pieces of YAML that have a meaning, in any order.
fn pieces() -> impl Strategy<Value = String> {
    let names = prop::sample::select(keys::all().map(|spec| spec.name).collect::<Vec<_>>());
    let signs = prop::sample::select(vec![
        ": ",
        ":",
        "\n",
        "\n  ",
        "\n- ",
        "- ",
        "[",
        "]",
        "{",
        "}",
        ", ",
        "&a ",
        "*a",
        "<<: *a",
        "|",
        ">",
        "\"",
        "'",
        "#",
        "---\n",
        "...",
        "!!int ",
        "!x ",
        "%YAML 1.1\n",
        "? ",
        "\t",
        "\r\n",
        "\u{feff}",
        "\u{0}",
        "\u{85}",
        "é",
        "${A:",
        "${B}",
        "}",
        "\\",
    ]);
    let values = prop::sample::select(vec![
        "1",
        "-1",
        "150_001",
        "0x",
        "0x_",
        "1:30",
        "1:99",
        "3.e-5",
        ".",
        "-.inf",
        ".nan",
        "None",
        "~",
        "yes",
        "9999999999999999999",
        "1e400",
        "-9223372036854775808",
        "llama3-8b",
        "modules",
        "pre_trainer",
        "framework: maxtext",
        "extends",
        "base_config",
        "run.yml",
        "overrides",
        "custom",
        "hf",
        "minimal_offloaded",
    ]);
    let piece = prop_oneof![
        names.prop_map(str::to_owned),
        signs.prop_map(str::to_owned),
        values.prop_map(str::to_owned)
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

/// `key: value` lines with any key and a value that is likely wrong.
fn lines() -> impl Strategy<Value = String> {
    let names = prop::sample::select(keys::all().map(|spec| spec.name).collect::<Vec<_>>());
    let value = prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        any::<f64>().prop_map(|n| format!("{n:?}")),
        prop::sample::select(vec![
            "", "true", "none", "[]", "[a, b]", "{}", "{a: 1}", "''", "0", "1", "-1", "2", "16777216", "1e30"
        ])
        .prop_map(str::to_owned),
        "\\PC{0,12}",
    ];
    prop::collection::vec((names, value), 0..40)
        .prop_map(|rows| rows.into_iter().map(|(name, value)| format!("{name}: {value}\n")).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        survives(&Setup::new().file("run.yml", bytes).config("run.yml"));
    }

    #[test]
    fn random_text(text in "\\PC{0,200}") {
        survives(&Setup::yaml(&text));
    }

    #[test]
    fn random_pieces(text in pieces()) {
        survives(&Setup::yaml(&text));
    }

    #[test]
    fn random_values(text in lines()) {
        survives(&Setup::yaml(&text));
    }

    #[test]
    fn random_arguments(name in "[a-z_]{1,20}", value in "\\PC{0,30}", key in prop::sample::select(keys::all().map(|spec| spec.name).collect::<Vec<_>>())) {
        survives(&Setup::new().arg(&format!("{name}={value}")).arg(&format!("{key}={value}")));
        survives(&Setup::new().env(&format!("M_{}", key.to_uppercase()), &value));
    }

    #[test]
    fn damaged_files(cut in 0usize..3000, at in 0usize..3000, byte in any::<u8>(), recipe in any::<bool>()) {
        let text = if recipe { include_str!("data/llama3_8B-bf16-pretrain.yaml") } else { include_str!("data/flat.yml") };
        let mut bytes = text.as_bytes().to_vec();
        let length = bytes.len();
        bytes[at % length] = byte;
        bytes.truncate(length - cut % length);
        survives(&Setup::new().file("run.yml", bytes).config("run.yml"));
    }

    #[test]
    fn saved_configurations_load_back(text in "[${}A:]{0,9}\\PC{0,40}", number in any::<f64>()) {
        let config = Setup::new().arg(&format!("prompt={text}")).arg(&format!("metrics_file={text}")).arg(&format!("z_loss_multiplier={}", number.abs())).load();
        if let Ok(config) = config {
            let again = Setup::yaml(&config.to_yaml()).loaded();
            prop_assert_eq!(config.to_yaml(), again.to_yaml());
        }
    }
}
