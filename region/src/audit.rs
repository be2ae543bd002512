//! The auditor: one ideal token bucket for each key, which sees every admission of every region.
//!
//! The largest debt that a bucket runs into is the overrun, the largest excess of what was admitted
//! over `rate * time + burst` in any interval (PROTOCOL 1 and 8). Admissions are streamed through:
//! a key takes a few numbers however many there are, and the number of keys is bounded.

use std::collections::BTreeMap;

use crate::limit::Limit;
use crate::units::{Level, Ticks, Timestamp, Tokens};

/// An ideal bucket that admits everything and remembers its largest debt.
#[derive(Clone, Copy, Debug)]
pub struct Auditor {
    limit: Limit,
    account: Account,
}

/// The auditor of many keys of one limit.
#[derive(Clone, Debug)]
pub struct Audit<K> {
    limit: Limit,
    keys_max: usize,
    accounts: BTreeMap<K, Account>,
    worst: Option<(K, Account)>,
    admitted: Tokens,
    missed: Tokens,
    /// Before this tick a search for keys that need not be remembered finds none.
    full_at: Ticks,
}

/// All that is kept of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Account {
    level: Level,
    at: Ticks,
    worst: Level,
    admitted: Tokens,
}

impl Auditor {
    /// Starts full, with nothing admitted.
    #[must_use]
    pub fn new(limit: Limit) -> Self {
        let account = Account::new(&limit);
        Self { limit, account }
    }

    /// Counts an admission. Admissions come in the order of time; one that is out of order counts
    /// at the time already reached, which can only make the overrun look larger.
    pub fn admit(&mut self, at: Timestamp, cost: Tokens) {
        self.account.admit(&self.limit, at, cost);
    }

    /// Whether the ideal bucket itself would admit a cost now.
    pub fn would_admit(&mut self, at: Timestamp, cost: Tokens) -> bool {
        self.account.would_admit(&self.limit, at, cost)
    }

    /// What the ideal bucket holds at an instant; below zero where too much was admitted.
    pub fn level(&mut self, at: Timestamp) -> Level {
        self.account.advance(&self.limit, at);
        self.account.level
    }

    /// The tokens admitted beyond the limit, rounded up; zero means that all regions together
    /// behaved as one bucket.
    #[must_use]
    pub fn overrun(&self) -> Tokens {
        self.account.overrun(&self.limit)
    }

    /// All tokens admitted.
    #[must_use]
    pub const fn admitted(&self) -> Tokens {
        self.account.admitted
    }
}

impl<K: Ord + Clone> Audit<K> {
    /// Nothing admitted yet; at most `keys_max` keys are remembered at a time.
    ///
    /// A key whose bucket is full again says the same as one that was never seen, so that it is
    /// forgotten where room is needed, and nothing is lost by that. What is admitted to a new key
    /// while all others are in use is counted as [`Audit::missed`].
    #[must_use]
    pub const fn new(limit: Limit, keys_max: usize) -> Self {
        Self {
            limit,
            keys_max,
            accounts: BTreeMap::new(),
            worst: None,
            admitted: Tokens(0),
            missed: Tokens(0),
            full_at: Ticks(0),
        }
    }

    /// Counts an admission. Admissions come in the order of time.
    pub fn admit(&mut self, key: &K, at: Timestamp, cost: Tokens) {
        let limit = self.limit;
        let Some(account) = self.account(key, at) else {
            self.missed = Tokens(self.missed.0.saturating_add(cost.0));
            return;
        };
        account.admit(&limit, at, cost);
        let account = *account;
        self.admitted = Tokens(self.admitted.0.saturating_add(cost.0));
        if account.overrun(&limit) > self.overrun() {
            self.worst = Some((key.clone(), account));
        }
    }

    /// Whether the ideal bucket of a key would admit a cost now.
    pub fn would_admit(&mut self, key: &K, at: Timestamp, cost: Tokens) -> bool {
        let limit = self.limit;
        let account = self.account(key, at);
        account.is_some_and(|account| account.would_admit(&limit, at, cost))
    }

    /// The tokens admitted beyond the limit to the key that had most of them.
    #[must_use]
    pub fn overrun(&self) -> Tokens {
        let worst = self.worst.as_ref();
        worst.map_or(Tokens(0), |(_, account)| account.overrun(&self.limit))
    }

    /// The key that had most tokens beyond the limit, if any had; of several the first.
    #[must_use]
    pub fn worst(&self) -> Option<&K> {
        self.worst.as_ref().map(|(key, _)| key)
    }

    /// All tokens admitted that were audited.
    #[must_use]
    pub const fn admitted(&self) -> Tokens {
        self.admitted
    }

    /// Tokens admitted to keys for which there was no room. Nothing is known of their overrun.
    #[must_use]
    pub const fn missed(&self) -> Tokens {
        self.missed
    }

    /// How many keys are remembered.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.accounts.len()
    }

    /// What is known of one key, to go on from.
    #[must_use]
    pub fn of(&self, key: &K) -> Auditor {
        let known = self.accounts.get(key).copied();
        Auditor {
            limit: self.limit,
            account: known.unwrap_or_else(|| Account::new(&self.limit)),
        }
    }

    fn account(&mut self, key: &K, at: Timestamp) -> Option<&mut Account> {
        if !self.accounts.contains_key(key) {
            if self.accounts.len() >= self.keys_max {
                self.sweep(at);
            }
            if self.accounts.len() >= self.keys_max {
                return None;
            }
            self.accounts.insert(key.clone(), Account::new(&self.limit));
        }
        self.accounts.get_mut(key)
    }

    /// Forgets the keys whose buckets are full again, if there can be any.
    fn sweep(&mut self, at: Timestamp) {
        let (limit, now) = (self.limit, self.limit.tick().floor(at));
        if now < self.full_at {
            return;
        }
        self.accounts
            .retain(|_, account| account.full_at(&limit) > now);
        let next = self.accounts.values().map(|known| known.full_at(&limit));
        self.full_at = next.min().unwrap_or_default();
    }
}

impl Account {
    fn new(limit: &Limit) -> Self {
        let full = limit.level(limit.burst());
        Self {
            level: full,
            at: Ticks(0),
            worst: full,
            admitted: Tokens(0),
        }
    }

    fn admit(&mut self, limit: &Limit, at: Timestamp, cost: Tokens) {
        self.advance(limit, at);
        self.level = self.level.minus(limit.level(cost));
        self.worst = self.worst.min(self.level);
        self.admitted = Tokens(self.admitted.0.saturating_add(cost.0));
    }

    fn would_admit(&mut self, limit: &Limit, at: Timestamp, cost: Tokens) -> bool {
        self.advance(limit, at);
        self.level >= limit.level(cost)
    }

    fn overrun(&self, limit: &Limit) -> Tokens {
        let debt = Level(self.worst.0.saturating_neg()).positive();
        Tokens(
            debt.0
                .unsigned_abs()
                .div_ceil(limit.token().0.unsigned_abs()),
        )
    }

    /// The tick from which on the bucket is full if nothing more is admitted.
    fn full_at(&self, limit: &Limit) -> Ticks {
        let missing = limit.level(limit.burst()).minus(self.level).positive();
        let ticks = missing.0.unsigned_abs().div_ceil(limit.total().0.max(1));
        Ticks(self.at.0.saturating_add(ticks))
    }

    fn advance(&mut self, limit: &Limit, at: Timestamp) {
        let now = limit.tick().floor(at).max(self.at);
        let full = limit.level(limit.burst());
        let refill = limit.total().over(now.since(self.at));
        self.level = self.level.plus(refill).min(full);
        self.at = now;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn auditor() -> Auditor {
        let limit = Limit::try_new(Tokens(10), Duration::from_secs(1), Tokens(5));
        Auditor::new(limit.expect("an exact limit"))
    }

    #[test]
    fn auditor_sees_no_overrun_in_what_one_bucket_admits() {
        let mut auditor = auditor();
        for n in 0..100_u64 {
            let at = Timestamp(1_000_000 + n * 10_000);
            if auditor.would_admit(at, Tokens(1)) {
                auditor.admit(at, Tokens(1));
            }
        }
        assert_eq!(auditor.overrun(), Tokens(0));
        assert_eq!(auditor.admitted(), Tokens(14));
    }

    #[test]
    fn auditor_finds_the_worst_interval_wherever_it_lies() {
        let mut auditor = auditor();
        auditor.admit(Timestamp(1_000_000), Tokens(5));
        auditor.admit(Timestamp(1_100_000), Tokens(4));
        assert_eq!(auditor.overrun(), Tokens(3));
        auditor.admit(Timestamp(9_000_000), Tokens(5));
        assert_eq!(
            auditor.overrun(),
            Tokens(3),
            "a later quiet time does not undo it"
        );
    }

    fn audit(keys_max: usize) -> Audit<u32> {
        Audit::new(auditor().limit, keys_max)
    }

    #[test]
    fn audit_names_the_worst_of_a_hundred_thousand_keys_in_constant_memory_for_each() {
        fn holds_nothing_on_the_heap<T: Copy>() {}
        holds_nothing_on_the_heap::<Account>();
        assert_eq!(size_of::<Account>(), 32);
        let mut audit = audit(100_000);
        for round in 0..20_u64 {
            for key in 0..100_000_u32 {
                let at = Timestamp(1_000_000 + round * 500_000 + u64::from(key));
                let cost = if key == 77_777 && round == 9 { 8 } else { 1 };
                audit.admit(&key, at, Tokens(cost));
            }
            assert_eq!(audit.keys(), 100_000);
        }
        assert_eq!((audit.overrun(), audit.worst()), (Tokens(3), Some(&77_777)));
        assert_eq!(audit.admitted(), Tokens(2_000_007));
        assert_eq!(audit.missed(), Tokens(0));
    }

    #[test]
    fn audit_forgets_only_keys_that_are_full_again() {
        let (mut bounded, mut whole) = (audit(2), audit(1_000));
        let mut dice = 1_u64;
        for n in 0..10_000_u64 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Two keys at a time, for longer than their buckets need to fill; then two others.
            let key = u32::try_from(n / 100 * 2 + (dice >> 33) % 2).expect("small");
            let at = Timestamp(1_000_000 + n * 30_000 + n / 100 * 10_000_000);
            bounded.admit(&key, at, Tokens(1));
            whole.admit(&key, at, Tokens(1));
        }
        assert!(whole.overrun() > Tokens(0));
        assert_eq!(bounded.overrun(), whole.overrun());
        assert_eq!(bounded.worst(), whole.worst());
        assert_eq!((bounded.keys(), bounded.missed()), (2, Tokens(0)));
    }

    #[test]
    fn audit_says_what_it_has_missed_when_every_key_is_in_use() {
        let mut audit = audit(1);
        audit.admit(&1, Timestamp(1_000_000), Tokens(5));
        audit.admit(&2, Timestamp(1_100_000), Tokens(9));
        assert_eq!((audit.missed(), audit.overrun()), (Tokens(9), Tokens(0)));
        audit.admit(&2, Timestamp(1_500_000), Tokens(9));
        assert_eq!((audit.missed(), audit.worst()), (Tokens(9), Some(&2)));
        assert_eq!(audit.of(&2).overrun(), Tokens(4));
    }
}
