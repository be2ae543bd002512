//! A server's clock, which can be wrong.

use region::units::{Timestamp, micros};

/// How a server's clock follows true time.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    anchor: Timestamp,
    shown: Timestamp,
    drift_ppm: i64,
    frozen: bool,
}

impl Clock {
    /// A clock that shows `shown` at `now` and is too fast by so many parts in a million.
    pub(super) const fn new(now: Timestamp, shown: Timestamp, drift_ppm: i64) -> Self {
        Self {
            anchor: now,
            shown,
            drift_ppm,
            frozen: false,
        }
    }

    /// What it shows at an instant of true time.
    pub(super) fn reading(&self, now: Timestamp) -> Timestamp {
        if self.frozen {
            return self.shown;
        }
        self.running(now)
    }

    pub(super) fn step(&mut self, now: Timestamp, by_us: i64) {
        let shown = self.running(now);
        self.anchor = now;
        self.shown = Timestamp(shown.0.saturating_add_signed(by_us));
    }

    /// Stops it. It goes on counting inside, for the time when it shows the right time again.
    pub(super) fn freeze(&mut self, now: Timestamp) {
        self.step(now, 0);
        self.frozen = true;
    }

    pub(super) const fn thaw(&mut self) {
        self.frozen = false;
    }

    fn running(&self, now: Timestamp) -> Timestamp {
        let elapsed = micros(now.since(self.anchor));
        let drifted = i128::from(elapsed) * i128::from(self.drift_ppm) / 1_000_000;
        let drifted = i64::try_from(drifted).unwrap_or(0);
        Timestamp((self.shown.0 + elapsed).saturating_add_signed(drifted))
    }
}
