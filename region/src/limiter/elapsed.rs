//! The time by which a node limits in its own memory while a shard, and so its clock, is away.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use governor::clock::Clock;

/// How long it has been since some instant; never goes back.
#[derive(Clone)]
pub(super) struct Elapsed(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Elapsed {
    pub(super) fn new(elapsed: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(elapsed))
    }
}

impl Default for Elapsed {
    fn default() -> Self {
        let start = Instant::now();
        Self::new(move || start.elapsed())
    }
}

impl fmt::Debug for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Elapsed").field(&(self.0)()).finish()
    }
}

impl Clock for Elapsed {
    type Instant = Duration;

    fn now(&self) -> Duration {
        (self.0)()
    }
}
