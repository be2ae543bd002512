//! The simulator itself: the same seed is the same run, and a run does what production does.

use std::time::Duration;

use scenarios::sim::{
    self, Detail, Fault, LimitSpec, Link, Load, RegionSpec, Scenario, ShardFault,
};

const THOUSAND: LimitSpec = LimitSpec {
    rate: 1_000,
    per: Duration::from_secs(1),
    burst: 1_000,
    overrun: 0,
};

fn three(loads: [Load; 3]) -> Scenario {
    let regions = [50, 30, 20].into_iter().zip(loads);
    let regions = regions.map(|(weight, load)| RegionSpec::steady(weight, load));
    Scenario::calm(THOUSAND, regions.collect(), Link::of_round_trip(80))
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A fault of the first shard of a region.
const fn shard(region: usize, fault: ShardFault) -> Fault {
    Fault::Shard {
        region,
        shard: 0,
        fault,
    }
}

#[test]
fn simulator_repeats_a_run_byte_for_byte() {
    let mut scenario = three([
        Load::Poisson(600.0),
        Load::Adversary { size: 200 },
        Load::Silent,
    ]);
    scenario.length = seconds(6);
    scenario.detail = Detail::Everything;
    scenario.link.jitter = Duration::from_millis(50);
    (scenario.link.loss, scenario.link.twice) = (50, 50);
    scenario.regions[0].nodes = 2;
    scenario.faults = vec![
        (seconds(3), Fault::Crash { node: 0 }),
        (seconds(4), Fault::Start { node: 0 }),
        (seconds(5), shard(1, ShardFault::Forget)),
    ];
    let (one, other) = (sim::run(&scenario), sim::run(&scenario));
    assert!(one.trace.len() > 5_000, "{}", one.trace.len());
    assert_eq!(one.trace, other.trace);
    assert_eq!(one, other);
    scenario.seed = 2;
    assert_ne!(sim::run(&scenario).trace, one.trace);
}

#[test]
fn share_goes_where_the_load_is_and_nothing_is_admitted_twice() {
    let scenario = three([Load::Silent, Load::Silent, Load::Constant(1_000.0)]);
    let run = sim::run(&scenario);
    assert_eq!(run.broken, None, "{:#?}", run.trace);
    assert!(run.utilisation() > 0.98, "{}", run.utilisation());
    assert!(run.share(2, seconds(20)) >= Some(950), "{:?}", run.shares);
}

#[test]
fn region_cut_off_keeps_its_base_share_and_lends_again_after_the_heal() {
    let mut scenario = three([Load::Constant(900.0), Load::Silent, Load::Constant(100.0)]);
    for other in [1, 2] {
        for (from, to) in [(0, other), (other, 0)] {
            scenario.faults.push((seconds(6), Fault::Cut { from, to }));
            scenario
                .faults
                .push((seconds(12), Fault::Heal { from, to }));
        }
    }
    let run = sim::run(&scenario);
    assert_eq!(run.broken, None, "{:#?}", run.trace);
    assert!(run.share(0, seconds(6)) >= Some(850), "{:?}", run.shares);
    assert_eq!(run.share(0, seconds(11)), Some(500));
    let back = run.reaction(0, seconds(12), 850).expect("it borrows again");
    assert!(back < seconds(3), "{back:?}");
}
