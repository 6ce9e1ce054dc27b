//! From a file, arguments and variables to a [`Config`].

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::error::{ConfigErrors, Problem};
use crate::files::{Reader, Source};
use crate::keys::Config;
use crate::layers::{self, Layer, Rank};
use crate::{arguments, notes, parents, presets, primus, resolve, validate};

/// Where a configuration comes from.
#[derive(Clone, Default)]
pub struct LoadArgs {
    /// The user's YAML file; without one, everything comes from the defaults and `overrides`.
    pub config_path: Option<PathBuf>,
    /// `key=value` arguments, in order.
    pub overrides: Vec<(String, String)>,
    /// Environment variables (`M_STEPS`, and those that Primus files refer to).
    pub env: BTreeMap<String, String>,
}

impl LoadArgs {
    /// A file, `key=value` arguments and the process's environment.
    ///
    /// # Errors
    /// Arguments that aren't `key=value`.
    pub fn from_command_line(
        config_path: Option<PathBuf>,
        arguments: &[String],
    ) -> Result<Self, ConfigErrors> {
        let (overrides, problems) = arguments::split(arguments);
        if !problems.is_empty() {
            return Err(ConfigErrors::new(problems));
        }
        let text = |name: std::ffi::OsString, value: std::ffi::OsString| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let env = std::env::vars_os().filter_map(|(name, value)| text(name, value)).collect();
        Ok(Self { config_path, overrides, env })
    }
}

/// Reads and checks a configuration.
///
/// # Errors
/// All problems that were found, each with its place; the process is expected to exit with code 2.
pub fn load(args: &LoadArgs) -> Result<Config, ConfigErrors> {
    let mut reader = Reader::new(&args.env);
    let mut layers = file_layers(&mut reader, args);
    layers.push(arguments::command_line(&args.overrides));
    layers.push(arguments::environment(&args.env, &mut reader.problems, &mut reader.notes));
    layers.sort_by_key(|layer| layer.rank);
    if let Some(name) = layers::last_node(&layers, "model_name").cloned() {
        layers.extend(presets::model_layer(&mut reader, args.config_path.as_deref(), &name));
        layers.sort_by_key(|layer| layer.rank);
    }
    let Reader { mut problems, notes, .. } = reader;
    let mut resolved = layers::merge(layers, &mut problems);
    resolved.notes.splice(0..0, notes);
    resolve::fill_in(&mut resolved, &args.env);
    notes::settings_without_effect(&mut resolved);
    validate::refused(&resolved, &mut problems);
    match Config::typed(resolved, &mut problems) {
        Some(mut config) => {
            resolve::lengths(&mut config);
            validate::whole(&config, &mut problems);
            notes::choices(&mut config);
            if problems.is_empty() { Ok(config) } else { Err(ConfigErrors::new(problems)) }
        }
        None => Err(ConfigErrors::new(problems)),
    }
}

/// The user's file and its parents, or the parts of a Primus experiment.
fn file_layers(reader: &mut Reader<'_>, args: &LoadArgs) -> Vec<Layer> {
    let Some(path) = &args.config_path else { return Vec::new() };
    let source = Source::Disk(path.clone());
    let entries = reader.read(&source);
    if primus::is_experiment(&entries) {
        return primus::layers(reader, &source, entries);
    }
    let mut layers = parents::layers(reader, &source, &entries);
    layers.push(Layer { rank: Rank::User, entries });
    layers
}

/// The name of the problem type for things that are worth a line in the log but aren't wrong.
pub type Note = Problem;
