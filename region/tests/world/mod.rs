//! The ledgers of a few regions under everything that a network, a node and a store may do to them:
//! rows lost, repeated, reordered; swaps that come late; shards that forget; clocks apart, and not
//! equally fast. A seed replays a world, and [`checks`] says what must hold after every step.

pub(crate) mod checks;
pub(crate) mod executions;

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use region::audit::Auditor;
use region::bucket::{Base, Count, Lost, Memory, Piece};
use region::ledger::transition::{Outcome, Transition};
use region::ledger::{CLOCK_MARGIN, GRANT_TTL, Ledger, Row, Terms, schedule};
use region::limit::Split;
use region::mutant::{Mutant, planted};
use region::plan::{Own, plan};
use region::store::record::Record;
use region::store::{Change, Loaded};
use region::units::{
    Client, Generation, Level, RegionId, Sequence, Share, Stamp, Tick, Timestamp, Tokens,
};

use self::checks::{Broken, Ideal};

/// When every world begins.
const START: Timestamp = Timestamp(1_700_000_000_000_000);

/// The error of clock rates, in millionths (PROTOCOL 1).
pub(crate) const RHO: u64 = 1_000;

/// The newest rows that may still arrive; older ones are lost.
const ROWS_MAX: usize = 48;

/// What a world is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    /// The base shares.
    pub(crate) weights: &'static [u32],
    /// The burst.
    pub(crate) burst: u64,
    /// The rate, per second.
    pub(crate) rate: u64,
    /// Whether clocks differ in rate, up to [`RHO`].
    pub(crate) drift: bool,
}

pub(crate) const THREE: Setting = Setting {
    weights: &[20, 30, 50],
    burst: 100,
    rate: 100,
    drift: false,
};

pub(crate) const DRIFT: Setting = Setting {
    drift: true,
    ..THREE
};

/// Three tokens, dealt whole.
pub(crate) const SMALL: Setting = Setting {
    burst: 3,
    rate: 3,
    ..THREE
};

/// A bucket that takes longer to fill than a grant lives.
pub(crate) const DEEP: Setting = Setting { rate: 20, ..THREE };

/// One region has nothing of its own.
pub(crate) const NO_BASE: Setting = Setting {
    weights: &[0, 40, 60],
    ..THREE
};

pub(crate) const TWO: Setting = Setting {
    weights: &[40, 60],
    ..THREE
};

/// A small generator of pseudo-random numbers (xorshift, Marsaglia 2003): a seed replays a run.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    pub(crate) fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }

    /// One of so many things.
    pub(crate) fn pick(&mut self, many: usize) -> usize {
        let sides = u64::try_from(many).expect("a length");
        usize::try_from(self.roll(sides)).expect("less than a length")
    }
}

/// A shard's clock: ahead of true time, and fast by so many millionths.
#[derive(Clone, Copy, Debug)]
struct Clock {
    ahead: u64,
    fast: u64,
}

impl Clock {
    fn shows(self, now: Timestamp) -> Timestamp {
        let passed = now.0 - START.0;
        Timestamp(now.0 + self.ahead + passed * self.fast / 1_000_000)
    }

    /// The first true instant at which it shows `then` or later, about.
    fn when(self, then: Timestamp) -> Timestamp {
        let shown = then.0.saturating_sub(START.0 + self.ahead);
        Timestamp(START.0 + (shown * 1_000_000).div_ceil(1_000_000 + self.fast))
    }
}

/// One region with one shard.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) own: RegionId,
    clock: Clock,
    pub(crate) memory: Memory,
    pub(crate) ledger: Option<Rc<Ledger>>,
    ledger_until: Timestamp,
    record: Option<Record>,
    record_until: Timestamp,
    /// Swaps that were worked out and have not run yet: what slow nodes hold in their hands.
    late: Vec<Pending>,
    /// The grants that have been written: to whom, what and when, on this region's clock.
    wrote: Vec<(RegionId, Sequence, Share, Timestamp)>,
}

/// A swap on its way to the store.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    generation: Generation,
    outcome: Outcome,
}

impl Pending {
    /// Whether it says anything about grants that the ledger does not know yet.
    fn is_news(&self, world: &World, index: usize) -> bool {
        let known = world.ledger(index).map(|ledger| &ledger.peers);
        known != Some(&self.outcome.ledger.peers)
    }
}

/// Several regions that share one limit.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) split: Rc<Split>,
    pub(crate) now: Timestamp,
    pub(crate) regions: Vec<Region>,
    pub(crate) rows: VecDeque<Rc<Row>>,
    pub(crate) auditor: Auditor,
    ideal: Ideal,
    dice: Dice,
    /// Whether rows arrive in their order, one by one.
    orderly: bool,
    /// Who does not hear whom for now: `(from, to)`.
    cuts: BTreeSet<(usize, usize)>,
    /// How far time passes at once, mostly.
    pace: u64,
    /// Whether nodes are slow at times.
    slow: bool,
    /// Whether hardly anything is taken, so that buckets are full.
    calm: bool,
    /// The most that is taken at once.
    thirst: u64,
}

impl World {
    pub(crate) fn new(seed: u64, setting: Setting) -> Self {
        let (rate, burst) = (Tokens(setting.rate), Tokens(setting.burst));
        let per = Duration::from_secs(1);
        let split = Split::try_new(rate, per, burst, setting.weights).expect("exact");
        let mut dice = Dice::new(seed);
        let regions = (0_u16..)
            .zip(setting.weights)
            .map(|(index, _)| Region {
                own: RegionId(index),
                clock: Clock {
                    ahead: dice.roll(10_000_000),
                    fast: if setting.drift { dice.roll(RHO + 1) } else { 0 },
                },
                memory: Memory {
                    generation: Generation(1),
                    began: Timestamp(0),
                },
                ledger: None,
                ledger_until: Timestamp(0),
                record: None,
                record_until: Timestamp(0),
                late: Vec::new(),
                wrote: Vec::new(),
            })
            .collect();
        Self {
            now: START,
            regions,
            rows: VecDeque::new(),
            auditor: Auditor::new(*split.limit()),
            ideal: Ideal::new(split.limit(), START, if setting.drift { RHO } else { 0 }),
            pace: [2_000, 20_000, 60_000, 300_000][dice.pick(4)],
            thirst: [1, 5, setting.burst / 4 + 1, setting.burst][dice.pick(4)],
            slow: dice.one_in(4),
            calm: dice.one_in(2),
            orderly: dice.one_in(2),
            cuts: BTreeSet::new(),
            split: Rc::new(split),
            dice,
        }
    }

    pub(crate) fn terms<'a>(split: &'a Split, region: &Region) -> Terms<'a> {
        Terms {
            own: region.own,
            client: Client(1),
            split,
            id: 9,
        }
    }

    pub(crate) fn base(&self, index: usize) -> Base {
        let share = Self::terms(&self.split, &self.regions[index]).base();
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

    pub(crate) fn clock(&self, index: usize) -> Timestamp {
        self.regions[index].clock.shows(self.now)
    }

    /// What the shard has of the key now, settled.
    pub(crate) fn record(&self, index: usize) -> Record {
        let (region, now) = (&self.regions[index], self.clock(index));
        let stored = region.record.as_ref();
        let stored = stored.filter(|_| now < region.record_until);
        Record::current(stored, &self.base(index), region.memory, now)
    }

    fn ledger(&self, index: usize) -> Option<&Rc<Ledger>> {
        let (region, now) = (&self.regions[index], self.clock(index));
        region.ledger.as_ref().filter(|_| now < region.ledger_until)
    }

    pub(crate) fn load(&self, index: usize) -> Loaded {
        let memory = self.regions[index].memory;
        let ledger = self.ledger(index);
        Loaded {
            version: ledger.map(|ledger| ledger.version),
            stamp: Stamp {
                generation: memory.generation,
                clock: self.clock(index),
            },
            memory,
            ledger: ledger.map(|ledger| Ledger::clone(ledger)),
            bucket: self.record(index).bucket,
        }
    }

    fn put(&mut self, index: usize, record: Record) {
        let (base, now) = (self.base(index), self.clock(index));
        self.regions[index].record_until = now.plus(record.keep(&base, base.tick.floor(now)));
        self.regions[index].record = Some(record);
    }

    /// Takes so many tokens, or as many as there are.
    pub(crate) fn take(&mut self, index: usize, most: u64) -> u64 {
        let mut record = self.record(index);
        let limit = *self.split.limit();
        let taken = limit.tokens(record.bucket.level).min(Tokens(most));
        if taken.0 > 0 {
            record.bucket.level = record.bucket.level.minus(limit.level(taken));
            // True time runs as slow as the fastest clock allows.
            let passed = self.now.0 - START.0;
            let dilated = Timestamp(START.0 + passed + self.ideal.allows(passed));
            self.auditor.admit(dilated, taken);
            self.ideal.admit(self.now, limit.level(taken));
            self.put(index, record);
        }
        taken.0
    }

    /// Works out a transition on what is loaded now.
    pub(crate) fn transit(
        &self,
        index: usize,
        heard: &[Rc<Row>],
        act: impl FnOnce(&mut Transition<'_>, &Terms<'_>),
    ) -> Pending {
        let loaded = self.load(index);
        let terms = Self::terms(&self.split, &self.regions[index]);
        let mut transition = Transition::new(terms, self.base(index), &loaded);
        for row in heard {
            // An old row is ignored, and that is what is tested.
            transition.hear(row).ok();
        }
        act(&mut transition, &terms);
        Pending {
            generation: loaded.stamp.generation,
            outcome: transition.finish(Share::ZERO, &loaded.bucket),
        }
    }

    /// The rows that arrive now: any, or the next ones of a region in their order.
    fn arrive(&mut self, index: usize) -> Vec<Rc<Row>> {
        if self.rows.is_empty() {
            return Vec::new();
        }
        let many = self.dice.roll(4);
        let mut heard: Vec<Rc<Row>> = (0..many)
            .map(|_| Rc::clone(&self.rows[self.dice.pick(self.rows.len())]))
            .collect();
        if let Some(row) = heard.first().filter(|_| self.orderly) {
            let from = row.region;
            let peers = self.ledger(index).map(|ledger| &ledger.peers);
            let seen = peers
                .and_then(|peers| peers.get(&from))
                .map(|peer| peer.seen);
            let next = self
                .rows
                .iter()
                .filter(|row| row.region == from && Some(row.version) > seen);
            heard = next
                .take(usize::try_from(2 * many).unwrap_or(1))
                .map(Rc::clone)
                .collect();
        }
        heard.retain(|row| !self.cuts.contains(&(usize::from(row.region.0), index)));
        heard
    }

    /// Some rows, then the plan or blind mischief.
    fn work(&mut self, index: usize) {
        let heard = self.arrive(index);
        let mut dice = self.dice.clone();
        let limit = *self.split.limit();
        let pending = self.transit(index, &heard, |transition, terms| {
            for other in terms.others() {
                match dice.roll(8) {
                    0 | 1 => {
                        let units = dice.roll(terms.base().0 / limit.unit().0 + 2);
                        transition.lend(other, Share(units * limit.unit().0));
                    }
                    2 => transition.recall(other),
                    3 => transition.give_back(other),
                    _ => {}
                }
            }
            if dice.one_in(2) {
                let demand = Share(dice.roll(limit.total().0 * 3 / 2));
                let starving = dice.one_in(2);
                plan(transition, terms, Own { demand, starving });
            }
        });
        self.dice = dice;
        if planted(Mutant::RowSentFirst) {
            self.send(&pending.outcome.row);
        }
        match self.dice.roll(8) {
            0 | 1 => {
                let late = &mut self.regions[index].late;
                late.truncate(1);
                late.push(pending);
                return;
            }
            2 => {
                // A slow node: what it has worked out is old when it gets there.
                let most = if self.slow && self.dice.one_in(3) {
                    5_000_000
                } else {
                    self.pace
                };
                let span = self.dice.roll(most);
                self.pass(Duration::from_micros(span));
                let most = self.dice.roll(self.thirst + 1);
                self.take(index, most);
            }
            _ => {}
        }
        self.swap(index, pending);
    }

    /// A region is no longer heard by another one, or again.
    fn cut_or_heal(&mut self, from: usize) {
        let way = (from, self.dice.pick(self.regions.len()));
        if !self.cuts.remove(&way) && self.dice.one_in(5) {
            self.cuts.insert(way);
        }
    }

    fn send(&mut self, row: &Row) {
        self.rows.push_back(Rc::new(row.clone()));
        if self.rows.len() > ROWS_MAX {
            self.rows.pop_front();
        }
    }

    /// What a store does with a swap; a row leaves only after it. Says whether it was made.
    pub(crate) fn swap(&mut self, index: usize, pending: Pending) -> bool {
        let version = self.ledger(index).map(|ledger| ledger.version);
        let Pending {
            generation,
            outcome,
        } = pending;
        let Change {
            credit,
            debit,
            before,
        } = outcome.change;
        let (base, clock) = (self.base(index), self.clock(index));
        let memory = self.regions[index].memory;
        let mut record = self.record(index);
        let bucket = &mut record.bucket;
        let level = bucket.level.plus(credit);
        if version != outcome.expected
            || memory.generation != generation
            || (debit > Level::ZERO && level < debit)
            || before.is_some_and(|before| base.tick.floor(clock) >= before)
        {
            return false;
        }
        let now = bucket.at;
        let pieces: Vec<Piece> = outcome.pieces;
        bucket.pieces = pieces
            .into_iter()
            .filter(|piece| piece.until > now)
            .collect();
        bucket.count.get_or_insert_with(Count::default);
        let capacity = bucket.capacity(&base.pieces(memory));
        bucket.level = level.minus(debit).min(capacity);
        record.capacity = capacity;
        let keep = schedule::keep(&outcome.ledger, &base, clock);
        record.kept = base.tick.floor(clock.plus(keep));
        self.put(index, record);
        self.regions[index].note(&outcome.ledger, clock);
        self.regions[index].ledger_until = clock.plus(keep);
        self.regions[index].ledger = Some(Rc::new(outcome.ledger));
        self.send(&outcome.row);
        true
    }

    /// The shard loses its memory and knows it.
    pub(crate) fn forget(&mut self, index: usize) {
        let generation = Generation(self.regions[index].memory.generation.0 + 1);
        let began = self.clock(index);
        let region = &mut self.regions[index];
        region.memory = Memory { generation, began };
        (region.ledger, region.record) = (None, None);
    }

    pub(crate) fn pass(&mut self, span: Duration) {
        self.now = self.now.plus(span);
    }

    /// Does something, and checks what must hold.
    pub(crate) fn step(&mut self) -> Result<(), Broken> {
        let index = self.dice.pick(self.regions.len());
        match self.dice.roll(100) {
            0..35 => self.work(index),
            35..41 => {
                if let Some(pending) = self.regions[index].late.pop() {
                    self.swap(index, pending);
                }
            }
            41..70 => {
                if !self.calm || self.dice.one_in(10) {
                    let most = 1 + self.dice.roll(self.thirst);
                    self.take(index, most);
                }
                return self.check_now();
            }
            70..71 if self.dice.one_in(4) => self.forget(index),
            71..73 => self.cut_or_heal(index),
            _ => {
                let most = match self.dice.roll(200) {
                    0 => 20_000_000,
                    1..10 => 3_000_000,
                    _ => self.pace,
                };
                let span = Duration::from_micros(self.dice.roll(most));
                self.pass(span);
                return self.check_now();
            }
        }
        self.check_now()?;
        self.check_ahead()?;
        if self.dice.one_in(6) {
            self.check_arrivals()?;
        }
        Ok(())
    }

    pub(crate) fn borrows(&self, index: usize) -> bool {
        self.ledger(index).is_some_and(|ledger| {
            let mut peers = ledger.peers.values();
            peers.any(|peer| peer.borrowed.applied.is_some())
        })
    }
}

impl Region {
    /// Remembers the grants of a ledger that was swapped.
    fn note(&mut self, ledger: &Ledger, clock: Timestamp) {
        for (to, peer) in &ledger.peers {
            let known = |grant: Sequence| {
                let mut wrote = self.wrote.iter().rev();
                wrote.any(|(other, sequence, ..)| other == to && *sequence == grant)
            };
            if let Some(grant) = peer.lent.grant.filter(|grant| !known(grant.sequence)) {
                self.wrote.push((*to, grant.sequence, grant.share, clock));
            }
        }
        let lifetimes = (GRANT_TTL + CLOCK_MARGIN) * 2;
        self.wrote.retain(|(.., at)| clock <= at.plus(lifetimes));
    }
}
