//! `tidegate config check`

use region::policy::PolicySet;
use region::reader::Problem;
use serde_json::{Value, json};

use super::{Check, Exit, Failure};
use crate::config::{Faults, Loaded, load};
use crate::output;

impl Check {
    pub(super) fn run(self, environment: &[(String, String)]) -> Result<Exit, Failure> {
        let checked = load(&self.files.config, &self.files.policies, environment);
        let exit = if checked.is_ok() {
            Exit::Done
        } else {
            Exit::BadConfiguration
        };
        let written = if self.json {
            output::line(&report(&checked).to_string())
        } else {
            match &checked {
                Ok(loaded) => output::line(&text(loaded)),
                Err(faults) => output::complain(faults),
            }
        };
        written.map_err(Failure::Output)?;
        Ok(exit)
    }
}

fn text(loaded: &Loaded) -> String {
    let mut lines = vec![format!("rules {}", loaded.policies.policies().len())];
    lines.extend(policies(&loaded.policies).map(|(name, words)| format!("{name}: {words}")));
    let warnings = loaded.warnings.iter();
    lines.extend(warnings.map(|warning| format!("warning: {warning}")));
    lines.join("\n")
}

fn report(checked: &Result<Loaded, Faults>) -> Value {
    match checked {
        Ok(loaded) => {
            let policies = policies(&loaded.policies)
                .map(|(name, words)| json!({ "name": name, "description": words }));
            json!({
                "ok": true,
                "rules": loaded.policies.policies().len(),
                "policies": policies.collect::<Vec<_>>(),
                "warnings": loaded.warnings,
            })
        }
        Err(faults) => refusal(faults),
    }
}

/// What is wrong with a configuration, as JSON.
pub(super) fn refusal(faults: &Faults) -> Value {
    let problems: Vec<Value> = faults.problems.iter().map(problem).collect();
    json!({ "ok": false, "problems": problems })
}

fn policies(set: &PolicySet) -> impl Iterator<Item = (String, String)> {
    set.policies().iter().map(|policy| {
        let name = format!("{}/{}", policy.domain(), policy.name());
        (name, set.describe(policy).to_string())
    })
}

fn problem(problem: &Problem) -> Value {
    json!({
        "file": problem.file,
        "line": problem.line,
        "field": problem.field,
        "message": problem.message,
    })
}
