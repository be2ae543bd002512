//! The work in flight for the keys that this node acts for, and nothing that must survive it.
//!
//! What must survive is the ledger in the store. This machine decides when to look at a key: it
//! loads, works out one [`Transition`], swaps, and only then lets the row go. A node that dies in
//! between takes nothing with it; two nodes that act for one key meet at the swap.

mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use region::ledger::transition::{Ignored, Transition};
use region::ledger::{Row, Terms, schedule};
use region::plan::{Own, plan};
use region::policy::{Policy, PolicySet, Scope};
use region::store::{Loaded, Swap};
use region::units::{Key, RegionId, Timestamp, Tokens};

use self::work::{Phase, Work};

/// How often a key is looked at while something happens, and so the most rows per key and time.
pub const TICK: Duration = Duration::from_millis(20);

/// How often a key is looked at while its shares are settled.
const CALM_TICK: Duration = Duration::from_millis(100);

/// How long a key without loans is watched after its last sign of pressure.
const WATCHED_FOR: Duration = Duration::from_secs(3);

/// How long a key whose shard fails is left alone.
const PAUSE: Duration = Duration::from_millis(100);

/// How often a swap that lost against another node is worked out anew before the next tick.
const TRIES_MAX: u8 = 3;

/// The most keys in work at once; what comes beyond is refused and counted.
pub const KEYS_MAX: usize = 100_000;

/// What happens to the machine.
#[derive(Clone, Debug)]
pub enum Input {
    /// A row of another region has arrived.
    Row {
        /// The key that it is about.
        key: Key,
        /// The row.
        row: Row,
    },
    /// A decision has found a key under pressure.
    Due {
        /// The key.
        key: Key,
        /// Tokens that a request asked for and that the region's capacity cannot hold.
        wanted: Tokens,
    },
    /// A load has been answered.
    Loaded {
        /// The key.
        key: Key,
        /// What the shard has.
        loaded: Box<Loaded>,
    },
    /// A swap has been done.
    Swapped {
        /// The key.
        key: Key,
    },
    /// A swap has been done that lends something new (see [`Replica::lends_anew`]), but no replica
    /// of the shard has it.
    Unreplicated {
        /// The key.
        key: Key,
    },
    /// A swap has met another one.
    Conflict {
        /// The key.
        key: Key,
        /// What the shard has now.
        current: Box<Loaded>,
    },
    /// The shard has not answered a load or a swap; it may have run.
    StoreFailed {
        /// The key.
        key: Key,
    },
    /// A region can be reached that could not be reached before.
    RegionUp,
    /// The deadline has passed.
    Timeout,
}

/// What the machine wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Load a key.
    Load {
        /// The key.
        key: Key,
    },
    /// Swap a key's ledger.
    Swap(Box<Swap>),
    /// Send a row to every other region.
    Say {
        /// The key.
        key: Key,
        /// The row.
        row: Row,
    },
    /// A row was not taken over.
    Ignored {
        /// The region that says it.
        from: RegionId,
        /// Why.
        reason: Ignored,
    },
}

/// The machine.
#[derive(Debug)]
pub struct Replica {
    own: RegionId,
    policies: Arc<PolicySet>,
    works: BTreeMap<Key, Work>,
    deadlines: BTreeSet<(Timestamp, Key)>,
    refused: u64,
}

impl Replica {
    /// A machine without any work.
    #[must_use]
    pub const fn new(own: RegionId, policies: Arc<PolicySet>) -> Self {
        Self {
            own,
            policies,
            works: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            refused: 0,
        }
    }

    /// The instant at which [`Input::Timeout`] is due.
    #[must_use]
    pub fn deadline(&self) -> Timestamp {
        self.deadlines
            .first()
            .map_or(Timestamp::NEVER, |(at, _)| *at)
    }

    /// The number of keys in work.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.works.len()
    }

    /// Dues and rows that were refused because too many keys are in work.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether the swap that is on its way for a key lends something that has not been said yet.
    /// Such a row must not leave before a replica of the shard has the swap, where there is one: a
    /// shard that has forgotten what it lends uses it itself (PROTOCOL 3 rule 7).
    #[must_use]
    pub fn lends_anew(&self, key: Key) -> bool {
        self.works.get(&key).is_some_and(Work::lends_anew)
    }

    /// Takes one input at `now`, an instant on the node's own clock.
    pub fn step(&mut self, now: Timestamp, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Row { key, row } => self.hear(now, key, row, out),
            Input::Due { key, wanted } => {
                if let Some(work) = self.work(key, now) {
                    work.press(now, wanted);
                    self.arm(now, key, out);
                }
            }
            Input::Loaded { key, loaded } => {
                let phase = self.works.get_mut(&key).map(|work| work.phase.take());
                let Some(Phase::Loading { rows }) = phase else {
                    return;
                };
                self.decide(now, key, (&loaded, rows), out);
            }
            Input::Conflict { key, current } => self.retry(now, key, &current, out),
            Input::Swapped { key } => self.swapped(now, key, true, out),
            Input::Unreplicated { key } => self.swapped(now, key, false, out),
            Input::StoreFailed { key } => {
                if let Some(work) = self.works.get_mut(&key) {
                    work.put_back();
                    let at = now.plus(PAUSE);
                    self.rest(key, at);
                }
            }
            Input::RegionUp => {
                let keys: Vec<Key> = self.works.keys().copied().collect();
                for key in keys {
                    if let Some(work) = self.works.get_mut(&key) {
                        work.repeat = true;
                        self.arm(now, key, out);
                    }
                }
            }
            Input::Timeout => {
                while let Some((at, key)) = self.deadlines.first().copied() {
                    if at > now {
                        break;
                    }
                    self.deadlines.remove(&(at, key));
                    self.load(now, key, out);
                }
            }
        }
    }

    fn hear(&mut self, now: Timestamp, key: Key, row: Row, out: &mut Vec<Output>) {
        let from = row.region;
        if let Some(work) = self.work(key, now) {
            if work.hear(now, row) {
                self.arm(now, key, out);
            } else {
                let reason = Ignored::Old;
                out.push(Output::Ignored { from, reason });
            }
        } else {
            let reason = Ignored::OtherTerms;
            out.push(Output::Ignored { from, reason });
        }
    }

    /// The work for a key of a global policy; begun if there is none and there is room.
    fn work(&mut self, key: Key, now: Timestamp) -> Option<&mut Work> {
        let policy = self.policies.by_id(key.policy)?;
        if policy.scope() != Scope::Global || policy.split().is_none() {
            return None;
        }
        if !self.works.contains_key(&key) && self.works.len() >= KEYS_MAX {
            self.refused = self.refused.saturating_add(1);
            return None;
        }
        Some(self.works.entry(key).or_insert_with(|| Work::new(now)))
    }

    /// Has a key looked at as soon as the tick allows.
    fn arm(&mut self, now: Timestamp, key: Key, out: &mut Vec<Output>) {
        let Some(work) = self.works.get(&key) else {
            return;
        };
        if !matches!(work.phase, Phase::Idle) {
            return;
        }
        let at = work.loaded_at.map_or(now, |loaded| loaded.plus(TICK));
        if at <= now {
            self.deadlines.remove(&(work.next, key));
            self.load(now, key, out);
        } else if at < work.next {
            self.rest(key, at);
        }
    }

    /// Has a key looked at no earlier than `at`.
    fn rest(&mut self, key: Key, at: Timestamp) {
        let Some(work) = self.works.get_mut(&key) else {
            return;
        };
        self.deadlines.remove(&(work.next, key));
        work.next = at;
        self.deadlines.insert((at, key));
    }

    fn load(&mut self, now: Timestamp, key: Key, out: &mut Vec<Output>) {
        let Some(work) = self.works.get_mut(&key) else {
            return;
        };
        if !matches!(work.phase, Phase::Idle) {
            return;
        }
        // Rows that arrive from here on wait for the next load: what a transition hears must have
        // been said before its stamp.
        let rows = std::mem::take(&mut work.heard).into_values().collect();
        work.phase = Phase::Loading { rows };
        work.loaded_at = Some(now);
        work.tries = 0;
        out.push(Output::Load { key });
    }

    fn decide(
        &mut self,
        now: Timestamp,
        key: Key,
        found: (&Loaded, Vec<Row>),
        out: &mut Vec<Output>,
    ) {
        let (loaded, rows) = found;
        let policies = Arc::clone(&self.policies);
        let Some((terms, base)) = policies.by_id(key.policy).and_then(|policy| {
            let base = policy.base(self.own, key.client)?;
            Some((terms(policy, self.own, key)?, base))
        }) else {
            self.works.remove(&key);
            return;
        };
        let Some(work) = self.works.get_mut(&key) else {
            return;
        };
        let limit = terms.split.limit();
        work.measure(limit, &loaded.bucket);
        let mut transition = Transition::new(terms, base, loaded);
        for row in &rows {
            if let Err(ignored) = transition.hear(row) {
                let from = row.region;
                out.push(Output::Ignored {
                    from,
                    reason: ignored,
                });
            }
        }
        let demand = work.demand(now, terms.split);
        let own = Own {
            demand,
            starving: work.starves(now, demand, &transition),
        };
        if work.ready() {
            plan(&mut transition, &terms, own);
        }
        let due = work.is_due(now, &transition, own, limit);
        if !due && !transition.changed() {
            self.settle(now, key, false);
            return;
        }
        let lively = !rows.is_empty();
        let keep = schedule::keep(transition.ledger(), &base, loaded.stamp.clock);
        let outcome = transition.finish(demand, &loaded.bucket);
        work.phase = Phase::Swapping {
            rows,
            row: outcome.row,
            due,
        };
        if lively {
            work.stir(now);
        }
        out.push(Output::Swap(Box::new(Swap {
            key,
            base,
            expected: outcome.expected,
            ledger: outcome.ledger,
            change: outcome.change,
            pieces: outcome.pieces,
            keep,
        })));
    }

    fn retry(&mut self, now: Timestamp, key: Key, current: &Loaded, out: &mut Vec<Output>) {
        let Some(work) = self.works.get_mut(&key) else {
            return;
        };
        let Phase::Swapping { rows, .. } = work.phase.take() else {
            return;
        };
        work.tries += 1;
        if work.tries < TRIES_MAX {
            self.decide(now, key, (current, rows), out);
        } else {
            for row in rows {
                work.hear(now, row);
            }
            self.rest(key, now.plus(TICK));
        }
    }

    fn swapped(&mut self, now: Timestamp, key: Key, replicated: bool, out: &mut Vec<Output>) {
        let Some(work) = self.works.get_mut(&key) else {
            return;
        };
        let Phase::Swapping { mut row, due, .. } = work.phase.take() else {
            return;
        };
        work.holds_loans = work::has_loans(&row);
        if !replicated {
            work.hold_back(&mut row);
        }
        if due {
            work.say(now, row.clone());
            out.push(Output::Say { key, row });
        }
        self.settle(now, key, due);
        if !replicated && self.works.contains_key(&key) {
            self.rest(key, now.plus(PAUSE));
        }
    }

    /// Ends a look at a key: it is looked at again soon, later, or not at all.
    fn settle(&mut self, now: Timestamp, key: Key, changed: bool) {
        let Some(work) = self.works.get_mut(&key) else {
            return;
        };
        if changed {
            work.stir(now);
        }
        if work.is_over(now) {
            self.deadlines.remove(&(work.next, key));
            self.works.remove(&key);
            return;
        }
        let soon = !work.heard.is_empty() || now < work.lively_until;
        let at = now.plus(if soon { TICK } else { CALM_TICK });
        self.rest(key, at);
    }
}

fn terms(policy: &Policy, own: RegionId, key: Key) -> Option<Terms<'_>> {
    Some(Terms {
        own,
        client: key.client,
        split: policy.split()?,
        id: policy.terms(),
    })
}
