//! What happens in the demo: who asks for how much, and when a region is cut off.

use std::time::Duration;

/// The regions of the demo in the order of their ids, with their weights.
pub(super) const REGIONS: [(&str, u32); 3] = [("ap", 20), ("eu", 30), ("us", 50)];

/// Round trips between regions, by their places in [`REGIONS`].
pub(super) const ROUND_TRIPS: [(usize, usize, Duration); 3] = [
    (2, 1, Duration::from_millis(80)),
    (2, 0, Duration::from_millis(150)),
    (1, 0, Duration::from_millis(220)),
];

/// The limit of the demo's only key, per second.
pub(super) const LIMIT: u64 = 1_000;

/// Its burst.
pub(super) const BURST: u64 = 1_000;

/// One part of the demo.
#[derive(Clone, Copy, Debug)]
pub(super) struct Phase {
    /// What a spectator reads.
    pub(super) name: &'static str,
    /// Its part of the whole time.
    pub(super) parts: u32,
    /// What each region is offered per second.
    pub(super) offered: [u32; 3],
    /// The region that nobody can reach, and that reaches nobody.
    pub(super) cut: Option<usize>,
}

/// The whole demo.
pub(super) const PHASES: [Phase; 5] = [
    Phase {
        name: "load in proportion to the weights, 0.9 of the limit",
        parts: 5,
        offered: [180, 270, 450],
        cut: None,
    },
    Phase {
        name: "everything in ap, 0.9 of the limit",
        parts: 6,
        offered: [900, 0, 0],
        cut: None,
    },
    Phase {
        name: "everything in us, 1.5 of the limit",
        parts: 6,
        offered: [0, 0, 1_500],
        cut: None,
    },
    Phase {
        name: "ap cut off, load in all three",
        parts: 6,
        offered: [400, 200, 300],
        cut: Some(0),
    },
    Phase {
        name: "healed, the same load",
        parts: 7,
        offered: [400, 200, 300],
        cut: None,
    },
];

/// When each phase ends, if all of them take `whole`.
pub(super) fn ends(whole: Duration) -> Vec<Duration> {
    let parts: u32 = PHASES.iter().map(|phase| phase.parts).sum();
    let sums = PHASES.iter().scan(0, |sum, phase| {
        *sum += phase.parts;
        Some(*sum)
    });
    sums.map(|sum| whole * sum / parts).collect()
}
