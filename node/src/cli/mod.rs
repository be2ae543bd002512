//! The command line: one subcommand, one file.

mod check;
mod serve;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use region::store::redis::ConnectError;

use crate::serve::BindError;
use crate::tasks::Dead;

const EXIT_CODES: &str = "\
Exit codes:
    0  done, or stopped as asked
    1  failed
    2  wrong usage of the command line
   64  the configuration is wrong; nothing was started
  130, 143  stopped at once by a second SIGINT or SIGTERM";

/// A rate limiter for APIs that run in several regions at once.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve as a node of a region.
    ///
    /// Binds every address first, then prints one line to standard output,
    /// `ready http=ADDRESS grpc=ADDRESS admin=ADDRESS`, and serves. SIGTERM and SIGINT drain the
    /// node; a second one stops it at once. Logs go to standard error.
    Serve(Serve),
    /// Look at the configuration.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Check both files as `serve` does, and print the policies in force.
    Check(Check),
}

/// The files that configure a node.
#[derive(Debug, Args)]
struct Files {
    /// This node's settings; environment variables such as `TIDEGATE_HTTP__LISTEN` override them.
    #[arg(long, value_name = "FILE", default_value = "node.toml")]
    config: PathBuf,
    /// The regions and policies, the same on every node.
    #[arg(long, value_name = "FILE", default_value = "policies.toml")]
    policies: PathBuf,
}

#[derive(Debug, Args)]
struct Serve {
    #[command(flatten)]
    files: Files,
    /// The store is new and its keys start full. Without this a store that lacks its marker counts
    /// as having lost its memory: its keys start empty and nothing is lent for a while.
    #[arg(long)]
    first_start: bool,
}

#[derive(Debug, Args)]
struct Check {
    #[command(flatten)]
    files: Files,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// How a command ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It did what it should.
    Done,
    /// The configuration is wrong, which has been said.
    BadConfiguration,
    /// It was stopped at once by a signal of this number.
    Killed(u8),
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The standard output is closed.
    #[error("cannot write to standard output")]
    Output(#[source] io::Error),
    /// The runtime or the signal handlers could not be set up. Nothing was served.
    #[error("cannot start")]
    Start(#[source] io::Error),
    /// A socket could not be bound. Nothing was served.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The store cannot be used. Nothing was served.
    #[error("the store cannot be used")]
    Store(#[from] ConnectError),
    /// A task died that the node cannot do without. The node has drained.
    #[error("{0}")]
    Died(Dead),
}

impl Cli {
    /// Does what is asked. `environment` holds the names and values of environment variables.
    ///
    /// # Errors
    /// If that fails for another reason than a wrong configuration.
    pub fn run(self, environment: &[(String, String)]) -> Result<Exit, Failure> {
        match self.command {
            Command::Serve(serve) => serve.run(environment),
            Command::Config {
                command: ConfigCommand::Check(check),
            } => check.run(environment),
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Done => Self::SUCCESS,
            Exit::BadConfiguration => Self::from(64),
            Exit::Killed(signal) => Self::from(signal.saturating_add(128)),
        }
    }
}
