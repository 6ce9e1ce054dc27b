//! Which files of a data set are a split, by their names, as `datasets.load_dataset` decides it.

use super::Format;
use super::local::format_of;

/// Names under which files of a split go.
fn keywords(split: &str) -> Vec<&str> {
    match split {
        "train" => vec!["train", "training"],
        "validation" => vec!["validation", "valid", "val", "dev"],
        "test" => vec!["test", "testing", "eval", "evaluation"],
        other => vec![other],
    }
}

/// Keeps the data files of `split`: those whose names carry its keyword, else those in a folder whose name does;
/// where no file carries any split's name, all are `train`. `path` is relative to the data set.
pub(super) fn of_split<T>(files: &mut Vec<T>, path: impl Fn(&T) -> &str, split: &str) {
    files.retain(|file| {
        let hidden = path(file).split('/').any(|part| part.starts_with('.') || part.starts_with("__"));
        !hidden && format_of(path(file)).is_some()
    });
    let name = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    let parents = |path: &str| path.rsplit_once('/').map_or(String::new(), |(parents, _)| parents.to_owned());
    let known = ["train", "validation", "test", split];
    for part in [&name as &dyn Fn(&str) -> String, &parents] {
        let carries = |file: &T, split: &str| {
            let text = part(path(file));
            keywords(split).iter().any(|keyword| has_word(&text, keyword))
        };
        if files.iter().any(|file| known.iter().any(|split| carries(file, split))) {
            files.retain(|file| carries(file, split));
            return;
        }
    }
    if split != "train" {
        files.clear();
    }
}

/// Keeps the files of the format that most of them have, and says which that is.
pub(super) fn one_format<T>(files: &mut Vec<T>, path: impl Fn(&T) -> &str) -> Option<Format> {
    let count = |format| files.iter().filter(|file| format_of(path(file)) == Some(format)).count();
    let format = files.iter().filter_map(|file| format_of(path(file))).max_by_key(|&format| count(format))?;
    files.retain(|file| format_of(path(file)) == Some(format));
    Some(format)
}

/// `word` stands in `text` between separators, digits or the ends.
fn has_word(text: &str, word: &str) -> bool {
    let apart = |c: Option<char>| c.is_none_or(|c| "-._ /".contains(c) || c.is_ascii_digit());
    text.match_indices(word)
        .any(|(at, _)| apart(text[..at].chars().next_back()) && apart(text[at + word.len()..].chars().next()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(files: &[&str], split: &str) -> Vec<String> {
        let mut files: Vec<String> = files.iter().map(|&file| file.to_owned()).collect();
        of_split(&mut files, |file| file, split);
        files
    }

    #[test]
    fn names_decide() {
        let c4 = ["c4-train.00000-of-01024.json.gz", "c4-validation.00000-of-00008.json.gz", "README.md"];
        assert_eq!(split(&c4, "train"), c4[..1]);
        assert_eq!(split(&c4, "validation"), c4[1..2]);
        assert!(split(&c4, "test").is_empty());
        let folders = ["train/a.parquet", "dev/b.parquet", "train/.x.parquet"];
        assert_eq!(split(&folders, "train"), ["train/a.parquet"]);
        assert_eq!(split(&folders, "validation"), ["dev/b.parquet"]);
        let plain = ["a.jsonl", "training-notes.md", "constraint.jsonl"];
        assert_eq!(
            split(&plain, "train"),
            ["a.jsonl", "constraint.jsonl"],
            "`train` inside a word is no split"
        );
        assert_eq!(split(&["x.json", "holdout.json"], "holdout"), ["holdout.json"]);
    }

    #[test]
    fn the_most_common_format_wins() {
        let mut files = vec!["a.parquet", "b.json", "c.parquet"];
        assert_eq!(one_format(&mut files, |file| file), Some(Format::Parquet));
        assert_eq!(files, ["a.parquet", "c.parquet"]);
    }
}
