//! Two hundred random worlds with random faults. In four parts, so that they run side by side.

use std::ops::Range;

use region::bucket::Lost;
use region::policy::OnStoreFailure;
use region::units::Tokens;
use scenarios::sim::{Fault, Load, Scenario, ShardFault};
use scenarios::soak::{Kind, kind, soak, world};

/// Runs seeds and returns in how many of them a share has moved.
fn holds(seeds: Range<u64>) -> u64 {
    let mut lent = 0;
    for seed in seeds {
        let run = soak(seed);
        assert_eq!(
            run.broken,
            None,
            "seed {seed}: tidegate scenario soak --from {seed} --seeds 1\n{}",
            run.trace.join("\n")
        );
        let budget = Tokens(world(seed).limit.overrun);
        let allowed = match kind(seed) {
            Kind::Strict => budget,
            Kind::Costly => run.overrun_max,
        };
        assert!(run.overrun <= allowed, "seed {seed}");
        assert!(allowed >= budget, "seed {seed}");
        lent += u64::from(run.shares.len() > 2 * run.regions.len());
    }
    lent
}

#[test]
fn promise_holds_in_random_worlds_0_to_49() {
    assert!(holds(0..50) > 30, "shares hardly ever move");
}

#[test]
fn promise_holds_in_random_worlds_50_to_99() {
    assert!(holds(50..100) > 30, "shares hardly ever move");
}

#[test]
fn promise_holds_in_random_worlds_100_to_149() {
    assert!(holds(100..150) > 30, "shares hardly ever move");
}

#[test]
fn promise_holds_in_random_worlds_150_to_199() {
    assert!(holds(150..200) > 30, "shares hardly ever move");
}

#[test]
fn worlds_have_every_load_and_every_fault() {
    let worlds: Vec<_> = (0..200).map(world).collect();
    let loads = worlds.iter().flat_map(|world| &world.regions);
    let loads: Vec<&Load> = loads
        .flat_map(|region| &region.loads)
        .map(|(_, load)| load)
        .collect();
    let some = |is: fn(&Load) -> bool| loads.iter().filter(|load| is(load)).count();
    assert!(some(|load| matches!(load, Load::Constant(_))) > 20);
    assert!(some(|load| matches!(load, Load::Poisson(_))) > 20);
    assert!(some(|load| matches!(load, Load::Bursts { .. })) > 20);
    assert!(some(|load| matches!(load, Load::Adversary { .. })) > 20);
    let uneven = worlds
        .iter()
        .filter(|world| world.keys > 1 && world.zipf > 0.5);
    assert!(uneven.count() > 20);
    let spread = worlds
        .iter()
        .filter(|world| world.keys > 1 && world.regions.iter().any(|region| region.shards > 1));
    assert!(spread.count() > 20);
    let replicas = worlds.iter().flat_map(|world| &world.regions);
    assert!(replicas.filter(|region| region.replica.is_some()).count() > 20);
    let faults: Vec<&Fault> = worlds
        .iter()
        .flat_map(|world| &world.faults)
        .map(|(_, fault)| fault)
        .collect();
    let some = |is: fn(&Fault) -> bool| faults.iter().filter(|fault| is(fault)).count();
    assert!(some(|fault| matches!(fault, Fault::Cut { .. })) > 20);
    assert!(some(|fault| matches!(fault, Fault::Crash { .. })) > 20);
    assert!(some(|fault| matches!(fault, Fault::Pause { .. })) > 20);
    let shards: Vec<ShardFault> = faults
        .iter()
        .filter_map(|fault| match fault {
            Fault::Shard { fault, .. } => Some(*fault),
            _ => None,
        })
        .collect();
    let some = |is: fn(&ShardFault) -> bool| shards.iter().filter(|fault| is(fault)).count();
    assert!(some(|fault| matches!(fault, ShardFault::Forget)) > 20);
    assert!(some(|fault| matches!(fault, ShardFault::FailOver { .. })) > 20);
    assert!(some(|fault| matches!(fault, ShardFault::Silence { .. })) > 20);
    assert!(some(|fault| matches!(fault, ShardFault::Step { .. })) > 20);
    // What costs something is in every third world only.
    assert!(some(|fault| matches!(fault, ShardFault::Freeze { .. })) > 5);
    assert!(some(|fault| matches!(fault, ShardFault::Split { .. })) > 10);
    assert!(some(|fault| matches!(fault, ShardFault::Restore { .. })) > 10);
    let full = |world: &&Scenario| world.on_store_loss == Lost::Full;
    assert!(worlds.iter().filter(full).count() > 10);
    let local = |world: &&Scenario| world.on_store_failure == OnStoreFailure::Local;
    assert!(worlds.iter().filter(local).count() > 10);
}
