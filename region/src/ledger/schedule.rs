//! What a ledger means for its bucket: the share and capacity of every instant ahead, so that a
//! decision falls and rises at the right moment even if no node comes back (PROTOCOL 3 rule 6).

use std::time::Duration;

use super::{CLOCK_MARGIN, GRANT_TTL, Ledger, Terms, largest};
use crate::bucket::{Base, Piece};
use crate::units::{Share, Tick, Ticks, Timestamp};

/// The share in one tick: the base in force, less what is held for others, plus what is borrowed.
///
/// A tick in which something ends counts as not lent any more and as not free yet.
#[must_use]
pub fn share(ledger: &Ledger, base: Share, tick: Tick, at: Ticks) -> Share {
    let base = if at < tick.ceil(ledger.waits_until) {
        Share::ZERO
    } else {
        base
    };
    let held = ledger.peers.values().map(|peer| {
        let holds = peer.lent.holds.iter();
        largest(holds.filter(|hold| at < tick.ceil(hold.until)))
    });
    let borrowed = ledger.peers.values().map(|peer| {
        let usable = peer
            .borrowed
            .applied
            .filter(|_| at < tick.floor(peer.borrowed.until));
        usable.map_or(Share::ZERO, |applied| applied.share)
    });
    base.minus(held.sum()).plus(borrowed.sum())
}

/// The schedule from `now` on, ending in a piece without an end.
#[must_use]
pub fn pieces(ledger: &Ledger, terms: &Terms<'_>, now: Timestamp) -> Vec<Piece> {
    let (base, tick) = (terms.base(), terms.split.limit().tick());
    let mut pieces: Vec<Piece> = Vec::new();
    let mut from = tick.floor(now);
    for until in ends(ledger, tick, from).into_iter().chain([Ticks::NEVER]) {
        let share = share(ledger, base, tick, from);
        let capacity = terms.split.capacity(share);
        match pieces.last_mut() {
            Some(last) if (last.share, last.capacity) == (share, capacity) => last.until = until,
            _ => pieces.push(Piece {
                until,
                share,
                capacity,
            }),
        }
        from = until;
    }
    pieces
}

/// How long bucket and ledger are kept untouched: past the last hold and whatever a late message
/// could still refer to, and until the bucket has filled from all its debt.
#[must_use]
pub fn keep(ledger: &Ledger, base: &Base, now: Timestamp) -> Duration {
    let from = base.tick.floor(now);
    let last = ends(ledger, base.tick, from)
        .last()
        .copied()
        .unwrap_or(from);
    let lifetimes = (GRANT_TTL + CLOCK_MARGIN) * 2;
    base.tick.span(last.since(from)) + base.fill_time() + lifetimes
}

/// The ticks after `from` in which a share changes, ascending.
fn ends(ledger: &Ledger, tick: Tick, from: Ticks) -> Vec<Ticks> {
    let peers = || ledger.peers.values();
    let holds = peers()
        .flat_map(|peer| &peer.lent.holds)
        .map(|hold| tick.ceil(hold.until));
    let borrowed = peers()
        .filter(|peer| peer.borrowed.applied.is_some())
        .map(|peer| tick.floor(peer.borrowed.until));
    let waits = std::iter::once(tick.ceil(ledger.waits_until));
    let mut ends: Vec<_> = holds
        .chain(borrowed)
        .chain(waits)
        .filter(|end| *end > from)
        .collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}
