//! The glue of one node: what its machines want is done, as the service of production does it.

use std::time::Duration;

use gossip::frame::{Due, Frame, Hello, KeyRow, Message};
use gossip::membership;
use gossip::replica::{self, Input};
use gossip::{exchange, identity::Member};
use region::units::{Key, RegionId, Timestamp};

use super::{Call, Event, World, region_id};
use crate::sim::node::{BEAT, GREETING, Process, at_address};

impl World<'_> {
    /// Hands an event to a node, unless the process that it is for is gone; later, if it pauses.
    pub(super) fn for_node(&mut self, node: usize, run: u64, event: Event) {
        let place = &self.nodes[node];
        let Some(process) = place.process.as_deref().filter(|_| place.run == run) else {
            return;
        };
        if place.paused_until > self.now {
            let at = place.paused_until;
            return self.post(at, event);
        }
        match event {
            Event::Wake { .. } => {
                if process.wake > self.now {
                    return;
                }
                self.tick(node);
            }
            Event::Frame { from, bytes, .. } => {
                let from_region = region_id(self.nodes[from].region);
                match self.codec.decode(&bytes) {
                    Ok(frame) => self.receive(node, from, from_region, frame),
                    Err(error) => {
                        self.breaks(format!("a frame of n{from} is refused: {error}"));
                    }
                }
            }
            Event::Answer { input, .. } => self.replica(node, input),
            Event::Request { .. }
            | Event::Call { .. }
            | Event::Fault(_)
            | Event::Save { .. }
            | Event::Promote { .. }
            | Event::Recover { .. }
            | Event::Thaw { .. }
            | Event::Sample => unreachable!("only what is for a node is handed to one"),
        }
        self.rearm(node);
    }

    /// Has a node woken at its next deadline.
    pub(super) fn rearm(&mut self, node: usize) {
        let (now, run) = (self.now, self.nodes[node].run);
        let Some(process) = self.process(node) else {
            return;
        };
        // A deadline that has passed is met at the next microsecond, so that time moves on.
        let deadline = process.deadline().max(now.plus(Duration::from_micros(1)));
        if process.wake <= now || deadline < process.wake {
            process.wake = deadline;
            self.post(deadline, Event::Wake { node, run });
        }
    }

    /// Gives every machine whose deadline has passed its time.
    fn tick(&mut self, node: usize) {
        let now = self.now;
        let due = |process: &Process, deadline: Timestamp| deadline <= process.local(now);
        let Some(process) = self.process(node) else {
            return;
        };
        let membership = due(process, process.membership.deadline());
        let beat = process.next_beat <= now;
        let greet = process.next_greeting <= now;
        if membership {
            self.membership(node, membership::Input::Timeout);
        }
        if self
            .process(node)
            .is_some_and(|process| due(process, process.exchange.deadline()))
        {
            self.exchange(node, exchange::Input::Timeout);
        }
        if self
            .process(node)
            .is_some_and(|process| due(process, process.replica.deadline()))
        {
            self.replica(node, Input::Timeout);
        }
        if beat {
            self.beat(node);
        }
        if greet {
            self.greet(node);
        }
    }

    fn process(&mut self, node: usize) -> Option<&mut Process> {
        self.nodes[node].process.as_deref_mut()
    }

    /// Is heard by every other node, and says whom it hears.
    fn beat(&mut self, node: usize) {
        let now = self.now;
        let Some(process) = self.process(node) else {
            return;
        };
        process.next_beat = now.plus(BEAT);
        let everybody: Vec<_> = process.members.addresses().collect();
        for to in everybody {
            self.send(node, at_address(to), Message::Rows(Vec::new()));
        }
    }

    /// Introduces a node to all that it does not know yet, as connections do in production.
    fn greet(&mut self, node: usize) {
        let (now, all) = (self.now, self.nodes.len());
        let Some(process) = self.process(node) else {
            return;
        };
        process.next_greeting = now.plus(GREETING);
        let known: Vec<usize> = process.members.addresses().map(at_address).collect();
        let member = process.membership.own().clone();
        for to in (0..all).filter(|to| *to != node && !known.contains(to)) {
            let (member, reply) = (member.clone(), false);
            self.send(node, to, Message::Hello(Hello { member, reply }));
        }
    }

    fn receive(&mut self, node: usize, from: usize, from_region: RegionId, frame: Frame) {
        let elapsed = self.elapsed();
        self.trace.event(
            elapsed,
            format_args!("n{node} hears n{from}: {:?}", frame.message),
        );
        let foreign = self.nodes[from].region != self.nodes[node].region;
        if foreign {
            let heard = frame.heard;
            let from = from_region;
            self.exchange(node, exchange::Input::Heard { from, heard });
        }
        match frame.message {
            Message::Hello(Hello { member, reply }) => {
                self.membership(node, membership::Input::Join(member));
                let own = self
                    .process(node)
                    .map(|process| process.membership.own().clone());
                if let Some(member) = own.filter(|_| !reply) {
                    let reply = true;
                    self.send(node, from, Message::Hello(Hello { member, reply }));
                }
            }
            Message::Swim(bytes) => self.membership(node, membership::Input::Packet(bytes)),
            Message::Rows(rows) => {
                for KeyRow { key, row } in rows {
                    let from = from_region;
                    self.exchange(node, exchange::Input::Row { from, key, row });
                }
            }
            Message::Digest(entries) => {
                let from = from_region;
                self.exchange(node, exchange::Input::Digest { from, entries });
            }
            Message::Request(keys) => {
                let from = from_region;
                self.exchange(node, exchange::Input::Request { from, keys });
            }
            Message::Dues(dues) => {
                for Due { key, wanted } in dues {
                    self.replica(node, Input::Due { key, wanted });
                }
            }
        }
    }

    /// A key is due: this node looks after it, or tells the one that does.
    pub(super) fn due(&mut self, node: usize, due: Due) {
        let own = region_id(self.nodes[node].region);
        let Some(process) = self.process(node) else {
            return;
        };
        if let Some(to) = process.members.acting(own, due.key) {
            self.send(node, at_address(to), Message::Dues(vec![due]));
        } else {
            let Due { key, wanted } = due;
            self.replica(node, Input::Due { key, wanted });
        }
    }

    fn membership(&mut self, node: usize, input: membership::Input) {
        use membership::Output;
        let (now, mut out) = (self.now, Vec::new());
        let Some(process) = self.process(node) else {
            return;
        };
        let local = process.local(now);
        process.membership.step(local, input, &mut out);
        for output in out {
            match output {
                Output::Send { to, bytes } => {
                    self.send(node, at_address(to), Message::Swim(bytes));
                }
                Output::Up(member) => self.member_up(node, None, member),
                Output::Renamed { from, to } => self.member_up(node, Some(&from), to),
                Output::Down(member) => {
                    self.says(node, "misses", &member);
                    if let Some(process) = self.process(node) {
                        process.members.down(&member);
                    }
                }
                Output::Rejoined(own) => {
                    if let Some(process) = self.process(node) {
                        process.members.rename_own(own);
                    }
                }
                Output::Duplicate(_) | Output::Refused(_) => {}
            }
        }
    }

    fn member_up(&mut self, node: usize, before: Option<&Member>, member: Member) {
        self.says(node, "knows", &member);
        if let Some(process) = self.process(node) {
            if let Some(before) = before {
                process.members.down(before);
            }
            process.members.up(member);
        }
        self.replica(node, Input::RegionUp);
    }

    fn says(&mut self, node: usize, does: &str, member: &Member) {
        let elapsed = self.elapsed();
        self.trace
            .note(elapsed, format_args!("n{node} {does} {}", member.name()));
    }

    fn exchange(&mut self, node: usize, input: exchange::Input) {
        use exchange::Output;
        let (now, mut out) = (self.now, Vec::new());
        let Some(process) = self.process(node) else {
            return;
        };
        let local = process.local(now);
        process.exchange.step(local, input, &mut out);
        for output in out {
            match output {
                Output::Row { key, row } => self.replica(node, Input::Row { key, row }),
                Output::Send { to, rows } => {
                    let rows = rows.into_iter().map(|(key, row)| KeyRow { key, row });
                    let rows = rows.collect();
                    self.send_to_acting((node, to), rows, |row: &KeyRow| row.key, Message::Rows);
                }
                Output::Digest { to, entries } => {
                    self.send_to_acting((node, to), entries, |(key, _)| *key, Message::Digest);
                }
                Output::Request { to, keys } => {
                    self.send_to_acting((node, to), keys, |key| *key, Message::Request);
                }
                Output::RegionUp(region) => {
                    let elapsed = self.elapsed();
                    self.trace
                        .note(elapsed, format_args!("n{node} hears r{region} again"));
                    self.replica(node, Input::RegionUp);
                }
            }
        }
    }

    fn replica(&mut self, node: usize, input: Input) {
        use replica::Output;
        let (now, mut out) = (self.now, Vec::new());
        let Some(process) = self.process(node) else {
            return;
        };
        let local = process.local(now);
        process.replica.step(local, input, &mut out);
        for output in out {
            let call = match output {
                Output::Load { key } => Call::Load(key),
                Output::Swap(swap) => {
                    let process = self.process(node);
                    let lends = process.is_some_and(|own| own.replica.lends_anew(swap.key));
                    Call::Swap { swap, lends }
                }
                Output::Say { key, row } => {
                    if let Some(rank) = self.ranks.get(&key) {
                        let region = self.nodes[node].region;
                        self.watch.says((region, *rank), row.clone());
                    }
                    self.exchange(node, exchange::Input::Say { key, row });
                    continue;
                }
                Output::Ignored { reason, .. } => {
                    let elapsed = self.elapsed();
                    self.trace
                        .event(elapsed, format_args!("n{node} ignores a row: {reason:?}"));
                    continue;
                }
            };
            self.send_call(node, call);
        }
    }

    /// Sends items to a region, each to the node that acts for its key.
    fn send_to_acting<T>(
        &mut self,
        (node, region): (usize, RegionId),
        items: Vec<T>,
        key: impl Fn(&T) -> Key,
        wrap: impl Fn(Vec<T>) -> Message,
    ) {
        let Some(process) = self.process(node) else {
            return;
        };
        for (to, items) in process.members.deal(region, items, key) {
            self.send(node, at_address(to), wrap(items));
        }
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        let now = self.now;
        let Some(process) = self.process(from) else {
            return;
        };
        let local = process.local(now);
        let heard: Vec<RegionId> = process.exchange.heard(local).collect();
        if matches!(&message, Message::Rows(rows) if rows.is_empty()) {
            return self.transmit(from, to, &Frame { heard, message });
        }
        for frame in self.codec.split(&heard, message) {
            self.transmit(from, to, &frame);
        }
    }
}
