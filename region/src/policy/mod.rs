//! Policies: who is limited, by what, and what happens when the store does not answer.
//!
//! A set is parsed and checked once, as a whole; what is wrong with it is reported all at once.

mod condition;
mod describe;
mod parse;

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::time::Duration;

use siphasher::sip::SipHasher24;

pub use self::condition::{Condition, Test};
pub use self::describe::{Described, span};
use crate::bucket::{Base, Lost};
use crate::ledger::{CLOCK_MARGIN, GRANT_TTL};
use crate::limit::Split;
use crate::reader::Problems;
use crate::units::{Client, Level, PolicyId, RegionId, Tokens};

/// The policies that all regions share, and the regions that share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySet {
    regions: Vec<Region>,
    policies: Vec<Policy>,
    /// The places of a domain's policies, in their order.
    domains: BTreeMap<String, Vec<usize>>,
    /// The place of each policy.
    places: BTreeMap<PolicyId, usize>,
}

/// A region and its weight: what part of every global limit is its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// Its name.
    pub name: String,
    /// Its weight. A region of weight 0 has nothing of its own and borrows.
    pub weight: u32,
}

/// One policy: the requests it is for, what they are keyed by, and the rule they are held to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    name: String,
    domain: String,
    id: PolicyId,
    index: usize,
    conditions: Vec<Condition>,
    /// The attributes of the key, sorted: policies keyed by the same ones share their clients.
    key: Vec<String>,
    rule: Rule,
    scope: Scope,
    overrun: Tokens,
    /// Each region's part of `overrun`.
    debts: Vec<Level>,
    borrow_wait: Duration,
    on_store_failure: OnStoreFailure,
    on_store_loss: Lost,
    terms: u64,
}

/// What a policy holds its requests to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A token bucket, dealt to the regions.
    Bucket(Split),
    /// `rate = 0`: nothing passes that costs something.
    Deny,
    /// `unlimited = true`: everything passes.
    Unlimited,
}

/// Whether the regions share a limit or have it each for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scope {
    /// One limit over all regions.
    #[default]
    Global,
    /// Every region has the limit for itself.
    Regional,
}

/// What happens to requests while the store of their key does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreFailure {
    /// They are denied.
    Closed,
    /// They pass.
    Open,
    /// An emergency limiter in node memory decides.
    #[default]
    Local,
}

/// The attributes of one request, by name; names are case-sensitive. Of a name that is there twice
/// the first value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes<'a>(&'a [(&'a str, &'a str)]);

impl<'a> Attributes<'a> {
    /// The attributes of a request.
    #[must_use]
    pub const fn new(pairs: &'a [(&'a str, &'a str)]) -> Self {
        Self(pairs)
    }

    /// An attribute's value.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&'a str> {
        let pair = self.0.iter().find(|(candidate, _)| *candidate == name);
        pair.map(|(_, value)| *value)
    }
}

impl PolicySet {
    /// Reads `policies.toml`; `file` is how its problems name it.
    ///
    /// # Errors
    /// Everything that is wrong with it, with lines.
    pub fn parse(text: &str, file: &str) -> Result<Self, Problems> {
        parse::parse(text, file)
    }

    fn new(regions: Vec<Region>, policies: Vec<Policy>) -> Self {
        let mut domains: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for policy in &policies {
            let domain = domains.entry(policy.domain.clone()).or_default();
            domain.push(policy.index);
        }
        let places = policies.iter().map(|policy| (policy.id, policy.index));
        let places = places.collect();
        Self {
            regions,
            policies,
            domains,
            places,
        }
    }

    /// The regions in alphabetical order: a [`RegionId`] is a place in this list.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The region of this name.
    #[must_use]
    pub fn region(&self, name: &str) -> Option<RegionId> {
        let found = self
            .regions
            .binary_search_by(|region| region.name.as_str().cmp(name));
        found
            .ok()
            .and_then(|at| u16::try_from(at).ok())
            .map(RegionId)
    }

    /// The policies in the order of the file.
    #[must_use]
    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// The policy with this id.
    #[must_use]
    pub fn by_id(&self, id: PolicyId) -> Option<&Policy> {
        self.policies.get(*self.places.get(&id)?)
    }

    /// The policy of this name in a domain.
    #[must_use]
    pub fn by_name(&self, domain: &str, name: &str) -> Option<&Policy> {
        self.by_id(policy_id(domain, name))
    }

    /// The policies that apply to a request, in the order of the file.
    pub fn matching<'a, 'r>(
        &'a self,
        domain: &str,
        attributes: Attributes<'r>,
    ) -> impl Iterator<Item = &'a Policy> + use<'a, 'r> {
        let places = self.domains.get(domain).map_or(&[][..], Vec::as_slice);
        places
            .iter()
            .filter_map(|place| self.policies.get(*place))
            .filter(move |policy| policy.applies(attributes))
    }
}

impl Policy {
    /// Its name, unique in its domain.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The domain whose requests it is for.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The hash of domain and name: the same in every region and every version.
    #[must_use]
    pub const fn id(&self) -> PolicyId {
        self.id
    }

    /// Its place in the set.
    #[must_use]
    pub const fn index(&self) -> usize {
        self.index
    }

    /// What must hold of a request, all of it.
    #[must_use]
    pub fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    /// The attributes that its requests are keyed by, in alphabetical order.
    #[must_use]
    pub fn key(&self) -> &[String] {
        &self.key
    }

    /// What its requests are held to.
    #[must_use]
    pub const fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Whether the regions share the limit.
    #[must_use]
    pub const fn scope(&self) -> Scope {
        self.scope
    }

    /// The tokens that all regions together may go into debt.
    #[must_use]
    pub const fn overrun(&self) -> Tokens {
        self.overrun
    }

    /// How long a request may wait for what other regions lend before it is denied.
    #[must_use]
    pub const fn borrow_wait(&self) -> Duration {
        self.borrow_wait
    }

    /// What happens while the store does not answer.
    #[must_use]
    pub const fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// What a key is taken to be when its shard has lost its memory.
    #[must_use]
    pub const fn on_store_loss(&self) -> Lost {
        self.on_store_loss
    }

    /// A hash of everything arithmetic: numbers that were written under other terms are void.
    #[must_use]
    pub const fn terms(&self) -> u64 {
        self.terms
    }

    /// The limit as it is dealt: over all regions, or for a regional one over a single region.
    #[must_use]
    pub const fn split(&self) -> Option<&Split> {
        match &self.rule {
            Rule::Bucket(split) => Some(split),
            Rule::Deny | Rule::Unlimited => None,
        }
    }

    /// Whether it is for a request: all conditions hold, and no attribute of the key is missing.
    #[must_use]
    pub fn applies(&self, attributes: Attributes<'_>) -> bool {
        self.conditions
            .iter()
            .all(|condition| condition.holds(attributes))
            && self.key.iter().all(|name| attributes.value(name).is_some())
    }

    /// A region's part of the limit for one client, before any lending; `None` without a bucket.
    #[must_use]
    pub fn base(&self, region: RegionId, client: Client) -> Option<Base> {
        let split = self.split()?;
        let (dealt_to, wait) = match self.scope {
            Scope::Global => (region, GRANT_TTL.saturating_add(CLOCK_MARGIN)),
            Scope::Regional => (RegionId(0), Duration::ZERO),
        };
        let share = split.base(dealt_to, client);
        let debt = self.debts.get(usize::from(region.0));
        Some(Base {
            tick: split.limit().tick(),
            token: split.limit().token(),
            share,
            capacity: split.capacity(share),
            floor: split.floor(),
            wait,
            debt: debt.copied().unwrap_or(Level::ZERO),
            lost: self.on_store_loss,
        })
    }
}

/// The hash of a policy's domain and name.
fn policy_id(domain: &str, name: &str) -> PolicyId {
    let mut hasher = SipHasher24::new();
    write_text(&mut hasher, domain);
    write_text(&mut hasher, name);
    PolicyId(hasher.finish())
}

/// Feeds a text with its length before it, so that no two sequences of texts feed the same bytes.
pub(crate) fn write_text(hasher: &mut impl Hasher, text: &str) {
    write_number(hasher, u64::try_from(text.len()).unwrap_or(u64::MAX));
    hasher.write(text.as_bytes());
}

/// Feeds a number in the same bytes on every machine.
pub(crate) fn write_number(hasher: &mut impl Hasher, number: u64) {
    hasher.write(&number.to_le_bytes());
}
