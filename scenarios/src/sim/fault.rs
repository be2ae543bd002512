//! What goes wrong in a run.

use std::fmt;
use std::time::Duration;

/// What goes wrong, or gets well again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing gets from one region to another any more.
    Cut {
        /// The region that is not heard.
        from: usize,
        /// The region that does not hear it.
        to: usize,
    },
    /// The way from one region to another is open again.
    Heal {
        /// The region that is heard again.
        from: usize,
        /// The region that hears it.
        to: usize,
    },
    /// A node dies with everything that it has in its hands.
    Crash {
        /// The node, counted over all regions.
        node: usize,
    },
    /// A dead node starts anew.
    Start {
        /// The node, counted over all regions.
        node: usize,
    },
    /// A node stands still for a while.
    Pause {
        /// The node, counted over all regions.
        node: usize,
        /// For how long.
        span: Duration,
    },
    /// Something happens to one shard of a region.
    Shard {
        /// The region.
        region: usize,
        /// The shard, counted in its region.
        shard: usize,
        /// What.
        fault: ShardFault,
    },
}

/// What happens to a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardFault {
    /// It loses its memory, and knows it.
    Forget,
    /// It does not answer for a while; what is asked of it may be done all the same.
    Silence {
        /// For how long.
        span: Duration,
    },
    /// Its primary dies. After a while the replica is promoted, which shows: a new generation.
    FailOver {
        /// How long nobody answers.
        after: Duration,
    },
    /// Its replica is promoted while the primary is still there, and some nodes go on with the
    /// primary for a while. Then that is demoted, and all that it has done since is gone.
    Split {
        /// How many of the region's nodes go on with the primary: the first ones.
        stay: usize,
        /// For how long.
        span: Duration,
    },
    /// It comes back as it was a while ago, and nothing shows.
    Restore {
        /// What the last moments are that it has lost.
        lost: Duration,
    },
    /// Its clock steps forward, or back.
    Step {
        /// By so many microseconds.
        by_us: i64,
    },
    /// Its clock stands still for a while and then shows the right time.
    Freeze {
        /// For how long.
        span: Duration,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut { from, to } => write!(f, "r{to} no longer hears r{from}"),
            Self::Heal { from, to } => write!(f, "r{to} can hear r{from} again"),
            Self::Crash { node } => write!(f, "n{node} crashes"),
            Self::Start { node } => write!(f, "n{node} starts"),
            Self::Pause { node, span } => write!(f, "n{node} stands still for {span:?}"),
            Self::Shard {
                region,
                shard,
                fault,
            } => write!(f, "shard {shard} of r{region} {fault}"),
        }
    }
}

impl fmt::Display for ShardFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forget => f.write_str("forgets everything"),
            Self::Silence { span } => write!(f, "does not answer for {span:?}"),
            Self::FailOver { after } => {
                write!(f, "loses its primary; its replica is promoted in {after:?}")
            }
            Self::Split { stay, span } => write!(
                f,
                "has two primaries for {span:?}, and {stay} nodes go on with the old one"
            ),
            Self::Restore { lost } => {
                write!(f, "is again as it was {lost:?} ago, and it does not show")
            }
            Self::Step { by_us } => write!(f, "has a clock that steps by {by_us} us"),
            Self::Freeze { span } => write!(f, "has a clock that stands still for {span:?}"),
        }
    }
}
