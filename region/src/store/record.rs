//! What a shard stores of a bucket: a packed record, and how one is read.
//!
//! A record is at most as old as its shard's memory, and in the arithmetic of the limit that wrote
//! it. [`Record::current`] is the one place that decides what an old one still says; `record.lua`
//! does the same, bit for bit.
//!
//! Layout, big-endian; integers are seven bytes long where nothing else is said, so that they stay
//! exact in a script:
//!
//! ```text
//! flags (3 bits) at (53 bits) generation used token
//! if counted: kept offered (6) admitted (6) pieces (2), and for each piece: until share capacity
//! ```
//!
//! Redis keeps 28 bytes and all that it needs around them in one allocation of 48. The level is
//! stored as what is missing from the capacity in force: that is what survives a change of limit.

use std::time::Duration;

use crate::bucket::{Base, Bucket, Count, Memory, Piece};
use crate::units::{EXACT_MAX, Generation, Level, Share, Tick, Ticks, Timestamp};

/// A key with a ledger.
const COUNTED: u8 = 1;
/// A key whose ticks are milliseconds.
const MILLI: u8 = 2;
/// Any other flag is of a later format.
const FLAGS: u8 = COUNTED | MILLI;
/// The flags are the highest bits of the first byte.
const FLAGS_SHIFT: u32 = 5;

/// Kept beyond the time that a bucket needs to fill, so that no rounding forgets one early.
const SLACK: Duration = Duration::from_secs(1);
/// Nothing is kept for longer than the longest period of a limit.
const KEEP_MAX: Duration = Duration::from_secs(10 * 365 * 86_400);

/// A bucket as its shard has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The generation in which it was written; in any other it says nothing.
    pub generation: Generation,
    /// The ticks in which it counts.
    pub tick: Tick,
    /// One token in its level units.
    pub token: Level,
    /// The capacity in force at the bucket's `at`; the base's for a key without a schedule, even
    /// while the shard waits.
    pub capacity: Level,
    /// The tick at which schedule and counts are forgotten; meaningless without counts.
    pub kept: Ticks,
    /// The bucket itself.
    pub bucket: Bucket,
}

impl Record {
    /// What a shard knows of a key now, settled: from what it has stored, if that still counts.
    ///
    /// A record of another generation says nothing. Where the limit has been changed, what was used
    /// is carried over in whole tokens, rounded up (PROTOCOL 7).
    #[must_use]
    pub fn current(stored: Option<&Self>, base: &Base, memory: Memory, now: Timestamp) -> Self {
        let mut record = match stored {
            Some(stored) if stored.generation == memory.generation => stored.clone().under(base),
            _ => Self {
                generation: memory.generation,
                tick: base.tick,
                token: base.token,
                capacity: base.capacity,
                kept: Ticks(0),
                bucket: base.unknown(memory),
            },
        };
        record.settle(base.tick.floor(now), base, &base.pieces(memory));
        record
    }

    /// How long the record must be kept if nobody touches it: until its schedule is over, and then
    /// for as long as the bucket may need to fill. A clock that has stepped back a little first has
    /// to come back to where the bucket is settled.
    #[must_use]
    pub fn keep(&self, base: &Base, now: Ticks) -> Duration {
        let at = self.bucket.at;
        let from = self.bucket.count.map_or(at, |_| at.max(self.kept));
        let ahead = base.tick.span(from.since(now));
        ahead.saturating_add(base_keep(base)).min(KEEP_MAX)
    }

    /// Whether the clock has stepped back so far that this bucket begins anew at an earlier tick
    /// than the stored one: that must be stored even by a denial, or it would happen again and
    /// again and the bucket would never fill.
    #[must_use]
    pub fn is_anchored_anew(&self, stored: Option<&Self>) -> bool {
        let since = |record: &Self| record.tick.span(record.bucket.at);
        stored.is_some_and(|stored| {
            stored.generation == self.generation && since(self) < since(stored)
        })
    }

    /// The same bucket under the limit of `base`.
    fn under(mut self, base: &Base) -> Self {
        let used = self.capacity.minus(self.bucket.level).positive();
        let least = Level::ZERO.minus(base.debt);
        if self.tick == base.tick && self.token == base.token {
            if self.bucket.pieces.is_empty() {
                self.bucket.level = base.capacity.minus(used).max(least);
                self.capacity = base.capacity;
            }
            return self;
        }
        let tokens = used.0.unsigned_abs().div_ceil(self.token.0.unsigned_abs());
        let tokens = i64::try_from(tokens).unwrap_or(i64::MAX);
        let used = Level(tokens.saturating_mul(base.token.0));
        let at = match (self.tick, base.tick) {
            (Tick::Micro, Tick::Milli) => self.bucket.at.0.div_ceil(1_000),
            (Tick::Milli, Tick::Micro) => self.bucket.at.0.saturating_mul(1_000).min(EXACT_MAX),
            (Tick::Micro, Tick::Micro) | (Tick::Milli, Tick::Milli) => self.bucket.at.0,
        };
        Self {
            generation: self.generation,
            tick: base.tick,
            token: base.token,
            capacity: base.capacity,
            kept: Ticks(0),
            bucket: Bucket {
                level: base.capacity.minus(used).max(least),
                at: Ticks(at),
                count: None,
                pieces: Vec::new(),
            },
        }
    }

    /// Brings the bucket to `now`; leaves its schedule where that is over.
    fn settle(&mut self, now: Ticks, base: &Base, pieces: &[Piece; 2]) {
        if self.bucket.count.is_some() && now >= self.kept {
            if self.kept > self.bucket.at {
                self.bucket.settle(self.kept, base.tick, pieces);
            }
            self.bucket.count = None;
            self.bucket.pieces.clear();
            self.kept = Ticks(0);
        }
        self.bucket.settle(now, base.tick, pieces);
        self.follow(base, pieces);
    }

    /// Drops the pieces that are over and notes the capacity in force.
    pub(super) fn follow(&mut self, base: &Base, pieces: &[Piece; 2]) {
        let at = self.bucket.at;
        self.bucket.pieces.retain(|piece| piece.until > at);
        self.capacity = if self.bucket.pieces.is_empty() {
            base.capacity
        } else {
            self.bucket.capacity(pieces)
        };
    }

    /// The bytes that a shard stores.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        let mut flags = 0;
        if self.bucket.count.is_some() {
            flags |= COUNTED;
        }
        if self.tick == Tick::Milli {
            flags |= MILLI;
        }
        put_unsigned(&mut bytes, self.bucket.at.0);
        bytes[0] |= flags << FLAGS_SHIFT;
        put_unsigned(&mut bytes, self.generation.0);
        put_level(
            &mut bytes,
            self.capacity.minus(self.bucket.level).positive(),
        );
        put_level(&mut bytes, self.token);
        if let Some(count) = self.bucket.count {
            put_unsigned(&mut bytes, self.kept.0);
            for total in [count.offered, count.admitted] {
                bytes.extend_from_slice(&(total & Count::MASK).to_be_bytes()[2..]);
            }
            put_pieces(&mut bytes, &self.bucket.pieces);
        }
        bytes
    }

    /// Reads what a shard stored of a key whose base has this capacity. `None` for anything that
    /// [`Record::encode`] does not write.
    #[must_use]
    pub fn decode(bytes: &[u8], capacity: Level) -> Option<Self> {
        let (mut first, mut rest) = (*bytes.split_at_checked(7)?.0.as_array::<7>()?, &bytes[7..]);
        let flags = first[0] >> FLAGS_SHIFT;
        first[0] &= (1 << FLAGS_SHIFT) - 1;
        let at = Ticks(unsigned(&mut first.as_slice())?);
        let generation = Generation(unsigned(&mut rest)?);
        let used = level(&mut rest).filter(|used| *used >= Level::ZERO)?;
        let token = level(&mut rest).filter(|token| *token > Level::ZERO)?;
        let (mut kept, mut count, mut pieces) = (Ticks(0), None, Vec::new());
        if flags & COUNTED != 0 {
            kept = Ticks(unsigned(&mut rest)?);
            count = Some(Count {
                offered: integer(&mut rest, 6)?,
                admitted: integer(&mut rest, 6)?,
            });
            pieces = take_pieces(&mut rest)?;
        }
        let capacity = pieces.first().map_or(capacity, |piece| piece.capacity);
        (flags & !FLAGS == 0 && rest.is_empty()).then_some(Self {
            generation,
            tick: if flags & MILLI == 0 {
                Tick::Micro
            } else {
                Tick::Milli
            },
            token,
            capacity,
            kept,
            bucket: Bucket {
                level: capacity.minus(used),
                at,
                count,
                pieces,
            },
        })
    }
}

/// How long a key without a ledger must be kept: until it is sure to be full.
pub(super) fn base_keep(base: &Base) -> Duration {
    let filled = base.fill_time().saturating_add(base.wait);
    filled.saturating_add(SLACK).min(KEEP_MAX)
}

/// A number of ticks, a share or a generation; what does not end is all that a script can count to.
pub(super) fn put_unsigned(bytes: &mut Vec<u8>, value: u64) {
    bytes.extend_from_slice(&value.min(EXACT_MAX).to_be_bytes()[1..]);
}

/// A level, which may be negative.
pub(super) fn put_level(bytes: &mut Vec<u8>, level: Level) {
    let most = EXACT_MAX.cast_signed();
    bytes.extend_from_slice(&level.0.clamp(-most, most).to_be_bytes()[1..]);
}

/// A schedule.
pub(super) fn put_pieces(bytes: &mut Vec<u8>, pieces: &[Piece]) {
    let count = u16::try_from(pieces.len()).unwrap_or(u16::MAX);
    bytes.extend_from_slice(&count.to_be_bytes());
    for piece in pieces.iter().take(usize::from(count)) {
        put_unsigned(bytes, piece.until.0);
        put_unsigned(bytes, piece.share.0);
        put_level(bytes, piece.capacity);
    }
}

fn take_pieces(rest: &mut &[u8]) -> Option<Vec<Piece>> {
    let count = integer(rest, 2)?;
    (0..count)
        .map(|_| {
            let until = unsigned(rest)?;
            Some(Piece {
                until: if until == EXACT_MAX {
                    Ticks::NEVER
                } else {
                    Ticks(until)
                },
                share: Share(unsigned(rest)?),
                capacity: level(rest)?,
            })
        })
        .collect()
}

fn integer(rest: &mut &[u8], len: usize) -> Option<u64> {
    let bytes = rest.split_off(..len)?;
    Some(
        bytes
            .iter()
            .fold(0, |value, byte| value << 8 | u64::from(*byte)),
    )
}

fn unsigned(rest: &mut &[u8]) -> Option<u64> {
    integer(rest, 7).filter(|value| *value <= EXACT_MAX)
}

fn level(rest: &mut &[u8]) -> Option<Level> {
    let value = (integer(rest, 7)? << 8).cast_signed() >> 8;
    (value.unsigned_abs() <= EXACT_MAX).then_some(Level(value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bucket::Lost;

    fn base(token: i64, capacity: i64) -> Base {
        Base {
            tick: Tick::Micro,
            token: Level(token),
            share: Share(2),
            capacity: Level(capacity),
            floor: Level(token),
            wait: Duration::ZERO,
            debt: Level(token),
            lost: Lost::Empty,
        }
    }

    fn cold(level: i64, at: u64) -> Record {
        Record {
            generation: Generation(7),
            tick: Tick::Micro,
            token: Level(100),
            capacity: Level(1_000),
            kept: Ticks(0),
            bucket: Bucket {
                level: Level(level),
                at: Ticks(at),
                count: None,
                pieces: Vec::new(),
            },
        }
    }

    fn counted(level: i64, at: u64, kept: u64) -> Record {
        let mut record = cold(level, at);
        record.kept = Ticks(kept);
        record.bucket.count = Some(Count {
            offered: 3,
            admitted: 2,
        });
        record.bucket.pieces = vec![
            Piece {
                until: Ticks(at + 10),
                share: Share(5),
                capacity: Level(2_000),
            },
            Piece {
                until: Ticks::NEVER,
                share: Share(1),
                capacity: Level(500),
            },
        ];
        record
    }

    const MEMORY: Memory = Memory {
        generation: Generation(7),
        began: Timestamp(0),
    };

    #[test]
    fn cold_record_is_small_and_its_bytes_stay_as_they_are() {
        let bytes = cold(-1, 258).encode();
        assert_eq!(
            bytes,
            [
                0, 0, 0, 0, 0, 1, 2, // flags, at
                0, 0, 0, 0, 0, 0, 7, // generation
                0, 0, 0, 0, 0, 3, 233, // used
                0, 0, 0, 0, 0, 0, 100, // token
            ]
        );
        assert!(
            bytes.len() <= 28,
            "48 bytes with what Redis puts around them"
        );
    }

    #[test]
    fn record_of_another_generation_says_nothing() {
        let memory = Memory {
            generation: Generation(8),
            began: Timestamp(1_000),
        };
        let base = base(100, 1_000);
        let now = Timestamp(1_000);
        let record = Record::current(Some(&cold(900, 900)), &base, memory, now);
        assert_eq!(record, Record::current(None, &base, memory, now));
        assert_eq!(record.bucket.level, Level(-100));
    }

    #[test]
    fn changed_limit_keeps_what_was_used_in_whole_tokens() {
        let now = Timestamp(5);
        let used_two = cold(850, 5);
        let finer = Record::current(Some(&used_two), &base(10, 300), MEMORY, now);
        assert_eq!(finer.bucket.level, Level(280));
        let raised = Record::current(Some(&used_two), &base(100, 1_200), MEMORY, now);
        assert_eq!(
            raised.bucket.level,
            Level(1_050),
            "exactly, in the same arithmetic"
        );
        let lowered = Record::current(Some(&used_two), &base(300, 300), MEMORY, now);
        assert_eq!(lowered.bucket.level, Level(-300), "never below all debt");
        let mut slower = base(100, 1_000);
        slower.tick = Tick::Milli;
        let slower = Record::current(Some(&cold(850, 5_001)), &slower, MEMORY, Timestamp(6_000));
        assert_eq!(
            (slower.bucket.level, slower.bucket.at),
            (Level(800), Ticks(6))
        );
    }

    #[test]
    fn changed_limit_drops_a_schedule_only_with_its_arithmetic() {
        let now = Timestamp(5);
        let record = counted(1_100, 5, 1_000);
        let kept = Record::current(Some(&record), &base(100, 4_000), MEMORY, now);
        assert_eq!(kept.bucket, record.bucket);
        let dropped = Record::current(Some(&record), &base(10, 300), MEMORY, now);
        assert_eq!(
            (dropped.bucket.count, dropped.bucket.pieces.len()),
            (None, 0)
        );
    }

    #[test]
    fn schedule_is_left_when_its_time_is_over() {
        let record = counted(100, 0, 20);
        let base = base(100, 1_000);
        let during = Record::current(Some(&record), &base, MEMORY, Timestamp(15));
        assert_eq!(during.bucket.level, Level(155));
        assert_eq!(
            (during.bucket.pieces.len(), during.capacity),
            (1, Level(500))
        );
        let after = Record::current(Some(&record), &base, MEMORY, Timestamp(30));
        assert_eq!(after.bucket.level, Level(100 + 50 + 10 + 20));
        assert_eq!((after.bucket.count, after.capacity), (None, Level(1_000)));
        assert_eq!(
            record.keep(&base, Ticks(0)),
            after.keep(&base, Ticks(30)) + base.tick.span(Ticks(20))
        );
    }

    proptest! {
        #[test]
        fn record_reads_back_what_was_written(
            used in 0_i64..=1 << 52,
            at in 0_u64..1 << 52,
            milli: bool,
            counts: bool,
        ) {
            let mut record = if counts { counted(0, at, at + 30) } else { cold(0, at) };
            record.tick = if milli { Tick::Milli } else { Tick::Micro };
            record.capacity = Level(if counts { 2_000 } else { 1_000 });
            record.bucket.level = record.capacity.minus(Level(used));
            let bytes = record.encode();
            let read = |bytes: &[u8]| Record::decode(bytes, Level(1_000));
            prop_assert_eq!(read(&bytes), Some(record));
            prop_assert_eq!(read(&bytes[..bytes.len() - 1]), None);
        }

        #[test]
        fn record_never_panics_whatever_the_bytes(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
            valid_head: bool,
            now in 0_u64..1 << 52,
        ) {
            if let Some(head) = bytes.first_mut().filter(|_| valid_head) {
                *head &= (FLAGS << FLAGS_SHIFT) | 1;
            }
            if let Some(record) = Record::decode(&bytes, Level(1_000)) {
                let memory = Memory { generation: record.generation, began: Timestamp(0) };
                let base = base(10, 100);
                let current = Record::current(Some(&record), &base, memory, Timestamp(now));
                prop_assert!(current.bucket.pieces.len() <= record.bucket.pieces.len());
            }
        }
    }
}
