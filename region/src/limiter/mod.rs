//! The decision path over a store: which policies apply, what their keys can pay, and the answer.

mod elapsed;
mod emergency;
mod join;
mod request;
mod waiting;

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use siphasher::sip128::{Hasher128, SipHasher24};

use self::elapsed::Elapsed;
use self::emergency::{Emergency, Stand};
use self::request::{Decided, Group, Request};
pub use self::waiting::{Pause, Timer, WAITING_MAX, WaitEnd, Waits};
use crate::decision::{Decision, Ground};
use crate::policy::{Attributes, OnStoreFailure, Policy, PolicySet, Scope};
use crate::policy::{write_number, write_text};
use crate::store::{ShardId, Store, StoreError, Take, Taken};
use crate::units::{Client, Key, Level, RegionId, Stamp, Tokens};

/// What one request, or one descriptor of it, is about and what it costs.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Its attributes.
    pub attributes: &'a [(&'a str, &'a str)],
    /// Its cost in whole tokens; nothing to look without taking.
    pub cost: Tokens,
}

/// The answer to a check: one request, all or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether the request passes. If not, it has consumed nothing.
    pub allowed: bool,
    /// For each subject the verdicts of the policies that decided on it, in policy order. An
    /// unlimited policy has no verdict, nor has one that was not asked because a policy with rate
    /// 0 had already denied.
    pub subjects: Vec<Vec<Verdict>>,
}

/// What one policy says to one subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The policy's place in the set.
    pub policy: usize,
    /// What it decided.
    pub decision: Decision,
    /// The store's time of the decision; `None` where no store was asked or none answered.
    pub stamp: Option<Stamp>,
    /// Why the decision was made without the store, if it was.
    pub fallback: Option<StoreError>,
}

/// What a limiter is told about its surroundings.
#[derive(Clone, Copy)]
pub struct Settings {
    /// The secret of the key hash; the same in all regions.
    pub key_secret: [u8; 16],
    /// The largest number of nodes that the region is configured for: each of them has this part of
    /// the region's limits while a store does not answer.
    pub nodes_max: NonZeroU32,
    /// The most keys that are limited in node memory while a store does not answer.
    pub emergency_keys_max: usize,
}

/// Who wants to know that a key is under pressure.
pub trait Pressure: Send + Sync {
    /// A key of a global policy was denied, or is below half of its capacity. `wanted` is what was
    /// asked for if that was denied or exceeds the capacity, else nothing.
    ///
    /// Called on the decision path: it takes no lock, allocates nothing and does not wait.
    fn offer(&self, key: Key, wanted: Tokens);
}

/// The decision path of one region.
pub struct Limiter<S> {
    policies: Arc<PolicySet>,
    region: RegionId,
    store: S,
    key_secret: [u8; 16],
    emergency: Emergency<Elapsed>,
    pressure: Option<Arc<dyn Pressure>>,
    waits: Waits,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            key_secret: [0; 16],
            nodes_max: NonZeroU32::MIN,
            emergency_keys_max: 100_000,
        }
    }
}

impl Answer {
    /// The verdict that says most to the client: see [`Decision::strictness`].
    #[must_use]
    pub fn strictest(&self) -> Option<&Verdict> {
        let verdicts = self.subjects.iter().flatten();
        verdicts.max_by_key(|verdict| verdict.decision.strictness())
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("key_secret", &"***")
            .field("nodes_max", &self.nodes_max)
            .field("emergency_keys_max", &self.emergency_keys_max)
            .finish()
    }
}

impl<S> fmt::Debug for Limiter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("region", &self.region)
            .field("emergency", &self.emergency)
            .finish_non_exhaustive()
    }
}

impl<S: Store> Limiter<S> {
    /// A limiter of `region` for these policies over a store.
    pub fn new(policies: Arc<PolicySet>, region: RegionId, store: S, settings: Settings) -> Self {
        let Settings {
            key_secret,
            nodes_max,
            emergency_keys_max,
        } = settings;
        Self {
            policies,
            region,
            store,
            key_secret,
            emergency: Emergency::new(Elapsed::default(), nodes_max, emergency_keys_max),
            pressure: None,
            waits: Waits::default(),
        }
    }

    /// Counts time by `elapsed`, which never goes back, while a store does not answer.
    #[must_use]
    pub fn with_clock(mut self, elapsed: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        self.emergency = self.emergency.with_clock(Elapsed::new(elapsed));
        self
    }

    /// Tells `pressure` of keys that could use more than their region's share.
    #[must_use]
    pub fn with_pressure(mut self, pressure: Arc<dyn Pressure>) -> Self {
        self.pressure = Some(pressure);
        self
    }

    /// Lets requests wait for what other regions lend, where a policy says so (`borrow_wait`).
    #[must_use]
    pub fn with_timer(mut self, timer: Arc<dyn Timer>) -> Self {
        self.waits = Waits::new(timer);
        self
    }

    /// The requests that wait for what other regions lend.
    pub const fn waits(&self) -> &Waits {
        &self.waits
    }

    /// The policies.
    pub const fn policies(&self) -> &Arc<PolicySet> {
        &self.policies
    }

    /// The store.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// The region.
    pub const fn region(&self) -> RegionId {
        self.region
    }

    /// What a request is limited by under a policy; `None` if it lacks an attribute of the key.
    pub fn key(&self, policy: &Policy, attributes: Attributes<'_>) -> Option<Key> {
        let mut hasher = SipHasher24::new_with_key(&self.key_secret);
        write_text(&mut hasher, policy.domain());
        write_number(&mut hasher, u64::try_from(policy.key().len()).ok()?);
        for name in policy.key() {
            write_text(&mut hasher, name);
            write_text(&mut hasher, attributes.value(name)?);
        }
        Some(Key {
            client: Client(hasher.finish128().as_u128()),
            policy: policy.id(),
        })
    }

    /// Decides on one request: every policy that applies to any of its subjects must pass, else
    /// nothing is consumed. Never waits for another region.
    ///
    /// If the future is dropped before it is done, what a shard has taken meanwhile is lost to the
    /// client; nothing is ever admitted twice.
    pub async fn check(&self, domain: &str, subjects: &[Subject<'_>]) -> Answer {
        let request = Request::new(self, domain, subjects);
        let decided = self.decide(&request).await;
        request.answer(&decided)
    }

    /// The same, but a denial may wait for what other regions lend if every policy that denies says
    /// so: at most as long as they say, and no longer than `most`.
    pub async fn check_within(
        &self,
        domain: &str,
        subjects: &[Subject<'_>],
        most: Duration,
    ) -> Answer {
        let request = Request::new(self, domain, subjects);
        let decided = self.decide(&request).await;
        if request.pause(&decided).is_some()
            && let Some(place) = self.waits.enter()
        {
            // On the heap, so that the decisions that do not wait stay small.
            return Box::pin(self.wait(request, decided, (place, most))).await;
        }
        request.answer(&decided)
    }

    /// Gives back what earlier requests of these subjects consumed, up to each bucket's capacity.
    /// Never denied; the answer shows what remains.
    pub async fn refund(&self, domain: &str, subjects: &[Subject<'_>]) -> Answer {
        let mut request = Request::new(self, domain, subjects);
        request.refused = false;
        let groups = request.groups(&self.store);
        self.give_back(groups.iter().collect()).await;
        let request = request.looking();
        let decided = self.decide(&request).await;
        let mut answer = request.answer(&decided);
        answer.allowed = true;
        for verdict in answer.subjects.iter_mut().flatten() {
            verdict.decision.allowed = true;
            verdict.decision.retry_after = None;
        }
        answer
    }

    async fn decide(&self, request: &Request<'_>) -> Decided {
        if request.refused {
            return Decided::default();
        }
        let groups = request.groups(&self.store);
        let answers = self.ask(&groups).await;
        let mut asked = groups.iter().zip(&answers);
        let mut passed = asked.all(|(group, answered)| match answered {
            Ok(taken) => all_afford(taken),
            Err(_) => request.open(group),
        });
        let stands = self.stand_in(request, &groups, &answers, passed);
        passed &= stands.iter().flatten().all(|stand| stand.affords);
        if !passed {
            let asked = groups.iter().zip(&answers);
            let paid = asked.filter(|(_, answered)| answered.as_ref().is_ok_and(all_afford));
            self.give_back(paid.map(|(group, _)| group).collect()).await;
        }
        let mut decided = Decided {
            passed,
            verdicts: vec![None; request.asks.len()],
            borrows: passed || self.policies.regions().len() > 1,
        };
        for (group, answered) in groups.iter().zip(answers) {
            match answered {
                Ok(taken) => self.judge(request, (group, taken), &mut decided),
                Err(error) => {
                    for place in &group.places {
                        let stand = stands.get(*place).copied().flatten();
                        let verdict = request.asks[*place].without_store(error, stand);
                        decided.verdicts[*place] = Some(verdict);
                    }
                }
            }
        }
        decided
    }

    /// Asks every shard at the same time.
    async fn ask(&self, groups: &[Group]) -> Vec<Result<Taken, StoreError>> {
        let mut answers = match groups {
            [only] => vec![self.store.take(only.shard, &only.takes).await],
            _ => {
                let asked = groups
                    .iter()
                    .map(|group| self.store.take(group.shard, &group.takes));
                join::all(asked.collect()).await
            }
        };
        for (group, answered) in groups.iter().zip(&mut answers) {
            if let Ok(taken) = answered
                && taken.keys.len() != group.takes.len()
            {
                *answered = Err(StoreError::Nonsense);
            }
            match answered {
                Ok(_) => self.emergency.answered(group.shard),
                Err(_) => self.emergency.failed(group.shard),
            }
        }
        answers
    }

    /// Gives back to every shard at the same time. What a shard does not take back is lost to the
    /// client until it is refilled.
    async fn give_back(&self, groups: Vec<&Group>) {
        let given = groups
            .iter()
            .map(|group| self.store.give_back(group.shard, &group.takes));
        let given = join::all(given.collect()).await;
        for (group, given) in groups.iter().zip(given) {
            match given {
                Ok(_) => self.emergency.answered(group.shard),
                Err(_) => self.emergency.failed(group.shard),
            }
        }
    }

    /// Lets the emergency limiter decide on the keys of failed shards whose policies want that; by
    /// place, or nothing if every shard has answered.
    fn stand_in(
        &self,
        request: &Request<'_>,
        groups: &[Group],
        answers: &[Result<Taken, StoreError>],
        passed: bool,
    ) -> Vec<Option<Stand>> {
        if answers.iter().all(Result::is_ok) {
            return Vec::new();
        }
        let mut stands = vec![None; request.asks.len()];
        let failed = groups
            .iter()
            .zip(answers)
            .filter(|(_, answered)| answered.is_err());
        let local: Vec<(usize, (ShardId, Take))> = failed
            .flat_map(|(group, _)| group.places.iter().map(|place| (*place, group.shard)))
            .map(|(place, shard)| (place, (shard, request.asks[place].take)))
            .filter(|(place, _)| request.asks[*place].on_failure() == OnStoreFailure::Local)
            .collect();
        if !local.is_empty() {
            let asked: Vec<(ShardId, Take)> = local.iter().map(|(_, asked)| *asked).collect();
            let decided = self.emergency.take(&asked, passed);
            for ((place, _), stand) in local.iter().zip(decided) {
                stands[*place] = Some(stand);
            }
        }
        stands
    }

    /// What a shard's answer means for each of its keys.
    fn judge(&self, request: &Request<'_>, (group, taken): (&Group, Taken), decided: &mut Decided) {
        let passed = decided.passed;
        let given_back = !passed && all_afford(&taken);
        for (place, answered) in group.places.iter().zip(taken.keys) {
            let ask = &request.asks[*place];
            let Take {
                key, cost, base, ..
            } = &ask.take;
            let pieces = base.pieces(taken.memory);
            let mut bucket = answered.bucket;
            let capacity = bucket.capacity(&pieces);
            let limit = ask.split.limit();
            if given_back {
                let level = bucket.level.plus(limit.level(*cost));
                bucket.level = level.min(capacity.max(bucket.level));
            }
            // Of a request that others denied nothing is wanted.
            let counts = ask.policy.scope() == Scope::Global && cost.0 > 0;
            if counts && (passed || !answered.affords) {
                let exceeds = !answered.affords || limit.level(*cost) > capacity;
                let low = bucket.level < Level(capacity.0 / 2);
                self.press(*key, (exceeds, low), *cost);
            }
            decided.borrows &= answered.affords || bucket.share(&pieces) < limit.total();
            let ground = Ground {
                limit,
                overrun: ask.policy.overrun(),
                base,
                pieces: &pieces,
                bucket: &bucket,
                stamp: taken.stamp,
            };
            decided.verdicts[*place] = Some(Verdict {
                policy: ask.policy.index(),
                decision: ground.decision(*cost, answered.affords),
                stamp: Some(taken.stamp),
                fallback: None,
            });
        }
    }

    fn press(&self, key: Key, (exceeds, low): (bool, bool), cost: Tokens) {
        if let Some(pressure) = &self.pressure
            && (exceeds || low)
            && self.policies.regions().len() > 1
        {
            pressure.offer(key, if exceeds { cost } else { Tokens(0) });
        }
    }
}

/// Whether every key of a shard could pay, and so has paid.
fn all_afford(taken: &Taken) -> bool {
    taken.keys.iter().all(|key| key.affords)
}
