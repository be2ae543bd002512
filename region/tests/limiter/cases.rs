//! Cases of one policy on one client.

use super::*;

#[test]
fn case_06_rate_0_denies_everything_that_costs_something() {
    for fields in ["rate = 0", "rate = 0\nper = \"60s\""] {
        let world = World::new(&(ALONE.to_owned() + &policy("none", fields)));
        for _ in 0..3 {
            let answer = world.check("c", 1);
            assert!(!answer.allowed);
            let decision = first(&answer);
            assert_eq!((decision.limit, decision.remaining), (Tokens(0), Tokens(0)));
            assert_eq!((decision.retry_after, decision.reset_after), (None, None));
        }
        let look = world.check("c", 0);
        assert!(look.allowed && first(&look).allowed);
        assert_eq!(first(&look).remaining, Tokens(0));
        // No store was asked.
        let shards = &world.limiter.store().stores;
        assert!(shards.iter().all(MemoryStore::is_empty));
    }
}

#[test]
fn case_06_unlimited_passes_without_the_store() {
    let world = World::new(&(ALONE.to_owned() + &policy("all", "unlimited = true")));
    let answer = world.check("c", u64::MAX);
    assert!(answer.allowed && answer.subjects == [vec![]]);
    assert!(
        world
            .limiter
            .store()
            .stores
            .iter()
            .all(MemoryStore::is_empty)
    );
}

#[test]
fn case_10_no_token_is_free_after_a_pause() {
    let world = World::new(&(ALONE.to_owned() + &policy("five", "rate = 5\nper = \"1s\"")));
    assert_eq!(world.letters(6), "AAAAAd");
    assert_eq!(world.at(2_000_000).letters(6), "AAAAAd");
    assert_eq!(first(&world.check("c", 1)).limit, Tokens(5));
}

#[test]
fn case_10_refill_is_exact_over_many_small_steps() {
    let world = World::new(&(ALONE.to_owned() + &policy("three", "rate = 3\nper = \"1000ms\"")));
    let letters: String = (0..=30)
        .map(|step| world.at(step * 100_000).letters(1))
        .collect();
    assert_eq!(letters, "AAAdAddAddAdddAddAddAdddAddAddA");
    assert_eq!(first(&world.check("c", 1)).limit, Tokens(3));
}

#[test]
fn case_13_denials_consume_nothing() {
    let world = World::new(&(ALONE.to_owned() + &policy("two", "rate = 2\nper = \"4s\"")));
    let polled: String = (0..9)
        .map(|second| world.at(second * 1_000_000).letters(1))
        .collect();
    // Two tokens, and one more every two seconds, however often it is asked in between.
    assert_eq!(polled, "AAAdAdAdA");
    let drained = World::new(&(ALONE.to_owned() + &policy("ten", "rate = 10\nper = \"10s\"")));
    assert_eq!(drained.letters(50), "A".repeat(10) + &"d".repeat(40));
    assert_eq!(drained.at(1_000_000).letters(2), "Ad");
}

#[test]
fn case_33_retry_is_the_shortest_wait_after_which_the_request_passes() {
    let world = World::new(&(ALONE.to_owned() + &policy("one", "rate = 1\nper = \"106ms\"")));
    assert_eq!(world.letters(1), "A");
    let wait = first(&world.check("c", 1)).retry_after;
    assert_eq!(wait, Some(Duration::from_millis(106)));

    let world = World::new(&(ALONE.to_owned() + &policy("three", "rate = 3\nper = \"10s\"")));
    assert_eq!(world.letters(3), "AAA");
    let wait = first(&world.check("c", 1)).retry_after;
    assert_eq!(wait, Some(Duration::from_micros(3_333_334)));
    let wait = first(&world.at(3_333_000).check("c", 1)).retry_after;
    assert_eq!(wait, Some(Duration::from_micros(334)));
    assert_eq!(world.at(4_000_000).letters(1), "A");
}

#[test]
fn case_33_a_request_that_can_never_pass_has_no_retry() {
    let fields = "rate = 10\nper = \"1s\"\nburst = 20\noverrun = 5";
    let world = World::new(&(ALONE.to_owned() + &policy("p", fields)));
    let decision = first(&world.check("c", 26));
    assert_eq!((decision.allowed, decision.retry_after), (false, None));
    assert!(world.check("c", 25).allowed, "burst and overrun together");
    assert_eq!(first(&world.check("c", 26)).retry_after, None);
}

#[test]
fn check_beyond_the_regions_capacity_waits_as_long_as_the_whole_limit_needs() {
    let world = World::new(&(THREE.to_owned() + &policy("p", "rate = 1000\nper = \"1s\"")));
    let decision = first(&world.check("c", 800));
    assert!(!decision.allowed);
    assert_eq!(decision.retry_after, Some(Duration::from_millis(800)));
    assert!(world.check("c", 300).allowed);
}

#[test]
fn check_without_a_matching_policy_passes() {
    let text = ALONE.to_owned()
        + &policy(
            "p",
            "rate = 1\nper = \"1s\"\nmatch = [{ attribute = \"plan\", equals = \"free\" }]",
        );
    let world = World::new(&text);
    assert!(world.check("c", 100).allowed, "no plan");
    let free: &[_] = &[("customer", "c"), ("plan", "free")];
    assert!(world.check_all(&[(free, 1)]).allowed);
    assert!(!world.check_all(&[(free, 1)]).allowed);
    assert!(
        world.check_all(&[(&[("plan", "free")], 1)]).allowed,
        "no key"
    );
    assert!(
        world
            .check_all(&[(&[("Customer", "c"), ("plan", "free")], 1)])
            .allowed
    );
}

#[test]
fn case_08_refund_is_clamped_and_never_denied() {
    let world = World::new(&(ALONE.to_owned() + &policy("ten", "rate = 10\nper = \"60s\"")));
    assert!(world.refund("c", 5).allowed, "an unknown key is full");
    assert_eq!(world.letters(10), "A".repeat(10));
    let answer = world.refund("c", 1);
    assert_eq!(
        (answer.allowed, first(&answer).remaining),
        (true, Tokens(1))
    );
    assert_eq!(first(&world.check("c", 1)).remaining, Tokens(0));
    assert_eq!(first(&world.refund("c", 100)).remaining, Tokens(10));
    assert_eq!(first(&world.check("c", 1)).remaining, Tokens(9));
}

#[test]
fn region_of_weight_zero_has_nothing_of_its_own_however_often_it_is_forgotten() {
    for loss in ["empty", "full"] {
        let fields = format!("rate = 1000\nper = \"1d\"\non_store_loss = \"{loss}\"");
        let world =
            World::new(&("[regions]\neu = 0\nus = 50\n".to_owned() + &policy("p", &fields)));
        for _ in 0..100 {
            assert_eq!(world.letters(3), "ddd", "{loss}");
            world.later(Duration::from_secs(60));
        }
    }
}
