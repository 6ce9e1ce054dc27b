//! The command line of `mt-eval`, as typed.

use std::path::PathBuf;

use clap::Parser;

use crate::cli::plain;

/// Measure loss and perplexity of a model that mt-train trained, on the evaluation data of its configuration.
#[derive(Debug, Parser)]
#[command(name = "mt-eval", version, about)]
#[command(
    after_help = "Exit codes: 0 success, 1 the evaluation failed, 2 the configuration or command line is wrong."
)]
pub struct EvalCli {
    /// Configuration file: a flat MaxText YAML or a Primus experiment
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Keys that override the file, as in `hf_eval_files=held-out/*.jsonl eval_steps=100`
    #[arg(value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,

    /// Instead of evaluating, compute the logits of rows of token ids: a JSON array of equally long arrays
    #[arg(long, value_name = "FILE", requires = "logits")]
    pub tokens: Option<PathBuf>,

    /// With --tokens: where to write them, as safetensors with one tensor `logits` [rows, length, vocabulary]
    #[arg(long, value_name = "FILE", requires = "tokens")]
    pub logits: Option<PathBuf>,
}

impl EvalCli {
    /// Reads the arguments of the process, the program's name first. Ends it after `--help`, `--version` and mistakes.
    pub fn of(arguments: impl IntoIterator<Item = String>) -> Self {
        Self::parse_from(plain::<Self>(arguments))
    }
}
