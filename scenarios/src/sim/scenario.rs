//! What a run is about: regions, links, clocks, traffic, and what goes wrong when.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::time::Duration;

/// Everything that a run follows from.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// What chance is drawn from.
    pub seed: u64,
    /// The regions, at most ten.
    pub regions: Vec<RegionSpec>,
    /// The limit that they share.
    pub limit: LimitSpec,
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
    /// By how much its store's clock is ahead of true time.
    pub ahead: Duration,
    /// By how many parts in a million its store's clock is too fast.
    pub drift_ppm: i64,
    /// What it is offered, from when on.
    pub loads: Vec<(Duration, Load)>,
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

/// What goes wrong, or gets well again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing gets from one region to another any more.
    Cut {
        /// The region that is not heard.
        from: usize,
        /// The region that does not hear it.
        to: usize,
    },
    /// The way from one region to another is open again.
    Heal {
        /// The region that is heard again.
        from: usize,
        /// The region that hears it.
        to: usize,
    },
    /// A node dies with everything that it has in its hands.
    Crash {
        /// The node, counted over all regions.
        node: usize,
    },
    /// A dead node starts anew.
    Start {
        /// The node, counted over all regions.
        node: usize,
    },
    /// A node stands still for a while.
    Pause {
        /// The node, counted over all regions.
        node: usize,
        /// For how long.
        span: Duration,
    },
    /// A store loses its memory, and knows it.
    Forget {
        /// The region.
        region: usize,
    },
    /// A store does not answer any more; what is asked of it may be done all the same.
    Down {
        /// The region.
        region: usize,
    },
    /// A store answers again.
    Up {
        /// The region.
        region: usize,
    },
    /// A store's clock steps forward, or back.
    Step {
        /// The region.
        region: usize,
        /// By so many microseconds.
        by_us: i64,
    },
    /// A store's clock stands still for a while and then shows the right time.
    Freeze {
        /// The region.
        region: usize,
        /// For how long.
        span: Duration,
    },
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
        write!(
            text,
            "[[policy]]\nname = \"p\"\ndomain = \"d\"\nkey = [\"customer\"]\nrate = {rate}\n\
             per = \"{per_ms}ms\"\nburst = {burst}\noverrun = {overrun}\n\
             on_store_failure = \"closed\"\n"
        )
        .ok();
        text
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut { from, to } => write!(f, "r{to} no longer hears r{from}"),
            Self::Heal { from, to } => write!(f, "r{to} can hear r{from} again"),
            Self::Crash { node } => write!(f, "n{node} crashes"),
            Self::Start { node } => write!(f, "n{node} starts"),
            Self::Pause { node, span } => write!(f, "n{node} stands still for {span:?}"),
            Self::Forget { region } => write!(f, "the store of r{region} forgets everything"),
            Self::Down { region } => write!(f, "the store of r{region} does not answer"),
            Self::Up { region } => write!(f, "the store of r{region} answers again"),
            Self::Step { region, by_us } => write!(f, "the clock of r{region} steps by {by_us} us"),
            Self::Freeze { region, span } => {
                write!(f, "the clock of r{region} stands still for {span:?}")
            }
        }
    }
}
