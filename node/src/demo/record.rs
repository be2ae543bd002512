//! Every request of the demo in the order of the stores' time, and what an auditor makes of them.

use region::audit::Audit;
use region::limit::Limit;
use region::units::{Timestamp, Tokens};

use super::script::{PHASES, REGIONS};

/// The demo asks for one key.
const KEY: () = ();

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Event {
    /// The store's time of the decision.
    pub(super) at: Timestamp,
    /// The region that decided.
    pub(super) region: usize,
    /// The phase in which it was asked.
    pub(super) phase: usize,
    /// Whether it was admitted.
    pub(super) admitted: bool,
}

/// Requests of one region or phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) offered: u64,
    pub(super) admitted: u64,
    /// What one global bucket would have admitted of them.
    pub(super) allowed: u64,
    /// Requests that were denied although that one bucket would have admitted them.
    pub(super) false_denials: u64,
}

/// All requests so far.
#[derive(Debug)]
pub(super) struct Record {
    auditor: Audit<()>,
    /// One global bucket that is asked instead of the regions.
    ideal: Audit<()>,
    waiting: Vec<Event>,
    pub(super) regions: [Tally; REGIONS.len()],
    pub(super) phases: [Tally; PHASES.len()],
}

impl Tally {
    fn count(&mut self, admitted: bool, allowed: bool) {
        self.offered += 1;
        self.admitted += u64::from(admitted);
        self.allowed += u64::from(allowed);
        self.false_denials += u64::from(allowed && !admitted);
    }

    /// Admitted over what was offered and allowed; one if nothing was.
    #[expect(clippy::cast_precision_loss, reason = "a ratio that people read")]
    pub(super) fn utilisation(&self) -> f64 {
        if self.allowed == 0 {
            1.0
        } else {
            (self.admitted as f64 / self.allowed as f64).min(1.0)
        }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            offered: self.offered + other.offered,
            admitted: self.admitted + other.admitted,
            allowed: self.allowed + other.allowed,
            false_denials: self.false_denials + other.false_denials,
        }
    }
}

impl Record {
    pub(super) fn new(limit: Limit) -> Self {
        Self {
            auditor: Audit::new(limit, 1),
            ideal: Audit::new(limit, 1),
            waiting: Vec::new(),
            regions: Default::default(),
            phases: Default::default(),
        }
    }

    /// Takes in requests, in any order.
    pub(super) fn add(&mut self, events: impl IntoIterator<Item = Event>) {
        self.waiting.extend(events);
    }

    /// Audits everything up to an instant before which nothing can arrive any more.
    pub(super) fn audit(&mut self, until: Timestamp) {
        self.waiting.sort_unstable();
        let ready = self.waiting.partition_point(|event| event.at < until);
        for event in self.waiting.drain(..ready) {
            let allowed = self.ideal.would_admit(&KEY, event.at, Tokens(1));
            if allowed {
                self.ideal.admit(&KEY, event.at, Tokens(1));
            }
            if event.admitted {
                self.auditor.admit(&KEY, event.at, Tokens(1));
            }
            self.regions[event.region].count(event.admitted, allowed);
            self.phases[event.phase].count(event.admitted, allowed);
        }
    }

    pub(super) fn overrun(&self) -> Tokens {
        self.auditor.overrun()
    }

    pub(super) fn admitted(&self) -> Tokens {
        self.auditor.admitted()
    }

    /// Over all phases in which nobody was cut off.
    pub(super) fn utilisation(&self) -> f64 {
        let whole = PHASES
            .iter()
            .zip(self.phases)
            .filter(|(phase, _)| phase.cut.is_none());
        whole
            .map(|(_, tally)| tally)
            .fold(Tally::default(), Tally::plus)
            .utilisation()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn event(at: u64, region: usize, admitted: bool) -> Event {
        Event {
            at: Timestamp(at),
            region,
            phase: 0,
            admitted,
        }
    }

    fn record() -> Record {
        let limit = Limit::try_new(Tokens(10), Duration::from_secs(1), Tokens(2));
        Record::new(limit.expect("an exact limit"))
    }

    #[test]
    fn record_audits_in_the_order_of_time_whatever_the_order_of_arrival() {
        let mut record = record();
        record.add([
            event(300_000, 1, true),
            event(100, 0, true),
            event(100_100, 0, true),
        ]);
        record.audit(Timestamp(1_000_000));
        assert_eq!(
            (record.overrun(), record.admitted()),
            (Tokens(0), Tokens(3))
        );
        assert_eq!(record.phases[0].false_denials, 0);
    }

    #[test]
    fn record_finds_overrun_and_false_denials() {
        let mut record = record();
        record.add((0..4).map(|n| event(1_000 + n, 0, true)));
        record.audit(Timestamp(2_000));
        assert_eq!(record.overrun(), Tokens(2));
        record.add([event(5_000_000, 1, false)]);
        record.audit(Timestamp(6_000_000));
        assert_eq!(record.phases[0].false_denials, 1);
        assert!(record.phases[0].utilisation() >= 1.0);
    }
}
