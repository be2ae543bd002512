//! The ledgers of three regions under everything that a network, a node and a store may do to them:
//! rows lost, repeated, reordered; loads whose swap comes late; shards that forget; clocks apart.
//!
//! After every step the inner invariants are asserted, not only the admissions: what is usable in
//! all regions never exceeds the limit, now or at any instant ahead.

use std::time::Duration;

use region::audit::Auditor;
use region::bucket::{Base, Bucket, Count, Lost, Memory, Piece};
use region::ledger::transition::Transition;
use region::ledger::{CLOCK_MARGIN, GRANT_TTL, Ledger, Row, Terms, schedule};
use region::limit::Split;
use region::plan::{Own, plan};
use region::store::{Change, Loaded};
use region::units::{
    Client, Generation, Level, RegionId, Sequence, Share, Stamp, Tick, Timestamp, Tokens,
};

/// A small generator of pseudo-random numbers (xorshift, Marsaglia 2003): a seed replays a run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }
}

/// One region with one shard, whose clock is ahead of true time by `ahead`.
struct Region {
    own: RegionId,
    ahead: Duration,
    memory: Memory,
    ledger: Option<Ledger>,
    bucket: Option<Bucket>,
    /// A swap that was worked out and has not run yet: what a slow node holds in its hands.
    late: Option<Pending>,
}

struct Pending {
    expected: Option<Sequence>,
    generation: Generation,
    ledger: Ledger,
    change: Change,
    pieces: Vec<Piece>,
    row: Row,
}

struct World {
    split: Split,
    now: Timestamp,
    regions: Vec<Region>,
    rows: Vec<Row>,
    auditor: Auditor,
    dice: Dice,
}

impl World {
    fn new(seed: u64, burst: u64) -> Self {
        let per = Duration::from_secs(1);
        let split =
            Split::try_new(Tokens(burst), per, Tokens(burst), &[20, 30, 50]).expect("exact");
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let regions = (0..3)
            .map(|index| Region {
                own: RegionId(index),
                ahead: Duration::from_millis(dice.roll(10_000)),
                memory: Memory {
                    generation: Generation(1),
                    began: Timestamp(0),
                },
                ledger: None,
                bucket: None,
                late: None,
            })
            .collect();
        let auditor = Auditor::new(*split.limit());
        let now = Timestamp(1_700_000_000_000_000);
        Self {
            split,
            now,
            regions,
            rows: Vec::new(),
            auditor,
            dice,
        }
    }

    fn terms(&self, index: usize) -> Terms<'_> {
        Terms {
            own: self.regions[index].own,
            client: Client(1),
            split: &self.split,
            id: 9,
        }
    }

    fn base(&self, index: usize) -> Base {
        let share = self.terms(index).base();
        Base {
            tick: Tick::Micro,
            token: self.split.limit().token(),
            share,
            capacity: self.split.capacity(share),
            floor: self.split.floor(),
            wait: GRANT_TTL + CLOCK_MARGIN,
            debt: Level::ZERO,
            lost: Lost::Empty,
        }
    }

    fn clock(&self, index: usize) -> Timestamp {
        self.now.plus(self.regions[index].ahead)
    }

    fn settled(&self, index: usize) -> Bucket {
        let (region, base) = (&self.regions[index], self.base(index));
        let mut bucket = region
            .bucket
            .clone()
            .unwrap_or_else(|| base.unknown(region.memory));
        let now = base.tick.floor(self.clock(index));
        bucket.settle(now, base.tick, &base.pieces(region.memory));
        bucket
    }

    fn load(&self, index: usize) -> Loaded {
        let region = &self.regions[index];
        let generation = region.memory.generation;
        Loaded {
            version: region.ledger.as_ref().map(|ledger| ledger.version),
            stamp: Stamp {
                generation,
                clock: self.clock(index),
            },
            memory: region.memory,
            ledger: region.ledger.clone(),
            bucket: self.settled(index),
        }
    }

    fn take(&mut self, index: usize) {
        let cost = Tokens(1 + self.dice.roll(5));
        let mut bucket = self.settled(index);
        let level = self.split.limit().level(cost);
        if bucket.affords(level, Level::ZERO) {
            bucket.level = bucket.level.minus(level);
            self.auditor.admit(self.now, cost);
        }
        self.regions[index].bucket = Some(bucket);
    }

    /// Works out a transition on what is loaded now: some rows, then the plan or blind mischief.
    fn work(&mut self, index: usize) {
        let loaded = self.load(index);
        let heard: Vec<Row> = (0..self.dice.roll(4))
            .filter(|_| !self.rows.is_empty())
            .map(|_| {
                let recent = u64::try_from(self.rows.len().min(40)).expect("at most 40");
                let back = usize::try_from(self.dice.roll(recent)).expect("at most 40");
                self.rows[self.rows.len() - 1 - back].clone()
            })
            .collect();
        let demand = Share(self.dice.roll(self.split.limit().total().0 * 3 / 2));
        let rolls: Vec<u64> = (0..6).map(|_| self.dice.roll(1 << 40)).collect();
        let terms = self.terms(index);
        let mut transition = Transition::new(terms, self.base(index), &loaded);
        for row in &heard {
            // An old row is ignored, and that is what is tested.
            transition.hear(row).ok();
        }
        let unit = self.split.limit().unit().0;
        for (other, roll) in terms.others().zip(rolls.chunks(3)) {
            match roll[0] % 8 {
                0 | 1 => {
                    let units = roll[1] % (terms.base().0 / unit + 2);
                    transition.lend(other, Share(units * unit));
                }
                2 => transition.recall(other),
                3 => transition.give_back(other),
                _ => {}
            }
        }
        if rolls[2].is_multiple_of(2) {
            plan(
                &mut transition,
                &terms,
                Own {
                    demand,
                    starving: true,
                },
            );
        }
        let outcome = transition.finish(demand, &loaded.bucket);
        let pending = Pending {
            expected: outcome.expected,
            generation: loaded.stamp.generation,
            ledger: outcome.ledger,
            change: outcome.change,
            pieces: outcome.pieces,
            row: outcome.row,
        };
        if self.dice.one_in(4) {
            self.regions[index].late = Some(pending);
        } else {
            self.swap(index, pending);
        }
    }

    /// What a store does with a swap; a row leaves only after it.
    fn swap(&mut self, index: usize, pending: Pending) {
        let version = self.regions[index]
            .ledger
            .as_ref()
            .map(|ledger| ledger.version);
        let mut bucket = self.settled(index);
        let Change {
            credit,
            debit,
            before,
        } = pending.change;
        if version != pending.expected
            || self.regions[index].memory.generation != pending.generation
            || bucket.level.plus(credit) < debit
            || before.is_some_and(|before| bucket.at >= before)
        {
            return;
        }
        bucket.level = bucket.level.plus(credit).minus(debit);
        bucket.pieces = pending.pieces;
        bucket.count = Some(Count::default());
        let base = self.base(index);
        let pieces = base.pieces(self.regions[index].memory);
        bucket.settle(bucket.at, base.tick, &pieces);
        self.regions[index].bucket = Some(bucket);
        self.regions[index].ledger = Some(pending.ledger);
        self.rows.push(pending.row);
    }

    fn forget(&mut self, index: usize) {
        let generation = Generation(self.regions[index].memory.generation.0 + 1);
        let began = self.clock(index);
        let region = &mut self.regions[index];
        region.memory = Memory { generation, began };
        (region.ledger, region.bucket) = (None, None);
    }

    fn step(&mut self) {
        let index = usize::try_from(self.dice.roll(3)).expect("a region");
        match self.dice.roll(100) {
            0..35 => self.work(index),
            35..40 => {
                if let Some(pending) = self.regions[index].late.take() {
                    self.swap(index, pending);
                }
            }
            40..75 => self.take(index),
            75..76 if self.dice.one_in(4) => self.forget(index),
            _ => {
                let most = if self.dice.one_in(20) {
                    3_000_000
                } else {
                    60_000
                };
                self.now = Timestamp(self.now.0 + self.dice.roll(most));
            }
        }
    }

    /// Usable shares and capacities of all regions together never exceed the limit: now, and at any
    /// instant ahead if nobody does anything any more.
    fn assert_invariants(&self, seed: u64) {
        let limit = self.split.limit();
        for ahead in [
            0, 1, 100_000, 1_000_000, 2_000_000, 2_500_000, 3_000_000, 10_000_000,
        ] {
            let (mut shares, mut capacities) = (Share::ZERO, Level::ZERO);
            for index in 0..self.regions.len() {
                let base = self.base(index);
                let pieces = base.pieces(self.regions[index].memory);
                let mut bucket = self.settled(index);
                let then = self.clock(index).plus(Duration::from_micros(ahead));
                bucket.settle(base.tick.floor(then), base.tick, &pieces);
                shares = shares.plus(bucket.share(&pieces));
                capacities = capacities.plus(bucket.capacity(&pieces));
                assert!(bucket.level <= bucket.capacity(&pieces), "seed {seed}");
            }
            assert!(
                shares <= limit.total(),
                "seed {seed}: {shares:?} in {ahead} us"
            );
            assert!(
                capacities <= limit.level(limit.burst()),
                "seed {seed}: {capacities:?}"
            );
        }
        assert_eq!(self.auditor.overrun(), Tokens(0), "seed {seed}");
    }

    fn borrows(&self, index: usize) -> bool {
        self.regions[index].ledger.as_ref().is_some_and(|ledger| {
            ledger
                .peers
                .values()
                .any(|peer| peer.borrowed.applied.is_some())
        })
    }
}

/// Runs the seeds and returns in how many steps somebody had borrowed something.
fn explore(burst: u64, seeds: std::ops::Range<u64>) -> u64 {
    let mut borrowed = 0;
    for seed in seeds {
        let mut world = World::new(seed, burst);
        for _ in 0..600 {
            world.step();
            world.assert_invariants(seed);
            borrowed += u64::from((0..3).any(|index| world.borrows(index)));
        }
    }
    borrowed
}

#[test]
fn regions_together_stay_one_bucket_whatever_happens() {
    let borrowed = explore(100, 0..400);
    assert!(borrowed > 20_000, "loans are hardly ever used ({borrowed})");
}

#[test]
fn regions_together_stay_one_bucket_with_a_small_limit() {
    let borrowed = explore(3, 0..400);
    assert!(borrowed > 5_000, "loans are hardly ever used ({borrowed})");
}

impl World {
    /// One transition of a region, swapped at once: it hears rows, then does something.
    fn transit(
        &mut self,
        index: usize,
        heard: &[&Row],
        act: impl FnOnce(&mut Transition<'_>),
    ) -> Row {
        let loaded = self.load(index);
        let mut transition = Transition::new(self.terms(index), self.base(index), &loaded);
        for row in heard {
            transition.hear(row).expect("a new row");
        }
        act(&mut transition);
        let outcome = transition.finish(Share::ZERO, &loaded.bucket);
        let row = outcome.row.clone();
        let pending = Pending {
            expected: outcome.expected,
            generation: loaded.stamp.generation,
            ledger: outcome.ledger,
            change: outcome.change,
            pieces: outcome.pieces,
            row: outcome.row,
        };
        self.swap(index, pending);
        assert_eq!(self.rows.last(), Some(&row), "the swap went through");
        row
    }

    fn pass(&mut self, span: Duration) {
        self.now = self.now.plus(span);
    }

    /// Takes single tokens until there is none left; returns how many there were.
    fn drain(&mut self, index: usize) -> u64 {
        let mut bucket = self.settled(index);
        let tokens = self.split.limit().tokens(bucket.level);
        bucket.level = bucket.level.minus(self.split.limit().level(tokens));
        self.auditor.admit(self.now, tokens);
        self.regions[index].bucket = Some(bucket);
        tokens.0
    }
}

#[test]
fn tokens_given_back_unread_stay_dead_when_their_capacity_is_borrowed_again() {
    let (borrower, lender) = (0, 2);
    let mut world = World::new(1, 100);
    let part = Share(world.split.limit().total().0 * 3 / 10);
    let tick = Duration::from_millis(10);
    let asks = world.transit(borrower, &[], |_| ());
    world.pass(tick);
    let lends = world.transit(lender, &[&asks], |at| assert!(at.lend(RegionId(0), part)));
    world.pass(tick);
    let applies = world.transit(borrower, &[&lends], |_| ());
    world.pass(tick);
    world.transit(lender, &[&applies], |_| ());
    // Two grants are on their way, a small and a large one. The borrower cuts its bucket for the
    // first, a row that is lost says so, and its capacity comes back empty with the second.
    let less = Share(part.0 / 3);
    let shrinks = world.transit(lender, &[], |at| assert!(at.lend(RegionId(0), less)));
    let grows = world.transit(lender, &[], |at| assert!(at.lend(RegionId(0), part)));
    world.pass(tick);
    world.transit(borrower, &[&shrinks], |_| ());
    world.transit(borrower, &[&grows], |_| ());
    world.pass(Duration::from_secs(1));
    let all: u64 = (0..3).map(|index| world.drain(index)).sum();
    assert!(all >= 95, "everybody is full: {all}");
    let returns = world.transit(borrower, &[], |at| at.give_back(RegionId(2)));
    assert!(
        returns
            .entries
            .iter()
            .any(|entry| entry.returned.tokens > Level::ZERO)
    );
    world.transit(lender, &[&returns], |_| ());
    assert_eq!(
        world.drain(lender),
        0,
        "no token of the unread give-back has come back"
    );
    assert_eq!(world.auditor.overrun(), Tokens(0));
}

#[test]
fn schedule_of_an_empty_ledger_is_the_base_share_for_ever() {
    let world = World::new(1, 100);
    let pieces = schedule::pieces(&Ledger::default(), &world.terms(0), world.now);
    assert_eq!(pieces.len(), 1);
    assert_eq!(pieces[0].share, world.terms(0).base());
}

#[test]
fn giving_back_takes_a_renewal_on_its_way_along_and_no_token_is_lost() {
    let (borrower, lender) = (0, 2);
    let mut world = World::new(1, 100);
    let part = Share(world.split.limit().total().0 * 3 / 10);
    let tick = Duration::from_millis(10);
    let asks = world.transit(borrower, &[], |_| ());
    world.pass(tick);
    let lends = world.transit(lender, &[&asks], |at| assert!(at.lend(RegionId(0), part)));
    world.pass(tick);
    let applies = world.transit(borrower, &[&lends], |_| ());
    world.pass(tick);
    // The renewal and the give-back cross each other.
    let renews = world.transit(lender, &[&applies], |at| {
        assert!(at.lend(RegionId(0), part));
    });
    let returns = world.transit(borrower, &[], |at| at.give_back(RegionId(2)));
    world.pass(tick);
    world.transit(borrower, &[&renews], |_| ());
    assert!(
        !world.borrows(borrower),
        "what answers an older stamp is refused"
    );
    world.transit(lender, &[&returns], |_| ());
    let pieces = world.base(lender).pieces(world.regions[lender].memory);
    let bucket = world.settled(lender);
    assert_eq!(bucket.share(&pieces), world.terms(lender).base());
    assert_eq!(
        bucket.level,
        bucket.capacity(&pieces),
        "every token came home"
    );
    world.assert_invariants(0);
}
