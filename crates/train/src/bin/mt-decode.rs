//! The command line of the decoder. Exit codes: 0 done, 1 decoding failed, 2 the configuration is wrong.

use std::process::ExitCode;

use mt_config::{ConfigErrors, LoadArgs};
use mt_train::decode::{self, DecodeCli, DecodeError};

/// Why the process doesn't exit with 0.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

fn main() -> ExitCode {
    match command(DecodeCli::of(std::env::args())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Decode(error)) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            match failure {
                Failure::Config(_) => ExitCode::from(2),
                Failure::Decode(_) => ExitCode::FAILURE,
            }
        }
    }
}

fn command(cli: DecodeCli) -> Result<(), Failure> {
    let prompts = cli.prompts()?;
    let config = mt_config::load(&LoadArgs::from_command_line(cli.config, &cli.overrides)?)?;
    Ok(decode::run(&config, &prompts, &mut std::io::stdout())?)
}
