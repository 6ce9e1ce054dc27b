//! Reading files: from disk or from the presets inside the binary, with `${VAR}` and `extends` applied.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crate::error::Problem;
use crate::node::{Key, Kind, Node, Place, Value};
use crate::{presets, substitute, yaml};

/// Files may refer to files this deep; more is taken for a cycle that path names hide.
const MAX_DEPTH: usize = 32;

/// Where a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// On disk.
    Disk(PathBuf),
    /// Inside the binary, by its path in this repository.
    BuiltIn(String),
}

impl Source {
    /// The path as messages show it.
    pub fn shown(&self) -> Arc<PathBuf> {
        Arc::new(match self {
            Self::Disk(path) => path.clone(),
            Self::BuiltIn(path) => PathBuf::from(format!("built-in:{path}")),
        })
    }

    /// A place for problems with the file as a whole.
    pub fn whole(&self) -> Place {
        Place::File { path: self.shown(), line: 0, column: 0 }
    }

    /// The file that `relative` means as seen from this one.
    pub fn sibling(&self, relative: &str) -> Self {
        match self {
            Self::Disk(path) => Self::Disk(path.parent().unwrap_or(Path::new("")).join(relative)),
            Self::BuiltIn(path) => {
                let folder = Path::new(path).parent().unwrap_or(Path::new(""));
                Self::BuiltIn(normalized(&folder.join(relative)).to_string_lossy().into_owned())
            }
        }
    }

    /// Whether there is such a file.
    pub fn exists(&self) -> bool {
        match self {
            Self::Disk(path) => path.is_file(),
            Self::BuiltIn(path) => presets::built_in(path).is_some(),
        }
    }

    /// One name per file, for finding cycles.
    fn identity(&self) -> Self {
        match self {
            Self::Disk(path) => Self::Disk(path.canonicalize().unwrap_or_else(|_| path.clone())),
            built_in => built_in.clone(),
        }
    }

    fn bytes(&self) -> Result<Vec<u8>, Problem> {
        match self {
            Self::Disk(path) => std::fs::read(path)
                .map_err(|error| Problem::new(self.whole(), format!("the file can't be read: {error}"))),
            Self::BuiltIn(path) => presets::built_in(path)
                .map(|text| text.as_bytes().to_vec())
                .ok_or_else(|| Problem::new(self.whole(), "there is no such built-in file")),
        }
    }
}

/// `a/../b` as `b`, without asking the disk.
fn normalized(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                clean.pop();
            }
            Component::CurDir => {}
            part => clean.push(part),
        }
    }
    clean
}

/// Reads files on behalf of one [`load`](crate::load): carries the environment and collects what is found.
pub(crate) struct Reader<'a> {
    pub env: &'a BTreeMap<String, String>,
    pub problems: Vec<Problem>,
    pub notes: Vec<Problem>,
    open: Vec<Source>,
}

impl<'a> Reader<'a> {
    pub fn new(env: &'a BTreeMap<String, String>) -> Self {
        Self { env, problems: Vec::new(), notes: Vec::new(), open: Vec::new() }
    }

    /// The entries of a file, after `${VAR}` and `extends`. A file that can't be read is a problem and empty.
    pub fn read(&mut self, source: &Source) -> Vec<(Key, Node)> {
        match self.try_read(source) {
            Ok(entries) => entries,
            Err(problem) => {
                self.problems.push(problem);
                Vec::new()
            }
        }
    }

    fn try_read(&mut self, source: &Source) -> Result<Vec<(Key, Node)>, Problem> {
        let node = yaml::parse(&source.bytes()?, &source.shown(), &mut self.notes)?;
        let Some(mut node) = node.filter(|node| !node.is_none()) else {
            return Err(Problem::new(source.whole(), "the file is empty"));
        };
        substitute::environment(&mut node, self.env, &mut self.problems);
        let Kind::Map(mut entries) = node.kind else {
            return Err(Problem::new(node.place, "expected `key: value` lines"));
        };
        let mut merged = Vec::new();
        for name in ["bases", "extends"] {
            if let Some(at) = entries.iter().position(|(key, _)| key.text == name) {
                let (key, list) = entries.remove(at);
                for parent in self.parents(&key, &list) {
                    let parent = source.sibling(&parent);
                    if !parent.exists() {
                        let message =
                            format!("`{name}` names {}, which isn't a file", parent.shown().display());
                        self.problems.push(Problem::new(key.place.clone(), message));
                        continue;
                    }
                    if self.enter(source, &key.place, &parent) {
                        let parent_entries = self.read(&parent);
                        self.leave();
                        deep_merge(&mut merged, parent_entries);
                    }
                }
            }
        }
        deep_merge(&mut merged, entries);
        Ok(merged)
    }

    /// The names in `extends`: one, or a list.
    fn parents(&mut self, key: &Key, node: &Node) -> Vec<String> {
        let text = |node: &Node| match node.to_value() {
            Value::Text(text) => Some(text),
            _ => None,
        };
        let names = match &node.kind {
            Kind::List(items) => items.iter().map(text).collect(),
            _ => text(node).map(|name| vec![name]),
        };
        names.unwrap_or_else(|| {
            let message = format!("`{}` needs a file name or a list of file names", key.text);
            self.problems.push(Problem::new(key.place.clone(), message));
            Vec::new()
        })
    }

    /// Steps from one file into another; a cycle is a problem and `false`.
    pub fn enter(&mut self, from: &Source, place: &Place, to: &Source) -> bool {
        self.open.push(from.identity());
        if self.open.contains(&to.identity()) || self.open.len() > MAX_DEPTH {
            let message = format!("{} refers back to a file that refers to it", to.shown().display());
            self.problems.push(Problem::new(place.clone(), message));
            self.open.pop();
            return false;
        }
        true
    }

    /// Steps back.
    pub fn leave(&mut self) {
        self.open.pop();
    }
}

/// Mappings merge, everything else is replaced; what comes later wins.
pub(crate) fn deep_merge(into: &mut Vec<(Key, Node)>, from: Vec<(Key, Node)>) {
    for (key, node) in from {
        let Some(at) = into.iter().position(|(earlier, _)| earlier.text == key.text) else {
            into.push((key, node));
            continue;
        };
        match (&mut into[at].1.kind, node.kind) {
            (Kind::Map(old), Kind::Map(new)) => deep_merge(old, new),
            (_, kind) => into[at] = (key, Node { kind, place: node.place }),
        }
    }
}
