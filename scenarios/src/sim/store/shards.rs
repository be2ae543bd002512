//! What happens to a region's shards: clocks, losses of memory, replicas that are promoted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use region::bucket::Memory;
use region::store::memory::{MemoryStore, Snapshot};
use region::units::{Client, Generation, Timestamp};

use super::clock::Clock;
use super::{Shard, SimStore, index};
use crate::sim::scenario::RegionSpec;

/// All shards of a region.
#[derive(Debug)]
pub(in crate::sim) struct Shards {
    reached: Arc<Vec<Shard>>,
    kept: Vec<Kept>,
}

/// What nodes do not see of a shard.
#[derive(Debug)]
struct Kept {
    clocks: [Clock; 2],
    generation: Generation,
    silent_until: Timestamp,
    astray_until: Timestamp,
    /// What the faults to come will bring back, by the number of the fault.
    saved: BTreeMap<usize, Snapshot>,
}

impl Shards {
    pub(in crate::sim) fn new(spec: &RegionSpec, now: Timestamp) -> Self {
        let shown = now.plus(spec.ahead);
        let ahead = spec.replica.map(|replica| replica.ahead);
        let other = shown.plus(ahead.unwrap_or_default());
        let kept = || Kept {
            clocks: [shown, other].map(|shown| Clock::new(now, shown, spec.drift_ppm)),
            generation: Generation(1),
            silent_until: Timestamp(0),
            astray_until: Timestamp(0),
            saved: BTreeMap::new(),
        };
        let count = spec.shards.max(1);
        let shards = Self {
            reached: Arc::new((0..count).map(|_| Shard::new()).collect()),
            kept: (0..count).map(|_| kept()).collect(),
        };
        shards.show(now);
        shards
    }

    /// The store as a node reaches it.
    pub(in crate::sim) fn store(&self, node: usize) -> SimStore {
        SimStore {
            shards: Arc::clone(&self.reached),
            node,
        }
    }

    /// The shard of a client.
    pub(in crate::sim) fn of(&self, client: Client) -> usize {
        index(client, self.kept.len())
    }

    /// Lets every server see the time.
    pub(in crate::sim) fn show(&self, now: Timestamp) {
        for (kept, reached) in self.kept.iter().zip(self.reached.iter()) {
            for (clock, server) in kept.clocks.iter().zip(&reached.servers) {
                let reading = clock.reading(now).0;
                server.reading.store(reading, Ordering::Relaxed);
            }
        }
    }

    /// The primary of a client's shard, and what its clock shows.
    pub(in crate::sim) fn primary(
        &self,
        client: Client,
        now: Timestamp,
    ) -> (&MemoryStore, Timestamp) {
        let shard = self.of(client);
        let primary = self.number(shard);
        let server = &self.reached[shard].servers[primary];
        (
            &server.memory,
            self.kept[shard].clocks[primary].reading(now),
        )
    }

    pub(in crate::sim) fn forget(&mut self, shard: usize, now: Timestamp) {
        let primary = self.number(shard);
        let memory = self.kept[shard].begin(primary, now);
        self.memory(shard).forget(memory);
    }

    /// Does not answer until then, at least.
    pub(in crate::sim) fn silence(&mut self, shard: usize, until: Timestamp) {
        let kept = &mut self.kept[shard];
        kept.silent_until = kept.silent_until.max(until);
        self.reached[shard].silent.store(true, Ordering::Relaxed);
    }

    /// Keeps what a fault to come will bring back: a simulator knows the future.
    pub(in crate::sim) fn save(&mut self, shard: usize, fault: usize) {
        let snapshot = self.memory(shard).snapshot();
        self.kept[shard].saved.insert(fault, snapshot);
    }

    pub(in crate::sim) fn die(&self, shard: usize) {
        let reached = &self.reached[shard];
        reached.dead.store(true, Ordering::Relaxed);
        reached.astray.store(0, Ordering::Relaxed);
    }

    /// The replica takes over, in a new generation and with what it had when `fault` was saved.
    pub(in crate::sim) fn promote(&mut self, shard: usize, fault: usize, now: Timestamp) {
        let promoted = 1 - self.number(shard);
        let kept = &mut self.kept[shard];
        let memory = kept.begin(promoted, now);
        let reached = &self.reached[shard];
        let store = &reached.servers[promoted].memory;
        match kept.saved.remove(&fault) {
            Some(saved) => store.restore(saved.under(memory)),
            None => store.forget(memory),
        }
        reached.primary.store(promoted, Ordering::Relaxed);
        reached.astray.store(0, Ordering::Relaxed);
        reached.dead.store(false, Ordering::Relaxed);
    }

    /// These nodes, a bit for each, go on with the server that is no longer the primary.
    pub(in crate::sim) fn stray(&mut self, shard: usize, nodes: u64, until: Timestamp) {
        self.kept[shard].astray_until = until;
        self.reached[shard].astray.store(nodes, Ordering::Relaxed);
    }

    /// Comes back as it was when `fault` was saved. Nothing shows, unless its memory has begun anew
    /// since: a node has seen that.
    pub(in crate::sim) fn restore(&mut self, shard: usize, fault: usize, now: Timestamp) {
        let primary = self.number(shard);
        let kept = &mut self.kept[shard];
        let Some(saved) = kept.saved.remove(&fault) else {
            return;
        };
        let saved = if saved.memory().generation == kept.generation {
            saved
        } else {
            saved.under(kept.begin(primary, now))
        };
        self.memory(shard).restore(saved);
    }

    /// Ends what was to last until now.
    pub(in crate::sim) fn recover(&self, shard: usize, now: Timestamp) {
        let (kept, reached) = (&self.kept[shard], &self.reached[shard]);
        if kept.silent_until <= now {
            reached.silent.store(false, Ordering::Relaxed);
        }
        if kept.astray_until <= now {
            reached.astray.store(0, Ordering::Relaxed);
        }
    }

    /// Steps the clock of the primary.
    pub(in crate::sim) fn step(&mut self, shard: usize, now: Timestamp, by_us: i64) {
        let primary = self.number(shard);
        self.kept[shard].clocks[primary].step(now, by_us);
    }

    /// Stops the clock of the primary; says which server that is.
    pub(in crate::sim) fn freeze(&mut self, shard: usize, now: Timestamp) -> usize {
        let primary = self.number(shard);
        self.kept[shard].clocks[primary].freeze(now);
        primary
    }

    pub(in crate::sim) fn thaw(&mut self, shard: usize, server: usize) {
        self.kept[shard].clocks[server].thaw();
    }

    /// Which server is the primary.
    fn number(&self, shard: usize) -> usize {
        self.reached[shard].primary.load(Ordering::Relaxed)
    }

    fn memory(&self, shard: usize) -> &MemoryStore {
        &self.reached[shard].servers[self.number(shard)].memory
    }
}

impl Kept {
    /// A new memory, on one of the servers.
    fn begin(&mut self, server: usize, now: Timestamp) -> Memory {
        self.generation = Generation(self.generation.0 + 1);
        Memory {
            generation: self.generation,
            began: self.clocks[server].reading(now),
        }
    }
}
