//! Whether the node lives and whether it should be sent requests.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;

/// One line of the readiness report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What is checked.
    pub name: &'static str,
    /// What is wrong, if anything.
    pub problem: Option<&'static str>,
}

/// The node's readiness. The store is no part of it: without it the policies say what happens, and
/// a fault that all regions share must not take all of them out of service.
#[derive(Debug, Default)]
pub struct Health {
    serving: AtomicBool,
    draining: AtomicBool,
    drain: CancellationToken,
}

impl Health {
    /// The listeners are served from now on.
    pub fn set_serving(&self) {
        self.serving.store(true, Ordering::Release);
    }

    /// The node is about to stop: no more requests should be sent.
    pub fn set_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Asks the node to drain and stop, as a signal does.
    pub fn ask_to_drain(&self) {
        self.drain.cancel();
    }

    /// Waits until somebody has asked the node to drain.
    pub async fn drain_asked(&self) {
        self.drain.cancelled().await;
    }

    /// Whether requests should be sent.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.checks().iter().all(|check| check.problem.is_none())
    }

    /// Every condition of readiness.
    #[must_use]
    pub fn checks(&self) -> [Check; 2] {
        let serving = self.serving.load(Ordering::Acquire);
        let draining = self.draining.load(Ordering::Acquire);
        [
            Check {
                name: "listeners",
                problem: (!serving).then_some("not served yet"),
            },
            Check {
                name: "drain",
                problem: draining.then_some("the node is stopping"),
            },
        ]
    }
}
