//! One node: the machines of production, and what they share with its decisions.

use core::net::SocketAddr;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gossip::exchange::Exchange;
use gossip::frame::Due;
use gossip::identity::Member;
use gossip::members::Members;
use gossip::membership::Membership;
use gossip::replica::{Replica, TICK};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use region::limiter::{Limiter, Pressure};
use region::units::{Key, RegionId, Timestamp, Tokens, micros};

use super::store::SimStore;

/// How often every other node is told who is heard, as in production.
pub(super) const BEAT: Duration = Duration::from_millis(500);

/// How often nodes that are not members yet are greeted.
pub(super) const GREETING: Duration = Duration::from_secs(1);

/// A place where a node runs, or does not.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) region: usize,
    pub(super) process: Option<Box<Process>>,
    /// Grows with every start, so that nothing reaches a process that was meant for another.
    pub(super) run: u64,
    pub(super) paused_until: Timestamp,
}

/// A running node.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) limiter: Limiter<SimStore>,
    pub(super) dues: Arc<Dues>,
    pub(super) membership: Membership,
    pub(super) members: Members,
    pub(super) exchange: Exchange,
    pub(super) replica: Replica,
    pub(super) start: Timestamp,
    /// When it is woken next, in true time.
    pub(super) wake: Timestamp,
    pub(super) next_beat: Timestamp,
    pub(super) next_greeting: Timestamp,
}

/// Where decisions leave the keys that are under pressure: each at most once a tick.
#[derive(Debug, Default)]
pub(super) struct Dues(Mutex<Said>);

#[derive(Debug, Default)]
struct Said {
    tick: u64,
    said: BTreeSet<(Key, Tokens)>,
    waiting: Vec<Due>,
}

impl Pressure for Dues {
    fn offer(&self, key: Key, wanted: Tokens) {
        let mut dues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if dues.said.insert((key, wanted)) {
            dues.waiting.push(Due { key, wanted });
        }
    }
}

impl Dues {
    /// Begins anew in every tick of the node's own clock.
    pub(super) fn roll(&self, now: Timestamp) {
        let mut dues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let tick = now.0 / micros(TICK);
        if dues.tick != tick {
            dues.tick = tick;
            dues.said.clear();
        }
    }

    /// What has become due.
    pub(super) fn take(&self) -> Vec<Due> {
        let mut dues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut dues.waiting)
    }
}

impl Process {
    pub(super) fn new(
        own: Member,
        limiter: Limiter<SimStore>,
        (now, seed): (Timestamp, u64),
    ) -> Self {
        let policies = &Arc::clone(limiter.policies());
        let region = policies.region(own.region()).unwrap_or(RegionId(0));
        let regions = u16::try_from(policies.regions().len()).unwrap_or(u16::MAX);
        let dues = Arc::new(Dues::default());
        let (first, rng) = (Timestamp(1), StdRng::seed_from_u64(seed));
        let pressure = Arc::clone(&dues) as Arc<dyn Pressure>;
        Self {
            limiter: limiter.with_pressure(pressure),
            dues,
            membership: Membership::new(own.clone(), first, rng),
            members: Members::new(own, policies),
            exchange: Exchange::new(region, regions, first),
            replica: Replica::new(region, Arc::clone(policies)),
            start: now,
            wake: Timestamp::NEVER,
            next_beat: now,
            next_greeting: now,
        }
    }

    /// The node's own clock, which begins at 1.
    pub(super) fn local(&self, now: Timestamp) -> Timestamp {
        Timestamp(1).plus(now.since(self.start))
    }

    /// When it wants to be woken, in true time.
    pub(super) fn deadline(&self) -> Timestamp {
        let machines = [
            self.membership.deadline(),
            self.exchange.deadline(),
            self.replica.deadline(),
        ];
        let machines = machines.into_iter().min().unwrap_or(Timestamp::NEVER);
        let machines = self.start.plus(machines.since(Timestamp(1)));
        machines.min(self.next_beat).min(self.next_greeting)
    }
}

/// The address of a node, and whose it is.
pub(super) fn address(node: usize) -> SocketAddr {
    let port = u16::try_from(node).unwrap_or(u16::MAX - 1_000) + 1_000;
    SocketAddr::from(([10, 0, 0, 1], port))
}

pub(super) fn at_address(address: SocketAddr) -> usize {
    usize::from(address.port().saturating_sub(1_000))
}
