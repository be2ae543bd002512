//! Membership in virtual time: machines, a network that can be cut, and no clock.

#![expect(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use gossip::identity::Member;
use gossip::membership::{Input, Membership, Output};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use region::units::Timestamp;

/// A run of several nodes: packets take 40 to 110 ms, cut links lose them.
struct World {
    now: Timestamp,
    rng: StdRng,
    nodes: BTreeMap<SocketAddr, Membership>,
    packets: BTreeMap<(Timestamp, u64), (SocketAddr, Vec<u8>)>,
    sent: u64,
    cut: BTreeSet<(SocketAddr, SocketAddr)>,
    log: Vec<(SocketAddr, Output)>,
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn member(name: &str, port: u16, incarnation: u64) -> Member {
    let region = name.split('-').next().unwrap();
    Member::try_new(name, region, at(port), incarnation).unwrap()
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            now: Timestamp(1_000_000),
            rng: StdRng::seed_from_u64(seed),
            nodes: BTreeMap::new(),
            packets: BTreeMap::new(),
            sent: 0,
            cut: BTreeSet::new(),
            log: Vec::new(),
        }
    }

    /// Three nodes in three regions that have met.
    fn three(seed: u64) -> Self {
        let mut world = Self::new(seed);
        for (name, port) in [("us-1", 1), ("eu-1", 2), ("ap-1", 3)] {
            world.start(member(name, port, 100));
        }
        world.meet(2, 1);
        world.meet(3, 1);
        world.run(5);
        world
    }

    fn start(&mut self, own: Member) {
        let rng = StdRng::seed_from_u64(self.rng.random());
        self.nodes
            .insert(own.address(), Membership::new(own, self.now, rng));
    }

    /// Two nodes get to know each other's identity, as they do when they connect.
    fn meet(&mut self, one: u16, other: u16) {
        for (node, other) in [(at(one), at(other)), (at(other), at(one))] {
            let own = self.nodes[&other].own().clone();
            self.step(node, Input::Join(own));
        }
    }

    fn step(&mut self, node: SocketAddr, input: Input) {
        let mut out = Vec::new();
        let Some(machine) = self.nodes.get_mut(&node) else {
            return;
        };
        machine.step(self.now, input, &mut out);
        for output in out {
            if let Output::Send { to, bytes } = output {
                let delay = Duration::from_millis(self.rng.random_range(40..110));
                if !self.cut.contains(&(node, to)) {
                    self.sent += 1;
                    self.packets
                        .insert((self.now.plus(delay), self.sent), (to, bytes));
                }
            } else {
                self.log.push((node, output));
            }
        }
    }

    fn run(&mut self, seconds: u64) {
        let end = self.now.plus(Duration::from_secs(seconds));
        loop {
            let packet = self.packets.first_key_value().map(|(key, _)| key.0);
            let timer = self
                .nodes
                .iter()
                .map(|(node, m)| (m.deadline(), *node))
                .min();
            let next_timer = timer.map_or(Timestamp::NEVER, |(at, _)| at);
            let next = packet.unwrap_or(Timestamp::NEVER).min(next_timer);
            if next > end {
                break;
            }
            self.now = self.now.max(next);
            if packet.is_some_and(|packet| packet <= next_timer) {
                let (_, (to, bytes)) = self.packets.pop_first().unwrap();
                self.step(to, Input::Packet(bytes));
            } else if let Some((_, node)) = timer {
                self.step(node, Input::Timeout);
            }
        }
        self.now = end;
    }

    fn part(&mut self, one: u16, other: u16) {
        self.cut
            .extend([(at(one), at(other)), (at(other), at(one))]);
    }

    fn seen_by(&self, port: u16) -> Vec<String> {
        let members = self.nodes[&at(port)].members();
        members
            .iter()
            .map(|member| {
                format!(
                    "{}:{}/{}",
                    member.name(),
                    member.address().port(),
                    member.incarnation()
                )
            })
            .collect()
    }

    fn names_seen_by(&self, port: u16) -> Vec<String> {
        let members = self.nodes[&at(port)].members();
        members
            .iter()
            .map(|member| member.name().to_owned())
            .collect()
    }

    /// Whether anybody was seen coming or going.
    fn changes(&self) -> usize {
        let changes = self.log.iter();
        changes
            .filter(|(_, output)| matches!(output, Output::Up(_) | Output::Down(_)))
            .count()
    }

    fn has_duplicate(&self, port: u16) -> bool {
        self.log
            .iter()
            .any(|(node, output)| *node == at(port) && matches!(output, Output::Duplicate(_)))
    }
}

#[test]
fn membership_converges_when_nodes_meet_through_one() {
    for seed in 0..20 {
        let world = World::three(seed);
        assert_eq!(
            world.seen_by(1),
            ["ap-1:3/100", "eu-1:2/100"],
            "seed {seed}"
        );
        assert_eq!(
            world.seen_by(2),
            ["ap-1:3/100", "us-1:1/100"],
            "seed {seed}"
        );
        assert_eq!(
            world.seen_by(3),
            ["eu-1:2/100", "us-1:1/100"],
            "seed {seed}"
        );
    }
}

#[test]
fn membership_replays_a_seed_exactly() {
    let log = |seed| {
        let mut world = World::three(seed);
        world.part(1, 2);
        world.run(10);
        (world.log, world.sent)
    };
    assert_eq!(log(7), log(7));
}

#[test]
fn membership_stays_quiet_when_nothing_happens() {
    let mut world = World::three(1);
    world.log.clear();
    world.run(60);
    assert_eq!(world.log, []);
}

#[test]
fn node_that_stops_is_declared_down() {
    for seed in 0..20 {
        let mut world = World::three(seed);
        world.nodes.remove(&at(3));
        world.run(10);
        assert_eq!(world.names_seen_by(1), ["eu-1"], "seed {seed}");
        assert_eq!(world.names_seen_by(2), ["us-1"], "seed {seed}");
    }
}

#[test]
fn node_that_leaves_is_gone_at_once() {
    let mut world = World::three(3);
    world.step(at(3), Input::Leave);
    world.run(1);
    assert_eq!(world.names_seen_by(1), ["eu-1"]);
    assert_eq!(world.names_seen_by(2), ["us-1"]);
    assert_eq!(world.nodes[&at(3)].deadline(), Timestamp::NEVER);
}

#[test]
fn partitioned_node_rejoins_within_seconds_of_healing() {
    for seed in 0..20 {
        let mut world = World::three(seed);
        world.part(3, 1);
        world.part(3, 2);
        world.run(15);
        assert_eq!(world.names_seen_by(3), [""; 0], "seed {seed}");
        assert_eq!(world.names_seen_by(1), ["eu-1"], "seed {seed}");
        world.cut.clear();
        world.run(6);
        assert_eq!(world.names_seen_by(1), ["ap-1", "eu-1"], "seed {seed}");
        assert_eq!(world.names_seen_by(2), ["ap-1", "us-1"], "seed {seed}");
        assert_eq!(world.names_seen_by(3), ["eu-1", "us-1"], "seed {seed}");
    }
}

#[test]
fn all_nodes_rejoin_when_each_was_alone() {
    for seed in 0..20 {
        let mut world = World::three(seed);
        world.part(1, 2);
        world.part(2, 3);
        world.part(3, 1);
        world.run(20);
        world.cut.clear();
        world.run(8);
        assert_eq!(world.names_seen_by(1), ["ap-1", "eu-1"], "seed {seed}");
        assert_eq!(world.names_seen_by(2), ["ap-1", "us-1"], "seed {seed}");
        assert_eq!(world.names_seen_by(3), ["eu-1", "us-1"], "seed {seed}");
    }
}

#[test]
fn node_stays_a_member_when_one_link_is_cut() {
    let mut world = World::three(5);
    world.log.clear();
    world.part(1, 2);
    world.run(60);
    assert_eq!(world.changes(), 0, "{:?}", world.log);
}

#[test]
fn case_51_restart_at_the_same_address_is_listed_once_and_moves_nobody_else() {
    for seed in 0..20 {
        let mut world = World::three(seed);
        world.log.clear();
        world.start(member("eu-1", 2, 200));
        world.meet(2, 1);
        world.run(5);
        assert_eq!(
            world.seen_by(1),
            ["ap-1:3/100", "eu-1:2/200"],
            "seed {seed}"
        );
        assert_eq!(
            world.seen_by(3),
            ["eu-1:2/200", "us-1:1/100"],
            "seed {seed}"
        );
        for (node, output) in &world.log {
            if *node != at(2) {
                assert!(
                    !matches!(output, Output::Up(m) | Output::Down(m) if m.name() != "eu-1"),
                    "seed {seed}: {output:?}"
                );
            }
        }
    }
}

#[test]
fn case_51_restart_with_the_clock_set_back_overtakes_its_former_self() {
    for seed in 0..20 {
        let mut world = World::three(seed);
        world.start(member("eu-1", 2, 40));
        world.meet(2, 1);
        world.run(5);
        let own = world.nodes[&at(2)].own().incarnation();
        assert!(own > 100, "seed {seed}: {own}");
        assert_eq!(
            world.seen_by(1),
            ["ap-1:3/100".into(), format!("eu-1:2/{own}")],
            "seed {seed}"
        );
        assert_eq!(world.names_seen_by(2), ["ap-1", "us-1"], "seed {seed}");
    }
}

#[test]
fn case_51_node_that_moved_is_accepted_when_the_old_one_is_gone() {
    for seed in 0..20 {
        let mut world = World::three(seed);
        world.nodes.remove(&at(2));
        world.start(member("eu-1", 9, 200));
        world.meet(9, 1);
        world.run(12);
        let own = world.nodes[&at(9)].own().incarnation();
        let moved = format!("eu-1:9/{own}");
        assert_eq!(
            world.seen_by(1),
            ["ap-1:3/100".into(), moved.clone()],
            "seed {seed}"
        );
        assert_eq!(
            world.seen_by(3),
            [moved, "us-1:1/100".into()],
            "seed {seed}"
        );
        assert_eq!(world.names_seen_by(9), ["ap-1", "us-1"], "seed {seed}");
    }
}

#[test]
fn case_51_second_node_of_a_name_stays_outside_and_nobody_flaps() {
    for seed in 0..20 {
        let mut world = World::three(seed);
        world.run(30);
        let baseline = world.sent;
        world.run(60);
        let baseline = world.sent - baseline;
        world.log.clear();
        world.start(member("eu-1", 9, 200));
        world.meet(9, 1);
        world.meet(9, 3);
        let before = world.sent;
        world.run(60);
        assert!(world.has_duplicate(9), "seed {seed}");
        assert_eq!(world.names_seen_by(9), [""; 0], "seed {seed}");
        assert_eq!(world.changes(), 0, "seed {seed}: {:?}", world.log);
        assert!(
            world.sent - before <= 2 * baseline,
            "seed {seed}: {baseline}"
        );
    }
}

#[test]
fn nonsense_is_refused_and_changes_nothing() {
    let mut world = World::three(9);
    world.log.clear();
    for length in [0, 1, 2, 30, 300] {
        world.step(at(1), Input::Packet(vec![0x41; length]));
    }
    assert_eq!(world.log.len(), 5);
    assert!(
        world
            .log
            .iter()
            .all(|(_, output)| matches!(output, Output::Refused(_)))
    );
    assert_eq!(world.names_seen_by(1), ["ap-1", "eu-1"]);
}
