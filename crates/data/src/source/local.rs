//! Local files by glob, list, comma list or directory.

use std::path::{Path, PathBuf};

use super::split::{of_split, one_format};
use super::{Format, TextUnit};
use crate::DataError;

/// Files that `patterns` name, in order: pattern by pattern, sorted by path inside each, each file once.
///
/// A pattern is a path, a glob (`*`, `?`, `[..]`, `**`, `{a,b}`) or a directory, which stands for the files of
/// `format` below it. Hidden files and folders are left out unless the pattern names them. One string may hold
/// several patterns, divided by commas.
///
/// # Errors
/// [`DataError::Setting`] under `key` for a bad glob, a path that doesn't exist, or a pattern that no file
/// matches.
pub(crate) fn resolve(
    key: &'static str,
    patterns: &[String],
    format: Format,
) -> Result<Vec<PathBuf>, DataError> {
    let mut files: Vec<PathBuf> = Vec::new();
    // Joined again, since a comma may have been cut out of a `{a,b}`.
    for pattern in split_list(&patterns.join(",")) {
        for path in expand(key, &pattern, format)? {
            if !files.contains(&path) {
                files.push(path);
            }
        }
    }
    if files.is_empty() {
        return Err(DataError::Setting {
            key,
            reason: "names no file; give a path, a glob or a directory".into(),
        });
    }
    Ok(files)
}

/// The files of one pattern, sorted.
fn expand(key: &'static str, pattern: &str, format: Format) -> Result<Vec<PathBuf>, DataError> {
    let setting = |reason: String| DataError::Setting { key, reason };
    if pattern.contains("://") {
        return Err(setting(format!(
            "{pattern:?} is an address; only files on disk are read, or name a Hub data set in hf_path"
        )));
    }
    let path = Path::new(pattern);
    if path.is_dir() {
        let mut found = Vec::new();
        walk(path, format, &mut found)?;
        found.sort();
        if found.is_empty() {
            return Err(setting(format!("no {} file below the directory {pattern:?}", kind(format))));
        }
        return Ok(found);
    }
    if path.exists() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    for glob in expand_braces(pattern) {
        let options = glob::MatchOptions {
            require_literal_leading_dot: true,
            require_literal_separator: true,
            ..glob::MatchOptions::new()
        };
        let matches = glob::glob_with(&glob, options).map_err(|error| {
            setting(format!("bad glob {glob:?}: {} at character {}", error.msg, error.pos))
        })?;
        for entry in matches {
            let entry = entry.map_err(|error| DataError::io(error.path().to_owned(), error.into()))?;
            if entry.is_file() {
                found.push(entry);
            }
        }
    }
    found.sort();
    found.dedup();
    if found.is_empty() {
        let what =
            if pattern.contains(['*', '?', '[', '{']) { "no file matches" } else { "there is no file" };
        let here = std::env::current_dir().unwrap_or_default();
        return Err(setting(format!("{what} {pattern:?} (relative paths start at {})", here.display())));
    }
    Ok(found)
}

/// Collects the files of `format` below `folder`, leaving out hidden ones.
fn walk(folder: &Path, format: Format, found: &mut Vec<PathBuf>) -> Result<(), DataError> {
    let io = |source| DataError::io(folder, source);
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let entry = entry.map_err(io)?;
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with(['.', '_']) {
            continue;
        }
        if path.is_dir() {
            walk(&path, format, found)?;
        } else if path.is_file()
            && extensions(format).is_none_or(|known| known.contains(&extension(&path).as_str()))
        {
            found.push(path);
        }
    }
    Ok(())
}

/// Extensions of a format's files; `None` takes every file.
pub(super) fn extensions(format: Format) -> Option<&'static [&'static str]> {
    match format {
        Format::Json => Some(&["json", "jsonl", "ndjson"]),
        Format::Parquet => Some(&["parquet", "pq"]),
        Format::Text(_) => None,
    }
}

/// Extension of a file's name, without that of its compression.
pub(super) fn extension(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let name = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(&name);
    name.rsplit_once('.').map_or(String::new(), |(_, extension)| extension.to_owned())
}

/// Format of a data file by its name; `None` for other files.
pub(super) fn format_of(path: &str) -> Option<Format> {
    let extension = extension(Path::new(path));
    let has = |format| extensions(format).is_some_and(|known| known.contains(&extension.as_str()));
    [Format::Json, Format::Parquet]
        .into_iter()
        .find(|&format| has(format))
        .or_else(|| (extension == "txt").then_some(Format::Text(TextUnit::Line)))
}

/// The data files of `split` in a local copy of a data set, sorted by path, and their format.
///
/// # Errors
/// [`DataError::Setting`] under `split_key` when there are none.
pub(crate) fn resolve_folder(
    folder: &Path,
    split: &str,
    split_key: &'static str,
) -> Result<(Vec<PathBuf>, Format), DataError> {
    let mut found = Vec::new();
    walk(folder, Format::Text(TextUnit::Line), &mut found)?;
    let mut names: Vec<String> = found
        .iter()
        .filter_map(|path| path.strip_prefix(folder).ok())
        .map(|path| path.to_string_lossy().into_owned())
        .collect();
    names.sort();
    of_split(&mut names, |name| name, split);
    match one_format(&mut names, |name| name) {
        Some(format) => Ok((names.iter().map(|name| folder.join(name)).collect(), format)),
        None => Err(DataError::Setting {
            key: split_key,
            reason: format!(
                "no data file of split `{split}` in {}; JSON, Parquet and text files are read",
                folder.display()
            ),
        }),
    }
}

fn kind(format: Format) -> &'static str {
    match format {
        Format::Json => "JSON (.json, .jsonl, .ndjson)",
        Format::Parquet => "Parquet (.parquet)",
        Format::Text(_) => "text",
    }
}

/// Parts of a comma list; commas inside brackets and braces belong to a glob. A path that exists is one part.
fn split_list(text: &str) -> Vec<String> {
    if Path::new(text).exists() {
        return vec![text.to_owned()];
    }
    let mut parts = vec![String::new()];
    let mut depth = 0_usize;
    for c in text.chars() {
        match c {
            '[' | '{' => depth += 1,
            ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        match parts.last_mut() {
            Some(part) if c != ',' || depth > 0 => part.push(c),
            _ => parts.push(String::new()),
        }
    }
    parts.iter().map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

/// `a{b,c}d` to `abd` and `acd`.
fn expand_braces(pattern: &str) -> Vec<String> {
    let Some((open, close)) =
        pattern.find('{').and_then(|open| pattern[open..].find('}').map(|length| (open, open + length)))
    else {
        return vec![pattern.to_owned()];
    };
    pattern[open + 1..close]
        .split(',')
        .flat_map(|choice| expand_braces(&format!("{}{choice}{}", &pattern[..open], &pattern[close + 1..])))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_split_outside_brackets() {
        assert_eq!(split_list("a.json, b.json,"), ["a.json", "b.json"]);
        assert_eq!(split_list("a[0,1].json,{b,c}.json"), ["a[0,1].json", "{b,c}.json"]);
        assert_eq!(expand_braces("x{a,b}{1,2}"), ["xa1", "xa2", "xb1", "xb2"]);
    }

    #[test]
    fn globs_lists_and_directories() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("sub/.hidden")).unwrap();
        for name in ["b.json.gz", "a.jsonl", "c.txt", ".d.json", "sub/e.json", "sub/.hidden/f.json"] {
            std::fs::write(at(name), "x").unwrap();
        }
        let find = |pattern: &str| {
            let patterns: Vec<String> =
                pattern.split(',').map(|part| at(part).display().to_string()).collect::<Vec<_>>();
            resolve("hf_train_files", &[patterns.join(",")], Format::Json).map(|files| {
                files
                    .iter()
                    .map(|file| file.strip_prefix(folder.path()).unwrap().display().to_string())
                    .collect::<Vec<_>>()
            })
        };
        assert_eq!(find("").unwrap(), ["a.jsonl", "b.json.gz", "sub/e.json"]);
        assert_eq!(find("*.json*").unwrap(), ["a.jsonl", "b.json.gz"]);
        assert_eq!(find("**/*.json").unwrap(), ["sub/e.json"]);
        assert_eq!(find("c.txt,a.jsonl,c.txt").unwrap(), ["c.txt", "a.jsonl"]);
        let text =
            resolve("hf_train_files", &[folder.path().display().to_string()], Format::Text(TextUnit::File));
        assert_eq!(text.unwrap().len(), 4);
        let error = find("*.parquet").unwrap_err().to_string();
        assert!(error.starts_with("hf_train_files: no file matches"), "{error}");
        assert!(find("nothing.json").unwrap_err().to_string().contains("there is no file"));
        assert!(find("a[").unwrap_err().to_string().contains("bad glob"));
    }
}
