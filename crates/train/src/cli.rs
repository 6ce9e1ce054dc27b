//! The command line of `mt-train`, as typed.

use std::path::PathBuf;

use clap::{CommandFactory, Parser};

/// Pre-train a Llama-style model from a MaxText or Primus configuration.
#[derive(Debug, Parser)]
#[command(name = "mt-train", version, about)]
#[command(
    after_help = "Exit codes: 0 success, 1 the run failed, 2 the configuration or command line is wrong."
)]
pub struct Cli {
    /// Configuration file: a flat MaxText YAML or a Primus experiment
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Keys that override the file, as in `steps=20 learning_rate=1e-3`
    #[arg(value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,

    /// Print the resolved configuration, parameter count, FLOPs and memory plan; touch no device
    #[arg(long)]
    pub dry_run: bool,

    /// With --dry-run: every key, not just those that differ from the defaults
    #[arg(long, requires = "dry_run")]
    pub all: bool,

    /// Print the documentation of all keys, or of those that match PATTERN
    #[arg(long, value_name = "PATTERN", num_args = 0..=1, default_missing_value = "")]
    pub help_keys: Option<String>,

    /// List the devices that this binary can use here
    #[arg(long)]
    pub devices: bool,

    /// Print the first N training rows as text, with where their documents begin; train nothing
    #[arg(long, value_name = "N")]
    pub inspect_data: Option<usize>,
}

impl Cli {
    /// Reads the arguments of the process, the program's name first. Ends it after `--help`, `--version` and mistakes.
    pub fn of(arguments: impl IntoIterator<Item = String>) -> Self {
        Self::parse_from(plain::<Self>(arguments))
    }

    /// Whether it asks for a run, rather than for something to be printed.
    pub fn trains(&self) -> bool {
        !self.dry_run && !self.devices && self.help_keys.is_none() && self.inspect_data.is_none()
    }
}

/// `--key=value`, as Primus writes it, becomes `key=value`, unless it is one of the command's own flags.
pub(crate) fn plain<C: CommandFactory>(arguments: impl IntoIterator<Item = String>) -> Vec<String> {
    let command = C::command();
    let is_ours = |name: &str| command.get_arguments().any(|flag| flag.get_long() == Some(name));
    let plain = |argument: String| match argument.strip_prefix("--").and_then(|rest| rest.split_once('=')) {
        Some((name, _)) if !is_ours(name) => argument["--".len()..].to_owned(),
        _ => argument,
    };
    arguments.into_iter().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_stand_anywhere_and_may_look_like_flags() {
        let typed = ["mt-train", "steps=20", "--config=run.yml", "--dry-run", "--run_name=a"];
        let cli = Cli::of(typed.map(str::to_owned));
        assert_eq!(cli.overrides, ["steps=20", "run_name=a"]);
        assert!(cli.dry_run && cli.config == Some("run.yml".into()));
        assert!(!cli.trains());
    }

    #[test]
    fn help_keys_takes_a_pattern_or_none() {
        let parse = |args: &[&str]| Cli::try_parse_from(args).unwrap().help_keys;
        assert_eq!(parse(&["mt-train", "--help-keys"]), Some(String::new()));
        assert_eq!(parse(&["mt-train", "--help-keys", "checkpoint"]), Some("checkpoint".to_owned()));
        assert_eq!(parse(&["mt-train"]), None);
    }
}
