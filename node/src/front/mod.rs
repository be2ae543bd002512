//! The fronts: how gateways ask, and how they are answered.

pub mod headers;
pub mod http;
pub mod listen;
pub mod rls;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use region::limiter::{Answer, Limiter, Subject, Verdict};
use region::policy::{OnStoreFailure, PolicySet};
use region::store::Store;

use self::headers::Labels;
use crate::config::Reset;
use crate::telemetry::metrics::Metrics;

/// What all fronts share: the decision path, how its answers are told, and what is counted.
pub struct Gate<S> {
    limiter: Arc<Limiter<S>>,
    metrics: Arc<Metrics>,
    labels: Labels,
    reset: Reset,
}

impl<S: Store> Gate<S> {
    /// A gate to the decision path.
    #[must_use]
    pub fn new(limiter: Arc<Limiter<S>>, metrics: Arc<Metrics>, reset: Reset) -> Self {
        Self {
            labels: Labels::new(limiter.policies()),
            limiter,
            metrics,
            reset,
        }
    }

    /// What is counted.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Decides on a request within the time that its caller leaves, and counts the decision.
    pub async fn check(&self, domain: &str, subjects: &[Subject<'_>], most: Duration) -> Answer {
        let answer = self.limiter.check_within(domain, subjects, most).await;
        self.metrics.answered(&answer);
        answer
    }

    /// Gives back what earlier requests consumed.
    pub async fn refund(&self, domain: &str, subjects: &[Subject<'_>]) -> Answer {
        self.limiter.refund(domain, subjects).await
    }

    fn policies(&self) -> &PolicySet {
        self.limiter.policies()
    }
}

impl<S> fmt::Debug for Gate<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

/// Whether a policy denied only because its store does not answer and it says `closed`.
fn is_closed(policies: &PolicySet, verdict: &Verdict) -> bool {
    let policy = policies.policies().get(verdict.policy);
    let closed = policy.is_some_and(|policy| policy.on_store_failure() == OnStoreFailure::Closed);
    closed && verdict.fallback.is_some() && !verdict.decision.allowed
}
