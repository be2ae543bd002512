//! What one node is configured to be: read from `node.toml` and the environment, checked whole.

mod node;
mod settings;

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use region::policy::PolicySet;
use region::reader::Problem;

pub use self::node::loss;
use crate::telemetry::log::Format;

/// The prefix of the environment variables that override settings.
pub const PREFIX: &str = "TIDEGATE_";

/// One process of a region. Every setting `table.name` can be overridden by an environment variable
/// `TIDEGATE_TABLE__NAME`. Relative paths start from the directory of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// `region`: the region that the node serves; one of the policies' regions.
    pub region: String,
    /// `name`: the node's name, unique in all regions.
    pub name: String,
    /// `nodes_max`: the most nodes that the region is configured for. The emergency limiter of a
    /// node without a store has this part of the region's share. Default 1 with a memory store.
    pub nodes_max: NonZeroU32,
    /// `key_secret_file`: 32 hexadecimal digits that all regions share; the secret of the key hash.
    /// Random with a memory store and no gossip.
    pub key_secret: Secret<[u8; 16]>,
    /// `[http]`
    pub http: HttpConfig,
    /// `[grpc]`
    pub grpc: GrpcConfig,
    /// `[admin]`
    pub admin: AdminConfig,
    /// `[store]`
    pub store: StoreConfig,
    /// `[gossip]`; without it the node talks to no other.
    pub gossip: Option<GossipConfig>,
    /// `[shutdown]`
    pub shutdown: ShutdownConfig,
    /// `[log]`
    pub log: LogConfig,
}

/// The HTTP front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpConfig {
    /// `listen`, default `127.0.0.1:8080`.
    pub listen: SocketAddr,
    /// `reset`, default `unix`: what `X-RateLimit-Reset` tells.
    pub reset: Reset,
}

/// What `X-RateLimit-Reset` tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reset {
    /// The instant of the reset in seconds since the Unix epoch, as most public APIs do.
    #[default]
    Unix,
    /// The seconds until the reset.
    Seconds,
}

/// The gRPC front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrpcConfig {
    /// `listen`, default `127.0.0.1:8081`.
    pub listen: SocketAddr,
}

/// The admin interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminConfig {
    /// `listen`, default `127.0.0.1:9090`.
    pub listen: SocketAddr,
    /// `token_file`: what calls that change something must bring; without it there are none.
    pub token: Option<Secret<String>>,
}

/// Where buckets and ledgers are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreConfig {
    /// `kind = "memory"`, the default: in this process, for the only node of a region.
    Memory {
        /// `max_keys`, default one million.
        keys_max: usize,
    },
    /// `kind = "redis"`
    Redis {
        /// `shards = [{ name = "a", url = "redis://.." }]`, or `url_file` in place of `url`.
        shards: Vec<ShardConfig>,
        /// `deadline`, default `10ms`: how long one call may take.
        deadline: Duration,
        /// `accept_eviction`, default false: start although the store may evict keys.
        accept_eviction: bool,
    },
}

/// One shard of a Redis store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardConfig {
    /// The name by which keys are dealt to it; never changed.
    pub name: String,
    /// Where it is, and maybe its password.
    pub url: Secret<String>,
}

/// How the node talks to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GossipConfig {
    /// `listen`, default `0.0.0.0:7946`; UDP.
    pub listen: SocketAddr,
    /// `advertise`: where others reach it; default `listen`, unless that is every address.
    pub advertise: Option<SocketAddr>,
    /// `seeds`: addresses or names with a port.
    pub seeds: Vec<String>,
    /// `ca`: the certificate that signs all nodes.
    pub ca: PathBuf,
    /// `cert`: the node's certificate, which names its region.
    pub cert: PathBuf,
    /// `key`: the certificate's private key.
    pub key: PathBuf,
    /// `links`: the link shaper, for demonstrations and tests; absent means that it is off.
    pub links: Option<Vec<LinkConfig>>,
}

/// What the link shaper does to one direction between two regions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkConfig {
    /// The sending region.
    pub from: String,
    /// The receiving region.
    pub to: String,
    /// What is added to the way.
    pub delay: Duration,
    /// The most that is added to the delay at random.
    pub jitter: Duration,
    /// How much is lost, in parts per million.
    pub loss_ppm: u32,
    /// Whether nothing gets through.
    pub cut: bool,
}

/// How the node stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownConfig {
    /// `grace`, default `5s`: how long requests in flight may take.
    pub grace: Duration,
    /// `delay`, default `0s`: how long the node still serves after it says that it is not ready.
    pub delay: Duration,
}

/// What the node writes to standard error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// `format`, default `text`; or `json`.
    pub format: Format,
    /// `level`, default `info`: a filter such as `warn` or `info,node::serve=debug`.
    pub level: String,
}

/// A value that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret<T>(T);

/// A node's settings and the policies of all nodes, checked together.
#[derive(Debug)]
pub struct Loaded {
    /// This process.
    pub node: NodeConfig,
    /// What all nodes share.
    pub policies: PolicySet,
    /// What is allowed but hardly meant.
    pub warnings: Vec<String>,
}

/// Everything that is wrong with a configuration. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// In the order of files and lines.
    pub problems: Vec<Problem>,
}

impl<T> Secret<T> {
    /// Wraps a secret.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// The secret itself.
    #[must_use]
    pub const fn reveal(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            let end = if index == 0 { "" } else { "\n" };
            write!(f, "{end}{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

/// Reads and checks both files and the environment.
///
/// # Errors
/// Everything that is wrong with any of them.
pub fn load(
    node: &Path,
    policies: &Path,
    environment: &[(String, String)],
) -> Result<Loaded, Faults> {
    let mut problems = Vec::new();
    let policies = read_policies(policies, &mut problems);
    let directory = node.parent().unwrap_or_else(|| Path::new(""));
    let read = text(node, &mut problems).and_then(|(text, file)| {
        let around = node::Around {
            directory,
            policies: policies.as_ref(),
            environment,
        };
        let read = node::read(&text, &file, around);
        read.map_err(|found| problems.splice(0..0, found)).ok()
    });
    match (read, policies) {
        (Some((node, warnings)), Some(policies)) => Ok(Loaded {
            node,
            policies,
            warnings,
        }),
        _ => Err(Faults { problems }),
    }
}

/// Reads and checks the policies alone.
///
/// # Errors
/// Everything that is wrong with them.
pub fn load_policies(path: &Path) -> Result<PolicySet, Faults> {
    let mut problems = Vec::new();
    read_policies(path, &mut problems).ok_or(Faults { problems })
}

fn read_policies(path: &Path, problems: &mut Vec<Problem>) -> Option<PolicySet> {
    let (text, file) = text(path, problems)?;
    let parsed = PolicySet::parse(&text, &file);
    parsed
        .map_err(|found| problems.extend_from_slice(found.all()))
        .ok()
}

/// The text of a file and its name.
fn text(path: &Path, problems: &mut Vec<Problem>) -> Option<(String, String)> {
    let file = path.display().to_string();
    let message = match settings::read_file(path, region::reader::TEXT_MAX) {
        Ok(text) => return Some((text, file)),
        Err(message) => message,
    };
    problems.push(Problem {
        file,
        line: 1,
        field: String::new(),
        message,
    });
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_printed_as_stars() {
        let shard = ShardConfig {
            name: "a".to_owned(),
            url: Secret::new("redis://:hunter2@127.0.0.1".to_owned()),
        };
        assert_eq!(
            format!("{shard:?}"),
            r#"ShardConfig { name: "a", url: *** }"#
        );
        assert_eq!(format!("{:?}", Secret::new([7_u8; 16])), "***");
    }

    #[test]
    fn loss_is_read_exactly_and_never_above_all() {
        for (text, ppm) in [
            ("0%", 0),
            ("2%", 20_000),
            ("0.5%", 5_000),
            ("100%", 1_000_000),
        ] {
            assert_eq!(loss(text), Ok(ppm), "{text}");
        }
        assert_eq!(loss("0.0001%"), Ok(1));
        for text in [
            "", "%", "2", "-1%", "+1%", "100.1%", "0.00001%", "1.+1%", ".5%",
        ] {
            assert!(loss(text).is_err(), "{text}");
        }
    }
}
