//! The memory store against a bucket in exact fractions, whatever the clock does.

use std::time::Duration;

use proptest::prelude::*;
use region::bucket::Piece;
use region::ledger::Ledger;
use region::limit::Limit;
use region::store::memory::MemoryStore;
use region::store::{Change, ShardId, Store, Swap, Swapped, Take};
use region::units::{Level, Share, Ticks};

use crate::support::{Clock, T0, ask, base, key, limit, memory_store, now, take};

/// A fraction in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fraction(i128, i128);

impl Fraction {
    fn new(above: i128, below: i128) -> Self {
        let (mut a, mut b) = (above.abs(), below);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        Self(above / a.max(1), below / a.max(1))
    }

    const fn whole(number: i128) -> Self {
        Self(number, 1)
    }

    fn plus(self, other: Self) -> Self {
        Self::new(self.0 * other.1 + other.0 * self.1, self.1 * other.1)
    }

    fn times(self, other: Self) -> Self {
        Self::new(self.0 * other.0, self.1 * other.1)
    }

    fn at_most(self, other: Self) -> bool {
        self.0 * other.1 <= other.0 * self.1
    }

    fn min(self, other: Self) -> Self {
        if self.at_most(other) { self } else { other }
    }
}

/// Tokens per tick and the most tokens, until a tick.
type Stretch = (i128, Fraction, Fraction);

const FOR_EVER: i128 = i128::MAX;

/// What is exactly so of one key.
#[derive(Clone, Debug)]
struct Exact {
    tokens: Fraction,
    at: i128,
    schedule: Vec<Stretch>,
    kept: i128,
}

/// One limit, exactly: a whole number of tokens per ticks.
#[derive(Clone, Copy, Debug)]
struct Rule {
    tokens: i128,
    ticks: i128,
    burst: i128,
    /// Ticks that a clock may step back without being believed.
    skew: i128,
}

impl Rule {
    fn base(self) -> Vec<Stretch> {
        let rate = Fraction::new(self.tokens, self.ticks);
        vec![(FOR_EVER, rate, Fraction::whole(self.burst))]
    }

    fn full(self, now: i128) -> Exact {
        Exact {
            tokens: Fraction::whole(self.burst),
            at: now,
            schedule: Vec::new(),
            kept: 0,
        }
    }

    /// The key at `now`, and whether a step of the clock has moved it back.
    fn settled(self, mut key: Exact, now: i128) -> (Exact, bool) {
        if !key.schedule.is_empty() && now >= key.kept {
            let schedule = std::mem::take(&mut key.schedule);
            if key.kept > key.at {
                let kept = key.kept;
                refill(&mut key, &schedule, kept);
            }
        }
        if now < key.at {
            let far = key.at - now > self.skew;
            key.at = if far { now } else { key.at };
            return (key, far);
        }
        let schedule = if key.schedule.is_empty() {
            self.base()
        } else {
            key.schedule.clone()
        };
        refill(&mut key, &schedule, now);
        let at = key.at;
        key.schedule.retain(|stretch| stretch.0 > at);
        (key, false)
    }
}

fn refill(key: &mut Exact, schedule: &[Stretch], now: i128) {
    let since = key.at;
    for (until, rate, most) in schedule {
        if *until > since {
            let end = now.min(*until);
            let flows = rate.times(Fraction::whole(end - key.at));
            key.tokens = key.tokens.plus(flows).min(*most);
            key.at = end;
            if *until > now {
                break;
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Call {
    Take(Vec<(usize, u64)>),
    GiveBack(usize, u64),
    /// A schedule: stretches of milliseconds, quarters of the rate and tokens; and how long kept.
    Schedule(usize, Vec<(u64, u64, u64)>, u64),
    Forward(u64),
    Back(u64),
}

const KEYS: usize = 3;

fn call() -> impl Strategy<Value = Call> {
    let stretch = (1_u64..8_000, 0_u64..5, 0_u64..10);
    prop_oneof![
        6 => proptest::collection::vec((0_usize..KEYS, 0_u64..8), 1..4).prop_map(Call::Take),
        1 => (0_usize..KEYS, 0_u64..4).prop_map(|(key, cost)| Call::GiveBack(key, cost)),
        1 => (0_usize..KEYS, proptest::collection::vec(stretch, 1..4), 1_u64..40_000)
            .prop_map(|(key, stretches, keep)| Call::Schedule(key, stretches, keep)),
        3 => (0_u64..3_000_000).prop_map(Call::Forward),
        1 => (0_u64..100_000_000).prop_map(Call::Forward),
        1 => (0_u64..20_000_000).prop_map(Call::Back),
    ]
}

struct World {
    store: MemoryStore,
    clock: Clock,
    micros: u64,
    limits: [(Limit, Rule); KEYS],
    exact: [Option<Exact>; KEYS],
}

impl World {
    fn new() -> Self {
        let rule = |tokens: u64, ms: u64, burst: u64| {
            let per_ms = if ms > 60_000 { 1 } else { 1_000 };
            let exact = Rule {
                tokens: tokens.into(),
                ticks: i128::from(ms) * per_ms,
                burst: burst.into(),
                skew: 5_000 * per_ms,
            };
            (limit(tokens, ms, burst), exact)
        };
        let clock = Clock::at(0);
        Self {
            store: memory_store(&clock, 100),
            clock,
            micros: T0 * 1_000,
            limits: [rule(5, 1_000, 6), rule(3, 60_000, 3), rule(7, 300_000, 5)],
            exact: [const { None }; KEYS],
        }
    }

    fn take_of(&self, index: usize, cost: u64) -> Take {
        let policy = u64::try_from(index).expect("few");
        take(key(1, policy), &self.limits[index].0, cost)
    }

    fn now(&self, index: usize) -> i128 {
        let tick = self.limits[index].0.tick();
        tick.floor(self.clock.now()).0.into()
    }

    fn settled(&self, index: usize) -> (Exact, bool) {
        let (rule, now) = (self.limits[index].1, self.now(index));
        let known = self.exact[index].clone();
        rule.settled(known.unwrap_or_else(|| rule.full(now)), now)
    }

    fn call(&mut self, call: Call) -> Result<(), TestCaseError> {
        match call {
            Call::Take(mut costs) => {
                costs.sort_unstable();
                costs.dedup_by_key(|(key, _)| *key);
                self.take(&costs)?;
            }
            Call::GiveBack(index, cost) => self.give_back(index, cost),
            Call::Schedule(index, stretches, keep) => self.schedule(index, &stretches, keep)?,
            Call::Forward(micros) => self.step(self.micros + micros),
            Call::Back(micros) => {
                // What a clock that glitched forward has made the store forget is gone for good;
                // so every key is asked before it goes back.
                for index in 0..KEYS {
                    self.take(&[(index, 1)])?;
                }
                self.step(self.micros - micros);
            }
        }
        Ok(())
    }

    fn step(&mut self, micros: u64) {
        self.micros = micros;
        self.clock.set_micros(micros);
    }

    fn take(&mut self, costs: &[(usize, u64)]) -> Result<(), TestCaseError> {
        let takes: Vec<Take> = costs
            .iter()
            .map(|(index, cost)| self.take_of(*index, *cost))
            .collect();
        let taken = ask(&self.store, &takes).expect("an answer");
        let price = |cost: u64| Fraction::whole(cost.into());
        let affords = |exact: &Exact, cost| cost == 0 || price(cost).at_most(exact.tokens);
        let denies = |(index, cost): &&(usize, u64)| !affords(&self.settled(*index).0, *cost);
        let denials = costs.iter().filter(denies).count();
        let admitted = denials == 0;
        for ((index, cost), theirs) in costs.iter().zip(taken.keys) {
            let (mut exact, anchored) = self.settled(*index);
            prop_assert_eq!(theirs.affords, affords(&exact, *cost));
            if admitted {
                exact.tokens = exact.tokens.plus(Fraction::whole(-i128::from(*cost)));
            }
            let token = i128::from(self.limits[*index].0.token().0);
            let level = Fraction::new(theirs.bucket.level.0.into(), token);
            prop_assert_eq!(level, exact.tokens, "key {} costs {}", index, cost);
            let counted = !exact.schedule.is_empty() && denials == usize::from(!theirs.affords);
            if *cost > 0 && (admitted || anchored || counted) {
                self.exact[*index] = Some(exact);
            }
        }
        Ok(())
    }

    fn give_back(&mut self, index: usize, cost: u64) {
        let takes = [self.take_of(index, cost)];
        now(self.store.give_back(ShardId(0), &takes)).expect("an answer");
        if self.exact[index].is_none() || cost == 0 {
            return;
        }
        let (mut exact, _) = self.settled(index);
        let rule = self.limits[index].1;
        let schedule = if exact.schedule.is_empty() {
            rule.base()
        } else {
            exact.schedule.clone()
        };
        let most = schedule
            .iter()
            .find(|stretch| stretch.0 > exact.at)
            .expect("one for ever")
            .2;
        exact.tokens = exact.tokens.plus(Fraction::whole(cost.into())).min(most);
        self.exact[index] = Some(exact);
    }

    fn schedule(
        &mut self,
        index: usize,
        stretches: &[(u64, u64, u64)],
        keep: u64,
    ) -> Result<(), TestCaseError> {
        let (limit, rule) = self.limits[index];
        let (base, tick) = (base(&limit), limit.tick());
        let take = self.take_of(index, 0);
        let loaded = now(self.store.load(take.key, &base)).expect("an answer");
        let (mut exact, _) = self.settled(index);
        let from = self.now(index);
        let (mut until, mut pieces, mut schedule) = (from, Vec::new(), Vec::new());
        for (i, (ms, quarters, tokens)) in stretches.iter().enumerate() {
            until += i128::from(ms * 1_000 / tick.micros());
            let last = i + 1 == stretches.len();
            let rate = Fraction::new(rule.tokens * i128::from(*quarters), rule.ticks * 4);
            let ends = if last { FOR_EVER } else { until };
            schedule.push((ends, rate, Fraction::whole((*tokens).into())));
            pieces.push(Piece {
                until: if last {
                    Ticks::NEVER
                } else {
                    Ticks(until.try_into().expect("near"))
                },
                share: Share(base.share.0 / 4 * quarters),
                capacity: Level(limit.token().0 * i64::try_from(*tokens).expect("few")),
            });
        }
        let swap = Swap {
            key: take.key,
            base,
            expected: loaded.version,
            ledger: Ledger {
                version: loaded.version.unwrap_or_default().next(loaded.stamp),
                ..Ledger::default()
            },
            change: Change::default(),
            pieces,
            keep: Duration::from_millis(keep),
        };
        let swapped = now(self.store.swap(&swap)).expect("an answer");
        prop_assert!(matches!(swapped, Swapped::Done { .. }), "{:?}", swapped);
        let ends = schedule
            .iter()
            .map(|stretch| stretch.0)
            .filter(|end| *end < FOR_EVER)
            .max();
        let asked = from + i128::from(tick.ticks(swap.keep).0);
        exact.kept = asked.max(ends.unwrap_or(0));
        schedule.retain(|stretch| stretch.0 > exact.at);
        exact.tokens = exact.tokens.min(schedule[0].2);
        exact.schedule = schedule;
        self.exact[index] = Some(exact);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn case_01_memory_store_is_exact_whatever_the_clock_does(
        calls in proptest::collection::vec(call(), 1..200),
    ) {
        let mut world = World::new();
        for call in calls {
            world.call(call)?;
        }
    }
}
