//! What a call does to the records it touches. The scripts of the Redis store do the same.

use crate::bucket::{Base, Count, Memory};
use crate::store::record::Record;
use crate::store::{Swap, Take};
use crate::units::{EXACT_MAX, Level, Ticks, Timestamp};

impl Take {
    /// The cost in level units; more than any bucket holds where it does not fit.
    pub(super) fn price(&self) -> Level {
        let cost = i64::try_from(self.cost.0).unwrap_or(i64::MAX);
        let price = cost.saturating_mul(self.base.token.0);
        Level(price.min(EXACT_MAX.cast_signed()))
    }

    /// The cost as it is counted.
    pub(super) fn counted(&self) -> u64 {
        self.cost.0.min(Count::MASK)
    }

    /// What is counted as offered.
    fn offered(&self) -> u64 {
        if self.again { 0 } else { self.counted() }
    }
}

/// Whether a key could pay, and whether its record has to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) affords: bool,
    pub(super) changed: bool,
}

/// Takes from every record what it is asked for, or from none.
pub(super) fn take(records: &mut [Record], takes: &[Take]) -> Vec<Outcome> {
    let affords: Vec<bool> = records
        .iter()
        .zip(takes)
        .map(|(record, take)| record.bucket.affords(take.price(), take.base.debt))
        .collect();
    let denials = affords.iter().filter(|affords| !**affords).count();
    let mut outcomes = Vec::with_capacity(takes.len());
    for ((record, take), affords) in records.iter_mut().zip(takes).zip(affords) {
        let admitted = denials == 0;
        let alone = denials == usize::from(!affords);
        let mut changed = false;
        if admitted && take.cost.0 > 0 {
            record.bucket.level = record.bucket.level.minus(take.price());
            changed = true;
        }
        if let Some(count) = record
            .bucket
            .count
            .as_mut()
            .filter(|_| alone && take.cost.0 > 0)
        {
            count.offered = (count.offered + take.offered()) & Count::MASK;
            if admitted {
                count.admitted = (count.admitted + take.counted()) & Count::MASK;
            }
            changed |= !take.again;
        }
        outcomes.push(Outcome { affords, changed });
    }
    outcomes
}

/// Returns to a record what a take consumed.
pub(super) fn give_back(record: &mut Record, take: &Take, memory: Memory) {
    let bucket = &mut record.bucket;
    let capacity = bucket.capacity(&take.base.pieces(memory));
    bucket.level = bucket.level.plus(take.price()).min(capacity);
    if let Some(count) = bucket.count.as_mut() {
        count.offered = count.offered.wrapping_sub(take.offered()) & Count::MASK;
        count.admitted = count.admitted.wrapping_sub(take.counted()) & Count::MASK;
    }
}

/// The record after a swap, if it can be made now.
pub(super) fn swap(record: &Record, swap: &Swap, memory: Memory, now: Timestamp) -> Option<Record> {
    let now = swap.base.tick.floor(now);
    let level = record.bucket.level.plus(swap.change.credit);
    let late = swap.change.before.is_some_and(|before| now >= before);
    let gone = swap.change.debit > Level::ZERO && level < swap.change.debit;
    if swap.ledger.version.generation != memory.generation || late || gone {
        return None;
    }
    let mut record = record.clone();
    record.bucket.count.get_or_insert_default();
    record.bucket.pieces.clone_from(&swap.pieces);
    record.kept = kept(swap, now);
    let pieces = swap.base.pieces(memory);
    record.follow(&swap.base, &pieces);
    let capacity = record.bucket.capacity(&pieces);
    record.bucket.level = level.minus(swap.change.debit).min(capacity);
    Some(record)
}

/// Until when ledger and schedule are kept: never shorter than the schedule itself.
fn kept(swap: &Swap, now: Ticks) -> Ticks {
    let base: &Base = &swap.base;
    let asked = now.0.saturating_add(base.tick.ticks(swap.keep).0);
    let ends = swap.pieces.iter().map(|piece| piece.until);
    let scheduled = ends.filter(|until| *until != Ticks::NEVER).max();
    Ticks(asked.min(EXACT_MAX)).max(scheduled.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bucket::{Bucket, Lost};
    use crate::units::{Generation, Key, Share, Tick, Tokens};

    fn take_of(cost: u64) -> Take {
        let base = Base {
            tick: Tick::Micro,
            token: Level(10),
            share: Share(1),
            capacity: Level(100),
            floor: Level(0),
            wait: Duration::ZERO,
            debt: Level::ZERO,
            lost: Lost::Empty,
        };
        Take {
            key: Key::default(),
            cost: Tokens(cost),
            base,
            again: false,
        }
    }

    fn record(level: i64, counted: bool) -> Record {
        Record {
            generation: Generation(1),
            tick: Tick::Micro,
            token: Level(10),
            capacity: Level(100),
            kept: Ticks(u64::MAX),
            bucket: Bucket {
                level: Level(level),
                at: Ticks(0),
                count: counted.then(Count::default),
                pieces: Vec::new(),
            },
        }
    }

    #[test]
    fn take_charges_all_keys_or_none() {
        let mut records = [record(50, false), record(5, false)];
        let outcomes = take(&mut records, &[take_of(1), take_of(1)]);
        assert!(outcomes[0].affords && !outcomes[1].affords);
        assert!(outcomes.iter().all(|outcome| !outcome.changed));
        assert_eq!(records, [record(50, false), record(5, false)]);
    }

    #[test]
    fn take_counts_what_was_offered_unless_another_key_denied() {
        let offered = |record: &Record| record.bucket.count.unwrap_or_default().offered;
        let mut alone = [record(5, true), record(50, true)];
        take(&mut alone, &[take_of(1), take_of(1)]);
        assert_eq!([offered(&alone[0]), offered(&alone[1])], [1, 0]);
        let mut both = [record(5, true), record(5, true)];
        take(&mut both, &[take_of(1), take_of(1)]);
        assert_eq!([offered(&both[0]), offered(&both[1])], [0, 0]);
    }

    #[test]
    fn take_that_tries_again_is_offered_once() {
        let again = Take {
            again: true,
            ..take_of(1)
        };
        let count = |record: &Record| record.bucket.count.unwrap_or_default();
        let mut denied = [record(5, true)];
        let outcomes = take(&mut denied, &[again]);
        assert!(!outcomes[0].changed && denied == [record(5, true)]);
        let mut passed = [record(50, true)];
        take(&mut passed, &[again]);
        let counted = count(&passed[0]);
        assert_eq!((counted.offered, counted.admitted), (0, 1));
        give_back(&mut passed[0], &again, Memory::default());
        assert_eq!(passed, [record(50, true)]);
    }

    #[test]
    fn take_of_a_cost_beyond_all_numbers_is_denied() {
        let mut records = [record(100, false)];
        let outcomes = take(&mut records, &[take_of(u64::MAX)]);
        assert!(!outcomes[0].affords);
    }

    #[test]
    fn give_back_stops_at_the_capacity() {
        let mut record = record(95, true);
        give_back(&mut record, &take_of(3), Memory::default());
        assert_eq!(record.bucket.level, Level(100));
    }
}
