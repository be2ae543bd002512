//! The keys behind one lock of the memory store, and the order in which they may be forgotten.
//!
//! A key is forgotten when it has expired, as in Redis, or earlier if room is needed and it is back
//! to full: then the shard answers the same without it. Every key waits in one of two heaps, by the
//! instant at which it is worth a look. A touched key keeps its place and is put back where it
//! belongs when its turn comes, so that a call does a bounded amount of work.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::bucket::{Base, Memory};
use crate::ledger::Ledger;
use crate::store::record::Record;
use crate::units::{Key, Ticks, Timestamp};

/// How many keys a call looks at, in each heap, to forget the expired ones.
const AGE_STEPS: usize = 2;
/// How many keys a call looks at to make room for one.
const ROOM_STEPS: usize = 16;

/// What is kept of one key. Record and ledger are over at their own times.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    record: Record,
    record_until: Timestamp,
    ledger: Option<Ledger>,
    ledger_until: Timestamp,
    /// From when on the shard answers the same without the key.
    full: Timestamp,
}

impl Entry {
    pub(super) fn new(record: Record, base: &Base, now: Timestamp, memory: Memory) -> Self {
        let instant = |ticks: Ticks| Timestamp(ticks.0.saturating_mul(base.tick.micros()));
        let record_until = now.plus(record.keep(base, base.tick.floor(now)));
        let full = if record.bucket.count.is_some() {
            record_until
        } else {
            let after = record.bucket.time_to(record.capacity, &base.pieces(memory));
            let full = |after: Ticks| instant(Ticks(record.bucket.at.0.saturating_add(after.0)));
            after.map_or(record_until, full).min(record_until)
        };
        Self {
            record,
            record_until,
            ledger: None,
            ledger_until: Timestamp(0),
            full,
        }
    }

    /// Adds a ledger, which is kept for as long as the schedule that comes with it.
    pub(super) fn with_ledger(mut self, ledger: Ledger) -> Self {
        let kept = self.record.kept.0.saturating_mul(self.record.tick.micros());
        self.ledger = Some(ledger);
        self.ledger_until = Timestamp(kept);
        self
    }

    /// The record, unless its time is over.
    pub(super) fn record(&self, now: Timestamp) -> Option<&Record> {
        Some(&self.record).filter(|_| now < self.record_until)
    }

    /// The ledger, unless its time is over.
    pub(super) fn ledger(&self, now: Timestamp) -> Option<&Ledger> {
        self.ledger.as_ref().filter(|_| now < self.ledger_until)
    }

    fn expires(&self) -> Timestamp {
        self.record_until.max(self.ledger_until)
    }

    fn full(&self) -> Timestamp {
        self.full.max(self.ledger_until)
    }
}

type Queue = BinaryHeap<Reverse<(Timestamp, Key)>>;

/// The keys behind one lock.
#[derive(Clone, Debug)]
pub(super) struct Shelf {
    memory: Memory,
    keys_max: usize,
    entries: HashMap<Key, Entry>,
    /// Keys that were not full when they were last looked at, by when they would be.
    filling: Queue,
    /// Keys that were full, by when they expire.
    full: Queue,
}

impl Shelf {
    pub(super) fn new(memory: Memory, keys_max: usize) -> Self {
        Self {
            memory,
            keys_max,
            entries: HashMap::new(),
            filling: Queue::new(),
            full: Queue::new(),
        }
    }

    pub(super) const fn memory(&self) -> Memory {
        self.memory
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn forget(&mut self, memory: Memory) {
        *self = Self::new(memory, self.keys_max);
    }

    /// Begins another memory without dropping anything, as a replica does that is promoted.
    pub(super) const fn begin(&mut self, memory: Memory) {
        self.memory = memory;
    }

    pub(super) fn entry(&self, key: Key) -> Option<&Entry> {
        self.entries.get(&key)
    }

    /// Stores a key for which there is room. Unless a new ledger comes with it, the old one stays.
    pub(super) fn put(&mut self, key: Key, mut entry: Entry) {
        let Some(known) = self.entries.get_mut(&key) else {
            self.filling.push(Reverse((entry.full(), key)));
            self.entries.insert(key, entry);
            return;
        };
        if entry.ledger.is_none() {
            entry.ledger = known.ledger.take();
            entry.ledger_until = known.ledger_until;
        }
        *known = entry;
    }

    /// Forgets expired keys, and sorts out those that have become full.
    pub(super) fn age(&mut self, now: Timestamp) {
        for _ in 0..AGE_STEPS {
            if let Some(key) = pop_due(&mut self.filling, now) {
                self.requeue(key, now);
            }
            if let Some(key) = pop_due(&mut self.full, now) {
                if self
                    .entries
                    .get(&key)
                    .is_some_and(|entry| entry.expires() <= now)
                {
                    self.entries.remove(&key);
                } else {
                    self.requeue(key, now);
                }
            }
        }
    }

    /// Makes room for those of these keys that are new. Whether there is room.
    pub(super) fn reserve(&mut self, keys: &[Key], now: Timestamp) -> bool {
        let new = |shelf: &Self| {
            keys.iter()
                .filter(|key| !shelf.entries.contains_key(*key))
                .count()
        };
        for _ in 0..ROOM_STEPS * keys.len() {
            if self.len() + new(self) <= self.keys_max {
                break;
            }
            let Some(key) = self.oldest(now) else {
                return false;
            };
            let full = self
                .entries
                .get(&key)
                .is_some_and(|entry| entry.full() <= now);
            if full && !keys.contains(&key) {
                self.entries.remove(&key);
            } else {
                self.requeue(key, now);
            }
        }
        self.len() + new(self) <= self.keys_max
    }

    /// The key that has been full for longest, as far as is known.
    fn oldest(&mut self, now: Timestamp) -> Option<Key> {
        let full = self.full.pop().map(|Reverse((_, key))| key);
        full.or_else(|| pop_due(&mut self.filling, now))
    }

    /// Puts a key that was taken from a heap where it belongs.
    fn requeue(&mut self, key: Key, now: Timestamp) {
        let entry = self.entries.get(&key).expect("a queued key is kept");
        if entry.full() <= now {
            self.full.push(Reverse((entry.expires(), key)));
        } else {
            self.filling.push(Reverse((entry.full(), key)));
        }
    }
}

fn pop_due(queue: &mut Queue, now: Timestamp) -> Option<Key> {
    let Reverse((due, _)) = queue.peek()?;
    if *due > now {
        return None;
    }
    queue.pop().map(|Reverse((_, key))| key)
}
