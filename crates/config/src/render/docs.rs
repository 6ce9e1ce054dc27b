//! The table of keys as `--help-keys` and docs/config.md show it.

use std::fmt::Write;

use crate::keys::{self, KeySpec, State};

/// Keys whose name, group or description contains `pattern` (any case), with defaults and states; all keys for an empty one.
pub fn help_keys(pattern: &str) -> String {
    let pattern = pattern.to_lowercase();
    let contains = |text: &str| text.to_lowercase().contains(&pattern);
    let mut text = String::new();
    let mut shown = 0;
    for spec in keys::all().filter(|spec| [spec.name, spec.group, spec.doc].into_iter().any(contains)) {
        shown += 1;
        let _ = writeln!(text, "{}: {}", spec.name, spec.default);
        let _ = writeln!(text, "    {} [{}]", sentence(spec), spec.group);
        let _ = writeln!(text, "    {}", (spec.kind)());
    }
    match (shown, keys::nearest_key(&pattern)) {
        (0, Some(near)) => format!("no key matches `{pattern}`; did you mean `{near}`?\n"),
        (0, None) => format!("no key matches `{pattern}`\n"),
        _ => text,
    }
}

fn sentence(spec: &KeySpec) -> String {
    match spec.state {
        State::Implemented => spec.doc.to_owned(),
        State::Accepted(reason) => format!("Accepted, without effect: {reason}."),
        State::Rejected(reason) => format!("Only the default: {reason}."),
    }
}

const INTRODUCTION: &str = "\
# Configuration keys

<!-- Generated from the key table in crates/config/src/keys; `MT_UPDATE_DOCS=1 cargo test --release -p mt-config --test config docs`
     writes it anew. -->

A run is described by a flat YAML file with MaxText's keys, or by a Primus experiment. Values come from, later wins: the defaults
below, the files that `base_config` names, the model preset that `model_name` selects, your file, `key=value` arguments, and
environment variables `M_KEY`. A key that the model preset sets may only be given another value with `override_model_config:
true`. Scalars are read as YAML 1.1, as PyYAML does: `150_001` and `0x10` are integers, `3.e-5` a number, `yes` and `off`
booleans, and `None` is nothing. In text, `${VAR}` is the environment variable, `${VAR:value}` has a default, and `$${` is `${`.

`mt-train --help-keys PATTERN` prints rows of this table; `mt-train --config FILE --dry-run` prints where every value of a run
comes from. An unknown key is an error.

";

/// docs/config.md.
pub fn docs_markdown() -> String {
    let mut text = INTRODUCTION.to_owned();
    differences(&mut text);
    implemented(&mut text);
    others(&mut text);
    text
}

fn differences(text: &mut String) {
    text.push_str("## Where a default or a rule differs from MaxText's\n\n| key | here | MaxText | why |\n|---|---|---|---|\n");
    for difference in keys::DIFFERENCES {
        let here = keys::find(difference.key).map_or("", |spec| spec.default);
        let _ = writeln!(
            text,
            "| `{}` | `{here}` | `{}` | {} |",
            difference.key, difference.maxtext, difference.why
        );
    }
    text.push('\n');
    for rule in keys::RULES {
        let _ = writeln!(text, "- {rule}");
    }
}

fn implemented(text: &mut String) {
    text.push_str("\n## Keys that do something\n");
    let mut group = "";
    for spec in keys::all().filter(|spec| spec.state == State::Implemented) {
        if spec.group != group {
            group = spec.group;
            let _ = write!(text, "\n### {group}\n\n| key | default | value | effect |\n|---|---|---|---|\n");
        }
        let _ = writeln!(
            text,
            "| `{}` | `{}` | {} | {} |",
            spec.name,
            spec.default,
            cell(&(spec.kind)()),
            cell(spec.doc)
        );
    }
}

fn others(text: &mut String) {
    text.push_str("\n## MaxText's other keys\n\nThey are known, so that its files load.\n");
    let mut heading = ("", State::Implemented);
    for spec in keys::all() {
        let (what, reason) = match spec.state {
            State::Implemented => continue,
            State::Accepted(reason) => ("Accepted, without effect", reason),
            State::Rejected(reason) => ("Only the default is accepted", reason),
        };
        if (spec.group, spec.state) != heading {
            if spec.group != heading.0 {
                let _ = write!(text, "\n### {}\n", spec.group);
            }
            heading = (spec.group, spec.state);
            let _ = write!(text, "\n{what}: {reason}.\n\n");
        }
        let _ = writeln!(text, "- `{}: {}`", spec.name, spec.default);
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
