//! The task that drives the machines of one node: it alone owns membership, exchange and replica,
//! gives them time, packets and the store's answers, and does what they want done.

mod state;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use region::ledger::transition::Ignored;
use region::limiter::Limiter;
use region::store::{Store, Swap, Swapped};
use region::units::{Key, RegionId, Timestamp, micros};
use tokio::sync::{Mutex, mpsc};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

pub use self::state::{Count, ServiceCounters, Status};
use crate::dues::DueReceiver;
use crate::exchange::{self, Exchange};
use crate::frame::{Due, Frame, KeyRow, Message};
use crate::members::Members;
use crate::membership::{self, Membership};
use crate::replica::{self, Replica};
use crate::transport::{Inbound, Transport};

/// How often every other node is told who is heard, if only to be heard by it.
const BEAT: Duration = Duration::from_millis(500);

/// How often it is said that regions are configured differently.
const WARN_EVERY: Duration = Duration::from_secs(30);

/// The most store calls of the control plane at once.
const CALLS_MAX: usize = 128;

/// How long a store call of the control plane may take. The store has its own, shorter deadline.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// The most frames and dues taken from a queue before timers are looked at again.
const BATCH_MAX: usize = 256;

/// What the service works with.
#[derive(Debug)]
pub struct Parts<S> {
    /// The decision path, whose store holds the ledgers.
    pub limiter: Arc<Limiter<S>>,
    /// The network.
    pub transport: Transport,
    /// What arrives from it.
    pub inbound: mpsc::Receiver<Inbound>,
    /// What decisions say; locked by the service for as long as it runs, so that a service that is
    /// started again after a panic finds it.
    pub dues: Arc<Mutex<DueReceiver>>,
    /// What membership draws from.
    pub rng: StdRng,
    /// What others may look at.
    pub status: Arc<Status>,
}

/// The driver of one node's machines.
#[derive(Debug)]
pub struct Service<S> {
    own: RegionId,
    limiter: Arc<Limiter<S>>,
    transport: Transport,
    status: Arc<Status>,
    start: Instant,
    membership: Membership,
    members: Members,
    exchange: Exchange,
    replica: Replica,
    calls: JoinSet<replica::Input>,
    /// The key of each call on its way: a call that panics cannot say it.
    called_for: HashMap<Id, Key>,
    waiting: VecDeque<Call>,
    next_beat: Timestamp,
    /// When it may next be said that regions are configured differently.
    warn_of_terms: Timestamp,
}

/// A store call that waits for its turn. No more than one per key in work.
#[derive(Debug)]
enum Call {
    Load(Key),
    Swap {
        swap: Box<Swap>,
        /// Whether it lends something new, which a replica must have before it is said.
        lends: bool,
    },
}

impl<S: Store + 'static> Service<S> {
    /// Runs until `shutdown`, then leaves the cluster and closes the transport.
    ///
    /// # Panics
    /// If more regions are configured than a region id can name: the configuration refuses that.
    pub async fn run(parts: Parts<S>, shutdown: CancellationToken) {
        let Parts {
            limiter,
            transport,
            mut inbound,
            dues,
            rng,
            status,
        } = parts;
        let mut dues = dues.lock_owned().await;
        let (own, policies) = (limiter.region(), Arc::clone(limiter.policies()));
        let regions = u16::try_from(policies.regions().len()).expect("at most 64 regions");
        let start = Instant::now();
        let member = transport.own();
        let mut service = Self {
            own,
            start,
            membership: Membership::new(member.clone(), at(start), rng),
            members: Members::new(member, policies.as_ref()),
            exchange: Exchange::new(own, regions, at(start)),
            replica: Replica::new(own, policies),
            limiter,
            transport,
            status,
            calls: JoinSet::new(),
            called_for: HashMap::new(),
            waiting: VecDeque::new(),
            next_beat: Timestamp::default(),
            warn_of_terms: Timestamp::default(),
        };
        loop {
            let deadline = service.deadline();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(done) = service.calls.join_next_with_id() => service.called(done),
                Some(frame) = inbound.recv() => {
                    service.receive(frame);
                    for _ in 1..BATCH_MAX {
                        let Ok(frame) = inbound.try_recv() else { break };
                        service.receive(frame);
                    }
                }
                Some(due) = dues.0.recv() => {
                    service.due(due);
                    for _ in 1..BATCH_MAX {
                        let Ok(due) = dues.0.try_recv() else { break };
                        service.due(due);
                    }
                }
                () = sleep_until(deadline.into()) => {}
            }
            service.tick();
        }
        service.leave().await;
    }

    /// Tells the others, so that they need not find out.
    async fn leave(mut self) {
        let now = self.now();
        let mut out = Vec::new();
        self.membership
            .step(now, membership::Input::Leave, &mut out);
        self.membership_wants(out);
        self.calls.shutdown().await;
        self.transport.shutdown().await;
    }

    fn now(&self) -> Timestamp {
        at(self.start)
    }

    /// When something is due that nobody will announce.
    fn deadline(&self) -> Instant {
        let machines = [
            self.membership.deadline(),
            self.exchange.deadline(),
            self.replica.deadline(),
            self.next_beat,
        ];
        let next = machines.into_iter().min().unwrap_or(self.next_beat);
        self.start + next.since(Timestamp(1))
    }

    /// Gives every machine whose deadline has passed its time.
    fn tick(&mut self) {
        let now = self.now();
        if self.membership.deadline() <= now {
            self.membership(membership::Input::Timeout);
        }
        if self.exchange.deadline() <= now {
            self.exchange(exchange::Input::Timeout);
        }
        if self.replica.deadline() <= now {
            self.replica(replica::Input::Timeout);
        }
        if self.next_beat <= now {
            self.next_beat = now.plus(BEAT);
            self.beat();
        }
    }

    /// Is heard by every other node, and says whom it hears.
    fn beat(&mut self) {
        let everybody: Vec<SocketAddr> = self.members.addresses().collect();
        for to in everybody {
            self.send(to, Message::Rows(Vec::new()));
        }
        self.status
            .note(self.replica.keys(), self.exchange.heard(self.now()).count());
    }

    fn receive(&mut self, inbound: Inbound) {
        let Inbound { from, frame } = inbound;
        let from_region = from.region;
        if from_region != self.own {
            let heard = frame.heard;
            self.exchange(exchange::Input::Heard {
                from: from_region,
                heard,
            });
        }
        match frame.message {
            Message::Hello(hello) => self.membership(membership::Input::Join(hello.member)),
            Message::Swim(bytes) => self.membership(membership::Input::Packet(bytes)),
            Message::Rows(rows) if from_region != self.own => {
                self.status.counters.rows_received.add(rows.len());
                for KeyRow { key, row } in rows {
                    self.exchange(exchange::Input::Row {
                        from: from_region,
                        key,
                        row,
                    });
                }
            }
            Message::Digest(entries) if from_region != self.own => {
                self.exchange(exchange::Input::Digest {
                    from: from_region,
                    entries,
                });
            }
            Message::Request(keys) if from_region != self.own => {
                self.exchange(exchange::Input::Request {
                    from: from_region,
                    keys,
                });
            }
            Message::Dues(dues) if from_region == self.own => {
                for Due { key, wanted } in dues {
                    self.replica(replica::Input::Due { key, wanted });
                }
            }
            Message::Rows(_) | Message::Digest(_) | Message::Request(_) | Message::Dues(_) => {
                self.status.counters.misdirected.add(1);
            }
        }
    }

    /// A key is due: this node looks after it, or tells the one that does.
    fn due(&mut self, due: Due) {
        match self.members.acting(self.own, due.key) {
            Some(to) => self.send(to, Message::Dues(vec![due])),
            None => self.replica(replica::Input::Due {
                key: due.key,
                wanted: due.wanted,
            }),
        }
    }

    fn membership(&mut self, input: membership::Input) {
        let mut out = Vec::new();
        self.membership.step(self.now(), input, &mut out);
        self.membership_wants(out);
    }

    fn membership_wants(&mut self, out: Vec<membership::Output>) {
        use membership::Output;
        for output in out {
            match output {
                Output::Send { to, bytes } => self.send(to, Message::Swim(bytes)),
                Output::Up(member) => {
                    info!(node = member.name(), region = member.region(), "node is up");
                    self.members.up(member);
                    self.replica(replica::Input::RegionUp);
                }
                Output::Down(member) => {
                    info!(
                        node = member.name(),
                        region = member.region(),
                        "node is down"
                    );
                    self.members.down(&member);
                }
                Output::Renamed { from, to } => {
                    let (node, address) = (to.name(), to.address());
                    info!(node, %address, "node is here under a new incarnation");
                    self.members.down(&from);
                    self.members.up(to);
                    self.replica(replica::Input::RegionUp);
                }
                Output::Rejoined(own) => {
                    self.members.rename_own(own.clone());
                    self.transport.introduce(own);
                }
                Output::Duplicate(other) => {
                    let address = other.address();
                    warn!(%address, "duplicate_node_id: another node has our name");
                    self.status.counters.duplicates.add(1);
                }
                Output::Refused(_) => self.status.counters.packets_refused.add(1),
            }
        }
        self.status.set_members(self.members.all());
    }

    fn exchange(&mut self, input: exchange::Input) {
        use exchange::Output;
        let mut out = Vec::new();
        self.exchange.step(self.now(), input, &mut out);
        for output in out {
            match output {
                Output::Row { key, row } => self.replica(replica::Input::Row { key, row }),
                Output::Send { to, rows } => {
                    self.status.counters.rows_sent.add(rows.len());
                    let rows = rows
                        .into_iter()
                        .map(|(key, row)| KeyRow { key, row })
                        .collect();
                    self.send_to_acting(to, rows, |row: &KeyRow| row.key, Message::Rows);
                }
                Output::Digest { to, entries } => {
                    self.send_to_acting(to, entries, |(key, _)| *key, Message::Digest);
                }
                Output::Request { to, keys } => {
                    self.send_to_acting(to, keys, |key| *key, Message::Request);
                }
                Output::RegionUp(region) => {
                    debug!(region = self.name(region), "region is heard again");
                    self.replica(replica::Input::RegionUp);
                }
            }
        }
    }

    fn replica(&mut self, input: replica::Input) {
        use replica::Output;
        let mut out = Vec::new();
        self.replica.step(self.now(), input, &mut out);
        for output in out {
            match output {
                Output::Load { key } => self.call(Call::Load(key)),
                Output::Swap(swap) => {
                    let lends = self.replica.lends_anew(swap.key);
                    self.call(Call::Swap { swap, lends });
                }
                Output::Say { key, row } => self.exchange(exchange::Input::Say { key, row }),
                Output::Ignored { from, reason } => self.ignored(from, reason),
            }
        }
    }

    /// Counts a row that was not taken over. That regions are configured differently somebody must
    /// mend, since each of them then deals the limit in its own way: said again from time to time.
    fn ignored(&mut self, from: RegionId, reason: Ignored) {
        self.status.counters.ignored(reason);
        let now = self.now();
        if reason == Ignored::OtherTerms && now >= self.warn_of_terms {
            self.warn_of_terms = now.plus(WARN_EVERY);
            warn!(
                region = self.name(from),
                "a region has other policies or weights: limits are not kept until they agree"
            );
        }
    }

    /// Begins a store call, or has it wait for its turn.
    fn call(&mut self, call: Call) {
        if self.calls.len() >= CALLS_MAX {
            self.waiting.push_back(call);
            return;
        }
        let (limiter, own) = (Arc::clone(&self.limiter), self.own);
        let key = match &call {
            Call::Load(key) => *key,
            Call::Swap { swap, .. } => swap.key,
        };
        let begun = self.calls.spawn(async move {
            match timeout(CALL_TIMEOUT, ask(&limiter, own, call)).await {
                Ok(answer) => answer,
                Err(_) => replica::Input::StoreFailed { key },
            }
        });
        self.called_for.insert(begun.id(), key);
    }

    fn called(&mut self, done: Result<(Id, replica::Input), JoinError>) {
        let input = match done {
            Ok((id, input)) => {
                self.called_for.remove(&id);
                Some(input)
            }
            Err(error) => {
                warn!(%error, "a store call of the control plane ended in a panic");
                let key = self.called_for.remove(&error.id());
                key.map(|key| replica::Input::StoreFailed { key })
            }
        };
        if let Some(input) = input {
            match input {
                replica::Input::StoreFailed { .. } => self.status.counters.store_failures.add(1),
                replica::Input::Unreplicated { .. } => self.status.counters.held_back.add(1),
                _ => {}
            }
            self.replica(input);
        }
        while self.calls.len() < CALLS_MAX
            && let Some(call) = self.waiting.pop_front()
        {
            self.call(call);
        }
    }

    /// Sends items to a region, each to the node that acts for its key.
    fn send_to_acting<T>(
        &self,
        region: RegionId,
        items: Vec<T>,
        key: impl Fn(&T) -> Key,
        wrap: impl Fn(Vec<T>) -> Message,
    ) {
        for (to, items) in self.members.deal(region, items, key) {
            self.send(to, wrap(items));
        }
    }

    fn send(&self, to: SocketAddr, message: Message) {
        let heard: Vec<RegionId> = self.exchange.heard(self.now()).collect();
        if matches!(&message, Message::Rows(rows) if rows.is_empty()) {
            self.transport.send(to, &Frame { heard, message });
            return;
        }
        for frame in self.transport.codec().split(&heard, message) {
            self.transport.send(to, &frame);
        }
    }

    fn name(&self, region: RegionId) -> &str {
        let regions = self.limiter.policies().regions();
        regions
            .get(usize::from(region.0))
            .map_or("?", |region| region.name.as_str())
    }
}

/// One call to the store, and what the replica is to be told of it.
async fn ask<S: Store>(limiter: &Limiter<S>, own: RegionId, call: Call) -> replica::Input {
    match call {
        Call::Load(key) => {
            let policy = limiter.policies().by_id(key.policy);
            let Some(base) = policy.and_then(|policy| policy.base(own, key.client)) else {
                return replica::Input::StoreFailed { key };
            };
            match limiter.store().load(key, &base).await {
                Ok(loaded) => replica::Input::Loaded {
                    key,
                    loaded: Box::new(loaded),
                },
                Err(_) => replica::Input::StoreFailed { key },
            }
        }
        Call::Swap { swap, lends } => {
            let key = swap.key;
            match limiter.store().swap(&swap).await {
                Ok(Swapped::Done { .. }) if lends => {
                    match limiter.store().replicated(key.client).await {
                        Ok(true) => replica::Input::Swapped { key },
                        Ok(false) | Err(_) => replica::Input::Unreplicated { key },
                    }
                }
                Ok(Swapped::Done { .. }) => replica::Input::Swapped { key },
                Ok(Swapped::Conflict { current }) => replica::Input::Conflict { key, current },
                Err(_) => replica::Input::StoreFailed { key },
            }
        }
    }
}

/// The node's own clock for its machines: it begins at 1, and never goes back.
fn at(start: Instant) -> Timestamp {
    Timestamp(micros(start.elapsed()).saturating_add(1))
}
