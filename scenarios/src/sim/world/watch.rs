//! What is looked at after every step: shares, and the invariants of PROTOCOL 8.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use region::bucket::Base;
use region::ledger::transition::{Outcome, Transition};
use region::ledger::{Row, Terms};
use region::store::{Loaded, Store as _};
use region::units::{Key, Share, Timestamp};

use super::{Region, World};
use crate::sim::books::Seen;
use crate::sim::dice::Dice;
use crate::sim::store::at_once;

/// The most keys that one sample looks at; the others come in the next ones.
const LOOKS_MAX: usize = 16;

/// How many of a region's rows may still be on their way: as many of the newest are remembered.
const ROWS_MAX: usize = 32;

/// How many rows arrive at each region, at most, when everything on its way arrives at once.
const ARRIVALS_MAX: usize = 6;

/// What is remembered between two looks.
#[derive(Debug)]
pub(super) struct Watch {
    dice: Dice,
    /// Keys that have been asked for, and the next one to look at.
    touched: BTreeSet<usize>,
    next: usize,
    /// What regions have said of keys, oldest first: none of it need have arrived.
    said: BTreeMap<(usize, usize), VecDeque<Row>>,
}

/// A key in one region: as its store has it, or as it would have it.
#[derive(Clone, Debug)]
struct Held {
    base: Base,
    loaded: Loaded,
    reading: Timestamp,
}

impl Watch {
    pub(super) const fn new(dice: Dice) -> Self {
        Self {
            dice,
            touched: BTreeSet::new(),
            next: 0,
            said: BTreeMap::new(),
        }
    }

    /// A key is asked for.
    pub(super) fn touch(&mut self, rank: usize) {
        self.touched.insert(rank);
    }

    /// A region says something of a key.
    pub(super) fn says(&mut self, (region, rank): (usize, usize), row: Row) {
        let said = self.said.entry((rank, region)).or_default();
        if said.len() == ROWS_MAX {
            said.pop_front();
        }
        said.push_back(row);
    }

    /// Some rows that a region could get now, in an order in which it could get them.
    fn arrivals(&mut self, rank: usize, to: usize) -> Vec<Row> {
        let others = self.said.range((rank, 0)..=(rank, usize::MAX));
        let others = others.filter(|((_, from), _)| *from != to);
        let mut rows: Vec<&Row> = others.flat_map(|(_, said)| said).collect();
        let mut arrive = Vec::new();
        while !rows.is_empty() && arrive.len() < ARRIVALS_MAX {
            let count = u64::try_from(rows.len()).unwrap_or(1);
            let drawn = usize::try_from(self.dice.below(count)).unwrap_or(0);
            arrive.push(rows.swap_remove(drawn).clone());
        }
        arrive.sort_by_key(|row| (row.region, row.version));
        arrive
    }
}

impl World<'_> {
    /// Looks at a few of the keys that have been asked for, and at what is on its way to them.
    pub(super) fn sample(&mut self) {
        self.post(self.now.plus(self.scenario.sample), super::Event::Sample);
        let later = self.watch.touched.range(self.watch.next..);
        let keys: Vec<usize> = later.take(LOOKS_MAX).copied().collect();
        self.watch.next = keys.last().map_or(0, |last| last + 1);
        for key in keys {
            self.look(key);
            self.look_ahead(key);
        }
    }

    /// Looks at one key in all regions.
    pub(super) fn look(&mut self, rank: usize) {
        let held = self.held(rank);
        let mut seen: Vec<Seen> = held.iter().map(Held::seen).collect();
        let changes = self.books.look(self.now, rank, &seen);
        let elapsed = self.elapsed();
        for change in changes {
            let (region, permille) = (change.region, change.permille);
            self.trace.note(
                elapsed,
                format_args!("r{region} has {permille} thousandths of key {rank}"),
            );
        }
        if let Err(what) = self.books.check(self.now, rank, &mut seen) {
            self.breaks(what);
        }
    }

    /// Tokens on their way count as well: whatever has been said of a key may arrive at this very
    /// instant, and then all of it could be admitted.
    fn look_ahead(&mut self, rank: usize) {
        if self.books.costs.unsettled(rank, self.now) {
            return;
        }
        let mut held = self.held(rank);
        for region in 0..held.len() {
            for row in self.watch.arrivals(rank, region) {
                let id = self.regions[region].id;
                let Some(terms) = self.terms(id, self.keys[rank].1) else {
                    continue;
                };
                if !held[region].hear(terms, &row) {
                    continue;
                }
                let mut seen: Vec<Seen> = held.iter().map(Held::seen).collect();
                if let Err(what) = self.books.check(self.now, rank, &mut seen) {
                    let from = row.region.0;
                    return self.breaks(format!(
                        "{what}, if r{region} hears what r{from} has said already"
                    ));
                }
            }
        }
    }

    fn held(&self, rank: usize) -> Vec<Held> {
        let key = self.keys[rank].1;
        let regions = self.regions.iter();
        let held = regions.map(|region| {
            region.shards.show(self.now);
            self.held_by(region, key)
        });
        held.collect()
    }

    fn held_by(&self, region: &Region, key: Key) -> Held {
        let policy = &self.policies.policies()[0];
        let base = policy.base(region.id, key.client);
        let base = base.expect("its policy is a bucket");
        let (store, reading) = region.shards.primary(key.client, self.now);
        let loaded = at_once(store.load(key, &base));
        Held {
            base,
            loaded: loaded.expect("a memory store answers"),
            reading,
        }
    }

    fn terms(&self, own: region::units::RegionId, key: Key) -> Option<Terms<'_>> {
        let policy = &self.policies.policies()[0];
        Some(Terms {
            own,
            client: key.client,
            split: policy.split()?,
            id: policy.terms(),
        })
    }
}

impl Held {
    fn seen(&self) -> Seen {
        Seen {
            pieces: self.base.pieces(self.loaded.memory),
            bucket: self.loaded.bucket.clone(),
            reading: self.reading,
        }
    }

    /// Hears a row, as a node would that does nothing else; whether that changes anything.
    fn hear(&mut self, terms: Terms<'_>, row: &Row) -> bool {
        let mut transition = Transition::new(terms, self.base, &self.loaded);
        if transition.hear(row).is_err() {
            return false;
        }
        let outcome = transition.finish(Share::ZERO, &self.loaded.bucket);
        self.swap(outcome);
        true
    }

    /// What a store does with a swap that comes at once.
    fn swap(&mut self, outcome: Outcome) {
        let Outcome {
            ledger,
            change,
            pieces,
            ..
        } = outcome;
        let bucket = &mut self.loaded.bucket;
        let late = change.before.is_some_and(|before| bucket.at >= before);
        if late || bucket.level.plus(change.credit) < change.debit {
            return;
        }
        bucket.level = bucket.level.plus(change.credit).minus(change.debit);
        bucket.pieces = pieces;
        let pieces = self.base.pieces(self.loaded.memory);
        bucket.level = bucket.level.min(bucket.capacity(&pieces));
        self.loaded.version = Some(ledger.version);
        self.loaded.ledger = Some(ledger);
    }
}
