//! Who overrides whom: defaults, parent files, the model preset, the user's file, command line, environment.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use crate::error::Problem;
use crate::keys::{self, KeySpec};
use crate::node::{Key, Node, Place, Value};
use crate::yaml;

/// The kinds of layers, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// Files reached by `base_config`.
    Parent,
    /// Shapes of a known model.
    Preset,
    /// The file that the user names.
    User,
    /// `key=value` arguments.
    CommandLine,
    /// `M_KEY` variables.
    Environment,
}

/// A set of keys from one source.
#[derive(Debug)]
pub(crate) struct Layer {
    pub rank: Rank,
    pub entries: Vec<(Key, Node)>,
}

/// The value that a key ended up with, and where it comes from.
#[derive(Clone)]
pub struct Setting {
    pub(crate) spec: &'static KeySpec,
    pub(crate) node: Node,
    pub(crate) place: Place,
    /// Canonical form; a secret is already hidden in it.
    pub(crate) value: Value,
}

impl Setting {
    /// The key's row in the table.
    pub fn spec(&self) -> &'static KeySpec {
        self.spec
    }

    /// Where the value was set.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The value in canonical form; a secret is hidden in it.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Whether the value differs from the default.
    pub fn is_changed(&self) -> bool {
        self.value != default_value(self.spec)
    }
}

/// All settings by key.
#[derive(Clone)]
pub struct Resolved {
    settings: BTreeMap<&'static str, Setting>,
    pub(crate) notes: Vec<Problem>,
}

impl fmt::Debug for Resolved {
    /// Only what differs from the defaults, secrets hidden.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changed = self.settings.values().filter(|setting| setting.is_changed());
        f.debug_map().entries(changed.map(|setting| (setting.spec.name, setting.value.to_string()))).finish()
    }
}

impl Resolved {
    pub(crate) fn setting(&self, name: &str) -> Option<&Setting> {
        self.settings.get(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Setting> {
        self.settings.values()
    }

    /// Where the value of a key of the table comes from.
    pub(crate) fn place(&self, name: &str) -> &Place {
        self.setting(name).map_or(&Place::Default, Setting::place)
    }

    /// The text of a text key.
    pub(crate) fn text(&self, name: &str) -> &str {
        match self.setting(name).map(Setting::value) {
            Some(Value::Text(text)) => text,
            _ => "",
        }
    }

    /// Replaces a value by one that follows from other keys.
    pub(crate) fn derive(&mut self, name: &str, value: &str, from: &'static str) {
        if let Some(setting) = self.settings.get_mut(name) {
            setting.node = Node::plain(value, Place::Derived(from));
            setting.place = Place::Derived(from);
            setting.value = (setting.spec.check)(&setting.node).unwrap_or(Value::Null);
        }
    }
}

/// The default of a key in canonical form.
pub(crate) fn default_value(spec: &KeySpec) -> Value {
    (spec.check)(&default_node(spec)).unwrap_or(Value::Null)
}

fn default_node(spec: &KeySpec) -> Node {
    yaml::parse_inline(spec.default, Place::Default)
        .unwrap_or_else(|| Node::text(spec.default, Place::Default))
}

/// Merges the layers, weakest first. Unknown keys and forbidden combinations are added to `problems`.
pub(crate) fn merge(mut layers: Vec<Layer>, problems: &mut Vec<Problem>) -> Resolved {
    layers.sort_by_key(|layer| layer.rank);
    let mut notes = Vec::new();
    let mut chosen: HashMap<&'static str, (Rank, Key, Node)> = HashMap::new();
    let on_command_line: HashSet<String> = layers
        .iter()
        .filter(|layer| layer.rank == Rank::CommandLine)
        .flat_map(|layer| layer.entries.iter().map(|(key, _)| key.text.clone()))
        .collect();
    let may_override = last_flag(&layers, "override_model_config");
    for Layer { rank, entries } in layers {
        for (key, node) in entries {
            let Some(spec) = keys::find(&key.text) else {
                problems.push(unknown_key(&key));
                continue;
            };
            if rank == Rank::Environment && on_command_line.contains(spec.name) {
                problems.push(set_twice(spec, &key.place));
                continue;
            }
            match chosen.get(spec.name) {
                Some((Rank::Preset, preset_key, preset)) if !may_override => {
                    // The same value again changes nothing: the preset stays the source.
                    if (spec.check)(preset).ok() != (spec.check)(&node).ok() {
                        problems.push(preset_conflict(spec, (preset_key, preset), (&key, &node)));
                    }
                }
                earlier => {
                    if let (Some((Rank::Parent, parent, old)), Rank::Preset) = (earlier, rank) {
                        notes.extend(replaced_by_preset(spec, (parent, old), (&key, &node)));
                    }
                    chosen.insert(spec.name, (rank, key, node));
                }
            }
        }
    }
    let settings = keys::all().map(|spec| {
        let (node, place) = match chosen.remove(spec.name) {
            Some((_, key, node)) => (node, key.place),
            None => (default_node(spec), Place::Default),
        };
        let value = (spec.check)(&node).unwrap_or(Value::Null);
        (spec.name, Setting { spec, node, place, value })
    });
    Resolved { settings: settings.collect(), notes }
}

/// The value of a boolean key in the strongest layer that sets it.
fn last_flag(layers: &[Layer], name: &str) -> bool {
    last_node(layers, name).and_then(|node| keys::kinds::KeyType::parse(node).ok()).unwrap_or(false)
}

/// The node of a key in the strongest layer that sets it; `layers` are sorted.
pub(crate) fn last_node<'a>(layers: &'a [Layer], name: &str) -> Option<&'a Node> {
    layers
        .iter()
        .rev()
        .find_map(|layer| layer.entries.iter().rev().find(|(key, _)| key.text == name).map(|(_, node)| node))
}

fn unknown_key(key: &Key) -> Problem {
    let message = match keys::nearest_key(&key.text) {
        Some(near) => format!("unknown key `{}`; did you mean `{near}`?", key.text),
        None => format!("unknown key `{}`; `mt-train --help-keys PATTERN` lists the keys", key.text),
    };
    Problem::new(key.place.clone(), message)
}

fn set_twice(spec: &KeySpec, place: &Place) -> Problem {
    let message = format!("`{}` is also set on the command line; set it in one of the two", spec.name);
    Problem::new(place.clone(), message)
}

/// A note, since a parent's value that the preset replaces looks as if it were in force.
fn replaced_by_preset(spec: &KeySpec, parent: (&Key, &Node), preset: (&Key, &Node)) -> Option<Problem> {
    let (old, new) = ((spec.check)(parent.1).ok()?, (spec.check)(preset.1).ok()?);
    let message = format!(
        "`{}: {old}` is replaced by {new} of the model preset ({}), which ranks above base_config files",
        spec.name, preset.0.place
    );
    (old != new).then(|| Problem::new(parent.0.place.clone(), message))
}

fn preset_conflict(spec: &KeySpec, preset: (&Key, &Node), own: (&Key, &Node)) -> Problem {
    let show = |node: &Node| (spec.check)(node).unwrap_or_else(|_| node.to_value());
    let message = format!(
        "`{}` is {} here and {} in the model preset ({}); drop one, or set override_model_config: true to let yours win",
        spec.name,
        show(own.1),
        show(preset.1),
        preset.0.place,
    );
    Problem::new(own.0.place.clone(), message)
}
