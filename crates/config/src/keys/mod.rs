//! The table of keys: the single source for parsing, `--help-keys`, docs/config.md and "did you mean".

pub mod choices;
mod differences;
pub mod kinds;
mod known;
mod table;

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::node::{Node, Value};
pub use differences::{DIFFERENCES, Difference, RULES};
pub use table::Config;

/// What a key does in this build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It works.
    Implemented,
    /// Any value is accepted and nothing follows from it, for this reason.
    Accepted(&'static str),
    /// Only the default is accepted, for this reason.
    Rejected(&'static str),
}

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub struct KeySpec {
    /// MaxText's (or Primus's, or our own) name.
    pub name: &'static str,
    /// MaxText's group, `Primus`, or `mt-train` for keys of our own.
    pub group: &'static str,
    /// The default as YAML text.
    pub default: &'static str,
    /// One line on what it does; may be empty for keys without effect.
    pub doc: &'static str,
    /// What it does in this build.
    pub state: State,
    /// What a value looks like.
    pub kind: fn() -> String,
    /// Reads a value and writes it back in its canonical form; the error says what was expected.
    pub check: fn(&Node) -> Result<Value, String>,
    /// How the command line and the environment write it.
    pub syntax: kinds::Syntax,
}

impl KeySpec {
    /// A row for a key of type `T`.
    pub(crate) const fn new<T: kinds::KeyType>(
        name: &'static str,
        group: &'static str,
        default: &'static str,
        doc: &'static str,
        state: State,
    ) -> Self {
        Self {
            name,
            group,
            default,
            doc,
            state,
            kind: T::describe,
            check: |node| T::parse(node).map(|value| value.to_value()),
            syntax: T::SYNTAX,
        }
    }
}

static BY_NAME: LazyLock<HashMap<&'static str, &'static KeySpec>> =
    LazyLock::new(|| all().map(|spec| (spec.name, spec)).collect());

/// Every key, implemented ones first, in the order of the table.
pub fn all() -> impl Iterator<Item = &'static KeySpec> {
    table::IMPLEMENTED.iter().chain(known::all())
}

/// The row of `name`.
pub fn find(name: &str) -> Option<&'static KeySpec> {
    BY_NAME.get(name).copied()
}

/// The key that a misspelled name most likely means.
pub fn nearest_key(name: &str) -> Option<&'static str> {
    // A key that works is a better guess than one without effect.
    nearest(name, table::IMPLEMENTED.iter().map(|spec| spec.name))
        .or_else(|| nearest(name, all().map(|spec| spec.name)))
}

/// The candidate closest to `name`, if it is close enough to be what was meant.
pub(crate) fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_ascii_lowercase().replace('-', "_");
    candidates
        .filter(|candidate| !candidate.is_empty())
        .map(|candidate| (strsim::damerau_levenshtein(&name, &candidate.to_ascii_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 4).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}
