//! The figures themselves. PROTOCOL 6 says why each is what it is, under the same names.

use std::time::Duration;

use super::{Amount, Line, Per, Source};
use crate::bucket::{Base, Lost};
use crate::ledger::{CLOCK_MARGIN, GRANT_TTL};
use crate::limit::Split;
use crate::policy::{OnStoreFailure, Policy};
use crate::units::{Client, Level, RegionId, Share};

/// The error of clock rates that the promise allows for is one part in this many.
const CLOCK_RATE_PARTS: u128 = 1_000;

/// What the lines are made of: for each figure the region where it is largest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Worst<'a> {
    split: &'a Split,
    /// Whether there is another region that could borrow.
    lends: bool,
    /// The largest base share of a region.
    base: Share,
    /// The capacity that goes with a base share.
    base_capacity: Level,
    /// The same, and how far the region may go into debt.
    from_debt_to_base: Level,
    /// From the debt of a region to the capacity of the whole limit, if it has borrowed all.
    from_debt_to_all: Level,
    /// The most of what is lent that one region's clock governs: all that is lent by it, or to it.
    governed: Share,
    /// The longest time in which a schedule that has been forgotten about goes on.
    forgotten: Duration,
}

impl<'a> Worst<'a> {
    pub(super) fn of(policy: &Policy, split: &'a Split) -> Self {
        let total = split.limit().total();
        let lends = split.regions() > 1;
        let mut worst = Self {
            split,
            lends,
            base: Share::ZERO,
            base_capacity: Level::ZERO,
            from_debt_to_base: Level::ZERO,
            from_debt_to_all: Level::ZERO,
            governed: Share::ZERO,
            forgotten: Duration::ZERO,
        };
        let regions = u16::try_from(split.regions()).unwrap_or(u16::MAX);
        for region in (0..regions).map(RegionId) {
            let (least, most) = split.base_range(region).into_inner();
            let Some(base) = policy.base(region, Client::default()) else {
                continue;
            };
            let (share, capacity) = (most, split.capacity(most));
            let fills = Base {
                share,
                capacity,
                ..base
            }
            .fill_time();
            let from_debt = |capacity: Level| capacity.plus(base.debt);
            let all = from_debt(split.capacity(total));
            worst.base = worst.base.max(most);
            worst.base_capacity = worst.base_capacity.max(capacity);
            worst.from_debt_to_base = worst.from_debt_to_base.max(from_debt(capacity));
            worst.from_debt_to_all = worst.from_debt_to_all.max(all);
            worst.forgotten = worst.forgotten.max((GRANT_TTL + CLOCK_MARGIN) * 3 + fills);
            if lends {
                worst.governed = worst.governed.max(most).max(total.minus(least));
            }
        }
        worst
    }

    /// Every line, in the order of the table.
    pub(super) fn lines(&self, policy: &Policy) -> Vec<Line> {
        let stores = self.stores(policy.on_store_loss());
        let clocks = self.clocks();
        let lines = [
            self.without_fault(policy),
            stores,
            self.outage(policy.on_store_failure()),
            clocks,
            self.operators(),
        ];
        lines.concat()
    }

    fn without_fault(&self, policy: &Policy) -> Vec<Line> {
        let overrun = self.split.limit().level(policy.overrun());
        vec![
            self.line(
                Source::Overrun,
                Per::Once,
                Amount::of(overrun),
                "what the policy allows its regions together; repaid from refill",
            ),
            self.line(
                Source::BelowOneToken,
                Per::Once,
                Amount::ZERO,
                "small limits are dealt to the regions in whole tokens",
            ),
            self.line(
                Source::Leases,
                Per::Once,
                Amount::ZERO,
                "nodes keep no tokens of their own",
            ),
            self.line(
                Source::Network,
                Per::Event,
                Amount::ZERO,
                "cut, slow or lossy links and crashes lose tokens, but make none",
            ),
        ]
    }

    fn stores(&self, lost: Lost) -> Vec<Line> {
        let total = self.split.limit().total();
        let (at_loss, why_at_loss) = match lost {
            Lost::Empty => (
                Amount::ZERO,
                "`empty`: keys start used up, and the base rests until loans are over",
            ),
            Lost::Full => (
                self.starts_full(),
                "`full`: keys start full, and loans are used twice until they end",
            ),
        };
        let twice = match lost {
            Lost::Empty => self.pooled(self.base),
            Lost::Full => Amount::of(self.from_debt_to_base),
        };
        let back = Amount::of(self.from_debt_to_all).plus(self.pooled(total));
        vec![
            self.line(Source::StoreLoss, Per::Event, at_loss, why_at_loss),
            self.line(
                Source::UndetectedStoreLoss,
                Per::Event,
                back.plus(self.until_loans_end(total)),
                "deleted or rolled back keys: a full region, old tokens again, loans used twice",
            ),
            self.line(
                Source::TwoPrimaries,
                Per::Event,
                twice.plus(self.until_loans_end(total)),
                "both use loans, and what the one that goes had lent ends later",
            ),
            self.line(
                Source::TwoPrimariesRate,
                Per::Period,
                self.each_second(self.base),
                "both use the base share of the region",
            ),
        ]
    }

    fn outage(&self, mode: OnStoreFailure) -> Vec<Line> {
        let [at_once, rate] = match mode {
            OnStoreFailure::Closed => [(Amount::ZERO, "`closed`: requests are denied"); 2],
            OnStoreFailure::Open => [(Amount::UNBOUNDED, "`open`: requests pass"); 2],
            OnStoreFailure::Local => [
                (
                    Amount::of(self.base_capacity),
                    "`local`: emergency buckets start full, with the capacity of the base",
                ),
                (
                    self.each_second(self.base),
                    "`local`: they refill at the base share of the region",
                ),
            ],
        };
        vec![
            self.line(Source::Outage, Per::Event, at_once.0, at_once.1),
            self.line(Source::OutageRate, Per::Period, rate.0, rate.1),
        ]
    }

    fn clocks(&self) -> Vec<Line> {
        let rate = self.each_second(self.split.limit().total());
        let ceiling = Amount::of(self.from_debt_to_all);
        let step = self.line(
            Source::ClockStep,
            Per::Period,
            rate,
            "a clock that jumps ahead refills for what it skips, up to a full region",
        );
        vec![
            self.line(
                Source::ClockRate,
                Per::Period,
                rate.part(CLOCK_RATE_PARTS),
                "clocks may run too fast by one part in a thousand",
            ),
            Line {
                most: ceiling.tokens(self.split.limit()),
                ceiling,
                ..step
            },
            self.line(
                Source::ClockStepLoans,
                Per::Period,
                self.each_second(self.governed),
                "loans are used twice for what a clock jumps beyond 500 ms",
            ),
        ]
    }

    fn operators(&self) -> Vec<Line> {
        let limit = self.split.limit();
        let rate = self.each_second(limit.total());
        let once = Amount::of(limit.level(limit.burst()));
        vec![
            self.line(
                Source::LimitChange,
                Per::Event,
                once.plus(rate.over(self.forgotten)),
                "beyond the larger one: a burst, and a rate until old shares run out",
            ),
            self.line(
                Source::LimitChangeRate,
                Per::Period,
                rate,
                "beyond the larger one: a rate until each region as a whole has changed",
            ),
            self.line(
                Source::FirstStart,
                Per::Event,
                self.starts_full(),
                "`--first-start` of a store that is not new: as a loss with `full`",
            ),
        ]
    }

    /// A key that starts full at its base, in a region that knows of none of its loans.
    fn starts_full(&self) -> Amount {
        Amount::of(self.from_debt_to_base).plus(self.until_loans_end(self.base))
    }

    /// The capacity that moves with a share when it is lent.
    fn pooled(&self, share: Share) -> Amount {
        let moved = self.lends.then(|| self.split.lent_capacity(share));
        Amount::of(moved.unwrap_or_default())
    }

    /// What a lent share brings until its loan ends.
    fn until_loans_end(&self, share: Share) -> Amount {
        let lent = if self.lends { share } else { Share::ZERO };
        self.each_second(lent).over(GRANT_TTL)
    }

    fn each_second(&self, share: Share) -> Amount {
        Amount::each_second(self.split.limit(), share)
    }

    /// A line; `amount` is for each second where the figure grows with time.
    fn line(&self, source: Source, per: Per, amount: Amount, why: &'static str) -> Line {
        let limit = self.split.limit();
        let told = match per {
            Per::Once | Per::Event => amount,
            Per::Period => amount.over(limit.per()),
        };
        Line {
            source,
            tokens: told.tokens(limit),
            per,
            most: None,
            why,
            amount,
            ceiling: Amount::UNBOUNDED,
        }
    }
}
