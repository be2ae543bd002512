//! The embedded store: one node's memory, of bounded size, with the answers of the Redis store.

mod shelf;

use std::collections::BTreeMap;
use std::fmt;
use std::future::ready;
use std::hash::Hasher;
use std::sync::{Mutex, MutexGuard, PoisonError};

use siphasher::sip::SipHasher13;

use self::shelf::{Entry, Shelf};
use super::record::Record;
use super::rules;
use super::{Loaded, ShardId, Store, StoreError, Swap, Swapped, Take, Taken, TakenKey};
use crate::bucket::{Base, Memory};
use crate::units::{Client, Key, Stamp, Timestamp};

/// At most so many shelves, each with its own lock.
const SHELVES_MAX: usize = 16;
/// A shelf is worth its lock from so many keys on.
const SHELF_KEYS_MIN: usize = 64;

type Clock = Box<dyn Fn() -> Timestamp + Send + Sync>;

/// A store in the memory of one node.
pub struct MemoryStore {
    clock: Clock,
    /// Each lock protects the keys of the clients that hash to it; several are taken in order.
    shelves: Vec<Mutex<Shelf>>,
}

/// All that a store held at one instant: what a replica has of its primary, or a file on disk.
#[derive(Clone, Debug)]
pub struct Snapshot(Vec<Shelf>);

impl Snapshot {
    /// The memory to which it belongs.
    #[must_use]
    pub fn memory(&self) -> Memory {
        self.0.first().map_or_else(Memory::default, Shelf::memory)
    }

    /// The same keys in another memory, in which they say nothing any more.
    #[must_use]
    pub fn under(mut self, memory: Memory) -> Self {
        for shelf in &mut self.0 {
            shelf.begin(memory);
        }
        self
    }
}

impl MemoryStore {
    /// An empty store with its own clock, for at most about `keys_max` keys.
    ///
    /// A store that its operator declares to be new has a memory that began at the epoch: its keys
    /// start full.
    pub fn new(
        memory: Memory,
        keys_max: usize,
        clock: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> Self {
        let count = (keys_max / SHELF_KEYS_MIN).clamp(1, SHELVES_MAX);
        let shelf_keys_max = keys_max.div_ceil(count).max(1);
        Self {
            clock: Box::new(clock),
            shelves: (0..count)
                .map(|_| Mutex::new(Shelf::new(memory, shelf_keys_max)))
                .collect(),
        }
    }

    /// Forgets everything, as a shard does that has lost its memory.
    pub fn forget(&self, memory: Memory) {
        let mut shelves: Vec<_> = self.shelves.iter().map(lock).collect();
        for shelf in &mut shelves {
            shelf.forget(memory);
        }
    }

    /// All that the store holds now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let shelves: Vec<_> = self.shelves.iter().map(lock).collect();
        Snapshot(shelves.iter().map(|shelf| Shelf::clone(shelf)).collect())
    }

    /// Takes up what a store of the same size held, and drops everything else.
    pub fn restore(&self, snapshot: Snapshot) {
        let mut shelves: Vec<_> = self.shelves.iter().map(lock).collect();
        for (shelf, kept) in shelves.iter_mut().zip(snapshot.0) {
            **shelf = kept;
        }
    }

    /// How many keys are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shelves.iter().map(|shelf| lock(shelf).len()).sum()
    }

    /// Whether no key is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn index(&self, client: Client) -> usize {
        let mut hasher = SipHasher13::new();
        hasher.write_u128(client.0);
        let count = u64::try_from(self.shelves.len()).unwrap_or(u64::MAX);
        usize::try_from(hasher.finish() % count).unwrap_or(0)
    }

    /// Locks the shelves of these keys, reads the clock and lets the shelves age.
    fn open(&self, keys: impl Iterator<Item = Key>) -> Open<'_> {
        let mut indices: Vec<usize> = keys.map(|key| self.index(key.client)).collect();
        indices.sort_unstable();
        indices.dedup();
        let mut shelves: BTreeMap<_, _> = indices
            .into_iter()
            .filter_map(|index| Some((index, lock(self.shelves.get(index)?))))
            .collect();
        let now = (self.clock)();
        for shelf in shelves.values_mut() {
            shelf.age(now);
        }
        let memory = shelves.first_key_value().map_or_else(
            || lock(&self.shelves[0]).memory(),
            |(_, shelf)| shelf.memory(),
        );
        Open {
            store: self,
            shelves,
            stamp: Stamp {
                generation: memory.generation,
                clock: now,
            },
            memory,
        }
    }

    fn take_now(&self, takes: &[Take]) -> Result<Taken, StoreError> {
        let mut open = self.open(takes.iter().map(|take| take.key));
        let (memory, stamp) = (open.memory, open.stamp);
        let mut records: Vec<Record> = takes
            .iter()
            .map(|take| open.current(take.key, &take.base))
            .collect();
        let mut outcomes = rules::take(&mut records, takes);
        for ((take, outcome), record) in takes.iter().zip(&mut outcomes).zip(&records) {
            let anew = record.is_anchored_anew(open.record(take.key));
            outcome.changed |= take.cost.0 > 0 && anew;
        }
        let changed = || {
            takes
                .iter()
                .zip(&outcomes)
                .filter(|(_, outcome)| outcome.changed)
        };
        open.reserve(changed().map(|(take, _)| take.key))?;
        for ((take, outcome), record) in takes.iter().zip(&outcomes).zip(&records) {
            if outcome.changed {
                open.put(
                    take.key,
                    Entry::new(record.clone(), &take.base, stamp.clock, memory),
                );
            }
        }
        let keys = records.into_iter().zip(outcomes);
        Ok(Taken {
            stamp,
            memory,
            keys: keys
                .map(|(record, outcome)| TakenKey {
                    affords: outcome.affords,
                    bucket: record.bucket,
                })
                .collect(),
        })
    }

    fn give_back_now(&self, takes: &[Take]) -> Stamp {
        let mut open = self.open(takes.iter().map(|take| take.key));
        for take in takes.iter().filter(|take| take.cost.0 > 0) {
            if open.record(take.key).is_some() {
                let mut record = open.current(take.key, &take.base);
                rules::give_back(&mut record, take, open.memory);
                let entry = Entry::new(record, &take.base, open.stamp.clock, open.memory);
                open.put(take.key, entry);
            }
        }
        open.stamp
    }

    fn swap_now(&self, swap: &Swap) -> Result<Swapped, StoreError> {
        let mut open = self.open(std::iter::once(swap.key));
        let (memory, stamp) = (open.memory, open.stamp);
        let current = open.load(swap.key, &swap.base);
        let record = open.current(swap.key, &swap.base);
        let swapped = rules::swap(&record, swap, memory, stamp.clock);
        let Some(record) = swapped.filter(|_| current.version == swap.expected) else {
            return Ok(Swapped::Conflict {
                current: Box::new(current),
            });
        };
        open.reserve(std::iter::once(swap.key))?;
        let entry = Entry::new(record, &swap.base, stamp.clock, memory);
        open.put(swap.key, entry.with_ledger(swap.ledger.clone()));
        Ok(Swapped::Done { stamp })
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("shelves", &self.shelves.len())
            .finish_non_exhaustive()
    }
}

impl Store for MemoryStore {
    fn shard(&self, _client: Client) -> ShardId {
        ShardId(0)
    }

    fn take(
        &self,
        _shard: ShardId,
        takes: &[Take],
    ) -> impl Future<Output = Result<Taken, StoreError>> + Send {
        ready(self.take_now(takes))
    }

    fn give_back(
        &self,
        _shard: ShardId,
        takes: &[Take],
    ) -> impl Future<Output = Result<Stamp, StoreError>> + Send {
        ready(Ok(self.give_back_now(takes)))
    }

    fn load(
        &self,
        key: Key,
        base: &Base,
    ) -> impl Future<Output = Result<Loaded, StoreError>> + Send {
        ready(Ok(self.open(std::iter::once(key)).load(key, base)))
    }

    fn swap(&self, swap: &Swap) -> impl Future<Output = Result<Swapped, StoreError>> + Send {
        ready(self.swap_now(swap))
    }
}

/// The shelves of one call, locked, at one instant.
struct Open<'a> {
    store: &'a MemoryStore,
    shelves: BTreeMap<usize, MutexGuard<'a, Shelf>>,
    memory: Memory,
    stamp: Stamp,
}

impl Open<'_> {
    fn entry(&self, key: Key) -> Option<&Entry> {
        self.shelves.get(&self.store.index(key.client))?.entry(key)
    }

    fn record(&self, key: Key) -> Option<&Record> {
        self.entry(key)?.record(self.stamp.clock)
    }

    fn current(&self, key: Key, base: &Base) -> Record {
        Record::current(self.record(key), base, self.memory, self.stamp.clock)
    }

    fn load(&self, key: Key, base: &Base) -> Loaded {
        let now = self.stamp.clock;
        let ledger = self.entry(key).and_then(|entry| entry.ledger(now));
        Loaded {
            version: ledger.map(|ledger| ledger.version),
            stamp: self.stamp,
            memory: self.memory,
            ledger: ledger.cloned(),
            bucket: self.current(key, base).bucket,
        }
    }

    /// Makes room for those of these keys that are new.
    fn reserve(&mut self, keys: impl Iterator<Item = Key>) -> Result<(), StoreError> {
        let now = self.stamp.clock;
        let mut wanted: BTreeMap<usize, Vec<Key>> = BTreeMap::new();
        for key in keys {
            let index = self.store.index(key.client);
            wanted.entry(index).or_default().push(key);
        }
        for (index, keys) in wanted {
            let shelf = self
                .shelves
                .get_mut(&index)
                .expect("every key's shelf is open");
            if !shelf.reserve(&keys, now) {
                return Err(StoreError::Full);
            }
        }
        Ok(())
    }

    fn put(&mut self, key: Key, entry: Entry) {
        let index = self.store.index(key.client);
        let shelf = self
            .shelves
            .get_mut(&index)
            .expect("every key's shelf is open");
        shelf.put(key, entry);
    }
}

/// A shelf is whole between any two statements that can panic, so poison is ignored.
fn lock(shelf: &Mutex<Shelf>) -> MutexGuard<'_, Shelf> {
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}
