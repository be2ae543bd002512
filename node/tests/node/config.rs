//! `tidegate config check`, and `serve` with a configuration that is wrong.

use std::process::{Command, Output};

use expect_test::{ExpectFile, expect_file};

use crate::support::{Dir, NODE, Process, get, series};

const POLICIES: &str = r#"
[regions]
eu = 1
us = 1
[[policy]]
name = "users"
domain = "api"
key = ["user"]
rate = 4000
per = "1s"
"#;

fn tidegate(command: &[&str], node: &str, policies: &str) -> (Output, Dir) {
    let dir = Dir::new();
    dir.write("node.toml", node);
    dir.write("policies.toml", policies);
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(command)
        .current_dir(dir.path())
        .env("TIDEGATE_SHUTDOWN__GRACE", "1s")
        .output()
        .expect("the binary was built with the tests");
    (output, dir)
}

fn check(node: &str, policies: &str, expected: &ExpectFile) {
    let (output, _dir) = tidegate(&["config", "check"], node, policies);
    assert_eq!(output.status.code(), Some(64));
    assert!(output.stdout.is_empty());
    expected.assert_eq(&String::from_utf8(output.stderr).expect("it is text"));
}

#[test]
fn config_check_tells_every_problem_of_both_files() {
    let node = r#"
region = "mars"
name = "Us 1"
nodes_max = 0
[http]
listen = "localhost"
reset = "later"
port = 8080
[admin]
token_file = "nowhere"
[store]
kind = "redis"
shards = [
    { name = "a", url = "redis://127.0.0.1:1" },
    { name = "a", url = "redis://127.0.0.1:2" },
    { name = "b" },
    { name = "c", url = "127.0.0.1:6379" },
    { name = "d", url = "rediss://:secret@redis.example" },
]
deadline = 10
[gossip]
seeds = ["eu-1.example"]
links = [{ from = "us", to = "eu", delay = "40", loss = "half" }]
[shutdown]
grace = "-1s"
[log]
level = "loud=noise=1"
"#;
    let policies = POLICIES.replace("per = \"1s\"\n", "");
    check(node, &policies, &expect_file!["./golden/every_problem.txt"]);
}

#[test]
fn config_check_refuses_a_level_that_would_silence_all_logs() {
    for (level, code) in [
        ("loud", 64),
        ("info, loud", 64),
        ("warn,node::serve=debug", 0),
    ] {
        let node = format!("{NODE}\n[log]\nlevel = \"{level}\"\n");
        let (output, _dir) = tidegate(&["config", "check"], &node, POLICIES);
        assert_eq!(output.status.code(), Some(code), "{level}: {output:?}");
    }
}

#[test]
fn config_check_tells_what_is_wrong_with_a_file_as_a_whole() {
    check("region = [", POLICIES, &expect_file!["./golden/broken.txt"]);
    check("", POLICIES, &expect_file!["./golden/empty.txt"]);
}

#[test]
fn case_32_config_check_prints_the_rules_in_force() {
    let (output, _dir) = tidegate(&["config", "check"], NODE, POLICIES);
    assert_eq!(output.status.code(), Some(0));
    expect_file!["./golden/rules.txt"]
        .assert_eq(&String::from_utf8(output.stdout).expect("it is text"));
}

#[test]
fn case_32_config_check_tells_the_same_as_json() {
    let (output, _dir) = tidegate(&["config", "check", "--json"], NODE, POLICIES);
    assert_eq!(output.status.code(), Some(0));
    expect_file!["./golden/rules_json.txt"]
        .assert_eq(&String::from_utf8(output.stdout).expect("it is text"));
    let policies = POLICIES.replace("4000", "\"ten\"");
    let (output, _dir) = tidegate(&["config", "check", "--json"], NODE, &policies);
    assert_eq!(output.status.code(), Some(64));
    expect_file!["./golden/problem_json.txt"]
        .assert_eq(&String::from_utf8(output.stdout).expect("it is text"));
}

#[test]
fn case_32_missing_and_mistyped_fields_are_named() {
    for (wrong, field) in [
        ("rate = 4000", "per"),
        ("rate = 4000\nperod = \"10s\"", "perod"),
        ("rate = 4000\nper = 10", "per"),
        ("rate = 4000\nper = \"10\"", "per"),
        ("rate = 4000\nper = \"-1s\"", "per"),
        ("rate = 4000\nper = \"0s\"", "per"),
        ("rate = \"ten\"\nper = \"1s\"", "rate"),
        ("rate = 1e3\nper = \"1s\"", "rate"),
    ] {
        let policies = POLICIES.replace("rate = 4000\nper = \"1s\"", wrong);
        let (output, _dir) = tidegate(&["config", "check"], NODE, &policies);
        let told = String::from_utf8(output.stderr).expect("it is text");
        assert_eq!(output.status.code(), Some(64), "{wrong}: {told}");
        let named = told
            .lines()
            .any(|line| line.contains(&format!("policy[0].{field}: ")));
        assert!(named, "{wrong}: {told}");
    }
}

#[tokio::test]
async fn case_32_metrics_show_the_number_of_rules() {
    let node = Process::start(NODE, POLICIES).await;
    assert_eq!(
        series(&node.metrics().await, "tidegate_rules_loaded"),
        Some(1)
    );
    assert_eq!(get(node.admin, "/readyz").await.status, 200);
}

#[test]
fn case_27_serve_with_a_bad_file_ends_with_64_before_it_listens() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = taken.local_addr().expect("it is bound").to_string();
    // The address is taken, so that binding it would fail with another code.
    let node = NODE.replace("127.0.0.1:0", &address);
    for policies in ["limit: [", "", &POLICIES.replace("rate", "rates")] {
        let (output, _dir) = tidegate(&["serve"], &node, policies);
        assert_eq!(output.status.code(), Some(64), "{policies}");
        assert!(output.stdout.is_empty());
        let told = String::from_utf8(output.stderr).expect("it is text");
        assert!(told.starts_with("policies.toml:"), "{told}");
    }
    let (output, _dir) = tidegate(&["serve"], &node, POLICIES);
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stderr).expect("it is text");
    assert!(told.contains("http.listen"), "{told}");
}

#[test]
fn environment_overrides_settings_and_is_checked_like_them() {
    let dir = Dir::new();
    dir.write("node.toml", NODE);
    dir.write("policies.toml", POLICIES);
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["config", "check"])
        .current_dir(dir.path())
        .env("TIDEGATE_HTTP__LISTEN", "nowhere")
        .env("TIDEGATE_REGION", "mars")
        .env("TIDEGATE_GOSSIP__SEEDS", "a:1, b")
        .output()
        .expect("the binary was built with the tests");
    expect_file!["./golden/environment_wrong.txt"]
        .assert_eq(&String::from_utf8(output.stderr).expect("it is text"));
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["config", "check"])
        .current_dir(dir.path())
        .env("TIDEGATE_REGION", "eu")
        .env("TIDEGATE_HTTPS__LISTEN", "127.0.0.1:0")
        .output()
        .expect("the binary was built with the tests");
    expect_file!["./golden/environment.txt"]
        .assert_eq(&String::from_utf8(output.stdout).expect("it is text"));
}
