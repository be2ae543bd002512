//! What a run is about: regions, links, clocks, traffic, and what goes wrong when.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::time::Duration;

use region::bucket::Lost;
use region::policy::OnStoreFailure;

use super::fault::Fault;

/// Everything that a run follows from.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// What chance is drawn from.
    pub seed: u64,
    /// The regions, at most ten.
    pub regions: Vec<RegionSpec>,
    /// The limit that they share.
    pub limit: LimitSpec,
    /// What a key is taken to be when its shard has lost its memory.
    pub on_store_loss: Lost,
    /// What is decided while a shard does not answer.
    pub on_store_failure: OnStoreFailure,
    /// How many keys are limited.
    pub keys: u32,
    /// How unevenly requests fall on keys: key `n` has the weight `1 / n^zipf`.
    pub zipf: f64,
    /// The most that a request costs; costs are dealt evenly from 1.
    pub cost_max: u64,
    /// The way from one region to another, where it differs from `link`.
    pub links: BTreeMap<(usize, usize), Link>,
    /// Every other way between regions.
    pub link: Link,
    /// What goes wrong, and when.
    pub faults: Vec<(Duration, Fault)>,
    /// When it ends.
    pub length: Duration,
    /// Figures are taken from here on.
    pub warm_up: Duration,
    /// How often shares and invariants are looked at, besides at every swap.
    pub sample: Duration,
    /// How much of the run is written down.
    pub detail: Detail,
}

/// One region.
#[derive(Clone, Debug, PartialEq)]
pub struct RegionSpec {
    /// Its part of the limit.
    pub weight: u32,
    /// How many nodes it has.
    pub nodes: usize,
    /// How many shards its store has.
    pub shards: usize,
    /// What follows each shard, to stand in for it.
    pub replica: Option<Replica>,
    /// By how much its shards' clocks are ahead of true time.
    pub ahead: Duration,
    /// By how many parts in a million its shards' clocks are too fast.
    pub drift_ppm: i64,
    /// What it is offered, from when on.
    pub loads: Vec<(Duration, Load)>,
}

/// A server that follows the primary of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// How far it lags: what the primary did in the last moments before it died is lost. A grant is
    /// said only when the replica has it; one that lags too far stops all lending.
    pub lag: Duration,
    /// By how much its clock is ahead of the primary's.
    pub ahead: Duration,
}

/// The limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitSpec {
    /// Tokens per `per`.
    pub rate: u64,
    /// The period of the rate.
    pub per: Duration,
    /// The most tokens at once.
    pub burst: u64,
    /// The tokens that all regions together may go into debt.
    pub overrun: u64,
}

/// What a region is offered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Nothing.
    Silent,
    /// So many requests per second, evenly.
    Constant(f64),
    /// So many requests per second, at random.
    Poisson(f64),
    /// So many per second at random for a while, then nothing for a while.
    Bursts {
        /// Requests per second while it is on.
        rate: f64,
        /// How long it is on.
        on: Duration,
        /// How long it is off.
        off: Duration,
    },
    /// So many requests at once, then silence of a length that hurts: just about a tick, a round
    /// trip or the life of a grant.
    Adversary {
        /// Requests at once.
        size: u64,
    },
}

/// The way from one region to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The least that a frame takes.
    pub delay: Duration,
    /// The most that is added to it, evenly; what is said later may arrive earlier.
    pub jitter: Duration,
    /// How many frames of a thousand are lost.
    pub loss: u64,
    /// How many frames of a thousand arrive twice.
    pub twice: u64,
}

/// How much of a run is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Faults, members and shares; only the last lines.
    Notable,
    /// Every event, all of them.
    Everything,
}

impl Link {
    /// A way that takes half of this round trip and loses nothing.
    #[must_use]
    pub const fn of_round_trip(millis: u64) -> Self {
        Self {
            delay: Duration::from_micros(millis * 500),
            jitter: Duration::ZERO,
            loss: 0,
            twice: 0,
        }
    }
}

impl RegionSpec {
    /// A region with one node, a right clock and this load.
    #[must_use]
    pub fn steady(weight: u32, load: Load) -> Self {
        Self {
            weight,
            nodes: 1,
            shards: 1,
            replica: None,
            ahead: Duration::ZERO,
            drift_ppm: 0,
            loads: vec![(Duration::ZERO, load)],
        }
    }
}

impl Scenario {
    /// A scenario without chance in its links and without faults.
    #[must_use]
    pub fn calm(limit: LimitSpec, regions: Vec<RegionSpec>, link: Link) -> Self {
        Self {
            seed: 1,
            regions,
            limit,
            on_store_loss: Lost::Empty,
            on_store_failure: OnStoreFailure::Closed,
            keys: 1,
            zipf: 1.0,
            cost_max: 1,
            links: BTreeMap::new(),
            link,
            faults: Vec::new(),
            length: Duration::from_secs(20),
            warm_up: Duration::from_secs(5),
            sample: Duration::from_millis(20),
            detail: Detail::Notable,
        }
    }

    /// The way between two regions.
    #[must_use]
    pub fn link(&self, from: usize, to: usize) -> Link {
        self.links.get(&(from, to)).copied().unwrap_or(self.link)
    }

    /// The region of every node.
    #[must_use]
    pub fn nodes(&self) -> Vec<usize> {
        let regions = self.regions.iter().enumerate();
        regions
            .flat_map(|(index, region)| std::iter::repeat_n(index, region.nodes))
            .collect()
    }

    /// The policies that its nodes are configured with.
    pub(super) fn policies(&self) -> String {
        let mut text = String::from("[regions]\n");
        for (index, region) in self.regions.iter().enumerate() {
            // Writing to a string cannot fail.
            writeln!(text, "r{index} = {}", region.weight).ok();
        }
        let LimitSpec {
            rate,
            per,
            burst,
            overrun,
        } = self.limit;
        let per_ms = per.as_millis();
        let loss = match self.on_store_loss {
            Lost::Empty => "empty",
            Lost::Full => "full",
        };
        let failure = match self.on_store_failure {
            OnStoreFailure::Closed => "closed",
            OnStoreFailure::Local => "local",
            OnStoreFailure::Open => "open",
        };
        write!(
            text,
            "[[policy]]\nname = \"p\"\ndomain = \"d\"\nkey = [\"customer\"]\nrate = {rate}\n\
             per = \"{per_ms}ms\"\nburst = {burst}\noverrun = {overrun}\n\
             on_store_loss = \"{loss}\"\non_store_failure = \"{failure}\"\n"
        )
        .ok();
        text
    }
}

/// The world in a few lines, for whoever reads a trace: all but the faults, which are in it.
impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LimitSpec {
            rate,
            per,
            burst,
            overrun,
        } = self.limit;
        let (keys, cost) = (self.keys, self.cost_max);
        let (loss, failure) = (self.on_store_loss, self.on_store_failure);
        writeln!(
            f,
            "{rate} tokens per {per:?}, burst {burst}, overrun {overrun}; {keys} keys, costs up to \
             {cost}; on store loss {loss:?}, on store failure {failure:?}"
        )?;
        let mut first = 0;
        for (index, region) in self.regions.iter().enumerate() {
            let RegionSpec {
                weight,
                nodes,
                shards,
                ahead,
                drift_ppm,
                ..
            } = region;
            let last = first + nodes.saturating_sub(1);
            write!(
                f,
                "r{index}: weight {weight}, nodes n{first} to n{last}, {shards} shards"
            )?;
            if let Some(Replica { lag, ahead }) = region.replica {
                write!(f, " with replicas that lag {lag:?}, clocks {ahead:?} ahead")?;
            }
            writeln!(f, "; clock {ahead:?} ahead, {drift_ppm} ppm too fast")?;
            for (from, load) in &region.loads {
                writeln!(f, "    from {:.3}s on {load}", from.as_secs_f64())?;
            }
            first += nodes;
        }
        let all = 0..self.regions.len();
        for (from, to) in all
            .clone()
            .flat_map(|from| all.clone().map(move |to| (from, to)))
        {
            if from != to {
                writeln!(f, "r{from} to r{to}: {}", self.link(from, to))?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent => f.write_str("nothing"),
            Self::Constant(rate) => write!(f, "{rate:.1} requests/s, evenly"),
            Self::Poisson(rate) => write!(f, "{rate:.1} requests/s, at random"),
            Self::Bursts { rate, on, off } => {
                write!(f, "{rate:.1} requests/s for {on:?}, then none for {off:?}")
            }
            Self::Adversary { size } => write!(f, "up to {size} requests at once, at bad times"),
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            delay,
            jitter,
            loss,
            twice,
        } = self;
        write!(
            f,
            "{delay:?} and up to {jitter:?} more, {loss} of 1000 lost, {twice} twice"
        )
    }
}
