//! Answers as header fields: `X-RateLimit-*`, `RateLimit`, `RateLimit-Policy` and `Retry-After`.
//!
//! `RateLimit` and `RateLimit-Policy` follow draft 11 of draft-ietf-httpapi-ratelimit-headers.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use region::limiter::Verdict;
use region::policy::{Policy, PolicySet, Rule};

use super::is_closed;
use crate::config::Reset;

/// The largest integer of a structured field (RFC 9651).
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// How long a client waits that was denied because the store does not answer.
const CLOSED_WAIT: Duration = Duration::from_secs(1);

/// What is told of every policy, written once.
#[derive(Debug)]
pub struct Labels(Vec<Label>);

#[derive(Debug)]
struct Label {
    /// The name as a structured field's string.
    name: String,
    /// The policy as an item of `RateLimit-Policy`.
    item: String,
}

impl Labels {
    /// The labels of all policies.
    #[must_use]
    pub fn new(policies: &PolicySet) -> Self {
        Self(policies.policies().iter().map(Label::new).collect())
    }

    /// `RateLimit-Policy`: every policy that decided, once.
    #[must_use]
    pub fn policy_field(&self, verdicts: &[&Verdict]) -> String {
        let mut places: Vec<usize> = verdicts.iter().map(|verdict| verdict.policy).collect();
        places.sort_unstable();
        places.dedup();
        let labels = places.iter().filter_map(|place| self.0.get(*place));
        list(labels.map(|label| label.item.as_str()))
    }

    /// `RateLimit`: every policy that denied, else the strictest.
    ///
    /// `t` is the time after which a denied request passes, or until the limit is whole again.
    #[must_use]
    pub fn limit_field(&self, verdicts: &[&Verdict]) -> String {
        let denials = verdicts.iter().filter(|verdict| !verdict.decision.allowed);
        let mut told: Vec<&Verdict> = denials.copied().collect();
        if told.is_empty() {
            told.extend(strictest(verdicts));
        }
        let items = told.iter().filter_map(|verdict| {
            let label = self.0.get(verdict.policy)?;
            let decision = &verdict.decision;
            let mut item = format!("{};r={}", label.name, decision.remaining.0.min(INTEGER_MAX));
            let wait = if decision.allowed {
                decision.reset_after
            } else {
                decision.retry_after
            };
            if let Some(wait) = wait {
                write!(item, ";t={}", seconds(wait)).expect("a string takes all");
            }
            Some(item)
        });
        list(items)
    }
}

impl Label {
    fn new(policy: &Policy) -> Self {
        let name = string(policy.name());
        let mut item = name.clone();
        match policy.rule() {
            Rule::Bucket(split) => {
                let limit = split.limit();
                let rate = limit.rate().0.min(INTEGER_MAX);
                write!(item, ";q={rate}").expect("a string takes all");
                if limit.per().subsec_nanos() == 0 {
                    let window = limit.per().as_secs();
                    write!(item, ";w={window}").expect("a string takes all");
                }
            }
            Rule::Deny => item.push_str(";q=0"),
            Rule::Unlimited => {}
        }
        Self { name, item }
    }
}

/// The strictest verdict: a denial before an admission, then the one with least left.
#[must_use]
pub fn strictest<'v>(verdicts: &[&'v Verdict]) -> Option<&'v Verdict> {
    let strictest = verdicts
        .iter()
        .max_by_key(|verdict| verdict.decision.strictness());
    strictest.copied()
}

/// The seconds after which a denied request passes if nobody else asks, at least one; `None` if it
/// never does, or was not denied.
#[must_use]
pub fn retry_after(policies: &PolicySet, verdicts: &[&Verdict]) -> Option<u64> {
    let mut longest = None;
    for verdict in verdicts {
        if verdict.decision.allowed {
            continue;
        }
        let wait = if is_closed(policies, verdict) {
            CLOSED_WAIT
        } else {
            verdict.decision.retry_after?
        };
        longest = longest.max(Some(seconds(wait)));
    }
    longest
}

/// `X-RateLimit-Reset` of a verdict; `None` if it is not known when the limit is whole again.
///
/// Told by the store's clock where there is one, so that all nodes tell the same.
#[must_use]
pub fn reset(form: Reset, verdict: &Verdict) -> Option<u64> {
    let after = verdict.decision.reset_after?;
    match form {
        Reset::Seconds => Some(ceiling(after)),
        Reset::Unix => {
            let now = verdict
                .stamp
                .map_or_else(now, |stamp| Duration::from_micros(stamp.clock.0));
            Some(ceiling(now.saturating_add(after)))
        }
    }
}

/// Whole seconds, rounded up, at least one.
#[must_use]
pub fn seconds(span: Duration) -> u64 {
    ceiling(span).max(1)
}

/// Whole milliseconds, rounded up.
#[must_use]
pub fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn ceiling(span: Duration) -> u64 {
    let part = u64::from(span.subsec_nanos() > 0);
    span.as_secs().saturating_add(part)
}

fn now() -> Duration {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default()
}

fn list<T: AsRef<str>>(items: impl Iterator<Item = T>) -> String {
    let mut field = String::new();
    for item in items {
        if !field.is_empty() {
            field.push_str(", ");
        }
        field.push_str(item.as_ref());
    }
    field
}

/// A structured field's string (RFC 9651, section 3.3.3).
fn string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            ' '..='~' => quoted.push(character),
            _ => quoted.push('_'),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use region::decision::Decision;
    use region::store::StoreError;
    use region::units::{Generation, Stamp, Timestamp, Tokens};

    use super::*;

    fn policies() -> PolicySet {
        let text = r#"
            [regions]
            us = 1
            [[policy]]
            domain = "d"
            name = "minute"
            key = ["user"]
            rate = 5
            per = "1m"
            [[policy]]
            domain = "d"
            name = "odd"
            key = ["user"]
            rate = 1
            per = "106ms"
            on_store_failure = "closed"
        "#;
        PolicySet::parse(text, "policies.toml").expect("the policies are right")
    }

    fn verdict(policy: usize, remaining: u64, wait_ms: Option<u64>) -> Verdict {
        let wait = wait_ms.map(Duration::from_millis);
        Verdict {
            policy,
            decision: Decision {
                allowed: wait_ms == Some(0),
                limit: Tokens(5),
                remaining: Tokens(remaining),
                reset_after: Some(Duration::from_millis(1_500)),
                retry_after: wait.filter(|wait| !wait.is_zero()),
            },
            stamp: Some(Stamp {
                generation: Generation(1),
                clock: Timestamp(1_700_000_000_100_000),
            }),
            fallback: None,
        }
    }

    #[test]
    fn case_33_retry_after_is_whole_seconds_rounded_up_and_at_least_one() {
        let policies = policies();
        for (wait_ms, header) in [(1, 1), (106, 1), (1_000, 1), (1_001, 2), (3_334, 4)] {
            let denied = verdict(0, 0, Some(wait_ms));
            assert_eq!(
                retry_after(&policies, &[&denied]),
                Some(header),
                "{wait_ms}"
            );
        }
    }

    #[test]
    fn case_33_retry_after_is_absent_when_any_policy_never_passes() {
        let policies = policies();
        let (never, soon) = (verdict(0, 0, None), verdict(1, 0, Some(10)));
        assert_eq!(retry_after(&policies, &[&soon, &never]), None);
        assert_eq!(retry_after(&policies, &[&verdict(0, 3, Some(0))]), None);
    }

    #[test]
    fn retry_after_of_a_closed_store_is_one() {
        let mut denied = verdict(1, 0, None);
        denied.fallback = Some(StoreError::Timeout);
        assert_eq!(retry_after(&policies(), &[&denied]), Some(1));
    }

    #[test]
    fn ratelimit_tells_every_denial_else_the_strictest() {
        let labels = Labels::new(&policies());
        let (tight, wide) = (verdict(0, 2, Some(0)), verdict(1, 7, Some(0)));
        assert_eq!(labels.limit_field(&[&wide, &tight]), "\"minute\";r=2;t=2");
        let denied = verdict(1, 0, Some(90));
        assert_eq!(labels.limit_field(&[&tight, &denied]), "\"odd\";r=0;t=1");
        assert_eq!(
            labels.policy_field(&[&denied, &tight, &denied]),
            "\"minute\";q=5;w=60, \"odd\";q=1"
        );
    }

    #[test]
    fn reset_is_told_by_the_clock_of_the_store() {
        let verdict = verdict(0, 1, Some(0));
        assert_eq!(reset(Reset::Unix, &verdict), Some(1_700_000_002));
        assert_eq!(reset(Reset::Seconds, &verdict), Some(2));
    }

    #[test]
    fn names_are_quoted_as_structured_fields_demand() {
        assert_eq!(string("a\"b\\c\u{e9}"), "\"a\\\"b\\\\c_\"");
    }
}
