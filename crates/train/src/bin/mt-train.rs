//! The command line of the trainer. Exit codes: 0 done, 1 the run failed, 2 the configuration is wrong.

use std::process::ExitCode;

use mt_config::{Config, ConfigErrors, LoadArgs, Ranks};
use mt_train::cli::Cli;
use mt_train::collective::{self, World};
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

impl Failure {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) => 2,
            Self::Run(_) => 1,
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::of(std::env::args());
    let world = match collective::launch() {
        Ok(world) => world,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    match command(cli, &world) {
        Ok(()) => {
            world.finish();
            ExitCode::SUCCESS
        }
        Err(failure) => {
            world.fail(&failure.to_string(), failure.exit_code());
            ExitCode::from(failure.exit_code())
        }
    }
}

fn command(cli: Cli, world: &World) -> Result<(), Failure> {
    if !cli.trains() && !world.is_first() {
        return Ok(()); // printed by rank 0
    }
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
        let summary = run::run(&config.for_ranks(ranks_of(world))?, world)?;
        if world.is_first() {
            println!("{}", summary.table());
        }
    }
    Ok(())
}

fn ranks_of(world: &World) -> Ranks {
    let place = world.place();
    Ranks { count: place.size, per_node: place.per_node }
}
