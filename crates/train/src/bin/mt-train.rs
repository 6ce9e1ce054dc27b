//! The command line of the trainer. Exit codes: 0 done, 1 the run failed, 2 the configuration is wrong.

use std::process::ExitCode;

use mt_config::{Config, ConfigErrors, LoadArgs, Ranks};
use mt_train::cli::Cli;
use mt_train::devices;
use mt_train::run::{self, RunError};

/// Why the process doesn't exit with 0.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    #[error(transparent)]
    Run(#[from] RunError),
}

fn main() -> ExitCode {
    match command(Cli::of(std::env::args())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            match failure {
                Failure::Config(_) => ExitCode::from(2),
                Failure::Run(_) => ExitCode::FAILURE,
            }
        }
    }
}

fn command(cli: Cli) -> Result<(), Failure> {
    if let Some(pattern) = &cli.help_keys {
        print!("{}", mt_config::help_keys(pattern));
        return Ok(());
    }
    if cli.devices {
        println!("{}", devices::list());
        return Ok(());
    }
    let ranks = cli.planned_ranks();
    let config = mt_config::load(&LoadArgs::from_command_line(cli.config, &cli.overrides)?)?;
    let planned = |config: Config| match ranks {
        Some(ranks) => config.for_ranks(ranks),
        None => config.for_ranks_of_its_keys(),
    };
    if cli.dry_run {
        print!("{}", planned(config)?.dry_run_report(cli.all));
    } else if let Some(rows) = cli.inspect_data {
        print!("{}", mt_data::inspect(&planned(config)?, rows).map_err(RunError::from)?);
    } else {
        println!("{}", run::run(&config.for_ranks(Ranks::ONE)?)?.table());
    }
    Ok(())
}
