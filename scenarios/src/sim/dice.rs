//! Chance from a seed, the same on every machine and in every version of every dependency.

use std::time::Duration;

use region::units::micros;

/// A generator of pseudo-random numbers (splitmix64, Steele et al. 2014).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice that fall the same way for the same seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Dice of their own, so that one part of a run can change without moving the others.
    #[must_use]
    pub const fn fork(&mut self) -> Self {
        Self(self.number())
    }

    /// Any number.
    #[must_use]
    pub const fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `sides`; zero if there are none.
    #[must_use]
    pub const fn below(&mut self, sides: u64) -> u64 {
        let number = self.number();
        if sides == 0 { 0 } else { number % sides }
    }

    /// A number from `least` to `most`, both included.
    #[must_use]
    pub const fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most.saturating_sub(least).saturating_add(1))
    }

    /// A span from `least` to `most`, in whole microseconds.
    #[must_use]
    pub fn span(&mut self, least: Duration, most: Duration) -> Duration {
        Duration::from_micros(self.between(micros(least), micros(most)))
    }

    /// Whether something happens that happens `parts` times in a thousand.
    #[must_use]
    pub const fn permille(&mut self, parts: u64) -> bool {
        self.below(1_000) < parts
    }

    /// Whether something happens that happens once in so many times.
    #[must_use]
    pub const fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of a list that is not empty.
    ///
    /// # Panics
    /// If the list is empty.
    #[must_use]
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let count = u64::try_from(from.len()).unwrap_or(u64::MAX);
        from[usize::try_from(self.below(count)).unwrap_or(0)]
    }

    /// A number from 0 up to, but not including, 1.
    #[must_use]
    pub const fn unit(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The time to the next event of a Poisson process of so many per second.
    #[must_use]
    pub fn wait(&mut self, per_second: f64) -> Duration {
        let seconds = -(1.0 - self.unit()).ln() / per_second.max(1e-6);
        Duration::from_secs_f64(seconds.min(1e6))
    }
}
