//! What a decision promises holds for any limit and any history.

use proptest::prelude::*;
use region::policy::Attributes;
use region::units::{Generation, Share};

use super::*;

#[derive(Clone, Debug)]
struct Given {
    text: String,
    memory: Memory,
    /// Pauses in microseconds and the costs after them.
    history: Vec<(u64, u64)>,
    cost: u64,
}

fn given() -> impl Strategy<Value = Given> {
    let per = prop_oneof![
        (1_u64..2_000).prop_map(|ms| ms * 1_000),
        (1_u64..60).prop_map(|s| s * 1_000_000),
        (1_u64..72).prop_map(|h| h * 3_600_000_000),
        1_u64..1_000_000,
    ];
    let limit = (1_u64..200, per, 1_u64..200, 0_u64..5);
    let began = prop_oneof![Just(0), (0_u64..5_000_000).prop_map(|ago| T0 - ago)];
    let history = prop::collection::vec((0_u64..3_000_000, 0_u64..60), 0..12);
    let place = (prop::bool::ANY, prop::bool::ANY, began);
    (limit, place, history, 1_u64..250).prop_map(|(limit, place, history, cost)| {
        let (rate, per, burst, overrun) = limit;
        let (alone, regional, began) = place;
        let scope = if regional { "regional" } else { "global" };
        let fields = format!(
            "rate = {rate}\nper = \"{per}us\"\nburst = {burst}\noverrun = {overrun}\nscope = \
             \"{scope}\""
        );
        Given {
            text: (if alone { ALONE } else { THREE }).to_owned() + &policy("p", &fields),
            memory: Memory {
                generation: Generation(1),
                began: Timestamp(began),
            },
            history,
            cost,
        }
    })
}

/// A world with that history; `None` for a limit that cannot be kept exactly.
fn lived(given: &Given) -> Option<World> {
    PolicySet::parse(&given.text, "policies.toml").ok()?;
    let world = World::with(&given.text, given.memory, 1);
    for (pause, cost) in &given.history {
        world.later(Duration::from_micros(*pause));
        world.check("c", *cost);
    }
    Some(world)
}

/// What customer `c` has in the region.
fn base(world: &World) -> Base {
    let policy = &world.limiter.policies().policies()[0];
    let pairs = [("customer", "c")];
    let key = world
        .limiter
        .key(policy, Attributes::new(&pairs))
        .expect("keyed by customer");
    policy
        .base(world.limiter.region(), key.client)
        .expect("a bucket")
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn case_33_request_passes_after_exactly_its_retry_and_not_before(given in given()) {
        let Some(world) = lived(&given) else { return Ok(()) };
        let answer = world.check("c", given.cost);
        prop_assume!(!answer.allowed);
        let decision = first(&answer);
        let policy = &world.limiter.policies().policies()[0];
        let limit = policy.split().expect("a bucket").limit();
        let possible = given.cost <= limit.burst().0 + policy.overrun().0;
        prop_assert_eq!(decision.retry_after.is_some(), possible);
        let Some(retry) = decision.retry_after else { return Ok(()) };
        prop_assert!(retry > Duration::ZERO);
        let base = base(&world);
        // More than the region holds waits for others to lend, which nobody does here.
        prop_assume!(limit.level(Tokens(given.cost)) <= base.capacity.plus(base.debt));
        world.later(retry - Duration::from_micros(1));
        prop_assert!(!world.check("c", given.cost).allowed, "a microsecond early");
        world.later(Duration::from_micros(1));
        prop_assert!(world.check("c", given.cost).allowed, "after {retry:?}");
    }

    #[test]
    fn exactly_what_remains_can_be_taken(given in given()) {
        let Some(world) = lived(&given) else { return Ok(()) };
        let remaining = first(&world.check("c", 0)).remaining.0;
        prop_assert!(!world.check("c", remaining + 1).allowed);
        prop_assert!(world.check("c", remaining).allowed);
        let after = world.check("c", 1);
        prop_assert!(!after.allowed);
        prop_assert_eq!(first(&after).remaining, Tokens(0));
    }

    #[test]
    fn bucket_is_full_after_its_reset_and_not_before(given in given()) {
        let Some(world) = lived(&given) else { return Ok(()) };
        let Some(reset) = first(&world.check("c", 0)).reset_after else {
            prop_assert_eq!(base(&world).share, Share::ZERO, "only without a share it never fills");
            return Ok(());
        };
        let full = first(&world.later(Duration::from_secs(1_000_000_000)).check("c", 0));
        prop_assert_eq!(full.reset_after, Some(Duration::ZERO));
        let Some(world) = lived(&given) else { return Ok(()) };
        if let Some(early) = reset.checked_sub(Duration::from_micros(1)) {
            let before = first(&world.later(early).check("c", 0));
            prop_assert_eq!(before.reset_after, Some(Duration::from_micros(1)));
            world.later(Duration::from_micros(1));
        }
        let after = first(&world.check("c", 0));
        prop_assert_eq!(after.reset_after, Some(Duration::ZERO));
        prop_assert_eq!(after.remaining, full.remaining);
    }
}
