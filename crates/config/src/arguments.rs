//! `key=value` arguments and `M_KEY` variables as layers.

use std::collections::BTreeMap;

use crate::error::Problem;
use crate::keys::kinds::Syntax;
use crate::keys::{self, KeySpec};
use crate::layers::{Layer, Rank};
use crate::node::{Key, Kind, Node, Place};
use crate::yaml;

/// Splits `key=value` arguments; `--key=value` and Primus's `override_model.key=value` mean the same.
pub(crate) fn split(arguments: &[String]) -> (Vec<(String, String)>, Vec<Problem>) {
    let mut overrides = Vec::new();
    let mut problems = Vec::new();
    for argument in arguments {
        match argument.split_once('=') {
            Some((key, value)) => {
                let key = key.trim_start_matches("--").trim();
                let key = key.strip_prefix("override_model.").unwrap_or(key);
                overrides.push((key.to_owned(), value.to_owned()));
            }
            None => {
                let message = format!("expected `key=value`, found `{argument}`");
                problems.push(Problem::new(Place::CommandLine, message));
            }
        }
    }
    (overrides, problems)
}

/// The command line's layer; of a repeated key the last one wins.
pub(crate) fn command_line(overrides: &[(String, String)]) -> Layer {
    let mut entries: Vec<(Key, Node)> = Vec::new();
    for (name, text) in overrides {
        let key = Key { text: name.clone(), place: Place::CommandLine };
        entries.retain(|(earlier, _)| earlier.text != key.text);
        entries.push((key, argument(keys::find(name), text)));
    }
    Layer { rank: Rank::CommandLine, entries }
}

/// Text keys take the argument as it is, so that `*.json` or `a: b` need no quotes.
fn argument(spec: Option<&KeySpec>, text: &str) -> Node {
    let place = Place::CommandLine;
    let list = || {
        yaml::parse_inline(text, Place::CommandLine).filter(|node| !matches!(node.kind, Kind::Scalar { .. }))
    };
    match spec.map_or(Syntax::Text, |spec| spec.syntax) {
        Syntax::Yaml => Node::plain(unquoted(text), place),
        Syntax::Text => Node::text(unquoted(text), place),
        Syntax::TextOrList => list().unwrap_or_else(|| Node::text(unquoted(text), place)),
        Syntax::Collection => list().unwrap_or_else(|| Node::plain(unquoted(text), place)),
    }
}

fn unquoted(text: &str) -> &str {
    let inner = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    inner('"').or_else(|| inner('\'')).unwrap_or(text)
}

/// The variable that sets `gemm`, as docs/rocm.md calls it; `M_GEMM` does as well.
const GEMM: &str = "MT_GEMM";

/// The environment's layer: `M_STEPS` sets `steps`. Variables that name no key are ignored, near misses noted.
pub(crate) fn environment(
    variables: &BTreeMap<String, String>,
    problems: &mut Vec<Problem>,
    notes: &mut Vec<Problem>,
) -> Layer {
    let mut entries = Vec::new();
    for (variable, text) in variables {
        let upper = match variable.as_str() {
            GEMM => Some("GEMM"),
            _ => variable.strip_prefix("M_"),
        };
        let Some(upper) = upper.filter(|name| !name.chars().any(char::is_lowercase)) else {
            continue;
        };
        let place = Place::Environment(variable.clone());
        let name = upper.to_lowercase();
        match keys::find(&name) {
            Some(spec) if spec.syntax == Syntax::Collection => {
                let message =
                    format!("`{name}` holds a list; set it in the file or on the command line instead");
                problems.push(Problem::new(place, message));
            }
            Some(spec) => {
                let node = match spec.syntax {
                    Syntax::Yaml => Node::plain(text, place.clone()),
                    _ => Node::text(text, place.clone()),
                };
                entries.push((Key { text: name, place }, node));
            }
            None => {
                if let Some(near) = keys::nearest_key(&name) {
                    let message = format!(
                        "no key has this name, so it is ignored; did you mean M_{}?",
                        near.to_uppercase()
                    );
                    notes.push(Problem::new(place, message));
                }
            }
        }
    }
    Layer { rank: Rank::Environment, entries }
}
