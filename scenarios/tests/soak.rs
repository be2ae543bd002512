//! Two hundred random worlds with random faults. In four parts, so that they run side by side.

use std::ops::Range;

use region::units::Tokens;
use scenarios::soak::soak;

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
        assert!(run.overrun <= run.overrun_max, "seed {seed}");
        lent += u64::from(run.shares.len() > 2 * run.regions.len());
        assert!(
            run.overrun == Tokens(0) || run.overrun_max > Tokens(0),
            "seed {seed}"
        );
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
