//! The same answers, bit for bit: the Redis store, the memory store and exact fractions.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use region::bucket::{Base, Lost, Piece};
use region::ledger::Ledger;
use region::limit::Limit;
use region::store::memory::MemoryStore;
use region::store::redis::RedisStore;
use region::store::{Change, Loaded, ShardId, Store, Swap, Swapped, Take, Taken};
use region::units::{Key, Level, Share, Stamp, Ticks, Timestamp, Tokens};

use crate::server::Server;
use crate::support::{Clock, NEW, base, key, limit, now, take};

/// One call of a random sequence; indices are taken modulo what there is.
#[derive(Clone, Debug)]
enum Call {
    Take(Vec<(usize, u64)>),
    GiveBack(usize, u64),
    Load(usize),
    Swap(usize, Swapping),
    /// The limit of a key is changed by configuration.
    Change(usize, usize),
}

/// What a random swap does, in tokens and in ticks from now.
#[derive(Clone, Debug)]
struct Swapping {
    credit: u64,
    debit: u64,
    before: Option<i64>,
    pieces: Vec<(u64, u64, u64)>,
    last: (u64, u64),
    keep_ms: u64,
    stale: bool,
}

fn swapping() -> impl Strategy<Value = Swapping> {
    let piece = (1_u64..20_000, 0_u64..4, 0_u64..8);
    let amounts = (0_u64..4, 0_u64..4, proptest::option::of(-500_i64..1_000));
    let schedule = (
        proptest::collection::vec(piece, 0..4),
        (0_u64..4, 1_u64..8),
        1_u64..200,
    );
    (amounts, schedule, proptest::bool::weighted(0.1)).prop_map(|(amounts, schedule, stale)| {
        Swapping {
            credit: amounts.0,
            debit: amounts.1,
            before: amounts.2,
            pieces: schedule.0,
            last: schedule.1,
            keep_ms: schedule.2,
            stale,
        }
    })
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        8 => proptest::collection::vec((0_usize..KEYS, 0_u64..7), 1..4).prop_map(Call::Take),
        1 => (0_usize..KEYS, 0_u64..4).prop_map(|(key, cost)| Call::GiveBack(key, cost)),
        1 => (0_usize..KEYS).prop_map(Call::Load),
        2 => ((0_usize..KEYS), swapping()).prop_map(|(key, swap)| Call::Swap(key, swap)),
        1 => (0_usize..KEYS, 0_usize..8).prop_map(|(key, limit)| Call::Change(key, limit)),
    ]
}

const KEYS: usize = 4;

/// The rate of the limit of which the region has no share.
const NOTHING_OF_ITS_OWN: Tokens = Tokens(300);

/// Limits that fill within milliseconds, and one that does not; with debts and waits.
fn bases() -> Vec<(Limit, Base)> {
    let limits = [
        limit(1_000, 1_000, 5),
        limit(3, 10, 3),
        limit(7, 13, 6),
        limit(100, 61_000, 4),
        limit(10_000, 86_400_000, 6),
        limit(300, 1_000, 2),
        limit(1_000, 1_000, 4),
        limit(4_000, 90_000, 3),
    ];
    let debts = [0, 1, 0, 2, 0, 0, 1, 0];
    limits
        .into_iter()
        .zip(debts)
        .map(|(limit, debt)| {
            let mut base = base(&limit);
            base.debt = Level(debt * limit.token().0);
            base.floor = Level(base.capacity.0 / 20);
            base.wait = Duration::from_millis(3);
            base.lost = if debt == 2 { Lost::Full } else { Lost::Empty };
            if limit.rate() == NOTHING_OF_ITS_OWN {
                base.share = Share(0);
            }
            (limit, base)
        })
        .collect()
}

struct Pair {
    redis: RedisStore,
    memory: MemoryStore,
    clock: Clock,
    keys: Vec<(Key, usize)>,
    bases: Vec<(Limit, Base)>,
    /// When the ledger of each key is over.
    ends: [Timestamp; KEYS],
}

impl Pair {
    fn take_of(&self, index: usize, cost: u64) -> Take {
        let (key, limit) = self.keys[index];
        let (limit, base) = &self.bases[limit];
        Take {
            base: *base,
            again: cost % 3 == 2,
            ..take(key, limit, cost)
        }
    }

    fn at(&self, stamp: Stamp) {
        self.clock.set_micros(stamp.clock.0);
    }

    async fn call(&mut self, call: Call) -> Result<(), TestCaseError> {
        let shard = ShardId(0);
        match call {
            Call::Take(mut costs) => {
                costs.sort_unstable();
                costs.dedup_by_key(|(key, _)| *key);
                let takes: Vec<Take> = costs
                    .into_iter()
                    .map(|(key, cost)| self.take_of(key, cost))
                    .collect();
                let theirs: Taken = self.redis.take(shard, &takes).await.expect("an answer");
                self.at(theirs.stamp);
                prop_assert_eq!(Ok(theirs), now(self.memory.take(shard, &takes)));
            }
            Call::GiveBack(key, cost) => {
                let takes = [self.take_of(key, cost)];
                let theirs = self
                    .redis
                    .give_back(shard, &takes)
                    .await
                    .expect("an answer");
                self.at(theirs);
                prop_assert_eq!(Ok(theirs), now(self.memory.give_back(shard, &takes)));
            }
            Call::Load(key) => {
                self.load(key).await?;
            }
            Call::Swap(key, swapping) => self.swap(key, &swapping).await?,
            Call::Change(key, limit) => self.keys[key].1 = limit,
        }
        Ok(())
    }

    async fn load(&self, index: usize) -> Result<Loaded, TestCaseError> {
        let take = self.take_of(index, 0);
        let theirs = self
            .redis
            .load(take.key, &take.base)
            .await
            .expect("an answer");
        self.at(theirs.stamp);
        let ours = now(self.memory.load(take.key, &take.base)).expect("an answer");
        prop_assert_eq!(&theirs.bucket, &ours.bucket);
        Ok(theirs)
    }

    /// Redis ends a ledger with the millisecond.
    fn ledger_ends(&self, index: usize, now: Stamp) -> bool {
        let end = self.ends[index];
        now.clock.since(end).max(end.since(now.clock)) < Duration::from_millis(3)
    }

    async fn swap(&mut self, index: usize, swapping: &Swapping) -> Result<(), TestCaseError> {
        let take = self.take_of(index, 0);
        let loaded = self.load(index).await?;
        let swap = swap_of(&take, &loaded, swapping);
        let theirs = self.redis.swap(&swap).await.expect("an answer");
        let ours = |stamp| {
            self.at(stamp);
            now(self.memory.swap(&swap)).expect("an answer")
        };
        match theirs {
            Swapped::Done { stamp } => {
                let mine = ours(stamp);
                if self.ledger_ends(index, stamp) {
                    return Err(TestCaseError::reject("a ledger ends just now"));
                }
                prop_assert_eq!(mine, theirs);
                let kept = swap.keep.max(scheduled(&swap, stamp));
                self.ends[index] = stamp.clock.plus(kept);
            }
            Swapped::Conflict { current } => {
                let mine = ours(current.stamp);
                if self.ledger_ends(index, current.stamp) {
                    return Err(TestCaseError::reject("a ledger ends just now"));
                }
                let Swapped::Conflict { current: mine } = mine else {
                    return Err(TestCaseError::fail(format!("redis alone refused {swap:?}")));
                };
                prop_assert_eq!(&current.bucket, &mine.bucket);
                prop_assert_eq!(&current.version, &mine.version);
            }
        }
        Ok(())
    }
}

/// How long the schedule of a swap lasts.
fn scheduled(swap: &Swap, now: Stamp) -> Duration {
    let tick = swap.base.tick;
    let from = tick.floor(now.clock);
    let ends = swap.pieces.iter().map(|piece| piece.until);
    let last = ends.filter(|until| *until != Ticks::NEVER).max();
    tick.span(last.unwrap_or(from).since(from))
}

fn swap_of(take: &Take, loaded: &Loaded, swapping: &Swapping) -> Swap {
    let token = take.base.token.0;
    let tokens = |count: u64| Level(token * i64::try_from(count).expect("few"));
    let now = take.base.tick.floor(loaded.stamp.clock);
    let piece = |until, share: u64, capacity| Piece {
        until,
        share: Share(take.base.share.0 / 3 * share),
        capacity: tokens(capacity),
    };
    let mut until = now;
    let mut pieces = Vec::new();
    for (length, share, capacity) in &swapping.pieces {
        until = Ticks(until.0 + length);
        pieces.push(piece(until, *share, *capacity));
    }
    pieces.push(piece(Ticks::NEVER, swapping.last.0, swapping.last.1));
    let version = loaded.version.unwrap_or_default();
    let next = version.next(loaded.stamp);
    Swap {
        key: take.key,
        base: take.base,
        expected: if swapping.stale {
            Some(next)
        } else {
            loaded.version
        },
        ledger: Ledger {
            version: next,
            ..Ledger::default()
        },
        change: Change {
            credit: tokens(swapping.credit),
            debit: tokens(swapping.debit),
            before: swapping
                .before
                .map(|after| Ticks(now.0.saturating_add_signed(after))),
        },
        pieces,
        keep: Duration::from_millis(swapping.keep_ms),
    }
}

#[test]
fn redis_and_memory_give_the_same_answers_bit_for_bit() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let calls = proptest::collection::vec(call(), 1..60);
    let mut runner = TestRunner::new(Config {
        cases: 150,
        failure_persistence: None,
        ..Config::default()
    });
    let redis = runtime.block_on(server.store());
    let generation = redis.stats()[0].memory.expect("a memory").generation;
    let redis = std::cell::Cell::new(Some(redis));
    let cases = std::cell::Cell::new(0);
    let ran = runner.run(&calls, |calls| {
        cases.set(cases.get() + 1);
        let clock = Clock::at(0);
        let inner = clock.clone();
        let memory = region::bucket::Memory { generation, ..NEW };
        let mut pair = Pair {
            redis: redis.take().expect("one case at a time"),
            memory: MemoryStore::new(memory, 1_000, move || inner.now()),
            clock,
            keys: (0..KEYS)
                .map(|i| (key(cases.get(), i.try_into().expect("few")), i))
                .collect(),
            bases: bases(),
            ends: [Timestamp(0); KEYS],
        };
        let mut outcome = Ok(());
        for call in calls {
            outcome = runtime.block_on(pair.call(call));
            if outcome.is_err() {
                break;
            }
        }
        redis.set(Some(pair.redis));
        outcome
    });
    ran.expect("the same answers");
}
