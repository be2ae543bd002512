//! What the faults of a run may cost each key: the bound of production (PROTOCOL 6).

use std::time::Duration;

use region::bound::{Bound, Fault};
use region::bucket::Lost;
use region::ledger::{CLOCK_MARGIN, GRANT_TTL};
use region::policy::Policy;
use region::units::{Timestamp, Tokens};

#[derive(Clone, Debug)]
pub(super) struct Costs {
    bound: Bound,
    lost: Lost,
    overrun: Tokens,
    keys: Vec<Cost>,
}

/// What has happened to one key so far.
#[derive(Clone, Debug)]
struct Cost {
    faults: Vec<Fault>,
    /// How far clocks have stepped back. Within the margin that costs nothing.
    back: Duration,
    allowed: Tokens,
    unsettled_until: Timestamp,
}

impl Costs {
    pub(super) fn new(policy: &Policy, keys: usize) -> Self {
        let bound = Bound::of(policy).expect("its only policy is global");
        let cost = Cost {
            faults: Vec::new(),
            back: Duration::ZERO,
            allowed: total(&bound, &[]),
            unsettled_until: Timestamp(0),
        };
        Self {
            bound,
            lost: policy.on_store_loss(),
            overrun: policy.overrun(),
            keys: vec![cost; keys],
        }
    }

    /// The tokens that may be admitted to a key beyond its limit.
    pub(super) fn allowed(&self, key: usize) -> Tokens {
        self.keys[key].allowed
    }

    /// The same without what regions may go into debt, which is no fault.
    pub(super) fn of_faults(&self, key: usize) -> Tokens {
        Tokens(self.keys[key].allowed.0 - self.overrun.0)
    }

    /// The most of any key.
    pub(super) fn most(&self) -> Tokens {
        let all = self.keys.iter().map(|cost| cost.allowed);
        all.max().unwrap_or_default()
    }

    /// Whether shares of a key may be used twice, because of a fault that lasts or whose loans may
    /// still be in use.
    pub(super) fn unsettled(&self, key: usize, now: Timestamp) -> bool {
        now < self.keys[key].unsettled_until
    }

    /// Something happens to the shard of a key that lasts for a while.
    pub(super) fn happens(
        &mut self,
        key: usize,
        fault: Fault,
        (now, lasts): (Timestamp, Duration),
    ) {
        let cost = &mut self.keys[key];
        cost.faults.push(fault);
        let steps = cost.steps();
        let twice = match fault {
            Fault::StoreLoss(_) => self.lost == Lost::Full,
            Fault::UndetectedStoreLoss(_) | Fault::TwoPrimaries(_) => true,
            Fault::ClockStep(_) => steps > CLOCK_MARGIN,
            Fault::Network
            | Fault::Outage(_)
            | Fault::ClockRate(_)
            | Fault::LimitChange(_)
            | Fault::FirstStart(_) => false,
        };
        if twice {
            cost.unsettled(now.plus(lasts));
        }
        self.add_up(key);
    }

    /// The clock of a key's shard steps back.
    pub(super) fn steps_back(&mut self, key: usize, by: Duration, now: Timestamp) {
        let cost = &mut self.keys[key];
        cost.back += by;
        if cost.steps() > CLOCK_MARGIN {
            cost.unsettled(now.plus(by));
        }
        self.add_up(key);
    }

    fn add_up(&mut self, key: usize) {
        let cost = &mut self.keys[key];
        let mut faults = cost.faults.clone();
        if cost.steps() > CLOCK_MARGIN {
            faults.push(Fault::ClockStep(cost.back));
        }
        cost.allowed = total(&self.bound, &faults);
    }
}

impl Cost {
    /// How far clocks have stepped, ahead and back.
    fn steps(&self) -> Duration {
        let ahead = self.faults.iter().map(|fault| match fault {
            Fault::ClockStep(span) => *span,
            _ => Duration::ZERO,
        });
        self.back + ahead.sum::<Duration>()
    }

    /// A loan that is in use now may be used for its life and what the lender adds.
    fn unsettled(&mut self, from: Timestamp) {
        let until = from.plus(GRANT_TTL + CLOCK_MARGIN);
        self.unsettled_until = self.unsettled_until.max(until);
    }
}

fn total(bound: &Bound, faults: &[Fault]) -> Tokens {
    bound.total(faults).unwrap_or(Tokens(u64::MAX))
}
