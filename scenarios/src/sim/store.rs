//! A region's store: the embedded one of production, with a clock that can be wrong and a way to it
//! that can be closed.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use region::bucket::{Base, Memory};
use region::store::memory::MemoryStore;
use region::store::{Loaded, ShardId, Store, StoreError, Swap, Swapped, Take, Taken};
use region::units::{Client, Generation, Key, Stamp, Timestamp, micros};

use super::scenario::RegionSpec;

/// The most keys that a store holds; no scenario has so many.
const KEYS_MAX: usize = 100_000;

/// What the nodes of a region share.
#[derive(Clone, Debug)]
pub(super) struct SimStore(Arc<Shard>);

#[derive(Debug)]
struct Shard {
    memory: MemoryStore,
    /// What the store's clock shows.
    reading: Arc<AtomicU64>,
    up: AtomicBool,
}

/// How a store's clock follows true time.
#[derive(Clone, Debug)]
pub(super) struct StoreClock {
    anchor: Timestamp,
    shown: Timestamp,
    drift_ppm: i64,
    frozen: bool,
    generation: Generation,
}

/// Runs a future that never waits.
pub(super) fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("a memory store never waits"),
    }
}

impl StoreClock {
    pub(super) fn new(spec: &RegionSpec, now: Timestamp) -> Self {
        Self {
            anchor: now,
            shown: now.plus(spec.ahead),
            drift_ppm: spec.drift_ppm,
            frozen: false,
            generation: Generation(1),
        }
    }

    /// What it shows at an instant of true time.
    pub(super) fn reading(&self, now: Timestamp) -> Timestamp {
        if self.frozen {
            return self.shown;
        }
        self.running(now)
    }

    pub(super) fn step(&mut self, now: Timestamp, by_us: i64) {
        let shown = self.running(now);
        self.anchor = now;
        self.shown = Timestamp(shown.0.saturating_add_signed(by_us));
    }

    /// Stops it. It goes on counting inside, for the time when it shows the right time again.
    pub(super) fn freeze(&mut self, now: Timestamp) {
        self.step(now, 0);
        self.frozen = true;
    }

    pub(super) const fn thaw(&mut self) {
        self.frozen = false;
    }

    /// The memory of a store that has just forgotten everything.
    pub(super) fn forgotten(&mut self, now: Timestamp) -> Memory {
        self.generation = Generation(self.generation.0 + 1);
        Memory {
            generation: self.generation,
            began: self.reading(now),
        }
    }

    fn running(&self, now: Timestamp) -> Timestamp {
        let elapsed = micros(now.since(self.anchor));
        let drifted = i128::from(elapsed) * i128::from(self.drift_ppm) / 1_000_000;
        let drifted = i64::try_from(drifted).unwrap_or(0);
        Timestamp((self.shown.0 + elapsed).saturating_add_signed(drifted))
    }
}

impl SimStore {
    pub(super) fn new(clock: &StoreClock, now: Timestamp) -> Self {
        let reading = Arc::new(AtomicU64::new(clock.reading(now).0));
        let shown = Arc::clone(&reading);
        let memory = Memory {
            generation: Generation(1),
            began: Timestamp(0),
        };
        let memory = MemoryStore::new(memory, KEYS_MAX, move || {
            Timestamp(shown.load(Ordering::Relaxed))
        });
        Self(Arc::new(Shard {
            memory,
            reading,
            up: AtomicBool::new(true),
        }))
    }

    /// Lets the store see the time.
    pub(super) fn show(&self, reading: Timestamp) {
        self.0.reading.store(reading.0, Ordering::Relaxed);
    }

    pub(super) fn set_up(&self, up: bool) {
        self.0.up.store(up, Ordering::Relaxed);
    }

    pub(super) fn is_up(&self) -> bool {
        self.0.up.load(Ordering::Relaxed)
    }

    pub(super) fn forget(&self, memory: Memory) {
        self.0.memory.forget(memory);
    }

    /// The store itself, whether or not anybody can reach it.
    pub(super) fn inside(&self) -> &MemoryStore {
        &self.0.memory
    }

    fn reach(&self) -> Result<&MemoryStore, StoreError> {
        if self.is_up() {
            Ok(&self.0.memory)
        } else {
            Err(StoreError::Unreachable)
        }
    }
}

impl Store for SimStore {
    fn shard(&self, client: Client) -> ShardId {
        self.0.memory.shard(client)
    }

    async fn take(&self, shard: ShardId, takes: &[Take]) -> Result<Taken, StoreError> {
        self.reach()?.take(shard, takes).await
    }

    async fn give_back(&self, shard: ShardId, takes: &[Take]) -> Result<Stamp, StoreError> {
        self.reach()?.give_back(shard, takes).await
    }

    async fn load(&self, key: Key, base: &Base) -> Result<Loaded, StoreError> {
        self.reach()?.load(key, base).await
    }

    async fn swap(&self, swap: &Swap) -> Result<Swapped, StoreError> {
        self.reach()?.swap(swap).await
    }
}
