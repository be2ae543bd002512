//! What one policy decided on one request, and which of several decisions is the strictest.

use std::cmp::Reverse;
use std::time::Duration;

use crate::bucket::{Base, Bucket, Piece};
use crate::limit::Limit;
use crate::units::{Level, Stamp, Tokens};

/// What one policy decided, in the terms of the rate limit headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    /// Whether this policy could pay. The request passes only if all its policies could.
    pub allowed: bool,
    /// The policy's rate, in tokens per its period.
    pub limit: Tokens,
    /// What this region could still admit at once.
    pub remaining: Tokens,
    /// The time until the bucket is full again; `None` where that is not known.
    pub reset_after: Option<Duration>,
    /// The shortest wait after which the same request passes; `None` if it was allowed or can
    /// never pass.
    pub retry_after: Option<Duration>,
}

impl Decision {
    /// The decision of a policy that denies everything: only what costs nothing passes.
    #[must_use]
    pub fn none(cost: Tokens) -> Self {
        Self {
            allowed: cost == Tokens(0),
            limit: Tokens(0),
            remaining: Tokens(0),
            reset_after: None,
            retry_after: None,
        }
    }

    /// How strict a decision is: a denial before an admission; of denials the one that lasts
    /// longest, with one that never ends as the longest; of admissions the one with least left.
    #[must_use]
    pub fn strictness(&self) -> impl Ord + use<> {
        let wait = match (self.allowed, self.retry_after) {
            (true, _) => Duration::ZERO,
            (false, Some(wait)) => wait,
            (false, None) => Duration::MAX,
        };
        (!self.allowed, wait, Reverse(self.remaining))
    }
}

/// One key of a check as its shard answered it: the ground of a decision.
#[derive(Clone, Copy, Debug)]
pub struct Ground<'a> {
    /// The limit that the bucket keeps.
    pub limit: &'a Limit,
    /// What may be used beyond the limit, over all regions together.
    pub overrun: Tokens,
    /// The region's base part of the limit.
    pub base: &'a Base,
    /// The schedule of a key without a ledger.
    pub pieces: &'a [Piece; 2],
    /// The bucket as it stands after the request, settled to `stamp`.
    pub bucket: &'a Bucket,
    /// The instant of the decision.
    pub stamp: Stamp,
}

impl Ground<'_> {
    /// What the answer means to the client that asked for `cost`.
    #[must_use]
    pub fn decision(&self, cost: Tokens, allowed: bool) -> Decision {
        let at_hand = self.bucket.level.plus(self.base.debt);
        Decision {
            allowed,
            limit: self.limit.rate(),
            remaining: self.limit.tokens(at_hand),
            reset_after: self.reset_after(),
            retry_after: if allowed {
                None
            } else {
                self.retry_after(cost)
            },
        }
    }

    /// The time until the bucket holds all it can: what it can now, or can in the end, whichever is
    /// more; if it never does, what it can in the end.
    fn reset_after(&self) -> Option<Duration> {
        let last = self.bucket.schedule(self.pieces).last()?.capacity;
        let full = self.bucket.capacity(self.pieces).max(last);
        self.wait_for(full).or_else(|| self.wait_for(last))
    }

    /// The smallest whole number of microseconds after which `cost` passes with no other traffic.
    ///
    /// What exceeds this region's capacity can only be paid with capacity that is lent to it, which
    /// takes at least as long as the whole limit needs to earn it.
    fn retry_after(&self, cost: Tokens) -> Option<Duration> {
        if !is_possible(self.limit, self.overrun, cost) {
            return None;
        }
        let price = self.limit.level(cost);
        self.wait_for(price.minus(self.base.debt)).or_else(|| {
            let ticks = price.0.unsigned_abs().div_ceil(self.limit.total().0);
            let tick = self.base.tick.micros();
            Some(Duration::from_micros(ticks.saturating_mul(tick)))
        })
    }

    /// The time until the level reaches `target` with no other traffic, to the microsecond: from
    /// the stamp, which may lie within a tick, to the beginning of the tick that reaches it.
    fn wait_for(&self, target: Level) -> Option<Duration> {
        let ticks = self.bucket.time_to(target, self.pieces)?;
        if ticks.0 == 0 {
            return Some(Duration::ZERO);
        }
        let reached = self.bucket.at.0.saturating_add(ticks.0);
        let reached = reached.saturating_mul(self.base.tick.micros());
        Some(Duration::from_micros(
            reached.saturating_sub(self.stamp.clock.0),
        ))
    }
}

/// Whether a request of this cost can ever pass, if all regions lend what they have.
pub(crate) const fn is_possible(limit: &Limit, overrun: Tokens, cost: Tokens) -> bool {
    cost.0 <= limit.burst().0.saturating_add(overrun.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bucket::{Lost, Memory};
    use crate::units::{Generation, Share, Tick, Ticks, Timestamp};

    /// Ten tokens per second, burst ten.
    fn limit() -> Limit {
        let limit = Limit::try_new(Tokens(10), Duration::from_secs(1), Tokens(10));
        limit.expect("exact")
    }

    fn base(limit: &Limit) -> Base {
        Base {
            tick: Tick::Micro,
            token: limit.token(),
            share: limit.total(),
            capacity: limit.level(Tokens(10)),
            floor: Level::ZERO,
            wait: Duration::ZERO,
            debt: Level::ZERO,
            lost: Lost::Empty,
        }
    }

    /// A bucket with a schedule of its own: a few pieces from `at` on, the last without an end.
    fn scheduled() -> impl Strategy<Value = Bucket> {
        let piece = (1_u64..2_000, 0_u64..30_000_000, 0_i64..1_000);
        let pieces = prop::collection::vec(piece, 1..5);
        (pieces, -300_i64..1_000).prop_map(|(pieces, level)| {
            let mut until = 1_000;
            let mut pieces: Vec<Piece> = pieces
                .into_iter()
                .map(|(length, share, capacity)| {
                    until += length * 10;
                    Piece {
                        until: Ticks(until),
                        share: Share(share),
                        capacity: Level(capacity * 1_000_000_000),
                    }
                })
                .collect();
            if let Some(last) = pieces.last_mut() {
                last.until = Ticks::NEVER;
            }
            Bucket {
                level: Level(level * 1_000_000_000).min(pieces[0].capacity),
                at: Ticks(1_000),
                count: None,
                pieces,
            }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn retry_holds_along_any_schedule(bucket in scheduled(), cost in 1_u64..10) {
            let limit = limit();
            let base = base(&limit);
            let pieces = base.pieces(Memory::default());
            let price = limit.level(Tokens(cost));
            prop_assume!(!bucket.affords(price, base.debt));
            let ground = Ground {
                limit: &limit,
                overrun: Tokens(0),
                base: &base,
                pieces: &pieces,
                bucket: &bucket,
                stamp: Stamp { generation: Generation(0), clock: Timestamp(1_000) },
            };
            let affords_at = |micros: u64| {
                let mut later = bucket.clone();
                later.settle(Ticks(1_000 + micros), base.tick, &pieces);
                later.affords(price, base.debt)
            };
            let retry = ground.decision(Tokens(cost), false).retry_after.expect("possible");
            match ground.wait_for(price) {
                Some(wait) => {
                    prop_assert_eq!(wait, retry);
                    let wait = crate::units::micros(wait);
                    prop_assert!(affords_at(wait) && !affords_at(wait - 1));
                }
                // Never without help: as long as the whole limit needs for it.
                None => prop_assert_eq!(retry, Duration::from_millis(cost * 100)),
            }
        }
    }

    #[test]
    fn retry_is_exact_within_a_long_tick() {
        let limit = Limit::try_new(Tokens(1), Duration::from_secs(120), Tokens(1));
        let limit = limit.expect("exact");
        let base = Base {
            tick: Tick::Milli,
            ..base(&limit)
        };
        let pieces = base.pieces(Memory::default());
        let bucket = Bucket {
            level: Level::ZERO,
            at: Ticks(5),
            count: None,
            pieces: Vec::new(),
        };
        let ground = Ground {
            limit: &limit,
            overrun: Tokens(0),
            base: &base,
            pieces: &pieces,
            bucket: &bucket,
            stamp: Stamp {
                generation: Generation(0),
                clock: Timestamp(5_700),
            },
        };
        let retry = ground.decision(Tokens(1), false).retry_after;
        assert_eq!(retry, Some(Duration::from_micros(120_000_000 - 700)));
    }

    #[test]
    fn strictness_puts_denials_first_and_the_longest_before_the_others() {
        let decision = |allowed, remaining, retry_after: Option<u64>| Decision {
            allowed,
            limit: Tokens(10),
            remaining: Tokens(remaining),
            reset_after: None,
            retry_after: retry_after.map(Duration::from_secs),
        };
        let lenient_first = [
            decision(true, 5, None),
            decision(true, 1, None),
            decision(false, 3, Some(1)),
            decision(false, 3, Some(2)),
            decision(false, 3, None),
        ];
        assert!(lenient_first.is_sorted_by_key(Decision::strictness));
    }
}
