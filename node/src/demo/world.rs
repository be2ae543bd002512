//! Three whole nodes in one process: memory stores, limiters and gossip over real QUIC on loopback.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gossip::dues::Dues;
use gossip::service::{Parts, Service, Status};
use gossip::transport::{LinkShape, Links, Settings, Transport};
use hdrhistogram::Histogram;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use region::bucket::Memory;
use region::limiter::{self, Limiter, Pressure, Subject};
use region::policy::{Attributes, PolicySet};
use region::store::memory::MemoryStore;
use region::store::{Loaded, Store as _};
use region::units::{Generation, Key, RegionId, Timestamp, Tokens, micros};
use tokio::time::{interval, sleep};
use tokio_util::sync::CancellationToken;

use super::record::Event;
use super::script::{BURST, LIMIT, PHASES, REGIONS, ROUND_TRIPS};
use crate::certs;
use crate::tasks::{OnCancel, OnError, TaskError, Tasks};

/// The domain and the attributes of the demo's only customer.
const DOMAIN: &str = "demo";
const CUSTOMER: [(&str, &str); 1] = [("customer", "acme")];

/// How often requests that have become due are sent.
const PACE: Duration = Duration::from_millis(1);

/// How long the nodes may take to find each other.
const JOIN_TIMEOUT: Duration = Duration::from_secs(15);

/// The world of the demo.
pub(super) struct World {
    pub(super) policies: Arc<PolicySet>,
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) links: Links,
    clock: Clock,
}

/// One region's node.
pub(super) struct Node {
    limiter: Arc<Limiter<MemoryStore>>,
    status: Arc<Status>,
    /// What it has decided and nobody has looked at yet; locked to append or to take all.
    events: Mutex<Vec<Event>>,
    /// How long checks took, in nanoseconds; locked for one count.
    timings: Mutex<Histogram<u64>>,
}

/// One clock for all stores, which never goes back.
#[derive(Clone, Copy)]
struct Clock {
    start: Instant,
    epoch: Timestamp,
}

impl Clock {
    fn new() -> Self {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            start: Instant::now(),
            epoch: Timestamp(micros(since)),
        }
    }

    fn now(self) -> Timestamp {
        self.epoch.plus(self.start.elapsed())
    }
}

fn policies() -> PolicySet {
    let regions: String = REGIONS
        .iter()
        .map(|(name, weight)| format!("{name} = {weight}\n"))
        .collect();
    let text = format!(
        "[regions]\n{regions}\n[[policy]]\nname = \"per-customer\"\ndomain = \"{DOMAIN}\"\n\
         key = [\"customer\"]\nrate = {LIMIT}\nper = \"1s\"\nburst = {BURST}\n\
         overrun = 0\non_store_failure = \"closed\"\n"
    );
    PolicySet::parse(&text, "demo").expect("the demo's own policies are right")
}

impl World {
    /// Starts the nodes and waits until they hear each other.
    pub(super) async fn start(tasks: &mut Tasks, seed: u64) -> Result<Self, TaskError> {
        let (policies, links, clock) = (Arc::new(policies()), Links::default(), Clock::new());
        for (one, other, round_trip) in ROUND_TRIPS {
            let shape = LinkShape {
                delay: round_trip / 2,
                ..LinkShape::default()
            };
            links.set(id(one), id(other), shape);
            links.set(id(other), id(one), shape);
        }
        let names: Vec<&str> = REGIONS.iter().map(|(name, _)| *name).collect();
        let authority = certs::Authority::new()?;
        let mut world = Self {
            policies,
            nodes: Vec::new(),
            links,
            clock,
        };
        let mut seeds: Vec<SocketAddr> = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let (transport, inbound) = Transport::bind(Settings {
                bind: (Ipv4Addr::LOCALHOST, 0).into(),
                advertise: None,
                name: format!("{name}-1"),
                regions: names.iter().map(ToString::to_string).collect(),
                region: id(index),
                incarnation: clock.now().0,
                seeds: seeds.iter().map(ToString::to_string).collect(),
                credentials: authority.credentials(name)?,
                links: world.links.clone(),
                seed: seed.wrapping_add(u64::try_from(index)?),
            })?;
            seeds.push(transport.own().address());
            let (dues, receiver) = Dues::channel();
            let node = world.node(index, dues);
            let parts = Parts {
                limiter: Arc::clone(&node.limiter),
                transport,
                inbound,
                dues: Arc::new(tokio::sync::Mutex::new(receiver)),
                rng: StdRng::seed_from_u64(seed ^ u64::try_from(index)?),
                status: Arc::clone(&node.status),
            };
            let stop = tasks.stop().clone();
            tasks.spawn(
                "gossip",
                (OnError::StopNode, OnCancel::Finish),
                async move {
                    Service::run(parts, stop).await;
                    Ok(())
                },
            );
            world.nodes.push(Arc::new(node));
        }
        world.joined().await?;
        Ok(world)
    }

    fn node(&self, index: usize, dues: Arc<Dues>) -> Node {
        let clock = self.clock;
        // A new store: its keys start full.
        let memory = Memory {
            generation: Generation(clock.now().0),
            began: Timestamp(0),
        };
        let store = MemoryStore::new(memory, 1_000, move || clock.now());
        let policies = Arc::clone(&self.policies);
        let limiter = Limiter::new(policies, id(index), store, limiter::Settings::default())
            .with_pressure(dues as Arc<dyn Pressure>);
        Node {
            limiter: Arc::new(limiter),
            status: Arc::default(),
            events: Mutex::default(),
            timings: Mutex::new(timings()),
        }
    }

    async fn joined(&self) -> Result<(), TaskError> {
        let begun = Instant::now();
        while !self
            .nodes
            .iter()
            .all(|node| node.status.regions_heard() == REGIONS.len() - 1)
        {
            if begun.elapsed() > JOIN_TIMEOUT {
                return Err("the three nodes do not find each other over loopback QUIC".into());
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Cuts a region off from everybody, or heals everything.
    pub(super) fn cut(&self, region: Option<usize>) {
        for one in 0..REGIONS.len() {
            for other in (0..REGIONS.len()).filter(|other| *other != one) {
                let cut = region.is_some_and(|region| region == one || region == other);
                self.links.cut(id(one), id(other), cut);
            }
        }
    }

    /// The demo's only key, as a region has it.
    pub(super) async fn look(&self, region: usize) -> Option<Loaded> {
        let policy = &self.policies.policies()[0];
        let key = self.key()?;
        let base = policy.base(id(region), key.client)?;
        self.nodes[region]
            .limiter
            .store()
            .load(key, &base)
            .await
            .ok()
    }

    fn key(&self) -> Option<Key> {
        let policy = &self.policies.policies()[0];
        self.nodes[0]
            .limiter
            .key(policy, Attributes::new(&CUSTOMER))
    }
}

impl Node {
    /// Takes what has been decided since the last time.
    pub(super) fn drain(&self) -> Vec<Event> {
        std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds this node's timings to others.
    pub(super) fn add_timings(&self, all: &mut Histogram<u64>) {
        let timings = self.timings.lock().unwrap_or_else(PoisonError::into_inner);
        all.add(&*timings).expect("both histograms grow as needed");
    }

    /// Sends requests at random instants with the rate of each phase (a Poisson process) to the
    /// end.
    pub(super) async fn load(
        self: Arc<Self>,
        region: usize,
        ends: Vec<Duration>,
        seed: u64,
        stop: CancellationToken,
    ) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut pace = interval(PACE);
        let start = Instant::now();
        let mut next = Duration::ZERO;
        while let Some(phase) = ends.iter().position(|end| *end > next) {
            let rate = PHASES[phase].offered[region];
            if rate == 0 {
                next = ends[phase];
                continue;
            }
            let gap = -(1.0 - rng.random::<f64>()).ln() / f64::from(rate);
            next += Duration::from_secs_f64(gap);
            while start.elapsed() < next {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    _ = pace.tick() => {}
                }
            }
            self.ask(region, phase).await;
        }
    }

    async fn ask(&self, region: usize, phase: usize) {
        let subject = Subject {
            attributes: &CUSTOMER,
            cost: Tokens(1),
        };
        let begun = Instant::now();
        let answer = self.limiter.check(DOMAIN, &[subject]).await;
        let took = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let stamp = answer.strictest().and_then(|verdict| verdict.stamp);
        let Some(stamp) = stamp else { return };
        let event = Event {
            at: stamp.clock,
            region,
            phase,
            admitted: answer.allowed,
        };
        self.events
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(event);
        self.timings
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .saturating_record(took);
    }
}

/// A histogram of nanoseconds, up to ten seconds.
pub(super) fn timings() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 10_000_000_000, 3).expect("bounds in order, three digits")
}

fn id(index: usize) -> RegionId {
    RegionId(u16::try_from(index).expect("three regions"))
}
