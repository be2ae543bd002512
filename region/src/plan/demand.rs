//! How much a region is offered, in integers (PROTOCOL 4).
//!
//! Two exponentially weighted averages of the offered rate, denials included. The slow one carries
//! the answer and is quiet under noise; it jumps when the fast one, or the last sample or two
//! alone, differ from it by more than the noise of a Poisson count explains. What is counted are
//! not single tokens but grains of them: requests that cost several, or that come in batches, are
//! as noisy as if there were fewer of them. How large the grains are is measured, too.

use crate::limit::Limit;
use crate::units::{Share, Tick, Ticks, Tokens, mul_div};

/// The time constant of the fast average, in milliseconds.
const FAST_MS: u64 = 150;

/// The time constant of the slow average, in milliseconds.
const SLOW_MS: u64 = 1_500;

/// How many standard deviations noise explains.
const SIGMAS: u64 = 3;

/// A change below one part in so many of the limit is never a step.
const STEP_PARTS: u64 = 100;

/// One token in the unit of grains.
const ONE: u64 = 256;

/// A single sample counts as at most so many times as noisy as all before: it may be a step.
const NOISE_MAX: u64 = 16;

/// Where so many grains were expected and none has come, demand has ended: by chance that happens
/// once in 20 000 times.
const MISSED: u64 = 10;

/// The estimator of one key in one region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Demand {
    fast: Share,
    slow: Share,
    /// The variance of what is offered in a sample over its mean, less the first token.
    grain: u64,
    last: Sample,
    /// How long nothing has been offered.
    silent: Ticks,
    samples: u32,
}

/// What was offered in a stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Sample {
    offered: Tokens,
    elapsed: Ticks,
}

impl Demand {
    /// Takes in what was offered in the last `elapsed` ticks.
    pub fn sample(&mut self, limit: &Limit, offered: Tokens, elapsed: Ticks) {
        if elapsed == Ticks(0) {
            return;
        }
        let rate = limit.rate_of(offered, elapsed);
        let (before, expected) = (self.grain(), self.slow);
        if self.samples >= 2 {
            self.measure_grain(limit, (offered, elapsed), expected);
        }
        self.fast = toward(self.fast, rate, elapsed, ticks_of(FAST_MS, limit.tick()));
        self.slow = toward(self.slow, rate, elapsed, ticks_of(SLOW_MS, limit.tick()));
        self.silent = match offered {
            Tokens(0) => Ticks(self.silent.0.saturating_add(elapsed.0)),
            _ => Ticks(0),
        };
        let both = Sample {
            offered: Tokens(offered.0.saturating_add(self.last.offered.0)),
            elapsed: Ticks(elapsed.0.saturating_add(self.last.elapsed.0)),
        };
        self.last = Sample { offered, elapsed };
        self.samples = self.samples.saturating_add(1);
        let recent = limit.rate_of(both.offered, both.elapsed);
        if self.samples <= 2 {
            (self.fast, self.slow) = (recent, recent);
            return;
        }
        let step = Share(limit.total().0 / STEP_PARTS);
        let noise = |rate: Share, window: Ticks| {
            let deviation = deviation(limit, (rate, before), window);
            Share(deviation.0.saturating_mul(SIGMAS)).plus(step)
        };
        let slow = self.slow;
        let apart =
            |rate: Share, window: Ticks| rate.0.abs_diff(slow.0) > noise(rate.max(slow), window).0;
        let missed = mul_div(limit.token().0.unsigned_abs(), self.grain(), ONE);
        let missed = missed.saturating_mul(MISSED);
        if slow.over(self.silent).0.unsigned_abs() >= missed.max(1) {
            (self.fast, self.slow) = (Share::ZERO, Share::ZERO);
        } else if apart(rate, elapsed) {
            (self.fast, self.slow) = (rate, rate);
        } else if apart(recent, both.elapsed) {
            (self.fast, self.slow) = (recent, recent);
            self.last = Sample::default();
        } else if apart(self.fast, Ticks(ticks_of(FAST_MS, limit.tick()).0 * 2)) {
            self.slow = self.fast;
        }
    }

    /// The rate to plan with: the slow average and half a standard deviation.
    #[must_use]
    pub fn rate(&self, limit: &Limit) -> Share {
        let window = Ticks(ticks_of(SLOW_MS, limit.tick()).0 * 2);
        let deviation = deviation(limit, (self.slow, self.grain()), window);
        self.slow.plus(Share(deviation.0 / 2))
    }

    /// How many tokens come together, in parts of a token; never less than one.
    const fn grain(&self) -> u64 {
        self.grain.saturating_add(ONE)
    }

    fn measure_grain(
        &mut self,
        limit: &Limit,
        (offered, elapsed): (Tokens, Ticks),
        expected: Share,
    ) {
        let token = limit.token().0.unsigned_abs();
        let expected = mul_div(expected.over(elapsed).0.unsigned_abs(), ONE, token.max(1));
        let apart = offered.0.saturating_mul(ONE).abs_diff(expected);
        let most = self.grain().saturating_mul(NOISE_MAX);
        let noise = mul_div(apart, apart, expected.max(ONE)).min(most);
        let noise = noise.saturating_sub(ONE);
        let constant = ticks_of(SLOW_MS, limit.tick());
        self.grain = toward(Share(self.grain), Share(noise), elapsed, constant).0;
    }

    /// Whether enough samples have been taken for a first estimate.
    #[must_use]
    pub const fn known(&self) -> bool {
        self.samples >= 2
    }
}

/// One step of an exponentially weighted average, with the weight `elapsed / (elapsed + constant)`.
fn toward(average: Share, rate: Share, elapsed: Ticks, constant: Ticks) -> Share {
    let whole = elapsed.0.saturating_add(constant.0);
    let change = mul_div(rate.0.abs_diff(average.0), elapsed.0, whole);
    if rate > average {
        Share(average.0 + change)
    } else {
        Share(average.0 - change)
    }
}

/// The standard deviation of a rate of grains of tokens that is measured over a window:
/// `sqrt(rate * grain / window)`.
fn deviation(limit: &Limit, (rate, grain): (Share, u64), window: Ticks) -> Share {
    let grain = mul_div(limit.token().0.unsigned_abs(), grain, ONE);
    let variance = u128::from(rate.0) * u128::from(grain) / u128::from(window.0.max(1));
    Share(u64::try_from(variance.isqrt()).unwrap_or(u64::MAX))
}

const fn ticks_of(ms: u64, tick: Tick) -> Ticks {
    Ticks(ms * 1_000 / tick.micros())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SAMPLE: Ticks = Ticks(20_000);

    fn limit() -> Limit {
        Limit::try_new(Tokens(1_000), Duration::from_secs(1), Tokens(1_000)).expect("exact")
    }

    fn per_second(limit: &Limit, rate: Share) -> u64 {
        rate.0 * 1_000 / limit.total().0
    }

    #[test]
    fn demand_follows_a_step_within_two_samples() {
        let (limit, mut demand) = (limit(), Demand::default());
        for _ in 0..300 {
            demand.sample(&limit, Tokens(4), SAMPLE);
        }
        assert!((195..=215).contains(&per_second(&limit, demand.rate(&limit))));
        for _ in 0..2 {
            demand.sample(&limit, Tokens(20), SAMPLE);
        }
        assert!(
            (950..=1_050).contains(&per_second(&limit, demand.rate(&limit))),
            "{demand:?}"
        );
        for _ in 0..2 {
            demand.sample(&limit, Tokens(0), SAMPLE);
        }
        assert_eq!(per_second(&limit, demand.rate(&limit)), 0, "{demand:?}");
    }

    #[test]
    fn demand_ends_when_nothing_comes_any_more() {
        let (limit, mut demand) = (limit(), Demand::default());
        for _ in 0..300 {
            demand.sample(&limit, Tokens(2), SAMPLE);
        }
        // 100 per second: that ten of them are missing takes 100 ms to see.
        for _ in 0..6 {
            assert!(per_second(&limit, demand.rate(&limit)) > 0);
            demand.sample(&limit, Tokens(0), SAMPLE);
        }
        assert_eq!(demand.rate(&limit), Share::ZERO, "{demand:?}");
    }

    #[test]
    fn demand_does_not_chase_noise() {
        let (limit, mut demand) = (limit(), Demand::default());
        for _ in 0..100 {
            demand.sample(&limit, Tokens(10), SAMPLE);
        }
        let mut seen = Vec::new();
        for n in 0..200_u64 {
            demand.sample(
                &limit,
                Tokens(10 + [3, 0, 1][usize::try_from(n % 3).unwrap()]),
                SAMPLE,
            );
            demand.sample(
                &limit,
                Tokens(10 - [2, 4, 0][usize::try_from(n % 3).unwrap()]),
                SAMPLE,
            );
            seen.push(per_second(&limit, demand.rate(&limit)));
        }
        let spread = seen.iter().max().unwrap() - seen.iter().min().unwrap();
        assert!(spread < 25, "{seen:?}");
    }

    #[test]
    fn demand_does_not_chase_requests_that_cost_several_tokens() {
        // 90 requests of 5 tokens, and 15 batches of 30, per second, each at random.
        for (grain, per_mille) in [(5, 90), (30, 15)] {
            let (limit, mut demand) = (limit(), Demand::default());
            let mut random = 1_u64;
            let mut seen = Vec::new();
            for n in 0..3_000 {
                let mut offered = 0;
                for _ in 0..20 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005);
                    random = random.wrapping_add(1_442_695_040_888_963_407);
                    offered += if (random >> 33) % 1_000 < per_mille {
                        grain
                    } else {
                        0
                    };
                }
                demand.sample(&limit, Tokens(offered), SAMPLE);
                if n > 200 {
                    seen.push(per_second(&limit, demand.rate(&limit)));
                }
            }
            let (least, most) = (seen.iter().min().unwrap(), seen.iter().max().unwrap());
            let off = seen
                .iter()
                .filter(|rate| !(300..=700).contains(*rate))
                .count();
            assert!(
                *least > 150 && *most < 1_000 && off < 60,
                "{grain}: {least} {most} {off}"
            );
        }
    }
}
