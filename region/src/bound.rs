//! By how much a limit can be exceeded: the table of PROTOCOL 6 in numbers, for one policy.
//!
//! Every figure is for one key, over all regions together, and for a fault in one region: the one
//! where it costs most, at the worst moment. Why each is what it is stands in PROTOCOL 6.

mod amount;
mod fault;
mod lines;

use std::time::Duration;

use self::amount::Amount;
pub use self::fault::{Fault, FaultError};
use self::lines::Worst;
use crate::ledger::CLOCK_MARGIN;
use crate::limit::Limit;
use crate::policy::{Policy, Scope};
use crate::units::Tokens;

/// By how much one policy's limit can be exceeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    limit: Limit,
    lines: Vec<Line>,
}

/// One source of overrun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// What it comes from.
    pub source: Source,
    /// The most that it adds for each of `per`, in whole tokens, rounded up; `None` where there is
    /// no bound.
    pub tokens: Option<Tokens>,
    /// What it is counted by.
    pub per: Per,
    /// The most that it adds at a time, however long it lasts.
    pub most: Option<Tokens>,
    /// What it consists of, for whoever runs an API.
    pub why: &'static str,
    amount: Amount,
    ceiling: Amount,
}

/// What a figure is counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Per {
    /// Not at all: it is there once, whatever happens.
    Once,
    /// Each time that it happens.
    Event,
    /// Each period of the limit that it lasts, or that a clock steps.
    Period,
}

/// What overrun can come from, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// The policy's `overrun`.
    Overrun,
    /// Capacity below one token.
    BelowOneToken,
    /// Tokens that nodes have taken out of their bucket.
    Leases,
    /// Partitions, delay, loss, repetition, reordering; nodes that crash.
    Network,
    /// A store that forgets and shows it.
    StoreLoss,
    /// A store that forgets and does not show it.
    UndetectedStoreLoss,
    /// Two primaries: what is there at once, and loans that are used twice.
    TwoPrimaries,
    /// Two primaries: what flows in twice.
    TwoPrimariesRate,
    /// A store that does not answer: what is there at once.
    Outage,
    /// A store that does not answer: what flows in.
    OutageRate,
    /// Clocks that go at different rates.
    ClockRate,
    /// A store's clock that jumps ahead: what refills at once.
    ClockStep,
    /// A store's clock that jumps by more than the margin: loans that are used twice.
    ClockStepLoans,
    /// Regions with different limits: what is there at once.
    LimitChange,
    /// Regions with different limits: what flows in.
    LimitChangeRate,
    /// `--first-start` of a store that had lost its memory.
    FirstStart,
}

impl Bound {
    /// The sources of overrun of a policy whose limit the regions share; `None` for others, which
    /// promise nothing over all regions.
    #[must_use]
    pub fn of(policy: &Policy) -> Option<Self> {
        let split = policy.split().filter(|_| policy.scope() == Scope::Global)?;
        let lines = Worst::of(policy, split).lines(policy);
        Some(Self {
            limit: *split.limit(),
            lines,
        })
    }

    /// Each source, in the order of the table.
    #[must_use]
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// The most by which the limit can be exceeded if these faults happen and no others, in whole
    /// tokens; `None` where there is no bound.
    #[must_use]
    pub fn total(&self, faults: &[Fault]) -> Option<Tokens> {
        let always = self.lines.iter().filter(|line| line.per == Per::Once);
        let always = always.map(|line| line.amount);
        let faults_alone = faults.iter().map(|fault| self.cost(*fault));
        let sum = always.chain(faults_alone).fold(Amount::ZERO, Amount::plus);
        sum.plus(self.loans_of_steps(faults)).tokens(&self.limit)
    }

    /// What one fault adds, but for the loans that steps of clocks prolong.
    fn cost(&self, fault: Fault) -> Amount {
        let figure = |source| self.line(source).amount;
        let both = |once, rate, span: Duration| figure(once).plus(figure(rate).over(span));
        match fault {
            Fault::Network => figure(Source::Network),
            Fault::StoreLoss(times) => figure(Source::StoreLoss).times(times),
            Fault::UndetectedStoreLoss(times) => figure(Source::UndetectedStoreLoss).times(times),
            Fault::FirstStart(times) => figure(Source::FirstStart).times(times),
            Fault::TwoPrimaries(span) => both(Source::TwoPrimaries, Source::TwoPrimariesRate, span),
            Fault::Outage(span) => both(Source::Outage, Source::OutageRate, span),
            Fault::LimitChange(span) => both(Source::LimitChange, Source::LimitChangeRate, span),
            Fault::ClockRate(span) => figure(Source::ClockRate).over(span),
            Fault::ClockStep(span) => {
                let line = self.line(Source::ClockStep);
                line.amount.over(span).at_most(line.ceiling)
            }
        }
    }

    /// Loans are used twice for what all steps together exceed the margin by: several steps can
    /// fall into the lifetime of one loan.
    fn loans_of_steps(&self, faults: &[Fault]) -> Amount {
        let steps = faults.iter().map(|fault| match fault {
            Fault::ClockStep(span) => *span,
            Fault::Network
            | Fault::StoreLoss(_)
            | Fault::UndetectedStoreLoss(_)
            | Fault::TwoPrimaries(_)
            | Fault::Outage(_)
            | Fault::ClockRate(_)
            | Fault::LimitChange(_)
            | Fault::FirstStart(_) => Duration::ZERO,
        });
        let sum = steps.fold(Duration::ZERO, Duration::saturating_add);
        let loans = self.line(Source::ClockStepLoans).amount;
        loans.over(sum.saturating_sub(CLOCK_MARGIN))
    }

    fn line(&self, source: Source) -> &Line {
        let line = self.lines.iter().find(|line| line.source == source);
        line.expect("every source has its line")
    }
}

impl Source {
    /// Its name, as in the label of the metric.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Overrun => "overrun",
            Self::BelowOneToken => "below-one-token",
            Self::Leases => "leases",
            Self::Network => "network",
            Self::StoreLoss => "store-loss",
            Self::UndetectedStoreLoss => "undetected-store-loss",
            Self::TwoPrimaries => "two-primaries",
            Self::TwoPrimariesRate => "two-primaries-rate",
            Self::Outage => "outage",
            Self::OutageRate => "outage-rate",
            Self::ClockRate => "clock-rate",
            Self::ClockStep => "clock-step",
            Self::ClockStepLoans => "clock-step-loans",
            Self::LimitChange => "limit-change",
            Self::LimitChangeRate => "limit-change-rate",
            Self::FirstStart => "first-start",
        }
    }
}

impl Per {
    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Event => "event",
            Self::Period => "period",
        }
    }
}
