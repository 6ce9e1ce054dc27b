//! `base_config`: a file's parent, its parent, and so on, down to the built-in base.

use std::path::Path;

use crate::error::Problem;
use crate::files::{Reader, Source};
use crate::layers::{Layer, Rank};
use crate::node::{Key, Node};

/// The parents of a file whose entries are given, weakest first.
pub(crate) fn layers(reader: &mut Reader<'_>, child: &Source, entries: &[(Key, Node)]) -> Vec<Layer> {
    let Some((key, node)) = entries.iter().find(|(key, _)| key.text == "base_config") else {
        return Vec::new();
    };
    // A wrong type is reported where all keys are typed.
    let Some(name) = node.scalar_text().filter(|name| !name.is_empty() && !node.is_none()) else {
        return Vec::new();
    };
    let Some(parent) = locate(child, name) else {
        let message = format!(
            "`base_config: {name}` is neither beside the file nor in configs/; `base.yml` is built in"
        );
        reader.problems.push(Problem::new(key.place.clone(), message));
        return Vec::new();
    };
    let Source::Disk(_) = parent else { return Vec::new() };
    if !reader.enter(child, &key.place, &parent) {
        return Vec::new();
    }
    let mut parent_entries = reader.read(&parent);
    let mut layers = layers(reader, &parent, &parent_entries);
    reader.leave();
    parent_entries.retain(|(key, _)| key.text != "base_config");
    layers.push(Layer { rank: Rank::Parent, entries: parent_entries });
    layers
}

/// Beside the child, then in `configs/`; `base.yml` itself is the key table's defaults.
fn locate(child: &Source, name: &str) -> Option<Source> {
    let beside = child.sibling(name);
    if matches!(beside, Source::Disk(_)) && beside.exists() {
        return Some(beside);
    }
    let in_configs = Source::Disk(Path::new("configs").join(name));
    if in_configs.exists() {
        return Some(in_configs);
    }
    let is_base = Path::new(name).file_name().is_some_and(|file| file == "base.yml");
    is_base.then(|| Source::BuiltIn("base.yml".to_owned()))
}
