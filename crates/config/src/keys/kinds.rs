//! How each Rust type of a key is read from YAML and written back, with MaxText's (pydantic's) leniency.

use std::fmt;
use std::ops::Deref;

use crate::node::{Kind, Node, Value};

/// A type that a key can have.
pub trait KeyType: Sized {
    /// What a value looks like, for messages and documentation.
    fn describe() -> String;
    /// Reads a value; the error says what was expected and found, without naming the key.
    fn parse(node: &Node) -> Result<Self, String>;
    /// The value in YAML's terms, for comparing and printing.
    fn to_value(&self) -> Value;
    /// How the command line and the environment write it.
    const SYNTAX: Syntax = Syntax::Yaml;
}

/// How a value is written outside of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syntax {
    /// As in a file.
    Yaml,
    /// As it is, since no YAML syntax means anything in text.
    Text,
    /// As it is, or a list in brackets.
    TextOrList,
    /// A list in brackets or one item; no environment variable can hold it (MaxText's rule).
    Collection,
}

fn expected(what: &str, node: &Node) -> String {
    format!("expected {what}, found {}", describe(node))
}

/// A value as a message shows it.
pub fn describe(node: &Node) -> String {
    match &node.kind {
        Kind::Scalar { value: Value::Null, .. } => "nothing (null)".to_owned(),
        Kind::Scalar { text, .. } if text.chars().count() > 60 => {
            format!("`{}...`", text.chars().take(60).collect::<String>())
        }
        Kind::Scalar { text, .. } => format!("`{text}`"),
        Kind::List(items) => format!("a list of {} items", items.len()),
        Kind::Map(_) => "a mapping".to_owned(),
    }
}

/// Whole numbers, also written as `10.0`, `1e2`, `"10"` or `1_000`.
fn whole_number(node: &Node) -> Option<i128> {
    let Kind::Scalar { text, value } = &node.kind else { return None };
    let from_float = |float: f64| (float.fract() == 0.0 && float.abs() < 1e18).then_some(float as i128);
    match value {
        Value::Int(int) => Some(i128::from(*int)),
        Value::Float(float) => from_float(*float),
        Value::Text(_) => {
            let text = text.trim().replace('_', "");
            text.parse().ok().or_else(|| from_float(text.parse().ok()?))
        }
        _ => None,
    }
}

macro_rules! integer_kinds {
    ($($ty:ty = $what:literal),*) => {$(
        impl KeyType for $ty {
            fn describe() -> String {
                $what.to_owned()
            }
            fn parse(node: &Node) -> Result<Self, String> {
                whole_number(node).and_then(|n| n.try_into().ok()).ok_or_else(|| expected($what, node))
            }
            fn to_value(&self) -> Value {
                i64::try_from(*self).map_or_else(|_| Value::Text(self.to_string()), Value::Int)
            }
        }
    )*};
}

integer_kinds!(
    i64 = "a whole number",
    usize = "a whole number, 0 or more",
    u64 = "a whole number, 0 or more"
);

impl KeyType for f64 {
    fn describe() -> String {
        "a number".to_owned()
    }
    fn parse(node: &Node) -> Result<Self, String> {
        let Kind::Scalar { text, value } = &node.kind else { return Err(expected("a number", node)) };
        match value {
            Value::Int(int) => Some(*int as f64),
            Value::Float(float) => Some(*float),
            // `3e-5` has no dot, so it is text in YAML 1.1.
            Value::Text(_) => text.trim().replace('_', "").parse().ok(),
            _ => None,
        }
        .filter(|float: &f64| float.is_finite())
        .ok_or_else(|| expected("a number", node))
    }
    fn to_value(&self) -> Value {
        Value::Float(*self)
    }
}

impl KeyType for bool {
    fn describe() -> String {
        "true or false".to_owned()
    }
    fn parse(node: &Node) -> Result<Self, String> {
        let Kind::Scalar { text, value } = &node.kind else { return Err(expected("true or false", node)) };
        match value {
            Value::Bool(flag) => Some(*flag),
            Value::Null => None,
            _ => match text.trim().to_ascii_lowercase().as_str() {
                "true" | "t" | "yes" | "y" | "on" | "1" | "1.0" => Some(true),
                "false" | "f" | "no" | "n" | "off" | "0" | "0.0" => Some(false),
                _ => None,
            },
        }
        .ok_or_else(|| expected("true or false", node))
    }
    fn to_value(&self) -> Value {
        Value::Bool(*self)
    }
}

impl KeyType for String {
    const SYNTAX: Syntax = Syntax::Text;

    fn describe() -> String {
        "text".to_owned()
    }
    /// A number or a word such as `yes` is taken as it is written; null and `None` are the empty text.
    fn parse(node: &Node) -> Result<Self, String> {
        match &node.kind {
            Kind::Scalar { .. } if node.is_none() => Ok(Self::new()),
            // `${HF_TOKEN:""}` in Primus files yields two quote characters when the variable is unset.
            Kind::Scalar { text, .. } if text == "\"\"" || text == "''" => Ok(Self::new()),
            Kind::Scalar { text, .. } => Ok(text.clone()),
            _ => Err(expected("text", node)),
        }
    }
    fn to_value(&self) -> Value {
        Value::Text(self.clone())
    }
}

impl<T: KeyType> KeyType for Option<T> {
    const SYNTAX: Syntax = T::SYNTAX;

    fn describe() -> String {
        format!("{}, or None", T::describe())
    }
    fn parse(node: &Node) -> Result<Self, String> {
        if node.is_none() || node.scalar_text() == Some("") { Ok(None) } else { T::parse(node).map(Some) }
    }
    fn to_value(&self) -> Value {
        self.as_ref().map_or(Value::Null, T::to_value)
    }
}

impl<T: KeyType> KeyType for Vec<T> {
    const SYNTAX: Syntax = Syntax::Collection;

    fn describe() -> String {
        format!("a list, each item {}", T::describe())
    }
    /// A single value stands for a list of one, and null for an empty list.
    fn parse(node: &Node) -> Result<Self, String> {
        match &node.kind {
            Kind::List(items) => items.iter().map(T::parse).collect(),
            Kind::Scalar { text, .. } if node.is_none() || text.is_empty() => Ok(Self::new()),
            Kind::Scalar { .. } => Ok(vec![T::parse(node)?]),
            Kind::Map(_) => Err(expected("a list", node)),
        }
    }
    fn to_value(&self) -> Value {
        Value::List(self.iter().map(T::to_value).collect())
    }
}

/// File names and glob patterns: a list, one text, or several texts with commas between them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Files(pub Vec<String>);

impl Deref for Files {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.0
    }
}

impl KeyType for Files {
    const SYNTAX: Syntax = Syntax::TextOrList;

    fn describe() -> String {
        "file names or glob patterns: a list, or text with commas".to_owned()
    }
    fn parse(node: &Node) -> Result<Self, String> {
        let patterns = Vec::<String>::parse(node)?;
        let split =
            |pattern: &String| pattern.split(',').map(|one| one.trim().to_owned()).collect::<Vec<_>>();
        let files = match &node.kind {
            Kind::Scalar { .. } => patterns.iter().flat_map(split).collect(),
            _ => patterns,
        };
        Ok(Self(files.into_iter().filter(|pattern| !pattern.is_empty()).collect()))
    }
    fn to_value(&self) -> Value {
        match self.0.as_slice() {
            [] => Value::Text(String::new()),
            [one] => Value::Text(one.clone()),
            _ => self.0.to_value(),
        }
    }
}

/// A token or password: never printed, never saved.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(String);

impl Secret {
    /// The secret itself, `None` when it isn't set.
    pub fn expose(&self) -> Option<&str> {
        Some(self.0.as_str()).filter(|secret| !secret.is_empty())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "unset" } else { "<hidden>" })
    }
}

impl KeyType for Secret {
    const SYNTAX: Syntax = Syntax::Text;

    fn describe() -> String {
        "text, never printed or saved".to_owned()
    }
    fn parse(node: &Node) -> Result<Self, String> {
        String::parse(node).map(Self).map_err(|_| "expected text".to_owned())
    }
    fn to_value(&self) -> Value {
        Value::Text(if self.0.is_empty() { "" } else { "<hidden>" }.to_owned())
    }
}

/// A value that nothing reads: anything goes.
pub struct Anything(Value);

impl KeyType for Anything {
    const SYNTAX: Syntax = Syntax::Collection;

    fn describe() -> String {
        "anything".to_owned()
    }
    fn parse(node: &Node) -> Result<Self, String> {
        Ok(Self(node.to_value()))
    }
    fn to_value(&self) -> Value {
        self.0.clone()
    }
}

/// A parallelism axis that this build doesn't have: 1, or -1 for "the rest of the devices".
pub struct Single;

impl KeyType for Single {
    fn describe() -> String {
        "1 or -1".to_owned()
    }
    fn parse(node: &Node) -> Result<Self, String> {
        match i64::parse(node)? {
            1 | -1 => Ok(Self),
            _ => Err(expected("1 or -1", node)),
        }
    }
    fn to_value(&self) -> Value {
        Value::Int(1)
    }
}
