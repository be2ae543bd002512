//! A whole deployment on loopback: regions of `tidegate serve` processes and `redis-server`
//! processes, with shaped links between the regions. All of it is gone when the test is; what it
//! wrote is kept if the test fails.

mod http;
mod load;
mod ports;
mod process;
mod redis;
mod stranger;

use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

pub(crate) use self::http::{Answer, Client};
pub(crate) use self::load::Load;
pub(crate) use self::process::{Node, Settings, Start};
pub(crate) use self::redis::Redis;
pub(crate) use self::stranger::Stranger;

/// How long anything may take that should happen soon.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The regions, in no order that matters.
pub(crate) const REGIONS: [&str; 3] = ["us", "eu", "ap"];

/// One way from a region to another takes so many milliseconds.
const LINKS: [(&str, &str, u64); 3] = [("us", "eu", 40), ("us", "ap", 75), ("eu", "ap", 110)];

const TOKEN: &str = "a token for tests only";

/// A deployment.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) nodes: Vec<Node>,
    /// The shards of each region, by region and name.
    pub(crate) shards: Vec<Shard>,
    dir: PathBuf,
    /// Only one world at a time may use the machine.
    _alone: File,
}

#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) region: &'static str,
    pub(crate) name: &'static str,
    pub(crate) server: Redis,
}

impl World {
    /// Starts `nodes`, each a region and a name, with so many shards per region.
    pub(crate) async fn start(
        nodes: &[(&'static str, &str)],
        shards: &[&'static str],
        policies: &str,
    ) -> Self {
        let alone = File::create(std::env::temp_dir().join("tidegate-world.lock"));
        let alone = alone.expect("a lock");
        alone.lock().expect("a lock");
        let name = format!("tidegate-world-{}-{}", std::process::id(), ports::free());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir).expect("a directory");
        let mut world = Self {
            nodes: Vec::new(),
            shards: Vec::new(),
            dir,
            _alone: alone,
        };
        fs::write(world.dir.join("policies.toml"), policies).expect("written");
        fs::write(world.dir.join("token"), TOKEN).expect("written");
        world.make_certificates();
        for region in REGIONS {
            if nodes.iter().any(|(of, _)| *of == region) {
                world.start_shards(region, shards);
            }
        }
        let gossip: Vec<SocketAddr> = nodes
            .iter()
            .map(|_| SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free())))
            .collect();
        for ((region, name), own) in nodes.iter().zip(&gossip) {
            let settings = world.configure((region, name), (*own, &gossip), nodes.len());
            world.nodes.push(Node::start(settings, Start::First));
        }
        let all = nodes.len();
        world
            .eventually("every node knows every other", async |world| {
                world.each_knows(all).await
            })
            .await;
        world
    }

    /// Where the certificates are.
    pub(crate) fn certificates(&self) -> PathBuf {
        self.dir.join("certs")
    }

    fn make_certificates(&self) {
        let made = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["certs", "init", "--regions", &REGIONS.join(","), "--out"])
            .arg(self.certificates())
            .output()
            .expect("tidegate runs");
        assert!(made.status.success(), "{made:?}");
    }

    fn start_shards(&mut self, region: &'static str, names: &[&'static str]) {
        for name in names {
            let server = Redis::start(&self.dir.join(format!("redis-{region}-{name}")));
            self.shards.push(Shard {
                region,
                name,
                server,
            });
        }
    }

    fn configure(
        &self,
        (region, name): (&str, &str),
        (own, gossip): (SocketAddr, &[SocketAddr]),
        nodes: usize,
    ) -> Settings {
        let dir = self.dir.join(name);
        fs::create_dir_all(&dir).expect("a directory");
        let shards = self.shards.iter().filter(|shard| shard.region == region);
        let shards: Vec<String> = shards
            .map(|Shard { name, server, .. }| {
                format!("{{ name = \"{name}\", url = \"{}\" }}", server.url())
            })
            .collect();
        let seeds = gossip.iter().filter(|seed| **seed != own);
        let seeds: Vec<String> = seeds.map(|seed| format!("\"{seed}\"")).collect();
        let links: Vec<String> = LINKS
            .iter()
            .flat_map(|(a, b, ms)| [(a, b, ms), (b, a, ms)])
            .map(|(from, to, ms)| {
                format!("{{ from = \"{from}\", to = \"{to}\", delay = \"{ms}ms\" }}")
            })
            .collect();
        let config = format!(
            "region = \"{region}\"\n\
             name = \"{name}\"\n\
             nodes_max = {NODES_MAX}\n\
             key_secret_file = \"../certs/key.secret\"\n\
             http = {{ listen = \"127.0.0.1:0\" }}\n\
             grpc = {{ listen = \"127.0.0.1:0\" }}\n\
             admin = {{ listen = \"127.0.0.1:0\", token_file = \"../token\" }}\n\
             [store]\n\
             kind = \"redis\"\n\
             shards = [{}]\n\
             deadline = \"1s\"\n\
             [gossip]\n\
             listen = \"{own}\"\n\
             seeds = [{}]\n\
             ca = \"../certs/ca.pem\"\n\
             cert = \"../certs/{region}.pem\"\n\
             key = \"../certs/{region}-key.pem\"\n\
             links = [{}]\n",
            shards.join(", "),
            seeds.join(", "),
            links.join(", "),
        );
        assert!(nodes <= NODES_MAX, "{nodes} nodes");
        fs::write(dir.join("node.toml"), config).expect("written");
        Settings {
            name: name.to_owned(),
            region: region.to_owned(),
            dir,
            policies: self.dir.join("policies.toml"),
            gossip: own,
        }
    }

    /// The nodes of a region that run.
    pub(crate) fn of<'w>(&'w self, region: &'w str) -> impl Iterator<Item = &'w Node> {
        let nodes = self.nodes.iter();
        nodes.filter(move |node| node.settings.region == region && !node.is_killed())
    }

    /// A node by its name.
    pub(crate) fn node(&self, name: &str) -> &Node {
        let mut nodes = self.nodes.iter();
        nodes
            .find(|node| node.settings.name == name)
            .expect("a node")
    }

    pub(crate) fn node_mut(&mut self, name: &str) -> &mut Node {
        let mut nodes = self.nodes.iter_mut();
        nodes
            .find(|node| node.settings.name == name)
            .expect("a node")
    }

    pub(crate) fn shard(&mut self, region: &str, name: &str) -> &mut Redis {
        let mut shards = self.shards.iter_mut();
        let shard = shards.find(|shard| shard.region == region && shard.name == name);
        &mut shard.expect("a shard").server
    }

    /// Cuts these links both ways, and heals all others.
    pub(crate) async fn cut(&self, cuts: &[(&str, &str)]) {
        let links: Vec<Value> = LINKS
            .iter()
            .flat_map(|(a, b, ms)| [(a, b, ms), (b, a, ms)])
            .map(|(from, to, ms)| {
                let is_cut = cuts.contains(&(*from, *to)) || cuts.contains(&(*to, *from));
                json!({ "from": from, "to": to, "delay": format!("{ms}ms"), "cut": is_cut })
            })
            .collect();
        let body = Value::from(links).to_string();
        let fields = format!("Authorization: Bearer {TOKEN}\r\n");
        for node in self.nodes.iter().filter(|node| !node.is_killed()) {
            let mut client = Client::new(node.addresses.admin);
            let answer = client.ask("PUT /v1/links", &fields, &body).await;
            let answer = answer.expect("an answer");
            assert_eq!(answer.status, 200, "{answer:?}");
        }
    }

    /// What a region says of a key.
    pub(crate) async fn key(&self, region: &str, (domain, policy): (&str, &str)) -> Value {
        let path = format!("/v1/key?domain={domain}&policy={policy}&attr.customer=acme");
        self.admin(region, &path).await.json()
    }

    /// What the first node of a region that runs answers.
    pub(crate) async fn admin(&self, region: &str, path: &str) -> Answer {
        let node = self.of(region).next().expect("a node that runs");
        let answer = Client::new(node.addresses.admin).get(path).await;
        answer.expect("an answer")
    }

    /// The sum of a metric over all its series whose labels contain a text, at one node.
    pub(crate) async fn metric(&self, node: &str, name: &str, labels: &str) -> u64 {
        let admin = self.node(node).addresses.admin;
        let answer = Client::new(admin).get("/metrics").await.expect("an answer");
        let lines = answer.body.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']) && rest.contains(labels))
        });
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        values.sum()
    }

    /// Whether every node that runs knows so many that are alive.
    pub(crate) async fn each_knows(&self, all: usize) -> Result<(), String> {
        for node in self.nodes.iter().filter(|node| !node.is_killed()) {
            let answer = Client::new(node.addresses.admin).get("/v1/members").await;
            let answer = answer.map_err(|error| error.to_string())?;
            let members = answer.json()["members"].clone();
            let members = members.as_array().cloned().unwrap_or_default();
            let alive = members.iter().filter(|member| member["state"] == "alive");
            if alive.count() != all {
                return Err(format!("{}: {members:?}", node.settings.name));
            }
        }
        Ok(())
    }

    /// Waits until something holds; returns how long that took.
    pub(crate) async fn eventually(
        &self,
        what: &str,
        holds: impl AsyncFn(&Self) -> Result<(), String>,
    ) -> Duration {
        let began = Instant::now();
        loop {
            let missing = match holds(self).await {
                Ok(()) => break,
                Err(missing) => missing,
            };
            if began.elapsed() > PATIENCE {
                let state = self.describe().await;
                panic!("waited in vain until {what}: {missing}\n{state}");
            }
            sleep(Duration::from_millis(50)).await;
        }
        println!("{what}: after {:.1} s", began.elapsed().as_secs_f64());
        began.elapsed()
    }

    /// The logs and the metrics of all nodes, for a test that fails.
    pub(crate) async fn describe(&self) -> String {
        let mut text = format!("what the nodes wrote is in {}\n", self.dir.display());
        for node in &self.nodes {
            let metrics = Client::new(node.addresses.admin).get("/metrics").await;
            let metrics = metrics.map_or_else(|error| error.to_string(), |answer| answer.body);
            let metrics = metrics.lines().filter(|line| {
                !line.starts_with('#') && !line.ends_with(" 0") && !line.contains("_bucket")
            });
            let metrics = metrics.collect::<Vec<_>>().join("\n");
            let (name, log) = (&node.settings.name, node.log());
            writeln!(text, "=== {name}\n{metrics}\n{log}").expect("a text takes all");
        }
        text
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.nodes.clear();
        self.shards.clear();
        if std::thread::panicking() {
            println!("what the nodes wrote is kept in {}", self.dir.display());
        } else {
            drop(fs::remove_dir_all(&self.dir));
        }
    }
}

/// What every region is configured for.
pub(crate) const NODES_MAX: usize = 4;

/// Microseconds since the epoch: the stores' clock, since all of them run on this machine.
pub(crate) fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(now.expect("after 1970").as_micros()).expect("before the year 500 000")
}

/// Asks a node whether a request may pass.
pub(crate) async fn check(client: &mut Client, body: &str) -> Answer {
    let answer = client.ask("POST /v1/check", "", body).await;
    answer.expect("an answer")
}
