//! `policies.toml`: from the text to a checked set.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::time::Duration;

use siphasher::sip::SipHasher24;

use super::condition::{Condition, Test};
use super::{OnStoreFailure, Policy, PolicySet, Region, Rule, Scope};
use super::{policy_id, write_number, write_text};
use crate::bucket::Lost;
use crate::limit::{LimitError, Split};
use crate::reader::{Field, Problems, Table, read};
use crate::units::{EXACT_MAX, Level, PolicyId, Tokens, micros, mul_div};

/// The most regions.
const REGIONS_MAX: usize = 64;

/// The most policies.
const POLICIES_MAX: usize = 1_000;

/// The largest weight of a region.
const WEIGHT_MAX: u64 = 1_000_000;

/// The most conditions of a policy.
const CONDITIONS_MAX: usize = 32;

/// The most attributes of a policy's key.
const KEY_MAX: usize = 16;

/// The longest name of an attribute, and the longest text of a condition, in bytes.
const ATTRIBUTE_MAX: usize = 128;
const TEST_MAX: usize = 256;

/// The longest time for which a denial may wait for a grant: gateways do not wait much longer.
const BORROW_WAIT_MAX: Duration = Duration::from_secs(1);

/// The largest debt in level units, so that a script's numbers hold it exactly.
const DEBT_MAX: u64 = (1 << 52) - 1;

/// Reads a whole set; see [`PolicySet::parse`].
pub(super) fn parse(text: &str, file: &str) -> Result<PolicySet, Problems> {
    read(text, file, |root| {
        let regions = regions(root);
        let isolation = root.or("on_isolation", (), isolation);
        let policies = policies(root, regions.as_deref());
        isolation?;
        Some(PolicySet::new(regions?, policies?))
    })
}

/// `[regions]`, sorted by name.
fn regions(root: &Table<'_>) -> Option<Vec<Region>> {
    let field = root.required("regions", "{ eu = 30, us = 50 }")?;
    let regions: Vec<Option<Region>> = field.table(|table| {
        let regions = table.fields().map(|(name, weight)| {
            let good = weight.named(name);
            let weight = u32::try_from(weight.whole(0..=WEIGHT_MAX)?).ok()?;
            good.then(|| Region {
                name: name.to_owned(),
                weight,
            })
        });
        Some(regions.collect())
    })?;
    if regions.is_empty() {
        field.problem("names no region; write for example `us = 50`");
        return None;
    }
    if regions.len() > REGIONS_MAX {
        field.problem(format!(
            "{} regions are too many; at most {REGIONS_MAX} are allowed",
            regions.len()
        ));
        return None;
    }
    let mut regions: Vec<Region> = regions.into_iter().collect::<Option<_>>()?;
    if regions.iter().all(|region| region.weight == 0) {
        field.problem("gives every region the weight 0; at least one needs more");
        return None;
    }
    regions.sort_by(|a, b| a.name.cmp(&b.name));
    Some(regions)
}

fn isolation(field: &Field<'_>) -> Option<()> {
    let yields = field.choice(&[("keep", false), ("yield", true)])?;
    if yields {
        field.problem("`yield` comes in a later version; write \"keep\" or leave it out");
    }
    (!yields).then_some(())
}

/// `[[policy]]`, each checked on its own and against the others.
fn policies(root: &Table<'_>, regions: Option<&[Region]>) -> Option<Vec<Policy>> {
    let Some(field) = root.optional("policy") else {
        root.missing("policy", "write at least one `[[policy]]`");
        return None;
    };
    let list = field.list()?;
    if list.is_empty() || list.len() > POLICIES_MAX {
        field.problem(format!(
            "{} policies; write 1 to {POLICIES_MAX}",
            list.len()
        ));
        return None;
    }
    let mut names = BTreeMap::new();
    let policies: Vec<Option<Policy>> = list
        .iter()
        .enumerate()
        .map(|(index, field)| field.table(|table| policy(table, index, regions, &mut names)))
        .collect();
    policies.into_iter().collect()
}

/// One `[[policy]]`. Every field is read before the first wrong one ends it, so that all problems
/// are reported.
fn policy(
    table: &Table<'_>,
    index: usize,
    regions: Option<&[Region]>,
    names: &mut BTreeMap<PolicyId, usize>,
) -> Option<Policy> {
    let title = title(table, index, names);
    let conditions = table.or("match", Vec::new(), conditions);
    let key = table.required("key", "[\"customer\"]");
    let key = key.and_then(|field| key_attributes(&field));
    let scope = table.or("scope", Scope::Global, |field| {
        field.choice(&[("global", Scope::Global), ("regional", Scope::Regional)])
    });
    let bounds = bounds(table, regions, scope.unwrap_or_default());
    let on_store_failure = table.or("on_store_failure", OnStoreFailure::Local, |field| {
        field.choice(&[
            ("closed", OnStoreFailure::Closed),
            ("open", OnStoreFailure::Open),
            ("local", OnStoreFailure::Local),
        ])
    });
    let on_store_loss = table.or("on_store_loss", Lost::Empty, |field| {
        field.choice(&[("empty", Lost::Empty), ("full", Lost::Full)])
    });
    let later = refuse_later(table);
    let borrow_wait = table.or("borrow_wait", Duration::ZERO, |field| {
        borrow_wait(field, scope.unwrap_or_default())
    });
    let (name, domain, id) = title?;
    let (rule, overrun) = bounds?;
    let borrow_wait = borrow_wait?;
    if !borrow_wait.is_zero() && !matches!(rule, Rule::Bucket(_)) {
        table.problem("has a `borrow_wait` but no bucket that could borrow; leave it out");
        return None;
    }
    later?;
    let (scope, regions) = (scope?, regions?);
    Some(Policy {
        name,
        domain,
        id,
        index,
        conditions: conditions?,
        key: key?,
        debts: debts(&rule, overrun, regions),
        terms: terms(&rule, scope, regions),
        rule,
        scope,
        overrun,
        borrow_wait,
        on_store_failure: on_store_failure?,
        on_store_loss: on_store_loss?,
    })
}

/// The name and the domain, which together no other policy has.
fn title(
    table: &Table<'_>,
    index: usize,
    names: &mut BTreeMap<PolicyId, usize>,
) -> Option<(String, String, PolicyId)> {
    let field = table.required("name", "\"per-customer\"");
    let name = field.as_ref().and_then(Field::name);
    let domain = table.required("domain", "\"api\"");
    let domain = domain.and_then(|field| field.name());
    let (name, domain) = (name?, domain?);
    let id = policy_id(domain, name);
    if let Some(other) = names.insert(id, index) {
        field?.problem(format!(
            "`{name}` is already the name of policy[{other}] in the domain `{domain}`; write \
             another one"
        ));
        return None;
    }
    Some((name.to_owned(), domain.to_owned(), id))
}

fn conditions(field: &Field<'_>) -> Option<Vec<Condition>> {
    let list = field.list()?;
    if list.len() > CONDITIONS_MAX {
        field.problem(format!("at most {CONDITIONS_MAX} conditions are allowed"));
        return None;
    }
    let conditions: Vec<_> = list.iter().map(|field| field.table(condition)).collect();
    conditions.into_iter().collect()
}

fn condition(table: &Table<'_>) -> Option<Condition> {
    let attribute = table.required("attribute", "\"plan\"");
    let attribute = attribute.and_then(|field| attribute_name(&field));
    let equals = table.optional("equals");
    let prefix = table.optional("prefix");
    let glob = table.optional("glob");
    let test = match (equals, prefix, glob) {
        (Some(field), None, None) => Test::Equals(test_text(&field)?),
        (None, Some(field), None) => Test::Prefix(test_text(&field)?),
        (None, None, Some(field)) => Test::Glob(test_text(&field)?),
        _ => {
            table.problem("needs exactly one of `equals`, `prefix` and `glob`");
            return None;
        }
    };
    Some(Condition {
        attribute: attribute?,
        test,
    })
}

fn test_text(field: &Field<'_>) -> Option<String> {
    let text = field.text()?;
    if text.len() > TEST_MAX {
        field.problem(format!("is longer than {TEST_MAX} bytes"));
        return None;
    }
    Some(text.to_owned())
}

fn attribute_name(field: &Field<'_>) -> Option<String> {
    let name = field.text()?;
    let good = (1..=ATTRIBUTE_MAX).contains(&name.len()) && !name.chars().any(char::is_control);
    if !good {
        field.problem(format!(
            "is not the name of an attribute; write 1 to {ATTRIBUTE_MAX} printable bytes"
        ));
    }
    good.then(|| name.to_owned())
}

fn key_attributes(field: &Field<'_>) -> Option<Vec<String>> {
    let list = field.list()?;
    if list.is_empty() || list.len() > KEY_MAX {
        field.problem(format!(
            "needs 1 to {KEY_MAX} attributes; write for example [\"customer\"]"
        ));
        return None;
    }
    let names: Vec<_> = list.iter().map(attribute_name).collect();
    let mut names: Vec<String> = names.into_iter().collect::<Option<_>>()?;
    names.sort();
    if let Some([twice, _]) = names.array_windows().find(|[a, b]| a == b) {
        field.problem(format!("names `{twice}` twice; write it once"));
        return None;
    }
    Some(names)
}

/// The rule and the overrun that goes with it.
fn bounds(table: &Table<'_>, regions: Option<&[Region]>, scope: Scope) -> Option<(Rule, Tokens)> {
    let unlimited = table.or("unlimited", false, Field::flag);
    let overrun = table.or("overrun", 0, |field| field.whole(0..=EXACT_MAX));
    let rate = if unlimited == Some(false) {
        table.required("rate", "1000")
    } else {
        table.optional("rate")
    };
    let per = table.optional("per");
    let burst = table.optional("burst");
    if unlimited? {
        let fields = [&rate, &per, &burst].into_iter().flatten();
        let count = fields
            .map(|field| field.problem("says nothing beside `unlimited = true`; leave one out"))
            .count();
        return (count == 0 && no_overrun(table, overrun?)).then_some((Rule::Unlimited, Tokens(0)));
    }
    let amount = rate.as_ref().and_then(|field| field.whole(0..=EXACT_MAX));
    let span = per.as_ref().and_then(Field::duration);
    if amount == Some(0) {
        if let Some(field) = &burst {
            field.problem("has no place beside `rate = 0`, which denies everything; leave it out");
        }
        let good = burst.is_none() && (per.is_none() || span.is_some());
        return (no_overrun(table, overrun?) && good).then_some((Rule::Deny, Tokens(0)));
    }
    if per.is_none() {
        let missing = table.required("per", "\"1s\"");
        debug_assert!(missing.is_none(), "looked up above");
    }
    let most = match &burst {
        Some(field) => field.whole(1..=EXACT_MAX),
        None => amount,
    };
    let (rate, per) = (rate?, per?);
    let split = split((amount?, span?, most?), scope, regions)
        .map_err(|error| match error {
            LimitError::Period => per.problem(error.to_string()),
            LimitError::Zero | LimitError::Inexact { .. } => rate.problem(error.to_string()),
        })
        .ok()?;
    let overrun = Tokens(overrun?);
    let debt = split.limit().level(overrun).0.unsigned_abs();
    if debt > DEBT_MAX {
        let most = DEBT_MAX / split.limit().token().0.unsigned_abs().max(1);
        let field = table.optional("overrun")?;
        field.problem(format!("is not exact in 52 bits; at most {most} is here"));
        return None;
    }
    Some((Rule::Bucket(split), overrun))
}

fn no_overrun(table: &Table<'_>, overrun: u64) -> bool {
    if overrun > 0 {
        table.problem("has an `overrun` but no bucket that could be overrun; leave it out");
    }
    overrun == 0
}

/// Deals a limit to the regions, or to a single one where every region has it for itself.
fn split(
    (rate, per, burst): (u64, Duration, u64),
    scope: Scope,
    regions: Option<&[Region]>,
) -> Result<Split, LimitError> {
    let weights: Vec<u32> = match (scope, regions) {
        (Scope::Global, Some(regions)) => regions.iter().map(|region| region.weight).collect(),
        // Without regions the set is refused anyway, but the limit's own faults are still shown.
        (Scope::Regional, _) | (Scope::Global, None) => vec![1],
    };
    Split::try_new(Tokens(rate), per, Tokens(burst), &weights)
}

/// How long a denial may wait for a grant.
fn borrow_wait(field: &Field<'_>, scope: Scope) -> Option<Duration> {
    let wait = field.duration_or_zero()?;
    if wait > BORROW_WAIT_MAX {
        field.problem("is longer than a gateway waits; write at most \"1s\"");
        return None;
    }
    if scope == Scope::Regional && !wait.is_zero() {
        field.problem(
            "has no place beside `scope = \"regional\"`, which borrows nothing; leave it out",
        );
        return None;
    }
    Some(wait)
}

/// Fields whose meaning is decided but which are not there yet: taken silently they would promise
/// what nobody keeps.
fn refuse_later(table: &Table<'_>) -> Option<()> {
    let mut good = Some(());
    for name in ["window", "ban", "shadow"] {
        if let Some(field) = table.later(name) {
            field.problem("comes in a later version; leave it out");
            good = None;
        }
    }
    good
}

/// Each region's part of the overrun, by weight. The parts add up to exactly the whole.
fn debts(rule: &Rule, overrun: Tokens, regions: &[Region]) -> Vec<Level> {
    let Rule::Bucket(split) = rule else {
        return vec![Level::ZERO; regions.len()];
    };
    let whole = split.limit().level(overrun).0.unsigned_abs();
    let sum: u64 = regions.iter().map(|region| u64::from(region.weight)).sum();
    let mut weight = 0;
    let mut dealt = 0;
    regions
        .iter()
        .map(|region| {
            weight += u64::from(region.weight);
            let upto = mul_div(whole, weight, sum);
            let part = upto - std::mem::replace(&mut dealt, upto);
            Level(i64::try_from(part).unwrap_or(i64::MAX))
        })
        .collect()
}

fn terms(rule: &Rule, scope: Scope, regions: &[Region]) -> u64 {
    let mut hasher = SipHasher24::new();
    let numbers = match rule {
        Rule::Bucket(split) => {
            let limit = split.limit();
            [1, limit.rate().0, micros(limit.per()), limit.burst().0]
        }
        Rule::Deny => [2, 0, 0, 0],
        Rule::Unlimited => [3, 0, 0, 0],
    };
    let scope = match scope {
        Scope::Global => 1,
        Scope::Regional => 2,
    };
    for number in numbers.into_iter().chain([scope]) {
        write_number(&mut hasher, number);
    }
    for region in regions {
        write_text(&mut hasher, &region.name);
        write_number(&mut hasher, u64::from(region.weight));
    }
    hasher.finish()
}
