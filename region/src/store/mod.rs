//! Where a region keeps its buckets and ledgers: one trait, several stores, the same answers.
//!
//! Every call is atomic on its shard and carries the shard's own time. A ledger changes only by
//! [`Store::swap`], so that any node of the region can act on it.

pub mod any;
pub mod format;
pub mod memory;
pub mod record;
#[cfg(feature = "redis")]
pub mod redis;
mod rules;

use std::future::ready;
use std::time::Duration;

use crate::bucket::{Base, Bucket, Memory, Piece};
use crate::ledger::Ledger;
use crate::units::{Client, Key, Level, Sequence, Stamp, Ticks, Tokens};

/// A shard: its place in the store's list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

/// One key of a check: what is asked of it, and what it is if the shard does not know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Take {
    /// The key.
    pub key: Key,
    /// What the request costs, in whole tokens; nothing to look without taking.
    pub cost: Tokens,
    /// The region's base part of the limit.
    pub base: Base,
    /// Whether the same request was denied before and tries again: it has been counted as offered.
    pub again: bool,
}

/// What a shard answered to a check of several keys: all of them paid, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The instant of the decision.
    pub stamp: Stamp,
    /// The shard's memory, which says what an unknown key is.
    pub memory: Memory,
    /// For each key in order, whether it could pay and its bucket afterwards, settled to `stamp`.
    pub keys: Vec<TakenKey>,
}

/// One key's part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenKey {
    /// Whether this key could pay. The request passes only if all could.
    pub affords: bool,
    /// The bucket after the decision.
    pub bucket: Bucket,
}

/// A key as a shard has it: the ground on which a ledger transition is worked out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The version of the ledger that a swap must name; `None` where there is none.
    pub version: Option<Sequence>,
    /// The instant of the load.
    pub stamp: Stamp,
    /// The shard's memory.
    pub memory: Memory,
    /// The ledger, unless there is none or it was written in an older generation.
    pub ledger: Option<Ledger>,
    /// The bucket, settled to `stamp`.
    pub bucket: Bucket,
}

/// A new ledger for a key and what changes in its bucket with it, in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    /// The key.
    pub key: Key,
    /// The region's base part of the limit, for a key that the shard has meanwhile dropped.
    pub base: Base,
    /// The version that was loaded; anything else is a conflict.
    pub expected: Option<Sequence>,
    /// The new ledger.
    pub ledger: Ledger,
    /// What is added to and taken from the bucket.
    pub change: Change,
    /// The new schedule, ending in a piece without an end.
    pub pieces: Vec<Piece>,
    /// How long bucket and ledger are kept when nobody touches them.
    pub keep: Duration,
}

/// Tokens that enter and leave a bucket as its ledger changes. Applied to the level settled along
/// the old schedule; the result is cut to the capacity of the new one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Change {
    /// Tokens that arrived with a grant or a give-back.
    pub credit: Level,
    /// Tokens that leave; a conflict if the bucket no longer holds them.
    pub debit: Level,
    /// The tick at which the change comes too late: a grant does not count for ever.
    pub before: Option<Ticks>,
}

/// How a swap ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swapped {
    /// The ledger and the bucket have changed.
    Done {
        /// The instant of the change.
        stamp: Stamp,
    },
    /// Nothing has changed: somebody else was first, the tokens are gone, or it was too late.
    Conflict {
        /// The key as it is now.
        current: Box<Loaded>,
    },
}

/// Why a shard gave no answer. Unless a variant says otherwise, the call may have run and is not
/// repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum StoreError {
    /// No answer before the deadline.
    #[error("the shard did not answer in time")]
    Timeout,
    /// There is no connection to the shard, or it broke: a call that had been sent may have run.
    #[error("the shard cannot be reached")]
    Unreachable,
    /// The shard refused to write: it is a replica, is loading, or lacks replicas. The call did not
    /// run.
    #[error("the shard does not accept writes")]
    Refused,
    /// The shard is out of memory. The call did not run.
    #[error("the shard is out of memory")]
    Full,
    /// The shard has lost its memory and its new generation is not in force yet. The call did not
    /// run.
    #[error("the shard has lost its memory")]
    Forgotten,
    /// The shard answered something that makes no sense.
    #[error("the shard's answer could not be read")]
    Nonsense,
}

impl StoreError {
    /// Every reason, in the order of their severity: the label values of the fallback counter.
    pub const ALL: [Self; 6] = [
        Self::Timeout,
        Self::Unreachable,
        Self::Refused,
        Self::Full,
        Self::Forgotten,
        Self::Nonsense,
    ];

    /// A word for metrics and answers.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
            Self::Full => "full",
            Self::Forgotten => "forgotten",
            Self::Nonsense => "nonsense",
        }
    }
}

/// A region's store. Cheap to share; calls may run at the same time.
pub trait Store: Send + Sync {
    /// The shard that keeps a client's keys.
    fn shard(&self, client: Client) -> ShardId;

    /// Checks keys of one shard, all or nothing: every key pays its cost, or none does.
    ///
    /// What a key with a ledger was offered is counted unless another key of the call denied.
    fn take(
        &self,
        shard: ShardId,
        takes: &[Take],
    ) -> impl Future<Output = Result<Taken, StoreError>> + Send;

    /// Gives back what a take consumed, up to each bucket's capacity. Creates no key.
    fn give_back(
        &self,
        shard: ShardId,
        takes: &[Take],
    ) -> impl Future<Output = Result<Stamp, StoreError>> + Send;

    /// Reads a key's ledger and bucket.
    fn load(
        &self,
        key: Key,
        base: &Base,
    ) -> impl Future<Output = Result<Loaded, StoreError>> + Send;

    /// Replaces a key's ledger if it still has the expected version, and changes its bucket.
    fn swap(&self, swap: &Swap) -> impl Future<Output = Result<Swapped, StoreError>> + Send;

    /// Waits, for a short while, until everything that a client's shard has written so far is at a
    /// replica; says whether it is. True where there is no replica.
    fn replicated(&self, client: Client) -> impl Future<Output = Result<bool, StoreError>> + Send {
        let _ = client;
        ready(Ok(true))
    }
}
