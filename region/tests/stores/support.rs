//! What the tests of the stores share: a clock that is set by hand, limits, and a way to ask.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use region::bucket::{Base, Lost, Memory};
use region::limit::Limit;
use region::store::memory::MemoryStore;
use region::store::{ShardId, Store, StoreError, Take, Taken};
use region::units::{Client, Generation, Key, Level, PolicyId, Timestamp, Tokens};

/// The instant from which the cases count, in milliseconds.
pub(crate) const T0: u64 = 1_700_006_400_000;

/// A clock that stands still until it is set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock(Arc<AtomicU64>);

impl Clock {
    pub(crate) fn at(ms: i64) -> Self {
        let clock = Self::default();
        clock.set(ms);
        clock
    }

    /// Sets the clock to so many milliseconds after [`T0`].
    pub(crate) fn set(&self, ms: i64) {
        self.set_micros(T0.saturating_add_signed(ms) * 1_000);
    }

    pub(crate) fn set_micros(&self, micros: u64) {
        self.0.store(micros, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }
}

/// The memory of a store that its operator declares to be new.
pub(crate) const NEW: Memory = Memory {
    generation: Generation(1),
    began: Timestamp(0),
};

pub(crate) fn memory_store(clock: &Clock, keys_max: usize) -> MemoryStore {
    let clock = clock.clone();
    MemoryStore::new(NEW, keys_max, move || clock.now())
}

/// The whole of a limit as the base of one region.
pub(crate) fn base(limit: &Limit) -> Base {
    Base {
        tick: limit.tick(),
        token: limit.token(),
        share: limit.total(),
        capacity: limit.level(limit.burst()),
        floor: Level::ZERO,
        wait: Duration::ZERO,
        debt: Level::ZERO,
        lost: Lost::Empty,
    }
}

pub(crate) fn limit(rate: u64, per_ms: u64, burst: u64) -> Limit {
    Limit::try_new(Tokens(rate), Duration::from_millis(per_ms), Tokens(burst)).expect("exact")
}

pub(crate) fn key(client: u128, policy: u64) -> Key {
    Key {
        client: Client(client),
        policy: PolicyId(policy),
    }
}

pub(crate) fn take(key: Key, limit: &Limit, cost: u64) -> Take {
    Take {
        key,
        cost: Tokens(cost),
        base: base(limit),
        again: false,
    }
}

/// The answer of a future that never waits.
pub(crate) fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future waits"),
    }
}

/// Asks for all keys of one shard at once.
pub(crate) fn ask<S: Store>(store: &S, takes: &[Take]) -> Result<Taken, StoreError> {
    now(store.take(ShardId(0), takes))
}

/// What one answer means to a client: admitted, whole tokens left, milliseconds to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) admitted: bool,
    pub(crate) remaining: u64,
    pub(crate) retry_ms: Option<u64>,
}

/// Reads the answer to a take of a single key.
pub(crate) fn answer(take: &Take, limit: &Limit, taken: &Taken) -> Answer {
    let key = &taken.keys[0];
    let price = limit.level(take.cost);
    let pieces = take.base.pieces(taken.memory);
    let wait = (!key.affords)
        .then(|| key.bucket.time_to(price, &pieces))
        .flatten();
    Answer {
        admitted: key.affords,
        remaining: limit.tokens(key.bucket.level).0,
        retry_ms: wait.map(|ticks| (ticks.0 * limit.tick().micros()).div_ceil(1_000)),
    }
}
