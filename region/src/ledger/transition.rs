//! One change of a ledger: rows heard, grants given, shares given back (PROTOCOL 3 rules 1 to 8).
//!
//! A transition starts from a key as a shard returned it and collects what happens to it; its
//! outcome is one compare-and-swap. All times are stamps of the key's shard. Everything that it
//! decides holds as well if the swap runs later than the load: schedules are absolute, tokens that
//! leave are checked again by the swap, and tokens that arrive carry the instant at which they come
//! too late.

use std::time::Duration;

use super::schedule;
use super::{
    Applied, CLOCK_MARGIN, Entry, GRANT_TTL, Grant, HOLDS_MAX, Hold, Ledger, Peer, Returned, Row,
    Terms,
};
use crate::bucket::{Base, Bucket, Lost, Piece};
use crate::store::{Change, Loaded};
use crate::units::{Level, RegionId, Sequence, Share, Stamp, Ticks, Timestamp};

/// Why a row was not taken over. The ledger is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ignored {
    /// A newer row of the region, or the same, is known.
    Old,
    /// It is in another arithmetic, of a policy that is configured differently there.
    OtherTerms,
    /// It says what its region cannot say: its own row, more than the region has, the future.
    Invalid,
}

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

    /// Takes over a row of another region if it is newer than what is known (rule 8).
    ///
    /// # Errors
    /// If the row is old, void or impossible; nothing has changed then.
    pub fn hear(&mut self, row: &Row) -> Result<(), Ignored> {
        let entry = self.check(row)?;
        self.changed = true;
        let peer = self.ledger.peers.entry(row.region).or_default();
        peer.seen = row.version;
        peer.stamp = Stamp {
            generation: row.version.generation,
            clock: row.clock,
        };
        peer.heard = self.stamp.clock;
        peer.demand = row.demand;
        peer.share = row.share;
        peer.echoed |= entry.seen.generation == self.stamp.generation;
        self.hold_what_is_listed(row.region, &entry);
        self.resume(row, &entry);
        if let Some(grant) = entry.grant {
            self.borrow(row.region, grant);
        }
        let borrowed = self
            .ledger
            .peers
            .get(&row.region)
            .and_then(|peer| peer.borrowed.applied);
        if entry
            .recalled
            .is_some_and(|asked| borrowed.is_some_and(|has| has.sequence <= asked))
        {
            self.give_back(row.region);
        }
        if self
            .terms
            .others()
            .all(|other| self.peer(other).is_some_and(|peer| peer.echoed))
        {
            self.ledger.waits_until = Timestamp::default();
        }
        Ok(())
    }

    /// Lends `share` of the base to a region, replacing the grant before (rules 1 and 4).
    ///
    /// Returns whether it was lent: not while the shard waits, not beyond the base, and not to a
    /// region that has said nothing yet or whose newest stamp is too old to be of use.
    pub fn lend(&mut self, to: RegionId, share: Share) -> bool {
        let Some(peer) = self.peer(to) else {
            return false;
        };
        let (basis, lent) = (peer.stamp, peer.lent.clone());
        let held: Share = self
            .ledger
            .peers
            .iter()
            .map(|(region, peer)| match region {
                region if *region == to => peer.lent.held().max(share),
                _ => peer.lent.held(),
            })
            .sum();
        if self.waits() || share == Share::ZERO || held > self.terms.base() {
            return false;
        }
        let until = self.stamp.clock.plus(GRANT_TTL + CLOCK_MARGIN);
        let covered = |hold: &Hold| hold.share <= share && hold.until <= until;
        if lent.holds.iter().filter(|hold| !covered(hold)).count() >= HOLDS_MAX {
            return false;
        }
        let before = lent.grant.filter(|grant| {
            grant.sequence.generation == self.stamp.generation
                && grant.basis.generation == basis.generation
        });
        let on_the_way = match before {
            Some(_) => tokens_on_the_way(lent.holds.iter(), lent.applied),
            None => Level::ZERO,
        };
        let sequence = lent
            .grant
            .map_or_else(Sequence::default, |grant| grant.sequence)
            .next(self.stamp);
        let lent_capacity = self.terms.split.lent_capacity(share);
        let hold = Hold {
            sequence,
            share,
            until,
            tokens: Level::ZERO,
        };
        let peer = self.ledger.peers.entry(to).or_default();
        // A grant that is covered by this one hands on its tokens that may still be on the way.
        let carried = peer.lent.holds.iter().filter(|hold| covered(hold));
        let carried = tokens_on_the_way(carried, peer.lent.applied).min(on_the_way);
        peer.lent.holds.retain(|hold| !covered(hold));
        peer.lent.holds.push(hold);
        let cut = self.cut_to_capacity();
        let sent = cut.min(lent_capacity.minus(on_the_way).positive());
        let tokens = before.map_or(Level::ZERO, |grant| grant.tokens).plus(sent);
        let alive = on_the_way.plus(sent).min(lent_capacity);
        let grant = Grant {
            sequence,
            share,
            basis,
            ttl: GRANT_TTL,
            tokens,
            dead: tokens.minus(alive),
        };
        let lent = &mut self.ledger.peers.entry(to).or_default().lent;
        if let Some(hold) = lent.holds.last_mut() {
            hold.tokens = carried.plus(sent).min(alive);
        }
        lent.grant = Some(grant);
        lent.recalled = None;
        self.changed = true;
        true
    }

    /// Asks a region to give back all that is lent to it.
    pub fn recall(&mut self, from: RegionId) {
        let Some(peer) = self.ledger.peers.get_mut(&from) else {
            return;
        };
        let newest = peer.lent.holds.iter().map(|hold| hold.sequence).max();
        if newest.is_some() && peer.lent.recalled != newest {
            peer.lent.recalled = newest;
            self.changed = true;
        }
    }

    /// Gives back all that is borrowed from a region, with the tokens that no longer fit (rule 5).
    pub fn give_back(&mut self, to: RegionId) {
        let Some(peer) = self.ledger.peers.get_mut(&to) else {
            return;
        };
        let Some(applied) = peer.borrowed.applied.take() else {
            return;
        };
        let returned = peer.borrowed.returned.of(applied.sequence);
        peer.borrowed.returned = Returned {
            sequence: applied.sequence,
            ..returned
        };
        let cut = self
            .cut_to_capacity()
            .min(self.terms.split.lent_capacity(applied.share));
        self.returned_more(to, cut);
        self.changed = true;
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

    /// Checks that a row is new and possible, and finds what it says to this region.
    fn check(&self, row: &Row) -> Result<Entry, Ignored> {
        if row.terms != self.terms.id {
            return Err(Ignored::OtherTerms);
        }
        if row.region == self.terms.own
            || usize::from(row.region.0) >= self.terms.split.regions()
            || row.version.generation.0 == 0
        {
            return Err(Ignored::Invalid);
        }
        if self
            .peer(row.region)
            .is_some_and(|peer| row.version <= peer.seen)
        {
            return Err(Ignored::Old);
        }
        let mut own = row
            .entries
            .iter()
            .filter(|entry| entry.region == self.terms.own);
        let entry = own.next().copied().unwrap_or_default();
        let theirs = self.terms.split.base(row.region, self.terms.client);
        let grants = row.entries.iter().filter_map(|entry| entry.grant);
        let too_much = grants
            .map(|grant| grant.share)
            .max()
            .is_some_and(|most| most > theirs);
        let ahead = |stamp: Stamp| {
            stamp.generation == self.stamp.generation && stamp.clock > self.stamp.clock
        };
        let issued = self
            .peer(row.region)
            .filter(|peer| !peer.lent.holds.is_empty());
        let newest = issued
            .and_then(|peer| peer.lent.grant)
            .map(|grant| grant.sequence);
        let not_issued = |sequence: Sequence| newest.is_some_and(|newest| sequence > newest);
        let impossible = own.next().is_some()
            || entry
                .applied
                .is_some_and(|applied| not_issued(applied.sequence))
            || not_issued(entry.returned.sequence)
            || too_much
            || ahead(entry.seen)
            || entry
                .grant
                .is_some_and(|grant| !possible(row, &grant) || ahead(grant.basis))
            || entry
                .applied
                .is_some_and(|applied| applied.share > self.terms.base())
            || entry.returned.tokens < entry.returned.dead
            || entry.returned.dead < Level::ZERO;
        if impossible {
            Err(Ignored::Invalid)
        } else {
            Ok(entry)
        }
    }

    /// Rule 7: what a borrower still holds of grants that this shard has forgotten is held again.
    fn hold_what_is_listed(&mut self, from: RegionId, entry: &Entry) {
        let until = self.stamp.clock.plus(GRANT_TTL + CLOCK_MARGIN);
        let Some(listed) = entry.applied else { return };
        let forgotten = listed.sequence.generation < self.stamp.generation;
        if !forgotten || entry.seen.generation != self.stamp.generation {
            return;
        }
        let lent = &mut self.ledger.peers.entry(from).or_default().lent;
        let known = lent
            .holds
            .iter()
            .any(|hold| hold.sequence >= listed.sequence);
        if self.stamp.clock < self.ledger.waits_until && !known && listed.share > Share::ZERO {
            let Applied { sequence, share } = listed;
            lent.holds.push(Hold {
                sequence,
                share,
                until,
                tokens: Level::ZERO,
            });
        }
    }

    /// Rules 2 and 5: shrinks holds to what the borrower says it uses, and takes back the tokens
    /// that it gave back, up to the capacity by which this very reading lowers the hold.
    fn resume(&mut self, row: &Row, entry: &Entry) {
        let tick = self.base.tick;
        let lent = &mut self.ledger.peers.entry(row.region).or_default().lent;
        let (before, holds) = (lent.held(), lent.holds.clone());
        if let Some(applied) = entry.applied {
            lent.holds.retain(|hold| hold.sequence >= applied.sequence);
            lent.applied = lent.applied.max(Some(applied.sequence));
        }
        let Returned {
            sequence,
            tokens,
            dead,
        } = entry.returned;
        lent.holds.retain(|hold| hold.sequence > sequence);
        let freed = self
            .terms
            .split
            .lent_capacity(before)
            .minus(self.terms.split.lent_capacity(lent.held()));
        if sequence.generation != self.stamp.generation {
            return;
        }
        if lent.returned_by != row.version.generation {
            (lent.returned, lent.returned_by) = (Level::ZERO, row.version.generation);
        }
        let fresh = tokens.minus(dead.max(lent.returned)).positive();
        lent.returned = lent.returned.max(tokens);
        // Where a hold ends by itself its capacity comes back empty: then it is too late to credit.
        let ended = holds.iter().filter(|hold| !lent.holds.contains(hold));
        let before = ended.map(|hold| tick.floor(hold.until)).min();
        self.credit(fresh.min(freed), before);
    }

    /// Rules 3 and 4: applies a grant to this region if it is newer and counts.
    fn borrow(&mut self, from: RegionId, grant: Grant) {
        let until = grant.basis.clock.plus(grant.ttl.min(GRANT_TTL));
        let borrowed = self.ledger.peers.entry(from).or_default().borrowed;
        let newest = borrowed
            .applied
            .map(|applied| applied.sequence)
            .unwrap_or_default();
        if grant.basis.generation != self.stamp.generation
            || self.stamp.clock >= until
            || grant.sequence <= newest.max(borrowed.returned.sequence)
        {
            return;
        }
        let tick = self.base.tick;
        let before = borrowed
            .applied
            .map_or(Share::ZERO, |applied| applied.share);
        let credited = if borrowed.credited_by == grant.sequence.generation {
            borrowed.credited
        } else {
            Level::ZERO
        };
        let lent_capacity = self.terms.split.lent_capacity(grant.share);
        let fresh = grant
            .tokens
            .minus(grant.dead.max(credited))
            .positive()
            .min(lent_capacity);
        let borrowed = &mut self.ledger.peers.entry(from).or_default().borrowed;
        borrowed.applied = Some(Applied {
            sequence: grant.sequence,
            share: grant.share,
        });
        borrowed.until = until;
        borrowed.credited = credited.max(grant.tokens);
        borrowed.credited_by = grant.sequence.generation;
        borrowed.returned = borrowed.returned.of(grant.sequence);
        if grant.share > before {
            // Capacity that comes back brings no token that left with it: whatever the lender has
            // not read by now stays dead.
            borrowed.returned.dead = borrowed.returned.tokens;
        }
        self.credit(fresh, Some(tick.floor(until)));
        let cut = self.cut_to_capacity();
        let freed = self
            .terms
            .split
            .lent_capacity(before)
            .minus(lent_capacity)
            .positive();
        self.returned_more(from, cut.min(freed));
    }

    /// Lets go of holds that are over, and of grants that no longer count.
    fn expire(&mut self) {
        let (clock, tick, now) = (self.stamp.clock, self.base.tick, self.now());
        let mut changed = false;
        for peer in self.ledger.peers.values_mut() {
            let holds = peer.lent.holds.len();
            peer.lent.holds.retain(|hold| clock <= hold.until);
            changed |= peer.lent.holds.len() != holds;
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
            self.change.before = match (self.change.before, before) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
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
                ..Self::default()
            }
        }
    }
}

/// Tokens sent with grants that may still be used and are not known to be applied.
fn tokens_on_the_way<'h>(
    holds: impl Iterator<Item = &'h Hold>,
    applied: Option<Sequence>,
) -> Level {
    holds
        .filter(|hold| Some(hold.sequence) > applied)
        .fold(Level::ZERO, |sum, hold| sum.plus(hold.tokens))
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

/// Whether a lender could have given this grant with this row.
fn possible(row: &Row, grant: &Grant) -> bool {
    grant.sequence.generation == row.version.generation
        && grant.share > Share::ZERO
        && Level::ZERO <= grant.dead
        && grant.dead <= grant.tokens
}
