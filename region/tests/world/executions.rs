//! Single executions, each of which breaks the protocol without one of its rules. Random worlds
//! meet them once in many thousand seeds.

use std::rc::Rc;
use std::time::Duration;

use region::ledger::Row;
use region::ledger::transition::Transition;
use region::units::{RegionId, Share};

use super::checks::Broken;
use super::{DEEP, Setting, THREE, World};

/// What each checks, by its name.
#[cfg(feature = "mutants")]
pub(crate) const ALL: [(&str, Execution); 10] = [
    ("capacity is borrowed again", capacity_is_borrowed_again),
    ("return of a part is late", return_of_a_part_is_late),
    ("hold ends by itself", hold_ends_by_itself),
    (
        "smaller renewal outlives a hold",
        smaller_renewal_outlives_a_hold,
    ),
    (
        "lender forgets what came home",
        lender_forgets_what_came_home,
    ),
    ("renewal is swapped late", renewal_is_swapped_late),
    ("renewal revives a hold", renewal_revives_a_hold),
    ("smaller grant follows unread", smaller_grant_follows_unread),
    ("return is swapped late", return_is_swapped_late),
    ("hold ends between two looks", hold_ends_between_two_looks),
];

/// Says whether a rule was broken.
#[cfg(feature = "mutants")]
pub(crate) type Execution = fn() -> Result<(), Broken>;

/// Who borrows, and of whom.
pub(crate) const BORROWER: usize = 0;
pub(crate) const LENDER: usize = 2;

/// Three regions of which one has borrowed a part of the limit, and the lender knows.
pub(crate) struct Loan {
    pub(crate) world: World,
    pub(crate) part: Share,
    /// The borrower's row that says that it uses the loan.
    pub(crate) applies: Rc<Row>,
}

impl Loan {
    pub(crate) fn new() -> Self {
        Self::in_setting(THREE)
    }

    fn in_setting(setting: Setting) -> Self {
        let mut world = World::new(1, setting);
        let part = Share(world.split.limit().total().0 * 3 / 10);
        let asks = transit(&mut world, BORROWER, &[], |_| ());
        pass(&mut world);
        let lends = transit(&mut world, LENDER, &[&asks], |at| lend(at, part));
        pass(&mut world);
        let applies = transit(&mut world, BORROWER, &[&lends], |_| ());
        pass(&mut world);
        Self {
            world,
            part,
            applies,
        }
    }

    /// The lender hears a row and does something; returns what it says then.
    pub(crate) fn lender(
        &mut self,
        row: &Rc<Row>,
        act: impl FnOnce(&mut Transition<'_>),
    ) -> Rc<Row> {
        transit(&mut self.world, LENDER, &[row], act)
    }

    /// The borrower gives back what it has borrowed.
    pub(crate) fn give_back(&mut self) -> Rc<Row> {
        transit(&mut self.world, BORROWER, &[], |at| {
            at.give_back(RegionId(2));
        })
    }

    /// Nobody has a token any more; then nothing may be there for the lender, either.
    fn nothing_comes_home(&mut self, row: &Rc<Row>) -> Result<(), Broken> {
        take_all(&mut self.world);
        transit(&mut self.world, LENDER, &[row], |_| ());
        self.world.check_now()
    }
}

/// A little time passes.
pub(crate) fn pass(world: &mut World) {
    world.pass(Duration::from_millis(10));
}

pub(crate) fn lend(at: &mut Transition<'_>, share: Share) {
    assert!(at.lend(RegionId(0), share), "there is enough to lend");
}

/// One transition of a region, swapped at once: it hears rows, then does something.
pub(crate) fn transit(
    world: &mut World,
    index: usize,
    heard: &[&Rc<Row>],
    act: impl FnOnce(&mut Transition<'_>),
) -> Rc<Row> {
    let pending = world.transit(index, &[], |transition, _| {
        for row in heard {
            transition.hear(row).expect("a new row");
        }
        act(transition);
    });
    assert!(world.swap(index, pending), "nobody else was first");
    Rc::clone(world.rows.back().expect("the swap sent one"))
}

/// A small and a large grant are on their way at once. The borrower cuts its bucket for the small
/// one and its capacity comes back empty with the large one, and fills. Returns its two rows.
fn shrink_and_grow(loan: &mut Loan) -> (Rc<Row>, Rc<Row>) {
    let (applies, part) = (Rc::clone(&loan.applies), loan.part);
    let less = Share(part.0 / 3);
    let shrinks = loan.lender(&applies, |at| lend(at, less));
    let grows = transit(&mut loan.world, LENDER, &[], |at| lend(at, part));
    pass(&mut loan.world);
    let small = transit(&mut loan.world, BORROWER, &[&shrinks], |_| ());
    let large = transit(&mut loan.world, BORROWER, &[&grows], |_| ());
    loan.world.pass(Duration::from_secs(1));
    (small, large)
}

/// The row that gives a part back is lost; all that counts is given back later.
pub(crate) fn capacity_is_borrowed_again() -> Result<(), Broken> {
    let mut loan = Loan::new();
    shrink_and_grow(&mut loan);
    loan.world.take(BORROWER, 100);
    let returns = loan.give_back();
    loan.nothing_comes_home(&returns)
}

/// The row that gives a part back is late, and lowers nothing any more.
pub(crate) fn return_of_a_part_is_late() -> Result<(), Broken> {
    let mut loan = Loan::new();
    let (small, _) = shrink_and_grow(&mut loan);
    loan.nothing_comes_home(&small)
}

/// The row that gives back is lost. The hold ends, its capacity comes back empty and fills, and the
/// next grant answers the borrower's stamp from before.
pub(crate) fn hold_ends_by_itself() -> Result<(), Broken> {
    let mut loan = Loan::new();
    let (applies, part) = (Rc::clone(&loan.applies), loan.part);
    loan.lender(&applies, |_| ());
    pass(&mut loan.world);
    let returns = loan.give_back();
    loan.world.pass(Duration::from_secs(5));
    loan.world.take(LENDER, 100);
    transit(&mut loan.world, LENDER, &[], |at| lend(at, part));
    loan.nothing_comes_home(&returns)
}

/// A renewal for less outlives the hold of the larger grant, whose tokens are on their way home.
pub(crate) fn smaller_renewal_outlives_a_hold() -> Result<(), Broken> {
    let mut loan = Loan::new();
    let (applies, part) = (Rc::clone(&loan.applies), loan.part);
    loan.world.pass(Duration::from_secs(1));
    let less = Share(part.0 * 2 / 3);
    let shrinks = loan.lender(&applies, |at| lend(at, less));
    // From here on no row of the borrower arrives: not the one that gives a part back, either.
    transit(&mut loan.world, BORROWER, &[&shrinks], |_| ());
    loan.world.pass(Duration::from_millis(1_600));
    loan.world.take(BORROWER, 100);
    let returns = loan.give_back();
    loan.nothing_comes_home(&returns)
}

/// A loan has come home before its lender loses its memory, and is told of again afterwards.
pub(crate) fn lender_forgets_what_came_home() -> Result<(), Broken> {
    let mut loan = Loan::new();
    let applies = Rc::clone(&loan.applies);
    loan.lender(&applies, |_| ());
    let returns = loan.give_back();
    loan.lender(&returns, |_| ());
    loan.world.forget(LENDER);
    let begins = transit(&mut loan.world, LENDER, &[], |_| ());
    pass(&mut loan.world);
    let echoes = transit(&mut loan.world, BORROWER, &[&begins], |_| ());
    loan.nothing_comes_home(&echoes)
}

/// A first grant is lost. A smaller one is worked out while that may still arrive, and swapped by a
/// slow node when its hold has ended and its capacity has filled again.
pub(crate) fn renewal_is_swapped_late() -> Result<(), Broken> {
    let (mut world, less) = lent_unheard();
    let asks = transit(&mut world, BORROWER, &[], |_| ());
    let renews = world.transit(LENDER, &[asks], |at, _| lend(at, less));
    world.pass(Duration::from_millis(1_300));
    take_all(&mut world);
    // A swap that comes too late is refused, and worked out anew on what is there now.
    if world.swap(LENDER, renews) {
        let lends = Rc::clone(world.rows.back().expect("the swap sent one"));
        transit(&mut world, BORROWER, &[&lends], |_| ());
    }
    world.check_now()
}

/// A loan is given back, and the row that says so is late. A renewal is worked out while the hold
/// lives, and swapped by a slow node when that has ended and its capacity has filled again.
pub(crate) fn renewal_revives_a_hold() -> Result<(), Broken> {
    let mut loan = Loan::new();
    let (applies, part) = (Rc::clone(&loan.applies), loan.part);
    loan.lender(&applies, |_| ());
    pass(&mut loan.world);
    let returns = loan.give_back();
    loan.world.pass(Duration::from_millis(1_600));
    let renews = loan.world.transit(LENDER, &[], |at, _| lend(at, part));
    loan.world.pass(Duration::from_millis(1_300));
    take_all(&mut loan.world);
    // Refused, it would be worked out anew, with a hold that has ended.
    loan.world.swap(LENDER, renews);
    loan.nothing_comes_home(&returns)
}

/// A first grant is lost, and the smaller one that follows arrives when the hold of the first has
/// ended and its capacity has filled again.
pub(crate) fn smaller_grant_follows_unread() -> Result<(), Broken> {
    let (mut world, less) = lent_unheard();
    let asks = transit(&mut world, BORROWER, &[], |_| ());
    let lends = transit(&mut world, LENDER, &[&asks], |at| lend(at, less));
    world.pass(Duration::from_millis(1_300));
    world.take(BORROWER, 100);
    transit(&mut world, BORROWER, &[&lends], |_| ());
    world.check_now()
}

/// A give-back is read while its hold lives, and swapped by a slow node when that has ended and its
/// capacity has filled again.
pub(crate) fn return_is_swapped_late() -> Result<(), Broken> {
    let mut loan = Loan::new();
    let applies = Rc::clone(&loan.applies);
    loan.lender(&applies, |_| ());
    let returns = loan.give_back();
    loan.world.pass(Duration::from_millis(2_300));
    let credits = loan.world.transit(LENDER, &[returns], |_, _| ());
    loan.world.pass(Duration::from_secs(1));
    take_all(&mut loan.world);
    loan.world.swap(LENDER, credits);
    loan.world.check_now()
}

/// A lender that is empty is looked at again only when its hold has ended: until then it refilled
/// at what was left to it.
pub(crate) fn hold_ends_between_two_looks() -> Result<(), Broken> {
    let mut loan = Loan::in_setting(DEEP);
    take_all(&mut loan.world);
    for millis in [1_900, 500] {
        loan.world.pass(Duration::from_millis(millis));
        loan.world.take(BORROWER, 100);
        loan.world.take(1, 100);
    }
    loan.world.pass(Duration::from_millis(200));
    loan.world.check_now()
}

/// A grant that nobody has heard, more than a second old, and a third of what it lends.
fn lent_unheard() -> (World, Share) {
    let mut world = World::new(1, THREE);
    let part = Share(world.split.limit().total().0 * 3 / 10);
    let asks = transit(&mut world, BORROWER, &[], |_| ());
    pass(&mut world);
    transit(&mut world, LENDER, &[&asks], |at| lend(at, part));
    world.pass(Duration::from_millis(1_600));
    (world, Share(part.0 / 3))
}

fn take_all(world: &mut World) {
    for index in 0..world.regions.len() {
        world.take(index, 100);
    }
}
