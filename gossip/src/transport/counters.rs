//! What the transport counts: plain numbers that grow, read by whoever exports metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::codec::Rejection;

/// Why a frame was not sent, or not handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dropped {
    /// The peer's queue was full of newer frames.
    QueueFull,
    /// The shaped link is cut.
    LinkCut,
    /// The shaped link lost it.
    LinkLoss,
    /// The shaped link holds as many delayed frames as it may.
    LinkFull,
    /// The peer could not be reached for so long that the frame is of no use.
    Unreachable,
    /// The connection ended before the frame was on its way.
    ConnectionLost,
    /// The frame is larger than any that may be sent.
    TooLarge,
    /// There are more peers than any deployment has.
    TooManyPeers,
    /// The receiver of frames at this node does not keep up.
    InboundFull,
}

/// Why something that arrived was refused. The connection goes on unless it is flooded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rejected {
    /// Larger than any frame.
    TooLarge,
    /// Of another version of the format.
    Version,
    /// From a node that is configured with other regions.
    Regions,
    /// No frame.
    Malformed,
    /// A frame with values out of bounds.
    Invalid,
    /// A greeting that names another region than the sender's certificate.
    Greeting,
    /// A stream that broke off or took too long.
    Stream,
    /// A peer whose certificate names no region, or several. The connection is closed.
    Certificate,
    /// A connection that carried little but nonsense. The connection is closed.
    Flood,
}

/// The transport's counters since the node started.
#[derive(Debug, Default)]
pub struct Counters {
    sent_frames: AtomicU64,
    sent_bytes: AtomicU64,
    sent_by_stream: AtomicU64,
    received_frames: AtomicU64,
    received_bytes: AtomicU64,
    connects: AtomicU64,
    connect_failures: AtomicU64,
    connections: AtomicU64,
    dropped: [AtomicU64; Dropped::ALL.len()],
    rejected: [AtomicU64; Rejected::ALL.len()],
}

impl Dropped {
    /// Every reason, in the order of the counters.
    pub const ALL: [Self; 9] = [
        Self::QueueFull,
        Self::LinkCut,
        Self::LinkLoss,
        Self::LinkFull,
        Self::Unreachable,
        Self::ConnectionLost,
        Self::TooLarge,
        Self::TooManyPeers,
        Self::InboundFull,
    ];

    /// The reason as a metric's label.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::LinkCut => "link_cut",
            Self::LinkLoss => "link_loss",
            Self::LinkFull => "link_full",
            Self::Unreachable => "unreachable",
            Self::ConnectionLost => "connection_lost",
            Self::TooLarge => "too_large",
            Self::TooManyPeers => "too_many_peers",
            Self::InboundFull => "inbound_full",
        }
    }
}

impl Rejected {
    /// Every reason, in the order of the counters.
    pub const ALL: [Self; 9] = [
        Self::TooLarge,
        Self::Version,
        Self::Regions,
        Self::Malformed,
        Self::Invalid,
        Self::Greeting,
        Self::Stream,
        Self::Certificate,
        Self::Flood,
    ];

    /// The reason as a metric's label.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TooLarge => "too_large",
            Self::Version => "version",
            Self::Regions => "regions",
            Self::Malformed => "malformed",
            Self::Invalid => "invalid",
            Self::Greeting => "greeting",
            Self::Stream => "stream",
            Self::Certificate => "certificate",
            Self::Flood => "flood",
        }
    }
}

impl From<Rejection> for Rejected {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::TooLarge => Self::TooLarge,
            Rejection::Version(_) => Self::Version,
            Rejection::Regions => Self::Regions,
            Rejection::Malformed => Self::Malformed,
            Rejection::Invalid(_) => Self::Invalid,
        }
    }
}

impl Counters {
    /// Frames handed to the network.
    #[must_use]
    pub fn sent_frames(&self) -> u64 {
        self.sent_frames.load(Ordering::Relaxed)
    }

    /// Bytes of the frames handed to the network.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Ordering::Relaxed)
    }

    /// Those of the sent frames that were too large for a datagram.
    #[must_use]
    pub fn sent_by_stream(&self) -> u64 {
        self.sent_by_stream.load(Ordering::Relaxed)
    }

    /// Frames received, refused ones among them.
    #[must_use]
    pub fn received_frames(&self) -> u64 {
        self.received_frames.load(Ordering::Relaxed)
    }

    /// Bytes of the frames received.
    #[must_use]
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }

    /// Connections that this node has made.
    #[must_use]
    pub fn connects(&self) -> u64 {
        self.connects.load(Ordering::Relaxed)
    }

    /// Attempts to connect that failed.
    #[must_use]
    pub fn connect_failures(&self) -> u64 {
        self.connect_failures.load(Ordering::Relaxed)
    }

    /// Connections that are open now, in both directions.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Frames dropped for a reason.
    #[must_use]
    pub fn dropped(&self, reason: Dropped) -> u64 {
        counter(&self.dropped, &Dropped::ALL, reason).map_or(0, |c| c.load(Ordering::Relaxed))
    }

    /// Frames, streams and connections refused for a reason.
    #[must_use]
    pub fn rejected(&self, reason: Rejected) -> u64 {
        counter(&self.rejected, &Rejected::ALL, reason).map_or(0, |c| c.load(Ordering::Relaxed))
    }

    pub(super) fn count_sent(&self, len: usize, by_stream: bool) {
        add(&self.sent_frames, 1);
        add(&self.sent_bytes, len);
        add(&self.sent_by_stream, usize::from(by_stream));
    }

    pub(super) fn count_received(&self, len: usize) {
        add(&self.received_frames, 1);
        add(&self.received_bytes, len);
    }

    pub(super) fn count_connect(&self, succeeded: bool) {
        add(&self.connects, usize::from(succeeded));
        add(&self.connect_failures, usize::from(!succeeded));
    }

    pub(super) fn count_open(&self) {
        add(&self.connections, 1);
    }

    pub(super) fn count_closed(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn count_dropped(&self, reason: Dropped, frames: usize) {
        if let Some(counter) = counter(&self.dropped, &Dropped::ALL, reason) {
            add(counter, frames);
        }
    }

    pub(super) fn count_rejected(&self, reason: Rejected) {
        if let Some(counter) = counter(&self.rejected, &Rejected::ALL, reason) {
            add(counter, 1);
        }
    }
}

fn add(counter: &AtomicU64, number: usize) {
    counter.fetch_add(u64::try_from(number).unwrap_or(u64::MAX), Ordering::Relaxed);
}

fn counter<'a, R: Copy + PartialEq>(
    counters: &'a [AtomicU64],
    reasons: &[R],
    reason: R,
) -> Option<&'a AtomicU64> {
    let place = reasons.iter().position(|other| *other == reason)?;
    counters.get(place)
}
