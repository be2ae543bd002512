//! One execution for each row of PROTOCOL 6: how the limit comes to be exceeded, and by how much.

use std::time::Duration;

use region::bound::{Bound, Fault};
use region::bucket::Memory;
use region::ledger::Row;
use region::units::{Generation, RegionId, Share, Timestamp};

use crate::world::{World, policy};

const AP: usize = 0;
const EU: usize = 1;
const US: usize = 2;

const SECOND: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(10);

/// Three regions with a limit of 100 per second and a burst of 100.
fn world(more: &str) -> World {
    World::new(&[policy([50, 30, 20], 100, more)])
}

/// The limit is exceeded by more than `least`, and by no more than the bound.
fn exceeds(world: &World, least: u64, faults: &[Fault]) {
    let bound = Bound::of(&world.sets[0].policies()[0]).expect("a limit that is shared");
    let bound = bound.total(faults).expect("a bound").0;
    let overrun = world.auditor.overrun().0;
    assert!(least < overrun, "{overrun} is not above {least}");
    assert!(overrun <= bound, "{overrun} is above the bound {bound}");
}

impl World {
    /// A region asks, the two others lend it all that they have, and it knows.
    fn lend_all(&mut self, to: usize, from: &[usize]) -> Vec<Row> {
        let borrower = self.sites[to].region;
        let asks = [self.transit(to, &[], |_, _| ())];
        let lend = |world: &mut Self, lender: usize| {
            world.transit(lender, &asks, |at, terms| {
                assert!(at.lend(borrower, terms.base()), "it is free");
            })
        };
        let lends: Vec<Row> = from.iter().map(|lender| lend(self, *lender)).collect();
        self.pass(TICK);
        let applies = [self.transit(to, &lends, |_, _| ())];
        for lender in from {
            self.transit(*lender, &applies, |_, _| ());
        }
        lends
    }

    fn drain_all(&mut self) -> u64 {
        (0..self.sites.len()).map(|site| self.drain(site)).sum()
    }

    /// Everybody takes all that there is, again and again.
    fn drain_for(&mut self, span: Duration) {
        for _ in 0..span.as_millis() / TICK.as_millis() {
            self.drain_all();
            self.pass(TICK);
        }
        self.drain_all();
    }
}

#[test]
fn clock_that_jumps_ahead_refills_at_once_even_within_the_margin() {
    let mut world = world("");
    world.lend_all(AP, &[EU, US]);
    world.drain_all();
    let step = Duration::from_millis(450);
    world.ahead(AP, step);
    assert_eq!(world.drain(AP), 45);
    exceeds(&world, 44, &[Fault::ClockStep(step)]);
}

#[test]
fn clock_that_goes_back_keeps_loans_for_as_long() {
    let mut world = world("");
    world.lend_all(AP, &[EU, US]);
    world.drain_all();
    let step = SECOND * 10;
    world.back(AP, step);
    world.drain_for(SECOND * 15);
    exceeds(&world, 700, &[Fault::ClockStep(step)]);
}

#[test]
fn lender_whose_clock_jumps_ahead_uses_its_base_with_its_borrower() {
    let mut world = world("");
    world.lend_all(AP, &[EU, US]);
    world.drain_all();
    let step = SECOND * 5;
    world.ahead(US, step);
    world.drain_for(SECOND * 5);
    exceeds(&world, 130, &[Fault::ClockStep(step)]);
}

#[test]
fn store_that_starts_full_uses_its_base_while_it_is_lent() {
    for first_start in [false, true] {
        let mut world = world("on_store_loss = \"full\"");
        world.lend_all(AP, &[EU, US]);
        world.drain_all();
        let mut memory = world.next_memory(US);
        let mut fault = Fault::StoreLoss(1);
        if first_start {
            memory.began = Timestamp(0);
            fault = Fault::FirstStart(1);
        }
        world.sites[US].store.forget(memory);
        // It starts full at once, and its base comes twice for as long as the loan goes on.
        world.drain_for(SECOND * 4);
        exceeds(&world, 140, &[fault]);
    }
}

#[test]
fn store_that_goes_back_brings_back_its_level_and_tokens_of_loans() {
    let mut world = world("");
    world.lend_all(AP, &[EU, US]);
    let held = world.sites[AP].store.snapshot();
    // All goes back, with its tokens, and is lent again, with its tokens.
    let returns = [world.transit(AP, &[], |at, terms| {
        terms.others().for_each(|lender| at.give_back(lender));
    })];
    world.transit(EU, &returns, |_, _| ());
    world.transit(US, &returns, |_, _| ());
    world.pass(TICK);
    let lends = world.lend_all(AP, &[EU, US]);
    assert_eq!(
        world.drain(AP),
        90,
        "they have travelled there, back and there"
    );
    world.sites[AP].store.restore(held);
    assert_eq!(world.drain(AP), 90, "all of them are there again");
    world.transit(AP, &lends, |_, _| ());
    assert_eq!(world.drain(AP), 68, "and those of the loans once more");
    exceeds(&world, 145, &[Fault::UndetectedStoreLoss(1)]);
}

#[test]
fn store_that_goes_back_uses_loans_that_it_has_given_back() {
    let mut world = world("");
    world.lend_all(AP, &[EU, US]);
    let held = world.sites[AP].store.snapshot();
    let returns = [world.transit(AP, &[], |at, terms| {
        terms.others().for_each(|lender| at.give_back(lender));
    })];
    world.transit(EU, &returns, |_, _| ());
    world.transit(US, &returns, |_, _| ());
    world.pass(TICK);
    world.lend_all(US, &[AP, EU]);
    world.drain_all();
    world.sites[AP].store.restore(held);
    world.drain_for(SECOND * 4);
    exceeds(&world, 280, &[Fault::UndetectedStoreLoss(1)]);
}

#[test]
fn key_that_is_evicted_is_full_and_knows_of_no_loan() {
    let mut world = world("");
    let memory = world.next_memory(US);
    let fresh = Memory {
        generation: Generation(1),
        began: Timestamp(memory.began.0 - 3_600_000_000),
    };
    world.lend_all(AP, &[EU, US]);
    world.drain_all();
    world.sites[US].store.forget(fresh);
    world.drain_for(SECOND * 4);
    exceeds(&world, 140, &[Fault::UndetectedStoreLoss(1)]);
}

#[test]
fn two_primaries_use_loans_and_base_of_both() {
    let mut world = world("");
    world.lend_all(US, &[AP, EU]);
    world.drain_all();
    let held = world.sites[US].store.snapshot();
    world.promote(US, held);
    let second = world.sites.len() - 1;
    // The others answer the second at once, and lend it all that they still hold for the first.
    let asks = [world.transit(second, &[], |_, _| ())];
    let answers = [AP, EU].map(|lender| {
        world.transit(lender, &asks, |at, terms| {
            assert!(at.lend(RegionId(2), terms.base()), "it is the same region");
        })
    });
    world.transit(second, &answers, |_, _| ());
    world.drain_for(SECOND * 3);
    exceeds(&world, 220, &[Fault::TwoPrimaries(SECOND * 3)]);
}

#[test]
fn primary_that_goes_leaves_what_it_has_lent() {
    let mut world = world("on_store_loss = \"full\"");
    world.drain_all();
    let held = world.sites[US].store.snapshot();
    world.promote(US, held);
    world.drain_for(SECOND);
    world.lend_all(AP, &[US]);
    world.drain_all();
    world.sites.remove(US);
    world.drain_for(SECOND * 4);
    exceeds(&world, 190, &[Fault::TwoPrimaries(SECOND)]);
}

#[test]
fn weights_that_have_changed_leave_a_calm_key_its_schedule() {
    let after = policy([20, 30, 50], 100, "");
    let mut world = World::new(&[policy([50, 30, 20], 100, ""), after]);
    let asks = [world.transit(EU, &[], |_, _| ())];
    world.transit(US, &asks, |at, _| {
        assert!(at.lend(RegionId(1), Share(1)), "a trifle");
    });
    world.sites.iter_mut().for_each(|site| site.version = 1);
    // `us` stays below its old share, and so nobody looks at its key.
    world.drain(AP);
    world.drain(EU);
    for _ in 0..800 {
        world.drain(AP);
        world.drain(EU);
        world.pass(TICK);
        if world.level(US) >= world.base(US).capacity {
            world.take(US, 1);
        }
    }
    world.drain_all();
    exceeds(&world, 200, &[Fault::LimitChange(Duration::ZERO)]);
}
