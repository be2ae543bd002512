//! What holds for the whole tree and no compiler checks: the direction of the crates, the purity of
//! the modules that are named pure, and how files look.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Which crate may depend on which; an edge that is not here is a mistake.
const EDGES: &[(&str, &[&str])] = &[
    ("region", &[]),
    ("gossip", &["region"]),
    ("bench", &["region"]),
    ("scenarios", &["region", "gossip", "bench"]),
    ("node", &["region", "gossip", "bench", "scenarios"]),
];

/// The crates whose core compiles alone, and what they must not depend on then.
const CORES: &[&str] = &["region", "gossip"];
const OUTSIDE_CORES: &[&str] = &["tokio", "redis", "quinn"];

/// The pure modules: time, randomness and I/O come as arguments. A module is a file, a folder or
/// both.
const PURE: &[&str] = &[
    "gossip/src/codec",
    "gossip/src/exchange",
    "gossip/src/frame",
    "gossip/src/identity",
    "gossip/src/members",
    "gossip/src/membership",
    "gossip/src/replica",
    "region/src/audit",
    "region/src/bound",
    "region/src/bucket",
    "region/src/decision",
    "region/src/ledger",
    "region/src/limit",
    "region/src/plan",
    "region/src/policy",
    "region/src/reader",
    "region/src/store/format",
    "region/src/store/record",
    "region/src/store/rules",
    "region/src/units",
    "scenarios/src/sim/books",
    "scenarios/src/sim/costs",
    "scenarios/src/sim/dice",
    "scenarios/src/sim/fault",
    "scenarios/src/sim/run",
    "scenarios/src/sim/scenario",
    "scenarios/src/sim/store",
    "scenarios/src/sim/trace",
    "scenarios/src/sim/traffic",
    "scenarios/src/sim/world",
    "scenarios/src/soak",
];

/// What would bring order by chance, a clock, a lock, randomness or I/O into a pure module.
const AMBIENT: &[&str] = &[
    "HashMap",
    "HashSet",
    "Instant",
    "Mutex",
    "OsRng",
    "RandomState",
    "RwLock",
    "SysRng",
    "SystemTime",
    "ThreadRng",
    "UNIX_EPOCH",
    "rand::make_rng",
    "rand::random",
    "rand::rng",
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::process",
    "std::thread",
    "tokio",
    // Would hide the names above from this list.
    "core::{",
    "std::{",
    "rand::{",
];

/// What no source may contain. In pieces, so that this file may name it.
const UNFINISHED: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("dbg", "!"),
    concat!("#[ig", "nore"),
    concat!("#[should", "_panic"),
];

/// The only file that names the wire encoding (docs/adr/0001), and the name.
const CODEC: &str = "gossip/src/codec.rs";
const ENCODING: &str = concat!("bin", "code");

/// A task started this way has no owner.
const OWNERLESS: &[&str] = &[
    concat!("tokio::", "spawn"),
    concat!("task::", "spawn"),
    concat!("unbounded", "_channel"),
];

/// Where the settings of a file are read, and the heading in the README of their reference.
const REFERENCES: &[(&str, &str)] = &[
    ("node/src/config/node.rs", "### node.toml"),
    ("region/src/policy/parse.rs", "### policies.toml"),
];

/// Calls by which a setting is read; its name follows in quotes.
const READINGS: &[&str] = &[
    ".optional(\"",
    ".or(\"",
    ".required(\"",
    ".section(\"",
    ".setting(\"",
    " path(\"",
    " span(\"",
    "end(\"",
];

const LINE_MAX: usize = 100;
const FILE_MAX: usize = 800;

/// Names of what is no part of the tree.
const OUTSIDE_TREE: &[&str] = &[".git", "target", "state"];

/// A file of the tree, with its path from the root.
struct Source {
    path: String,
    text: String,
}

fn root() -> PathBuf {
    let node = Path::new(env!("CARGO_MANIFEST_DIR"));
    node.parent()
        .expect("the crate lies in the workspace")
        .to_owned()
}

/// All text files below `folder`, in the order of their paths.
fn sources(folder: &Path) -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).expect("a folder of the tree can be listed") {
            let path = entry.expect("a folder of the tree can be listed").path();
            if OUTSIDE_TREE.iter().any(|name| path.ends_with(name)) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = fs::read_to_string(&path) {
                let path = path.strip_prefix(folder).expect("found below the folder");
                let path = path.to_string_lossy().into_owned();
                found.push(Source { path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn is_rust(path: &str) -> bool {
    Path::new(path).extension() == Some(OsStr::new("rs"))
}

fn rust_sources() -> Vec<Source> {
    let mut sources = sources(&root());
    sources.retain(|source| is_rust(&source.path));
    assert!(sources.len() > 10, "the tree was not found");
    sources
}

/// A line without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or(line)
}

/// Whether `name` stands in the code as a whole name, not as a part of another one.
fn names(code: &str, name: &str) -> bool {
    let inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    code.match_indices(name).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + name.len()..].chars().next();
        let open_ended = name.ends_with(|c: char| !c.is_alphanumeric());
        !inside(before) && (open_ended || !inside(after))
    })
}

/// Every line whose code contains one of `words`.
fn lines_naming(source: &Source, words: &[&str]) -> Vec<String> {
    let lines = source.text.lines().enumerate();
    lines
        .flat_map(|(index, line)| {
            let found = words.iter().filter(move |word| names(code(line), word));
            found.map(move |word| format!("{}:{}: `{word}`", source.path, index + 1))
        })
        .collect()
}

/// Every line, comments included, that contains one of `texts`.
fn lines_with(source: &Source, texts: &[&str]) -> Vec<String> {
    let lines = source.text.lines().enumerate();
    lines
        .flat_map(|(index, line)| {
            let found = texts.iter().filter(move |text| line.contains(**text));
            found.map(move |text| format!("{}:{}: `{text}`", source.path, index + 1))
        })
        .collect()
}

/// Whether a file belongs to a module of the list.
fn belongs(path: &str, module: &str) -> bool {
    path.strip_prefix(module)
        .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

fn impurities(sources: &[Source], modules: &[&str]) -> Vec<String> {
    let mut problems = Vec::new();
    for module in modules {
        let mut files = sources
            .iter()
            .filter(|s| belongs(&s.path, module))
            .peekable();
        if files.peek().is_none() {
            problems.push(format!("{module}: is listed as pure but does not exist"));
        }
        problems.extend(files.flat_map(|file| lines_naming(file, AMBIENT)));
    }
    problems
}

fn misshapen(source: &Source) -> Vec<String> {
    let mut problems = Vec::new();
    let path = &source.path;
    if !source.text.starts_with("//! ") {
        problems.push(format!(
            "{path}: does not begin with `//!` and what the file is for"
        ));
    }
    let count = source.text.lines().count();
    if count > FILE_MAX {
        problems.push(format!("{path}: {count} lines are more than {FILE_MAX}"));
    }
    for (index, line) in source.text.lines().enumerate() {
        let length = line.chars().count();
        if length > LINE_MAX {
            let line = index + 1;
            problems.push(format!(
                "{path}:{line}: {length} characters are more than {LINE_MAX}"
            ));
        }
    }
    problems
}

/// The crates of the workspace and their dependencies, as cargo describes them.
fn metadata() -> Value {
    let output = cargo(&["metadata", "--format-version=1", "--no-deps", "--locked"]);
    serde_json::from_str(&output).expect("cargo prints JSON")
}

fn cargo(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO"));
    let output = command.args(arguments).current_dir(root()).output();
    let output = output.expect("cargo runs, as it has built this test");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("cargo prints UTF-8")
}

/// Edges between the crates of the workspace that are not allowed.
fn wrong_edges(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"]
        .as_array()
        .expect("cargo lists packages");
    let mut problems = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some((_, allowed)) = EDGES.iter().find(|(known, _)| *known == name) else {
            problems.push(format!("{name}: is no crate of the design"));
            continue;
        };
        let dependencies = package["dependencies"].as_array();
        for dependency in dependencies.into_iter().flatten() {
            let target = dependency["name"].as_str().unwrap_or_default();
            let inside = !dependency["path"].is_null();
            if inside && !allowed.contains(&target) {
                problems.push(format!("{name} -> {target}: is no edge of the design"));
            }
            if target == ENCODING && name != "gossip" {
                problems.push(format!("{name} -> {target}: only gossip may depend on it"));
            }
        }
    }
    problems
}

/// Names in the output of `cargo tree --prefix none` that a core must not depend on.
fn outsiders(tree: &str) -> BTreeSet<&str> {
    let names = tree.lines().filter_map(|line| line.split(' ').next());
    names.filter(|name| OUTSIDE_CORES.contains(name)).collect()
}

/// The texts between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    !text.is_empty() && text.chars().all(plain)
}

/// The part of a document below a heading, up to the next of the same or a higher level.
fn section<'d>(document: &'d str, heading: &str) -> &'d str {
    let Some((_, below)) = document.split_once(&format!("\n{heading}\n")) else {
        return "";
    };
    let level = heading.bytes().take_while(|byte| *byte == b'#').count();
    let ends = (1..=level).filter_map(|level| below.find(&format!("\n{} ", "#".repeat(level))));
    &below[..ends.min().unwrap_or(below.len())]
}

/// The names in the first column of a section's tables: of settings, and of the tables they lie in.
fn documented(section: &str) -> BTreeSet<&str> {
    let rows = section.lines().filter_map(|line| line.strip_prefix('|'));
    let fields = rows.filter_map(|row| row.split('|').next());
    fields
        .flat_map(quoted)
        .flat_map(|name| name.split('.'))
        .filter(|name| is_name(name))
        .collect()
}

/// The names of settings that a source reads.
fn read_settings(source: &str) -> BTreeSet<&str> {
    let calls = READINGS.iter().flat_map(|call| source.split(call).skip(1));
    calls
        .filter_map(|rest| rest.split('"').next())
        .filter(|name| is_name(name))
        .collect()
}

/// Metrics that a document names and no source registers.
fn unknown_metrics(document: &str, sources: &[Source]) -> Vec<String> {
    let named = document.split("tidegate_").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    });
    let registered = |name: &str| {
        let name = format!("\"{}\"", name.strip_suffix("_total").unwrap_or(name));
        sources.iter().any(|source| source.text.contains(&name))
    };
    named
        .filter(|name| !registered(name))
        .map(|name| format!("tidegate_{name}: no metric has this name"))
        .collect()
}

/// Tests that a document's invariants name and that do not exist.
fn unknown_tests(document: &str, sources: &[Source]) -> Vec<String> {
    let rows = document.lines().filter_map(|line| line.strip_prefix('|'));
    let tests = rows
        .filter_map(|row| row.split('|').nth(1))
        .flat_map(quoted);
    tests
        .filter(|name| is_name(name) && name.matches('_').count() > 2)
        .filter(|name| {
            let test = format!("fn {name}(");
            !sources.iter().any(|source| source.text.contains(&test))
        })
        .map(|name| format!("{name}: no test has this name"))
        .collect()
}

fn document(name: &str) -> String {
    fs::read_to_string(root().join(name)).expect("the document is there")
}

fn assert_none(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

#[test]
fn crates_depend_only_in_the_direction_of_the_design() {
    assert_none(&wrong_edges(&metadata()));
}

#[test]
fn cores_bring_no_runtime_when_built_without_features() {
    for core in CORES {
        let what = ["tree", "--locked", "-e", "normal", "--prefix", "none"];
        let which = ["--no-default-features", "-p", core];
        let tree = cargo(&[what.as_slice(), which.as_slice()].concat());
        assert!(
            tree.starts_with(core),
            "cargo prints the tree of {core}: {tree}"
        );
        assert_eq!(outsiders(&tree), BTreeSet::new(), "in the tree of {core}");
    }
}

#[test]
fn pure_modules_take_time_chance_and_io_as_arguments() {
    assert_none(&impurities(&rust_sources(), PURE));
}

#[test]
fn sources_say_what_they_are_for_and_stay_small() {
    let sources = rust_sources();
    assert_none(&sources.iter().flat_map(misshapen).collect::<Vec<_>>());
}

#[test]
fn sources_contain_nothing_unfinished() {
    let sources = rust_sources();
    let problems = sources
        .iter()
        .flat_map(|source| lines_with(source, UNFINISHED));
    assert_none(&problems.collect::<Vec<_>>());
}

#[test]
fn encoding_is_named_in_the_codec_only() {
    let mut sources = rust_sources();
    sources.retain(|source| source.path != CODEC);
    let problems = sources
        .iter()
        .flat_map(|source| lines_naming(source, &[ENCODING]));
    assert_none(&problems.collect::<Vec<_>>());
}

#[test]
fn tasks_and_queues_have_owners_and_bounds() {
    let sources = rust_sources();
    let problems = sources
        .iter()
        .flat_map(|source| lines_naming(source, OWNERLESS));
    assert_none(&problems.collect::<Vec<_>>());
}

#[test]
fn files_name_no_path_of_the_machine_they_were_written_on() {
    let sources = sources(&root());
    let paths = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
    ];
    let problems = sources.iter().flat_map(|source| lines_with(source, &paths));
    assert_none(&problems.collect::<Vec<_>>());
}

#[test]
fn documents_name_tests_metrics_and_settings_that_exist() {
    let sources = rust_sources();
    let readme = document("README.md");
    let mut problems = unknown_metrics(&readme, &sources);
    for (path, heading) in REFERENCES {
        let told = documented(section(&readme, heading));
        let source = sources.iter().find(|source| source.path == *path);
        let read = read_settings(&source.expect("a source of the tree").text);
        assert!(read.len() > 10, "{path}: its settings are not found");
        let untold = read.difference(&told);
        problems.extend(untold.map(|name| format!("README.md: `{name}` of {path} is missing")));
        let unread = told.iter().filter(|name| {
            let name = format!("\"{name}\"");
            !source.is_some_and(|source| source.text.contains(&name))
        });
        problems.extend(unread.map(|name| format!("README.md: {path} reads no `{name}`")));
    }
    problems.extend(unknown_tests(&document("ARCHITECTURE.md"), &sources));
    assert_none(&problems);
}

// The checks themselves: each finds a small fault.

fn source(path: &str, text: &str) -> Source {
    Source {
        path: path.to_owned(),
        text: text.to_owned(),
    }
}

#[test]
fn wrong_edges_finds_an_edge_against_the_direction() {
    let metadata = |name: &str, target: &str, path: Value| {
        let dependency = serde_json::json!({ "name": target, "path": path });
        serde_json::json!({ "packages": [{ "name": name, "dependencies": [dependency] }] })
    };
    let inside = || Value::from("/somewhere");
    assert_none(&wrong_edges(&metadata("gossip", "region", inside())));
    assert_none(&wrong_edges(&metadata("node", "bench", inside())));
    assert_none(&wrong_edges(&metadata("region", "toml", Value::Null)));
    assert_none(&wrong_edges(&metadata("gossip", ENCODING, Value::Null)));
    assert_eq!(
        wrong_edges(&metadata("region", "gossip", inside())).len(),
        1
    );
    assert_eq!(wrong_edges(&metadata("gossip", "bench", inside())).len(), 1);
    assert_eq!(
        wrong_edges(&metadata("gossip", "gossip", inside())).len(),
        1
    );
    assert_eq!(
        wrong_edges(&metadata("node", ENCODING, Value::Null)).len(),
        1
    );
    assert_eq!(
        wrong_edges(&metadata("common", "region", inside())).len(),
        1
    );
}

#[test]
fn outsiders_finds_a_runtime_but_not_a_longer_name() {
    let tree = "region v0.1.0\ntokio-macros v2.0.0\nredis v1.8.1\n";
    assert_eq!(outsiders(tree), BTreeSet::from(["redis"]));
}

#[test]
fn impurities_finds_ambient_names_in_code_of_listed_modules_only() {
    let listed = ["a/src/pure"];
    let found = |path, text| impurities(&[source(path, text)], &listed);
    assert_none(&found(
        "a/src/pure.rs",
        "//! No HashMap.\nlet instants = 1; // std::env\n",
    ));
    assert_eq!(found("a/src/pure.rs", "use std::time::Instant;").len(), 1);
    assert_eq!(found("a/src/pure/part.rs", "use std::{env, fs};").len(), 1);
    assert_eq!(
        found("a/src/pure/part.rs", "let home = std::env::var(name);").len(),
        1
    );
    assert_eq!(found("a/src/pure.rs", "tokio::time::sleep(x)").len(), 1);
    // Not a file of the module: only its absence is a problem.
    assert_eq!(found("a/src/purely.rs", "use std::time::Instant;").len(), 1);
    assert!(found("a/src/purely.rs", "")[0].contains("does not exist"));
}

#[test]
fn misshapen_finds_a_missing_purpose_a_long_line_and_a_long_file() {
    let found = |text: &str| misshapen(&source("a.rs", text)).len();
    let line = |length| format!("//! {}", "é".repeat(length - 4));
    assert_eq!(found(&line(LINE_MAX)), 0);
    assert_eq!(found(&line(LINE_MAX + 1)), 1);
    assert_eq!(found("use std::fmt;\n"), 1);
    assert_eq!(found(&"//! a\n".repeat(FILE_MAX)), 0);
    assert_eq!(found(&"//! a\n".repeat(FILE_MAX + 1)), 1);
}

#[test]
fn lines_with_finds_what_is_unfinished() {
    for text in UNFINISHED {
        let line = format!("//! a\n    {text}(later)\n");
        assert_eq!(
            lines_with(&source("a.rs", &line), UNFINISHED).len(),
            1,
            "{text}"
        );
    }
}

#[test]
fn lines_naming_finds_whole_names_in_code() {
    let found = |text| lines_naming(&source("a.rs", text), OWNERLESS).len();
    assert_eq!(found(concat!("tokio::", "spawn(work)")), 1);
    assert_eq!(found(concat!("// never tokio::", "spawn")), 0);
    assert_eq!(found(concat!("tokio::", "spawn_local_set(work)")), 0);
    assert_eq!(found("tasks.spawn(name, work)"), 0);
}

#[test]
fn documented_finds_first_columns_of_one_section_only() {
    let text =
        "# A\n### b\n| `x.one`, `two` | `no` |\n| three | |\n#### c\n| `four` |\n### d\n| `no` |\n";
    let told = documented(section(text, "### b"));
    assert_eq!(told, BTreeSet::from(["x", "one", "two", "four"]));
    assert_eq!(section(text, "### e"), "");
}

#[test]
fn read_settings_finds_names_in_every_kind_of_call() {
    let text = "root.required(\"a\", ..); field.or(\"b\", 0); section.setting(\"c\"); x(\"d\")";
    assert_eq!(read_settings(text), BTreeSet::from(["a", "b", "c"]));
}

#[test]
fn unknown_names_of_documents_are_found() {
    let sources = [source(
        "a.rs",
        "(\"requests\", ..)\nfn one_does_this_when_that() {",
    )];
    let metrics = |text| unknown_metrics(text, &sources).len();
    assert_eq!(metrics("rate(tidegate_requests_total[5m]) > 0"), 0);
    assert_eq!(metrics("`tidegate_request_total`"), 1);
    let tests = |text| unknown_tests(text, &sources).len();
    assert_eq!(tests("| it holds | `one_does_this_when_that` |"), 0);
    assert_eq!(tests("| it holds | `one_does_this_when_not` |"), 1);
}
