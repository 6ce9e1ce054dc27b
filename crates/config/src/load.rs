//! From a file, arguments and variables to a [`Config`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::arguments;
use crate::error::{ConfigErrors, Problem};
use crate::keys::Config;
use crate::layers::{self, Layer, Rank, Resolved};
use crate::node::{Kind, Place};
use crate::yaml;

/// Where a configuration comes from.
#[derive(Debug, Clone, Default)]
pub struct LoadArgs {
    /// The user's YAML file; without one, everything comes from the defaults and `overrides`.
    pub config_path: Option<PathBuf>,
    /// `key=value` arguments, in order.
    pub overrides: Vec<(String, String)>,
    /// Environment variables (`M_STEPS`, and those that Primus files refer to).
    pub env: BTreeMap<String, String>,
}

/// Reads and checks a configuration.
///
/// # Errors
/// All problems that were found, each with its place; the process is expected to exit with code 2.
pub fn load(args: &LoadArgs) -> Result<Config, ConfigErrors> {
    let mut problems = Vec::new();
    let mut notes = Vec::new();
    let mut layers = vec![arguments::command_line(&args.overrides)];
    layers.push(arguments::environment(&args.env, &mut problems, &mut notes));
    if let Some(path) = &args.config_path {
        layers.push(read_file(path, &mut notes)?);
    }
    let mut resolved = layers::merge(layers, &mut problems);
    name_the_run(&mut resolved, &args.env);
    match Config::typed(resolved, &mut problems) {
        Some(config) if problems.is_empty() => Ok(config),
        _ => Err(ConfigErrors::new(problems)),
    }
}

/// MaxText's defaults for where output goes.
fn name_the_run(resolved: &mut Resolved, env: &BTreeMap<String, String>) {
    if resolved.text("base_output_directory").is_empty() {
        resolved.derive("base_output_directory", "maxtext_output", "the default output folder");
    }
    if resolved.text("run_name").is_empty() {
        match env.get("JOBSET_NAME").filter(|name| !name.is_empty()) {
            Some(name) => resolved.derive("run_name", name, "JOBSET_NAME"),
            None => {
                let time = chrono::Local::now().format("%Y-%m-%d-%H-%M");
                let name = format!("{}_{time}", resolved.text("model_name"));
                resolved.derive("run_name", &name, "model_name and the time");
            }
        }
    }
}

fn read_file(path: &Path, notes: &mut Vec<Problem>) -> Result<Layer, Problem> {
    let path = Arc::new(path.to_owned());
    let whole = Place::File { path: path.clone(), line: 0, column: 0 };
    let bytes = std::fs::read(&*path)
        .map_err(|error| Problem::new(whole.clone(), format!("can't be read: {error}")))?;
    let Some(node) = yaml::parse(&bytes, &path, notes)? else {
        return Err(Problem::new(whole, "the file is empty"));
    };
    match node.kind {
        Kind::Map(entries) => Ok(Layer { rank: Rank::User, entries }),
        _ => Err(Problem::new(whole, "expected `key: value` lines")),
    }
}
