//! The ledgers of a few regions together: seeded worlds in which everything goes wrong, and single
//! executions that once broke a rule.

#[cfg(feature = "mutants")]
mod mutants;
#[path = "../world/mod.rs"]
mod world;

use std::rc::Rc;

use region::ledger::{Ledger, schedule};

use self::world::checks::explore;
use self::world::executions::{self, BORROWER, LENDER, Loan, lend, pass, transit};
use self::world::{DEEP, DRIFT, NO_BASE, SMALL, Setting, THREE, TWO, World};

fn assert_holds(setting: Setting, seeds: std::ops::Range<u64>, borrowed_min: u64) {
    match explore(setting, seeds) {
        Ok(borrowed) => assert!(
            borrowed >= borrowed_min,
            "loans are hardly ever used ({borrowed})"
        ),
        Err(found) => panic!("{setting:?}: {found}"),
    }
}

#[test]
fn regions_together_stay_one_bucket_whatever_happens() {
    assert_holds(THREE, 0..200, 3_000);
}

#[test]
fn regions_together_stay_one_bucket_when_clocks_drift() {
    assert_holds(DRIFT, 0..200, 3_000);
}

#[test]
fn regions_together_stay_one_bucket_with_a_small_limit() {
    assert_holds(SMALL, 0..200, 1_000);
}

#[test]
fn regions_together_stay_one_bucket_that_is_slow_to_fill() {
    assert_holds(DEEP, 0..200, 3_000);
}

#[test]
fn regions_together_stay_one_bucket_when_one_has_no_base() {
    assert_holds(NO_BASE, 0..200, 2_000);
}

#[test]
fn two_regions_together_stay_one_bucket_whatever_happens() {
    assert_holds(TWO, 0..200, 2_000);
}

#[test]
fn tokens_given_back_unread_stay_dead_when_their_capacity_is_borrowed_again() {
    executions::capacity_is_borrowed_again().expect("nothing is there twice");
}

#[test]
fn tokens_given_back_are_not_credited_when_the_hold_does_not_fall() {
    executions::return_of_a_part_is_late().expect("nothing is there twice");
}

#[test]
fn tokens_given_back_unread_stay_dead_when_their_hold_has_ended_by_itself() {
    executions::hold_ends_by_itself().expect("they died with the hold");
}

#[test]
fn tokens_given_back_unread_stay_dead_when_a_smaller_renewal_outlives_their_hold() {
    executions::smaller_renewal_outlives_a_hold().expect("they died with the larger hold");
}

#[test]
fn tokens_that_came_home_are_not_credited_again_when_the_lender_forgot() {
    executions::lender_forgets_what_came_home().expect("nothing is there twice");
}

#[test]
fn renewal_brings_no_tokens_when_it_is_swapped_after_the_hold_before() {
    executions::renewal_is_swapped_late().expect("nothing is there twice");
}

#[test]
fn tokens_given_back_stay_dead_when_a_renewal_is_swapped_after_their_hold() {
    executions::renewal_revives_a_hold().expect("they died with the hold");
}

#[test]
fn grant_brings_no_more_tokens_than_it_moves_capacity() {
    executions::smaller_grant_follows_unread().expect("nothing is there twice");
}

#[test]
fn tokens_given_back_stay_dead_when_they_are_credited_after_the_hold() {
    executions::return_is_swapped_late().expect("nothing is there twice");
}

#[test]
fn bucket_refills_at_what_was_in_force_when_a_hold_ends_between_two_looks() {
    executions::hold_ends_between_two_looks().expect("nothing comes from nowhere");
}

#[test]
fn giving_back_takes_a_renewal_on_its_way_along_and_no_token_is_lost() {
    let mut loan = Loan::new();
    let (applies, part) = (Rc::clone(&loan.applies), loan.part);
    // The renewal and the give-back cross each other.
    let renews = loan.lender(&applies, |at| lend(at, part));
    let returns = loan.give_back();
    pass(&mut loan.world);
    transit(&mut loan.world, BORROWER, &[&renews], |_| ());
    assert!(
        !loan.world.borrows(BORROWER),
        "what answers an older stamp is refused"
    );
    loan.lender(&returns, |_| ());
    let base = loan.world.base(LENDER);
    let bucket = loan.world.record(LENDER).bucket;
    let pieces = base.pieces(loan.world.regions[LENDER].memory);
    assert_eq!(bucket.share(&pieces), base.share);
    assert_eq!(
        bucket.level,
        bucket.capacity(&pieces),
        "every token came home"
    );
    loan.world.check_now().expect("nothing is there twice");
}

#[test]
fn schedule_of_an_empty_ledger_is_the_base_share_for_ever() {
    let world = World::new(1, THREE);
    let terms = World::terms(&world.split, &world.regions[0]);
    let pieces = schedule::pieces(&Ledger::default(), &terms, world.now);
    assert_eq!(pieces.len(), 1);
    assert_eq!(pieces[0].share, terms.base());
}
