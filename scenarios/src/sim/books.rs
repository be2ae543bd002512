//! What is checked and counted while a run goes on: the auditor of every key, and the inner
//! invariants, which show a broken rule long before it shows in the admissions.

use std::time::Duration;

use region::audit::Audit;
use region::bucket::Bucket;
use region::limit::Split;
use region::policy::Policy;
use region::units::{Level, Share, Ticks, Timestamp, Tokens, micros};

use super::costs::Costs;
use super::run::{ShareChange, Tally};
use super::scenario::Scenario;

/// One key as a region's store has it, with what is needed to see it at any instant ahead.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) bucket: Bucket,
    pub(super) pieces: [region::bucket::Piece; 2],
    pub(super) reading: Timestamp,
}

/// The instants ahead at which nothing may be wrong if nobody does anything any more.
const AHEAD_MS: [u64; 5] = [0, 100, 1_000, 2_300, 3_000];

#[derive(Debug)]
pub(super) struct Books {
    split: Split,
    start: Timestamp,
    warm_up: Timestamp,
    /// The fastest of all clocks sets the pace: the promise allows for the error of clock rates.
    fastest_ppm: u64,
    drifts: bool,
    audit: Audit<usize>,
    /// One bucket for all regions, which is asked instead of them.
    ideal: Audit<usize>,
    /// The share of each region in each key, as last seen.
    permilles: Vec<Vec<u64>>,
    pub(super) costs: Costs,
    /// The most that buckets held beyond what one would have held.
    pub(super) surplus: Tokens,
    pub(super) tallies: Vec<Tally>,
    pub(super) keys: Vec<Tally>,
    pub(super) shares: Vec<ShareChange>,
}

impl Books {
    pub(super) fn new(scenario: &Scenario, policy: &Policy, start: Timestamp) -> Self {
        let split = policy.split().expect("its only policy is a bucket");
        let regions = scenario.regions.len();
        let fastest = scenario.regions.iter().map(|region| region.drift_ppm).max();
        let keys = usize::try_from(scenario.keys.max(1)).unwrap_or(usize::MAX);
        let audit = Audit::new(*split.limit(), keys);
        Self {
            split: split.clone(),
            start,
            warm_up: start.plus(scenario.warm_up),
            fastest_ppm: u64::try_from(fastest.unwrap_or(0)).unwrap_or(0),
            drifts: scenario.regions.iter().any(|region| region.drift_ppm != 0),
            ideal: audit.clone(),
            audit,
            permilles: vec![vec![0; regions]; keys],
            costs: Costs::new(policy, keys),
            surplus: Tokens(0),
            tallies: vec![Tally::default(); regions],
            keys: vec![Tally::default(); keys],
            shares: Vec::new(),
        }
    }

    /// The tokens that may be admitted beyond the limit of the worst key, else of any.
    pub(super) fn allowed(&self) -> Tokens {
        let worst = self.worst().map(|key| self.costs.allowed(key));
        worst.unwrap_or_else(|| self.costs.most())
    }

    /// The most that was admitted beyond the limit of a key.
    pub(super) fn overrun(&self) -> Tokens {
        self.audit.overrun()
    }

    /// The key of which that was.
    pub(super) fn worst(&self) -> Option<usize> {
        self.audit.worst().copied()
    }

    /// What is wrong if more was admitted to a key than the limit and the faults so far allow.
    pub(super) fn excess(&self, key: usize) -> Option<String> {
        let (over, allowed) = (self.audit.of(&key).overrun(), self.costs.allowed(key));
        let (over, allowed) = (over > allowed).then_some((over.0, allowed.0))?;
        Some(format!(
            "key {key}: {over} tokens admitted beyond the limit, where {allowed} may be"
        ))
    }

    /// A region has decided on a request.
    pub(super) fn decided(&mut self, now: Timestamp, (region, key): (usize, usize), at: Decided) {
        let paced = self.paced(now);
        let allowed = self.ideal.would_admit(&key, now, at.cost);
        if allowed {
            self.ideal.admit(&key, now, at.cost);
        }
        if at.admitted {
            self.audit.admit(&key, paced, at.cost);
        }
        if now >= self.warm_up {
            for tally in [&mut self.tallies[region], &mut self.keys[key]] {
                tally.count(at.cost, at.admitted, allowed);
            }
        }
    }

    /// Looks at one key in all regions; says which region's share has changed since, and to what.
    pub(super) fn look(&mut self, now: Timestamp, key: usize, seen: &[Seen]) -> Vec<ShareChange> {
        let total = self.split.limit().total().0;
        let at = now.since(self.start);
        let mut changes = Vec::new();
        for (region, seen) in seen.iter().enumerate() {
            let Share(share) = seen.bucket.share(&seen.pieces);
            let permille = region::units::mul_div(share, 1_000, total);
            let known = &mut self.permilles[key][region];
            if *known != permille {
                *known = permille;
                changes.push(ShareChange {
                    at,
                    key,
                    region,
                    permille,
                });
            }
        }
        self.shares.extend(&changes);
        changes
    }

    /// The invariants of one key: what all regions together can use, hold and take out.
    pub(super) fn check(
        &mut self,
        now: Timestamp,
        key: usize,
        seen: &mut [Seen],
    ) -> Result<(), String> {
        self.check_tokens(now, key, seen)?;
        if self.costs.unsettled(key, now) {
            return Ok(());
        }
        let limit = self.split.limit();
        for ahead in AHEAD_MS {
            let (mut shares, mut capacities) = (Share::ZERO, Level::ZERO);
            for (region, seen) in seen.iter_mut().enumerate() {
                let then = seen.reading.plus(Duration::from_millis(ahead));
                let tick = limit.tick();
                seen.bucket.settle(tick.floor(then), tick, &seen.pieces);
                let capacity = seen.bucket.capacity(&seen.pieces);
                shares = shares.plus(seen.bucket.share(&seen.pieces));
                capacities = capacities.plus(capacity);
                if seen.bucket.level > capacity {
                    return Err(format!("key {key}: r{region} holds more than its capacity"));
                }
            }
            if shares > limit.total() {
                let (shares, total) = (shares.0, limit.total().0);
                return Err(format!(
                    "key {key}: shares {shares} of {total} in {ahead} ms"
                ));
            }
            if capacities > limit.level(limit.burst()) {
                return Err(format!(
                    "key {key}: capacities exceed the burst in {ahead} ms"
                ));
            }
        }
        Ok(())
    }

    /// All buckets together hold no more than one for all regions would, and what faults may cost.
    fn check_tokens(&mut self, now: Timestamp, key: usize, seen: &[Seen]) -> Result<(), String> {
        let limit = self.split.limit();
        let levels = seen.iter().map(|seen| seen.bucket.level);
        let held = levels.fold(Level::ZERO, Level::plus);
        // Clocks that differ in rate tick at different instants: each may be a tick ahead.
        let ticks = if self.drifts { seen.len() + 1 } else { 0 };
        let ahead = limit
            .total()
            .over(Ticks(u64::try_from(ticks).unwrap_or(u64::MAX)));
        let ideal = self.audit.of(&key).level(self.paced(now));
        let surplus = held.minus(ahead).minus(ideal).positive();
        let token = limit.token().0.unsigned_abs();
        let surplus = Tokens(surplus.0.unsigned_abs().div_ceil(token));
        self.surplus = self.surplus.max(surplus);
        let faults = self.costs.of_faults(key);
        if surplus > faults {
            let (held, more) = (limit.tokens(held).0, surplus.0);
            return Err(format!(
                "key {key}: {held} tokens lie in all buckets, {more} more than in one bucket, \
                 where {} may be",
                faults.0
            ));
        }
        Ok(())
    }

    fn paced(&self, now: Timestamp) -> Timestamp {
        let gained =
            region::units::mul_div(micros(now.since(self.start)), self.fastest_ppm, 1_000_000);
        Timestamp(
            now.0
                .saturating_add(gained)
                .saturating_add(u64::from(self.fastest_ppm > 0)),
        )
    }
}

/// What a region did with a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decided {
    pub(super) cost: Tokens,
    pub(super) admitted: bool,
}
