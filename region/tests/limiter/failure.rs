//! What policies do while a shard does not answer.

use std::time::Instant;

use region::bound::{Bound, Fault};

use super::*;

fn world(mode: &str) -> World {
    let fields = format!("rate = 3\nper = \"60s\"\non_store_failure = \"{mode}\"");
    World::new(&(ALONE.to_owned() + &policy("p", &fields)))
}

#[test]
fn case_24_a_failed_store_is_a_fallback_of_the_policys_choice_and_says_so() {
    for (mode, admitted) in [("local", 3), ("open", 100), ("closed", 0)] {
        let world = world(mode);
        world.break_shard("c", true);
        let answers: Vec<Answer> = (0..100).map(|_| world.check("c", 1)).collect();
        let passed = answers.iter().filter(|answer| answer.allowed).count();
        assert_eq!(passed, admitted, "{mode}");
        for answer in &answers {
            let verdict = answer.subjects[0][0];
            assert_eq!(verdict.fallback, Some(StoreError::Unreachable));
            assert_eq!((verdict.stamp, verdict.decision.limit), (None, Tokens(3)));
            assert_eq!(verdict.decision.retry_after.is_some(), !answer.allowed);
        }
        if mode == "closed" {
            let retry = first(&answers[0]).retry_after;
            assert_eq!(retry, Some(Duration::from_secs(1)));
        }
    }
}

#[test]
fn local_fallback_counts_down_and_waits_for_one_token() {
    let world = world("local");
    world.break_shard("c", true);
    let left: Vec<u64> = (0..4)
        .map(|_| first(&world.check("c", 1)).remaining.0)
        .collect();
    assert_eq!(left, [2, 1, 0, 0]);
    let retry = first(&world.check("c", 1))
        .retry_after
        .expect("it passes later");
    let token = Duration::from_secs(20);
    assert!(
        retry <= token && retry > token - Duration::from_secs(10),
        "{retry:?}"
    );
    assert_eq!(first(&world.check("c", 4)).retry_after, None, "never");
}

#[test]
fn local_fallback_divides_the_regions_base_by_the_nodes() {
    let text = THREE.to_owned() + &policy("p", "rate = 1000\nper = \"60s\"");
    let world = World::with(&text, Memory::default(), 10);
    world.break_shard("c", true);
    // A capacity of 305 over ten nodes.
    assert_eq!(world.letters(40), "A".repeat(30) + &"d".repeat(10));
    let small = THREE.to_owned() + &policy("p", "rate = 3\nper = \"60s\"");
    let world = World::with(&small, Memory::default(), 10);
    world.break_shard("c", true);
    assert_eq!(world.letters(3), "ddd", "less than one token");
}

#[test]
fn local_fallback_admits_what_the_bound_says() {
    let text = "[regions]\nus = 30\neu = 50\nap = 20\n".to_owned();
    let text = text + &policy("p", "rate = 1000\nper = \"1s\"");
    let set = PolicySet::parse(&text, "policies.toml").expect("good policies");
    let bound = Bound::of(&set.policies()[0]).expect("a limit that is shared");
    let world = World::with(&text, Memory::default(), 1);
    let began = Instant::now();
    world.break_shard("c", true);
    let passed = (0..2_000).filter(|_| world.check("c", 1).allowed).count();
    let most = bound.total(&[Fault::Outage(began.elapsed())]);
    let passed = u64::try_from(passed).expect("a few");
    assert!(
        passed >= 475 && Some(Tokens(passed)) <= most,
        "{passed} of {most:?}"
    );
}

#[test]
fn check_takes_nothing_anywhere_when_a_failed_shard_denies() {
    for mode in ["closed", "local"] {
        let world = world(mode);
        let [a, b, _] = world.clients();
        world.break_shard(&b, true);
        if mode == "local" {
            assert!(world.check(&b, 3).allowed);
        }
        let both: [(&[(&str, &str)], u64); 2] =
            [(&[("customer", &a)], 1), (&[("customer", &b)], 1)];
        let denied = world.check_all(&both);
        assert!(!denied.allowed, "{mode}");
        assert_eq!(first(&denied).remaining, Tokens(3));
        assert_eq!(
            first(&world.check(&a, 0)).remaining,
            Tokens(3),
            "given back"
        );
    }
}

#[test]
fn check_takes_nothing_from_the_emergency_limiter_when_a_shard_denies() {
    let world = world("local");
    let [a, b, c] = world.clients();
    world.break_shard(&b, true);
    world.break_shard(&c, true);
    assert!(world.check(&a, 3).allowed);
    assert!(
        world.check(&c, 3).allowed,
        "the emergency limiter of c is used up"
    );
    let denied = |first: &str, second: &str| {
        let answer = world.check_all(&[(&[("customer", first)], 1), (&[("customer", second)], 1)]);
        !answer.allowed
    };
    for _ in 0..10 {
        assert!(denied(&a, &b) && denied(&b, &c));
    }
    assert_eq!(first(&world.check(&b, 0)).remaining, Tokens(3));
    assert!(world.check(&b, 3).allowed);
}

#[test]
fn check_uses_the_store_again_when_its_shard_is_back() {
    let world = world("local");
    assert!(world.check("c", 1).allowed);
    world.break_shard("c", true);
    assert_eq!(world.letters(4), "AAAd");
    world.break_shard("c", false);
    let answer = world.check("c", 1);
    assert_eq!(answer.subjects[0][0].fallback, None);
    assert_eq!(first(&answer).remaining, Tokens(1));
}

#[test]
fn refund_is_not_denied_while_the_store_fails() {
    for mode in ["closed", "local", "open"] {
        let world = world(mode);
        world.break_shard("c", true);
        let answer = world.refund("c", 1);
        assert!(answer.allowed && first(&answer).allowed, "{mode}");
        assert!(answer.subjects[0][0].fallback.is_some());
    }
}
