//! Bugs that can be planted on purpose, each a rule of PROTOCOL 3 left out, so that the checks can
//! be checked: one that nothing catches means that a check is missing (PROTOCOL 8).
//!
//! Without the feature `mutants` nothing can be planted and [`planted`] is `false` to the compiler.

#[cfg(all(feature = "mutants", not(debug_assertions)))]
compile_error!("planted bugs are never part of a release");

/// A bug to plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mutant {
    /// A region lends what it borrowed (rule 1).
    BorrowedIsLent,
    /// A row leaves before its ledger is swapped (rule 1).
    RowSentFirst,
    /// All grants to one borrower are kept subtracted, not the largest (rule 2).
    HoldsSummed,
    /// Only the newest grant is kept subtracted (rule 2).
    HoldOfNewest,
    /// A newer grant frees a longer one of the same size; every other grant is short (rule 2).
    HoldFreedByShorter,
    /// A grant counts from when it was heard (rule 3).
    CountsFromReceipt,
    /// A grant to a generation that was lost is used by the next one (rules 3 and 7).
    AnyGeneration,
    /// The tokens of a grant that died on the way are credited with the next (rule 4).
    DeadTokensComeBack,
    /// More tokens travel than the capacity that they travel with (rule 4).
    TokensAboveCapacity,
    /// Tokens are credited when the grant has ended (rule 4).
    CreditAfterEnd,
    /// A credit that was worked out in time is swapped when the grant has ended (rule 4).
    CreditSwappedLate,
    /// A renewal swapped when the hold before has ended brings the tokens of that (docs/adr/0003).
    RenewalSwappedLate,
    /// Tokens of one grant are credited again with the next (rule 4).
    CreditTwice,
    /// Capacity that was borrowed is full (rule 4).
    CapacityArrivesFull,
    /// More is credited on a give-back than the hold falls by (rule 5).
    AllCreditedOnReturn,
    /// Tokens given back to a generation that was lost are credited by the next (rules 5 and 7).
    ReturnOfAnyGeneration,
    /// Tokens given back count although their capacity was borrowed again (docs/adr/0003).
    ReturnWithoutDeadPart,
    /// A give-back that was read in time is swapped when its hold has ended (docs/adr/0003).
    ReturnSwappedLate,
    /// A give-back is read and credited when its hold has ended by itself (docs/adr/0003).
    ReturnAfterLapse,
    /// A borrower uses a grant after it said that it would not (docs/adr/0003).
    RefusedGrantUsed,
    /// A key that a shard has forgotten is taken to be full (rule 6).
    KeyCreatedFull,
    /// A bucket is settled at the share that holds now, whatever held before (rule 6).
    SettledLazily,
    /// A shard with its marker counts as one with its memory, whichever process it is (rule 7).
    RunIdIgnored,
    /// A lender that lost its memory does not hold again what is listed (rule 7).
    ListedNotHeld,
    /// A shard that lost its memory uses and lends its base share at once (rule 7).
    NoWait,
    /// The wait ends when one other region has answered, not all (rule 7).
    WaitEndsWithOne,
    /// No bug: every other grant is short. With it rule 2 has something to do.
    ShortGrants,
}

impl Mutant {
    /// All that break a rule.
    pub const BUGS: [Self; 26] = [
        Self::BorrowedIsLent,
        Self::RowSentFirst,
        Self::HoldsSummed,
        Self::HoldOfNewest,
        Self::HoldFreedByShorter,
        Self::CountsFromReceipt,
        Self::AnyGeneration,
        Self::DeadTokensComeBack,
        Self::TokensAboveCapacity,
        Self::CreditAfterEnd,
        Self::CreditSwappedLate,
        Self::RenewalSwappedLate,
        Self::CreditTwice,
        Self::CapacityArrivesFull,
        Self::AllCreditedOnReturn,
        Self::ReturnOfAnyGeneration,
        Self::ReturnWithoutDeadPart,
        Self::ReturnSwappedLate,
        Self::ReturnAfterLapse,
        Self::RefusedGrantUsed,
        Self::KeyCreatedFull,
        Self::SettledLazily,
        Self::RunIdIgnored,
        Self::ListedNotHeld,
        Self::NoWait,
        Self::WaitEndsWithOne,
    ];
}

/// Whether a bug is planted in this thread.
#[cfg(not(feature = "mutants"))]
#[must_use]
pub const fn planted(_: Mutant) -> bool {
    false
}

#[cfg(feature = "mutants")]
pub use self::switch::{plant, planted};

#[cfg(feature = "mutants")]
mod switch {
    use std::cell::Cell;

    use super::Mutant;

    std::thread_local! {
        static PLANTED: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Plants a bug in this thread, in place of the one before; `None` takes it out.
    pub fn plant(mutant: Option<Mutant>) {
        PLANTED.set(mutant);
    }

    /// Whether a bug is planted in this thread.
    #[must_use]
    pub fn planted(mutant: Mutant) -> bool {
        PLANTED.get() == Some(mutant)
    }
}
