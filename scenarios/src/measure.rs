//! The figures of PROTOCOL 9 for token buckets, measured in the simulator.

use std::time::Duration;

use crate::sim::{Fault, LimitSpec, Link, Load, RegionSpec, Run, Scenario, run};

/// What the shared limit lets through in a second, in every measurement.
const RATE: u64 = 1_000;

/// The instant at which demand moves or a cut begins.
const CHANGE: Duration = Duration::from_secs(10);

/// The instant at which a cut ends.
const HEAL: Duration = Duration::from_secs(16);

/// What 95 % of a demand of 0.9 of the limit takes, in thousandths of the limit.
const GOAL_PERMILLE: u64 = 855;

/// What a reaction may take beside one round trip.
const TWO_TICKS_MS: f64 = 40.0;

/// One figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// What is measured.
    pub measure: &'static str,
    /// Under which circumstances.
    pub case: String,
    /// The value; `None` if it was not reached within the run.
    pub value: Option<f64>,
    /// What the value counts.
    pub unit: &'static str,
    /// What is good enough.
    pub target: Option<Target>,
}

/// What is good enough.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// So much or more.
    AtLeast(f64),
    /// So much or less.
    AtMost(f64),
}

type Measurement = Box<dyn Fn() -> Vec<Figure>>;

/// What is measured, in the order in which it is.
pub const MEASURES: [&str; 6] = [
    "utilisation",
    "gossip",
    "reaction",
    "false-denials",
    "recovery",
    "fairness",
];

/// Measures everything, or what is named of [`MEASURES`]; `progress` is told how many of all
/// measurements are done.
pub fn measure(only: &[String], mut progress: impl FnMut(usize, usize)) -> Vec<Figure> {
    let mut all = measurements();
    all.retain(|(name, _)| only.is_empty() || only.iter().any(|only| only == name));
    let mut figures = Vec::new();
    for (done, (_, measurement)) in all.iter().enumerate() {
        progress(done, all.len());
        figures.extend(measurement());
    }
    progress(all.len(), all.len());
    figures
}

impl Figure {
    /// Whether it is good enough; nothing is asked of some.
    #[must_use]
    pub fn met(&self) -> bool {
        match (self.target, self.value) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(Target::AtLeast(least)), Some(value)) => value >= least,
            (Some(Target::AtMost(most)), Some(value)) => value <= most,
        }
    }
}

fn measurements() -> Vec<(&'static str, Measurement)> {
    let mut all: Vec<(&str, Measurement)> = Vec::new();
    let [utilises, gossips, reacts, denies, recovers, fair] = MEASURES;
    for regions in [3, 5, 10] {
        for skew in [0.0, 0.25, 0.5, 0.75, 1.0] {
            for load in [0.8, 1.0, 1.2] {
                all.push((utilises, Box::new(move || utilisation(regions, skew, load))));
            }
        }
        all.push((gossips, Box::new(move || gossip(regions))));
    }
    for round_trip in [30, 80, 150, 220] {
        for burst in [100, 1_000] {
            all.push((reacts, Box::new(move || vec![reaction(round_trip, burst)])));
        }
    }
    for skew in [0.0, 0.5, 1.0] {
        for burst in [100, 1_000] {
            all.push((denies, Box::new(move || vec![false_denials(skew, burst)])));
        }
    }
    all.push((recovers, Box::new(|| vec![recovery()])));
    all.push((fair, Box::new(fairness)));
    all
}

fn utilisation(regions: usize, skew: f64, load: f64) -> Vec<Figure> {
    let outcome = run(&steady(regions, skew, load, RATE));
    let target = if load < 1.0 { 0.995 } else { 0.98 };
    let case = format!("{regions} regions, skew {skew}, {load} of the limit");
    vec![
        Figure {
            measure: "utilisation",
            case: case.clone(),
            value: Some(outcome.utilisation()),
            unit: "of what one bucket admits",
            target: Some(Target::AtLeast(target)),
        },
        overrun(&outcome, case),
    ]
}

fn overrun(outcome: &Run, case: String) -> Figure {
    Figure {
        measure: "overrun",
        case,
        value: Some(outcome.overrun.0 as f64),
        unit: "tokens",
        target: Some(Target::AtMost(0.0)),
    }
}

/// Rows about one hot key while its load stays as it is, and how often shares change meanwhile.
fn gossip(regions: usize) -> Vec<Figure> {
    let scenario = steady(regions, 0.75, 0.9, RATE);
    let outcome = run(&scenario);
    let case = format!("{regions} regions, skew 0.75, 0.9 of the limit");
    vec![
        Figure {
            measure: "gossip bytes",
            case: case.clone(),
            value: Some(outcome.gossip.bytes),
            unit: "bytes/s, key and peer",
            target: Some(Target::AtMost(100.0)),
        },
        Figure {
            measure: "gossip rows",
            case: case.clone(),
            value: Some(outcome.gossip.rows),
            unit: "rows/s, key and peer",
            target: None,
        },
        Figure {
            measure: "share changes",
            case,
            value: Some(outcome.share_changes_per_minute(scenario.warm_up)),
            unit: "per minute, all regions",
            target: None,
        },
    ]
}

/// All demand moves at once from the region with the largest base to the one with the smallest.
fn reaction(round_trip: u64, burst: u64) -> Figure {
    let regions = weights(3).into_iter();
    let regions = regions.map(|weight| RegionSpec::steady(weight, Load::Silent));
    let mut regions: Vec<RegionSpec> = regions.collect();
    regions[0].loads = vec![
        (Duration::ZERO, Load::Constant(900.0)),
        (CHANGE, Load::Silent),
    ];
    regions[2].loads = vec![(CHANGE, Load::Constant(900.0))];
    let link = Link::of_round_trip(round_trip);
    let mut scenario = Scenario::calm(limit(burst), regions, link);
    scenario.sample = Duration::from_millis(1);
    let taken = run(&scenario).reaction(2, CHANGE, GOAL_PERMILLE);
    let round_trip_ms = f64::from(u32::try_from(round_trip).unwrap_or(u32::MAX));
    Figure {
        measure: "reaction",
        case: format!("round trip {round_trip} ms, burst {burst}, all demand moves"),
        value: taken.map(|taken| taken.as_secs_f64() * 1_000.0),
        unit: "ms",
        target: Some(Target::AtMost(round_trip_ms + TWO_TICKS_MS)),
    }
}

fn false_denials(skew: f64, burst: u64) -> Figure {
    let outcome = run(&steady(3, skew, 0.9, burst));
    let most = if burst >= RATE { 0.001 } else { 0.01 };
    Figure {
        measure: "false denials",
        case: format!("3 regions, skew {skew}, 0.9 of the limit, burst {burst}"),
        value: Some(outcome.false_denials()),
        unit: "of what is offered",
        target: Some(Target::AtMost(most)),
    }
}

/// A region that lives on borrowed shares is cut off from all others, and heals.
fn recovery() -> Figure {
    let mut scenario = steady(3, 0.0, 0.0, RATE);
    scenario.regions[2].loads = vec![(Duration::ZERO, Load::Constant(900.0))];
    for other in [0, 1] {
        for (from, to) in [(2, other), (other, 2)] {
            scenario.faults.push((CHANGE, Fault::Cut { from, to }));
            scenario.faults.push((HEAL, Fault::Heal { from, to }));
        }
    }
    scenario.sample = Duration::from_millis(5);
    let taken = run(&scenario).reaction(2, HEAL, GOAL_PERMILLE);
    Figure {
        measure: "recovery",
        case: "a borrower is cut off for 6 s and healed".to_owned(),
        value: taken.map(|taken| taken.as_secs_f64()),
        unit: "s",
        target: Some(Target::AtMost(2.3)),
    }
}

/// Jain's index of what is admitted over what max-min fairness entitles to.
fn fairness() -> Vec<Figure> {
    let cases = [
        (
            "all regions want more",
            [1_500.0, 900.0, 1_200.0],
            [500.0, 300.0, 200.0],
        ),
        (
            "the largest wants little",
            [100.0, 900.0, 900.0],
            [100.0, 540.0, 360.0],
        ),
    ];
    let index = |(case, offered, entitled): (&str, [f64; 3], [f64; 3])| {
        let mut scenario = steady(3, 0.0, 0.0, RATE);
        for (region, rate) in scenario.regions.iter_mut().zip(offered) {
            region.loads = vec![(Duration::ZERO, Load::Poisson(rate))];
        }
        Figure {
            measure: "fairness",
            case: case.to_owned(),
            value: Some(run(&scenario).fairness(&entitled)),
            unit: "Jain's index",
            target: Some(Target::AtLeast(0.99)),
        }
    };
    cases.into_iter().map(index).collect()
}

/// Steady random load: evenly by weight at skew 0, all of it in the smallest region at skew 1.
fn steady(count: usize, skew: f64, load: f64, burst: u64) -> Scenario {
    let weights = weights(count);
    let sum: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
    let regions = weights.iter().enumerate().map(|(index, weight)| {
        let even = f64::from(*weight) / sum * (1.0 - skew);
        let part = if index + 1 == count {
            even + skew
        } else {
            even
        };
        RegionSpec::steady(*weight, Load::Poisson(RATE as f64 * load * part))
    });
    let mut scenario = Scenario::calm(limit(burst), regions.collect(), Link::of_round_trip(150));
    if count == 3 {
        for ((one, other), round_trip) in [((0, 1), 80), ((0, 2), 150), ((1, 2), 220)] {
            let link = Link::of_round_trip(round_trip);
            scenario.links.insert((one, other), link);
            scenario.links.insert((other, one), link);
        }
    }
    scenario.length = Duration::from_secs(25);
    scenario
}

fn weights(count: usize) -> Vec<u32> {
    match count {
        3 => vec![50, 30, 20],
        _ => vec![10; count],
    }
}

const fn limit(burst: u64) -> LimitSpec {
    LimitSpec {
        rate: RATE,
        per: Duration::from_secs(1),
        burst,
        overrun: 0,
    }
}
