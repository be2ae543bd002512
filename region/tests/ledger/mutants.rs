//! Bugs planted on purpose: each must be found, or a check is missing (PROTOCOL 8).

use region::mutant::{Mutant, plant};

use super::world::checks::explore;
use super::world::{DEEP, DRIFT, SMALL, THREE, TWO, executions};

/// A bug must show in so many random worlds of one of the settings, if not in a single execution.
const SEEDS: u64 = 350;

/// Finds a bug, and says how.
fn hunt(bug: Mutant) -> Option<String> {
    plant(Some(bug));
    let executions = executions::ALL.into_iter();
    let mut broken = executions.filter_map(|(name, run)| Some((name, run().err()?)));
    if let Some((name, broken)) = broken.next() {
        return Some(format!("the execution \"{name}\": {broken}"));
    }
    [TWO, DEEP, THREE, DRIFT, SMALL]
        .into_iter()
        .find_map(|setting| {
            let found = explore(setting, 0..SEEDS).err()?;
            Some(format!("{} regions, {found}", setting.weights.len()))
        })
}

#[test]
fn every_planted_bug_of_the_ledger_is_found() {
    let mut missed = Vec::new();
    // Only a real server shows it: tests/stores.
    let bugs = Mutant::BUGS.into_iter();
    for bug in bugs.filter(|bug| *bug != Mutant::RunIdIgnored) {
        match hunt(bug) {
            Some(how) => println!("{bug:?}: {how}"),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "nothing finds {missed:?}");
}

#[test]
fn nothing_is_found_where_no_bug_is_planted() {
    assert_eq!(hunt(Mutant::ShortGrants), None);
}
