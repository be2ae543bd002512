//! What the demo has measured: one JSON object, or a table for people.

use std::fmt::Write as _;

use serde::Serialize;

/// The result of a demo. Rates are tokens per second, times milliseconds or microseconds as named.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The limit, in tokens per second.
    pub limit: u64,
    /// The burst.
    pub burst: u64,
    /// What each region did.
    pub regions: Vec<RegionReport>,
    /// What happened in each phase.
    pub phases: Vec<PhaseReport>,
    /// Tokens admitted in all regions together.
    pub admitted: u64,
    /// The largest excess over the limit in any interval, by the auditor.
    pub overrun: u64,
    /// What it may be at most.
    pub overrun_bound: u64,
    /// Admitted over what was offered and allowed, outside of the cut.
    pub utilisation: f64,
    /// The longest time from a step of demand to 95 % of the new share.
    pub reaction_ms: u64,
    /// Requests denied that one global bucket would have admitted.
    pub false_denials: u64,
    /// The median time of a check in the node.
    pub check_p50_us: f64,
    /// The time that one check in a hundred exceeds.
    pub check_p99_us: f64,
}

/// One region.
#[derive(Debug, Serialize)]
pub struct RegionReport {
    /// Its name.
    pub name: String,
    /// Requests.
    pub offered: u64,
    /// Requests admitted.
    pub admitted: u64,
    /// Requests denied.
    pub denied: u64,
    /// The smallest share that it had, in tokens per second.
    pub share_min: u64,
    /// The largest.
    pub share_max: u64,
}

/// One phase.
#[derive(Debug, Serialize)]
pub struct PhaseReport {
    /// What happened.
    pub name: String,
    /// Requests.
    pub offered: u64,
    /// Requests admitted.
    pub admitted: u64,
    /// Admitted over what was offered and allowed.
    pub utilisation: f64,
    #[serde(skip)]
    pub(super) false_denials: u64,
    #[serde(skip)]
    pub(super) cut: bool,
}

impl Report {
    /// The table.
    #[must_use]
    pub fn table(&self) -> String {
        let mut out = String::new();
        let mut say = |line: std::fmt::Arguments<'_>| {
            writeln!(out, "{line}").expect("writing to a string cannot fail");
        };
        say(format_args!(
            "{:<52} {:>8} {:>9} {:>6}",
            "phase", "offered", "admitted", "used"
        ));
        for phase in &self.phases {
            let used = phase.utilisation * 100.0;
            let (offered, admitted) = (phase.offered, phase.admitted);
            say(format_args!(
                "{:<52} {offered:>8} {admitted:>9} {used:>5.1}%",
                phase.name
            ));
        }
        say(format_args!(""));
        say(format_args!(
            "{:<8} {:>8} {:>9} {:>8}   share, smallest to largest",
            "region", "offered", "admitted", "denied"
        ));
        for region in &self.regions {
            say(format_args!(
                "{:<8} {:>8} {:>9} {:>8}   {}/s to {}/s",
                region.name,
                region.offered,
                region.admitted,
                region.denied,
                region.share_min,
                region.share_max
            ));
        }
        say(format_args!(""));
        say(format_args!(
            "overrun        {} tokens (bound {}) beyond one bucket of {}/s, burst {}",
            self.overrun, self.overrun_bound, self.limit, self.burst
        ));
        say(format_args!(
            "utilisation    {:.1} % of what was offered and allowed, outside of the cut",
            self.utilisation * 100.0
        ));
        let cut = self.phases.iter().filter(|phase| phase.cut);
        let in_the_cut: u64 = cut.map(|phase| phase.false_denials).sum();
        say(format_args!(
            "reaction       {} ms to 95 % of a new share",
            self.reaction_ms
        ));
        say(format_args!(
            "false denials  {} that one bucket would have admitted, {in_the_cut} in the cut",
            self.false_denials
        ));
        say(format_args!(
            "a check took   {:.1} us in the median, {:.1} us at the 99th percentile",
            self.check_p50_us, self.check_p99_us
        ));
        out
    }
}
