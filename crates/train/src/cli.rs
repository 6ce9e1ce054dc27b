//! The command line of `mt-train`, as typed.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{CommandFactory, Parser};
use mt_config::Ranks;

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
    #[arg(long, group = "planning")]
    pub dry_run: bool,

    /// With --dry-run: every key, not just those that differ from the defaults
    #[arg(long, requires = "dry_run")]
    pub all: bool,

    /// With --dry-run or --inspect-data: for a run of N ranks (devices), however many there are here
    #[arg(long, value_name = "N", requires = "planning")]
    pub ranks: Option<NonZeroUsize>,

    /// With --ranks: ranks on each node; 8, or N below that
    #[arg(long, value_name = "M", requires = "ranks")]
    pub ranks_per_node: Option<NonZeroUsize>,

    /// Print the documentation of all keys, or of those that match PATTERN
    #[arg(long, value_name = "PATTERN", num_args = 0..=1, default_missing_value = "")]
    pub help_keys: Option<String>,

    /// List the devices that this binary can use here
    #[arg(long)]
    pub devices: bool,

    /// Print the first N training rows as text, with where their documents begin; train nothing
    #[arg(long, value_name = "N", group = "planning")]
    pub inspect_data: Option<usize>,
}

impl Cli {
    /// Reads the arguments of the process, the program's name first. Ends it after `--help`, `--version` and mistakes.
    pub fn of(arguments: impl IntoIterator<Item = String>) -> Self {
        Self::parse_from(plain::<Self>(arguments))
    }

    /// The ranks to plan for, where they are given.
    pub fn planned_ranks(&self) -> Option<Ranks> {
        const PER_NODE: usize = 8;
        let count = self.ranks?.get();
        Some(Ranks { count, per_node: self.ranks_per_node.map_or(count.min(PER_NODE), NonZeroUsize::get) })
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
    fn ranks_are_for_plans() {
        let parse = |args: &[&str]| Cli::try_parse_from([&["mt-train"], args].concat());
        let ranks = |args: &[&str]| parse(args).unwrap().planned_ranks();
        assert_eq!(ranks(&["--dry-run"]), None);
        assert_eq!(ranks(&["--dry-run", "--ranks", "4"]), Some(Ranks { count: 4, per_node: 4 }));
        assert_eq!(ranks(&["--ranks=64", "--inspect-data", "1"]), Some(Ranks { count: 64, per_node: 8 }));
        let of_four = ["--dry-run", "--ranks", "8", "--ranks-per-node", "4"];
        assert_eq!(ranks(&of_four), Some(Ranks { count: 8, per_node: 4 }));
        assert!(parse(&["--ranks", "4"]).is_err(), "a run has the ranks that it is started with");
        assert!(parse(&["--dry-run", "--ranks", "0"]).is_err());
        assert!(parse(&["--dry-run", "--ranks-per-node", "4"]).is_err());
    }

    #[test]
    fn help_keys_takes_a_pattern_or_none() {
        let parse = |args: &[&str]| Cli::try_parse_from(args).unwrap().help_keys;
        assert_eq!(parse(&["mt-train", "--help-keys"]), Some(String::new()));
        assert_eq!(parse(&["mt-train", "--help-keys", "checkpoint"]), Some("checkpoint".to_owned()));
        assert_eq!(parse(&["mt-train"]), None);
    }
}
