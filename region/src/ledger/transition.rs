//! One change of a ledger: rows heard, grants given, shares given back (PROTOCOL 3 rules 1 to 8).
//!
//! A transition starts from a key as a shard returned it and collects what happens to it; its
//! outcome is one compare-and-swap. All times are stamps of the key's shard. Everything that it
//! decides holds as well if the swap runs later than the load: schedules are absolute, tokens that
//! leave are checked again by the swap, and tokens that arrive carry the instant at which they come
//! too late.

mod hearing;
mod lending;

use std::time::Duration;

pub use self::hearing::Ignored;
use super::schedule;
use super::{CLOCK_MARGIN, Entry, GRANT_TTL, Hold, Ledger, Lent, Peer, Returned, Row, Terms};
use crate::bucket::{Base, Bucket, Lost, Piece};
use crate::mutant::{Mutant, planted};
use crate::store::{Change, Loaded};
use crate::units::{Level, RegionId, Sequence, Share, Stamp, Ticks, Timestamp};

/// A ledger on its way from what was loaded to what is swapped.
#[derive(Clone, Debug)]
pub struct Transition<'a> {
    terms: Terms<'a>,
    base: Base,
    stamp: Stamp,
    expected: Option<Sequence>,
    ledger: Ledger,
    level: Level,
    change: Change,
    changed: bool,
}

/// What a transition comes to: what to swap, and the row that may be sent once it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The version that was loaded.
    pub expected: Option<Sequence>,
    /// The new ledger.
    pub ledger: Ledger,
    /// What enters and leaves the bucket.
    pub change: Change,
    /// The new schedule.
    pub pieces: Vec<Piece>,
    /// The row that the ledger says.
    pub row: Row,
}

impl<'a> Transition<'a> {
    /// Starts from a key as it was loaded, and lets go of what has expired.
    ///
    /// A ledger that was forgotten, or whose numbers are in another arithmetic, is started anew:
    /// then the base share rests until every grant that could have been given is over.
    #[must_use]
    pub fn new(terms: Terms<'a>, base: Base, loaded: &Loaded) -> Self {
        let stamp = loaded.stamp;
        let known = loaded.ledger.clone();
        let ledger = match known.filter(|ledger| ledger.version.generation == stamp.generation) {
            Some(ledger) if ledger.terms == terms.id => ledger,
            Some(_) => Ledger {
                terms: terms.id,
                waits_until: stamp.clock.plus(GRANT_TTL + CLOCK_MARGIN),
                ..Ledger::default()
            },
            None => Ledger {
                terms: terms.id,
                waits_until: match base.lost {
                    Lost::Empty if planted(Mutant::NoWait) => Timestamp::default(),
                    Lost::Empty => loaded.memory.began.plus(base.wait),
                    Lost::Full => Timestamp::default(),
                },
                ..Ledger::default()
            },
        };
        let mut transition = Self {
            terms,
            base,
            stamp,
            expected: loaded.version,
            level: loaded.bucket.level,
            change: Change::default(),
            changed: loaded.ledger.as_ref() != Some(&ledger),
            ledger,
        };
        transition.expire();
        transition.level = transition.level.min(transition.capacity());
        transition
    }

    /// The instant of the transition.
    #[must_use]
    pub const fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// The ledger as it stands.
    #[must_use]
    pub const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The level as it stands.
    #[must_use]
    pub const fn level(&self) -> Level {
        self.level
    }

    /// What the region may use now.
    #[must_use]
    pub fn share(&self) -> Share {
        schedule::share(&self.ledger, self.terms.base(), self.base.tick, self.now())
    }

    /// Whether anything has changed that must be swapped.
    #[must_use]
    pub const fn changed(&self) -> bool {
        self.changed
    }

    /// Whether the base share rests after a loss of memory.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.stamp.clock < self.ledger.waits_until
    }

    /// What the ledger says to each other region, in their order.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        self.ledger
            .peers
            .iter()
            .map(|(region, peer)| says(*region, peer))
            .collect()
    }

    /// Whether a grant in use is older than `age` and wants a new basis.
    #[must_use]
    pub fn renews(&self, age: Duration) -> bool {
        let used = self.ledger.peers.values().map(|peer| &peer.borrowed);
        let mut used = used.filter(|borrowed| borrowed.applied.is_some());
        used.any(|borrowed| self.stamp.clock.plus(GRANT_TTL) >= borrowed.until.plus(age))
    }

    /// Ends the transition; `demand` and the admissions so far go into the row.
    #[must_use]
    pub fn finish(mut self, demand: Share, bucket: &Bucket) -> Outcome {
        self.ledger.version = self.ledger.version.next(self.stamp);
        let pieces = schedule::pieces(&self.ledger, &self.terms, self.stamp.clock);
        let row = Row {
            region: self.terms.own,
            terms: self.terms.id,
            version: self.ledger.version,
            clock: self.stamp.clock,
            demand,
            share: self.share(),
            level: self.level,
            admitted: bucket.count.unwrap_or_default().admitted,
            entries: self.entries(),
        };
        Outcome {
            expected: self.expected,
            ledger: self.ledger,
            change: self.change,
            pieces,
            row,
        }
    }

    /// Lets go of holds that are over, and of grants that no longer count.
    fn expire(&mut self) {
        let (clock, tick, now) = (self.stamp.clock, self.base.tick, self.now());
        let mut changed = false;
        for peer in self.ledger.peers.values_mut() {
            changed |= peer.lent.lapse(clock);
            let over = peer
                .borrowed
                .applied
                .filter(|_| now >= tick.floor(peer.borrowed.until));
            if let Some(applied) = over {
                let returned = peer.borrowed.returned.of(applied.sequence);
                peer.borrowed.returned = Returned {
                    sequence: applied.sequence,
                    ..returned
                };
                peer.borrowed.applied = None;
                changed = true;
            }
        }
        self.changed |= changed;
    }

    /// Adds tokens that arrive, up to the capacity.
    fn credit(&mut self, tokens: Level, before: Option<Ticks>) {
        let room = self.capacity().minus(self.level).positive();
        let credit = tokens.min(room);
        if credit > Level::ZERO {
            self.level = self.level.plus(credit);
            self.change.credit = self.change.credit.plus(credit);
            self.swap_before(before);
        }
    }

    /// From this instant on the swap would come too late.
    fn swap_before(&mut self, before: Option<Ticks>) {
        self.change.before = match (self.change.before, before) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }

    /// Cuts the level to the capacity and returns what was cut: tokens that may travel.
    fn cut_to_capacity(&mut self) -> Level {
        let cut = self.level.minus(self.capacity()).positive();
        self.level = self.level.minus(cut);
        self.change.debit = self.change.debit.plus(cut);
        cut
    }

    fn returned_more(&mut self, to: RegionId, tokens: Level) {
        let returned = &mut self.ledger.peers.entry(to).or_default().borrowed.returned;
        returned.tokens = returned.tokens.plus(tokens);
    }

    fn capacity(&self) -> Level {
        self.terms.split.capacity(self.share())
    }

    fn now(&self) -> Ticks {
        self.base.tick.floor(self.stamp.clock)
    }

    fn peer(&self, region: RegionId) -> Option<&Peer> {
        self.ledger.peers.get(&region)
    }
}

impl Lent {
    /// Lets go of holds that have ended by themselves. The capacity that comes back is empty, so
    /// that nothing may be credited for it any more, whenever it was given back.
    fn lapse(&mut self, clock: Timestamp) -> bool {
        let (held, live) = (self.held(), |hold: &Hold| clock <= hold.until);
        let ended = self.holds.iter().filter(|hold| !live(hold));
        let last = ended.map(|hold| hold.until).max();
        self.holds.retain(live);
        if last.is_some() && self.held() < held {
            self.lapsed = last;
        }
        last.is_some()
    }
}

impl Returned {
    /// The same, if it counts for the lender's generation that `sequence` names; else nothing yet.
    fn of(self, sequence: Sequence) -> Self {
        if self.sequence.generation == sequence.generation {
            self
        } else {
            let sequence = Sequence {
                generation: sequence.generation,
                n: 0,
            };
            Self {
                sequence,
                at: self.at,
                ..Self::default()
            }
        }
    }
}

/// What a region says to another.
fn says(region: RegionId, peer: &Peer) -> Entry {
    Entry {
        region,
        seen: peer.stamp,
        grant: peer.lent.current().filter(|_| peer.lent.recalled.is_none()),
        applied: peer.borrowed.applied,
        returned: peer.borrowed.returned,
        recalled: peer.lent.recalled.filter(|_| !peer.lent.holds.is_empty()),
    }
}
