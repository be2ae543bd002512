//! Tokens without rounding, and what has no bound.

use std::time::Duration;

use crate::limit::Limit;
use crate::units::{Level, Share, Tokens, micros};

/// Microseconds in a second.
const SECOND: u128 = 1_000_000;

/// Level units, of which there may be more than a bucket holds; nothing where there is no bound.
/// Saturates, and every division rounds up: what is told is never too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Amount(Option<u128>);

impl Amount {
    pub(super) const ZERO: Self = Self(Some(0));
    pub(super) const UNBOUNDED: Self = Self(None);

    pub(super) fn of(level: Level) -> Self {
        Self(Some(level.positive().0.unsigned_abs().into()))
    }

    /// What flows in each second at a share.
    pub(super) fn each_second(limit: &Limit, share: Share) -> Self {
        let ticks = SECOND / u128::from(limit.tick().micros());
        Self(Some(u128::from(share.0).saturating_mul(ticks)))
    }

    pub(super) fn plus(self, other: Self) -> Self {
        let both = self.0.zip(other.0);
        Self(both.map(|(one, other)| one.saturating_add(other)))
    }

    pub(super) fn times(self, times: u32) -> Self {
        let times = u128::from(times);
        Self(self.0.map(|units| units.saturating_mul(times)))
    }

    /// What comes together in a span at so much each second.
    pub(super) fn over(self, span: Duration) -> Self {
        let span = u128::from(micros(span));
        let units = self.0.map(|units| units.saturating_mul(span));
        Self(units.map(|units| units.div_ceil(SECOND)))
    }

    /// One of so many parts.
    pub(super) fn part(self, parts: u128) -> Self {
        Self(self.0.map(|units| units.div_ceil(parts)))
    }

    pub(super) fn at_most(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Some(one), Some(other)) => Self(Some(one.min(other))),
            (one, other) => Self(one.or(other)),
        }
    }

    /// In whole tokens, rounded up; `None` where there is no bound.
    pub(super) fn tokens(self, limit: &Limit) -> Option<Tokens> {
        let token = u128::from(limit.token().0.unsigned_abs());
        let tokens = self.0?.div_ceil(token);
        Some(Tokens(u64::try_from(tokens).unwrap_or(u64::MAX)))
    }
}
