//! The auditor: one ideal token bucket that sees every admission of every region.
//!
//! The largest debt that it runs into is the overrun, the largest excess of what was admitted over
//! `rate * time + burst` in any interval (PROTOCOL 1 and 8).

use crate::limit::Limit;
use crate::units::{Level, Ticks, Timestamp, Tokens};

/// An ideal bucket that admits everything and remembers its largest debt.
#[derive(Clone, Debug)]
pub struct Auditor {
    limit: Limit,
    level: Level,
    at: Ticks,
    worst: Level,
    admitted: Tokens,
}

impl Auditor {
    /// Starts full, with nothing admitted.
    #[must_use]
    pub fn new(limit: Limit) -> Self {
        let full = limit.level(limit.burst());
        Self {
            limit,
            level: full,
            at: Ticks(0),
            worst: full,
            admitted: Tokens(0),
        }
    }

    /// Counts an admission. Admissions come in the order of time; one that is out of order counts
    /// at the time already reached, which can only make the overrun look larger.
    pub fn admit(&mut self, at: Timestamp, cost: Tokens) {
        self.advance(at);
        self.level = self.level.minus(self.limit.level(cost));
        self.worst = self.worst.min(self.level);
        self.admitted = Tokens(self.admitted.0.saturating_add(cost.0));
    }

    /// Whether the ideal bucket itself would admit a cost now.
    pub fn would_admit(&mut self, at: Timestamp, cost: Tokens) -> bool {
        self.advance(at);
        self.level >= self.limit.level(cost)
    }

    /// The tokens admitted beyond the limit, rounded up; zero means that all regions together
    /// behaved as one bucket.
    #[must_use]
    pub fn overrun(&self) -> Tokens {
        let debt = Level(self.worst.0.saturating_neg())
            .positive()
            .0
            .unsigned_abs();
        Tokens(debt.div_ceil(self.limit.token().0.unsigned_abs()))
    }

    /// All tokens admitted.
    #[must_use]
    pub const fn admitted(&self) -> Tokens {
        self.admitted
    }

    fn advance(&mut self, at: Timestamp) {
        let now = self.limit.tick().floor(at).max(self.at);
        let full = self.limit.level(self.limit.burst());
        let refill = self.limit.total().over(now.since(self.at));
        self.level = self.level.plus(refill).min(full);
        self.at = now;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn auditor() -> Auditor {
        let limit = Limit::try_new(Tokens(10), Duration::from_secs(1), Tokens(5));
        Auditor::new(limit.expect("an exact limit"))
    }

    #[test]
    fn auditor_sees_no_overrun_in_what_one_bucket_admits() {
        let mut auditor = auditor();
        for n in 0..100_u64 {
            let at = Timestamp(1_000_000 + n * 10_000);
            if auditor.would_admit(at, Tokens(1)) {
                auditor.admit(at, Tokens(1));
            }
        }
        assert_eq!(auditor.overrun(), Tokens(0));
        assert_eq!(auditor.admitted(), Tokens(14));
    }

    #[test]
    fn auditor_finds_the_worst_interval_wherever_it_lies() {
        let mut auditor = auditor();
        auditor.admit(Timestamp(1_000_000), Tokens(5));
        auditor.admit(Timestamp(1_100_000), Tokens(4));
        assert_eq!(auditor.overrun(), Tokens(3));
        auditor.admit(Timestamp(9_000_000), Tokens(5));
        assert_eq!(
            auditor.overrun(),
            Tokens(3),
            "a later quiet time does not undo it"
        );
    }
}
