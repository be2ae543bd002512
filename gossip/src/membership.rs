//! Which nodes are alive: SWIM by foca, as a machine without a clock or a socket.
//!
//! A hint about whom to talk to, never a ground for a decision: dead is not fenced (PROTOCOL 5).
//! On top of foca this keeps greeting nodes that were met but have not answered, looks for lost
//! ones when nobody is left, and refuses to let two live nodes share a name (case 51).

mod packet;

use core::net::SocketAddr;
use std::collections::BTreeMap;
use std::fmt;
use std::num::{NonZeroU8, NonZeroUsize};
use std::time::Duration;

use foca::{
    AccumulatingRuntime, Foca, NoCustomBroadcast, OwnedNotification, PeriodicParams, State,
};
use rand::rngs::StdRng;
use region::units::Timestamp;

use crate::frame::SWIM_LEN_MAX;
use crate::identity::Member;
use packet::{Known, PacketCodec};

/// How often nodes that have not answered are greeted again.
const GREETING_INTERVAL: Duration = Duration::from_secs(1);

/// How often a node that was met is greeted before it must be met again.
const GREETINGS_MAX: u8 = 30;

/// How many lost nodes are looked for at a time when nobody is left.
const LOST_MAX: usize = 8;

/// The nodes that this one knows, and whether they are alive.
pub struct Membership {
    foca: Foca<Member, PacketCodec, StdRng, NoCustomBroadcast>,
    effects: AccumulatingRuntime<Member>,
    timers: BTreeMap<(Timestamp, u64), foca::Timer<Member>>,
    /// Breaks ties between timers that are due together.
    timers_set: u64,
    /// Nodes that were met and have not become members yet, and the greetings left for each.
    greeted: BTreeMap<Member, u8>,
    greet_at: Timestamp,
    left: bool,
}

/// What happens to the membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A SWIM packet has arrived.
    Packet(Vec<u8>),
    /// Another node was met: its greeting came over an authenticated connection.
    Join(Member),
    /// This node is going to stop.
    Leave,
    /// The deadline has passed.
    Timeout,
}

/// What the membership wants done, or tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a SWIM packet.
    Send {
        /// The advertised address of the node that it is for.
        to: SocketAddr,
        /// The packet.
        bytes: Vec<u8>,
    },
    /// A node is alive that was not known or not alive before.
    Up(Member),
    /// A node is no longer alive, or has left.
    Down(Member),
    /// A node goes on under a new incarnation, perhaps elsewhere, without having been down.
    Renamed {
        /// What was known.
        from: Member,
        /// What replaces it.
        to: Member,
    },
    /// This node took a new incarnation, because the others knew a newer one or had given it up.
    Rejoined(Member),
    /// Another live node has this node's name. This node stays outside until that one is gone.
    Duplicate(Member),
    /// A packet was dropped; nothing has changed.
    Refused(Refusal),
}

/// Why a packet had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is no packet.
    Malformed,
    /// Its sender, or a node that it tells of, has the name of another live node.
    Namesake,
    /// Its sender has been replaced by a newer incarnation.
    Stale,
    /// Foca was called too late or out of turn, and has recovered by itself.
    Late,
}

impl Membership {
    /// A membership of one: this node.
    #[must_use]
    pub fn new(own: Member, now: Timestamp, rng: StdRng) -> Self {
        Self {
            foca: Foca::new(own, config(), rng, PacketCodec),
            effects: AccumulatingRuntime::new(),
            timers: BTreeMap::new(),
            timers_set: 0,
            greeted: BTreeMap::new(),
            greet_at: now.plus(GREETING_INTERVAL),
            left: false,
        }
    }

    /// This node, under its present incarnation.
    #[must_use]
    pub const fn own(&self) -> &Member {
        self.foca.identity()
    }

    /// The other nodes that are alive, in the order of their names.
    #[must_use]
    pub fn members(&self) -> Vec<&Member> {
        let mut members: Vec<_> = self.foca.iter_members().map(foca::Member::id).collect();
        members.sort_unstable();
        members
    }

    /// When the next [`Input::Timeout`] is wanted.
    #[must_use]
    pub fn deadline(&self) -> Timestamp {
        let timer = self.timers.first_key_value();
        let timer = timer.map_or(Timestamp::NEVER, |((at, _), _)| *at);
        if self.left {
            Timestamp::NEVER
        } else {
            timer.min(self.greet_at)
        }
    }

    /// Handles one input and appends what follows from it.
    pub fn step(&mut self, now: Timestamp, input: Input, out: &mut Vec<Output>) {
        if self.left {
            return;
        }
        match input {
            Input::Packet(bytes) => self.packet(&bytes, out),
            Input::Join(member) => self.join(member, out),
            Input::Leave => {
                let result = self.foca.leave_cluster(&mut self.effects);
                note(result, out);
                self.left = true;
            }
            Input::Timeout => self.timeout(now, out),
        }
        self.drain(now, out);
    }

    fn packet(&mut self, bytes: &[u8], out: &mut Vec<Output>) {
        let Ok((header, told)) = packet::read(bytes) else {
            out.push(Output::Refused(Refusal::Malformed));
            return;
        };
        if header.src.name() == self.own().name() {
            self.namesake(&Known::alive(header.src.clone()), &header.src, out);
            return;
        }
        let namesake = told.iter().find(|known| {
            let (own, other) = (self.own(), known.id());
            let newer = other.incarnation() > own.incarnation();
            let elsewhere = known.state() != State::Down && other.address() != own.address();
            other.name() == own.name() && (newer || elsewhere)
        });
        if let Some(known) = namesake {
            self.namesake(known, &header.src, out);
            return;
        }
        if let Some((refusal, known)) = self.conflict(&header.src) {
            // Tell the sender, which can take a newer incarnation or see that it is not alone.
            if let Ok(bytes) = packet::tell(self.own(), &header.src, &known) {
                let to = header.src.address();
                out.push(Output::Send { to, bytes });
            }
            out.push(Output::Refused(refusal));
            return;
        }
        let result = self.foca.handle_data(bytes, &mut self.effects);
        note(result, out);
    }

    /// `teller` says that a node has this node's name: another one, or an earlier run of this one.
    fn namesake(&mut self, known: &Known, teller: &Member, out: &mut Vec<Output>) {
        let other = known.id();
        if known.state() != State::Down && other.address() != self.own().address() {
            out.push(Output::Duplicate(other.clone()));
            out.push(Output::Refused(Refusal::Namesake));
        } else if other.incarnation() > self.own().incarnation() {
            // The clock went back between the runs: overtake what the others remember.
            let renewed = self.own().renewed(other.incarnation().saturating_add(1));
            let result = self
                .foca
                .change_identity(renewed.clone(), &mut self.effects);
            note(result, out);
            out.push(Output::Rejoined(renewed));
            if teller.name() != self.own().name() {
                note(self.foca.announce(teller.clone(), &mut self.effects), out);
            }
        } else {
            out.push(Output::Refused(Refusal::Stale));
        }
    }

    /// What is known of a sender's name that speaks against listening to it.
    fn conflict(&self, sender: &Member) -> Option<(Refusal, Known)> {
        let known = self
            .foca
            .iter_membership_state()
            .find(|known| known.id().name() == sender.name())?;
        let (id, alive) = (known.id(), known.state() != State::Down);
        if alive && id.address() != sender.address() {
            Some((Refusal::Namesake, known.clone()))
        } else if id.incarnation() > sender.incarnation() {
            Some((Refusal::Stale, known.clone()))
        } else {
            None
        }
    }

    fn join(&mut self, member: Member, out: &mut Vec<Output>) {
        let own = self.own();
        if member.name() == own.name() {
            if member.address() != own.address() {
                out.push(Output::Duplicate(member));
            }
            return;
        }
        if self.conflict(&member).is_none() {
            note(self.foca.announce(member.clone(), &mut self.effects), out);
        }
        self.greeted
            .retain(|greeted, _| greeted.name() != member.name());
        self.greeted.insert(member, GREETINGS_MAX);
    }

    fn timeout(&mut self, now: Timestamp, out: &mut Vec<Output>) {
        while let Some(timer) = self.timers.first_entry()
            && timer.key().0 <= now
        {
            let result = self.foca.handle_timer(timer.remove(), &mut self.effects);
            note(result, out);
            self.drain(now, out);
        }
        if self.greet_at <= now {
            self.greet_at = now.plus(GREETING_INTERVAL);
            self.greet(out);
        }
    }

    fn greet(&mut self, out: &mut Vec<Output>) {
        let alive: Vec<_> = self
            .foca
            .iter_members()
            .map(|known| known.id().name())
            .collect();
        self.greeted.retain(|member, left| {
            *left = left.saturating_sub(1);
            *left > 0 && !alive.contains(&member.name())
        });
        let mut targets: Vec<_> = self.greeted.keys().cloned().collect();
        // A greeting would make this node a member for one that may not become one.
        targets.retain(|target| self.conflict(target).is_none());
        if alive.is_empty() {
            // Foca stops altogether when nobody is left; after a partition that must end.
            let lost = self
                .foca
                .iter_membership_state()
                .map(|known| known.id().clone());
            targets.extend(lost.take(LOST_MAX));
        }
        for target in targets {
            note(self.foca.announce(target, &mut self.effects), out);
        }
    }

    /// Hands on what foca wants done.
    fn drain(&mut self, now: Timestamp, out: &mut Vec<Output>) {
        while let Some(notification) = self.effects.to_notify() {
            match notification {
                OwnedNotification::MemberUp(member) => out.push(Output::Up(member)),
                OwnedNotification::MemberDown(member) => out.push(Output::Down(member)),
                OwnedNotification::Rename(from, to) => out.push(Output::Renamed { from, to }),
                OwnedNotification::Rejoin(own) => out.push(Output::Rejoined(own)),
                OwnedNotification::Active
                | OwnedNotification::Idle
                | OwnedNotification::Defunct => {}
            }
        }
        while let Some((to, bytes)) = self.effects.to_send() {
            out.push(Output::Send {
                to: to.address(),
                bytes: bytes.into(),
            });
        }
        while let Some((after, timer)) = self.effects.to_schedule() {
            self.timers_set += 1;
            self.timers
                .insert((now.plus(after), self.timers_set), timer);
        }
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership")
            .field("own", self.own())
            .field("members", &self.members())
            .finish_non_exhaustive()
    }
}

/// Foca's errors leave it usable; each says only that the call had no effect.
fn note(result: Result<(), foca::Error>, out: &mut Vec<Output>) {
    let Err(error) = result else { return };
    out.push(Output::Refused(match error {
        foca::Error::DataFromOurselves => Refusal::Namesake,
        foca::Error::NotConnected | foca::Error::IncompleteProbeCycle => Refusal::Late,
        _ => Refusal::Malformed,
    }));
}

/// Regions are up to a quarter of a second apart; a lost node is noticed within five seconds and
/// a healed partition within three.
fn config() -> foca::Config {
    let periodic = |frequency, members| {
        Some(PeriodicParams {
            frequency,
            num_members: count(members),
        })
    };
    foca::Config {
        probe_period: Duration::from_secs(1),
        probe_rtt: Duration::from_millis(500),
        num_indirect_probes: count(3),
        max_transmissions: NonZeroU8::new(8).expect("eight is not zero"),
        suspect_to_down_after: Duration::from_secs(3),
        remove_down_after: Some(Duration::from_secs(3600)),
        max_packet_size: count(SWIM_LEN_MAX),
        notify_down_members: true,
        periodic_announce: periodic(Duration::from_secs(10), 2),
        periodic_announce_to_down_members: periodic(Duration::from_secs(2), 3),
        periodic_gossip: periodic(Duration::from_millis(500), 3),
    }
}

fn count(number: usize) -> NonZeroUsize {
    NonZeroUsize::new(number).expect("every count here is written as a positive number")
}
