//! Three regions in virtual time: the limiter, the replica and the exchange of production over
//! memory stores, with links that take time and can be cut. No sockets, no clock, no luck.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use gossip::exchange::{self, Exchange};
use gossip::replica::{self, Replica};
use region::audit::Auditor;
use region::bucket::{Base, Memory};
use region::limiter::{Limiter, Pressure, Settings, Subject};
use region::policy::{Attributes, PolicySet};
use region::store::memory::MemoryStore;
use region::store::{Loaded, Store, Swapped};
use region::units::{Generation, Key, RegionId, Share, Timestamp, Tokens};

/// Alphabetical, as regions are numbered.
const AP: usize = 0;
const EU: usize = 1;
const US: usize = 2;

const STEP: Duration = Duration::from_micros(100);

/// Collects what the limiter says; the machine is asked at the end of a step.
#[derive(Default)]
struct Dues(AtomicU64);

impl Pressure for Dues {
    fn offer(&self, _: Key, wanted: Tokens) {
        self.0.fetch_max(wanted.0 + 1, Ordering::Relaxed);
    }
}

struct Node {
    limiter: Limiter<MemoryStore>,
    dues: Arc<Dues>,
    replica: Replica,
    exchange: Exchange,
    admitted: u64,
    offered: u64,
    owed: f64,
    rows_sent: usize,
}

struct World {
    policies: Arc<PolicySet>,
    clock: Arc<AtomicU64>,
    nodes: Vec<Node>,
    mail: BTreeMap<(Timestamp, u64), (usize, usize, Mail)>,
    posted: u64,
    cut: Vec<(usize, usize)>,
    auditor: Auditor,
}

enum Mail {
    Rows(Vec<(Key, region::ledger::Row)>),
    Digest(Vec<(Key, region::units::Sequence)>),
    Request(Vec<Key>),
}

fn region_id(index: usize) -> RegionId {
    RegionId(u16::try_from(index).expect("three regions"))
}

/// Runs a future that never waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a memory store never waits"),
    }
}

impl World {
    fn new(limit: &str) -> Self {
        let text = format!(
            "[regions]\nus = 50\neu = 30\nap = 20\n[[policy]]\nname = \"p\"\ndomain = \"d\"\n\
             key = [\"customer\"]\n{limit}\n"
        );
        let policies = Arc::new(PolicySet::parse(&text, "policies.toml").expect("policies"));
        let start = 1_700_000_000_000_000;
        let clock = Arc::new(AtomicU64::new(start));
        let nodes = (0..3)
            .map(|index| {
                let ahead = u64::from(index) * 3_000_000;
                let reading = Arc::clone(&clock);
                let memory = Memory {
                    generation: Generation(1),
                    began: Timestamp(0),
                };
                let store = MemoryStore::new(memory, 1_000, move || {
                    Timestamp(reading.load(Ordering::Relaxed) + ahead)
                });
                let dues = Arc::new(Dues::default());
                let own = RegionId(index);
                Node {
                    limiter: Limiter::new(Arc::clone(&policies), own, store, Settings::default())
                        .with_pressure(Arc::clone(&dues) as Arc<dyn Pressure>),
                    dues,
                    replica: Replica::new(own, Arc::clone(&policies)),
                    exchange: Exchange::new(own, 3, Timestamp(start)),
                    admitted: 0,
                    offered: 0,
                    owed: 0.0,
                    rows_sent: 0,
                }
            })
            .collect();
        let split = policies.policies()[0].split().expect("a bucket");
        let auditor = Auditor::new(*split.limit());
        Self {
            policies,
            clock,
            nodes,
            mail: BTreeMap::new(),
            posted: 0,
            cut: vec![],
            auditor,
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp(self.clock.load(Ordering::Relaxed))
    }

    fn key(&self) -> Key {
        let policy = &self.policies.policies()[0];
        let attributes = [("customer", "c")];
        self.nodes[0]
            .limiter
            .key(policy, Attributes::new(&attributes))
            .expect("a key")
    }

    /// One-way delays of the demo: half of 80, 150 and 220 ms.
    fn delay(from: usize, to: usize) -> Duration {
        Duration::from_millis(match (from.min(to), from.max(to)) {
            (EU, US) => 40,
            (AP, US) => 75,
            _ => 110,
        })
    }

    fn post(&mut self, from: usize, to: RegionId, mail: Mail) {
        let to = usize::from(to.0);
        if !self.cut.contains(&(from, to)) {
            self.posted += 1;
            let at = self.now().plus(Self::delay(from, to));
            self.mail.insert((at, self.posted), (from, to, mail));
        }
    }

    fn check(&mut self, index: usize) -> bool {
        let attributes = [("customer", "c")];
        let subject = Subject {
            attributes: &attributes,
            cost: Tokens(1),
        };
        let answer = now(self.nodes[index].limiter.check("d", &[subject]));
        self.nodes[index].offered += 1;
        if answer.allowed {
            self.nodes[index].admitted += 1;
            let at = self.now();
            self.auditor.admit(at, Tokens(1));
        }
        answer.allowed
    }

    fn replica(&mut self, index: usize, input: replica::Input) {
        let mut out = Vec::new();
        let at = self.now();
        self.nodes[index].replica.step(at, input, &mut out);
        for output in out {
            match output {
                replica::Output::Load { key } => {
                    let base = self.policies.policies()[0]
                        .base(region_id(index), key.client)
                        .expect("a base");
                    let loaded = now(self.nodes[index].limiter.store().load(key, &base));
                    let loaded = Box::new(loaded.expect("a memory store answers"));
                    self.replica(index, replica::Input::Loaded { key, loaded });
                }
                replica::Output::Swap(swap) => {
                    let key = swap.key;
                    let swapped = now(self.nodes[index].limiter.store().swap(&swap));
                    let input = match swapped.expect("a memory store answers") {
                        Swapped::Done { .. } => replica::Input::Swapped { key },
                        Swapped::Conflict { current } => replica::Input::Conflict { key, current },
                    };
                    self.replica(index, input);
                }
                replica::Output::Say { key, row } => {
                    self.exchange(index, exchange::Input::Say { key, row });
                }
                replica::Output::Ignored { .. } => {}
            }
        }
    }

    fn exchange(&mut self, index: usize, input: exchange::Input) {
        let mut out = Vec::new();
        let at = self.now();
        self.nodes[index].exchange.step(at, input, &mut out);
        for output in out {
            match output {
                exchange::Output::Row { key, row } => {
                    self.replica(index, replica::Input::Row { key, row });
                }
                exchange::Output::Send { to, rows } => {
                    self.nodes[index].rows_sent += rows.len();
                    self.post(index, to, Mail::Rows(rows));
                }
                exchange::Output::Digest { to, entries } => {
                    self.post(index, to, Mail::Digest(entries));
                }
                exchange::Output::Request { to, keys } => self.post(index, to, Mail::Request(keys)),
                exchange::Output::RegionUp(_) => self.replica(index, replica::Input::RegionUp),
            }
        }
    }

    fn deliver(&mut self) {
        let now = self.now();
        while let Some(entry) = self.mail.first_entry().filter(|entry| entry.key().0 <= now) {
            let (from, to, mail) = entry.remove();
            let from = region_id(from);
            match mail {
                Mail::Rows(rows) => {
                    for (key, row) in rows {
                        self.exchange(to, exchange::Input::Row { from, key, row });
                    }
                }
                Mail::Digest(entries) => {
                    self.exchange(to, exchange::Input::Digest { from, entries });
                }
                Mail::Request(keys) => self.exchange(to, exchange::Input::Request { from, keys }),
            }
        }
    }

    /// What frames would say about who hears whom, every 500 ms.
    fn beat(&mut self) {
        for from in 0..3 {
            for to in (0..3).filter(|to| *to != from) {
                if !self.cut.contains(&(from, to)) {
                    let heard = self.nodes[from].exchange.heard(self.now()).collect();
                    let from = region_id(from);
                    self.exchange(to, exchange::Input::Heard { from, heard });
                }
            }
        }
    }

    /// Offers so many tokens per second in each region for a while; returns what was offered and
    /// admitted in each.
    fn run(&mut self, per_second: [f64; 3], span: Duration) -> [(u64, u64); 3] {
        let before: Vec<_> = self
            .nodes
            .iter()
            .map(|node| (node.offered, node.admitted))
            .collect();
        let steps = span.as_micros() / STEP.as_micros();
        for step in 0..steps {
            self.clock.fetch_add(100, Ordering::Relaxed);
            if step % 5_000 == 0 {
                self.beat();
            }
            self.deliver();
            for (index, rate) in per_second.iter().enumerate() {
                self.nodes[index].owed += rate * STEP.as_secs_f64();
                while self.nodes[index].owed >= 1.0 {
                    self.nodes[index].owed -= 1.0;
                    self.check(index);
                }
                let due = self.nodes[index].dues.0.swap(0, Ordering::Relaxed);
                if due > 0 {
                    let input = replica::Input::Due {
                        key: self.key(),
                        wanted: Tokens(due - 1),
                    };
                    self.replica(index, input);
                }
                if self.nodes[index].replica.deadline() <= self.now() {
                    self.replica(index, replica::Input::Timeout);
                }
                if self.nodes[index].exchange.deadline() <= self.now() {
                    self.exchange(index, exchange::Input::Timeout);
                }
            }
        }
        let mut passed = [(0, 0); 3];
        for (index, (offered, admitted)) in before.into_iter().enumerate() {
            let node = &self.nodes[index];
            passed[index] = (node.offered - offered, node.admitted - admitted);
        }
        assert!(self.auditor.overrun() <= self.policies.policies()[0].overrun());
        passed
    }

    fn loaded(&self, index: usize) -> (Base, Loaded) {
        let policy = &self.policies.policies()[0];
        let base = policy.base(region_id(index), self.key().client);
        let base = base.expect("a base");
        let loaded = now(self.nodes[index].limiter.store().load(self.key(), &base));
        (base, loaded.expect("a memory store answers"))
    }

    fn share(&self, index: usize) -> u64 {
        let (base, loaded) = self.loaded(index);
        let pieces = base.pieces(loaded.memory);
        let Share(share) = loaded.bucket.share(&pieces);
        let split = self.policies.policies()[0].split().expect("a bucket");
        share * 1_000 / split.limit().total().0
    }

    /// The level in thousandths of a token.
    fn level(&self, index: usize) -> i64 {
        let split = self.policies.policies()[0].split().expect("a bucket");
        self.loaded(index).1.bucket.level.0 * 1_000 / split.limit().token().0
    }
}

const THOUSAND: &str = "rate = 1000\nper = \"1s\"\nburst = 1000";

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn keys_inside_their_base_share_say_nothing() {
    let mut world = World::new(THOUSAND);
    let passed = world.run([180.0, 270.0, 450.0], seconds(10));
    for (offered, admitted) in passed {
        assert_eq!(offered, admitted);
    }
    let said: usize = world.nodes.iter().map(|node| node.rows_sent).sum();
    assert_eq!((said, world.nodes[0].replica.keys()), (0, 0));
}

#[test]
fn load_in_one_region_gets_the_whole_limit_and_moves_with_it() {
    let mut world = World::new(THOUSAND);
    world.run([900.0, 0.0, 0.0], seconds(1));
    let passed = world.run([1_000.0, 0.0, 0.0], seconds(5));
    assert!(passed[AP].1 >= 4_900, "{passed:?}");
    world.run([0.0, 0.0, 1_500.0], seconds(1));
    let passed = world.run([0.0, 0.0, 1_500.0], seconds(5));
    assert!(passed[US].1 >= 4_900, "{passed:?}");
    assert!(world.share(US) >= 980, "{}", world.share(US));
}

#[test]
fn rows_go_round_a_cut_link() {
    let mut world = World::new(THOUSAND);
    world.cut = vec![(US, EU), (EU, US)];
    world.run([0.0, 0.0, 900.0], seconds(4));
    let passed = world.run([0.0, 0.0, 900.0], seconds(5));
    assert!(passed[US].1 >= 4_400, "{passed:?}");
}

#[test]
fn isolated_region_falls_back_to_its_base_and_lending_resumes_after_the_heal() {
    let mut world = World::new(THOUSAND);
    world.run([900.0, 100.0, 100.0], seconds(3));
    world.cut = vec![(AP, EU), (EU, AP), (AP, US), (US, AP)];
    world.run([900.0, 500.0, 700.0], seconds(3));
    assert_eq!(
        [world.share(AP), world.share(EU), world.share(US)],
        [200, 300, 500]
    );
    let passed = world.run([900.0, 500.0, 700.0], seconds(5));
    assert!(
        (950..=1_010).contains(&passed[AP].1),
        "nobody stops: {passed:?}"
    );
    world.cut.clear();
    world.run([900.0, 0.0, 0.0], seconds(2));
    let passed = world.run([900.0, 0.0, 0.0], seconds(3));
    assert!(passed[AP].1 >= 2_650, "{passed:?}");
}

#[test]
fn idle_parts_are_lent_by_regions_that_have_load_and_have_not_heard_each_other() {
    let mut world = World::new(THOUSAND);
    world.run([400.0, 200.0, 300.0], seconds(1));
    let passed = world.run([400.0, 200.0, 300.0], seconds(5));
    let admitted: u64 = passed.iter().map(|(_, admitted)| admitted).sum();
    assert!(admitted >= 4_450, "{passed:?}");
}

#[test]
fn shares_settle_and_stay_when_demand_is_steady() {
    let mut world = World::new(THOUSAND);
    world.run([600.0, 100.0, 200.0], seconds(5));
    let before: usize = world.nodes.iter().map(|node| node.rows_sent).sum();
    let passed = world.run([600.0, 100.0, 200.0], seconds(10));
    let said: usize = world.nodes.iter().map(|node| node.rows_sent).sum::<usize>() - before;
    assert!(passed[AP].1 >= 5_980, "{passed:?}");
    assert!(
        said <= 10 * 2 * 3 * 3,
        "at most three rows a second and peer: {said}"
    );
}

#[test]
fn share_goes_home_when_nobody_asks_any_more() {
    let mut world = World::new(THOUSAND);
    world.run([900.0, 0.0, 0.0], seconds(3));
    assert!(world.share(AP) > 900);
    world.run([0.0, 0.0, 0.0], seconds(2));
    assert_eq!(
        [world.share(AP), world.share(EU), world.share(US)],
        [200, 300, 500]
    );
    world.run([0.0, 0.0, 0.0], seconds(5));
    assert_eq!(
        world
            .nodes
            .iter()
            .map(|node| node.replica.keys())
            .sum::<usize>(),
        0
    );
}

#[test]
fn case_56_a_small_limit_is_all_usable_where_the_traffic_is() {
    let mut world = World::new("rate = 3\nper = \"10s\"");
    let mut admitted = 0;
    for _ in 0..40 {
        admitted += u64::from(world.check(AP));
        world.run([0.0; 3], Duration::from_millis(50));
    }
    assert_eq!(admitted, 3);
    let mut world = World::new("rate = 3\nper = \"10s\"");
    let mut admitted = 0;
    for _ in 0..20 {
        for index in [AP, EU, US] {
            admitted += u64::from(world.check(index));
        }
        world.run([0.0; 3], Duration::from_millis(50));
    }
    assert_eq!(admitted, 3);
}

#[test]
fn overrun_bridges_the_way_of_a_loan_and_is_never_exceeded() {
    let denied_of = |limit: &str| {
        let mut world = World::new(limit);
        let [(offered, admitted), _, _] = world.run([900.0, 0.0, 0.0], seconds(2));
        offered - admitted
    };
    let (strict, lenient) = (THOUSAND.to_owned(), format!("{THOUSAND}\noverrun = 300"));
    let (without, with) = (denied_of(&strict), denied_of(&lenient));
    // A fifth of the debt is that of `ap`.
    assert!(with + 50 <= without, "{with} denied instead of {without}");

    let mut world = World::new(&lenient);
    let before = world.run([1_500.0; 3], seconds(3));
    let admitted: u64 = before.iter().map(|(_, admitted)| admitted).sum();
    let overrun = world.auditor.overrun();
    assert!(
        (295..=300).contains(&overrun.0),
        "{overrun:?} of 300 are used"
    );
    assert!(
        (4_290..=4_300).contains(&admitted),
        "burst, refill and debt: {admitted}"
    );
    for (index, part) in [(AP, -60_000), (EU, -90_000), (US, -150_000)] {
        let level = world.level(index);
        assert!((part..part + 2_000).contains(&level), "{level} in {index}");
    }
}

#[test]
fn debt_is_repaid_from_refill_and_a_region_in_debt_lends_no_token() {
    let mut world = World::new(&format!("{THOUSAND}\noverrun = 300"));
    world.run([1_500.0; 3], seconds(3));
    // All have debts; then only `us` goes on, and borrows what the others do not need.
    world.run([0.0, 0.0, 1_500.0], seconds(1));
    let levels: i64 = [AP, EU, US].map(|index| world.level(index)).iter().sum();
    assert!(levels <= 0, "nothing but refill repays: {levels}");
    let passed = world.run([0.0, 0.0, 1_500.0], seconds(3));
    assert!((2_900..=3_020).contains(&passed[US].1), "{passed:?}");
    world.run([0.0; 3], seconds(5));
    for index in [AP, EU, US] {
        let (base, loaded) = world.loaded(index);
        assert_eq!(loaded.bucket.level, base.capacity, "{index} is full again");
    }
}
