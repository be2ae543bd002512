//! What must hold after every step: not only what was admitted, but what could be admitted next.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use region::limit::Limit;
use region::units::{Level, RegionId, Share, Timestamp, Tokens};

use super::{Setting, World};

/// A rule of the protocol that does not hold, with its numbers.
#[derive(Clone, Debug)]
pub(crate) struct Broken(pub(crate) String);

/// Where a world broke a rule.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) seed: u64,
    pub(crate) step: u64,
    pub(crate) broken: Broken,
}

/// One bucket for the whole limit, full at first: what all regions together must never exceed,
/// neither in what they have admitted nor in what they could admit now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ideal {
    /// In millionths of level units.
    level: i128,
    full: i128,
    total: u64,
    at: Timestamp,
    rho: u64,
}

impl Ideal {
    pub(crate) fn new(limit: &Limit, at: Timestamp, rho: u64) -> Self {
        let full = millionths(limit.level(limit.burst()));
        let total = limit.total().0;
        Self {
            level: full,
            full,
            total,
            at,
            rho,
        }
    }

    /// By how much a clock may be ahead of true time after a while.
    pub(crate) fn allows(&self, passed: u64) -> u64 {
        passed * self.rho / 1_000_000
    }

    pub(crate) fn admit(&mut self, at: Timestamp, level: Level) {
        self.pass(at);
        self.level -= millionths(level);
    }

    pub(crate) fn pass(&mut self, at: Timestamp) {
        let passed = i128::from(at.0 - self.at.0) * i128::from(1_000_000 + self.rho);
        self.level = self.full.min(self.level + passed * i128::from(self.total));
        self.at = at;
    }

    /// Whether it holds as much. Clocks that differ in rate tick at different instants: one tick
    /// for each region may be ahead of it.
    fn holds(&self, level: Level, regions: usize) -> bool {
        let ticks = if self.rho == 0 { 0 } else { regions + 1 };
        let slack = i128::from(self.total) * 1_000_000 * i128::try_from(ticks).expect("few");
        millionths(level) <= self.level + slack
    }
}

fn millionths(level: Level) -> i128 {
    i128::from(level.0) * 1_000_000
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, step, broken } = self;
        write!(f, "seed {seed}, step {step}: {broken}")
    }
}

/// What all regions together have at one instant.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    shares: Share,
    capacities: Level,
    levels: Level,
}

impl World {
    /// Shares within the limit, capacities within the burst, levels within the ideal bucket; and
    /// nobody keeps more back than the largest grant to each other region.
    pub(crate) fn check_now(&self) -> Result<(), Broken> {
        let mut sums = Sums::default();
        for index in 0..self.regions.len() {
            let record = self.record(index);
            let pieces = self.base(index).pieces(self.regions[index].memory);
            let share = record.bucket.share(&pieces);
            self.check_kept_back(index, share)?;
            sums.shares = sums.shares.plus(share);
            sums.capacities = sums.capacities.plus(record.bucket.capacity(&pieces));
            sums.levels = sums.levels.plus(record.bucket.level);
        }
        let mut ideal = self.ideal;
        ideal.pass(self.now);
        self.compare(sums, ideal, "now")?;
        if self.auditor.overrun() > Tokens(0) {
            return Err(Broken(format!("overrun {:?}", self.auditor.overrun())));
        }
        Ok(())
    }

    /// The same at every instant ahead in which a share changes, if nobody does anything any more.
    pub(crate) fn check_ahead(&self) -> Result<(), Broken> {
        let mut instants: Vec<u64> = Vec::new();
        let mut records = Vec::new();
        for (index, region) in self.regions.iter().enumerate() {
            let (record, base) = (self.record(index), self.base(index));
            let pieces = base.pieces(region.memory);
            let soon = region.clock.shows(self.now).plus(HORIZON);
            let ends = record.bucket.schedule(&pieces).iter();
            let ends = ends.map(|piece| Timestamp(piece.until.0));
            let ends = ends.filter(|end| *end < soon);
            instants.extend(ends.map(|end| region.clock.when(end).0));
            records.push((record.bucket, pieces));
        }
        instants = instants
            .into_iter()
            .flat_map(|at| [at.saturating_sub(1), at, at + 1])
            .chain([self.now.plus(HORIZON).0])
            .filter(|at| *at > self.now.0)
            .collect();
        instants.sort_unstable();
        instants.dedup();
        let mut ideal = self.ideal;
        for at in instants.into_iter().map(Timestamp) {
            ideal.pass(at);
            let mut sums = Sums::default();
            for (region, (bucket, pieces)) in self.regions.iter().zip(&mut records) {
                let tick = self.split.limit().tick();
                bucket.settle(tick.floor(region.clock.shows(at)), tick, pieces);
                sums.shares = sums.shares.plus(bucket.share(pieces));
                sums.capacities = sums.capacities.plus(bucket.capacity(pieces));
                sums.levels = sums.levels.plus(bucket.level);
            }
            let ahead = Duration::from_micros(at.0 - self.now.0);
            self.compare(sums, ideal, &format!("in {ahead:?}"))?;
        }
        Ok(())
    }

    fn compare(&self, sums: Sums, ideal: Ideal, when: &str) -> Result<(), Broken> {
        let limit = self.split.limit();
        if sums.shares > limit.total() {
            let (sum, total) = (sums.shares, limit.total());
            return Err(Broken(format!("usable shares {sum:?} of {total:?} {when}")));
        }
        let burst = limit.level(limit.burst());
        if sums.capacities > burst {
            let sum = sums.capacities;
            return Err(Broken(format!("capacities {sum:?} of {burst:?} {when}")));
        }
        if !ideal.holds(sums.levels, self.regions.len()) {
            let (sum, all) = (sums.levels, ideal.level / 1_000_000);
            return Err(Broken(format!("tokens {sum:?} of {all} {when}")));
        }
        Ok(())
    }

    /// Rule 2: what is kept subtracted for a borrower is one grant, the largest, not their sum.
    fn check_kept_back(&self, index: usize, share: Share) -> Result<(), Broken> {
        let (region, clock) = (&self.regions[index], self.clock(index));
        let waits = region.ledger.as_ref().map(|ledger| ledger.waits_until);
        if clock < waits.unwrap_or_default() || region.ledger.is_none() {
            return Ok(());
        }
        let largest = |to: RegionId| {
            let wrote = region.wrote.iter().filter(|(other, ..)| *other == to);
            wrote
                .map(|(_, _, share, _)| *share)
                .max()
                .unwrap_or_default()
        };
        let others = (0_u16..).map(RegionId).take(self.regions.len());
        let lent: Share = others.map(largest).sum();
        let least = self.base(index).share.minus(lent);
        if share < least {
            return Err(Broken(format!("{share:?} is usable of at least {least:?}")));
        }
        Ok(())
    }

    /// Tokens on their way count as well: whatever has been sent may arrive at this very instant,
    /// and then all of it could be admitted.
    pub(crate) fn check_arrivals(&self) -> Result<(), Broken> {
        let mut world = self.clone();
        for _ in 0..2 * self.regions.len() {
            let index = world.dice.pick(world.regions.len());
            if let Some(pending) = world.regions[index].late.pop() {
                world.swap(index, pending);
            }
            let mut rows: Vec<_> = world.rows.iter().map(Rc::clone).collect();
            rows.sort_by_key(|row| (row.region, row.version));
            if world.dice.one_in(2) {
                // Only the newest of each region.
                rows.reverse();
            }
            rows.retain(|row| row.region != world.regions[index].own);
            for row in &rows {
                let returns = world.dice.one_in(8);
                let pending = world.transit(index, std::slice::from_ref(row), |transition, _| {
                    if returns {
                        transition.give_back(row.region);
                    }
                });
                if pending.is_news(&world, index) && world.swap(index, pending) {
                    world.check_now()?;
                }
            }
        }
        Ok(())
    }
}

/// Runs worlds of one setting until one breaks a rule, and counts the steps with a loan in use.
pub(crate) fn explore(setting: Setting, seeds: std::ops::Range<u64>) -> Result<u64, Found> {
    let mut borrowed = 0;
    for seed in seeds {
        let mut world = World::new(seed, setting);
        for step in 0..STEPS {
            let found = |broken| Found { seed, step, broken };
            world.step().map_err(found)?;
            borrowed += u64::from((0..world.regions.len()).any(|index| world.borrows(index)));
        }
    }
    Ok(borrowed)
}

/// How far ahead is looked.
const HORIZON: Duration = Duration::from_secs(30);

/// The steps of one world.
const STEPS: u64 = 600;
