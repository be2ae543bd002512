//! `tidegate overrun-bound`

use std::fmt;
use std::time::Duration;

use region::bound::{Bound, Fault, FaultError, Line, Per};
use region::policy::{Policy, PolicySet, Rule, span};
use region::units::Tokens;
use serde_json::{Value, json};

use super::{Exit, Failure, OverrunBound, check};
use crate::config::load_policies;
use crate::output;

/// What is wrong with `--with`: everything, and what could stand there.
#[derive(Debug)]
struct WrongFaults(Vec<FaultError>);

impl OverrunBound {
    pub(super) fn run(&self) -> Result<Exit, Failure> {
        let faults = self.faults();
        if let Err(wrong) = &faults {
            output::complain(wrong).map_err(Failure::Output)?;
        }
        let loaded = load_policies(&self.policies);
        let written = match (&faults, &loaded) {
            (_, Err(problems)) if !self.json => output::complain(problems),
            (_, Err(problems)) => output::line(&check::refusal(problems).to_string()),
            (Err(_), Ok(_)) => Ok(()),
            (Ok(faults), Ok(set)) if self.json => {
                output::line(&self.report(set, faults).to_string())
            }
            (Ok(faults), Ok(set)) => output::line(&self.text(set, faults)),
        };
        written.map_err(Failure::Output)?;
        Ok(match (faults, loaded) {
            (Err(_), _) => Exit::WrongUsage,
            (Ok(_), Err(_)) => Exit::BadConfiguration,
            (Ok(_), Ok(_)) => Exit::Done,
        })
    }

    fn faults(&self) -> Result<Vec<Fault>, WrongFaults> {
        let (mut faults, mut wrong) = (Vec::new(), Vec::new());
        for text in &self.with {
            match text.trim().parse() {
                Ok(fault) => faults.push(fault),
                Err(error) => wrong.push(error),
            }
        }
        if wrong.is_empty() {
            Ok(faults)
        } else {
            Err(WrongFaults(wrong))
        }
    }

    fn text(&self, set: &PolicySet, faults: &[Fault]) -> String {
        let tables = set.policies().iter().map(|policy| {
            let (domain, name) = (policy.domain(), policy.name());
            let head = format!("{domain}/{name}: {}", set.describe(policy));
            let body = match Bound::of(policy) {
                Some(bound) => self.table(&bound, policy, faults),
                None => promises_nothing(policy).to_owned(),
            };
            format!("{head}\n{body}")
        });
        tables.collect::<Vec<_>>().join("\n\n")
    }

    fn table(&self, bound: &Bound, policy: &Policy, faults: &[Fault]) -> String {
        let period = period(policy);
        let rows = bound.lines().iter().map(|line| {
            let (name, tokens) = (line.source.name(), figure(line, period));
            format!("  {name:<21}  {tokens:<24}  {}", line.why)
        });
        let head = format!("  {:<21}  {:<24}  why", "what it comes from", "tokens");
        let total = match bound.total(faults) {
            Some(Tokens(1)) => "1 token beyond the limit".to_owned(),
            Some(Tokens(total)) => format!("{total} tokens beyond the limit"),
            None => "unbounded".to_owned(),
        };
        let with: Vec<&str> = self.with.iter().map(|text| text.trim()).collect();
        let when = if with.is_empty() {
            "without any fault".to_owned()
        } else {
            format!("with {}", with.join(", "))
        };
        let lines = std::iter::once(head).chain(rows);
        let lines = lines.chain([format!("  in total, {when}: {total}")]);
        lines.collect::<Vec<_>>().join("\n")
    }

    fn report(&self, set: &PolicySet, faults: &[Fault]) -> Value {
        let policies = set.policies().iter().map(|policy| {
            let bound = Bound::of(policy);
            let lines = bound.iter().flat_map(Bound::lines).map(source);
            let total = bound.as_ref().map(|bound| bound.total(faults));
            json!({
                "domain": policy.domain(),
                "policy": policy.name(),
                "description": set.describe(policy).to_string(),
                "global": bound.is_some(),
                "period": bound.as_ref().map(|_| span(period(policy))),
                "sources": lines.collect::<Vec<_>>(),
                "total": total.flatten().map(|tokens| tokens.0),
                "unbounded": total == Some(None),
            })
        });
        json!({
            "ok": true,
            "with": self.with,
            "policies": policies.collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for WrongFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for error in &self.0 {
            writeln!(f, "--with: {error}")?;
        }
        write!(f, "the faults are {}", Fault::FORMS.join(", "))
    }
}

fn source(line: &Line) -> Value {
    json!({
        "source": line.source.name(),
        "tokens": line.tokens.map(|tokens| tokens.0),
        "per": line.per.name(),
        "at_most": line.most.map(|tokens| tokens.0),
        "why": line.why,
    })
}

/// A figure with its unit.
fn figure(line: &Line, period: Duration) -> String {
    let Some(tokens) = line.tokens else {
        return "unbounded".to_owned();
    };
    let unit = match line.per {
        _ if tokens == Tokens(0) => String::new(),
        Per::Once => " in all".to_owned(),
        Per::Event => " each time".to_owned(),
        Per::Period => format!(" per {}", span(period)),
    };
    let most = line.most.map(|most| format!(", at most {}", most.0));
    format!("{}{unit}{}", tokens.0, most.unwrap_or_default())
}

fn period(policy: &Policy) -> Duration {
    policy
        .split()
        .map_or(Duration::ZERO, |split| split.limit().per())
}

/// Why a policy has no bound over all regions.
const fn promises_nothing(policy: &Policy) -> &'static str {
    match policy.rule() {
        Rule::Bucket(_) => {
            "  every region has this limit for itself: nothing is promised over all regions"
        }
        Rule::Deny => "  nothing that costs something passes, so there is no limit to exceed",
        Rule::Unlimited => "  there is no limit to exceed",
    }
}
