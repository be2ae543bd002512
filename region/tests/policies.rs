//! Policies as an operator writes them: what is refused, and with which words.

use std::time::Duration;

use region::policy::PolicySet;
use region::units::{Client, RegionId, Tokens};

const REGIONS: &str = "[regions]\nus = 50\neu = 30\nap = 20\n";

fn policy(fields: &str) -> String {
    format!("{REGIONS}[[policy]]\nname = \"p\"\ndomain = \"api\"\nkey = [\"customer\"]\n{fields}")
}

fn refused(text: &str) -> String {
    let problems = PolicySet::parse(text, "policies.toml").expect_err(text);
    problems.to_string()
}

fn accepted(text: &str) -> PolicySet {
    PolicySet::parse(text, "policies.toml").unwrap_or_else(|problems| panic!("{problems}"))
}

/// The fields of a policy after its key, which begin in line 9, and how they are refused.
const MISTAKES: &[(&str, &str)] = &[
    ("rate = 1", "policies.toml:5: policy[0].per: is missing"),
    (
        "rate = 1\nperod = \"10s\"",
        ":10: policy[0].perod: is not known here; did you mean `per`?",
    ),
    ("rate = 1\nperod: 10s", ":10: perod: is not TOML"),
    (
        "rate = 1\nper = 10",
        ":10: policy[0].per: `10` has no unit; write for example \"10s\"",
    ),
    (
        "rate = 1\nper = \"10\"",
        ":10: policy[0].per: `10` has no unit; write for example \"10s\"",
    ),
    ("rate = 1\nper = 10s", ":10: per: is not TOML"),
    (
        "rate = 1\nper = \"-1s\"",
        ":10: policy[0].per: `-1s` is negative",
    ),
    ("rate = 1\nper = -1", ":10: policy[0].per: `-1` is negative"),
    (
        "rate = 1\nper = \"0s\"",
        ":10: policy[0].per: must be longer than zero",
    ),
    (
        "rate = \"ten\"\nper = \"1s\"",
        ":9: policy[0].rate: `\"ten\"` is a text",
    ),
    (
        "rate = 1e3\nper = \"1s\"",
        ":9: policy[0].rate: `1e3` is a decimal number",
    ),
    (
        "rate = -1\nper = \"1s\"",
        ":9: policy[0].rate: `-1` is out of range",
    ),
    ("per = \"1s\"", ":5: policy[0].rate: is missing"),
    (
        "rate = 0\nburst = 5",
        ":10: policy[0].burst: has no place beside `rate = 0`",
    ),
    (
        "unlimited = true\nrate = 5",
        ":10: policy[0].rate: says nothing beside",
    ),
    (
        "rate = 1\nper = \"1s\"\nwindow = \"1s\"",
        ":11: policy[0].window: comes in a later",
    ),
    (
        "rate = 1\nper = \"1s\"\nborrow_wait = \"1001ms\"",
        ":11: policy[0].borrow_wait: is longer than a gateway waits; write at most \"1s\"",
    ),
    (
        "rate = 1\nper = \"1s\"\nborrow_wait = 100",
        ":11: policy[0].borrow_wait: `100` has no unit",
    ),
    (
        "rate = 1\nper = \"1s\"\nborrow_wait = \"1s\"\nscope = \"regional\"",
        ":11: policy[0].borrow_wait: has no place beside `scope = \"regional\"`",
    ),
    (
        "unlimited = true\nborrow_wait = \"1s\"",
        "policy[0]: has a `borrow_wait` but no bucket",
    ),
    (
        "rate = 1\nper = \"1s\"\nscope = \"world\"",
        "`world` is not one of `global`, `regional`",
    ),
    (
        "rate = 4294967295\nper = \"365d\"",
        ":9: policy[0].rate: 4294967295 per",
    ),
    (
        "rate = 1\nper = \"4000d\"",
        ":10: policy[0].per: a period lies between",
    ),
    (
        "rate = 0\noverrun = 1",
        "policy[0]: has an `overrun` but no bucket",
    ),
    (
        "rate = 1\nper = \"1s\"\noverrun = 9007199254740991",
        ":11: policy[0].overrun: is not exact",
    ),
];

#[test]
fn case_32_a_missing_or_mistyped_field_is_named_with_its_line() {
    for (fields, expected) in MISTAKES.iter().copied() {
        let problems = refused(&policy(fields));
        assert!(problems.contains(expected), "{fields}\n{problems}");
        assert!(problems.lines().count() <= 2, "{problems}");
    }
}

#[test]
fn parse_reports_everything_at_once() {
    let text = policy("rate = \"ten\"\nper = 10\nscope = 3\n")
        + "[[policy]]\nname = \"p\"\ndomain = \"api\"\nkey = []\nrate = 1\nper = \"1s\"\n\
           match = [{ attribute = \"plan\" }, { attribute = \"a\", globe = \"*\" }]\n";
    let problems = refused(&text);
    for expected in [
        ":9: policy[0].rate: ",
        ":10: policy[0].per: ",
        ":11: policy[0].scope: ",
        ":13: policy[1].name: `p` is already the name of policy[0] in the domain `api`",
        ":15: policy[1].key: needs 1 to 16 attributes",
        ":18: policy[1].match[0]: needs exactly one of",
        ":18: policy[1].match[1].globe: is not known here; did you mean `glob`?",
    ] {
        assert!(problems.contains(expected), "{expected}\n{problems}");
    }
}

#[test]
fn parse_refuses_a_set_without_regions_weights_or_policies() {
    let policy = "[[policy]]\nname = \"p\"\ndomain = \"api\"\nkey = [\"c\"]\nrate = 0\n";
    for (text, expected) in [
        ("", "policy: is missing"),
        ("", "regions: is missing"),
        (REGIONS, "policy: is missing"),
        ("policy = []\n[regions]\nus = 1\n", "policy: 0 policies"),
        (policy, "regions: is missing"),
        (&format!("[regions]\n{policy}"), "regions: names no region"),
        (
            &format!("[regions]\nus = 0\n{policy}"),
            "every region the weight 0",
        ),
        (
            &format!("[regions]\nUS = 1\n{policy}"),
            "regions.US: `US` is not a name",
        ),
        (
            &format!("on_isolation = \"yield\"\n{REGIONS}{policy}"),
            "`yield` comes in a later",
        ),
    ] {
        let problems = refused(text);
        assert!(problems.contains(expected), "{text}\n{problems}");
    }
    let many: String = (0..65).map(|i| format!("r{i} = 1\n")).collect();
    assert!(refused(&format!("[regions]\n{many}{policy}")).contains("65 regions are too many"));
    assert!(refused(&" ".repeat(region::reader::TEXT_MAX + 1)).contains("too many"));
    accepted(&format!("on_isolation = \"keep\"\n{REGIONS}{policy}"));
}

#[test]
fn case_32_a_policy_is_described_as_it_is_in_force() {
    let describe = |fields: &str| {
        let set = accepted(&policy(fields));
        set.describe(&set.policies()[0]).to_string()
    };
    for (fields, expected) in [
        (
            "rate = 4000\nper = \"1s\"",
            "4000 per 1s (1 token each 250us), burst 4000, global: ap 20, eu 30, us 50, keyed \
             by customer",
        ),
        (
            "rate = 3\nper = \"60s\"\nburst = 5\nscope = \"regional\"\noverrun = 6",
            "3 per 1m (1 token each 20s), burst 5, for every region, overrun 6, keyed by \
             customer",
        ),
        (
            "rate = 3\nper = \"10s\"\nmatch = [{ attribute = \"plan\", equals = \"free\" }, { \
             attribute = \"path\", glob = \"/v?/*\" }]",
            "3 per 10s (1 token each about 3333333us), burst 3, global: ap 20, eu 30, us 50, \
             keyed by customer, if plan is \"free\" and path matches \"/v?/*\"",
        ),
        ("rate = 0", "denies everything, keyed by customer"),
        ("unlimited = true", "unlimited, keyed by customer"),
    ] {
        assert_eq!(describe(fields), expected);
    }
    assert!(describe("rate = 3000000\nper = \"1s\"").contains("1 token each about 333ns"));
}

#[test]
fn overrun_is_dealt_exactly() {
    let set = accepted(&policy("rate = 1000\nper = \"1s\"\noverrun = 7"));
    let policy = &set.policies()[0];
    let debts: Vec<i64> = (0..3)
        .filter_map(|region| policy.base(RegionId(region), Client(1)))
        .map(|base| base.debt.0)
        .collect();
    let limit = policy.split().expect("a bucket").limit();
    assert_eq!(debts.iter().sum::<i64>(), limit.level(Tokens(7)).0);
    assert!(debts.is_sorted(), "by weight: {debts:?}");
}

#[test]
fn base_of_a_regional_policy_is_the_whole_limit_without_a_wait() {
    let set = accepted(&policy("rate = 10\nper = \"1s\"\nscope = \"regional\""));
    let policy = &set.policies()[0];
    let base = policy.base(RegionId(2), Client(1)).expect("a bucket");
    let limit = policy.split().expect("a bucket").limit();
    assert_eq!(
        (base.share, base.capacity),
        (limit.total(), limit.level(Tokens(10)))
    );
    assert_eq!(base.wait, Duration::ZERO);
}

#[test]
fn terms_change_with_what_is_arithmetic_and_with_nothing_else() {
    let terms = |text: &str| accepted(text).policies()[0].terms();
    let plain = policy("rate = 10\nper = \"1s\"");
    let same = policy("rate = 10\nper = \"1000ms\"\nburst = 10\non_store_failure = \"open\"");
    assert_eq!(terms(&plain), terms(&same));
    for other in [
        policy("rate = 11\nper = \"1s\"\nburst = 10"),
        policy("rate = 10\nper = \"2s\""),
        policy("rate = 10\nper = \"1s\"\nburst = 11"),
        policy("rate = 10\nper = \"1s\"\nscope = \"regional\""),
        plain.replace("us = 50", "us = 51"),
        plain.replace("us = 50", "ux = 50"),
    ] {
        assert_ne!(terms(&plain), terms(&other), "{other}");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig {
        failure_persistence: None,
        ..proptest::prelude::ProptestConfig::default()
    })]

    /// Whatever is cut out of a good file, doubled or put in its place: it is accepted or refused.
    #[test]
    fn parse_never_panics(
        at in 0_usize..400,
        cut in 0_usize..20,
        doubled in 0_usize..3,
        text in "[\\[\\]{}=\"'a-z0-9.,_ \n#\\\\é-]{0,8}",
    ) {
        let good = policy("rate = 10\nper = \"1s\"\nburst = 20\noverrun = 3\nmatch = [{ attribute \
            = \"plan\", glob = \"*\" }]\n");
        let (start, end) = (at.min(good.len()), (at + cut).min(good.len()));
        let (before, after) = (&good[..start], &good[end..]);
        let bad = format!("{before}{text}{}{after}", good[start..end].repeat(doubled));
        if let Err(problems) = PolicySet::parse(&bad, "policies.toml") {
            let lines = bad.lines().count().max(1) + 1;
            for problem in problems.all() {
                assert!((1..=lines).contains(&problem.line), "{problem}");
            }
        }
    }
}
