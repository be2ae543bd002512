//! What nodes ask of their store for the control plane, and its answers.

use std::time::Duration;

use gossip::replica::Input;
use region::store::{Store as _, Swap, Swapped};
use region::units::Key;

use super::{Event, World};
use crate::sim::store::{Reach, SimStore, at_once};

/// A call to the store.
#[derive(Debug)]
pub(super) enum Call {
    Load(Key),
    Swap {
        swap: Box<Swap>,
        /// Whether it lends something new, which a replica must have before it is said.
        lends: bool,
    },
}

/// How long a call takes to the store, or its answer back.
const CALL_MOST: Duration = Duration::from_micros(400);

/// How long a node waits for a store that does not answer.
const CALL_TIMEOUT: Duration = Duration::from_millis(50);

/// How long a node waits for a replica to have what it wants to say, as in production.
const REPLICATED_WITHIN: Duration = Duration::from_millis(50);

impl World<'_> {
    /// A node calls the store.
    pub(super) fn send_call(&mut self, node: usize, call: Call) {
        let run = self.nodes[node].run;
        let took = self.network.span(Duration::from_micros(30), CALL_MOST);
        let at = self.now.plus(took);
        self.post(at, Event::Call { node, run, call });
    }

    /// A call reaches the store, whether or not its node is still there; the answer goes back.
    pub(super) fn call(&mut self, node: usize, run: u64, call: Call) {
        let region = self.nodes[node].region;
        self.show(region);
        let key = match &call {
            Call::Load(key) => *key,
            Call::Swap { swap, .. } => swap.key,
        };
        let lends = matches!(call, Call::Swap { lends: true, .. });
        let store = self.regions[region].shards.store(node);
        let reach = store.reach(key.client);
        let up = reach == Reach::Answers;
        // A shard that does not answer may have done what was asked: only the answer is missing.
        let runs = up || reach == Reach::Silent && self.network.one_in(2);
        let swaps = matches!(call, Call::Swap { .. }) && runs;
        let answered = runs.then(|| self.ask(region, &store, call));
        let (input, took) = match answered {
            Some(input) if up => {
                let took = self.network.span(Duration::from_micros(30), CALL_MOST);
                (input, took)
            }
            _ => (Input::StoreFailed { key }, CALL_TIMEOUT),
        };
        let (input, waited) = match input {
            Input::Swapped { key } if lends => self.replicated(region, key),
            input => (input, Duration::ZERO),
        };
        let elapsed = self.elapsed();
        self.trace
            .event(elapsed, format_args!("n{node} is answered: {input:?}"));
        let at = self.now.plus(took + waited);
        self.post(at, Event::Answer { node, run, input });
        if swaps && let Some(rank) = self.ranks.get(&key).copied() {
            self.look(rank);
        }
    }

    fn ask(&self, region: usize, store: &SimStore, call: Call) -> Input {
        let region = &self.regions[region];
        match call {
            Call::Load(key) => {
                let policy = self.policies.by_id(key.policy);
                let base = policy.and_then(|policy| policy.base(region.id, key.client));
                let store = store.inside(key.client);
                let loaded = at_once(store.load(key, &base.expect("its policy is a bucket")));
                match loaded {
                    Ok(loaded) => Input::Loaded {
                        key,
                        loaded: Box::new(loaded),
                    },
                    Err(_) => Input::StoreFailed { key },
                }
            }
            Call::Swap { swap, .. } => {
                let key = swap.key;
                match at_once(store.inside(key.client).swap(&swap)) {
                    Ok(Swapped::Done { .. }) => Input::Swapped { key },
                    Ok(Swapped::Conflict { current }) => Input::Conflict { key, current },
                    Err(_) => Input::StoreFailed { key },
                }
            }
        }
    }

    /// Waits for the replica of a key's shard, if there is one.
    fn replicated(&self, region: usize, key: Key) -> (Input, Duration) {
        let replica = self.scenario.regions[region].replica;
        match replica.map(|replica| replica.lag) {
            None => (Input::Swapped { key }, Duration::ZERO),
            Some(lag) if lag <= REPLICATED_WITHIN => (Input::Swapped { key }, lag),
            Some(_) => (Input::Unreplicated { key }, REPLICATED_WITHIN),
        }
    }
}
