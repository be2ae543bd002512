//! What a region knows of one key across regions, and how that changes (PROTOCOL 3).
//!
//! [`Ledger`] and [`Row`] are records; [`transition::Transition`] is the only code that changes a
//! ledger, and [`schedule`] works out what a ledger means for the key's bucket over time.

pub mod schedule;
pub mod transition;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::limit::Split;
use crate::mutant::{Mutant, planted};
use crate::units::{Client, Generation, Level, RegionId, Sequence, Share, Stamp, Timestamp};

/// How long a grant can be used, counted from the borrower's own stamp that it answers.
pub const GRANT_TTL: Duration = Duration::from_secs(2);

/// What a lender adds to a lifetime before it uses again what it lent: covers the error of clock
/// rates over one lifetime.
pub const CLOCK_MARGIN: Duration = Duration::from_millis(500);

/// The most grants to one borrower that may be in use at once; a lender with so many waits.
pub const HOLDS_MAX: usize = 8;

/// What a ledger's numbers refer to: one region's place in one limit for one client.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// The region that keeps the ledger.
    pub own: RegionId,
    /// Who the limit is kept for.
    pub client: Client,
    /// How the limit is dealt.
    pub split: &'a Split,
    /// The arithmetic of the policy, as in [`Row::terms`].
    pub id: u64,
}

impl Terms<'_> {
    /// The base share of this region.
    #[must_use]
    pub fn base(&self) -> Share {
        self.split.base(self.own, self.client)
    }

    /// Every region but this one.
    pub fn others(&self) -> impl Iterator<Item = RegionId> + use<> {
        let (own, regions) = (
            self.own,
            u16::try_from(self.split.regions()).unwrap_or(u16::MAX),
        );
        (0..regions)
            .map(RegionId)
            .filter(move |region| *region != own)
    }
}

/// What one region says about one key: single writer, newest wins, freely relayed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// The region that says it.
    pub region: RegionId,
    /// The arithmetic of the policy that its numbers are in: rows of another one are void.
    pub terms: u64,
    /// Which row of this region it is; its generation is the shard's.
    pub version: Sequence,
    /// The shard's clock when it was written: what a grant to this region may name as its basis.
    pub clock: Timestamp,
    /// The rate of offered tokens, denials included.
    pub demand: Share,
    /// The share that the region can use now.
    pub share: Share,
    /// The bucket's level.
    pub level: Level,
    /// Tokens admitted since the key has a ledger.
    pub admitted: u64,
    /// What it says to each other region, in their order.
    pub entries: Vec<Entry>,
}

/// The part of a row that concerns one other region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The other region.
    pub region: RegionId,
    /// The newest stamp of that region that has been seen.
    pub seen: Stamp,
    /// What is lent to it now.
    pub grant: Option<Grant>,
    /// The highest sequence of its grants that has been applied, and its share.
    pub applied: Option<Applied>,
    /// What has been given back of its grants.
    pub returned: Returned,
    /// The sequence that it is asked to give back, with all before it.
    pub recalled: Option<Sequence>,
}

/// Part of a lender's base share, lent for a lifetime. The sequence names the lender's generation,
/// the basis the borrower's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// Which grant to this borrower it is.
    pub sequence: Sequence,
    /// What is lent.
    pub share: Share,
    /// The borrower's stamp that it answers: it counts until `ttl` after it.
    pub basis: Stamp,
    /// The lifetime.
    pub ttl: Duration,
    /// All tokens ever sent with grants of this generation to that of the borrower.
    pub tokens: Level,
    /// The part of `tokens` that is accounted for or dead and must not be credited any more.
    pub dead: Level,
}

/// The newest grant that a borrower has applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Applied {
    /// Its sequence.
    pub sequence: Sequence,
    /// Its share.
    pub share: Share,
}

/// What a borrower has given back to one lender; all numbers are of the lender's generation that
/// the sequence names, and of the borrower's that says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Returned {
    /// No grant up to this one is used any more.
    pub sequence: Sequence,
    /// Nor will one be that answers a stamp of the borrower from before this instant of its clock:
    /// a renewal that was on its way when everything went back is over as well.
    pub at: Timestamp,
    /// All tokens that went back.
    pub tokens: Level,
    /// The part of `tokens` whose capacity has been borrowed again since: no longer to be credited.
    pub dead: Level,
}

/// What a region knows of one key across regions. Kept beside the key's bucket and changed only by
/// compare-and-swap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ledger {
    /// The version of the ledger and of the row that it says.
    pub version: Sequence,
    /// The arithmetic that its numbers are in.
    pub terms: u64,
    /// Until then the region uses nothing of its base share and lends nothing: the shard may have
    /// forgotten grants that are still in use.
    pub waits_until: Timestamp,
    /// What is known of each other region.
    pub peers: BTreeMap<RegionId, Peer>,
}

/// What is known of one other region, and what has passed between it and this one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The newest row of it that has been seen.
    pub seen: Sequence,
    /// The stamp of that row: the basis of the next grant.
    pub stamp: Stamp,
    /// When it was heard, on this region's clock.
    pub heard: Timestamp,
    /// Whether it has echoed this shard's present generation.
    pub echoed: bool,
    /// What that row said it is offered.
    pub demand: Share,
    /// What that row said it can use.
    pub share: Share,
    /// What is lent to it.
    pub lent: Lent,
    /// What is borrowed from it.
    pub borrowed: Borrowed,
}

/// What is lent to one region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lent {
    /// The newest grant.
    pub grant: Option<Grant>,
    /// The grants that may still be used, oldest first.
    pub holds: Vec<Hold>,
    /// The highest sequence known to be applied.
    pub applied: Option<Sequence>,
    /// Tokens given back that have been read, of the borrower's generation `returned_by`.
    pub returned: Level,
    /// The borrower's generation that `returned` belongs to.
    pub returned_by: Generation,
    /// The sequence that is asked back.
    pub recalled: Option<Sequence>,
    /// When a hold ended by itself, or else the ledger began, on this region's clock. What was
    /// given back before and not read is dead: until a row echoes this instant, nothing is
    /// credited.
    pub lapsed: Option<Timestamp>,
}

/// A grant that may still be used: what the lender keeps subtracted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    /// The grant's sequence.
    pub sequence: Sequence,
    /// The grant's share.
    pub share: Share,
    /// The borrower's stamp that the grant answers.
    pub basis: Stamp,
    /// When the lender stops subtracting it, whatever it hears.
    pub until: Timestamp,
    /// The tokens sent with it.
    pub tokens: Level,
}

/// What is borrowed from one region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Borrowed {
    /// The newest applied grant.
    pub applied: Option<Applied>,
    /// When it stops counting.
    pub until: Timestamp,
    /// The tokens credited so far of the lender's generation in `credited_by`.
    pub credited: Level,
    /// The lender's generation that `credited` belongs to.
    pub credited_by: Generation,
    /// What has been given back.
    pub returned: Returned,
}

/// The largest of these holds: what is kept subtracted for one borrower (rule 2).
fn largest<'h>(holds: impl Iterator<Item = &'h Hold>) -> Share {
    let shares = holds.map(|hold| hold.share);
    if planted(Mutant::HoldsSummed) {
        return shares.sum();
    }
    if planted(Mutant::HoldOfNewest) {
        return shares.last().unwrap_or_default();
    }
    shares.max().unwrap_or_default()
}

impl Peer {
    /// A region of which nothing is known, or nothing any more.
    fn begun(now: Timestamp) -> Self {
        let lapsed = Some(now).filter(|_| !planted(Mutant::ReturnOfAnyGeneration));
        Self {
            lent: Lent {
                lapsed,
                ..Lent::default()
            },
            ..Self::default()
        }
    }
}

impl Lent {
    /// What is kept subtracted for the borrower: the largest grant that it may still use.
    #[must_use]
    pub fn held(&self) -> Share {
        largest(self.holds.iter())
    }

    /// The newest grant, while it may still be used.
    #[must_use]
    pub fn current(&self) -> Option<Grant> {
        let newest = self.holds.iter().map(|hold| hold.sequence).max();
        self.grant.filter(|grant| Some(grant.sequence) == newest)
    }
}
