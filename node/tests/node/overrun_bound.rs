//! `tidegate overrun-bound`, and the metric with the same figures.

use std::process::{Command, Output};

use expect_test::{ExpectFile, expect_file};
use serde_json::Value;

use crate::support::{Dir, NODE, Process};

/// Policies of every kind.
const POLICIES: &str = r#"
[regions]
us = 50
eu = 30
ap = 20
[[policy]]
name = "per-customer"
domain = "api"
key = ["customer"]
rate = 1000
per = "1s"
[[policy]]
name = "sms"
domain = "api"
key = ["customer"]
rate = 3
per = "1m"
overrun = 1
on_store_failure = "open"
on_store_loss = "full"
[[policy]]
name = "each-region"
domain = "api"
key = ["customer"]
rate = 20
per = "1s"
scope = "regional"
[[policy]]
name = "free"
domain = "api"
key = ["customer"]
unlimited = true
[[policy]]
name = "closed"
domain = "old"
key = ["customer"]
rate = 0
"#;

fn overrun_bound(arguments: &[&str], policies: &str) -> Output {
    let dir = Dir::new();
    dir.write("policies.toml", policies);
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("overrun-bound")
        .args(arguments)
        .current_dir(dir.path())
        .output();
    output.expect("the binary was built with the tests")
}

/// What is printed to standard output; nothing may be complained of.
fn printed(arguments: &[&str]) -> String {
    let output = overrun_bound(arguments, POLICIES);
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty());
    String::from_utf8(output.stdout).expect("it is text")
}

fn report(arguments: &[&str]) -> Value {
    serde_json::from_str(&printed(arguments)).expect("it is one JSON object")
}

fn refused(arguments: &[&str], policies: &str, code: i32, expected: &ExpectFile) {
    let output = overrun_bound(arguments, policies);
    assert_eq!(output.status.code(), Some(code));
    assert!(output.stdout.is_empty());
    expected.assert_eq(&String::from_utf8(output.stderr).expect("it is text"));
}

#[test]
fn overrun_bound_prints_a_table_for_each_policy() {
    expect_file!["./golden/bound.txt"].assert_eq(&printed(&[]));
}

#[test]
fn overrun_bound_adds_up_the_faults_that_are_named() {
    let totals = |with: &str| -> Vec<String> {
        let text = printed(&["--with", with]);
        let lines = text
            .lines()
            .filter_map(|line| line.split_once("in total, "));
        lines.map(|(_, total)| total.to_owned()).collect()
    };
    let with = "with first-start=2, clock-step=700ms";
    assert_eq!(
        totals("first-start=2, clock-step=700ms"),
        [
            format!("{with}: 3810 tokens beyond the limit"),
            format!("{with}: 5 tokens beyond the limit"),
        ]
    );
    let with = "with outage=30s";
    assert_eq!(
        totals("outage=30s"),
        [
            format!("{with}: 15475 tokens beyond the limit"),
            format!("{with}: unbounded"),
        ]
    );
}

#[test]
fn overrun_bound_prints_json_of_a_stable_shape() {
    let report = report(&["--json", "--with", "outage=30s"]);
    let pretty = serde_json::to_string_pretty(&report).expect("it was JSON");
    expect_file!["./golden/bound_json.txt"].assert_eq(&pretty);
}

#[test]
fn overrun_bound_names_every_fault_that_it_does_not_know() {
    refused(
        &[
            "--with",
            "fire,store-loss=x,outage,clock-step=5",
            "--with",
            "network=1",
        ],
        POLICIES,
        2,
        &expect_file!["./golden/bound_faults.txt"],
    );
}

#[test]
fn overrun_bound_tells_what_is_wrong_with_the_policies() {
    let broken = POLICIES
        .replace("per = \"1m\"\n", "")
        .replace("= 30", "= -1");
    let expected = expect_file!["./golden/bound_policies.txt"];
    refused(&[], &broken, 64, &expected);
    let output = overrun_bound(&["--json"], &broken);
    assert_eq!(output.status.code(), Some(64));
    let report: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(report["ok"], false);
    assert_eq!(report["problems"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn metrics_show_the_figures_of_overrun_bound() {
    let node = Process::start(NODE, POLICIES).await;
    let metrics = node.metrics().await;
    let figures = metrics.lines();
    let figures = figures.filter(|line| line.starts_with("tidegate_overrun_bound_tokens{"));
    let report = report(&["--json"]);
    let sources = report["policies"].as_array().expect("a list").iter();
    let sources = sources.flat_map(|policy| policy["sources"].as_array().expect("a list"));
    assert_eq!(figures.count(), sources.count());
    for (policy, source, value) in [
        ("per-customer", "undetected-store-loss", "3750.0"),
        ("sms", "overrun", "1.0"),
        ("sms", "outage", "inf"),
    ] {
        let labels = format!("domain=\"api\",policy=\"{policy}\",source=\"{source}\"");
        let line = format!("tidegate_overrun_bound_tokens{{{labels}}} {value}");
        assert!(metrics.lines().any(|found| found == line), "{line}");
    }
}
