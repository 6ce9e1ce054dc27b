//! The command line of `mt-decode`, as typed.

use std::path::PathBuf;

use clap::Parser;

use super::DecodeError;
use crate::cli::plain;

/// Continue text with a model that mt-train trained, from the configuration that trained it.
#[derive(Debug, Parser)]
#[command(name = "mt-decode", version, about)]
#[command(
    after_help = "Exit codes: 0 success, 1 decoding failed, 2 the configuration or command line is wrong."
)]
pub struct DecodeCli {
    /// Configuration file: a flat MaxText YAML or a Primus experiment
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Keys that override the file, as in `prompt="Once upon a time" decode_sampling_strategy=weighted`
    #[arg(value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,

    /// Prompts to continue as one batch, a line each, instead of the `prompt` key; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<PathBuf>,
}

impl DecodeCli {
    /// Reads the arguments of the process, the program's name first. Ends it after `--help`, `--version` and mistakes.
    pub fn of(arguments: impl IntoIterator<Item = String>) -> Self {
        Self::parse_from(plain::<Self>(arguments))
    }

    /// The lines of `--prompts` that aren't empty; none without it.
    ///
    /// # Errors
    /// [`DecodeError::Prompts`]: they can't be read, or there are none.
    pub fn prompts(&self) -> Result<Vec<String>, DecodeError> {
        let Some(path) = &self.prompts else { return Ok(Vec::new()) };
        let text = match path.as_os_str() == "-" {
            true => std::io::read_to_string(std::io::stdin()),
            false => std::fs::read_to_string(path),
        };
        let failed = |reason: String| DecodeError::Prompts { path: path.clone(), reason };
        let text = text.map_err(|error| failed(error.to_string()))?;
        let lines: Vec<String> = text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
        if lines.is_empty() { Err(failed("no line of it holds a prompt".to_owned())) } else { Ok(lines) }
    }
}
