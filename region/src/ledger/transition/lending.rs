//! Lending out of the base share, asking for it back, and giving back what is borrowed.

use std::time::Duration;

use super::Transition;
use crate::ledger::{CLOCK_MARGIN, GRANT_TTL, Grant, HOLDS_MAX, Hold, Lent, Returned};
use crate::mutant::{Mutant, planted};
use crate::units::{Level, RegionId, Sequence, Share};

impl Transition<'_> {
    /// Lends `share` of the base to a region, replacing the grant before (rules 1 and 4).
    ///
    /// Returns whether it was lent: not while the shard waits, not beyond the base, and not to a
    /// region that has said nothing yet or whose newest stamp is too old to be of use.
    pub fn lend(&mut self, to: RegionId, share: Share) -> bool {
        let Some(peer) = self.peer(to) else {
            return false;
        };
        let (basis, lent) = (peer.stamp, peer.lent.clone());
        let sequence = lent
            .grant
            .map_or_else(Sequence::default, |grant| grant.sequence)
            .next(self.stamp);
        let ttl = lifetime(sequence);
        let until = self.stamp.clock.plus(ttl + CLOCK_MARGIN);
        let covered = |hold: &Hold| {
            let as_long = hold.until <= until || planted(Mutant::HoldFreedByShorter);
            hold.share <= share && as_long
        };
        let others = lent.holds.iter().filter(|hold| !covered(hold)).count();
        if others >= HOLDS_MAX || !self.may_lend(to, share) {
            return false;
        }
        self.renew_before(lent.holds.iter().filter(|hold| covered(hold)));
        // A grant that is covered by this one hands on its tokens that may still be on the way.
        let carried = lent.holds.iter().filter(|hold| covered(hold));
        let carried = tokens_on_the_way(carried, lent.applied);
        let holds = &mut self.ledger.peers.entry(to).or_default().lent.holds;
        holds.retain(|hold| !covered(hold));
        holds.push(Hold {
            sequence,
            share,
            basis,
            until,
            tokens: Level::ZERO,
        });
        let grant = Grant {
            sequence,
            share,
            basis,
            ttl,
            tokens: Level::ZERO,
            dead: Level::ZERO,
        };
        self.send_tokens((to, &lent), grant, carried);
        self.changed = true;
        true
    }

    /// Where a hold ends by itself its capacity comes back and fills. A swap that comes later must
    /// not hold it again as if nothing had happened: what was given back is dead by then, and so is
    /// what was on its way.
    fn renew_before<'h>(&mut self, holds: impl Iterator<Item = &'h Hold>) {
        if planted(Mutant::RenewalSwappedLate) {
            return;
        }
        let first = holds.map(|hold| hold.until).min();
        self.swap_before(first.map(|until| self.base.tick.floor(until)));
    }

    /// Whether so much may be lent to a region: only of the base, and while that does not rest.
    fn may_lend(&self, to: RegionId, share: Share) -> bool {
        let peers = self.ledger.peers.iter();
        let held = peers.map(|(region, peer)| match region {
            region if *region == to => peer.lent.held().max(share),
            _ => peer.lent.held(),
        });
        let own = if planted(Mutant::BorrowedIsLent) {
            self.terms.base().plus(self.share())
        } else {
            self.terms.base()
        };
        !self.waits() && share > Share::ZERO && held.sum::<Share>() <= own
    }

    /// Rule 4: what no longer fits into the bucket travels with the grant that is held by now, and
    /// with it what may still be on the way to the borrower.
    fn send_tokens(&mut self, (to, lent): (RegionId, &Lent), grant: Grant, carried: Level) {
        let before = lent.grant.filter(|before| {
            before.sequence.generation == self.stamp.generation
                && before.basis.generation == grant.basis.generation
        });
        let on_the_way = match before {
            Some(_) => tokens_on_the_way(&lent.holds, lent.applied),
            None => Level::ZERO,
        };
        let cut = self.cut_to_capacity();
        let most = if planted(Mutant::TokensAboveCapacity) {
            cut.plus(on_the_way)
        } else {
            self.terms.split.lent_capacity(grant.share)
        };
        let sent = cut.min(most.minus(on_the_way).positive());
        let tokens = before.map_or(Level::ZERO, |grant| grant.tokens).plus(sent);
        let alive = on_the_way.plus(sent).min(most);
        if alive > sent {
            self.renew_before(waiting(&lent.holds, lent.applied));
        }
        let dead = if planted(Mutant::DeadTokensComeBack) {
            Level::ZERO
        } else {
            tokens.minus(alive)
        };
        let lent = &mut self.ledger.peers.entry(to).or_default().lent;
        if let Some(hold) = lent.holds.last_mut() {
            hold.tokens = carried.min(on_the_way).plus(sent).min(alive);
        }
        lent.grant = Some(Grant {
            tokens,
            dead,
            ..grant
        });
        lent.recalled = None;
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
            at: self.stamp.clock,
            ..returned
        };
        let cut = self
            .cut_to_capacity()
            .min(self.terms.split.lent_capacity(applied.share));
        self.returned_more(to, cut);
        self.changed = true;
    }
}

/// How long a grant can be used: always the same, unless a bug asks for something to spoil.
fn lifetime(sequence: Sequence) -> Duration {
    let short = planted(Mutant::ShortGrants) || planted(Mutant::HoldFreedByShorter);
    if short && sequence.n.is_multiple_of(2) {
        GRANT_TTL / 4
    } else {
        GRANT_TTL
    }
}

/// The grants whose tokens may still be on the way: not known to be applied.
fn waiting<'h>(
    holds: impl IntoIterator<Item = &'h Hold>,
    applied: Option<Sequence>,
) -> impl Iterator<Item = &'h Hold> {
    let holds = holds.into_iter();
    holds.filter(move |hold| Some(hold.sequence) > applied && hold.tokens > Level::ZERO)
}

/// Tokens sent with grants that may still be used and are not known to be applied.
fn tokens_on_the_way<'h>(
    holds: impl IntoIterator<Item = &'h Hold>,
    applied: Option<Sequence>,
) -> Level {
    let waiting = waiting(holds, applied).map(|hold| hold.tokens);
    waiting.fold(Level::ZERO, Level::plus)
}
