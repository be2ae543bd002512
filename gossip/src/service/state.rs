//! What others may look at while the service runs: who is known, and what has been counted.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use region::ledger::transition::Ignored;

use crate::identity::Member;

/// A view of a running service, for metrics and the admin interface.
#[derive(Debug, Default)]
pub struct Status {
    /// What has been counted.
    pub counters: ServiceCounters,
    /// The members as last known; locked to copy or replace the list.
    members: Mutex<Vec<Member>>,
    keys: AtomicUsize,
    regions_heard: AtomicUsize,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

/// What a service counts.
#[derive(Debug, Default)]
pub struct ServiceCounters {
    /// Rows sent to other regions.
    pub rows_sent: Count,
    /// Rows received from other regions.
    pub rows_received: Count,
    /// Rows that were old.
    pub rows_old: Count,
    /// Rows of policies that are configured differently there.
    pub rows_other_terms: Count,
    /// Rows that say what their region cannot say.
    pub rows_invalid: Count,
    /// Messages from a region that cannot send them.
    pub misdirected: Count,
    /// Membership packets that were dropped.
    pub packets_refused: Count,
    /// How often another node was met that has this node's name.
    pub duplicates: Count,
    /// Loads and swaps that the store did not answer.
    pub store_failures: Count,
    /// Grants that were not said because no replica of their shard had them in time.
    pub held_back: Count,
}

impl Count {
    /// The number so far.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, more: usize) {
        self.0
            .fetch_add(u64::try_from(more).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl ServiceCounters {
    pub(super) fn ignored(&self, reason: Ignored) {
        match reason {
            Ignored::Old => self.rows_old.add(1),
            Ignored::OtherTerms => self.rows_other_terms.add(1),
            Ignored::Invalid => self.rows_invalid.add(1),
        }
    }
}

impl Status {
    /// All members, this node first.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        self.members
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The keys in work.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// The other regions that are heard.
    #[must_use]
    pub fn regions_heard(&self) -> usize {
        self.regions_heard.load(Ordering::Relaxed)
    }

    pub(super) fn set_members(&self, members: Vec<Member>) {
        *self.members.lock().unwrap_or_else(PoisonError::into_inner) = members;
    }

    pub(super) fn note(&self, keys: usize, regions_heard: usize) {
        self.keys.store(keys, Ordering::Relaxed);
        self.regions_heard.store(regions_heard, Ordering::Relaxed);
    }
}
