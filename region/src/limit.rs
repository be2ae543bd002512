//! The exact arithmetic of one limit, and how it is dealt to regions (PROTOCOL 3 and 7).

use std::hash::Hasher;
use std::ops::RangeInclusive;
use std::time::Duration;

use siphasher::sip::SipHasher13;

use crate::units::{Client, Level, RegionId, Share, Tick, Ticks, Tokens, micros, mul_div};

/// Levels and capacities stay below this, so that a script's numbers hold their sums exactly.
const LEVEL_MAX: u128 = 1 << 52;

/// The finest division of a limit: the largest power of ten that its scale may be multiplied by.
const SCALE_MAX: u64 = 1_000_000;

/// The longest period of a token bucket.
const PERIOD_MAX: Duration = Duration::from_secs(10 * 365 * 86_400);

/// A region keeps this part of the burst, one in twenty, whatever it lends.
const FLOOR_PARTS: u64 = 20;

/// A token bucket's limit in exact integers: `rate` tokens per `per`, at most `burst` at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    rate: Tokens,
    per: Duration,
    burst: Tokens,
    tick: Tick,
    total: Share,
    token: Level,
    unit: Share,
}

/// Why a limit cannot be kept exactly. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// A limit of no tokens is not a bucket: say what it means as a policy instead.
    #[error("a token bucket needs a rate and a burst of at least 1")]
    Zero,
    /// The period is empty, longer than ten years, or finer than a tick.
    #[error("a period lies between 1us and 10 years, in whole milliseconds above 1m")]
    Period,
    /// No scale holds the limit exactly; the nearest one that fits is named.
    #[error(
        "{rate} per {per:?} with burst {burst} is not exact in 52 bits; the nearest that is: rate \
         {nearest_rate}, burst {nearest_burst}; or count in a fixed window instead"
    )]
    Inexact {
        /// The configured rate.
        rate: u64,
        /// The configured period.
        per: Duration,
        /// The configured burst.
        burst: u64,
        /// The nearest rate that can be kept exactly with this period.
        nearest_rate: u64,
        /// The burst that goes with it.
        nearest_burst: u64,
    },
}

/// How one limit is dealt to the regions: base shares and the capacities that go with shares.
///
/// Shares of all regions add up to exactly the limit, and capacities to at most the burst.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Split {
    limit: Limit,
    floor: Level,
    pool: Level,
    parts: Vec<Part>,
    left: u64,
}

/// A region's part in units, before the units left over by rounding are dealt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Part {
    whole: u64,
    remainder: u128,
}

impl Limit {
    /// Finds the scale for a limit, in units that suit a single region.
    ///
    /// # Errors
    /// If the limit is empty, its period out of range, or its arithmetic inexact in 52 bits.
    pub fn try_new(rate: Tokens, per: Duration, burst: Tokens) -> Result<Self, LimitError> {
        Self::scaled(rate, per, burst, None)
    }

    /// A limit that can be dealt in `units` whole parts, or as finely as its scale allows.
    fn scaled(
        rate: Tokens,
        per: Duration,
        burst: Tokens,
        units: Option<u64>,
    ) -> Result<Self, LimitError> {
        if rate.0 == 0 || burst.0 == 0 {
            return Err(LimitError::Zero);
        }
        let tick = Tick::of(per);
        if per.is_zero()
            || per > PERIOD_MAX
            || !per.subsec_nanos().is_multiple_of(1_000)
            || !micros(per).is_multiple_of(tick.micros())
        {
            return Err(LimitError::Period);
        }
        let period = tick.ticks(per).0;
        let common = gcd(rate.0, period);
        let fits = |scale: u64| {
            let token = u128::from(scale) * u128::from(period / common);
            let total = u128::from(scale) * u128::from(rate.0 / common);
            u128::from(burst.0).saturating_mul(token) <= LEVEL_MAX && total <= LEVEL_MAX
        };
        let scale = std::iter::successors(Some(SCALE_MAX), |scale| Some(scale / 10))
            .take_while(|scale| *scale > 0)
            .filter_map(|power| power.checked_mul(units.unwrap_or(1)))
            .find(|scale| fits(*scale))
            .ok_or_else(|| inexact(rate.0, per, burst.0, period))?;
        let total = Share(scale * (rate.0 / common));
        let token = i64::try_from(scale * (period / common)).unwrap_or(i64::MAX);
        let unit = Share(units.map_or(1, |units| total.0 / units));
        Ok(Self {
            rate,
            per,
            burst,
            tick,
            total,
            token: Level(token),
            unit,
        })
    }

    /// Tokens per [`Limit::per`].
    #[must_use]
    pub const fn rate(&self) -> Tokens {
        self.rate
    }

    /// The period of the rate.
    #[must_use]
    pub const fn per(&self) -> Duration {
        self.per
    }

    /// The most tokens that can be taken at once.
    #[must_use]
    pub const fn burst(&self) -> Tokens {
        self.burst
    }

    /// How finely this limit measures time.
    #[must_use]
    pub const fn tick(&self) -> Tick {
        self.tick
    }

    /// The whole limit as a share.
    #[must_use]
    pub const fn total(&self) -> Share {
        self.total
    }

    /// One token in level units.
    #[must_use]
    pub const fn token(&self) -> Level {
        self.token
    }

    /// The smallest share that can be dealt or lent: one share unit, or for a small limit one whole
    /// token of capacity.
    #[must_use]
    pub const fn unit(&self) -> Share {
        self.unit
    }

    /// Tokens as level units; saturates, which no bucket can hold.
    #[must_use]
    pub fn level(&self, tokens: Tokens) -> Level {
        let tokens = i64::try_from(tokens.0).unwrap_or(i64::MAX);
        Level(tokens.saturating_mul(self.token.0))
    }

    /// The whole tokens in a level; none while in debt.
    #[must_use]
    pub fn tokens(&self, level: Level) -> Tokens {
        Tokens(u64::try_from(level.0 / self.token.0).unwrap_or(0))
    }

    /// `tokens` offered or taken over `elapsed` ticks, as a share: the rate of demand.
    #[must_use]
    pub fn rate_of(&self, tokens: Tokens, elapsed: Ticks) -> Share {
        Share(mul_div(
            tokens.0,
            u64::try_from(self.token.0).unwrap_or(0),
            elapsed.0.max(1),
        ))
    }
}

impl Split {
    /// Deals a limit to regions by weight; `weights[i]` belongs to region `i`.
    ///
    /// Where a region's base capacity would be below one token, whole tokens are dealt instead.
    ///
    /// # Errors
    /// As [`Limit::try_new`]; a small limit needs a scale that is a multiple of its burst.
    ///
    /// # Panics
    /// If the weights are empty or all zero: the configuration has refused that.
    pub fn try_new(
        rate: Tokens,
        per: Duration,
        burst: Tokens,
        weights: &[u32],
    ) -> Result<Self, LimitError> {
        let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
        assert!(sum > 0, "weights of no region");
        let regions = u64::try_from(weights.len()).unwrap_or(u64::MAX);
        let floor_parts = FLOOR_PARTS.max(regions.saturating_mul(2));
        let small = weights.len() > 1
            && weights.iter().any(|weight| {
                let (m, n) = (u128::from(floor_parts), u128::from(regions));
                let spread = sum + (m - n) * u128::from(*weight);
                u128::from(burst.0).saturating_mul(spread) < m * sum
            });
        let limit = Limit::scaled(rate, per, burst, small.then_some(burst.0))?;
        let full = limit.level(burst);
        let floor = if small || weights.len() == 1 {
            Level::ZERO
        } else {
            Level(full.0 / i64::try_from(floor_parts).unwrap_or(i64::MAX))
        };
        let floors = floor
            .0
            .saturating_mul(i64::try_from(regions).unwrap_or(i64::MAX));
        let units = limit.total.0 / limit.unit.0;
        let parts: Vec<Part> = weights
            .iter()
            .map(|weight| {
                let product = u128::from(units) * u128::from(*weight);
                let whole = u64::try_from(product / sum).unwrap_or(u64::MAX);
                Part {
                    whole,
                    remainder: product % sum,
                }
            })
            .collect();
        let left = units - parts.iter().map(|part| part.whole).sum::<u64>();
        Ok(Self {
            limit,
            floor,
            pool: full.minus(Level(floors)),
            parts,
            left,
        })
    }

    /// The limit that is dealt.
    #[must_use]
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The number of regions.
    #[must_use]
    pub const fn regions(&self) -> usize {
        self.parts.len()
    }

    /// The base share of a region for one client; zero for a region that is not configured.
    ///
    /// What rounding leaves over goes to the largest remainders; ties are broken by a hash of the
    /// client and the region, so that no region is favoured over all clients.
    #[must_use]
    pub fn base(&self, region: RegionId, client: Client) -> Share {
        let Some(own) = self.parts.get(usize::from(region.0)) else {
            return Share::ZERO;
        };
        let ahead = self
            .parts
            .iter()
            .zip(0_u16..)
            .filter(|(part, index)| {
                part.remainder > own.remainder
                    || (part.remainder == own.remainder
                        && *index != region.0
                        && tie(client, RegionId(*index)) > tie(client, region))
            })
            .count();
        let extra = u64::from(u64::try_from(ahead).unwrap_or(u64::MAX) < self.left);
        Share((own.whole + extra) * self.limit.unit.0)
    }

    /// The smallest and the largest base share that a region has for any client.
    #[must_use]
    pub fn base_range(&self, region: RegionId) -> RangeInclusive<Share> {
        let Some(own) = self.parts.get(usize::from(region.0)) else {
            return Share::ZERO..=Share::ZERO;
        };
        let count = |ahead: fn(u128, u128) -> bool| {
            let parts = self.parts.iter();
            let parts = parts.filter(|part| ahead(part.remainder, own.remainder));
            u64::try_from(parts.count()).unwrap_or(u64::MAX)
        };
        let share = |extra| Share((own.whole + u64::from(extra)) * self.limit.unit.0);
        share(count(|other, own| other >= own) <= self.left)
            ..=share(count(|other, own| other > own) < self.left)
    }

    /// The capacity that goes with a share: the floor, and the share's part of the rest.
    #[must_use]
    pub fn capacity(&self, share: Share) -> Level {
        self.floor.plus(self.lent_capacity(share))
    }

    /// The capacity that a lent share carries with it: its part of what is above the floors.
    #[must_use]
    pub fn lent_capacity(&self, share: Share) -> Level {
        let pool = u64::try_from(self.pool.0).unwrap_or(0);
        let part = mul_div(pool, share.0.min(self.limit.total.0), self.limit.total.0);
        Level(i64::try_from(part).unwrap_or(i64::MAX))
    }

    /// The capacity that a region never lends.
    #[must_use]
    pub const fn floor(&self) -> Level {
        self.floor
    }

    /// The smallest share, in whole units, whose capacity holds `level`; at most the whole limit.
    #[must_use]
    pub fn share_for(&self, level: Level) -> Share {
        let wanted = u64::try_from(level.minus(self.floor).0).unwrap_or(0);
        let pool = u64::try_from(self.pool.0).unwrap_or(0).max(1);
        let exact = u128::from(wanted) * u128::from(self.limit.total.0);
        let share = u64::try_from(exact.div_ceil(u128::from(pool))).unwrap_or(u64::MAX);
        Share(share.div_ceil(self.limit.unit.0) * self.limit.unit.0).min(self.limit.total)
    }
}

fn tie(client: Client, region: RegionId) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write_u128(client.0);
    hasher.write_u16(region.0);
    hasher.finish()
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The error that names the nearest rate with an exact scale: a multiple of a divisor of the
/// period that is large enough for the burst. A burst equal to the rate follows it.
fn inexact(rate: u64, per: Duration, burst: u64, period: u64) -> LimitError {
    let divisors = (1..)
        .take_while(|low: &u64| low.saturating_mul(*low) <= period)
        .filter(|low| period.is_multiple_of(*low))
        .flat_map(|low| [low, period / low]);
    let follows = burst == rate;
    let nearest = divisors
        .filter_map(|divisor| {
            let near = (rate.saturating_add(divisor / 2) / divisor)
                .max(1)
                .checked_mul(divisor)?;
            let burst = if follows { near } else { burst };
            let token = u128::from(period / gcd(near, period));
            (u128::from(burst).saturating_mul(token) <= LEVEL_MAX).then_some(near)
        })
        .min_by_key(|near| near.abs_diff(rate));
    let nearest_rate = nearest.unwrap_or(rate);
    let nearest_burst = match (nearest, follows) {
        (Some(near), true) => near,
        (Some(_), false) => burst,
        (None, _) => {
            u64::try_from(LEVEL_MAX / u128::from(period / gcd(rate, period))).unwrap_or(u64::MAX)
        }
    };
    LimitError::Inexact {
        rate,
        per,
        burst,
        nearest_rate,
        nearest_burst,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(rate: u64, per: Duration, burst: u64) -> Limit {
        Limit::try_new(Tokens(rate), per, Tokens(burst)).expect("an exact limit")
    }

    #[test]
    fn limit_has_the_scale_of_the_protocol_table() {
        let second = Duration::from_secs(1);
        let day = Duration::from_secs(86_400);
        let table = [
            (limit(1_000, second, 2_000), 1_000_000, 1_000_000_000),
            (
                limit(3, Duration::from_secs(60), 3),
                1_000_000,
                20_000_000_000_000,
            ),
            (limit(1_000_000, second, 10_000_000), 1_000_000, 1_000_000),
            (limit(10_000, day, 10_000), 1_000_000, 8_640_000_000),
            (limit(100, day * 7, 100), 1_000_000, 6_048_000_000_000),
        ];
        for (limit, total, token) in table {
            assert_eq!(
                (limit.total().0, limit.token().0),
                (total, token),
                "{limit:?}"
            );
        }
    }

    #[test]
    fn case_04_an_inexact_limit_names_the_nearest_exact_one_and_a_window() {
        let year = Duration::from_secs(365 * 86_400);
        let error = Limit::try_new(Tokens(4_294_967_295), year, Tokens(4_294_967_295)).unwrap_err();
        let LimitError::Inexact {
            nearest_rate,
            nearest_burst,
            ..
        } = error
        else {
            panic!("{error:?}")
        };
        assert!(Limit::try_new(Tokens(nearest_rate), year, Tokens(nearest_burst)).is_ok());
        assert!(error.to_string().contains("fixed window"), "{error}");
        assert_eq!(
            Limit::try_new(Tokens(1), PERIOD_MAX + Duration::from_secs(1), Tokens(1)),
            Err(LimitError::Period)
        );
    }

    #[test]
    fn split_deals_exactly_the_limit() {
        let split = Split::try_new(
            Tokens(1_000),
            Duration::from_secs(1),
            Tokens(1_000),
            &[20, 30, 50],
        )
        .expect("exact");
        let bases: Vec<_> = (0..3).map(|i| split.base(RegionId(i), Client(7))).collect();
        assert_eq!(bases, [Share(200_000), Share(300_000), Share(500_000)]);
        let capacities: i64 = bases.iter().map(|base| split.capacity(*base).0).sum();
        assert_eq!(capacities, split.limit().level(Tokens(1_000)).0);
        assert_eq!(split.capacity(Share::ZERO), split.limit().level(Tokens(50)));
    }

    #[test]
    fn case_56_whole_tokens_are_dealt_exactly_and_in_a_stable_order() {
        let dealt = |burst: u64, weights: &[u32], client: u128| -> Vec<u64> {
            let per = Duration::from_secs(10);
            let split = Split::try_new(Tokens(burst), per, Tokens(burst), weights).expect("exact");
            let regions = 0..u16::try_from(weights.len()).expect("few");
            regions
                .map(|i| {
                    let base = split.base(RegionId(i), Client(client));
                    split.limit().tokens(split.capacity(base)).0
                })
                .collect()
        };
        for client in 0..50 {
            let three = dealt(3, &[1; 5], client);
            assert_eq!(three.iter().sum::<u64>(), 3);
            assert!(three.iter().all(|tokens| *tokens <= 1));
            assert_eq!(three, dealt(3, &[1; 5], client), "the order is stable");
            assert_eq!(dealt(1, &[1; 5], client).iter().sum::<u64>(), 1);
        }
        assert_eq!(dealt(3, &[50, 30, 20], 1).iter().sum::<u64>(), 3);
    }

    #[test]
    fn share_for_is_the_least_whose_capacity_suffices() {
        for (burst, weights) in [(1_000, [20, 30, 50]), (3, [20, 30, 50])] {
            let per = Duration::from_secs(60);
            let split = Split::try_new(Tokens(burst), per, Tokens(burst), &weights).expect("exact");
            for tokens in 1..=burst {
                let level = split.limit().level(Tokens(tokens));
                let share = split.share_for(level);
                if share < split.limit().total() {
                    assert!(split.capacity(share) >= level);
                }
                let less = share.minus(split.limit().unit());
                assert!(share == Share::ZERO || split.capacity(less) < level);
            }
        }
    }
}
