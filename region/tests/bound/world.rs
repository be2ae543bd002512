//! Regions over the store, the ledger and the planner of production, on clocks that the test moves.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use region::audit::Auditor;
use region::bucket::{Base, Memory};
use region::ledger::transition::Transition;
use region::ledger::{Row, Terms, schedule};
use region::plan::{Own, plan};
use region::policy::{Policy, PolicySet};
use region::store::memory::{MemoryStore, Snapshot};
use region::store::{ShardId, Store, Swap, Swapped, Take};
use region::units::{Client, Generation, Key, Level, RegionId, Share, Timestamp, Tokens, micros};

/// When every world begins.
const START: u64 = 1_700_000_000_000_000;

/// The only client.
const CLIENT: Client = Client(1);

/// A small generator of pseudo-random numbers (xorshift, Marsaglia 2003): a seed replays a run.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    pub(crate) fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }

    /// One of so many things.
    pub(crate) fn pick(&mut self, many: usize) -> usize {
        let sides = u64::try_from(many).expect("a length");
        usize::try_from(self.roll(sides)).expect("less than a length")
    }

    /// A span from `least` to below `most`, in milliseconds.
    pub(crate) fn span(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.roll(most - least))
    }
}

/// One shard and the nodes that use it. A region has one, or for a while two primaries.
pub(crate) struct Site {
    pub(crate) region: RegionId,
    /// What its clock shows.
    clock: Arc<AtomicU64>,
    pub(crate) store: MemoryStore,
    /// The place of the policies that its nodes have.
    pub(crate) version: usize,
    /// Whether its clients want all that they can get, or nothing.
    pub(crate) greedy: bool,
}

/// Regions that share one limit.
pub(crate) struct World {
    /// The policies: those of before, and where they change those of after.
    pub(crate) sets: Vec<PolicySet>,
    pub(crate) sites: Vec<Site>,
    pub(crate) auditor: Auditor,
    now: u64,
    /// The newest row of each site.
    rows: Vec<Row>,
    /// Which region does not hear which.
    pub(crate) cuts: BTreeSet<(RegionId, RegionId)>,
    /// A region becomes busy or idle in one of so many ticks.
    often: u64,
}

impl World {
    /// Regions with these policies, all of them alike in name and key; the first are in force.
    pub(crate) fn new(policies: &[String]) -> Self {
        let parse = |text: &String| PolicySet::parse(text, "policies.toml").expect("good policies");
        let sets: Vec<PolicySet> = policies.iter().map(parse).collect();
        let larger = sets.iter().filter_map(|set| set.policies()[0].split());
        let larger = larger.max_by_key(|split| split.limit().rate());
        let limit = *larger.expect("a limit").limit();
        let regions = u16::try_from(sets[0].regions().len()).expect("few");
        let mut world = Self {
            sets,
            sites: Vec::new(),
            auditor: Auditor::new(limit),
            now: START,
            rows: Vec::new(),
            cuts: BTreeSet::new(),
            often: 40,
        };
        for region in (0..regions).map(RegionId) {
            let ahead = u64::from(region.0) * 3_600_000_000;
            let memory = Memory {
                generation: Generation(1),
                began: Timestamp(0),
            };
            world.add(region, START + ahead, memory);
        }
        world
    }

    fn add(&mut self, region: RegionId, shows: u64, memory: Memory) {
        let clock = Arc::new(AtomicU64::new(shows));
        let reads = Arc::clone(&clock);
        let shows = move || Timestamp(reads.load(Ordering::Relaxed));
        self.sites.push(Site {
            region,
            clock,
            store: MemoryStore::new(memory, 64, shows),
            version: 0,
            greedy: false,
        });
    }

    fn policy(&self, site: usize) -> &Policy {
        &self.sets[self.sites[site].version].policies()[0]
    }

    pub(crate) fn base(&self, site: usize) -> Base {
        let base = self.policy(site).base(self.sites[site].region, CLIENT);
        base.expect("a limit")
    }

    pub(crate) fn key(&self) -> Key {
        Key {
            client: CLIENT,
            policy: self.sets[0].policies()[0].id(),
        }
    }

    fn terms(&self, site: usize) -> Terms<'_> {
        let policy = self.policy(site);
        Terms {
            own: self.sites[site].region,
            client: CLIENT,
            split: policy.split().expect("a limit"),
            id: policy.terms(),
        }
    }

    /// The limit as a share.
    pub(crate) fn total(&self) -> Share {
        let split = self.sets[0].policies()[0].split();
        split.expect("a limit").limit().total()
    }

    fn clock(&self, site: usize) -> u64 {
        self.sites[site].clock.load(Ordering::Relaxed)
    }

    /// True time passes, and all clocks go on.
    pub(crate) fn pass(&mut self, span: Duration) {
        self.now += micros(span);
        for site in &self.sites {
            site.clock.fetch_add(micros(span), Ordering::Relaxed);
        }
    }

    /// A clock jumps ahead.
    pub(crate) fn ahead(&mut self, site: usize, span: Duration) {
        let clock = &self.sites[site].clock;
        clock.fetch_add(micros(span), Ordering::Relaxed);
    }

    /// A clock jumps back.
    pub(crate) fn back(&mut self, site: usize, span: Duration) {
        let clock = &self.sites[site].clock;
        clock.fetch_sub(micros(span), Ordering::Relaxed);
    }

    /// The memory that a shard has after it has lost what it had.
    pub(crate) fn next_memory(&self, site: usize) -> Memory {
        let before = self.sites[site].store.snapshot().memory().generation;
        Memory {
            generation: Generation(before.0 + 1),
            began: Timestamp(self.clock(site)),
        }
    }

    /// A second primary of a site's shard comes into use, which shows.
    pub(crate) fn promote(&mut self, site: usize, held: Snapshot) {
        let memory = self.next_memory(site);
        let (region, clock) = (self.sites[site].region, self.clock(site));
        self.add(region, clock, memory);
        let second = self.sites.last().expect("added");
        second.store.restore(held.under(memory));
    }

    fn asks(&self, site: usize, cost: Tokens) -> Take {
        Take {
            key: self.key(),
            cost,
            base: self.base(site),
            again: false,
        }
    }

    /// Takes so many tokens, or as many as there are; returns how many.
    pub(crate) fn take(&mut self, site: usize, most: u64) -> u64 {
        let (store, base) = (&self.sites[site].store, self.base(site));
        let look = [self.asks(site, Tokens(0))];
        let seen = now(store.take(ShardId(0), &look)).expect("room");
        let there = seen.keys[0].bucket.level.plus(base.debt).positive();
        let tokens = u64::try_from(there.0 / base.token.0).expect("not negative");
        let tokens = tokens.min(most);
        // Clients ask where there is nothing, too: a bucket whose clock went back begins anew then.
        let take = self.asks(site, Tokens(tokens.max(1)));
        let taken = now(store.take(ShardId(0), &[take])).expect("room");
        if taken.keys[0].affords {
            self.auditor.admit(Timestamp(self.now), take.cost);
        }
        assert_eq!(taken.keys[0].affords, tokens > 0, "what is there");
        tokens
    }

    /// Takes all that there is.
    pub(crate) fn drain(&mut self, site: usize) -> u64 {
        self.take(site, u64::MAX)
    }

    /// One transition of a site, swapped at once: it hears rows, then does something. Returns what
    /// it says.
    pub(crate) fn transit(
        &mut self,
        site: usize,
        heard: &[Row],
        act: impl FnOnce(&mut Transition<'_>, &Terms<'_>),
    ) -> Row {
        let (store, base, terms) = (&self.sites[site].store, self.base(site), self.terms(site));
        let loaded = now(store.load(self.key(), &base)).expect("an answer");
        let mut transition = Transition::new(terms, base, &loaded);
        for row in heard {
            // Old rows and those of other policies are ignored, as they are in production.
            transition.hear(row).ok();
        }
        act(&mut transition, &terms);
        let outcome = transition.finish(self.demand(site), &loaded.bucket);
        let keep = schedule::keep(&outcome.ledger, &base, Timestamp(self.clock(site)));
        let swap = Swap {
            key: self.key(),
            base,
            expected: outcome.expected,
            ledger: outcome.ledger,
            change: outcome.change,
            pieces: outcome.pieces,
            keep,
        };
        let swapped = now(store.swap(&swap)).expect("room");
        assert!(
            matches!(swapped, Swapped::Done { .. }),
            "nobody else was first"
        );
        outcome.row
    }

    fn demand(&self, site: usize) -> Share {
        if self.sites[site].greedy {
            Share(self.total().0 * 6 / 5)
        } else {
            Share::ZERO
        }
    }

    /// A site does what its nodes do each tick: take, hear the newest rows, plan, and speak.
    pub(crate) fn work(&mut self, site: usize, dice: &mut Dice) {
        let (region, greedy) = (self.sites[site].region, self.sites[site].greedy);
        if greedy {
            self.drain(site);
        }
        let rows = self.rows.iter().filter(|row| row.region != region);
        let rows = rows.filter(|row| !self.cuts.contains(&(row.region, region)));
        let heard: Vec<Row> = rows.filter(|_| !dice.one_in(8)).cloned().collect();
        let demand = self.demand(site);
        let row = self.transit(site, &heard, |transition, terms| {
            let own = Own {
                demand,
                starving: greedy,
            };
            plan(transition, terms, own);
        });
        let known = self.rows.iter_mut().find(|known| known.region == region);
        match known {
            Some(known) if known.version < row.version => *known = row,
            Some(_) => {}
            None => self.rows.push(row),
        }
    }

    /// How often regions become busy or idle in this world, and how they begin.
    pub(crate) fn settle_moods(&mut self, dice: &mut Dice) {
        self.often = [10, 40, 150][dice.pick(3)];
        let hot = dice.one_in(2).then(|| dice.pick(self.sites.len()));
        for (place, site) in self.sites.iter_mut().enumerate() {
            site.greedy = hot.map_or_else(|| dice.one_in(2), |hot| hot == place);
        }
        if hot.is_some() {
            self.often = u64::MAX;
        }
    }

    /// Mostly everybody is busy, right after something has gone wrong.
    pub(crate) fn rush(&mut self, dice: &mut Dice) {
        self.often = self.often.min(150);
        if !dice.one_in(3) {
            self.sites.iter_mut().for_each(|site| site.greedy = true);
        }
    }

    /// Regions become busy or idle at times, and links are cut and heal.
    pub(crate) fn change_moods(&mut self, dice: &mut Dice) {
        for site in &mut self.sites {
            if dice.one_in(self.often) {
                site.greedy = !site.greedy;
            }
        }
        let mut region = || self.sites[dice.pick(self.sites.len())].region;
        let way = (region(), region());
        if !self.cuts.remove(&way) && dice.one_in(40) {
            self.cuts.insert(way);
        }
    }

    /// Every site works once, in any order, and a tick passes; returns how long it was.
    pub(crate) fn tick(&mut self, dice: &mut Dice) -> Duration {
        let first = dice.pick(self.sites.len());
        let order = (first..self.sites.len()).chain(0..first);
        for site in order.collect::<Vec<_>>() {
            self.work(site, dice);
        }
        let span = dice.span(10, 40);
        self.pass(span);
        span
    }

    /// What a site could use in all, level and capacity, without touching it.
    pub(crate) fn level(&self, site: usize) -> Level {
        let store = &self.sites[site].store;
        let look = [self.asks(site, Tokens(0))];
        let seen = now(store.take(ShardId(0), &look)).expect("room");
        seen.keys[0].bucket.level
    }
}

/// A policy over three regions; `more` are further fields of it.
pub(crate) fn policy(weights: [u32; 3], rate: u64, more: &str) -> String {
    let [us, eu, ap] = weights;
    format!(
        "[regions]\nus = {us}\neu = {eu}\nap = {ap}\n[[policy]]\nname = \"p\"\ndomain = \"api\"\n\
         key = [\"customer\"]\nrate = {rate}\nper = \"1s\"\n{more}"
    )
}

/// A call of a store in memory never waits.
fn now<T>(call: impl Future<Output = T>) -> T {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("a store in memory never waits"),
    }
}
