//! What one request asks: the keys it must pay for, by shard.

use super::emergency::{RETRY, Stand};
use super::{Answer, Limiter, Subject, Verdict};
use crate::decision::{Decision, is_possible};
use crate::limit::Split;
use crate::policy::{Attributes, OnStoreFailure, Policy, Rule};
use crate::store::{ShardId, Store, StoreError, Take};
use crate::units::Tokens;

/// A request against the policies that apply to it.
pub(super) struct Request<'p> {
    /// For each subject what decides on it, in policy order.
    pub subjects: Vec<Vec<Part>>,
    /// The keys, each once: what several subjects cost it is added up.
    pub asks: Vec<Ask<'p>>,
    /// Whether a policy that denies everything has already decided.
    pub refused: bool,
}

/// What was decided on a request.
#[derive(Debug, Default)]
pub(super) struct Decided {
    pub passed: bool,
    /// The verdicts on the keys by place; none if a policy that denies everything has decided.
    pub verdicts: Vec<Option<Verdict>>,
    /// Whether other regions could still lend something to every key that denied.
    pub borrows: bool,
}

/// One policy's part in the decision on a subject.
#[derive(Clone, Copy)]
pub(super) enum Part {
    /// A policy that denies everything has decided.
    Decided(Verdict),
    /// The key at this place of `asks` decides.
    Ask(usize),
}

/// A key that must pay.
#[derive(Clone, Copy)]
pub(super) struct Ask<'p> {
    pub policy: &'p Policy,
    pub split: &'p Split,
    pub take: Take,
}

/// The keys of one shard.
pub(super) struct Group {
    pub shard: ShardId,
    /// Their places in the request's `asks`, in the order of `takes`.
    pub places: Vec<usize>,
    pub takes: Vec<Take>,
}

impl<'p> Request<'p> {
    pub(super) fn new<S: Store>(
        limiter: &'p Limiter<S>,
        domain: &str,
        subjects: &[Subject<'_>],
    ) -> Self {
        let mut request = Self {
            subjects: Vec::with_capacity(subjects.len()),
            asks: Vec::new(),
            refused: false,
        };
        for subject in subjects {
            let attributes = Attributes::new(subject.attributes);
            let parts = limiter
                .policies
                .matching(domain, attributes)
                .filter_map(|policy| request.part(limiter, policy, subject))
                .collect();
            request.subjects.push(parts);
        }
        request
    }

    fn part<S: Store>(
        &mut self,
        limiter: &Limiter<S>,
        policy: &'p Policy,
        subject: &Subject<'_>,
    ) -> Option<Part> {
        let split = match policy.rule() {
            Rule::Unlimited => return None,
            Rule::Deny => {
                let decision = Decision::none(subject.cost);
                self.refused |= !decision.allowed;
                return Some(Part::Decided(Verdict {
                    policy: policy.index(),
                    decision,
                    stamp: None,
                    fallback: None,
                }));
            }
            Rule::Bucket(split) => split,
        };
        let key = limiter.key(policy, Attributes::new(subject.attributes))?;
        if let Some(place) = self.asks.iter().position(|ask| ask.take.key == key) {
            let cost = &mut self.asks[place].take.cost;
            *cost = Tokens(cost.0.saturating_add(subject.cost.0));
            return Some(Part::Ask(place));
        }
        let base = policy.base(limiter.region, key.client)?;
        let cost = subject.cost;
        self.asks.push(Ask {
            policy,
            split,
            take: Take {
                key,
                cost,
                base,
                again: false,
            },
        });
        Some(Part::Ask(self.asks.len() - 1))
    }

    /// The keys by shard, in order of first use.
    pub(super) fn groups<S: Store>(&self, store: &S) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::with_capacity(1);
        for (place, ask) in self.asks.iter().enumerate() {
            let shard = store.shard(ask.take.key.client);
            match groups.iter_mut().find(|group| group.shard == shard) {
                Some(group) => {
                    group.places.push(place);
                    group.takes.push(ask.take);
                }
                None => groups.push(Group {
                    shard,
                    places: vec![place],
                    takes: vec![ask.take],
                }),
            }
        }
        groups
    }

    /// Whether no policy of a shard's keys denies while the shard does not answer.
    pub(super) fn open(&self, group: &Group) -> bool {
        let mut asks = group.places.iter().map(|place| &self.asks[*place]);
        asks.all(|ask| ask.on_failure() != OnStoreFailure::Closed)
    }

    /// The answer.
    pub(super) fn answer(&self, decided: &Decided) -> Answer {
        let verdict = |part: &Part| match part {
            Part::Decided(verdict) => Some(*verdict),
            Part::Ask(place) => decided.verdicts.get(*place).copied().flatten(),
        };
        let subjects = self.subjects.iter();
        Answer {
            allowed: decided.passed,
            subjects: subjects
                .map(|parts| parts.iter().filter_map(verdict).collect())
                .collect(),
        }
    }

    /// The same keys, of which nothing is taken.
    pub(super) fn looking(&self) -> Self {
        let mut asks = self.asks.clone();
        for ask in &mut asks {
            ask.take.cost = Tokens(0);
        }
        Self {
            subjects: self.subjects.clone(),
            asks,
            refused: self.refused,
        }
    }
}

impl Ask<'_> {
    pub(super) const fn on_failure(&self) -> OnStoreFailure {
        self.policy.on_store_failure()
    }

    /// The verdict while the shard does not answer; `stand` is what the emergency limiter says.
    pub(super) fn without_store(&self, error: StoreError, stand: Option<Stand>) -> Verdict {
        let limit = self.split.limit();
        let cost = self.take.cost;
        let left = Tokens(limit.rate().0.saturating_sub(cost.0));
        let (allowed, remaining, reset_after, wait) = match (self.on_failure(), stand) {
            (OnStoreFailure::Open, _) => (true, left, None, RETRY),
            (OnStoreFailure::Local, Some(stand)) => (
                stand.affords,
                stand.remaining,
                Some(stand.reset_after),
                stand.retry_after,
            ),
            (OnStoreFailure::Closed | OnStoreFailure::Local, _) => (false, Tokens(0), None, RETRY),
        };
        let possible = is_possible(limit, self.policy.overrun(), cost);
        Verdict {
            policy: self.policy.index(),
            decision: Decision {
                allowed,
                limit: limit.rate(),
                remaining,
                reset_after,
                retry_after: (!allowed && possible).then_some(wait),
            },
            stamp: None,
            fallback: Some(error),
        }
    }
}
