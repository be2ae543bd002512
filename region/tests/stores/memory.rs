//! The embedded store: the cases of the token bucket, its bounded size, and what it forgets.

use crate::support::{Answer, Clock, answer, ask, base, key, limit, memory_store, now, take};
use region::bucket::Memory;
use region::limit::Limit;
use region::store::memory::MemoryStore;
use region::store::{Change, ShardId, Store, StoreError, Swap, Swapped, Take};
use region::units::{Generation, Level, Sequence, Stamp, Ticks, Timestamp, Tokens};

const HOUR: i64 = 3_600_000;
const YEAR: i64 = 31_536_000_000;

struct Asked {
    store: MemoryStore,
    clock: Clock,
    limit: Limit,
}

impl Asked {
    fn new(limit: Limit) -> Self {
        let clock = Clock::at(0);
        Self {
            store: memory_store(&clock, 1_000),
            clock,
            limit,
        }
    }

    fn at(&self, ms: i64, cost: u64) -> Answer {
        self.clock.set(ms);
        let take = take(key(1, 1), &self.limit, cost);
        let taken = ask(&self.store, &[take]).expect("an answer");
        answer(&take, &self.limit, &taken)
    }
}

const fn admitted(remaining: u64) -> Answer {
    Answer {
        admitted: true,
        remaining,
        retry_ms: None,
    }
}

#[test]
fn case_01_clock_that_steps_back_starves_nobody() {
    let asked = Asked::new(limit(10, 10_000, 10));
    for left in (0..10).rev() {
        assert_eq!(asked.at(0, 1), admitted(left));
    }
    let denied = asked.at(-HOUR, 1);
    assert!(
        !denied.admitted && denied.retry_ms <= Some(1_000),
        "{denied:?}"
    );
    assert_eq!(asked.at(-HOUR + 1_000, 1), admitted(0));
}

#[test]
fn case_01_clock_that_glitches_forward_denies_nobody_for_a_year() {
    let asked = Asked::new(limit(10, 10_000, 10));
    assert_eq!(asked.at(0, 10), admitted(0));
    assert_eq!(asked.at(YEAR, 1), admitted(9));
    assert_eq!(asked.at(1_000, 1), admitted(8));
}

#[test]
fn case_04_long_idle_means_full_and_never_negative() {
    let asked = Asked::new(limit(1_000_000, 1_000, 10_000_000));
    assert_eq!(asked.at(0, 10_000_000), admitted(0));
    assert_eq!(asked.at(43_200_000, 1), admitted(9_999_999));
    assert_eq!(asked.at(43_200_000 + YEAR, 10_000_000), admitted(0));
}

#[test]
fn case_10_never_more_than_the_burst_and_the_rate() {
    let five = Asked::new(limit(5, 1_000, 5));
    for start in [0, 2_000] {
        let pattern: Vec<bool> = (0..6).map(|_| five.at(start, 1).admitted).collect();
        assert_eq!(pattern, [true, true, true, true, true, false]);
    }
    let three = Asked::new(limit(3, 1_000, 3));
    let pattern: String = (0..=30)
        .map(|i| {
            if three.at(i * 100, 1).admitted {
                'A'
            } else {
                'd'
            }
        })
        .collect();
    assert_eq!(pattern, "AAAdAddAddAdddAddAddAdddAddAddA");
}

#[test]
fn case_13_denied_requests_consume_nothing() {
    let asked = Asked::new(limit(10, 3_600_000, 10));
    let admitted = (0..50).filter(|ms| asked.at(*ms, 1).admitted).count();
    assert_eq!(admitted, 10);
    let raised = Asked {
        limit: limit(20, 3_600_000, 20),
        ..asked
    };
    let left: Vec<_> = (100..=110).map(|ms| raised.at(ms, 1)).collect();
    assert_eq!((left[0].admitted, left[0].remaining), (true, 9));
    assert_eq!((left[9].admitted, left[9].remaining), (true, 0));
    assert!(!left[10].admitted);
}

#[test]
fn look_takes_nothing_and_creates_nothing() {
    let asked = Asked::new(limit(10, 10_000, 10));
    assert_eq!(asked.at(0, 0), admitted(10));
    assert!(asked.store.is_empty());
}

#[test]
fn denial_by_one_key_leaves_the_others_untouched() {
    let clock = Clock::at(0);
    let store = memory_store(&clock, 1_000);
    let (wide, narrow) = (limit(10, 10_000, 10), limit(1, 10_000, 1));
    let both = [take(key(1, 1), &wide, 1), take(key(2, 2), &narrow, 1)];
    let affords = || -> Vec<bool> {
        let taken = ask(&store, &both).expect("an answer");
        taken.keys.iter().map(|key| key.affords).collect()
    };
    assert_eq!(affords(), [true, true]);
    assert_eq!(affords(), [true, false]);
    let look = take(key(1, 1), &wide, 0);
    let left = ask(&store, &[look]).expect("an answer");
    assert_eq!(answer(&look, &wide, &left).remaining, 9);
}

#[test]
fn store_forgets_full_keys_for_new_ones_but_never_a_live_limit() {
    let clock = Clock::at(0);
    let store = memory_store(&clock, 4);
    let slow = limit(1, 10_000, 1);
    let asked = |client| {
        let taken = ask(&store, &[take(key(client, 1), &slow, 1)]);
        taken.map(|taken| taken.keys[0].affords)
    };
    for client in 0..4 {
        assert_eq!(asked(client), Ok(true));
    }
    assert_eq!(asked(4), Err(StoreError::Full));
    assert_eq!(asked(0), Ok(false), "known keys are still answered");
    clock.set(10_000);
    assert_eq!(asked(1), Ok(true));
    assert_eq!(asked(4), Ok(true), "a key that is full again makes room");
    assert_eq!(asked(1), Ok(false), "a live limit is never forgotten");
    assert_eq!(store.len(), 4);
}

#[test]
fn store_forgets_expired_keys_as_it_is_used() {
    let clock = Clock::at(0);
    let store = memory_store(&clock, 1_000_000);
    let slow = limit(1, 10_000, 1);
    let ask_for = |client: u128| ask(&store, &[take(key(client, 1), &slow, 1)]).expect("an answer");
    for client in 0..10_000 {
        ask_for(client);
    }
    clock.set(60_000);
    for client in 10_000..30_000 {
        ask_for(client);
    }
    assert_eq!(store.len(), 20_000);
}

#[test]
fn new_generation_starts_empty_and_fills_at_the_rate() {
    let clock = Clock::at(0);
    let store = memory_store(&clock, 100);
    let ten = limit(10, 10_000, 10);
    store.forget(Memory {
        generation: Generation(2),
        began: clock.now(),
    });
    let one = take(key(1, 1), &ten, 1);
    let taken = ask(&store, &[one]).expect("an answer");
    assert_eq!(answer(&one, &ten, &taken).retry_ms, Some(1_000));
    assert_eq!(taken.stamp.generation, Generation(2));
    clock.set(1_000);
    assert!(ask(&store, &[one]).expect("an answer").keys[0].affords);
}

#[test]
fn swap_is_refused_when_somebody_was_first_or_it_comes_too_late() {
    let clock = Clock::at(0);
    let store = memory_store(&clock, 100);
    let ten = limit(10, 10_000, 10);
    let loaded = now(store.load(key(1, 1), &base(&ten))).expect("an answer");
    assert_eq!(
        (loaded.version, loaded.bucket.level),
        (None, ten.level(ten.burst()))
    );
    let swap = swap_of(&ten, None, loaded.stamp);
    assert!(matches!(now(store.swap(&swap)), Ok(Swapped::Done { .. })));
    let Ok(Swapped::Conflict { current }) = now(store.swap(&swap)) else {
        panic!("a second swap of one version")
    };
    assert_eq!(current.version, Some(swap.ledger.version));
    assert_eq!(current.bucket.level, Level(6 * ten.token().0));
    let mut late = swap_of(&ten, current.version, current.stamp);
    late.change.before = Some(ten.tick().floor(clock.now()));
    assert!(matches!(
        now(store.swap(&late)),
        Ok(Swapped::Conflict { .. })
    ));
    let mut greedy = swap_of(&ten, current.version, current.stamp);
    greedy.change.debit = Level(7 * ten.token().0);
    assert!(matches!(
        now(store.swap(&greedy)),
        Ok(Swapped::Conflict { .. })
    ));
}

#[test]
fn key_with_a_ledger_counts_and_falls_back_to_its_base_in_time() {
    let clock = Clock::at(0);
    let store = memory_store(&clock, 100);
    let ten = limit(10, 10_000, 10);
    let loaded = now(store.load(key(1, 1), &base(&ten))).expect("an answer");
    let swap = swap_of(&ten, None, loaded.stamp);
    now(store.swap(&swap)).expect("an answer");
    let one = take(key(1, 1), &ten, 1);
    for expected in [true, true, true, true, true, true, false] {
        assert_eq!(
            ask(&store, &[one]).expect("an answer").keys[0].affords,
            expected
        );
    }
    now(store.give_back(ShardId(0), &[one])).expect("an answer");
    let loaded = now(store.load(key(1, 1), &base(&ten))).expect("an answer");
    let count = loaded.bucket.count.expect("counted");
    assert_eq!((count.offered, count.admitted), (6, 5));
    assert_eq!(loaded.ledger, Some(swap.ledger));
    clock.set(64_000);
    let loaded = now(store.load(key(1, 1), &base(&ten))).expect("an answer");
    assert_eq!((loaded.version, loaded.bucket.count), (None, None));
    assert_eq!(loaded.bucket.level, ten.level(ten.burst()));
}

#[test]
fn snapshot_brings_back_what_was_unless_it_is_taken_up_in_a_new_generation() {
    let clock = Clock::at(0);
    let (store, other) = (memory_store(&clock, 100), memory_store(&clock, 100));
    let ten = limit(10, 3_600_000, 10);
    let one = take(key(1, 1), &ten, 1);
    let left = |store: &MemoryStore| {
        let look = Take {
            cost: Tokens(0),
            ..one
        };
        answer(&look, &ten, &ask(store, &[look]).expect("an answer")).remaining
    };
    ask(&store, &[one]).expect("an answer");
    let saved = store.snapshot();
    ask(&store, &[one]).expect("an answer");
    assert_eq!((left(&store), left(&other)), (8, 10));
    other.restore(saved.clone());
    assert_eq!((left(&store), left(&other)), (8, 9));
    let promoted = Memory {
        generation: Generation(saved.memory().generation.0 + 1),
        began: clock.now(),
    };
    other.restore(saved.under(promoted));
    assert_eq!(left(&other), 0, "the keys are there and say nothing");
    let loaded = now(other.load(key(1, 1), &base(&ten))).expect("an answer");
    assert_eq!(loaded.stamp.generation, promoted.generation);
}

/// A swap to a capacity of six tokens, at the base's rate, kept for a minute.
fn swap_of(limit: &Limit, expected: Option<Sequence>, at: Stamp) -> Swap {
    let base = base(limit);
    let mut swap = Swap {
        key: key(1, 1),
        base,
        expected,
        ledger: region::ledger::Ledger::default(),
        change: Change::default(),
        pieces: vec![region::bucket::Piece {
            until: Ticks::NEVER,
            share: base.share,
            capacity: Level(6 * limit.token().0),
        }],
        keep: std::time::Duration::from_secs(60),
    };
    swap.ledger.version = expected.unwrap_or_default().next(at);
    assert!(at.clock > Timestamp(0));
    swap
}
