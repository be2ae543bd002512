//! What goes wrong in a random world.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Kind;
use crate::sim::{Dice, Fault, RegionSpec, ShardFault};

/// How far a clock may be put wrong in one life of a grant. Two regions may go wrong in opposite
/// directions, and together they stay within the margin of the protocol.
const CLOCK_STEP_MAX_US: u64 = 200_000;

/// How far a clock goes wrong where that may cost something.
const CLOCK_JUMP_MAX_US: u64 = 4_000_000;

/// What goes wrong: nothing, a little, or a lot of it.
pub(super) fn faults(
    dice: &mut Dice,
    regions: &[RegionSpec],
    (kind, length): (Kind, Duration),
) -> Vec<(Duration, Fault)> {
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
                let fault = match kind {
                    Kind::Costly if dice.one_in(2) => costly(dice, &regions[region], span),
                    Kind::Costly | Kind::Strict => free(dice, span),
                };
                let clock = matches!(fault, ShardFault::Step { .. });
                if kind == Kind::Strict && clock && !clocks.insert((region, shard)) {
                    continue;
                }
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

/// What may happen to a shard without a cost, unless the policy chooses one.
fn free(dice: &mut Dice, span: Duration) -> ShardFault {
    match dice.below(4) {
        0 => ShardFault::Forget,
        1 => ShardFault::FailOver { after: span / 4 },
        2 => ShardFault::Silence { span: span / 4 },
        _ => {
            let by = dice.between(1, CLOCK_STEP_MAX_US);
            let by_us = -i64::try_from(by).unwrap_or(1);
            ShardFault::Step { by_us }
        }
    }
}

/// What may cost something whatever the policy says.
fn costly(dice: &mut Dice, region: &RegionSpec, span: Duration) -> ShardFault {
    let by = dice.pick(&[CLOCK_STEP_MAX_US, CLOCK_JUMP_MAX_US]);
    let by = dice.between(1, by);
    match dice.below(6) {
        0 | 1 => ShardFault::Restore { lost: span / 3 },
        2 | 3 => ShardFault::Split {
            stay: 1 + index(dice, region.nodes),
            span,
        },
        4 => ShardFault::Freeze {
            span: Duration::from_micros(by),
        },
        _ => {
            let by = i64::try_from(by).unwrap_or(1);
            let by_us = if dice.one_in(2) { by } else { -by };
            ShardFault::Step { by_us }
        }
    }
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
