//! When requests come, and for which key.

use std::time::Duration;

use super::dice::Dice;
use super::scenario::{Load, RegionSpec, Scenario};

/// The silences of an adversary, in milliseconds: about a tick, a round trip, a beat, the life of a
/// grant, and the life with its margin.
const SILENCES_MS: [u64; 6] = [19, 90, 250, 700, 1_990, 2_510];

/// The requests of one region.
#[derive(Clone, Debug)]
pub(super) struct Traffic {
    loads: Vec<(Duration, Load)>,
    dice: Dice,
    /// How many requests of a spike are still to come.
    left: u64,
}

/// Which key a request is for.
#[derive(Clone, Debug)]
pub(super) struct Zipf(Vec<f64>);

impl Traffic {
    pub(super) fn new(region: &RegionSpec, dice: Dice) -> Self {
        Self {
            loads: region.loads.clone(),
            dice,
            left: 0,
        }
    }

    /// The instant of the next request after `now`, both counted from the start; `None` when there
    /// is none to come.
    pub(super) fn next(&mut self, now: Duration) -> Option<Duration> {
        let mut at = now;
        loop {
            let current = self.loads.iter().rposition(|(from, _)| *from <= at);
            let next = current.map_or(0, |index| index + 1);
            let until = self.loads.get(next).map(|(from, _)| *from);
            let load = current.map_or(Load::Silent, |index| self.loads[index].1);
            let request = self.after(at, load);
            match (request, until) {
                // The process has no memory: it begins anew with the next load.
                (Some(request), Some(until)) if request >= until => at = until,
                (Some(request), _) => return Some(request),
                (None, Some(until)) => at = until,
                (None, None) => return None,
            }
        }
    }

    fn after(&mut self, at: Duration, load: Load) -> Option<Duration> {
        match load {
            Load::Silent => None,
            Load::Constant(rate) => (rate > 0.0).then(|| at + Duration::from_secs_f64(1.0 / rate)),
            Load::Poisson(rate) => (rate > 0.0).then(|| at + self.dice.wait(rate)),
            Load::Bursts { rate, on, off } => {
                let whole = (on + off).as_secs_f64();
                let into = at.as_secs_f64() % whole;
                let request = into + self.dice.wait(rate).as_secs_f64();
                let wait = if request < on.as_secs_f64() {
                    request - into
                } else {
                    whole - into + self.dice.wait(rate).as_secs_f64().min(on.as_secs_f64())
                };
                Some(at + Duration::from_secs_f64(wait.max(1e-6)))
            }
            Load::Adversary { size } => {
                if self.left > 0 {
                    self.left -= 1;
                    return Some(at + Duration::from_micros(20));
                }
                self.left = self.dice.between(size / 2, size);
                let silence = self.dice.pick(&SILENCES_MS) * 1_000;
                let silence = self.dice.between(silence, silence + silence / 10);
                Some(at + Duration::from_micros(silence))
            }
        }
    }
}

impl Zipf {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let mut sum = 0.0;
        let weights = (1..=scenario.keys.max(1)).map(|rank| {
            sum += f64::from(rank).powf(-scenario.zipf);
            sum
        });
        Self(weights.collect())
    }

    pub(super) fn key(&self, dice: &mut Dice) -> usize {
        let all = self.0.last().copied().unwrap_or(1.0);
        let drawn = dice.unit() * all;
        self.0
            .partition_point(|sum| *sum <= drawn)
            .min(self.0.len() - 1)
    }
}
