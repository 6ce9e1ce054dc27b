//! Which files of a data set are a split, as `datasets.load_dataset` decides it.

use glob::{MatchOptions, Pattern};
use serde_json::Value;

use super::Repo;
use super::listing::RepoFile;
use crate::DataError;
use crate::source::Format;
use crate::source::split::{of_split, one_format};

/// What is asked of a data set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    /// `hf_name`: one of the data set's configurations.
    pub(crate) name: &'a str,
    /// `hf_data_dir`: a folder of it.
    pub(crate) data_dir: &'a str,
    /// `hf_train_files` or `hf_eval_files`: files of it.
    pub(crate) patterns: &'a [String],
    /// The key of the patterns, for messages.
    pub(crate) patterns_key: &'static str,
    /// `train_split` or `hf_eval_split`.
    pub(crate) split: &'a str,
    /// The key of the split, for messages.
    pub(crate) split_key: &'static str,
}

const OPTIONS: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

impl Repo {
    /// The files of the split, sorted by path, all of one format.
    pub(super) fn choose(&self, request: &Request) -> Result<(Vec<RepoFile>, Format), DataError> {
        let mut files = self.candidates(request)?;
        one_format(&mut files, |file| &file.path).map(|format| (files, format)).ok_or_else(|| DataError::Setting {
            key: request.split_key,
            reason: format!(
                "no data file of split `{}` in {} (hf_name {:?}, hf_data_dir {:?}); JSON, Parquet and text files are read",
                request.split, self.name, request.name, request.data_dir
            ),
        })
    }

    fn candidates(&self, request: &Request) -> Result<Vec<RepoFile>, DataError> {
        let data_dir = request.data_dir.trim_matches('/');
        if !request.patterns.is_empty() {
            return self.matching(request.patterns_key, data_dir, request.patterns);
        }
        if !data_dir.is_empty() {
            return self.below(data_dir, request.split);
        }
        if let Some(config) = self.config(request.name)? {
            let folder = config["data_dir"].as_str().unwrap_or("").trim_matches('/');
            let patterns = config_patterns(&config["data_files"], request.split);
            return if patterns.is_empty() {
                self.below(folder, request.split)
            } else {
                self.matching("hf_name", folder, &patterns)
            };
        }
        // No such configuration on the card: a folder of that name will do, as in many older data sets.
        self.below(request.name, request.split)
    }

    /// Data files of the split below a folder.
    fn below(&self, folder: &str, split: &str) -> Result<Vec<RepoFile>, DataError> {
        let mut files = self.files(folder)?;
        of_split(&mut files, |file| file.path.strip_prefix(folder).unwrap_or(&file.path), split);
        Ok(files)
    }

    /// Files that any of the patterns matches.
    fn matching(
        &self,
        key: &'static str,
        folder: &str,
        patterns: &[String],
    ) -> Result<Vec<RepoFile>, DataError> {
        let mut found = Vec::new();
        for pattern in patterns {
            let pattern = pattern.trim_start_matches("./");
            let full = if folder.is_empty() { pattern.to_owned() } else { format!("{folder}/{pattern}") };
            let setting = |reason: String| DataError::Setting { key, reason };
            let glob =
                Pattern::new(&full).map_err(|error| setting(format!("bad glob {full:?}: {}", error.msg)))?;
            // Only the folder that the pattern can be in is listed: some repositories hold 100,000 files.
            let literal = &full[..full.find(['*', '?', '[']).unwrap_or(full.len())];
            let parent = literal.rsplit_once('/').map_or("", |(parent, _)| parent);
            let before = found.len();
            for file in self.files(parent)? {
                if glob.matches_with(&file.path, OPTIONS) && !found.contains(&file) {
                    found.push(file);
                }
            }
            if found.len() == before {
                return Err(setting(format!("no file of {} matches {full:?}", self.name)));
            }
        }
        Ok(found)
    }

    /// The configuration called `name` on the card, or the default one; `None` when the card has none.
    fn config(&self, name: &str) -> Result<Option<&Value>, DataError> {
        let Some(configs) = self.info.card.as_ref().and_then(|card| card.configs.as_array()) else {
            return Ok(None);
        };
        let named = |wanted: &str| configs.iter().find(|config| config["config_name"] == wanted);
        let names = || {
            configs.iter().filter_map(|config| config["config_name"].as_str()).collect::<Vec<_>>().join(", ")
        };
        let refuse = |what: &str| {
            let reason = format!("{what}; {} has: {}", self.name, names());
            Err(DataError::Setting { key: "hf_name", reason })
        };
        if !name.is_empty() && !configs.is_empty() {
            return named(name)
                .map_or_else(|| refuse(&format!("no configuration `{name}`")), |config| Ok(Some(config)));
        }
        let default = named("default").or_else(|| configs.iter().find(|config| config["default"] == true));
        match (default, configs.as_slice()) {
            (Some(config), _) | (None, [config]) => Ok(Some(config)),
            (None, []) => Ok(None),
            (None, configs) => {
                let names: Vec<&str> =
                    configs.iter().filter_map(|config| config["config_name"].as_str()).collect();
                let reason = format!("is empty; {} has: {}", self.name, names.join(", "));
                Err(DataError::Setting { key: "hf_name", reason })
            }
        }
    }
}

/// Patterns of a split in a card's `data_files`: text, a list of texts, or a list of `{split, path}`.
fn config_patterns(data_files: &Value, split: &str) -> Vec<String> {
    let texts = |value: &Value| match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(items) => items.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    match data_files {
        Value::Array(items) if items.iter().any(Value::is_object) => {
            items.iter().filter(|item| item["split"] == split).flat_map(|item| texts(&item["path"])).collect()
        }
        _ if split == "train" => texts(data_files),
        _ => Vec::new(),
    }
}
