//! A parsed YAML value that remembers where it stood and how it was written.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// A scalar or a collection, after YAML 1.1 resolution.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `null`, `~` or nothing.
    Null,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating point number.
    Float(f64),
    /// Text.
    Text(String),
    /// A sequence.
    List(Vec<Value>),
    /// A mapping, in the order of the file.
    Map(Vec<(String, Value)>),
}

impl fmt::Display for Value {
    /// One line of YAML (flow style) that reads back as the same value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Float(value) => f.write_str(&crate::yaml::float_text(*value)),
            Self::Text(text) => f.write_str(&crate::yaml::quoted_if_needed(text)),
            Self::List(items) => {
                f.write_str("[")?;
                for (i, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
            Self::Map(entries) => {
                f.write_str("{")?;
                for (i, (key, value)) in entries.iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    write!(f, "{comma}{}: {value}", crate::yaml::quoted_if_needed(key))?;
                }
                f.write_str("}")
            }
        }
    }
}

/// Where a value was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The default of the key table.
    Default,
    /// Computed from other keys, which are named.
    Derived(&'static str),
    /// A file, with the line and column of the key (both from 1).
    File {
        /// Path as the user would write it, or `built-in:NAME` for a preset inside the binary.
        path: Arc<PathBuf>,
        /// Line, from 1; 0 when the whole file is meant.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// `key=value` on the command line.
    CommandLine,
    /// An environment variable, with its name.
    Environment(String),
}

impl Place {
    /// Whether a file, the command line or the environment set the value.
    pub fn is_given(&self) -> bool {
        !matches!(self, Self::Default | Self::Derived(_))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Derived(from) => write!(f, "from {from}"),
            Self::File { path, line: 0, .. } => write!(f, "{}", path.display()),
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::CommandLine => f.write_str("command line"),
            Self::Environment(name) => write!(f, "environment variable {name}"),
        }
    }
}

/// What a node holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// A scalar as written (without quotes) and as YAML 1.1 resolves it.
    Scalar {
        /// The text in the file.
        text: String,
        /// Its resolved value.
        value: Value,
    },
    /// A sequence.
    List(Vec<Node>),
    /// A mapping; duplicates are already removed (the last one stays).
    Map(Vec<(Key, Node)>),
}

/// A key of a mapping.
#[derive(Debug, Clone, PartialEq)]
pub struct Key {
    /// The key's text.
    pub text: String,
    /// Where the key stands.
    pub place: Place,
}

/// A value with its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// What it holds.
    pub kind: Kind,
    /// Where it stands.
    pub place: Place,
}

impl Node {
    /// A scalar whose text is taken literally, never resolved to a number or a boolean.
    pub fn text(text: impl Into<String>, place: Place) -> Self {
        let text = text.into();
        Self { kind: Kind::Scalar { value: Value::Text(text.clone()), text }, place }
    }

    /// A scalar as a plain one of a YAML file would be read.
    pub fn plain(text: &str, place: Place) -> Self {
        let value = crate::yaml::resolve_plain(text);
        Self { kind: Kind::Scalar { text: text.to_owned(), value }, place }
    }

    /// The value without places.
    pub fn to_value(&self) -> Value {
        match &self.kind {
            Kind::Scalar { value, .. } => value.clone(),
            Kind::List(items) => Value::List(items.iter().map(Self::to_value).collect()),
            Kind::Map(entries) => {
                Value::Map(entries.iter().map(|(key, node)| (key.text.clone(), node.to_value())).collect())
            }
        }
    }

    /// The text of a scalar as written, `None` for null, lists and mappings.
    pub fn scalar_text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Scalar { value: Value::Null, .. } => None,
            Kind::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    /// MaxText reads the word `none` (any of `None`, `none`, `NONE`) and an empty value as null.
    pub fn is_none(&self) -> bool {
        match &self.kind {
            Kind::Scalar { value: Value::Null, .. } => true,
            Kind::Scalar { text, value: Value::Text(_) } => text.eq_ignore_ascii_case("none"),
            _ => false,
        }
    }
}
