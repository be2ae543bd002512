//! Random worlds with random faults, each from a seed: none of them may break the promise.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use region::bucket::Lost;
use region::policy::OnStoreFailure;

use crate::sim::{
    Detail, Dice, Fault, LimitSpec, Link, Load, RegionSpec, Replica, Run, Scenario, ShardFault, run,
};

/// How far a clock may be put wrong in one life of a grant. Two regions may go wrong in opposite
/// directions, and together they stay within the margin of the protocol.
const CLOCK_STEP_MAX_US: u64 = 200_000;

/// The error of clock rates that the promise allows for.
const DRIFT_MAX_PPM: u64 = 1_000;

/// Runs the world of a seed.
#[must_use]
pub fn soak(seed: u64) -> Run {
    run(&world(seed))
}

/// The world of a seed: three regions, often more, with everything that may happen to them and
/// costs no overrun (PROTOCOL 6).
#[must_use]
pub fn world(seed: u64) -> Scenario {
    let mut dice = Dice::new(seed ^ 0x7469_6465_6761_7465);
    let limit = limit(&mut dice);
    let count = usize::try_from(dice.pick(&[2, 3, 3, 3, 3, 4, 5])).unwrap_or(3);
    let length = dice.span(Duration::from_secs(6), Duration::from_secs(14));
    let drifts = dice.one_in(3);
    let regions: Vec<RegionSpec> = (0..count)
        .map(|_| region(&mut dice, &limit, length, drifts))
        .collect();
    let links = links(&mut dice, count);
    let faults = faults(&mut dice, &regions, length);
    let keys = u32::try_from(dice.pick(&[1, 1, 1, 3, 20])).unwrap_or(1);
    Scenario {
        seed: dice.number(),
        regions,
        limit,
        on_store_loss: Lost::Empty,
        on_store_failure: OnStoreFailure::Closed,
        keys,
        zipf: dice.unit() * 1.5,
        cost_max: dice.pick(&[1, 1, 1, 2, 5]).min(limit.burst),
        links,
        link: Link::of_round_trip(80),
        faults,
        length,
        warm_up: Duration::ZERO,
        sample: Duration::from_millis(50),
        detail: Detail::Notable,
    }
}

fn limit(dice: &mut Dice) -> LimitSpec {
    let rate = dice.pick(&[3, 10, 50, 200, 200, 500]);
    let burst = match dice.below(4) {
        0 => (rate / 5).max(1),
        1 => rate * 3,
        _ => rate,
    };
    let seconds = if rate < 20 { dice.between(1, 10) } else { 1 };
    LimitSpec {
        rate,
        per: Duration::from_secs(seconds),
        burst,
        overrun: if dice.one_in(6) {
            dice.between(1, rate)
        } else {
            0
        },
    }
}

fn region(dice: &mut Dice, limit: &LimitSpec, length: Duration, drifts: bool) -> RegionSpec {
    let mut loads = vec![(Duration::ZERO, load(dice, limit))];
    for _ in 0..dice.below(4) {
        loads.push((dice.span(Duration::ZERO, length), load(dice, limit)));
    }
    loads.sort_by_key(|(from, _)| *from);
    let drift = i64::try_from(dice.below(2 * DRIFT_MAX_PPM)).unwrap_or(0) - 1_000;
    RegionSpec {
        weight: u32::try_from(dice.between(1, 50)).unwrap_or(1),
        nodes: usize::try_from(dice.pick(&[1, 1, 2, 3])).unwrap_or(1),
        shards: usize::try_from(dice.pick(&[1, 1, 2, 3])).unwrap_or(1),
        replica: replica(dice),
        ahead: dice.span(Duration::ZERO, Duration::from_secs(100)),
        drift_ppm: if drifts { drift } else { 0 },
        loads,
    }
}

/// Its clock has nothing to do with the primary's.
fn replica(dice: &mut Dice) -> Option<Replica> {
    let (ahead, lag) = (Duration::from_secs(100), Duration::from_secs(1));
    let replica = Replica {
        lag: dice.span(Duration::ZERO, lag),
        ahead: dice.span(Duration::ZERO, ahead),
    };
    dice.one_in(2).then_some(replica)
}

fn load(dice: &mut Dice, limit: &LimitSpec) -> Load {
    let per_second = limit.rate as f64 / limit.per.as_secs_f64();
    let rate = per_second * dice.unit() * 1.6;
    match dice.below(8) {
        0 | 1 => Load::Silent,
        2 => Load::Constant(rate),
        3 | 4 => Load::Poisson(rate),
        5 => Load::Bursts {
            rate: rate * 2.0,
            on: dice.span(Duration::from_millis(50), Duration::from_secs(1)),
            off: dice.span(Duration::from_millis(50), Duration::from_secs(3)),
        },
        _ => Load::Adversary {
            size: dice.between(1, limit.burst.min(400)),
        },
    }
}

fn links(dice: &mut Dice, count: usize) -> BTreeMap<(usize, usize), Link> {
    let bad = dice.one_in(2);
    let mut links = BTreeMap::new();
    for from in 0..count {
        for to in (0..count).filter(|to| *to != from) {
            let delay = dice.span(Duration::from_millis(2), Duration::from_millis(130));
            let link = Link {
                delay,
                jitter: dice.span(Duration::ZERO, if bad { delay * 3 } else { delay / 5 }),
                loss: if bad { dice.below(300) } else { dice.below(10) },
                twice: dice.below(100),
            };
            links.insert((from, to), link);
        }
    }
    links
}

/// What goes wrong: nothing, a little, or a lot of it.
fn faults(dice: &mut Dice, regions: &[RegionSpec], length: Duration) -> Vec<(Duration, Fault)> {
    let mut faults = Vec::new();
    // A second fault of one clock could add up with the first beyond the margin.
    let mut clocks: BTreeSet<(usize, usize)> = BTreeSet::new();
    for _ in 0..dice.pick(&[0, 2, 5, 12]) {
        let at = dice.span(Duration::from_millis(200), length);
        let span = dice.span(Duration::from_millis(20), Duration::from_secs(5));
        let region = index(dice, regions.len());
        let other = index(dice, regions.len());
        let node = index(dice, regions.iter().map(|region| region.nodes).sum());
        match dice.below(12) {
            0..=2 => {
                for (from, to) in cuts(dice, region, other, regions.len()) {
                    faults.push((at, Fault::Cut { from, to }));
                    faults.push((at + span, Fault::Heal { from, to }));
                }
            }
            3 | 4 => {
                faults.push((at, Fault::Crash { node }));
                faults.push((at + span, Fault::Start { node }));
            }
            5 => faults.push((at, Fault::Pause { node, span })),
            _ => {
                let shard = index(dice, regions[region].shards);
                let fault = match dice.below(6) {
                    0 => ShardFault::Forget,
                    1 => ShardFault::FailOver { after: span / 4 },
                    2 => ShardFault::Silence { span: span / 4 },
                    _ if !clocks.insert((region, shard)) => continue,
                    kind => clock(dice, kind == 3),
                };
                let fault = Fault::Shard {
                    region,
                    shard,
                    fault,
                };
                faults.push((at, fault));
            }
        }
    }
    faults.sort_by_key(|(at, _)| *at);
    faults
}

/// A clock that goes wrong within the margin.
fn clock(dice: &mut Dice, freezes: bool) -> ShardFault {
    let by = dice.between(1, CLOCK_STEP_MAX_US);
    if freezes {
        let span = Duration::from_micros(by);
        return ShardFault::Freeze { span };
    }
    let by = i64::try_from(by).unwrap_or(1);
    let by_us = if dice.one_in(2) { by } else { -by };
    ShardFault::Step { by_us }
}

/// One way, both ways, or everything to and from a region.
fn cuts(dice: &mut Dice, region: usize, other: usize, count: usize) -> Vec<(usize, usize)> {
    let all: Vec<(usize, usize)> = (0..count)
        .filter(|third| *third != region)
        .flat_map(|third| [(region, third), (third, region)])
        .collect();
    match dice.below(3) {
        0 => vec![(region, other)],
        1 => vec![(region, other), (other, region)],
        _ => all,
    }
}

fn index(dice: &mut Dice, count: usize) -> usize {
    let count = u64::try_from(count).unwrap_or(1);
    usize::try_from(dice.below(count)).unwrap_or(0)
}
