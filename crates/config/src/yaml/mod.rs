//! From the bytes of a YAML file to a tree of [`Node`]s that remember line and column.

mod scalar;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};

use crate::error::Problem;
use crate::node::{Key, Kind, Node, Place, Value};

pub(crate) use scalar::{float_text, quoted_if_needed, resolve_plain};

/// Collections may nest this deep; a configuration is flat, a Primus experiment has four levels.
const MAX_DEPTH: usize = 64;
/// Nodes of a file after its aliases are expanded: far more than any configuration, far less than an alias bomb.
const MAX_NODES: usize = 100_000;

/// Parses one YAML document. `Ok(None)` is an empty file.
///
/// A duplicated key keeps its last value, as PyYAML does, and adds a warning.
///
/// # Errors
/// One problem with line and column: the text isn't UTF-8 or YAML, nests or grows too far, or holds two documents.
pub fn parse(
    bytes: &[u8],
    path: &Arc<PathBuf>,
    warnings: &mut Vec<Problem>,
) -> Result<Option<Node>, Problem> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count();
        let place = Place::File { path: path.clone(), line, column: 1 };
        Problem::new(place, "the file isn't valid UTF-8 text")
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut builder =
        Builder { path, warnings, open: Vec::new(), root: None, anchors: HashMap::new(), nodes: 0 };
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| {
            Problem::new(
                builder.place(error.marker().line(), error.marker().col()),
                format!("not YAML: {}", error.info()),
            )
        })?;
        builder.event(event, span)?;
    }
    Ok(builder.root)
}

/// A collection that isn't closed yet.
struct Open {
    node: Node,
    anchor: usize,
    key: Option<Key>,
}

struct Builder<'a> {
    path: &'a Arc<PathBuf>,
    warnings: &'a mut Vec<Problem>,
    open: Vec<Open>,
    root: Option<Node>,
    /// Finished nodes by anchor, with how many nodes each holds.
    anchors: HashMap<usize, (Node, usize)>,
    nodes: usize,
}

impl Builder<'_> {
    fn place(&self, line: usize, column: usize) -> Place {
        Place::File { path: self.path.clone(), line: line.max(1), column: column + 1 }
    }

    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), Problem> {
        let place = self.place(span.start.line(), span.start.col());
        match event {
            Event::DocumentStart(_) if self.root.is_some() => {
                Err(Problem::new(place, "a second YAML document starts here, expected one"))
            }
            Event::Scalar(text, style, anchor, tag) => {
                let value = resolve(&text, style, tag.as_deref(), &place)?;
                let node = Node { kind: Kind::Scalar { text: text.into_owned(), value }, place };
                self.finish(node, anchor)
            }
            Event::SequenceStart(anchor, _) => self.push(Kind::List(Vec::new()), anchor, place),
            Event::MappingStart(anchor, _) => self.push(Kind::Map(Vec::new()), anchor, place),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open { mut node, anchor, .. }) => {
                    if let Kind::Map(entries) = &mut node.kind {
                        self.clean(entries)?;
                    }
                    self.finish(node, anchor)
                }
                None => Ok(()),
            },
            Event::Alias(anchor) => {
                let Some((mut node, size)) = self.anchors.get(&anchor).cloned() else {
                    return Err(Problem::new(place, "this alias refers to a collection that it is part of"));
                };
                self.nodes += size;
                node.place = place;
                self.finish(node, 0)
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
        }
    }

    fn push(&mut self, kind: Kind, anchor: usize, place: Place) -> Result<(), Problem> {
        if self.open.len() >= MAX_DEPTH {
            return Err(Problem::new(place, format!("more than {MAX_DEPTH} nested collections")));
        }
        self.open.push(Open { node: Node { kind, place }, anchor, key: None });
        Ok(())
    }

    /// Hands a complete node to the collection that is open, or makes it the root.
    fn finish(&mut self, node: Node, anchor: usize) -> Result<(), Problem> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(Problem::new(
                node.place,
                format!("more than {MAX_NODES} values after expanding aliases"),
            ));
        }
        if anchor != 0 {
            self.anchors.insert(anchor, (node.clone(), size(&node)));
        }
        let Some(parent) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match (&mut parent.node.kind, parent.key.take()) {
            (Kind::List(items), _) => items.push(node),
            (Kind::Map(entries), Some(key)) => entries.push((key, node)),
            (Kind::Map(_), None) => {
                let Kind::Scalar { text, .. } = node.kind else {
                    return Err(Problem::new(node.place, "a key must be text, found a collection"));
                };
                parent.key = Some(Key { text, place: node.place });
            }
            (Kind::Scalar { .. }, _) => {}
        }
        Ok(())
    }

    /// Applies merge keys (`<<`) and drops all but the last of duplicated keys.
    fn clean(&mut self, entries: &mut Vec<(Key, Node)>) -> Result<(), Problem> {
        let mut merged = Vec::new();
        let mut own: Vec<(Key, Node)> = Vec::with_capacity(entries.len());
        let mut seen: HashMap<String, usize> = HashMap::new();
        for (key, node) in entries.drain(..) {
            if key.text == "<<" {
                merge_sources(node, &mut merged)?;
                continue;
            }
            match seen.get(&key.text) {
                Some(&at) => {
                    let earlier = std::mem::replace(&mut own[at], (key, node)).0.place;
                    let key = &own[at].0;
                    let message =
                        format!("`{}` is set twice; the value here wins over the one at {earlier}", key.text);
                    self.warnings.push(Problem::new(key.place.clone(), message));
                }
                None => {
                    seen.insert(key.text.clone(), own.len());
                    own.push((key, node));
                }
            }
        }
        for (key, node) in merged {
            if !seen.contains_key(&key.text) {
                seen.insert(key.text.clone(), own.len());
                own.push((key, node));
                self.nodes += 1;
            }
        }
        *entries = own;
        Ok(())
    }
}

/// The entries that `<<: *a` or `<<: [*a, *b]` brings in; earlier sources win.
fn merge_sources(node: Node, into: &mut Vec<(Key, Node)>) -> Result<(), Problem> {
    match node.kind {
        Kind::Map(entries) => {
            into.extend(entries);
            Ok(())
        }
        Kind::List(items) if items.iter().all(|item| matches!(item.kind, Kind::Map(_))) => {
            items.into_iter().try_for_each(|item| merge_sources(item, into))
        }
        _ => Err(Problem::new(node.place, "the merge key `<<` needs a mapping or a list of mappings")),
    }
}

fn size(node: &Node) -> usize {
    1 + match &node.kind {
        Kind::Scalar { .. } => 0,
        Kind::List(items) => items.iter().map(size).sum(),
        Kind::Map(entries) => entries.iter().map(|(_, node)| size(node)).sum(),
    }
}

/// Quoted scalars are text; `!!str`, `!!int` and so on say what they are.
fn resolve(text: &str, style: ScalarStyle, tag: Option<&Tag>, place: &Place) -> Result<Value, Problem> {
    let wanted = match tag {
        None if style == ScalarStyle::Plain => return Ok(resolve_plain(text)),
        None => return Ok(Value::Text(text.to_owned())),
        Some(tag) if tag.is_yaml_core_schema() => tag.suffix.as_str(),
        Some(tag) if tag.handle.is_empty() && tag.suffix == "!" => "str",
        Some(tag) => {
            return Err(Problem::new(place.clone(), format!("the tag `{tag}` isn't supported here")));
        }
    };
    let value = resolve_plain(text);
    match (wanted, &value) {
        ("str", _) => Ok(Value::Text(text.to_owned())),
        ("int", Value::Int(_))
        | ("float", Value::Float(_))
        | ("bool", Value::Bool(_))
        | ("null", Value::Null) => Ok(value),
        ("float", Value::Int(int)) => Ok(Value::Float(*int as f64)),
        _ => Err(Problem::new(place.clone(), format!("`{text}` isn't a `!!{wanted}`"))),
    }
}

/// Parses one value such as `[a, b]` or `3`, without a file around it; `None` when it isn't YAML.
pub(crate) fn parse_inline(text: &str, place: Place) -> Option<Node> {
    let path = Arc::new(PathBuf::new());
    let mut node = parse(text.as_bytes(), &path, &mut Vec::new()).ok()??;
    replace_places(&mut node, &place);
    Some(node)
}

fn replace_places(node: &mut Node, place: &Place) {
    node.place = place.clone();
    match &mut node.kind {
        Kind::Scalar { .. } => {}
        Kind::List(items) => items.iter_mut().for_each(|item| replace_places(item, place)),
        Kind::Map(entries) => entries.iter_mut().for_each(|(key, node)| {
            key.place = place.clone();
            replace_places(node, place);
        }),
    }
}
