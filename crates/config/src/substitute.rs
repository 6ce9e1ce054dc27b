//! `${VAR}` and `${VAR:default}` in text values, as Primus reads them; `$${` stands for `${` itself.

use std::collections::BTreeMap;

use crate::error::Problem;
use crate::node::{Kind, Node, Value};

/// Replaces the references in every text value below `node`; keys stay as they are.
///
/// After a replacement, and only then, text that reads `true`, `false` or as a number becomes one.
pub(crate) fn environment(node: &mut Node, env: &BTreeMap<String, String>, problems: &mut Vec<Problem>) {
    match &mut node.kind {
        Kind::Scalar { text, value: value @ Value::Text(_) } => match replaced(text, env) {
            Ok(new) if new == *text => {}
            Ok(new) => {
                *value = retyped(&new);
                *text = new;
            }
            Err(variable) => {
                let message = format!(
                    "the environment variable {variable} isn't set, and `${{{variable}}}` has no default"
                );
                problems.push(Problem::new(node.place.clone(), message));
            }
        },
        Kind::Scalar { .. } => {}
        Kind::List(items) => items.iter_mut().for_each(|item| environment(item, env, problems)),
        Kind::Map(entries) => entries.iter_mut().for_each(|(_, node)| environment(node, env, problems)),
    }
}

/// The text with every `${VAR}` and `${VAR:default}` replaced; the error is a variable that isn't set.
///
/// A variable that is set to nothing wins over the default. A default ends at the first `}`. `$${` gives `${`.
fn replaced(text: &str, env: &BTreeMap<String, String>) -> Result<String, String> {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let (before, reference) = rest.split_at(start);
        if let Some(before) = before.strip_suffix('$') {
            result.push_str(before);
            result.push_str("${");
            rest = &reference[2..];
            continue;
        }
        result.push_str(before);
        match reference_at(reference) {
            Some((name, default, length)) => {
                let value = env.get(name).map(String::as_str).or(default);
                result.push_str(value.ok_or_else(|| name.to_owned())?);
                rest = &reference[length..];
            }
            None => {
                result.push_str("${");
                rest = &reference[2..];
            }
        }
    }
    result.push_str(rest);
    Ok(result)
}

/// The text that [`environment`] turns into `text`, whatever the variables are.
pub(crate) fn escaped(text: &str) -> String {
    text.replace("${", "$${")
}

/// Name, default and length of the reference at the start of `text`.
fn reference_at(text: &str) -> Option<(&str, Option<&str>, usize)> {
    let body = text.strip_prefix("${")?;
    let name_end = body.find([':', '{', '}'])?;
    let name = &body[..name_end];
    if name.is_empty() {
        return None;
    }
    match body.as_bytes()[name_end] {
        b'}' => Some((name, None, 2 + name_end + 1)),
        b':' => {
            let default = &body[name_end + 1..];
            let end = default.find('}')?;
            Some((name, Some(&default[..end]), 2 + name_end + 1 + end + 1))
        }
        _ => None,
    }
}

fn retyped(text: &str) -> Value {
    if text.eq_ignore_ascii_case("true") || text.eq_ignore_ascii_case("false") {
        return Value::Bool(text.eq_ignore_ascii_case("true"));
    }
    let digits = text.strip_prefix('-').unwrap_or(text);
    if !digits.is_empty()
        && digits.bytes().all(|b| b.is_ascii_digit())
        && let Ok(int) = text.parse()
    {
        return Value::Int(int);
    }
    // Rust also reads `inf` and `nan` as numbers, which a name could be.
    let numeric = text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
    match text.parse() {
        Ok(float) if numeric => Value::Float(float),
        _ => Value::Text(text.to_owned()),
    }
}
