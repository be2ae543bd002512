//! A token bucket whose rate and capacity change at known instants (PROTOCOL 3 rule 6, and 7).
//!
//! The bucket is settled piece by piece: it refills at each rate for the time that it was in force
//! and is cut to each capacity on the way.

use std::time::Duration;

use crate::mutant::{Mutant, planted};
use crate::units::{Generation, Level, Share, Tick, Ticks, Timestamp};

/// A clock that steps back further than this anchors the bucket anew; a smaller step counts as no
/// time at all.
pub const SKEW_MAX: Duration = Duration::from_secs(5);

/// A stretch of time with one share and one capacity. It ends before `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// The first tick that no longer belongs to it.
    pub until: Ticks,
    /// What flows in per tick.
    pub share: Share,
    /// The most that the bucket holds.
    pub capacity: Level,
}

/// A region's part of one limit for one client, before any lending: what a bucket starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Base {
    /// How the limit measures time.
    pub tick: Tick,
    /// One token in level units.
    pub token: Level,
    /// The base share.
    pub share: Share,
    /// The capacity that goes with the base share.
    pub capacity: Level,
    /// The capacity that may be used while the shard waits after a loss of memory.
    pub floor: Level,
    /// How long nothing but the floor is used after a loss of memory.
    pub wait: Duration,
    /// How far below zero a level may go: this region's part of the policy's `overrun`.
    pub debt: Level,
    /// What a key is taken to be when its shard has lost its memory.
    pub lost: Lost,
}

/// `on_store_loss`: what a key is taken to be when its shard has lost its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Lost {
    /// Used up when the memory was lost; adds nothing to the overrun.
    #[default]
    Empty,
    /// Full: available at once, at the price that PROTOCOL 6 states.
    Full,
}

/// A shard's memory: its generation and the instant since which nothing was forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Memory {
    /// The generation.
    pub generation: Generation,
    /// When it began. The epoch for a store that its operator declares to be new.
    pub began: Timestamp,
}

/// What is known of one key: a level at a tick, and the pieces ahead.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// The level at `at`.
    pub level: Level,
    /// The tick to which the level is settled.
    pub at: Ticks,
    /// What was offered and admitted since the key has a ledger; absent while it has none.
    pub count: Option<Count>,
    /// The schedule, ascending and ending in a piece without an end; empty for a key without a
    /// ledger, which follows its base.
    pub pieces: Vec<Piece>,
}

/// Running totals in whole tokens since a key has a ledger. They wrap at 2^48.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Count {
    /// Tokens asked for, denials included.
    pub offered: u64,
    /// Tokens admitted.
    pub admitted: u64,
}

impl Count {
    /// The totals are kept in six bytes.
    pub const MASK: u64 = (1 << 48) - 1;

    /// What was offered since `earlier`; `None` if the count has begun anew in between, as it does
    /// when a shard forgets the key.
    #[must_use]
    pub const fn offered_since(self, earlier: Self) -> Option<u64> {
        let offered = self.offered.wrapping_sub(earlier.offered) & Self::MASK;
        if offered > Self::MASK / 2 {
            None
        } else {
            Some(offered)
        }
    }
}

impl Base {
    /// The pieces of a key without a ledger on a shard with this memory.
    #[must_use]
    pub fn pieces(&self, memory: Memory) -> [Piece; 2] {
        let wait = if self.starts_full(memory) {
            Ticks(0)
        } else {
            self.tick.ceil(memory.began.plus(self.wait))
        };
        [
            Piece {
                until: wait,
                share: Share::ZERO,
                capacity: self.floor,
            },
            Piece {
                until: Ticks::NEVER,
                share: self.share,
                capacity: self.capacity,
            },
        ]
    }

    /// A key that the shard does not know: last touched when the memory began, with all debt made.
    ///
    /// Where the memory began long ago, settling it to the present fills it. It is full at once in
    /// a store that is declared to be new, and where the policy says so; but never where nothing
    /// flows in, for there a key that was used up and forgotten could not have filled again.
    #[must_use]
    pub fn unknown(&self, memory: Memory) -> Bucket {
        let full = self.starts_full(memory) || planted(Mutant::KeyCreatedFull);
        let (at, level) = if full {
            (Ticks(0), self.capacity)
        } else {
            let debt = Level(self.debt.0.saturating_neg());
            // What is at the epoch itself is full.
            (self.tick.ceil(memory.began).max(Ticks(1)), debt)
        };
        Bucket {
            level,
            at,
            count: None,
            pieces: Vec::new(),
        }
    }

    fn starts_full(&self, memory: Memory) -> bool {
        self.share > Share::ZERO && (self.lost == Lost::Full || memory.began == Timestamp(0))
    }

    /// The time in which a bucket fills from all its debt at the base share: how long a key that
    /// nobody touches must be remembered.
    #[must_use]
    pub fn fill_time(&self) -> Duration {
        let missing = self.capacity.plus(self.debt).positive().0.unsigned_abs();
        let ticks = if self.share == Share::ZERO {
            0
        } else {
            missing.div_ceil(self.share.0)
        };
        self.tick.span(Ticks(ticks))
    }
}

impl Bucket {
    /// The pieces in force: the bucket's own schedule, or those of its base.
    #[must_use]
    pub fn schedule<'a>(&'a self, base: &'a [Piece; 2]) -> &'a [Piece] {
        if self.pieces.is_empty() {
            base
        } else {
            &self.pieces
        }
    }

    /// Brings the level to `now`.
    pub fn settle(&mut self, now: Ticks, tick: Tick, base: &[Piece; 2]) {
        (self.level, self.at) = settle(self.level, self.at, now, (tick, self.schedule(base)));
    }

    /// Whether a settled bucket can pay `cost` without exceeding its debt. Nothing costs nothing.
    #[must_use]
    pub fn affords(&self, cost: Level, debt: Level) -> bool {
        cost == Level::ZERO || self.level.plus(debt) >= cost
    }

    /// The ticks until the level reaches `target` if nothing is taken; `None` if it never does.
    #[must_use]
    pub fn time_to(&self, target: Level, base: &[Piece; 2]) -> Option<Ticks> {
        let (mut level, mut at) = (self.level, self.at);
        for piece in self
            .schedule(base)
            .iter()
            .filter(|piece| piece.until > self.at)
        {
            level = level.min(piece.capacity);
            if level >= target {
                return Some(at.since(self.at));
            }
            let missing = target.minus(level).0.unsigned_abs();
            if target <= piece.capacity && piece.share > Share::ZERO {
                let reached = at.0.saturating_add(missing.div_ceil(piece.share.0));
                if reached < piece.until.0 || piece.until == Ticks::NEVER {
                    return Some(Ticks(reached).since(self.at));
                }
            }
            (level, at) = refill(level, at, piece.until, *piece);
        }
        None
    }

    /// The capacity at the tick to which the bucket is settled.
    #[must_use]
    pub fn capacity(&self, base: &[Piece; 2]) -> Level {
        self.piece(base).capacity
    }

    /// The share at the tick to which the bucket is settled.
    #[must_use]
    pub fn share(&self, base: &[Piece; 2]) -> Share {
        self.piece(base).share
    }

    fn piece(&self, base: &[Piece; 2]) -> Piece {
        let pieces = self.schedule(base);
        let current = pieces
            .iter()
            .find(|piece| piece.until > self.at)
            .or_else(|| pieces.last());
        *current.expect("a schedule ends in a piece without an end")
    }
}

/// Brings a level at `at` to `now` along a schedule; returns it and the tick it is settled to.
fn settle(level: Level, at: Ticks, now: Ticks, along: (Tick, &[Piece])) -> (Level, Ticks) {
    let (tick, pieces) = along;
    if now < at {
        let far = at.since(now) > tick.ticks(SKEW_MAX);
        return (level, if far { now } else { at });
    }
    let (mut level, mut reached) = (level, at);
    let at = if planted(Mutant::SettledLazily) {
        now
    } else {
        at
    };
    for piece in pieces.iter().filter(|piece| piece.until > at) {
        (level, reached) = refill(level, reached, now.min(piece.until), *piece);
        if piece.until > now {
            break;
        }
    }
    (level, now)
}

fn refill(level: Level, at: Ticks, until: Ticks, piece: Piece) -> (Level, Ticks) {
    (
        level
            .plus(piece.share.over(until.since(at)))
            .min(piece.capacity),
        until,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Tick = Tick::Micro;

    fn base() -> Base {
        Base {
            tick: TICK,
            token: Level(100),
            share: Share(2),
            capacity: Level(1_000),
            floor: Level(50),
            wait: Duration::from_micros(100),
            debt: Level::ZERO,
            lost: Lost::Empty,
        }
    }

    #[test]
    fn bucket_refills_at_each_rate_and_is_cut_to_each_capacity() {
        let pieces = vec![
            Piece {
                until: Ticks(10),
                share: Share(5),
                capacity: Level(40),
            },
            Piece {
                until: Ticks(20),
                share: Share(0),
                capacity: Level(30),
            },
            Piece {
                until: Ticks::NEVER,
                share: Share(1),
                capacity: Level(100),
            },
        ];
        let mut bucket = Bucket {
            level: Level(0),
            at: Ticks(0),
            count: None,
            pieces,
        };
        let base = base().pieces(Memory::default());
        bucket.settle(Ticks(4), TICK, &base);
        assert_eq!(bucket.level, Level(20));
        bucket.settle(Ticks(10), TICK, &base);
        assert_eq!(bucket.level, Level(30), "cut at the boundary itself");
        bucket.settle(Ticks(25), TICK, &base);
        assert_eq!(bucket.level, Level(35));
        assert_eq!(bucket.time_to(Level(100), &base), Some(Ticks(65)));
        assert_eq!(bucket.time_to(Level(101), &base), None);
    }

    #[test]
    fn unknown_key_is_empty_while_the_shard_waits_and_fills_from_then() {
        let memory = Memory {
            generation: Generation(1),
            began: Timestamp(1_000),
        };
        let base = base();
        let pieces = base.pieces(memory);
        let mut bucket = base.unknown(memory);
        bucket.settle(Ticks(1_100), TICK, &pieces);
        assert_eq!(bucket.level, Level(0));
        bucket.settle(Ticks(1_200), TICK, &pieces);
        assert_eq!(bucket.level, Level(200));
        let mut long_after = base.unknown(memory);
        long_after.settle(Ticks(1_000_000), TICK, &pieces);
        assert_eq!(long_after.level, base.capacity);
    }

    #[test]
    fn unknown_key_of_a_new_store_is_full_however_slowly_it_fills() {
        let slow = |share| Base {
            share: Share(share),
            capacity: Level(1 << 52),
            ..base()
        };
        let memory = Memory {
            generation: Generation(1),
            began: Timestamp(0),
        };
        let level = |base: Base| {
            let mut bucket = base.unknown(memory);
            bucket.settle(Ticks(1_700_000_000_000_000), TICK, &base.pieces(memory));
            bucket.level
        };
        assert_eq!(level(slow(1)), slow(1).capacity);
        assert_eq!(level(slow(0)), Level(0), "nothing ever flows in");
    }

    #[test]
    fn count_that_has_begun_anew_says_nothing() {
        let count = |offered| Count {
            offered,
            admitted: 0,
        };
        assert_eq!(count(9).offered_since(count(4)), Some(5));
        assert_eq!(count(2).offered_since(count(Count::MASK)), Some(3));
        assert_eq!(count(2).offered_since(count(700)), None);
    }

    #[test]
    fn clock_that_steps_back_far_anchors_the_bucket_anew() {
        let base = base();
        let pieces = base.pieces(Memory::default());
        let mut bucket = Bucket {
            level: Level(0),
            at: Ticks(10_000_000),
            count: None,
            pieces: vec![],
        };
        bucket.settle(Ticks(9_000_000), TICK, &pieces);
        assert_eq!((bucket.level, bucket.at), (Level(0), Ticks(10_000_000)));
        bucket.settle(Ticks(1_000), TICK, &pieces);
        assert_eq!((bucket.level, bucket.at), (Level(0), Ticks(1_000)));
        bucket.settle(Ticks(1_010), TICK, &pieces);
        assert_eq!(bucket.level, Level(20));
    }
}
