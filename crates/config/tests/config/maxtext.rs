//! Every key of MaxText is known, with MaxText's default unless the table says otherwise.

use std::path::Path;

use mt_config::Value;
use mt_config::keys::{self, DIFFERENCES};

use crate::support::Setup;

#[test]
fn every_key_is_known_with_its_default() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/reference/maxtext_keys.tsv"));
    let Ok(table) = std::fs::read_to_string(path) else {
        eprintln!("skipped: {} isn't there", path.display());
        return;
    };
    let config = Setup::new().loaded();
    let mut wrong = Vec::new();
    for line in table.lines().skip(1) {
        let columns: Vec<&str> = line.split('\t').collect();
        let (name, default, group) = (columns[0], columns[1], columns[3]);
        let Some(spec) = keys::find(name) else {
            wrong.push(format!("{name} is unknown"));
            continue;
        };
        let differs = DIFFERENCES.iter().any(|difference| difference.key == name);
        let ours =
            config.settings().find(|setting| setting.spec().name == name).expect("a key").spec().default;
        if same(default, ours) == differs {
            wrong.push(format!("{name}: {ours} here, {default} in MaxText, listed as different: {differs}"));
        }
        // MaxText's groups are Python classes; ours follow them where they help a reader.
        if group.is_empty() || spec.group.is_empty() {
            wrong.push(format!("{name} has no group"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whether a default as the reference writes it (Python) is ours (YAML).
fn same(python: &str, ours: &str) -> bool {
    let python = match python.strip_prefix("(not in base.yml; types.py default ") {
        Some(rest) => rest.trim_end_matches(')'),
        None => python,
    };
    let unquoted = |text: &str| text.trim_matches(['"', '\'']).to_owned();
    let plain = |text: &str| match unquoted(text).as_str() {
        "True" => "true".to_owned(),
        "False" => "false".to_owned(),
        "None" | "null" => String::new(),
        text => text.replace(['"', '\'', ' '], ""),
    };
    // Dictionaries and lists of pydantic's default factories.
    if python.starts_with("Field(default_factory") {
        return ours == "{}";
    }
    if python == "VisionEncoderBlockType.NONE" {
        return ours == "none";
    }
    match (plain(python).parse::<f64>(), plain(ours).parse::<f64>()) {
        (Ok(a), Ok(b)) => a == b,
        _ => plain(python) == plain(ours) || (python == "\"\"" && ours == "[]"),
    }
}

#[test]
fn every_default_is_valid_and_harmless() {
    let config = Setup::new().loaded();
    assert!(config.notes().is_empty(), "{:?}", config.notes());
    let mut names = std::collections::HashSet::new();
    for spec in keys::all() {
        assert!(names.insert(spec.name), "{} stands twice in the table", spec.name);
    }
    // A file with every default spelled out changes nothing: that is what a dump of MaxText's resolved configuration is.
    let everything: String = keys::all().map(|spec| format!("{}: {}\n", spec.name, spec.default)).collect();
    let spelled = Setup::yaml(&everything).loaded();
    assert_eq!(spelled.model(), config.model());
    assert!(spelled.notes().is_empty(), "{:?}", spelled.notes());
}

#[test]
fn every_key_takes_its_own_default_from_the_command_line() {
    for spec in keys::all() {
        let text = spec.default.trim_matches('"');
        let config = Setup::new().arg(&format!("{}={text}", spec.name)).loaded();
        let setting = config.settings().find(|setting| setting.spec().name == spec.name).expect("a key");
        let derived =
            ["run_name", "base_output_directory", "learning_rate_schedule_steps"].contains(&spec.name);
        assert!(
            derived || !setting.is_changed() || *setting.value() == Value::Null,
            "{} = {}",
            spec.name,
            setting.value()
        );
    }
}
