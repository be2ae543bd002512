//! Waiting for what other regions lend instead of denying, where a policy asks for it
//! (`borrow_wait`, PROTOCOL 1 "Autonomy").
//!
//! A request that waits holds nothing, neither tokens nor a lock. It tries again from time to time,
//! each time all or nothing, because the grant may be applied by any node of the region. Every try
//! that is denied says again that its keys are due; as offered it is counted once.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use super::request::{Decided, Request};
use super::{Answer, Limiter};
use crate::policy::Scope;
use crate::store::Store;

/// The most requests of a node that wait at once; what comes beyond is denied at once.
pub const WAITING_MAX: usize = 256;

/// The pauses between tries: as long as the denial says, but no shorter and no longer than these.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// Measures pauses: the limiter has no clock to wait by.
pub trait Timer: Send + Sync {
    /// A future that is done once `span` has passed.
    fn after(&self, span: Duration) -> Pause;
}

/// A pause that has begun.
pub type Pause = Pin<Box<dyn Future<Output = ()> + Send>>;

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitEnd {
    /// The request passed in the end.
    Admitted,
    /// It did not.
    Denied,
    /// Its caller has gone.
    Abandoned,
    /// It was denied at once, because too many were waiting.
    NoPlace,
}

/// The requests of a node that wait, and what has become of those that did.
#[derive(Default)]
pub struct Waits {
    timer: Option<Arc<dyn Timer>>,
    waiting: AtomicUsize,
    over: AtomicBool,
    ended: [AtomicU64; WaitEnd::ALL.len()],
}

/// The place of one request among those that wait, and how its wait ends if it ends now.
pub(super) struct Place<'w> {
    waits: &'w Waits,
    timer: &'w dyn Timer,
    end: WaitEnd,
}

impl WaitEnd {
    /// Every end, in the order of the variants.
    pub const ALL: [Self; 4] = [Self::Admitted, Self::Denied, Self::Abandoned, Self::NoPlace];

    /// A word for metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Denied => "denied",
            Self::Abandoned => "abandoned",
            Self::NoPlace => "no_place",
        }
    }
}

impl Waits {
    pub(super) fn new(timer: Arc<dyn Timer>) -> Self {
        Self {
            timer: Some(timer),
            ..Self::default()
        }
    }

    /// How many requests wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// How many waits have ended so.
    #[must_use]
    pub fn ended(&self, end: WaitEnd) -> u64 {
        self.ended[end as usize].load(Ordering::Relaxed)
    }

    /// Has every wait end with its next try, and lets no new one begin: the node is about to stop.
    pub fn end_all(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// A place to wait in, if there is one left.
    pub(super) fn enter(&self) -> Option<Place<'_>> {
        let timer = self.timer.as_deref()?;
        if self.are_over() {
            return None;
        }
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.count(WaitEnd::NoPlace);
            return None;
        }
        Some(Place {
            waits: self,
            timer,
            end: WaitEnd::Abandoned,
        })
    }

    fn are_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn count(&self, end: WaitEnd) {
        self.ended[end as usize].fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waits")
            .field("waiting", &self.waiting)
            .field("over", &self.over)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.waits.waiting.fetch_sub(1, Ordering::Relaxed);
        self.waits.count(self.end);
    }
}

impl Request<'_> {
    /// The pause before a denied request is worth another try; `None` if it is not: it has passed,
    /// or a policy denies that does not wait, or to which nothing more can be lent.
    pub(super) fn pause(&self, decided: &Decided) -> Option<Duration> {
        if decided.passed || !decided.borrows || self.refused {
            return None;
        }
        let mut pause = PAUSE_MIN;
        for (ask, verdict) in self.asks.iter().zip(&decided.verdicts) {
            let denial = verdict.as_ref()?;
            if denial.decision.allowed {
                continue;
            }
            let waits = ask.policy.scope() == Scope::Global && !ask.policy.borrow_wait().is_zero();
            if !waits || denial.fallback.is_some() {
                return None;
            }
            pause = pause.max(denial.decision.retry_after?);
        }
        Some(pause.min(PAUSE_MAX))
    }

    /// How long it may wait: what the least patient of its policies says that wait at all.
    fn patience(&self) -> Duration {
        let waits = self.asks.iter().map(|ask| ask.policy.borrow_wait());
        waits
            .filter(|wait| !wait.is_zero())
            .min()
            .unwrap_or_default()
    }
}

impl<S: Store> Limiter<S> {
    /// Tries a denied request again until it passes, waiting makes no more sense, or its time is
    /// over.
    pub(super) async fn wait(
        &self,
        mut request: Request<'_>,
        mut decided: Decided,
        (mut place, most): (Place<'_>, Duration),
    ) -> Answer {
        for ask in &mut request.asks {
            ask.take.again = true;
        }
        let mut deadline = place.timer.after(request.patience().min(most));
        while let Some(pause) = request.pause(&decided) {
            let pause = place.timer.after(pause);
            let last = first(&mut deadline, pause).await || self.waits.are_over();
            if last || self.would_pass(&request).await {
                decided = self.decide(&request).await;
            }
            if last {
                break;
            }
        }
        place.end = if decided.passed {
            WaitEnd::Admitted
        } else {
            WaitEnd::Denied
        };
        request.answer(&decided)
    }

    /// Whether a try over several shards is worth it: a look first, so that tokens do not leave one
    /// shard again and again only to be given back. A try on one shard is as cheap as a look.
    async fn would_pass(&self, request: &Request<'_>) -> bool {
        if request.groups(&self.store).len() < 2 {
            return true;
        }
        let looked = self.decide(&request.looking()).await;
        let mut worth = true;
        for (ask, verdict) in request.asks.iter().zip(&looked.verdicts) {
            let Some(verdict) = verdict else { continue };
            if verdict.fallback.is_none() && verdict.decision.remaining < ask.take.cost {
                worth = false;
                self.press(ask.take.key, (true, true), ask.take.cost);
            }
        }
        worth
    }
}

/// Waits for a pause, but no longer than until the deadline; says whether that has come.
async fn first(deadline: &mut Pause, mut pause: Pause) -> bool {
    poll_fn(|context| {
        match (
            deadline.as_mut().poll(context),
            pause.as_mut().poll(context),
        ) {
            (Poll::Ready(()), _) => Poll::Ready(true),
            (Poll::Pending, Poll::Ready(())) => Poll::Ready(false),
            (Poll::Pending, Poll::Pending) => Poll::Pending,
        }
    })
    .await
}
