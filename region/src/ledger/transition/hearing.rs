//! What a row of another region changes: holds shrink, grants are applied, tokens come home.

use super::Transition;
use crate::ledger::{Applied, CLOCK_MARGIN, Entry, GRANT_TTL, Grant, Hold, Peer, Returned, Row};
use crate::mutant::{Mutant, planted};
use crate::units::{Level, RegionId, Sequence, Share, Stamp, Timestamp};

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

impl Transition<'_> {
    /// Takes over a row of another region if it is newer than what is known (rule 8).
    ///
    /// # Errors
    /// If the row is old, void or impossible; nothing has changed then.
    pub fn hear(&mut self, row: &Row) -> Result<(), Ignored> {
        let entry = self.check(row)?;
        self.changed = true;
        let now = self.stamp.clock;
        let peer = self.ledger.peers.entry(row.region);
        let peer = peer.or_insert_with(|| Peer::begun(now));
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
        let echoed = |other| self.peer(other).is_some_and(|peer| peer.echoed);
        let one = planted(Mutant::WaitEndsWithOne) && self.terms.others().any(echoed);
        if one || self.terms.others().all(echoed) {
            self.ledger.waits_until = Timestamp::default();
        }
        Ok(())
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
            || entry.returned.at > row.clock
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
        if !forgotten
            || entry.seen.generation != self.stamp.generation
            || planted(Mutant::ListedNotHeld)
        {
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
                basis: Stamp::default(),
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
            at,
            tokens,
            dead,
        } = entry.returned;
        let refused =
            |hold: &Hold| hold.basis.generation == row.version.generation && hold.basis.clock < at;
        lent.holds
            .retain(|hold| hold.sequence > sequence && !refused(hold));
        let freed = self
            .terms
            .split
            .lent_capacity(before)
            .minus(self.terms.split.lent_capacity(lent.held()));
        let echoes = |instant: &Timestamp| {
            entry.seen.generation == self.stamp.generation && entry.seen.clock >= *instant
        };
        // A row that echoes it has all in it that was given back before: read once, it is over.
        let lapsed = lent.lapsed;
        lent.lapsed = lapsed.filter(|instant| !echoes(instant));
        if sequence.generation != self.stamp.generation && !planted(Mutant::ReturnOfAnyGeneration) {
            return;
        }
        if lent.returned_by != row.version.generation {
            (lent.returned, lent.returned_by) = (Level::ZERO, row.version.generation);
        }
        let fresh = tokens.minus(dead.max(lent.returned)).positive();
        lent.returned = lent.returned.max(tokens);
        if lapsed.is_some() && !planted(Mutant::ReturnAfterLapse) {
            return;
        }
        // Where a hold ends by itself its capacity comes back empty: then it is too late to credit.
        let ended = holds.iter().filter(|hold| !lent.holds.contains(hold));
        let before = ended.map(|hold| tick.floor(hold.until)).min();
        let before = before.filter(|_| !planted(Mutant::ReturnSwappedLate));
        let all = planted(Mutant::AllCreditedOnReturn);
        self.credit(if all { fresh } else { fresh.min(freed) }, before);
    }

    /// Rules 3 and 4: applies a grant to this region if it is newer and counts.
    fn borrow(&mut self, from: RegionId, grant: Grant) {
        let from_receipt = planted(Mutant::CountsFromReceipt);
        let counts_from = if from_receipt {
            self.stamp.clock
        } else {
            grant.basis.clock
        };
        let until = counts_from.plus(grant.ttl.min(GRANT_TTL));
        let borrowed = self.ledger.peers.entry(from).or_default().borrowed;
        let newest = borrowed
            .applied
            .map(|applied| applied.sequence)
            .unwrap_or_default();
        let void = grant.basis.generation != self.stamp.generation;
        let over = self.stamp.clock >= until;
        let refused = grant.basis.clock < borrowed.returned.at;
        if (void && !planted(Mutant::AnyGeneration))
            || (over && !planted(Mutant::CreditAfterEnd))
            || (refused && !planted(Mutant::RefusedGrantUsed))
            || grant.sequence <= newest.max(borrowed.returned.sequence)
        {
            return;
        }
        let tick = self.base.tick;
        let before = borrowed
            .applied
            .map_or(Share::ZERO, |applied| applied.share);
        let ours = borrowed.credited_by == grant.sequence.generation;
        let credited = if ours && !planted(Mutant::CreditTwice) {
            borrowed.credited
        } else {
            Level::ZERO
        };
        let lent_capacity = self.terms.split.lent_capacity(grant.share);
        let fresh = grant.tokens.minus(grant.dead.max(credited)).positive();
        let fresh = match () {
            () if planted(Mutant::CapacityArrivesFull) => lent_capacity,
            () if planted(Mutant::TokensAboveCapacity) => fresh,
            () => fresh.min(lent_capacity),
        };
        let borrowed = &mut self.ledger.peers.entry(from).or_default().borrowed;
        borrowed.applied = Some(Applied {
            sequence: grant.sequence,
            share: grant.share,
        });
        borrowed.until = until;
        borrowed.credited = credited.max(grant.tokens);
        borrowed.credited_by = grant.sequence.generation;
        borrowed.returned = borrowed.returned.of(grant.sequence);
        if grant.share > before && !planted(Mutant::ReturnWithoutDeadPart) {
            // Capacity that comes back brings no token that left with it: whatever the lender has
            // not read by now stays dead.
            borrowed.returned.dead = borrowed.returned.tokens;
        }
        let late = planted(Mutant::CreditAfterEnd) || planted(Mutant::CreditSwappedLate);
        self.credit(fresh, Some(tick.floor(until)).filter(|_| !late));
        let cut = self.cut_to_capacity();
        let freed = self
            .terms
            .split
            .lent_capacity(before)
            .minus(lent_capacity)
            .positive();
        self.returned_more(from, cut.min(freed));
    }
}

/// Whether a lender could have given this grant with this row.
fn possible(row: &Row, grant: &Grant) -> bool {
    grant.sequence.generation == row.version.generation
        && grant.share > Share::ZERO
        && Level::ZERO <= grant.dead
        && grant.dead <= grant.tokens
}
