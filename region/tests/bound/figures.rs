//! The figures of PROTOCOL 6 for policies of every kind.

use std::fmt::Write;
use std::time::Duration;

use expect_test::{Expect, expect};
use region::bound::{Bound, Fault, Per};
use region::policy::PolicySet;
use region::units::Tokens;

const REGIONS: &str = "[regions]\nus = 50\neu = 30\nap = 20\n";
const PLAIN: &str = "rate = 1000\nper = \"1s\"";

/// The bound of a policy with these fields, over these regions.
fn bound_over(regions: &str, fields: &str) -> Option<Bound> {
    let head = "[[policy]]\nname = \"p\"\ndomain = \"api\"\nkey = [\"customer\"]\n";
    let set = PolicySet::parse(&format!("{regions}{head}{fields}"), "policies.toml");
    Bound::of(&set.expect("good policies").policies()[0])
}

fn bound(fields: &str) -> Bound {
    bound_over(REGIONS, fields).expect("a limit that the regions share")
}

fn table(bound: &Bound) -> String {
    let mut text = String::new();
    for line in bound.lines() {
        let most = line.most.map(|most| format!(" at most {}", most.0));
        let tokens = line.tokens.map(|tokens| tokens.0.to_string());
        let tokens = tokens.unwrap_or_else(|| "none".to_owned());
        let (name, per) = (line.source.name(), line.per.name());
        let most = most.unwrap_or_default();
        writeln!(text, "{name:<21} {tokens:>6} per {per}{most}").expect("a text takes all");
    }
    text
}

fn check(bound: &Bound, expected: &Expect) {
    expected.assert_eq(&table(bound));
}

#[test]
fn bound_of_a_plain_limit_has_the_figures_of_the_protocol() {
    check(
        &bound(PLAIN),
        &expect![[r#"
            overrun                    0 per once
            below-one-token            0 per once
            leases                     0 per once
            network                    0 per event
            store-loss                 0 per event
            undetected-store-loss   3750 per event
            two-primaries           2425 per event
            two-primaries-rate       500 per period
            outage                   475 per event
            outage-rate              500 per period
            clock-rate                 1 per period
            clock-step              1000 per period at most 900
            clock-step-loans         800 per period
            limit-change            9600 per event
            limit-change-rate       1000 per period
            first-start             1475 per event
        "#]],
    );
}

#[test]
fn bound_follows_what_the_policy_says_of_stores() {
    let open = "on_store_failure = \"open\"\non_store_loss = \"full\"";
    check(
        &bound(&format!("{PLAIN}\noverrun = 100\n{open}")),
        &expect![[r#"
            overrun                  100 per once
            below-one-token            0 per once
            leases                     0 per once
            network                    0 per event
            store-loss              1525 per event
            undetected-store-loss   3800 per event
            two-primaries           2525 per event
            two-primaries-rate       500 per period
            outage                  none per event
            outage-rate             none per period
            clock-rate                 1 per period
            clock-step              1000 per period at most 950
            clock-step-loans         800 per period
            limit-change            9700 per event
            limit-change-rate       1000 per period
            first-start             1525 per event
        "#]],
    );
    let closed = bound(&format!("{PLAIN}\non_store_failure = \"closed\""));
    let hour = Duration::from_secs(3_600);
    assert_eq!(closed.total(&[Fault::Outage(hour)]), Some(Tokens(0)));
}

#[test]
fn bound_of_a_small_limit_is_in_whole_tokens() {
    check(
        &bound("rate = 3\nper = \"1m\""),
        &expect![[r#"
            overrun                    0 per once
            below-one-token            0 per once
            leases                     0 per once
            network                    0 per event
            store-loss                 0 per event
            undetected-store-loss      7 per event
            two-primaries              2 per event
            two-primaries-rate         1 per period
            outage                     1 per event
            outage-rate                1 per period
            clock-rate                 1 per period
            clock-step                 3 per period at most 3
            clock-step-loans           2 per period
            limit-change               7 per event
            limit-change-rate          3 per period
            first-start                2 per event
        "#]],
    );
}

#[test]
fn bound_of_a_limit_over_days_counts_what_is_forgotten_slowly() {
    check(
        &bound("rate = 10000\nper = \"1d\""),
        &expect![[r#"
            overrun                    0 per once
            below-one-token            0 per once
            leases                     0 per once
            network                    0 per event
            store-loss                 0 per event
            undetected-store-loss  17501 per event
            two-primaries           4251 per event
            two-primaries-rate      5000 per period
            outage                  4750 per event
            outage-rate             5000 per period
            clock-rate                10 per period
            clock-step             10000 per period at most 9000
            clock-step-loans        8000 per period
            limit-change           21001 per event
            limit-change-rate      10000 per period
            first-start             4751 per event
        "#]],
    );
}

#[test]
fn bound_of_a_single_region_has_no_loans() {
    let alone = bound_over("[regions]\neu = 1\n", PLAIN).expect("a shared limit");
    check(
        &alone,
        &expect![[r#"
            overrun                    0 per once
            below-one-token            0 per once
            leases                     0 per once
            network                    0 per event
            store-loss                 0 per event
            undetected-store-loss   1000 per event
            two-primaries              0 per event
            two-primaries-rate      1000 per period
            outage                  1000 per event
            outage-rate             1000 per period
            clock-rate                 1 per period
            clock-step              1000 per period at most 1000
            clock-step-loans           0 per period
            limit-change            9500 per event
            limit-change-rate       1000 per period
            first-start             1000 per event
        "#]],
    );
}

#[test]
fn bound_of_a_region_without_a_base_is_that_of_its_loans() {
    let borrower = bound_over("[regions]\nus = 1\neu = 0\n", PLAIN).expect("a shared limit");
    check(
        &borrower,
        &expect![[r#"
            overrun                    0 per once
            below-one-token            0 per once
            leases                     0 per once
            network                    0 per event
            store-loss                 0 per event
            undetected-store-loss   3850 per event
            two-primaries           2900 per event
            two-primaries-rate      1000 per period
            outage                   950 per event
            outage-rate             1000 per period
            clock-rate                 1 per period
            clock-step              1000 per period at most 950
            clock-step-loans        1000 per period
            limit-change            9450 per event
            limit-change-rate       1000 per period
            first-start             2950 per event
        "#]],
    );
}

#[test]
fn bound_is_only_for_limits_that_the_regions_share() {
    for fields in [
        "rate = 3\nper = \"1m\"\nscope = \"regional\"",
        "rate = 0",
        "unlimited = true",
    ] {
        assert_eq!(bound_over(REGIONS, fields), None, "{fields}");
    }
}

#[test]
fn bound_without_faults_is_the_overrun_of_the_policy() {
    assert_eq!(bound(PLAIN).total(&[]), Some(Tokens(0)));
    let allowed = bound(&format!("{PLAIN}\noverrun = 100"));
    assert_eq!(allowed.total(&[]), Some(Tokens(100)));
    let harmless = [Fault::Network, Fault::StoreLoss(9)];
    assert_eq!(allowed.total(&harmless), Some(Tokens(100)));
}

#[test]
fn bound_of_several_faults_is_the_sum_of_theirs() {
    let plain = bound(PLAIN);
    let total = |faults: &[Fault]| plain.total(faults).expect("a bound").0;
    let second = Duration::from_secs(1);
    let (loss, outage) = (Fault::UndetectedStoreLoss(1), Fault::Outage(second * 30));
    assert_eq!(total(&[outage]), 475 + 30 * 500);
    assert_eq!(total(&[loss, outage]), total(&[loss]) + total(&[outage]));
    assert_eq!(
        total(&[loss, loss]),
        total(&[Fault::UndetectedStoreLoss(2)])
    );
    assert_eq!(total(&[Fault::ClockRate(second * 60)]), 60);
}

#[test]
fn bound_of_clock_steps_grants_the_margin_once() {
    let plain = bound(PLAIN);
    let step = |ms| Fault::ClockStep(Duration::from_millis(ms));
    let total = |faults: &[Fault]| plain.total(faults).expect("a bound").0;
    assert_eq!(total(&[step(1)]), 1);
    assert_eq!(total(&[step(500)]), 500);
    assert_eq!(total(&[step(700)]), 700 + 160);
    assert_eq!(total(&[step(60_000)]), 900 + 47_600);
    assert_eq!(total(&[step(400), step(400)]), 800 + 240);
}

#[test]
fn bound_is_none_only_where_there_is_none() {
    let open = bound(&format!("{PLAIN}\non_store_failure = \"open\""));
    let outage = Fault::Outage(Duration::ZERO);
    assert_eq!(open.total(&[outage]), None);
    assert_eq!(open.total(&[Fault::StoreLoss(1)]), Some(Tokens(0)));
    let of = |per| open.lines().iter().filter(move |line| line.per == per);
    assert_eq!(of(Per::Once).count(), 3);
}

#[test]
fn bound_saturates_and_never_wraps() {
    let plain = bound(PLAIN);
    let long = Fault::Outage(Duration::MAX);
    let often = Fault::UndetectedStoreLoss(u32::MAX);
    let total = |times| plain.total(&[long, often].repeat(times));
    assert!(total(1) > Some(Tokens(1 << 52)));
    assert_eq!(total(100_000), Some(Tokens(u64::MAX)));
}
