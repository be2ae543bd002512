//! The limiter in node memory that stands in for a shard that does not answer.
//!
//! It gives this node its part of the region's base: rate and capacity divided by the largest
//! number of nodes that the region is configured for, in whole tokens. It starts full with each
//! outage, which is what an outage may cost (PROTOCOL 6).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use governor::clock::{Clock, Reference};
use governor::middleware::StateInformationMiddleware;
use governor::nanos::Nanos;
use governor::state::StateStore;
use governor::state::keyed::ShrinkableKeyedStateStore;
use governor::{Quota, RateLimiter};

use crate::bucket::Base;
use crate::store::{ShardId, Take};
use crate::units::{Key, Tokens};

/// An outage is over when the shard has answered for this long without a failure. A shard that
/// fails now and then would else start with a full bucket at each failure.
const CALM: Duration = Duration::from_secs(10);

/// How soon a client may try again when nothing better is known.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// At most this often a full memory is searched for keys that can be forgotten.
const SWEEP: Duration = Duration::from_secs(1);

/// What an outage's limiter says to one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stand {
    /// Whether the key could pay.
    pub affords: bool,
    /// What is left for it, after the request if that was taken.
    pub remaining: Tokens,
    /// The time until it is full again.
    pub reset_after: Duration,
    /// When the same request could pass, if it could not.
    pub retry_after: Duration,
}

/// The emergency limiters of all shards that do not answer.
pub(super) struct Emergency<C: Clock> {
    clock: C,
    nodes_max: NonZeroU32,
    keys_max: usize,
    /// Whether there is any outage: all that is looked at while every shard answers.
    any: AtomicBool,
    /// The outages and all their buckets. Held for one request's keys at a time.
    outages: Mutex<BTreeMap<ShardId, Outage<C>>>,
}

/// One shard's outage.
struct Outage<C: Clock> {
    failed_at: C::Instant,
    swept_at: Option<C::Instant>,
    /// One limiter for each quota that occurs, each with its own keys.
    limiters: BTreeMap<Part, (Buckets, Governor<C>)>,
}

type Governor<C> = RateLimiter<Key, Buckets, C, StateInformationMiddleware>;

/// What a node may use of a region's base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    /// Whole tokens at once.
    burst: NonZeroU32,
    /// The time in which one token comes.
    interval: Duration,
}

/// The state of the keys of one quota, shared between a limiter and its outage.
#[derive(Clone, Debug, Default)]
struct Buckets(Arc<Mutex<HashMap<Key, Nanos>>>);

impl<C: Clock> fmt::Debug for Emergency<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Emergency")
            .field("any", &self.any)
            .finish_non_exhaustive()
    }
}

impl<C: Clock + Clone> Emergency<C> {
    pub(super) const fn new(clock: C, nodes_max: NonZeroU32, keys_max: usize) -> Self {
        Self {
            clock,
            nodes_max,
            keys_max,
            any: AtomicBool::new(false),
            outages: Mutex::new(BTreeMap::new()),
        }
    }

    /// The same with another clock, and without any outage.
    pub(super) const fn with_clock(&self, clock: C) -> Self {
        Self::new(clock, self.nodes_max, self.keys_max)
    }

    /// A shard has not answered.
    pub(super) fn failed(&self, shard: ShardId) {
        let now = self.clock.now();
        let mut outages = locked(&self.outages);
        let outage = outages.entry(shard).or_insert_with(|| Outage {
            failed_at: now,
            swept_at: None,
            limiters: BTreeMap::new(),
        });
        outage.failed_at = now;
        self.any.store(true, Ordering::Release);
    }

    /// A shard has answered. When it has done so for a while, its outage is forgotten.
    pub(super) fn answered(&self, shard: ShardId) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        // Whoever holds the lock is deciding; a later answer will find it free.
        let Ok(mut outages) = self.outages.try_lock() else {
            return;
        };
        let over = outages.get(&shard).is_some_and(|outage| {
            let calm = self.clock.now().duration_since(outage.failed_at);
            Duration::from(calm) >= CALM
        });
        if over {
            outages.remove(&shard);
            self.any.store(!outages.is_empty(), Ordering::Release);
        }
    }

    /// Asks for several keys of failed shards, all or nothing: if every one can pay, and `consume`
    /// says that the rest of the request passes, they do.
    pub(super) fn take(&self, asked: &[(ShardId, Take)], consume: bool) -> Vec<Stand> {
        let mut outages = locked(&self.outages);
        let mut stands: Vec<Stand> = asked
            .iter()
            .map(|(shard, take)| match outages.get_mut(shard) {
                Some(outage) => self.look(outage, take),
                None => Stand::denied(take),
            })
            .collect();
        if consume && stands.iter().all(|stand| stand.affords) {
            for ((shard, take), stand) in asked.iter().zip(&mut stands) {
                let outage = outages.get_mut(shard);
                if let (Some(outage), Some(cost)) = (outage, cost(take)) {
                    // The lock is held and time only adds, so what was afforded still is.
                    stand.affords = self.consume(outage, take, cost);
                    stand.remaining = Tokens(stand.remaining.0.saturating_sub(take.cost.0));
                }
            }
        }
        for ((_, take), stand) in asked.iter().zip(&mut stands) {
            stand.reset_after = self.reset_after(take, stand.remaining);
        }
        stands
    }

    /// What a key could pay now; changes nothing.
    fn look(&self, outage: &mut Outage<C>, take: &Take) -> Stand {
        let Some(part) = Part::of(&take.base, self.nodes_max) else {
            return Stand::denied(take);
        };
        if !outage.knows(part, take.key) && outage.keys() >= self.keys_max {
            self.sweep(outage);
            if outage.keys() >= self.keys_max {
                return Stand::denied(take);
            }
        }
        let (buckets, limiter) = outage.limiter(part, &self.clock);
        let before = buckets.level(take.key);
        let mut stand = Stand::denied(take);
        if let Ok(snapshot) = limiter.check_key(&take.key) {
            let left = u64::from(snapshot.remaining_burst_capacity());
            stand.remaining = Tokens(left.saturating_add(1));
            buckets.restore(take.key, before);
        }
        stand.affords = take.cost <= stand.remaining;
        // The governor multiplies before it compares, so that it must not see more than the burst.
        let cost = cost(take).filter(|cost| *cost <= part.burst);
        if let (false, Some(cost)) = (stand.affords, cost) {
            // A denial changes nothing.
            if let Ok(Err(not_until)) = limiter.check_key_n(&take.key, cost) {
                stand.retry_after = not_until.wait_time_from(self.clock.now());
            }
        }
        stand
    }

    fn consume(&self, outage: &mut Outage<C>, take: &Take, cost: NonZeroU32) -> bool {
        Part::of(&take.base, self.nodes_max).is_some_and(|part| {
            let (_, limiter) = outage.limiter(part, &self.clock);
            matches!(limiter.check_key_n(&take.key, cost), Ok(Ok(_)))
        })
    }

    fn reset_after(&self, take: &Take, remaining: Tokens) -> Duration {
        Part::of(&take.base, self.nodes_max).map_or(Duration::ZERO, |part| {
            let missing = u64::from(part.burst.get()).saturating_sub(remaining.0);
            let missing = u32::try_from(missing).unwrap_or(u32::MAX);
            part.interval.saturating_mul(missing)
        })
    }

    /// Forgets the keys that are full again.
    fn sweep(&self, outage: &mut Outage<C>) {
        let now = self.clock.now();
        let due = outage
            .swept_at
            .is_none_or(|at| Duration::from(now.duration_since(at)) >= SWEEP);
        if due {
            outage.swept_at = Some(now);
            for (_, limiter) in outage.limiters.values() {
                limiter.retain_recent();
            }
        }
    }
}

impl<C: Clock + Clone> Outage<C> {
    fn keys(&self) -> usize {
        let limiters = self.limiters.values();
        limiters.map(|(_, limiter)| limiter.len()).sum()
    }

    fn knows(&self, part: Part, key: Key) -> bool {
        let limiter = self.limiters.get(&part);
        limiter.is_some_and(|(buckets, _)| buckets.level(key).is_some())
    }

    fn limiter(&mut self, part: Part, clock: &C) -> &(Buckets, Governor<C>) {
        self.limiters.entry(part).or_insert_with(|| {
            let buckets = Buckets::default();
            let quota = Quota::with_period(part.interval).expect("an interval is never zero");
            let quota = quota.allow_burst(part.burst);
            let limiter = Governor::new(quota, buckets.clone(), clock.clone());
            (buckets, limiter)
        })
    }
}

impl Stand {
    const fn denied(take: &Take) -> Self {
        Self {
            affords: take.cost.0 == 0,
            remaining: Tokens(0),
            reset_after: Duration::ZERO,
            retry_after: RETRY,
        }
    }
}

impl Part {
    /// One node's part of a base in whole tokens; `None` if that is less than one.
    fn of(base: &Base, nodes_max: NonZeroU32) -> Option<Self> {
        let nodes = u128::from(nodes_max.get());
        let token = u128::try_from(base.token.0).ok()?;
        let tokens = u128::try_from(base.capacity.0).ok()? / token.checked_mul(nodes)?;
        let share = u128::from(base.share.0);
        let ticks = token * nodes * u128::from(base.tick.micros());
        let nanos = ticks.checked_mul(1_000)?.checked_add(share)?;
        let nanos = u64::try_from((nanos - 1).checked_div(share)?).ok()?;
        // The governor counts nanoseconds in 64 bits, and wraps.
        let most = u128::from(u64::MAX / 4 / nanos.max(1)).min(u128::from(u32::MAX));
        Some(Self {
            burst: NonZeroU32::new(u32::try_from(tokens.min(most)).ok()?)?,
            interval: Duration::from_nanos(nanos.max(1)),
        })
    }
}

impl Buckets {
    fn level(&self, key: Key) -> Option<Nanos> {
        locked(&self.0).get(&key).copied()
    }

    fn restore(&self, key: Key, level: Option<Nanos>) {
        let mut levels = locked(&self.0);
        match level {
            Some(level) => levels.insert(key, level),
            None => levels.remove(&key),
        };
    }
}

impl StateStore for Buckets {
    type Key = Key;

    fn measure_and_replace<T, F, E>(&self, key: &Key, measure: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let mut levels = locked(&self.0);
        let (outcome, level) = measure(levels.get(key).copied())?;
        levels.insert(*key, level);
        Ok(outcome)
    }
}

impl ShrinkableKeyedStateStore<Key> for Buckets {
    fn retain_recent(&self, drop_below: Nanos) {
        locked(&self.0).retain(|_, level| *level > drop_below);
    }

    fn len(&self) -> usize {
        locked(&self.0).len()
    }

    fn is_empty(&self) -> bool {
        locked(&self.0).is_empty()
    }
}

/// The cost as the governor takes it; `None` for nothing. More than it can count is more than any
/// bucket holds.
fn cost(take: &Take) -> Option<NonZeroU32> {
    NonZeroU32::new(u32::try_from(take.cost.0).unwrap_or(u32::MAX))
}

/// Locks; what a panic has left behind is whole, since every change is one insertion or removal.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;
    use crate::bucket::Lost;
    use crate::units::{Client, Level, PolicyId, Share, Tick};

    const SHARD: ShardId = ShardId(3);

    fn emergency(nodes: u32, keys_max: usize) -> (FakeRelativeClock, Emergency<FakeRelativeClock>) {
        let clock = FakeRelativeClock::default();
        let nodes = NonZeroU32::new(nodes).expect("not zero");
        (clock.clone(), Emergency::new(clock, nodes, keys_max))
    }

    /// Ten tokens at once, one per second.
    fn take_of(client: u128, cost: u64) -> (ShardId, Take) {
        let base = Base {
            tick: Tick::Micro,
            token: Level(1_000_000),
            share: Share(1),
            capacity: Level(10_999_999),
            floor: Level::ZERO,
            wait: Duration::ZERO,
            debt: Level::ZERO,
            lost: Lost::Empty,
        };
        let key = Key {
            client: Client(client),
            policy: PolicyId(1),
        };
        let cost = Tokens(cost);
        let again = false;
        (
            SHARD,
            Take {
                key,
                cost,
                base,
                again,
            },
        )
    }

    fn affords(emergency: &Emergency<FakeRelativeClock>, client: u128, cost: u64) -> bool {
        emergency.take(&[take_of(client, cost)], true)[0].affords
    }

    #[test]
    fn emergency_gives_whole_tokens_at_the_base_rate() {
        let (clock, emergency) = emergency(1, 10);
        emergency.failed(SHARD);
        assert!(affords(&emergency, 1, 10) && !affords(&emergency, 1, 1));
        clock.advance(Duration::from_millis(999));
        let stand = emergency.take(&[take_of(1, 1)], true)[0];
        assert_eq!((stand.affords, stand.remaining), (false, Tokens(0)));
        assert_eq!(stand.retry_after, Duration::from_millis(1));
        clock.advance(Duration::from_millis(1));
        assert!(affords(&emergency, 1, 1) && !affords(&emergency, 1, 1));
        clock.advance(Duration::from_secs(100));
        assert!(!affords(&emergency, 1, 11), "never more than its capacity");
        assert!(affords(&emergency, 1, 10) && !affords(&emergency, 1, 1));
    }

    #[test]
    fn emergency_denies_where_a_node_has_less_than_one_token() {
        let (_, ten) = emergency(10, 10);
        ten.failed(SHARD);
        assert!(affords(&ten, 1, 1) && !affords(&ten, 1, 1));
        let (_, eleven) = emergency(11, 10);
        eleven.failed(SHARD);
        assert!(!affords(&eleven, 1, 1) && affords(&eleven, 1, 0));
        let (shard, mut take) = take_of(1, 1);
        take.base.share = Share::ZERO;
        assert!(
            !ten.take(&[(shard, take)], true)[0].affords,
            "nothing flows in"
        );
    }

    #[test]
    fn emergency_takes_from_all_keys_or_from_none() {
        let (_, emergency) = emergency(1, 10);
        emergency.failed(SHARD);
        assert!(affords(&emergency, 1, 8));
        let stands = emergency.take(&[take_of(1, 3), take_of(2, 3)], true);
        let stands: Vec<_> = stands.iter().map(|s| (s.affords, s.remaining.0)).collect();
        assert_eq!(stands, [(false, 2), (true, 10)]);
        let unwanted = emergency.take(&[take_of(2, 3)], false)[0];
        assert_eq!((unwanted.affords, unwanted.remaining), (true, Tokens(10)));
        assert!(affords(&emergency, 2, 10));
    }

    #[test]
    fn emergency_is_fresh_in_a_new_outage_but_not_at_each_failure() {
        let (clock, emergency) = emergency(1, 10);
        emergency.failed(SHARD);
        assert!(affords(&emergency, 1, 10));
        for _ in 0..3 {
            emergency.answered(SHARD);
            emergency.failed(SHARD);
            assert!(!affords(&emergency, 1, 1), "the same outage");
        }
        clock.advance(Duration::from_secs(1));
        assert!(affords(&emergency, 1, 1));
        clock.advance(CALM - Duration::from_secs(1));
        emergency.failed(SHARD);
        assert!(!affords(&emergency, 1, 10), "nobody has seen it answer");
        clock.advance(CALM);
        emergency.answered(SHARD);
        assert!(!emergency.any.load(Ordering::SeqCst));
        emergency.failed(SHARD);
        assert!(affords(&emergency, 1, 10), "a new outage");
    }

    #[test]
    fn emergency_denies_new_keys_when_full_until_others_have_refilled() {
        let (clock, emergency) = emergency(1, 2);
        emergency.failed(SHARD);
        assert!(affords(&emergency, 1, 1) && affords(&emergency, 2, 10));
        assert!(!affords(&emergency, 3, 1), "no room");
        assert!(affords(&emergency, 1, 1), "known keys go on");
        clock.advance(Duration::from_secs(4));
        assert!(
            affords(&emergency, 3, 1),
            "1 was full again and is forgotten"
        );
        assert!(!affords(&emergency, 4, 1));
    }

    #[test]
    fn emergency_arithmetic_does_not_wrap_for_a_slow_limit_with_a_large_burst() {
        let (_, emergency) = emergency(1, 10);
        emergency.failed(SHARD);
        let (shard, mut take) = take_of(1, 1);
        take.base.tick = Tick::Milli;
        take.base.token = Level(315_360_000_000);
        take.base.capacity = Level(i64::MAX);
        for _ in 0..1_000 {
            emergency.take(&[(shard, take)], true);
        }
        take.cost = Tokens(u64::MAX);
        assert!(!emergency.take(&[(shard, take)], true)[0].affords);
    }
}
