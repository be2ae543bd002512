//! The loop: events in the order of their time, and what each does.

mod calls;
mod faults;
mod machines;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gossip::codec::Codec;
use gossip::frame::{Frame, Message};
use gossip::identity::Member;
use gossip::replica;
use region::limiter::{Limiter, Settings, Subject};
use region::policy::{Attributes, PolicySet};
use region::units::{Key, RegionId, Timestamp, Tokens, micros};

use self::calls::Call;
use self::watch::Watch;
use super::books::{Books, Decided};
use super::dice::Dice;
use super::node::{Node, Process, address};
use super::run::{Broken, Gossip, Run};
use super::scenario::Scenario;
use super::store::{Shards, at_once};
use super::trace::Trace;
use super::traffic::{Traffic, Zipf};

/// True time when a run begins. Any instant would do that leaves room before it.
const START: Timestamp = Timestamp(1_700_000_000_000_000);

/// Something that happens at its time.
#[derive(Debug)]
enum Event {
    /// A region is asked.
    Request { region: usize },
    /// A node's deadline has passed.
    Wake { node: usize, run: u64 },
    /// A frame arrives at a node.
    Frame {
        from: usize,
        to: usize,
        bytes: Arc<Vec<u8>>,
    },
    /// A call of a node's control plane reaches the store.
    Call { node: usize, run: u64, call: Call },
    /// The store's answer reaches the node.
    Answer {
        node: usize,
        run: u64,
        input: replica::Input,
    },
    /// Something goes wrong: which of the scenario's faults.
    Fault(usize),
    /// A shard is as a fault to come will bring it back.
    Save { shard: Place, fault: usize },
    /// A replica becomes the primary.
    Promote { shard: Place, fault: usize },
    /// Something that was wrong with a shard may be over.
    Recover { shard: Place },
    /// A frozen clock shows the right time again.
    Thaw { shard: Place, server: usize },
    /// Shares and invariants are looked at.
    Sample,
}

/// A shard of a region.
#[derive(Clone, Copy, Debug)]
struct Place {
    region: usize,
    shard: usize,
}

/// A region's store and traffic.
#[derive(Debug)]
struct Region {
    id: RegionId,
    shards: Shards,
    traffic: Traffic,
}

/// A run under way.
#[derive(Debug)]
pub(super) struct World<'a> {
    scenario: &'a Scenario,
    policies: Arc<PolicySet>,
    codec: Codec,
    keys: Vec<(String, Key)>,
    ranks: BTreeMap<Key, usize>,
    zipf: Zipf,
    now: Timestamp,
    /// What nodes limit by in their own memory: true time, from the start.
    elapsed_us: Arc<AtomicU64>,
    end: Timestamp,
    events: BTreeMap<(Timestamp, u64), Event>,
    posted: u64,
    regions: Vec<Region>,
    nodes: Vec<Node>,
    cut: BTreeSet<(usize, usize)>,
    watch: Watch,
    network: Dice,
    requests: Dice,
    seeds: Dice,
    books: Books,
    rows: (u64, u64),
    trace: Trace,
    broken: Option<Broken>,
    handled: u64,
}

impl<'a> World<'a> {
    pub(super) fn new(scenario: &'a Scenario) -> Self {
        let policies = PolicySet::parse(&scenario.policies(), "policies.toml");
        let policies = Arc::new(policies.expect("a scenario has policies that can be used"));
        let names: Vec<&str> = policies.regions().iter().map(|r| r.name.as_str()).collect();
        let policy = &policies.policies()[0];
        let mut dice = Dice::new(scenario.seed);
        let (network, requests, seeds) = (dice.fork(), dice.fork(), dice.fork());
        let regions = scenario.regions.iter().enumerate();
        let regions = regions.map(|(index, spec)| Region {
            id: region_id(index),
            shards: Shards::new(spec, START),
            traffic: Traffic::new(spec, dice.fork()),
        });
        let nodes = scenario.nodes().into_iter().map(|region| Node {
            region,
            process: None,
            run: 0,
            paused_until: Timestamp::default(),
        });
        let mut world = Self {
            scenario,
            codec: Codec::new(&names),
            keys: Vec::new(),
            ranks: BTreeMap::new(),
            zipf: Zipf::new(scenario),
            now: START,
            elapsed_us: Arc::default(),
            end: START.plus(scenario.length),
            events: BTreeMap::new(),
            posted: 0,
            regions: regions.collect(),
            nodes: nodes.collect(),
            cut: BTreeSet::new(),
            watch: Watch::new(dice.fork()),
            network,
            requests,
            seeds,
            books: Books::new(scenario, policy, START),
            rows: (0, 0),
            trace: Trace::new(scenario.detail),
            broken: None,
            handled: 0,
            policies: Arc::clone(&policies),
        };
        world.begin();
        world
    }

    /// Starts all nodes and posts what is known in advance.
    fn begin(&mut self) {
        for node in 0..self.nodes.len() {
            self.start(node);
        }
        let first = self.nodes.iter().find_map(|node| node.process.as_ref());
        let limiter = &first.expect("there is a node").limiter;
        let policy = &self.policies.policies()[0];
        for rank in 0..self.scenario.keys.max(1) {
            let name = format!("c{rank}");
            let attributes = [("customer", name.as_str())];
            let key = limiter.key(policy, Attributes::new(&attributes));
            self.keys.push((name, key.expect("the attribute is there")));
        }
        let ranks = self.keys.iter().enumerate();
        self.ranks = ranks.map(|(rank, (_, key))| (*key, rank)).collect();
        self.expect_faults();
        for region in 0..self.regions.len() {
            self.expect_request(region);
        }
        self.post(START.plus(self.scenario.sample), Event::Sample);
    }

    pub(super) fn run(mut self) -> Run {
        while let Some(((at, _), event)) = self.events.pop_first() {
            if at > self.end || self.broken.is_some() {
                break;
            }
            self.now = at;
            let elapsed = micros(self.elapsed());
            self.elapsed_us.store(elapsed, Ordering::Relaxed);
            self.handled += 1;
            self.handle(event);
        }
        self.into_run()
    }

    fn into_run(self) -> Run {
        let measured = self.scenario.length.saturating_sub(self.scenario.warm_up);
        let regions = self.regions.len();
        let pairs = regions * regions.saturating_sub(1) * self.keys.len();
        let clients = self.keys.iter().map(|(_, key)| key.client);
        let shards = clients.map(|client| {
            let regions = self.regions.iter();
            regions.map(|region| region.shards.of(client)).collect()
        });
        let per = measured.as_secs_f64().max(1e-9) * (pairs.max(1) as f64);
        Run {
            overrun: self.books.overrun(),
            overrun_max: self.books.allowed(),
            worst: self.books.worst(),
            surplus: self.books.surplus,
            keys: self.books.keys,
            shards: shards.collect(),
            regions: self.books.tallies,
            shares: self.books.shares,
            gossip: Gossip {
                rows: self.rows.0 as f64 / per,
                bytes: self.rows.1 as f64 / per,
            },
            measured,
            broken: self.broken,
            events: self.handled,
            trace: self.trace.into_lines(),
        }
    }

    fn post(&mut self, at: Timestamp, event: Event) {
        self.posted += 1;
        self.events.insert((at, self.posted), event);
    }

    fn elapsed(&self) -> Duration {
        self.now.since(START)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Request { region } => {
                self.expect_request(region);
                self.request(region);
            }
            Event::Wake { node, run } => self.for_node(node, run, Event::Wake { node, run }),
            Event::Frame { from, to, bytes } => {
                let run = self.nodes[to].run;
                self.for_node(to, run, Event::Frame { from, to, bytes });
            }
            Event::Call { node, run, call } => self.call(node, run, call),
            Event::Answer { node, run, input } => {
                self.for_node(node, run, Event::Answer { node, run, input });
            }
            Event::Fault(fault) => self.fault(fault),
            Event::Save { shard, fault } => self.save(shard, fault),
            Event::Promote { shard, fault } => self.promote(shard, fault),
            Event::Recover { shard } => {
                let Place { region, shard } = shard;
                self.regions[region].shards.recover(shard, self.now);
            }
            Event::Thaw { shard, server } => self.thaw(shard, server),
            Event::Sample => self.sample(),
        }
    }

    fn expect_request(&mut self, region: usize) {
        let elapsed = self.elapsed();
        if let Some(at) = self.regions[region].traffic.next(elapsed) {
            // Rounded up, so that time moves on.
            let at = START.plus(at).max(self.now);
            self.post(at, Event::Request { region });
        }
    }

    /// One request at one of the region's nodes that can answer, if there is any.
    fn request(&mut self, region: usize) {
        let rank = self.zipf.key(&mut self.requests);
        let cost = Tokens(self.requests.between(1, self.scenario.cost_max.max(1)));
        let able: Vec<usize> = (0..self.nodes.len())
            .filter(|index| {
                let node = &self.nodes[*index];
                node.region == region && node.process.is_some() && node.paused_until <= self.now
            })
            .collect();
        if able.is_empty() {
            return;
        }
        let node = self.requests.pick(&able);
        self.show(region);
        let Some(process) = &self.nodes[node].process else {
            return;
        };
        process.dues.roll(process.local(self.now));
        let attributes = [("customer", self.keys[rank].0.as_str())];
        let subject = Subject {
            attributes: &attributes,
            cost,
        };
        let answer = at_once(process.limiter.check("d", &[subject]));
        let dues = process.dues.take();
        let admitted = answer.allowed;
        self.watch.touch(rank);
        let decided = Decided { cost, admitted };
        self.books.decided(self.now, (region, rank), decided);
        let word = if admitted { "admits" } else { "denies" };
        let elapsed = self.elapsed();
        self.trace.event(
            elapsed,
            format_args!("r{region} {word} {} of key {rank}", cost.0),
        );
        if let Some(what) = self.books.excess(rank) {
            self.breaks(what);
        }
        for due in dues {
            self.due(node, due);
        }
        self.rearm(node);
        self.look(rank);
    }

    /// Lets a region's store see what its clock shows now.
    fn show(&self, region: usize) {
        self.regions[region].shards.show(self.now);
    }

    fn breaks(&mut self, what: String) {
        let at = self.elapsed();
        self.trace.note(at, format_args!("BROKEN {what}"));
        self.broken.get_or_insert(Broken { at, what });
    }

    /// Starts a node: a new process, with nothing in its hands.
    fn start(&mut self, node: usize) {
        let (seed, place) = (self.seeds.number(), &mut self.nodes[node]);
        place.run += 1;
        let region = &self.policies.regions()[place.region].name;
        let name = format!("{region}-n{node}");
        let member = Member::try_new(&name, region, address(node), self.now.0);
        let member = member.expect("such names are allowed");
        let region = &self.regions[place.region];
        let (policies, store) = (Arc::clone(&self.policies), region.shards.store(node));
        let nodes = self.scenario.regions[place.region].nodes;
        let nodes = u32::try_from(nodes).ok().and_then(NonZeroU32::new);
        let settings = Settings {
            nodes_max: nodes.expect("this is a node of it"),
            ..Settings::default()
        };
        let limiter = Limiter::new(policies, region.id, store, settings);
        let elapsed = Arc::clone(&self.elapsed_us);
        let elapsed = move || Duration::from_micros(elapsed.load(Ordering::Relaxed));
        let limiter = limiter.with_clock(elapsed);
        let process = Process::new(member, limiter, (self.now, seed));
        place.process = Some(Box::new(process));
        self.costs_of_start(node);
        self.rearm(node);
    }

    /// Sends a frame from node to node, as the link between their regions has it.
    fn transmit(&mut self, from: usize, to: usize, frame: &Frame) {
        let Ok(bytes) = self.codec.encode(frame) else {
            return self.breaks("a frame is too large to be sent".to_owned());
        };
        let (here, there) = (self.nodes[from].region, self.nodes[to].region);
        if let Message::Rows(rows) = &frame.message
            && !rows.is_empty()
            && self.elapsed() >= self.scenario.warm_up
        {
            self.rows.0 += u64::try_from(rows.len()).unwrap_or(0);
            self.rows.1 += u64::try_from(bytes.len()).unwrap_or(0);
        }
        if self.cut.contains(&(here, there)) {
            return;
        }
        let bytes = Arc::new(bytes);
        if here == there {
            let took = self
                .network
                .span(Duration::from_micros(50), Duration::from_micros(300));
            let at = self.now.plus(took);
            return self.post(at, Event::Frame { from, to, bytes });
        }
        let link = self.scenario.link(here, there);
        let copies = 1 + u8::from(self.network.permille(link.twice));
        for _ in 0..copies {
            let at = self
                .now
                .plus(link.delay + self.network.span(Duration::ZERO, link.jitter));
            if !self.network.permille(link.loss) {
                let bytes = Arc::clone(&bytes);
                self.post(at, Event::Frame { from, to, bytes });
            }
        }
    }
}

fn region_id(index: usize) -> RegionId {
    RegionId(u16::try_from(index).expect("at most ten regions"))
}
