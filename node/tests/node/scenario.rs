//! `tidegate scenario`: what it prints where, and how it ends.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// SIGINT, which Ctrl-C sends.
const INTERRUPTED: i32 = 2;

fn scenario(arguments: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("scenario")
        .args(arguments)
        .output();
    output.expect("the binary was built with the tests")
}

/// What is printed to standard output. Nothing else is written: progress is for terminals.
fn printed(arguments: &[&str]) -> String {
    let output = scenario(arguments);
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty());
    String::from_utf8(output.stdout).expect("it is text")
}

fn keys(value: &Value) -> Vec<&str> {
    let object = value.as_object().expect("it is an object");
    object.keys().map(String::as_str).collect()
}

#[test]
fn soak_says_in_one_line_that_the_promise_held() {
    let text = printed(&["soak", "--from", "2", "--seeds", "2"]);
    let (held, rest) = text.split_once(':').expect("figures follow");
    assert_eq!(held, "the promise held in 2 worlds from seed 2 on");
    assert_eq!(rest.lines().count(), 1, "{text}");
}

#[test]
fn soak_prints_the_same_json_for_the_same_seeds() {
    let arguments = ["soak", "--from", "5", "--seeds", "2", "--json"];
    let text = printed(&arguments);
    assert_eq!(text, printed(&arguments));
    let value: Value = serde_json::from_str(&text).expect("it is one JSON object");
    assert_eq!(
        keys(&value),
        [
            "events",
            "failed",
            "from",
            "ok",
            "seeds",
            "shares_moved",
            "worlds_with_overrun"
        ]
    );
    assert_eq!((&value["ok"], &value["seeds"]), (&true.into(), &2.into()));
    assert!(value["events"].as_u64() > Some(100));
    assert_eq!(value["failed"], Value::Null);
}

#[test]
fn soak_ends_at_once_when_it_is_interrupted() {
    let soak = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["scenario", "soak", "--seeds", "1000000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let soak = soak.expect("the binary was built with the tests");
    let kill = Command::new("kill")
        .args(["-INT", &soak.id().to_string()])
        .status();
    assert!(kill.expect("kill is there").success());
    let output = soak.wait_with_output().expect("it ends");
    assert_eq!(output.status.signal(), Some(INTERRUPTED));
    assert!(output.stdout.is_empty());
}

#[test]
fn measure_prints_a_table_or_figures_of_what_is_asked_for() {
    let text = printed(&["measure", "--only", "recovery"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert_eq!(lines[0], "| measure | case | value | unit | target | met |");
    assert!(lines[2].starts_with("| recovery | "), "{text}");
    let text = printed(&["measure", "--only", "recovery", "--json"]);
    let value: Value = serde_json::from_str(&text).expect("it is one JSON object");
    assert_eq!(keys(&value), ["figures", "ok"]);
    let figures = value["figures"].as_array().expect("a list");
    assert_eq!(figures.len(), 1);
    assert_eq!(
        keys(&figures[0]),
        [
            "at_least", "at_most", "case", "measure", "met", "unit", "value"
        ]
    );
}

#[test]
fn measure_refuses_what_it_does_not_measure() {
    let output = scenario(&["measure", "--only", "beauty"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let text = String::from_utf8(output.stderr).expect("it is text");
    assert!(text.contains("utilisation, gossip, reaction"), "{text}");
}
