//! What a run came to.

use std::time::Duration;

use region::units::Tokens;

/// The outcome of a run. Figures are taken from the end of its warm-up on, the overrun from its
/// beginning.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// What each region was offered and did with it.
    pub regions: Vec<Tally>,
    /// The same for each key.
    pub keys: Vec<Tally>,
    /// The shard of each key in each region.
    pub shards: Vec<Vec<usize>>,
    /// The most that was admitted beyond the limit of a key in any stretch of time.
    pub overrun: Tokens,
    /// The key of which that was, if anything was.
    pub worst: Option<usize>,
    /// The most that the faults of the run allow for that key, else for any (PROTOCOL 6).
    pub overrun_max: Tokens,
    /// The most that the buckets of a key held, at any instant, beyond what one bucket for all
    /// regions would have held: what could have been admitted beyond the limit, but for debts.
    pub surplus: Tokens,
    /// Every change of a share, in the order of time.
    pub shares: Vec<ShareChange>,
    /// What regions said to each other about keys.
    pub gossip: Gossip,
    /// From the end of the warm-up to the end of the run.
    pub measured: Duration,
    /// What broke, if anything did. The run ended there.
    pub broken: Option<Broken>,
    /// How many events there were.
    pub events: u64,
    /// What happened; the last lines, or all.
    pub trace: Vec<String>,
}

/// Requests of one region, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Asked for.
    pub offered: u64,
    /// Let through.
    pub admitted: u64,
    /// What one bucket for all regions would have let through of the same requests.
    pub allowed: u64,
    /// Denied although that one bucket would have let them through.
    pub denied_falsely: u64,
}

/// A share after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareChange {
    /// When, from the start.
    pub at: Duration,
    /// The key's rank.
    pub key: usize,
    /// The region.
    pub region: usize,
    /// The share in thousandths of the limit, rounded down.
    pub permille: u64,
}

/// Rows between regions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gossip {
    /// Rows per second, key and ordered pair of regions.
    pub rows: f64,
    /// Bytes of the frames that carry them, per second, key and ordered pair of regions.
    pub bytes: f64,
}

/// What must never happen, and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// When, from the start.
    pub at: Duration,
    /// What.
    pub what: String,
}

impl Tally {
    /// Counts one request of a region or a key.
    pub(super) const fn count(&mut self, cost: Tokens, admitted: bool, allowed: bool) {
        self.offered += cost.0;
        if admitted {
            self.admitted += cost.0;
        }
        if allowed {
            self.allowed += cost.0;
            if !admitted {
                self.denied_falsely += cost.0;
            }
        }
    }

    /// Asked for and not let through.
    #[must_use]
    pub const fn denied(&self) -> u64 {
        self.offered - self.admitted
    }
}

impl Run {
    /// All regions together.
    #[must_use]
    pub fn all(&self) -> Tally {
        let mut all = Tally::default();
        for tally in &self.regions {
            all.offered += tally.offered;
            all.admitted += tally.admitted;
            all.allowed += tally.allowed;
            all.denied_falsely += tally.denied_falsely;
        }
        all
    }

    /// What was admitted, as a part of what one bucket for all regions would have admitted.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        let all = self.all();
        ratio(all.admitted, all.allowed).unwrap_or(1.0)
    }

    /// What was denied falsely, as a part of what was offered.
    #[must_use]
    pub fn false_denials(&self) -> f64 {
        let all = self.all();
        ratio(all.denied_falsely, all.offered).unwrap_or(0.0)
    }

    /// How long after `from` the share of the first key in a region has reached so many thousandths
    /// of the limit.
    #[must_use]
    pub fn reaction(&self, region: usize, from: Duration, permille: u64) -> Option<Duration> {
        let before = self.share(region, from);
        if before >= Some(permille) {
            return Some(Duration::ZERO);
        }
        let mut later = self.of(region).filter(|change| change.at >= from);
        let reached = later.find(|change| change.permille >= permille)?;
        Some(reached.at - from)
    }

    /// The share of the first key in a region at an instant, in thousandths of the limit.
    #[must_use]
    pub fn share(&self, region: usize, at: Duration) -> Option<u64> {
        let last = self.of(region).take_while(|change| change.at <= at).last();
        last.map(|change| change.permille)
    }

    /// How often the shares of all keys and regions change in a minute.
    #[must_use]
    pub fn share_changes_per_minute(&self, warm_up: Duration) -> f64 {
        let changes = self.shares.iter().filter(|change| change.at >= warm_up);
        changes.count() as f64 * 60.0 / self.measured.as_secs_f64().max(1e-9)
    }

    /// How fairly admissions are dealt over regions that are entitled to these parts (Jain 1984):
    /// 1 if all get the same part of what they are entitled to.
    #[must_use]
    pub fn fairness(&self, entitled: &[f64]) -> f64 {
        let parts: Vec<f64> = self
            .regions
            .iter()
            .zip(entitled)
            .filter(|(_, entitled)| **entitled > 0.0)
            .map(|(tally, entitled)| tally.admitted as f64 / entitled)
            .collect();
        let (sum, squares) = parts.iter().fold((0.0, 0.0), |(sum, squares), part| {
            (sum + part, squares + part * part)
        });
        if squares == 0.0 {
            return 1.0;
        }
        sum * sum / (parts.len() as f64 * squares)
    }

    fn of(&self, region: usize) -> impl Iterator<Item = &ShareChange> {
        self.shares
            .iter()
            .filter(move |change| change.key == 0 && change.region == region)
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
