//! What nodes say to each other: versioned frames, and the bounds that every frame must keep.
//!
//! The bytes are the business of [`codec`](crate::codec). A value outside of its bounds is refused
//! where it is read, so that no peer can pin a counter at the end of its range.

use std::time::Duration;

use region::ledger::{Applied, Entry, Grant, Row};
use region::units::{EXACT_MAX, Key, Level, RegionId, Sequence, Share, Timestamp, Tokens};

use crate::identity::Member;

/// The version of the format: the first byte of every frame.
pub const VERSION: u8 = 1;

/// The largest frame that is sent as one datagram. Fits the smallest path that QUIC accepts.
pub const DATAGRAM_LEN_MAX: usize = 1_120;

/// The largest frame at all; what does not fit a datagram goes by a stream of its own.
pub const STREAM_LEN_MAX: usize = 256 * 1024;

/// The largest SWIM packet.
pub const SWIM_LEN_MAX: usize = 1_024;

/// The most items in one frame.
pub const ITEMS_MAX: usize = 4_096;

/// The most entries in one row, and the most regions in an envelope.
pub const ENTRIES_MAX: usize = 64;

/// The longest lifetime of a grant.
pub const TTL_MAX: Duration = Duration::from_secs(60);

/// One message and its envelope. Who sent it is known from the connection, never from the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The regions that the sending node hears itself: what need not be relayed to it.
    pub heard: Vec<RegionId>,
    /// What is said.
    pub message: Message,
}

/// What one node says to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Who the sender is. The first frame of every connection, in both directions.
    Hello(Hello),
    /// A packet of the membership protocol.
    Swim(Vec<u8>),
    /// Rows, of the sender's region or relayed.
    Rows(Vec<KeyRow>),
    /// Keys that the acting node of the sender's own region should look at.
    Dues(Vec<Due>),
    /// The newest rows that the sender has, for finding out what was missed.
    Digest(Vec<(Key, Sequence)>),
    /// Keys whose rows the sender has missed.
    Request(Vec<Key>),
}

/// Who the sender of a frame is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The sender.
    pub member: Member,
    /// Whether it answers the receiver's own greeting, which is repeated until answered.
    pub reply: bool,
}

/// What a region says about one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRow {
    /// The key.
    pub key: Key,
    /// What is said about it.
    pub row: Row,
}

/// A key under pressure at a node that does not act for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// The key.
    pub key: Key,
    /// The tokens that its requests asked for and did not get.
    pub wanted: Tokens,
}

/// A value outside of the bounds that the protocol sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// A region that is not configured, or one that speaks about itself.
    #[error("an entry names a region that cannot be meant")]
    Region,
    /// Two entries for one region, or entries out of order.
    #[error("entries are not in the order of their regions")]
    Order,
    /// A number beyond the integers that the stores hold exactly, or below zero.
    #[error("a number is out of range")]
    Number,
    /// A lifetime beyond [`TTL_MAX`].
    #[error("a lifetime is out of range")]
    Lifetime,
    /// A name that no node or region can have.
    #[error("a name cannot be used")]
    Name,
}

/// Checks everything about a row that can be judged without knowing its key's history.
///
/// # Errors
/// The first bound that it breaks.
pub fn check_row(row: &Row, regions: u16) -> Result<(), Invalid> {
    check_region(row.region, regions)?;
    check_sequence(row.version)?;
    check_clock(row.clock)?;
    check_share(row.demand)?;
    check_share(row.share)?;
    check_number(row.level.0.unsigned_abs())?;
    check_number(row.admitted)?;
    let mut previous = None;
    for entry in &row.entries {
        if entry.region == row.region {
            return Err(Invalid::Region);
        }
        if previous >= Some(entry.region) {
            return Err(Invalid::Order);
        }
        previous = Some(entry.region);
        check_entry(entry, regions)?;
    }
    Ok(())
}

/// Checks a sequence on its own.
///
/// # Errors
/// If a part of it is beyond every clock.
pub const fn check_sequence(sequence: Sequence) -> Result<(), Invalid> {
    match check_number(sequence.generation.0) {
        Ok(()) => check_number(sequence.n),
        error => error,
    }
}

/// Checks that a region is one of the configured ones.
///
/// # Errors
/// If it is not.
pub const fn check_region(region: RegionId, regions: u16) -> Result<(), Invalid> {
    if region.0 < regions {
        Ok(())
    } else {
        Err(Invalid::Region)
    }
}

/// Checks that a number is one that the stores hold exactly.
///
/// # Errors
/// If it is larger.
pub const fn check_number(number: u64) -> Result<(), Invalid> {
    if number <= EXACT_MAX {
        Ok(())
    } else {
        Err(Invalid::Number)
    }
}

fn check_entry(entry: &Entry, regions: u16) -> Result<(), Invalid> {
    check_region(entry.region, regions)?;
    check_number(entry.seen.generation.0)?;
    check_clock(entry.seen.clock)?;
    if let Some(grant) = &entry.grant {
        check_grant(grant)?;
    }
    if let Some(Applied { sequence, share }) = entry.applied {
        check_sequence(sequence)?;
        check_share(share)?;
    }
    check_sequence(entry.returned.sequence)?;
    check_clock(entry.returned.at)?;
    check_parcel(entry.returned.tokens, entry.returned.dead)?;
    entry.recalled.map_or(Ok(()), check_sequence)
}

fn check_grant(grant: &Grant) -> Result<(), Invalid> {
    check_sequence(grant.sequence)?;
    check_share(grant.share)?;
    check_number(grant.basis.generation.0)?;
    check_clock(grant.basis.clock)?;
    check_parcel(grant.tokens, grant.dead)?;
    if grant.ttl > TTL_MAX {
        return Err(Invalid::Lifetime);
    }
    Ok(())
}

/// All tokens of a kind and the dead ones among them: never fewer than none, never more than all.
fn check_parcel(tokens: Level, dead: Level) -> Result<(), Invalid> {
    if dead < Level::ZERO || dead > tokens {
        return Err(Invalid::Number);
    }
    check_number(tokens.0.unsigned_abs())
}

const fn check_share(share: Share) -> Result<(), Invalid> {
    check_number(share.0)
}

const fn check_clock(clock: Timestamp) -> Result<(), Invalid> {
    check_number(clock.0)
}
