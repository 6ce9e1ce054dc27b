//! Primus experiments: `modules.pre_trainer` with a module preset, a model preset and overrides.

use std::path::Path;

use crate::error::Problem;
use crate::files::{Reader, Source, deep_merge};
use crate::keys;
use crate::layers::{Layer, Rank};
use crate::node::{Key, Kind, Node, Place};
use crate::parents;

const TOP_KEYS: [&str; 7] =
    ["work_group", "user_name", "exp_name", "workspace", "modules", "platform", "env"];
const MODULE_KEYS: [&str; 7] = ["framework", "config", "model", "overrides", "params", "name", "module"];
const MODULE: &str = "pre_trainer";

type Entries = Vec<(Key, Node)>;

/// Whether a file is an experiment rather than a flat list of keys.
pub(crate) fn is_experiment(entries: &[(Key, Node)]) -> bool {
    find(entries, "modules").is_some()
}

/// The layers of an experiment: the parents that its presets name, then presets and overrides as one.
pub(crate) fn layers(reader: &mut Reader<'_>, source: &Source, entries: Entries) -> Vec<Layer> {
    check_names(reader, &entries, &TOP_KEYS, "an experiment");
    for name in ["work_group", "user_name", "exp_name", "workspace"] {
        if find(&entries, name).is_none() {
            reader.problems.push(Problem::new(source.whole(), format!("the experiment has no `{name}`")));
        }
    }
    note_ignored(reader, &entries);
    let Some((key, module)) = pre_trainer(reader, &entries) else { return Vec::new() };
    check_names(reader, &module, &MODULE_KEYS, "a module");
    check_framework(reader, &key, &module);

    let mut user = preset(reader, source, &module, "config", "modules");
    let model = preset(reader, source, &module, "model", "models");
    add_only(reader, &mut user, model);
    for name in ["overrides", "params"] {
        deep_merge(&mut user, overrides(reader, &module, name));
    }
    let mut layers = parents::layers(reader, source, &user);
    layers.insert(0, Layer { rank: Rank::Parent, entries: output_folder(&entries) });
    layers.push(Layer { rank: Rank::User, entries: user });
    layers
}

fn find<'a>(entries: &'a [(Key, Node)], name: &str) -> Option<&'a (Key, Node)> {
    entries.iter().find(|(key, _)| key.text == name)
}

fn scalar<'a>(entries: &'a [(Key, Node)], name: &str) -> Option<&'a str> {
    find(entries, name).and_then(|(_, node)| node.scalar_text())
}

fn check_names(reader: &mut Reader<'_>, entries: &[(Key, Node)], known: &[&'static str], whose: &str) {
    for (key, _) in entries.iter().filter(|(key, _)| !known.contains(&key.text.as_str())) {
        let hint = match keys::nearest(&key.text, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None if keys::find(&key.text).is_some() => "it belongs under `overrides`".to_owned(),
            None => format!("known are {}", known.join(", ")),
        };
        reader
            .problems
            .push(Problem::new(key.place.clone(), format!("{whose} has no `{}`; {hint}", key.text)));
    }
}

fn note_ignored(reader: &mut Reader<'_>, entries: &[(Key, Node)]) {
    let ignored = [
        ("env", "`env` sets variables for JAX, XLA and RCCL, which aren't used here: it has no effect"),
        ("platform", "`platform` describes Primus's launcher, which isn't used here: it has no effect"),
    ];
    for (name, message) in ignored {
        if let Some((key, _)) = find(entries, name) {
            reader.notes.push(Problem::new(key.place.clone(), message));
        }
    }
}

/// The module to run: under its name in a mapping, or in a list by its `module` or `name`.
fn pre_trainer(reader: &mut Reader<'_>, entries: &[(Key, Node)]) -> Option<(Key, Entries)> {
    let (key, modules) = find(entries, "modules")?;
    let named: Vec<(Key, &Node)> = match &modules.kind {
        Kind::Map(modules) => modules.iter().map(|(key, node)| (key.clone(), node)).collect(),
        Kind::List(items) => items.iter().filter_map(|item| Some((module_name(item)?, item))).collect(),
        Kind::Scalar { .. } => Vec::new(),
    };
    for (other, _) in named.iter().filter(|(name, _)| name.text != MODULE) {
        let message = format!("the module `{}` isn't run here, only `{MODULE}`", other.text);
        reader.problems.push(Problem::new(other.place.clone(), message));
    }
    let found = named.into_iter().find_map(|(name, node)| match &node.kind {
        Kind::Map(module) if name.text == MODULE => Some((name, module.clone())),
        _ => None,
    });
    if found.is_none() {
        let message =
            format!("`modules` needs a mapping `{MODULE}` with framework, config, model and overrides");
        reader.problems.push(Problem::new(key.place.clone(), message));
    }
    found
}

fn module_name(item: &Node) -> Option<Key> {
    let Kind::Map(entries) = &item.kind else { return None };
    let text = scalar(entries, "module").or_else(|| scalar(entries, "name"))?;
    Some(Key { text: text.to_owned(), place: item.place.clone() })
}

fn check_framework(reader: &mut Reader<'_>, key: &Key, module: &[(Key, Node)]) {
    let place = find(module, "framework").map_or(&key.place, |(key, _)| &key.place).clone();
    match scalar(module, "framework") {
        Some("maxtext") => {}
        Some(other) => {
            let message =
                format!("`framework` is `{other}`; this trainer reads the configurations of `maxtext`");
            reader.problems.push(Problem::new(place, message));
        }
        None => {
            reader.problems.push(Problem::new(place, "the module has no `framework`; expected `maxtext`"))
        }
    }
}

/// The entries of the preset that `config` or `model` names.
fn preset(
    reader: &mut Reader<'_>,
    experiment: &Source,
    module: &[(Key, Node)],
    name: &str,
    folder: &str,
) -> Entries {
    let Some((key, _)) = find(module, name) else { return Vec::new() };
    let Some(file) = scalar(module, name).filter(|file| !file.is_empty()) else {
        reader.problems.push(Problem::new(key.place.clone(), format!("`{name}` needs the name of a preset")));
        return Vec::new();
    };
    let path = Path::new(file);
    if path.is_absolute() || path.components().any(|part| part.as_os_str() == "..") {
        let message =
            format!("`{name}: {file}` leaves the preset folder; put a relative path or use `extends`");
        reader.problems.push(Problem::new(key.place.clone(), message));
        return Vec::new();
    }
    let file = if path.extension().is_some_and(|end| end == "yaml" || end == "yml") {
        file.to_owned()
    } else {
        format!("{file}.yaml")
    };
    let candidates = candidates(experiment, folder, &file);
    match candidates.iter().find(|candidate| candidate.exists()) {
        Some(found) => {
            if !reader.enter(experiment, &key.place, found) {
                return Vec::new();
            }
            let entries = reader.read(found);
            reader.leave();
            entries
        }
        None => {
            reader.problems.push(Problem::new(key.place.clone(), missing(name, &file, folder)));
            Vec::new()
        }
    }
}

/// Where a preset may be: beside the experiment, in a checkout of Primus or of this repository around it, in
/// `configs/` of the current folder, inside the binary.
fn candidates(experiment: &Source, folder: &str, file: &str) -> Vec<Source> {
    let mut found = vec![experiment.sibling(file)];
    if let Source::Disk(path) = experiment {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        for ancestor in path.ancestors().skip(1) {
            found.push(Source::Disk(ancestor.join("configs/primus").join(folder).join("maxtext").join(file)));
            found.push(Source::Disk(ancestor.join("primus/configs").join(folder).join("maxtext").join(file)));
        }
    }
    found.push(Source::Disk(Path::new("configs/primus").join(folder).join("maxtext").join(file)));
    found.push(Source::BuiltIn(format!("configs/primus/{folder}/maxtext/{file}")));
    found
}

fn missing(name: &str, file: &str, folder: &str) -> String {
    let prefix = format!("configs/primus/{folder}/maxtext/");
    let known: Vec<&str> =
        crate::presets::names().filter_map(|path| path.strip_prefix(prefix.as_str())).collect();
    let hint = match keys::nearest(file, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("built in are {}", known.join(", ")),
    };
    format!("`{name}: {file}` is neither beside the experiment nor at {prefix}{file}; {hint}")
}

/// A model preset may add keys to the module preset, not change them.
fn add_only(reader: &mut Reader<'_>, into: &mut Entries, model: Entries) {
    for (key, node) in model {
        match find(into, &key.text) {
            Some((earlier, old)) if old.to_value() != node.to_value() => {
                let message = format!(
                    "`{}` is {} in the model preset and {} in the module preset ({}); set it in `overrides` instead",
                    key.text,
                    node.to_value(),
                    old.to_value(),
                    earlier.place
                );
                reader.problems.push(Problem::new(key.place, message));
            }
            Some(_) => {}
            None => into.push((key, node)),
        }
    }
}

/// The module's own values; Primus's nested `override_model` holds keys of the model.
fn overrides(reader: &mut Reader<'_>, module: &[(Key, Node)], name: &str) -> Entries {
    let Some((key, node)) = find(module, name) else { return Vec::new() };
    let Kind::Map(entries) = &node.kind else {
        if !node.is_none() {
            reader
                .problems
                .push(Problem::new(key.place.clone(), format!("`{name}` needs `key: value` lines")));
        }
        return Vec::new();
    };
    let (nested, mut flat): (Entries, Entries) =
        entries.iter().cloned().partition(|(key, _)| key.text == "override_model");
    for (_, node) in nested {
        if let Kind::Map(model) = node.kind {
            deep_merge(&mut flat, model);
        }
    }
    flat
}

/// Primus puts an experiment into `workspace/work_group/user_name/exp_name`; weaker than keys of the module.
fn output_folder(entries: &[(Key, Node)]) -> Entries {
    let part = |name| scalar(entries, name).filter(|text| !text.is_empty());
    let (Some(workspace), Some(exp_name)) = (part("workspace"), part("exp_name")) else { return Vec::new() };
    let mut folder = Path::new(workspace).to_owned();
    folder.extend(["work_group", "user_name"].into_iter().filter_map(part));
    let entry = |name: &str, text: String, from: &str| {
        let place = find(entries, from).map_or(Place::Default, |(key, _)| key.place.clone());
        (Key { text: name.to_owned(), place: place.clone() }, Node::text(text, place))
    };
    vec![
        entry("base_output_directory", folder.to_string_lossy().into_owned(), "workspace"),
        entry("run_name", exp_name.to_owned(), "exp_name"),
    ]
}
