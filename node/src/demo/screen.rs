//! The demo as a spectator sees it: a few lines that are drawn over and over in the terminal.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use super::script::{LIMIT, PHASES, REGIONS};
use crate::output;

/// What one frame shows.
#[derive(Debug)]
pub(super) struct View {
    pub(super) phase: usize,
    pub(super) passed: Duration,
    pub(super) whole: Duration,
    pub(super) regions: [RegionView; REGIONS.len()],
    pub(super) overrun: u64,
    pub(super) utilisation: f64,
}

/// One region, in tokens per second and tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RegionView {
    pub(super) offered: u64,
    pub(super) admitted: u64,
    pub(super) share: u64,
    pub(super) level: u64,
    pub(super) capacity: u64,
    pub(super) cut: bool,
}

/// Draws views.
#[derive(Debug)]
pub(super) struct Screen {
    live: bool,
    lines: usize,
    said: Duration,
}

/// The lengths of the bars of shares and of levels: a line fits in 80 columns.
const BAR: u64 = 18;
const LEVEL_BAR: u64 = 6;

/// Whether the terminal breaks long lines: a broken one would not be drawn over.
const WRAP_OFF: &str = "\x1b[?7l";
const WRAP_ON: &str = "\x1b[?7h";

impl Screen {
    /// A screen that redraws itself in a terminal, and says a line a second elsewhere.
    pub(super) fn new() -> Self {
        let live = io::stdout().is_terminal();
        Self {
            live,
            lines: 0,
            said: Duration::ZERO,
        }
    }

    pub(super) fn draw(&mut self, view: &View) -> io::Result<()> {
        if !self.live {
            if view.passed < self.said {
                return Ok(());
            }
            self.said = view.passed + Duration::from_secs(1);
            return output::line(&line(view));
        }
        let text = frame(view);
        let back = match self.lines {
            0 => String::new(),
            lines => format!("\x1b[{lines}A"),
        };
        self.lines = text.lines().count();
        let drawn: String = text.lines().flat_map(|line| [line, "\x1b[K\n"]).collect();
        output::text(&format!("{WRAP_OFF}{back}{drawn}{WRAP_ON}"))
    }
}

fn line(view: &View) -> String {
    let regions = REGIONS.iter().zip(view.regions).map(|((name, _), region)| {
        format!(
            "{name} {}/{} share {}",
            region.admitted, region.offered, region.share
        )
    });
    format!(
        "{:>4.0} s  {:<52} {}  overrun {}",
        view.passed.as_secs_f64(),
        PHASES[view.phase].name,
        regions.collect::<Vec<_>>().join("  "),
        view.overrun
    )
}

fn frame(view: &View) -> String {
    let mut out = String::new();
    let mut say = |line: String| {
        writeln!(out, "{line}").expect("writing to a string cannot fail");
    };
    let admitted: u64 = view.regions.iter().map(|region| region.admitted).sum();
    say(format!(
        "\x1b[1mtidegate demo\x1b[0m   one customer, {LIMIT}/s over three regions   {:>5.1} of \
         {:.0} s",
        view.passed.as_secs_f64(),
        view.whole.as_secs_f64()
    ));
    say(format!(
        "phase {} of {}   {}",
        view.phase + 1,
        PHASES.len(),
        PHASES[view.phase].name
    ));
    say(String::new());
    say(format!(
        "region   {:>9} {:>10} {:>8}   {:<23}  level",
        "offered/s", "admitted/s", "denied/s", "share"
    ));
    for ((name, _), region) in REGIONS.iter().zip(view.regions).rev() {
        let denied = region.offered.saturating_sub(region.admitted);
        say(format!(
            "{name:<3} {:<4} {:>9} {:>10} {denied:>8}   {} {:>4}  {} {:>4}",
            if region.cut { "cut" } else { "" },
            region.offered,
            region.admitted,
            bar(region.share, LIMIT, BAR),
            region.share,
            bar(region.level, region.capacity.max(1), LEVEL_BAR),
            region.level
        ));
    }
    say(String::new());
    say(format!(
        "together {:>20} admitted/s of {LIMIT}   {}",
        admitted,
        bar(admitted, LIMIT, BAR)
    ));
    say(format!(
        "overrun  {:>20} tokens by the auditor        utilisation {:.1} %",
        view.overrun,
        view.utilisation * 100.0
    ));
    out
}

fn bar(value: u64, full: u64, length: u64) -> String {
    let filled = (value.saturating_mul(length) / full.max(1)).min(length);
    (0..length)
        .map(|place| if place < filled { '█' } else { '·' })
        .collect()
}
