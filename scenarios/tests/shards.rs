//! What happens to one shard: replicas that are promoted, memories that are lost or come back.

use std::time::Duration;

use region::bucket::Lost;
use region::policy::OnStoreFailure;
use region::units::Tokens;
use scenarios::sim::{
    self, Detail, Fault, LimitSpec, Link, Load, RegionSpec, Replica, Scenario, ShardFault,
};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A fault of the first shard of the first region.
fn at(second: u64, fault: ShardFault) -> (Duration, Fault) {
    let (region, shard) = (0, 0);
    let fault = Fault::Shard {
        region,
        shard,
        fault,
    };
    (seconds(second), fault)
}

/// Twelve keys on three shards; each region asks for less than its base share of every key.
fn shards(faults: Vec<(Duration, Fault)>) -> Scenario {
    let limit = LimitSpec {
        rate: 100,
        per: seconds(1),
        burst: 100,
        overrun: 0,
    };
    let mut regions = vec![RegionSpec::steady(1, Load::Constant(150.0)); 3];
    for region in &mut regions {
        region.shards = 3;
        region.replica = Some(Replica {
            lag: Duration::from_millis(20),
            ahead: seconds(7),
        });
    }
    let mut scenario = Scenario::calm(limit, regions, Link::of_round_trip(80));
    (scenario.keys, scenario.zipf) = (12, 0.0);
    scenario.length = seconds(12);
    scenario.faults = faults;
    scenario
}

#[test]
fn faults_of_one_shard_deny_no_key_of_another() {
    let after = seconds(1);
    let span = seconds(1);
    let faults = [
        ShardFault::FailOver { after },
        ShardFault::Forget,
        ShardFault::Silence { span },
    ];
    for fault in faults {
        let run = sim::run(&shards(vec![at(6, fault)]));
        assert_eq!(run.broken, None, "{fault}: {:#?}", run.trace);
        let (mut harmed, mut unharmed) = (0, 0);
        for (shards, tally) in run.shards.iter().zip(&run.keys) {
            if shards[0] == 0 {
                harmed += 1;
                assert!(tally.denied() > 0, "{fault}: {tally:?}");
            } else {
                unharmed += 1;
                assert_eq!(tally.denied(), 0, "{fault}: {tally:?}");
            }
        }
        assert!(harmed > 0 && unharmed > harmed, "{harmed} {unharmed}");
    }
}

#[test]
fn promotion_of_a_replica_costs_denials_and_no_overrun() {
    let after = Duration::from_millis(300);
    let mut scenario = shards(vec![at(6, ShardFault::FailOver { after })]);
    for region in &mut scenario.regions {
        region.loads = vec![(Duration::ZERO, Load::Poisson(900.0))];
    }
    let run = sim::run(&scenario);
    assert_eq!(run.broken, None, "{:#?}", run.trace);
    assert_eq!(run.overrun, Tokens(0));
    let [own, other] = [0, 1].map(|region: usize| run.regions[region].admitted);
    assert!(own < other, "the others go on: {:?}", run.regions);
}

#[test]
fn grant_is_said_only_when_a_replica_has_it() {
    let lent = |lag| {
        let mut scenario = shards(Vec::new());
        scenario.keys = 1;
        for region in &mut scenario.regions {
            region.replica = Some(Replica {
                lag: Duration::from_millis(lag),
                ahead: Duration::ZERO,
            });
            region.loads = vec![(Duration::ZERO, Load::Silent)];
        }
        scenario.regions[0].loads = vec![(Duration::ZERO, Load::Constant(95.0))];
        let run = sim::run(&scenario);
        assert_eq!(run.broken, None, "{:#?}", run.trace);
        run.share(0, scenario.length)
    };
    assert!(lent(20) > Some(900));
    assert_eq!(
        lent(60),
        Some(333),
        "a replica that lags further has no grant in time"
    );
}

#[test]
fn faults_of_shards_repeat_byte_for_byte() {
    let (after, span) = (Duration::from_millis(300), seconds(1));
    let lost = Duration::from_millis(700);
    let mut scenario = shards(vec![
        at(2, ShardFault::FailOver { after }),
        at(3, ShardFault::Silence { span }),
        at(5, ShardFault::Restore { lost }),
        at(6, ShardFault::Split { stay: 1, span }),
        at(8, ShardFault::Freeze { span }),
    ]);
    scenario.detail = Detail::Everything;
    scenario.regions[0].nodes = 2;
    for region in &mut scenario.regions {
        region.loads = vec![(Duration::ZERO, Load::Poisson(900.0))];
    }
    let (one, other) = (sim::run(&scenario), sim::run(&scenario));
    assert!(one.trace.len() > 5_000, "{}", one.trace.len());
    assert_eq!(one, other);
}

/// Three regions that ask for more than all of the limit of one key from the fifth second on, and a
/// fault of the first one's store in the sixth.
fn costly(fault: ShardFault) -> Scenario {
    let limit = LimitSpec {
        rate: 100,
        per: seconds(1),
        burst: 100,
        overrun: 0,
    };
    let mut regions = vec![RegionSpec::steady(1, Load::Silent); 3];
    for region in &mut regions {
        region.loads.push((seconds(5), Load::Constant(150.0)));
        region.replica = Some(Replica {
            lag: Duration::from_millis(20),
            ahead: seconds(7),
        });
        region.nodes = 2;
    }
    let mut scenario = Scenario::calm(limit, regions, Link::of_round_trip(80));
    scenario.length = seconds(14);
    scenario.faults = vec![at(6, fault)];
    scenario
}

#[test]
fn faults_that_cost_something_stay_within_their_bound() {
    let span = seconds(3);
    let lost = Duration::from_millis(1_200);
    let full = |fault| Scenario {
        on_store_loss: Lost::Full,
        ..costly(fault)
    };
    let local = |fault| Scenario {
        on_store_failure: OnStoreFailure::Local,
        ..costly(fault)
    };
    let by_us = 900_000;
    let worlds = [
        costly(ShardFault::Restore { lost }),
        costly(ShardFault::Split { stay: 1, span }),
        costly(ShardFault::Step { by_us }),
        full(ShardFault::Forget),
        full(ShardFault::FailOver { after: lost / 10 }),
        local(ShardFault::Silence { span }),
    ];
    for world in worlds {
        let (fault, run) = (world.faults[0].1, sim::run(&world));
        println!(
            "{fault}: {:?} {:?} of {:?}",
            run.overrun, run.surplus, run.overrun_max
        );
        assert_eq!(run.broken, None, "{fault}: {:#?}", run.trace);
        assert!(run.overrun > Tokens(0), "{fault} costs nothing");
        assert!(run.overrun <= run.overrun_max, "{fault}");
        assert_eq!(run.worst, Some(0));
    }
}
