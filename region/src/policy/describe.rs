//! How a policy reads in words, for `config check`.

use std::fmt;
use std::time::Duration;

use super::{Policy, PolicySet, Rule, Scope};
use crate::limit::{Limit, Split};
use crate::units::{Tokens, micros};

/// A policy and the regions it is dealt to, in one line.
#[derive(Clone, Copy, Debug)]
pub struct Described<'a> {
    set: &'a PolicySet,
    policy: &'a Policy,
}

impl PolicySet {
    /// The policy in words, such as `4000 per 1s (1 token each 250us), burst 4000, global: eu 30`.
    #[must_use]
    pub const fn describe<'a>(&'a self, policy: &'a Policy) -> Described<'a> {
        Described { set: self, policy }
    }
}

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.policy.rule() {
            Rule::Bucket(split) => self.bucket(split, f)?,
            Rule::Deny => f.write_str("denies everything")?,
            Rule::Unlimited => f.write_str("unlimited")?,
        }
        write!(f, ", keyed by {}", self.policy.key().join(" and "))?;
        for (index, condition) in self.policy.conditions().iter().enumerate() {
            let word = if index == 0 { ", if" } else { " and" };
            write!(f, "{word} {condition}")?;
        }
        Ok(())
    }
}

impl Described<'_> {
    fn bucket(&self, split: &Split, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = split.limit();
        let (rate, burst) = (limit.rate().0, limit.burst().0);
        write!(f, "{rate} per {} (", span(limit.per()))?;
        each(limit, f)?;
        write!(f, "), burst {burst}, ")?;
        match self.policy.scope() {
            Scope::Regional => f.write_str("for every region")?,
            Scope::Global => {
                f.write_str("global:")?;
                for (index, region) in self.set.regions().iter().enumerate() {
                    let comma = if index == 0 { "" } else { "," };
                    write!(f, "{comma} {} {}", region.name, region.weight)?;
                }
            }
        }
        if let Tokens(overrun @ 1..) = self.policy.overrun() {
            write!(f, ", overrun {overrun}")?;
        }
        let wait = self.policy.borrow_wait();
        if !wait.is_zero() {
            write!(f, ", waits {} to borrow", span(wait))?;
        }
        Ok(())
    }
}

/// How often one token comes. Where that is no whole number of microseconds, it is rounded and
/// marked as such.
fn each(limit: &Limit, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (per, rate) = (micros(limit.per()), limit.rate().0);
    let about = if per.is_multiple_of(rate) {
        ""
    } else {
        "about "
    };
    if per < rate {
        let per_token = u128::from(per) * 1_000 / u128::from(rate);
        return write!(f, "1 token each {about}{per_token}ns");
    }
    let per_token = Duration::from_micros(per / rate);
    write!(f, "1 token each {about}{}", span(per_token))
}

/// A span in the largest unit that shows it whole, as it can be written in a file.
#[must_use]
pub fn span(span: Duration) -> String {
    const UNITS: [(u64, &str); 6] = [
        (86_400_000_000, "d"),
        (3_600_000_000, "h"),
        (60_000_000, "m"),
        (1_000_000, "s"),
        (1_000, "ms"),
        (1, "us"),
    ];
    let micros = micros(span);
    UNITS
        .iter()
        .find(|(unit, _)| micros >= *unit && micros.is_multiple_of(*unit))
        .map_or_else(
            || format!("{micros}us"),
            |(unit, name)| format!("{}{name}", micros / unit),
        )
}
