//! The `tidegate` command.

use std::process::ExitCode;

use clap::Parser;
use node::cli::Cli;
use node::output;

fn main() -> ExitCode {
    match run() {
        Ok(exit) => exit,
        Err(error) => {
            // Nobody is left to tell if standard error is closed too.
            let told = output::complain(&format_args!("tidegate: {error:#}"));
            drop(told);
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<ExitCode> {
    let variables = std::env::vars_os();
    let texts = variables.filter_map(|(name, value)| {
        Some((
            name.into_string().ok()?,
            value.to_string_lossy().into_owned(),
        ))
    });
    let environment: Vec<(String, String)> = texts.collect();
    Ok(Cli::parse().run(&environment)?.into())
}
