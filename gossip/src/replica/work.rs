//! One key in work: what it waits for, what it is offered, what it has said.

use std::collections::BTreeMap;
use std::time::Duration;

use region::bucket::{Bucket, Count};
use region::ledger::transition::Transition;
use region::ledger::{Entry, GRANT_TTL, Row};
use region::limit::{Limit, Split};
use region::plan::{Demand, Own};
use region::units::{EXACT_MAX, RegionId, Share, Ticks, Timestamp, Tokens};

use super::{TICK, WATCHED_FOR};

/// How long after its last sign a key counts as under pressure.
const PRESSED_FOR: Duration = Duration::from_millis(200);

/// How long a key is looked at often after something has happened.
const LIVELY_FOR: Duration = Duration::from_millis(500);

/// How long a request that the capacity cannot hold is remembered, for its client to come again.
const WANTED_FOR: Duration = GRANT_TTL;

/// The life of a grant after which a borrower asks for the next: a third.
const RENEW_AFTER: Duration = GRANT_TTL.checked_div(3).expect("three is not zero");

/// How long a borrower waits for an answer before it asks again.
const ASK_AGAIN: Duration = GRANT_TTL.checked_div(6).expect("six is not zero");

/// A demand that differs by less than one part in so many of the limit is not news.
const NEWS_PARTS: u64 = 50;

/// Where a key stands between load and swap.
#[derive(Debug, Default)]
pub(super) enum Phase {
    /// Nothing is asked of the store.
    #[default]
    Idle,
    /// A load is on the way; these rows will be heard on what it returns.
    Loading {
        /// The rows, at most one of a region.
        rows: Vec<Row>,
    },
    /// A swap is on the way.
    Swapping {
        /// The rows that it has heard.
        rows: Vec<Row>,
        /// What the ledger says once it is done.
        row: Row,
        /// Whether that is to be said.
        due: bool,
    },
}

#[derive(Debug)]
pub(super) struct Work {
    pub(super) phase: Phase,
    pub(super) heard: BTreeMap<RegionId, Row>,
    pub(super) loaded_at: Option<Timestamp>,
    pub(super) next: Timestamp,
    pub(super) lively_until: Timestamp,
    pub(super) tries: u8,
    pub(super) holds_loans: bool,
    pub(super) repeat: bool,
    pressed_at: Option<Timestamp>,
    wanted: Option<(Tokens, Timestamp)>,
    demand: Demand,
    counted: Option<(Count, Ticks)>,
    said: Option<Row>,
    said_at: Timestamp,
    watched_until: Timestamp,
}

impl Phase {
    pub(super) fn take(&mut self) -> Self {
        std::mem::take(self)
    }
}

impl Work {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            phase: Phase::Idle,
            heard: BTreeMap::new(),
            loaded_at: None,
            next: Timestamp::NEVER,
            lively_until: now.plus(LIVELY_FOR),
            tries: 0,
            holds_loans: false,
            repeat: false,
            pressed_at: None,
            wanted: None,
            demand: Demand::default(),
            counted: None,
            said: None,
            said_at: Timestamp::default(),
            watched_until: now.plus(WATCHED_FOR),
        }
    }

    /// Notes a sign of pressure.
    pub(super) fn press(&mut self, now: Timestamp, wanted: Tokens) {
        if !self.is_pressed(now) {
            self.stir(now);
        }
        self.pressed_at = Some(now);
        self.watched_until = now.plus(WATCHED_FOR);
        let remembered = self.wanted.filter(|(_, at)| now.since(*at) < WANTED_FOR);
        if wanted > remembered.map_or(Tokens(0), |(tokens, _)| tokens) {
            self.wanted = Some((wanted, now));
        } else if wanted > Tokens(0) {
            self.wanted = remembered.map(|(tokens, _)| (tokens, now));
        }
    }

    /// Keeps the newest row of each region; returns whether this one is.
    pub(super) fn hear(&mut self, now: Timestamp, row: Row) -> bool {
        let newest = self.heard.get(&row.region).map(|known| known.version);
        if newest >= Some(row.version) {
            return false;
        }
        self.watched_until = self.watched_until.max(now.plus(WATCHED_FOR));
        self.heard.insert(row.region, row);
        true
    }

    /// Returns to rest after a failure; nothing heard is lost.
    pub(super) fn put_back(&mut self) {
        let rows = match self.phase.take() {
            Phase::Idle => Vec::new(),
            Phase::Loading { rows } | Phase::Swapping { rows, .. } => rows,
        };
        for row in rows {
            self.heard.entry(row.region).or_insert(row);
        }
    }

    /// Has the key looked at often for a while.
    pub(super) fn stir(&mut self, now: Timestamp) {
        self.lively_until = now.plus(LIVELY_FOR);
    }

    /// Takes a sample of what was offered since the last look.
    pub(super) fn measure(&mut self, limit: &Limit, bucket: &Bucket) {
        let Some(count) = bucket.count else {
            self.counted = None;
            return;
        };
        if let Some((earlier, at)) = self.counted
            && let Some(offered) = count.offered_since(earlier)
        {
            let elapsed = bucket.at.since(at);
            self.demand.sample(limit, Tokens(offered), elapsed);
        }
        self.counted = Some((count, bucket.at));
    }

    /// What to plan with: the measured demand, or the share whose capacity a request waits for.
    pub(super) fn demand(&self, now: Timestamp, split: &Split) -> Share {
        let measured = self.demand.rate(split.limit());
        let wanted = self.wanted.filter(|(_, at)| now.since(*at) < WANTED_FOR);
        let wanted = wanted.map(|(tokens, _)| split.share_for(split.limit().level(tokens)));
        let demand = measured.max(wanted.unwrap_or_default());
        // A row with a larger number would be refused, and nobody would hear this region.
        demand.min(Share(EXACT_MAX))
    }

    /// Whether a plan can be made: demand is known, or a request says what it needs.
    pub(super) const fn ready(&self) -> bool {
        self.demand.known() || self.wanted.is_some()
    }

    /// Whether the region is denying, or about to, for want of share.
    pub(super) fn starves(&self, now: Timestamp, demand: Share, at: &Transition<'_>) -> bool {
        self.is_pressed(now) && demand > at.share()
    }

    /// Whether the others must be told what the ledger now says.
    pub(super) fn is_due(
        &self,
        now: Timestamp,
        at: &Transition<'_>,
        own: Own,
        limit: &Limit,
    ) -> bool {
        let since = now.since(self.said_at);
        if self.said.is_some() && since < TICK.mul_f32(0.9) {
            return false;
        }
        let entries = at.entries();
        // That a renewal has been applied is no news: the lender holds as much either way.
        let substance = |entry: &Entry| {
            let grant = entry.grant.map(|grant| grant.sequence);
            let applied = entry.applied.map(|applied| applied.share);
            (
                entry.region,
                grant,
                applied,
                entry.returned,
                entry.recalled,
                entry.seen.generation,
            )
        };
        let none = Vec::new();
        let said = self.said.as_ref().map_or(&none, |row| &row.entries);
        let changed = if self.said.is_some() {
            !said.iter().map(substance).eq(entries.iter().map(substance))
        } else {
            entries.iter().any(has_loan)
        };
        if changed || (self.repeat && self.said.is_some()) {
            return true;
        }
        if at.waits() {
            let told = self.said.as_ref().map(|row| row.version.generation);
            return told != Some(at.stamp().generation) || since >= ASK_AGAIN;
        }
        let borrows = entries.iter().any(|entry| entry.applied.is_some());
        let told = self.said.as_ref().map_or(Share::ZERO, |row| row.demand);
        let change = own.demand.0.abs_diff(told.0);
        let news = change > (limit.total().0 / NEWS_PARTS).max(told.0 / 10);
        if own.starving && self.ready() && (news || since >= RENEW_AFTER) {
            return true;
        }
        (borrows && news && since >= TICK * 5) || (at.renews(RENEW_AFTER) && since >= ASK_AGAIN)
    }

    /// Whether the row of the swap on its way has a grant in it that has not been said yet.
    pub(super) fn lends_anew(&self) -> bool {
        let Phase::Swapping { row, due: true, .. } = &self.phase else {
            return false;
        };
        row.entries.iter().any(|entry| self.is_new(entry))
    }

    /// Leaves out what is lent anew. The lender holds it all the same, until it ends by itself or
    /// is said later.
    pub(super) fn hold_back(&self, row: &mut Row) {
        for entry in &mut row.entries {
            if self.is_new(entry) {
                entry.grant = None;
            }
        }
    }

    fn is_new(&self, entry: &Entry) -> bool {
        let said = self.said.iter().flat_map(|row| &row.entries);
        let mut said = said.filter(|said| said.region == entry.region);
        let known = said.any(|said| said.grant == entry.grant);
        entry.grant.is_some() && !known
    }

    /// Remembers what was said.
    pub(super) fn say(&mut self, now: Timestamp, row: Row) {
        (self.said, self.said_at, self.repeat) = (Some(row), now, false);
    }

    /// Whether nothing is left to watch.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        !self.holds_loans && self.heard.is_empty() && now >= self.watched_until
    }

    fn is_pressed(&self, now: Timestamp) -> bool {
        self.pressed_at
            .is_some_and(|at| now.since(at) < PRESSED_FOR)
    }
}

/// Whether a row speaks of anything lent or borrowed.
pub(super) fn has_loans(row: &Row) -> bool {
    row.entries.iter().any(has_loan)
}

const fn has_loan(entry: &Entry) -> bool {
    entry.grant.is_some() || entry.applied.is_some() || entry.recalled.is_some()
}
