//! The command line of the converter. Exit codes: 0 done, 1 the conversion failed, 2 the command line is wrong.

use std::process::ExitCode;

use clap::Parser;
use mt_config::LoadArgs;
use mt_train::convert::{Command, ConvertCli, ConvertError, Options, from_hf, to_hf};

fn main() -> ExitCode {
    match command(ConvertCli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            if matches!(error, ConvertError::Config(_)) { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

fn command(cli: ConvertCli) -> Result<(), ConvertError> {
    match cli.command {
        Command::FromHf { source, target, overrides } => {
            let keys = LoadArgs::from_command_line(None, &overrides)?.overrides;
            let config = from_hf(&source, &target, &keys)?;
            let parameters = config.plan().parameters.total();
            println!("{parameters} parameters are in `{}`; go on with", target.display());
            println!("  mt-train --config {}/config.yml run_name=NAME", target.display());
        }
        Command::ToHf { source, target, dtype, config, like } => {
            to_hf(&source, &target, &Options { dtype: dtype.map(Into::into), config, like })?;
            println!("`{}` opens with transformers' AutoModelForCausalLM.from_pretrained", target.display());
        }
    }
    Ok(())
}
