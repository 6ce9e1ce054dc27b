//! Which parameters decay and which train: regular expressions on MaxText's paths.

use mt_config::Config;
use regex::Regex;

/// Something in a list of patterns that isn't a regular expression.
#[derive(Debug, thiserror::Error)]
#[error("{key}: `{pattern}` isn't a regular expression: {source}")]
pub struct PatternError {
    /// `adamw_mask` or `trainable_parameters_mask`.
    pub key: &'static str,
    /// The pattern.
    pub pattern: String,
    /// Why not. Look-around and back-references, which Python knows, aren't supported.
    pub source: regex::Error,
}

/// The compiled patterns.
pub(super) struct Masks {
    scan_layers: bool,
    adamw_mask: Vec<Regex>,
    trainable_parameters_mask: Vec<Regex>,
}

impl Masks {
    pub fn new(config: &Config) -> Result<Self, PatternError> {
        Ok(Self {
            scan_layers: config.scan_layers,
            adamw_mask: compile("adamw_mask", &config.adamw_mask)?,
            trainable_parameters_mask: compile(
                "trainable_parameters_mask",
                &config.trainable_parameters_mask,
            )?,
        })
    }

    /// Whether the parameter of this (unscanned) path decays: no pattern of `adamw_mask` is found in its name.
    pub fn decays(&self, path: &str) -> bool {
        !self.any(&self.adamw_mask, path)
    }

    /// Whether it is trained: there are no patterns, or one is found in its name.
    pub fn trains(&self, path: &str) -> bool {
        self.trainable_parameters_mask.is_empty() || self.any(&self.trainable_parameters_mask, path)
    }

    /// Whether a pattern is found anywhere in the parameter's name in the tree: with `scan_layers` that of all layers'
    /// parameters at once, so the number of a layer is not in it.
    fn any(&self, patterns: &[Regex], path: &str) -> bool {
        let name = match path.strip_prefix("decoder/layers_").and_then(|rest| rest.split_once('/')) {
            Some((_, parameter)) if self.scan_layers => format!("decoder/layers/{parameter}"),
            _ => path.to_owned(),
        };
        patterns.iter().any(|pattern| pattern.is_match(&name))
    }
}

pub(super) fn compile(key: &'static str, patterns: &[String]) -> Result<Vec<Regex>, PatternError> {
    let compile = |pattern: &String| {
        Regex::new(pattern).map_err(|source| PatternError { key, pattern: pattern.clone(), source })
    };
    patterns.iter().map(compile).collect()
}
