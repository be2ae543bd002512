//! Lending out of the base share, asking for it back, and giving back what is borrowed.

use super::Transition;
use crate::ledger::{CLOCK_MARGIN, GRANT_TTL, Grant, HOLDS_MAX, Hold, Returned};
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
            basis,
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

/// Tokens sent with grants that may still be used and are not known to be applied.
fn tokens_on_the_way<'h>(
    holds: impl Iterator<Item = &'h Hold>,
    applied: Option<Sequence>,
) -> Level {
    holds
        .filter(|hold| Some(hold.sequence) > applied)
        .fold(Level::ZERO, |sum, hold| sum.plus(hold.tokens))
}
