//! The command line: one subcommand, one file.

mod certs;
mod check;
mod demo;
mod overrun_bound;
mod scenario;
mod serve;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use region::store::redis::ConnectError;
use scenarios::measure::MEASURES;

pub use self::scenario::BrokenSeed;
use crate::certs::CertsError;
use crate::cluster::JoinError;
use crate::serve::BindError;
use crate::tasks::{Dead, TaskError};

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
    /// Show one limit over three regions: simulated distance, changing load, a cut, live.
    ///
    /// Three whole nodes run in this process, with memory stores and real QUIC over loopback. The
    /// parts: load in proportion to the weights; everything in one region; everything in another;
    /// a region cut off; healed. An auditor measures by how much the limit was exceeded.
    Demo(Demo),
    /// By how much limits can be exceeded, in numbers.
    ///
    /// For each policy whose limit the regions share: what can go wrong, and how many tokens that
    /// can add over all regions together, at the worst moment and in the worst region. For one key.
    /// With `--with`, what all that happens comes to in total.
    OverrunBound(OverrunBound),
    /// Run whole deployments in virtual time.
    Scenario {
        #[command(subcommand)]
        command: ScenarioCommand,
    },
    /// Make certificates for gossip.
    Certs {
        #[command(subcommand)]
        command: CertsCommand,
    },
    /// Look at the configuration.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
}

#[derive(Debug, Subcommand)]
enum ScenarioCommand {
    /// Run random worlds with random faults, each from a seed, until one breaks the promise.
    ///
    /// Links lose, repeat and reorder what is said, or are cut; nodes crash and stand still; shards
    /// forget, fall silent or fail over; clocks drift. In every third world things happen that can
    /// cost something as well, and what is admitted stays within `overrun-bound`: a shard with two
    /// primaries, one that goes back in time unnoticed, clocks that jump. A seed that fails ends
    /// the command with exit code 1: it prints what happened last and the command that replays it.
    Soak(Soak),
    /// Measure utilisation, reaction, false denials, recovery, fairness and gossip.
    Measure(Measure),
}

#[derive(Debug, Subcommand)]
enum CertsCommand {
    /// Make a CA, a certificate for each region, and the secret that keys are hashed with.
    ///
    /// What is there already stays, so that regions can be added later. Copy `ca.pem`,
    /// `key.secret` and a region's two files to its nodes; keep `ca-key.pem` away from them.
    Init(CertsInit),
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
struct Demo {
    /// How long it takes; the parts scale with it.
    #[arg(long = "for", value_name = "DURATION", default_value = "30s", value_parser = length)]
    length: Duration,
    /// Draw nothing; print one JSON object at the end.
    #[arg(long)]
    json: bool,
    /// What the arrival times of requests are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Args)]
struct OverrunBound {
    /// The regions and policies.
    #[arg(long, value_name = "FILE", default_value = "policies.toml")]
    policies: PathBuf,
    /// What goes wrong, separated by commas: how often (`store-loss=2`; once if nothing is said) or
    /// for how long (`outage=30s`). A fault in two regions, or of two lengths, is named twice.
    ///
    /// The faults: network, store-loss[=TIMES], undetected-store-loss[=TIMES], two-primaries=TIME,
    /// outage=TIME, clock-rate=TIME, clock-step=TIME, limit-change=TIME, first-start[=TIMES].
    #[arg(long, value_name = "FAULT,..", value_delimiter = ',')]
    with: Vec<String>,
    /// Print one JSON object. Where there is no bound, `tokens` and `total` are null.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Soak {
    /// How many worlds to run.
    #[arg(long, value_name = "N", default_value_t = 200)]
    seeds: u64,
    /// The first seed.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    from: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Measure {
    /// What to measure, separated by commas; everything if nothing is said.
    #[arg(long, value_name = "MEASURES", value_delimiter = ',', value_parser = MEASURES)]
    only: Vec<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct CertsInit {
    /// The regions, separated by commas.
    #[arg(long, value_name = "REGIONS", value_delimiter = ',', required = true)]
    regions: Vec<String>,
    /// Where the files go.
    #[arg(long, value_name = "DIR", default_value = "certs")]
    out: PathBuf,
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
    /// The command line is wrong, which has been said.
    WrongUsage,
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
    /// Gossip could not be started. Nothing was served.
    #[error("gossip cannot be started")]
    Gossip(#[from] JoinError),
    /// Certificates could not be made.
    #[error("certificates")]
    Certs(#[from] CertsError),
    /// The demo could not be run.
    #[error("demo")]
    Demo(#[source] TaskError),
    /// A random world broke the promise, which has been said in detail.
    #[error(transparent)]
    Broken(#[from] BrokenSeed),
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
            Command::Demo(demo) => demo.run(),
            Command::OverrunBound(bound) => bound.run(),
            Command::Scenario {
                command: ScenarioCommand::Soak(soak),
            } => soak.run(),
            Command::Scenario {
                command: ScenarioCommand::Measure(measure),
            } => measure.run(),
            Command::Certs {
                command: CertsCommand::Init(init),
            } => init.run(),
            Command::Config {
                command: ConfigCommand::Check(check),
            } => check.run(environment),
        }
    }
}

/// A length that a demo can have: all of its parts are seen, and its record fits in memory.
fn length(text: &str) -> Result<Duration, String> {
    let length = region::reader::duration(text).map_err(|error| error.to_string())?;
    if (Duration::from_secs(5)..=Duration::from_secs(3_600)).contains(&length) {
        Ok(length)
    } else {
        Err("a demo takes from 5s to 1h".to_owned())
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Done => Self::SUCCESS,
            Exit::WrongUsage => Self::from(2),
            Exit::BadConfiguration => Self::from(64),
            Exit::Killed(signal) => Self::from(signal.saturating_add(128)),
        }
    }
}
