//! The replica machine, step by step: a row leaves only after its swap, and nothing heard is lost.

use std::sync::Arc;
use std::time::Duration;

use gossip::replica::{Input, Output, Replica, TICK};
use region::bucket::{Bucket, Count, Memory};
use region::ledger::{Ledger, Row};
use region::policy::PolicySet;
use region::store::{Loaded, Swap};
use region::units::{
    Client, Generation, Key, Level, RegionId, Sequence, Share, Stamp, Ticks, Timestamp, Tokens,
};

const POLICIES: &str = "
[regions]
ap = 20
eu = 30
us = 50

[[policy]]
name = \"global\"
domain = \"d\"
key = [\"customer\"]
rate = 1000
per = \"1s\"

[[policy]]
name = \"regional\"
domain = \"d\"
key = [\"customer\"]
rate = 1000
per = \"1s\"
scope = \"regional\"
";

const GENERATION: Generation = Generation(5);

/// A replica of `ap` on a shard that always shows `now`.
struct World {
    policies: Arc<PolicySet>,
    replica: Replica,
    now: Timestamp,
    key: Key,
    offered: u64,
}

impl World {
    fn new() -> Self {
        let policies = PolicySet::parse(POLICIES, "policies.toml").expect("right policies");
        let policies = Arc::new(policies);
        let replica = Replica::new(RegionId(0), Arc::clone(&policies));
        let key = Key {
            client: Client(3),
            policy: policies.policies()[0].id(),
        };
        Self {
            policies,
            replica,
            now: Timestamp(9_000_000_000),
            key,
            offered: 0,
        }
    }

    fn step(&mut self, input: Input) -> Vec<Output> {
        let mut out = Vec::new();
        self.replica.step(self.now, input, &mut out);
        out
    }

    fn pass(&mut self, span: Duration) {
        self.now = self.now.plus(span);
    }

    /// What the shard holds: this ledger, and a bucket that is drained by what is offered.
    fn loaded(&self, ledger: Option<Ledger>) -> Box<Loaded> {
        let count = Count {
            offered: self.offered,
            admitted: 0,
        };
        Box::new(Loaded {
            version: ledger.as_ref().map(|ledger| ledger.version),
            stamp: Stamp {
                generation: GENERATION,
                clock: self.now,
            },
            memory: Memory {
                generation: GENERATION,
                began: Timestamp(0),
            },
            bucket: Bucket {
                level: Level(0),
                at: Ticks(self.now.0),
                count: ledger.is_some().then_some(count),
                pieces: Vec::new(),
            },
            ledger,
        })
    }

    fn due(&mut self) -> Vec<Output> {
        let key = self.key;
        self.step(Input::Due {
            key,
            wanted: Tokens(0),
        })
    }

    fn load(&mut self, ledger: Option<Ledger>) -> Vec<Output> {
        let (key, loaded) = (self.key, self.loaded(ledger));
        self.step(Input::Loaded { key, loaded })
    }

    /// Looks at the key under heavy load until a swap is wanted that will be said.
    fn pressed(&mut self) -> (Box<Swap>, Ledger) {
        self.due();
        let mut ledger = swap_of(&self.load(None)).ledger.clone();
        let key = self.key;
        self.step(Input::Swapped { key });
        for _ in 0..10 {
            self.pass(TICK);
            self.offered += 30;
            self.due();
            self.step(Input::Timeout);
            let out = self.load(Some(ledger.clone()));
            if let [Output::Swap(swap)] = out.as_slice() {
                return (swap.clone(), ledger);
            }
        }
        ledger.peers.clear();
        panic!("a region that is offered 1500/s of its 200/s never asks for more");
    }

    fn row_of_us(&self, n: u64) -> Row {
        Row {
            region: RegionId(2),
            terms: self.policies.policies()[0].terms(),
            version: Sequence {
                generation: Generation(8),
                n,
            },
            clock: Timestamp(77),
            demand: Share(0),
            share: Share(500_000),
            level: Level(0),
            admitted: 0,
            entries: Vec::new(),
        }
    }
}

fn swap_of(out: &[Output]) -> &Swap {
    match out {
        [Output::Swap(swap)] => swap,
        other => panic!("{other:?} is no single swap"),
    }
}

#[test]
fn row_leaves_only_after_its_swap() {
    let mut world = World::new();
    let (swap, _) = world.pressed();
    let key = world.key;
    let out = world.step(Input::Swapped { key });
    let [Output::Say { row, .. }] = out.as_slice() else {
        panic!("{out:?}")
    };
    assert_eq!(row.version, swap.ledger.version);
    assert!(row.demand > row.share);
}

#[test]
fn row_does_not_leave_when_the_store_fails() {
    let mut world = World::new();
    world.pressed();
    let key = world.key;
    assert_eq!(world.step(Input::StoreFailed { key }), []);
    assert!(
        world.replica.deadline() > world.now,
        "and the key is tried again later"
    );
    assert_eq!(
        world.step(Input::Swapped { key }),
        [],
        "an answer that comes late says nothing"
    );
}

#[test]
fn grant_leaves_only_when_a_replica_has_it() {
    let mut world = World::new();
    let key = world.key;
    // `us` wants far more than it has, and nothing is offered here.
    let mut hungry = world.row_of_us(4);
    hungry.demand = Share(900_000);
    let mut ledger = None;
    let swap = loop {
        world.due();
        hungry.version.n += 1;
        let row = hungry.clone();
        world.step(Input::Row { key, row });
        world.step(Input::Timeout);
        let out = world.load(ledger.clone());
        if world.replica.lends_anew(key) {
            break swap_of(&out).clone();
        }
        if let [Output::Swap(swap)] = out.as_slice() {
            ledger = Some(swap.ledger.clone());
            world.step(Input::Swapped { key });
        }
        world.pass(TICK);
    };
    let said = |out: &[Output]| match out {
        [Output::Say { row, .. }] => row.entries[0].grant,
        other => panic!("{other:?} says no row"),
    };
    let out = world.step(Input::Unreplicated { key });
    assert_eq!(said(&out), None, "the row leaves without the grant");
    let lent = swap.ledger.peers[&RegionId(2)].lent.current();
    assert!(lent.is_some(), "which is held all the same");
    assert!(
        world.replica.deadline() >= world.now.plus(TICK * 5),
        "not at once again"
    );
    // It is tried again, and said once a replica has it; then it is no news any more.
    world.pass(Duration::from_millis(100));
    world.step(Input::Timeout);
    let out = world.load(Some(swap.ledger.clone()));
    let again = swap_of(&out).clone();
    assert!(world.replica.lends_anew(key));
    let out = world.step(Input::Swapped { key });
    assert_eq!(
        said(&out).map(|grant| grant.sequence),
        lent.map(|grant| grant.sequence)
    );
    world.pass(TICK);
    hungry.version.n += 1;
    hungry.demand = Share(500_000);
    world.step(Input::Row { key, row: hungry });
    world.step(Input::Timeout);
    world.load(Some(again.ledger));
    assert!(!world.replica.lends_anew(key));
}

#[test]
fn swap_that_lost_is_worked_out_anew_on_what_is_there_now() {
    let mut world = World::new();
    let (swap, before) = world.pressed();
    let newer = Ledger {
        version: Sequence {
            generation: GENERATION,
            n: before.version.n + 9_000_000_000,
        },
        ..before
    };
    let (key, current) = (world.key, world.loaded(Some(newer.clone())));
    let out = world.step(Input::Conflict { key, current });
    let again = swap_of(&out);
    assert_eq!(
        (swap.expected, again.expected),
        (Some(before.version), Some(newer.version))
    );
    assert!(again.ledger.version > newer.version);
}

#[test]
fn rows_are_heard_after_the_store_has_come_back() {
    let mut world = World::new();
    let (key, row) = (world.key, world.row_of_us(4));
    let out = world.step(Input::Row {
        key,
        row: row.clone(),
    });
    assert_eq!(out, [Output::Load { key }]);
    world.step(Input::StoreFailed { key });
    world.pass(Duration::from_secs(1));
    assert_eq!(world.step(Input::Timeout), [Output::Load { key }]);
    let out = world.load(None);
    let heard = &swap_of(&out).ledger.peers[&RegionId(2)];
    assert_eq!(heard.seen, row.version);
}

#[test]
fn row_that_arrives_during_a_load_waits_for_the_next() {
    let mut world = World::new();
    let key = world.key;
    world.due();
    world.step(Input::Row {
        key,
        row: world.row_of_us(4),
    });
    let out = world.load(None);
    assert!(
        swap_of(&out).ledger.peers.is_empty(),
        "it was said after the stamp of this load"
    );
    world.step(Input::Swapped { key });
    world.pass(TICK);
    assert_eq!(world.step(Input::Timeout), [Output::Load { key }]);
}

#[test]
fn keys_without_a_global_limit_are_nobodys_work() {
    let mut world = World::new();
    let regional = Key {
        policy: world.policies.policies()[1].id(),
        ..world.key
    };
    let unknown = Key {
        policy: region::units::PolicyId(1),
        ..world.key
    };
    for key in [regional, unknown] {
        assert_eq!(
            world.step(Input::Due {
                key,
                wanted: Tokens(1)
            }),
            []
        );
    }
    assert_eq!(
        (world.replica.keys(), world.replica.deadline()),
        (0, Timestamp::NEVER)
    );
}
