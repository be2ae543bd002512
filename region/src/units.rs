//! The numbers of the protocol as types: tokens, shares, levels, ticks, stamps and ids.
//!
//! A *level* counts level units, a *share* counts level units per tick, so a refill is one
//! multiplication and one addition (PROTOCOL 7). All arithmetic is checked or saturates; nothing
//! here can wrap.

use std::fmt;
use std::time::Duration;

/// The largest integer that Lua's numbers, and so the Redis scripts, hold exactly.
pub const EXACT_MAX: u64 = (1 << 53) - 1;

/// Whole tokens: what a request costs and what an operator configures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tokens(pub u64);

/// Level units in a bucket, a capacity or a parcel of tokens; negative while in debt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(pub i64);

/// Level units that flow in per tick: a region's part of a limit, or a rate of demand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(pub u64);

/// An instant on the clock of one shard, in microseconds since the Unix epoch.
///
/// Only instants of the same shard may be compared; see [`Stamp`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

/// An instant on the clock of one shard, in ticks of the limit it belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticks(pub u64);

/// The length of a tick: how finely a limit measures time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tick {
    /// One microsecond, for limits whose period is at most a minute.
    Micro,
    /// One millisecond, for longer periods.
    Milli,
}

/// What a shard remembers since: grows whenever the shard has, or may have, forgotten something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

/// An instant of one shard's memory. Compared only with stamps of the same region and shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// The generation of the shard's memory.
    pub generation: Generation,
    /// The shard's clock.
    pub clock: Timestamp,
}

/// A number that never repeats and never goes back, even over a loss of memory: the version of a
/// row or the sequence of a grant. `n` starts at the shard's clock in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence {
    /// The generation in which the number was issued.
    pub generation: Generation,
    /// The number within the generation.
    pub n: u64,
}

/// A region: its place in the alphabetical list of the configured regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u16);

/// Who a limit is kept for: a keyed hash of the domain and of the policy's key attributes.
///
/// Policies that are keyed by the same attributes of the same client share it, and with it the
/// shard. Nothing of the client can be read from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Client(pub u128);

/// A policy: a hash of its domain and name, the same in every region and every version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyId(pub u64);

/// One limit of one client: what a bucket and a ledger are kept for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Who the limit is kept for.
    pub client: Client,
    /// Which policy it comes from.
    pub policy: PolicyId,
}

impl Level {
    /// No tokens at all.
    pub const ZERO: Self = Self(0);

    /// Adds, saturating.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Subtracts, saturating.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The level itself, or zero while in debt.
    #[must_use]
    pub fn positive(self) -> Self {
        self.max(Self::ZERO)
    }
}

impl Share {
    /// Nothing flows in.
    pub const ZERO: Self = Self(0);

    /// Adds, saturating.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Subtracts, stopping at zero.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// What flows in during `elapsed` ticks, saturating.
    #[must_use]
    pub fn over(self, elapsed: Ticks) -> Level {
        Level(i64::try_from(self.0.saturating_mul(elapsed.0)).unwrap_or(i64::MAX))
    }
}

impl std::iter::Sum for Share {
    fn sum<I: Iterator<Item = Self>>(shares: I) -> Self {
        shares.fold(Self::ZERO, Self::plus)
    }
}

impl Timestamp {
    /// After every instant that a clock shows.
    pub const NEVER: Self = Self(u64::MAX);

    /// The instant `span` later, saturating.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(micros(span)))
    }

    /// The instant `span` earlier, or the epoch.
    #[must_use]
    pub fn minus(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(micros(span)))
    }

    /// The time since `earlier`, zero if that lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Ticks {
    /// After every instant that a clock shows: the end of a piece that does not end.
    pub const NEVER: Self = Self(u64::MAX);

    /// The ticks since `earlier`, zero if that lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl Tick {
    /// The tick of a limit with this period (PROTOCOL 7).
    #[must_use]
    pub fn of(period: Duration) -> Self {
        if period <= Duration::from_secs(60) {
            Self::Micro
        } else {
            Self::Milli
        }
    }

    /// The length in microseconds.
    #[must_use]
    pub const fn micros(self) -> u64 {
        match self {
            Self::Micro => 1,
            Self::Milli => 1_000,
        }
    }

    /// The tick that contains `at`: the last one that has begun.
    #[must_use]
    pub const fn floor(self, at: Timestamp) -> Ticks {
        if at.0 == u64::MAX {
            Ticks::NEVER
        } else {
            Ticks(at.0 / self.micros())
        }
    }

    /// The first tick that begins at `at` or later.
    #[must_use]
    pub const fn ceil(self, at: Timestamp) -> Ticks {
        if at.0 == u64::MAX {
            Ticks::NEVER
        } else {
            Ticks(at.0.div_ceil(self.micros()))
        }
    }

    /// `span` in ticks, rounded up.
    #[must_use]
    pub fn ticks(self, span: Duration) -> Ticks {
        Ticks(micros(span).div_ceil(self.micros()))
    }

    /// `ticks` as a span, saturating.
    #[must_use]
    pub const fn span(self, ticks: Ticks) -> Duration {
        Duration::from_micros(ticks.0.saturating_mul(self.micros()))
    }
}

impl Sequence {
    /// The number that follows, in the generation `now` belongs to.
    ///
    /// A number of an older generation, or none, is followed by the shard's clock.
    #[must_use]
    pub fn next(self, now: Stamp) -> Self {
        let n = if self.generation == now.generation {
            self.n.saturating_add(1).max(now.clock.0)
        } else {
            now.clock.0
        };
        Self {
            generation: now.generation,
            n,
        }
    }
}

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Whole microseconds of a span, saturating.
#[must_use]
pub fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// `a * b / c`, rounded down, without losing the product; saturates at `u64::MAX`.
///
/// # Panics
/// If `c` is zero: every caller divides by a limit's total or by a span it has checked.
#[must_use]
pub fn mul_div(a: u64, b: u64, c: u64) -> u64 {
    assert!(c != 0, "division by an empty total");
    u64::try_from(u128::from(a) * u128::from(b) / u128::from(c)).unwrap_or(u64::MAX)
}
