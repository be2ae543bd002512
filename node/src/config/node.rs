//! Reads `node.toml`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use region::policy::PolicySet;
use region::reader::{Field, Problem, Table};
use region::store::redis::check_address;

use super::settings::{Literal, Section, Settings, read_file};
use super::{
    AdminConfig, GossipConfig, GrpcConfig, HttpConfig, LinkConfig, LogConfig, NodeConfig, Reset,
    Secret, ShardConfig, ShutdownConfig, StoreConfig,
};
use crate::telemetry::log::Format;

/// The largest secret file.
const SECRET_MAX: usize = 4096;

/// Where gossip listens unless it is told otherwise.
const EVERYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 7946);

/// The keys that a memory store holds unless it is told otherwise.
const KEYS_MAX: u64 = 1_000_000;

/// What the settings are read and checked with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Around<'a> {
    /// Where relative paths start.
    pub(super) directory: &'a Path,
    /// The policies, if they could be read.
    pub(super) policies: Option<&'a PolicySet>,
    /// Names and values of environment variables.
    pub(super) environment: &'a [(String, String)],
}

/// Reads the settings of one node, with warnings about what is allowed but hardly meant.
pub(super) fn read(
    text: &str,
    file: &str,
    around: Around<'_>,
) -> Result<(NodeConfig, Vec<String>), Vec<Problem>> {
    let settings = Settings::new(file, around.environment);
    let read = region::reader::read(text, file, |table: &Table<'_>| {
        node(settings.root(table), around)
    });
    let mut problems = settings.problems();
    match read {
        Ok((node, mut warnings)) if problems.is_empty() => {
            warnings.extend(settings.unknown_variables());
            Ok((node, warnings))
        }
        Ok(_) => Err(problems),
        Err(found) => {
            problems.splice(0..0, found.all().iter().cloned());
            problems.sort_by_key(|problem| (problem.file != file, problem.line));
            Err(problems)
        }
    }
}

fn node(root: Section<'_, '_>, around: Around<'_>) -> Option<(NodeConfig, Vec<String>)> {
    let region = root.required("region", (Literal::Text, "\"us\""), |field| {
        region(field, around.policies)
    });
    let name = root.required("name", (Literal::Text, "\"us-1\""), |field| {
        field.name().map(str::to_owned)
    });
    let http = root.section("http", |section, _| Some(http(section)));
    let grpc = root.section("grpc", |section, _| {
        let listen = address(section, "listen", 8081);
        Some(GrpcConfig { listen })
    });
    let admin = root.section("admin", |section, _| Some(admin(section, around)));
    let store = root.section("store", |section, _| store(section, around));
    let gossip = root.section("gossip", |section, present| {
        if present {
            gossip(section, around).map(Some)
        } else {
            Some(None)
        }
    });
    let shutdown = root.section("shutdown", |section, _| Some(shutdown(section)));
    let log = root.section("log", |section, _| Some(log(section)));
    let shared = !matches!(store, Some(StoreConfig::Memory { .. }));
    let nodes_max = nodes_max(root, shared);
    let key_secret = key_secret(root, shared || !matches!(gossip, Some(None)), around);
    let mut warnings = Vec::new();
    let regions = around.policies.map_or(0, |set| set.regions().len());
    if matches!(gossip, Some(None)) && regions > 1 {
        warnings.push("no [gossip]: every region keeps to its base share".to_owned());
    }
    let node = NodeConfig {
        region: region?,
        name: name?,
        nodes_max: nodes_max?,
        key_secret: key_secret?,
        http: http?,
        grpc: grpc?,
        admin: admin?,
        store: store?,
        gossip: gossip?,
        shutdown: shutdown?,
        log: log?,
    };
    Some((node, warnings))
}

fn region(field: &Field<'_>, policies: Option<&PolicySet>) -> Option<String> {
    let name = field.name()?;
    if let Some(policies) = policies
        && policies.region(name).is_none()
    {
        let regions = policies.regions().iter();
        let names: Vec<String> = regions.map(|region| format!("`{}`", region.name)).collect();
        let names = names.join(", ");
        field.problem(format!(
            "`{name}` is not one of the policies' regions {names}"
        ));
        return None;
    }
    Some(name.to_owned())
}

fn nodes_max(root: Section<'_, '_>, shared: bool) -> Option<NonZeroU32> {
    let take = |field: &Field<'_>| {
        let nodes = field.whole(1..=10_000)?;
        if nodes > 1 && !shared {
            field.problem(
                "must be 1 with a memory store, which only one node can use; or write \
                 `store.kind = \"redis\"`",
            );
            return None;
        }
        NonZeroU32::new(u32::try_from(nodes).ok()?)
    };
    if shared {
        root.required("nodes_max", (Literal::Bare, "3"), take)
    } else {
        let nodes = root.setting("nodes_max", Literal::Bare, take);
        Some(nodes.unwrap_or(NonZeroU32::MIN))
    }
}

fn key_secret(root: Section<'_, '_>, shared: bool, around: Around<'_>) -> Option<Secret<[u8; 16]>> {
    let take = |field: &Field<'_>| {
        let text = secret_file(field, around)?;
        let secret = hexadecimal(text.reveal());
        if secret.is_none() {
            field.problem("must hold 32 hexadecimal digits; `tidegate certs init` makes one");
        }
        secret.map(Secret::new)
    };
    if shared {
        let example = "\"certs/key.secret\"";
        root.required("key_secret_file", (Literal::Text, example), take)
    } else {
        let secret = root.setting("key_secret_file", Literal::Text, take);
        Some(secret.unwrap_or_else(|| Secret::new(rand::random())))
    }
}

fn http(section: Section<'_, '_>) -> HttpConfig {
    let reset = section.setting("reset", Literal::Text, |field| {
        field.choice(&[("unix", Reset::Unix), ("seconds", Reset::Seconds)])
    });
    HttpConfig {
        listen: address(section, "listen", 8080),
        reset: reset.unwrap_or_default(),
    }
}

fn admin(section: Section<'_, '_>, around: Around<'_>) -> AdminConfig {
    let token = section.setting("token_file", Literal::Text, |field| {
        let token = secret_file(field, around)?;
        if token.reveal().len() < 16 {
            field.problem("must hold a token of at least 16 characters");
            return None;
        }
        Some(token)
    });
    AdminConfig {
        listen: address(section, "listen", 9090),
        token,
    }
}

fn store(section: Section<'_, '_>, around: Around<'_>) -> Option<StoreConfig> {
    let kind = section.setting("kind", Literal::Text, |field| {
        field.choice(&[("memory", false), ("redis", true)])
    });
    if kind != Some(true) {
        let keys = section.setting("max_keys", Literal::Bare, |field| {
            field.whole(1..=1_000_000_000)
        });
        let keys_max = usize::try_from(keys.unwrap_or(KEYS_MAX)).unwrap_or(usize::MAX);
        return Some(StoreConfig::Memory { keys_max });
    }
    let example = "[{ name = \"a\", url = \"redis://127.0.0.1:6379\" }]";
    let shards = section.required("shards", (Literal::Bare, example), |field| {
        shards(field, around)
    });
    let deadline = section.setting("deadline", Literal::Text, |field| field.duration());
    let accept_eviction = section.setting("accept_eviction", Literal::Bare, |field| field.flag());
    Some(StoreConfig::Redis {
        shards: shards?,
        deadline: deadline.unwrap_or(Duration::from_millis(10)),
        accept_eviction: accept_eviction.unwrap_or_default(),
    })
}

fn shards(field: &Field<'_>, around: Around<'_>) -> Option<Vec<ShardConfig>> {
    let elements = field.list()?;
    if elements.is_empty() {
        field.problem("must name at least one shard");
    }
    let mut shards: Vec<ShardConfig> = Vec::new();
    let mut whole = !elements.is_empty();
    for element in elements {
        let shard = element.table(|table| shard(table, around));
        match shard {
            Some(shard) if shards.iter().any(|other| other.name == shard.name) => {
                element.problem(format!("`{}` is the name of another shard", shard.name));
                whole = false;
            }
            Some(shard) => shards.push(shard),
            None => whole = false,
        }
    }
    whole.then_some(shards)
}

fn shard(table: &Table<'_>, around: Around<'_>) -> Option<ShardConfig> {
    let name = table
        .required("name", "\"a\"")
        .and_then(|field| field.name().map(str::to_owned));
    let url = match (table.optional("url"), table.optional("url_file")) {
        (Some(field), None) => {
            let url = field.text().map(|url| Secret::new(url.to_owned()));
            url.filter(|url| is_address(&field, url))
        }
        (None, Some(field)) => {
            let url = secret_file(&field, around);
            url.filter(|url| is_address(&field, url))
        }
        (Some(_), Some(file)) => {
            file.problem("stands beside `url`; write one of them");
            None
        }
        (None, None) => {
            table.problem("needs `url`, for example `url = \"redis://127.0.0.1:6379\"`");
            None
        }
    };
    Some(ShardConfig {
        name: name?,
        url: url?,
    })
}

/// Checks the address of a shard; the message shows nothing of it, since it may hold a password.
fn is_address(field: &Field<'_>, url: &Secret<String>) -> bool {
    let right = check_address(url.reveal()).is_ok();
    if !right {
        let example = "redis://user:password@host:6379";
        field.problem(format!(
            "is no address of a Redis server without TLS; write for example \"{example}\""
        ));
    }
    right
}

fn gossip(section: Section<'_, '_>, around: Around<'_>) -> Option<GossipConfig> {
    let listen = section.setting("listen", Literal::Text, socket_address);
    let listen = listen.unwrap_or(EVERYWHERE);
    let advertise = section.setting("advertise", Literal::Text, |field| {
        let address = socket_address(field)?;
        if address.ip().is_unspecified() {
            field.problem("must be an address that others can reach");
            return None;
        }
        Some(address)
    });
    if advertise.is_none() && listen.ip().is_unspecified() {
        section.problem("needs `advertise` when it listens on every address");
    }
    let seeds = section.setting("seeds", Literal::Texts, seeds);
    let path = |name: &'static str, example: &str| {
        section.required(name, (Literal::Text, example), |field| {
            readable(field, around)
        })
    };
    let (ca, cert, key) = (
        path("ca", "\"certs/ca.pem\""),
        path("cert", "\"certs/us.pem\""),
        path("key", "\"certs/us-key.pem\""),
    );
    let links = section.setting("links", Literal::Bare, |field| {
        let links = field.list()?.into_iter();
        let links = links.map(|element| element.table(|table| link(table, around)));
        links.collect::<Option<Vec<_>>>()
    });
    Some(GossipConfig {
        listen,
        advertise,
        seeds: seeds.unwrap_or_default(),
        ca: ca?,
        cert: cert?,
        key: key?,
        links,
    })
}

fn seeds(field: &Field<'_>) -> Option<Vec<String>> {
    let elements = field.list()?;
    let seed = |element: &Field<'_>| {
        let text = element.text()?;
        let port = text.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        if !matches!(port, Some(Ok(1..))) {
            element.problem(format!(
                "`{text}` has no port; write for example \"eu-1.example:7946\""
            ));
            return None;
        }
        Some(text.to_owned())
    };
    elements.iter().map(seed).collect()
}

fn link(table: &Table<'_>, around: Around<'_>) -> Option<LinkConfig> {
    let end = |name: &'static str| {
        let field = table.required(name, "\"us\"")?;
        region(&field, around.policies)
    };
    let (from, to) = (end("from"), end("to"));
    let span = |name: &'static str| {
        let field = table.optional(name);
        field.map_or(Some(Duration::ZERO), |field| field.duration_or_zero())
    };
    let (delay, jitter) = (span("delay"), span("jitter"));
    let loss = table.optional("loss").map_or(Some(0), |field| {
        let read = loss(field.text()?);
        read.map_err(|message| field.problem(message)).ok()
    });
    let cut = table
        .optional("cut")
        .map_or(Some(false), |field| field.flag());
    Some(LinkConfig {
        from: from?,
        to: to?,
        delay: delay?,
        jitter: jitter?,
        loss_ppm: loss?,
        cut: cut?,
    })
}

/// A part of a hundred such as `2%` or `0.5%`, in parts per million.
///
/// # Errors
/// What is wrong with it, to go after the name of the field.
pub fn loss(text: &str) -> Result<u32, String> {
    let (whole, fraction) = text.strip_suffix('%').map_or(("", ""), |number| {
        number.split_once('.').unwrap_or((number, ""))
    });
    let digits = format!("{whole}{fraction:0<4}");
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let ppm = digits.parse().ok().filter(|ppm| *ppm <= 1_000_000);
    ppm.filter(|_| plain && fraction.len() <= 4 && !whole.is_empty())
        .ok_or_else(|| format!("`{text}` is not a part; write for example \"0.5%\""))
}

fn shutdown(section: Section<'_, '_>) -> ShutdownConfig {
    let span =
        |name: &'static str| section.setting(name, Literal::Text, |field| field.duration_or_zero());
    ShutdownConfig {
        grace: span("grace").unwrap_or(Duration::from_secs(5)),
        delay: span("delay").unwrap_or_default(),
    }
}

fn log(section: Section<'_, '_>) -> LogConfig {
    let format = section.setting("format", Literal::Text, |field| {
        field.choice(&[("text", Format::Text), ("json", Format::Json)])
    });
    let level = section.setting("level", Literal::Text, |field| {
        let level = field.text()?;
        if crate::telemetry::log::is_filter(level) {
            return Some(level.to_owned());
        }
        field.problem(format!(
            "`{level}` is not a filter; write for example \"info\""
        ));
        None
    });
    LogConfig {
        format: format.unwrap_or_default(),
        level: level.unwrap_or_else(|| "info".to_owned()),
    }
}

fn address(section: Section<'_, '_>, name: &'static str, port: u16) -> SocketAddr {
    let address = section.setting(name, Literal::Text, socket_address);
    let default = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    address.unwrap_or(default)
}

fn socket_address(field: &Field<'_>) -> Option<SocketAddr> {
    let text = field.text()?;
    let address = text.parse();
    if address.is_err() {
        field.problem(format!(
            "`{text}` is not an address with a port; write for example \"127.0.0.1:8080\""
        ));
    }
    address.ok()
}

fn readable(field: &Field<'_>, around: Around<'_>) -> Option<PathBuf> {
    let path = around.directory.join(field.text()?);
    match std::fs::File::open(&path) {
        Ok(_) => Some(path),
        Err(error) => {
            field.problem(format!("`{}` cannot be read: {error}", path.display()));
            None
        }
    }
}

/// The secret in a file, without the white space around it.
fn secret_file(field: &Field<'_>, around: Around<'_>) -> Option<Secret<String>> {
    let path = around.directory.join(field.text()?);
    match read_file(&path, SECRET_MAX) {
        Ok(text) => Some(Secret::new(text.trim().to_owned())),
        Err(message) => {
            field.problem(format!("`{}` {message}", path.display()));
            None
        }
    }
}

fn hexadecimal(text: &str) -> Option<[u8; 16]> {
    if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)
}
