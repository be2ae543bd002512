//! Random worlds with random faults, each from a seed: none of them may break the promise.

mod faults;

use std::collections::BTreeMap;
use std::time::Duration;

use region::bucket::Lost;
use region::policy::OnStoreFailure;

use crate::sim::{Detail, Dice, LimitSpec, Link, Load, RegionSpec, Replica, Run, Scenario, run};

/// The error of clock rates that the promise allows for.
const DRIFT_MAX_PPM: u64 = 1_000;

/// What the faults of a world may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: whatever happens, no more is admitted than the limit and the policy's `overrun`.
    Strict,
    /// Something: what is admitted stays within the bound for these faults.
    Costly,
}

/// What kind of world a seed has: every third is costly.
#[must_use]
pub const fn kind(seed: u64) -> Kind {
    if seed % 3 == 2 {
        Kind::Costly
    } else {
        Kind::Strict
    }
}

/// What the regions of a world have in common.
struct Setting {
    length: Duration,
    drifts: bool,
    /// The most that a region is offered, in multiples of the limit.
    greed: f64,
}

/// Runs the world of a seed.
#[must_use]
pub fn soak(seed: u64) -> Run {
    run(&world(seed))
}

/// The world of a seed that broke, without the faults that it does not need to break, and its run.
#[must_use]
pub fn fewest_faults(seed: u64) -> (Scenario, Run) {
    let mut fewest = world(seed);
    let mut broken = run(&fewest);
    let mut next = 0;
    while next < fewest.faults.len() && broken.broken.is_some() {
        let mut fewer = fewest.clone();
        fewer.faults.remove(next);
        let without = run(&fewer);
        if without.broken.is_some() {
            (fewest, broken) = (fewer, without);
        } else {
            next += 1;
        }
    }
    (fewest, broken)
}

/// The world of a seed: three regions, often more, with everything that may happen to them
/// (PROTOCOL 6).
#[must_use]
pub fn world(seed: u64) -> Scenario {
    let mut dice = Dice::new(seed ^ 0x7469_6465_6761_7465);
    let limit = limit(&mut dice);
    let count = usize::try_from(dice.pick(&[2, 3, 3, 3, 3, 4, 5])).unwrap_or(3);
    let length = dice.span(Duration::from_secs(6), Duration::from_secs(14));
    let costly = kind(seed) == Kind::Costly;
    let at = Setting {
        length,
        drifts: dice.one_in(3),
        // What appears twice costs nothing where nobody asks for it.
        greed: if costly && dice.one_in(2) { 5.0 } else { 1.6 },
    };
    let regions: Vec<RegionSpec> = (0..count).map(|_| region(&mut dice, &limit, &at)).collect();
    let links = links(&mut dice, count);
    let faults = faults::faults(&mut dice, &regions, (kind(seed), length));
    let (full, local) = (dice.one_in(3), dice.one_in(3));
    let on_store_loss = if costly && full {
        Lost::Full
    } else {
        Lost::Empty
    };
    let on_store_failure = if costly && local {
        OnStoreFailure::Local
    } else {
        OnStoreFailure::Closed
    };
    let keys = u32::try_from(dice.pick(&[1, 1, 1, 3, 20])).unwrap_or(1);
    Scenario {
        seed: dice.number(),
        regions,
        limit,
        on_store_loss,
        on_store_failure,
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

fn region(dice: &mut Dice, limit: &LimitSpec, at: &Setting) -> RegionSpec {
    let mut loads = vec![(Duration::ZERO, load(dice, limit, at.greed))];
    for _ in 0..dice.below(4) {
        let from = dice.span(Duration::ZERO, at.length);
        loads.push((from, load(dice, limit, at.greed)));
    }
    loads.sort_by_key(|(from, _)| *from);
    let drift = i64::try_from(dice.below(2 * DRIFT_MAX_PPM)).unwrap_or(0) - 1_000;
    RegionSpec {
        weight: u32::try_from(dice.between(1, 50)).unwrap_or(1),
        nodes: usize::try_from(dice.pick(&[1, 1, 2, 3])).unwrap_or(1),
        shards: usize::try_from(dice.pick(&[1, 1, 2, 3])).unwrap_or(1),
        replica: replica(dice),
        ahead: dice.span(Duration::ZERO, Duration::from_secs(100)),
        drift_ppm: if at.drifts { drift } else { 0 },
        loads,
    }
}

/// Its clock has nothing to do with the primary's.
fn replica(dice: &mut Dice) -> Option<Replica> {
    let (ahead, lag) = (Duration::from_secs(100), dice.pick(&[10, 40, 1_000]));
    let lag = Duration::from_millis(lag);
    let replica = Replica {
        lag: dice.span(Duration::ZERO, lag),
        ahead: dice.span(Duration::ZERO, ahead),
    };
    dice.one_in(2).then_some(replica)
}

fn load(dice: &mut Dice, limit: &LimitSpec, greed: f64) -> Load {
    let per_second = limit.rate as f64 / limit.per.as_secs_f64();
    let rate = per_second * dice.unit() * greed;
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
