//! The command line of the evaluation. Exit codes: 0 done, 1 it failed, 2 the configuration is wrong.

use std::process::ExitCode;

use mt_config::{ConfigErrors, LoadArgs};
use mt_train::eval::{self, EvalCli, EvalError};

/// Why the process doesn't exit with 0.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    #[error(transparent)]
    Eval(#[from] EvalError),
}

fn main() -> ExitCode {
    match command(EvalCli::of(std::env::args())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            match failure {
                Failure::Config(_) => ExitCode::from(2),
                Failure::Eval(_) => ExitCode::FAILURE,
            }
        }
    }
}

fn command(cli: EvalCli) -> Result<(), Failure> {
    let config = mt_config::load(&LoadArgs::from_command_line(cli.config, &cli.overrides)?)?;
    let model = eval::model(&config)?;
    match (cli.tokens, cli.logits) {
        (Some(tokens), Some(logits)) => eval::write_logits(&model, &tokens, &logits)?,
        _ => eval::report(&eval::evaluate(&config, &model)?, cli.json, &mut std::io::stdout())?,
    }
    Ok(())
}
