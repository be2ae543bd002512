//! The link shaper: distance, loss and cuts between regions, for demos, tests and scenarios.
//!
//! The sender shapes every frame before QUIC sees it, whatever carries it. Nothing is shaped
//! unless asked for. What is random comes from a seed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt as _;
use rand::rngs::StdRng;
use region::units::RegionId;
use tokio::time::Instant;

use super::counters::Dropped;

/// The most frames that are on their way over one shaped link.
const FRAMES_MAX: usize = 8_192;

/// What a link does to the frames of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkShape {
    /// How long a frame travels, one way.
    pub delay: Duration,
    /// By how much longer at most; frames may overtake each other.
    pub jitter: Duration,
    /// The part of the frames that is lost, from 0 to 1.
    pub loss: f64,
    /// The part of the frames that arrives twice, from 0 to 1.
    pub duplication: f64,
    /// Whether nothing gets through at all.
    pub cut: bool,
}

/// The shapes of all links of a process, changeable at any time. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Links(Arc<Shapes>);

#[derive(Debug, Default)]
struct Shapes {
    /// Whether any link is shaped: what an unshaped node asks for each frame.
    any: AtomicBool,
    /// The shape of each shaped direction. Held for single look-ups and changes.
    shapes: RwLock<BTreeMap<(RegionId, RegionId), LinkShape>>,
}

impl Links {
    /// Gives the link from one region to another a shape; the default shape does nothing.
    pub fn set(&self, from: RegionId, to: RegionId, shape: LinkShape) {
        let mut shapes = self
            .0
            .shapes
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if shape == LinkShape::default() {
            shapes.remove(&(from, to));
        } else {
            shapes.insert((from, to), shape);
        }
        self.0.any.store(!shapes.is_empty(), Ordering::Relaxed);
    }

    /// Cuts or restores the link from one region to another, and leaves the rest of its shape.
    pub fn cut(&self, from: RegionId, to: RegionId, cut: bool) {
        let shape = self.shape(from, to);
        self.set(from, to, LinkShape { cut, ..shape });
    }

    /// The shape of the link from one region to another.
    #[must_use]
    pub fn shape(&self, from: RegionId, to: RegionId) -> LinkShape {
        if !self.0.any.load(Ordering::Relaxed) {
            return LinkShape::default();
        }
        let shapes = self.0.shapes.read().unwrap_or_else(PoisonError::into_inner);
        shapes.get(&(from, to)).copied().unwrap_or_default()
    }

    /// Every shaped direction, in the order of the regions.
    #[must_use]
    pub fn all(&self) -> Vec<(RegionId, RegionId, LinkShape)> {
        let shapes = self.0.shapes.read().unwrap_or_else(PoisonError::into_inner);
        shapes
            .iter()
            .map(|((from, to), shape)| (*from, *to, *shape))
            .collect()
    }
}

/// Frames on their way over one shaped link, in the order in which they arrive.
#[derive(Debug)]
pub(super) struct Shaper {
    rng: StdRng,
    under_way: BTreeMap<(Instant, u64), Bytes>,
    /// Breaks ties between frames that arrive together.
    offered: u64,
}

impl Shaper {
    pub(super) const fn new(rng: StdRng) -> Self {
        Self {
            rng,
            under_way: BTreeMap::new(),
            offered: 0,
        }
    }

    /// Puts a frame on its way.
    ///
    /// A full link refuses the newest frame: dropping the oldest would let none ever arrive.
    pub(super) fn offer(
        &mut self,
        now: Instant,
        shape: LinkShape,
        frame: Bytes,
    ) -> Result<(), Dropped> {
        if shape.cut {
            return Err(Dropped::LinkCut);
        }
        if happens(shape.loss, &mut self.rng) {
            return Err(Dropped::LinkLoss);
        }
        if happens(shape.duplication, &mut self.rng) {
            self.put(now, shape, frame.clone())?;
        }
        self.put(now, shape, frame)
    }

    fn put(&mut self, now: Instant, shape: LinkShape, frame: Bytes) -> Result<(), Dropped> {
        if self.under_way.len() >= FRAMES_MAX {
            return Err(Dropped::LinkFull);
        }
        let jitter = if shape.jitter.is_zero() {
            Duration::ZERO
        } else {
            shape.jitter.mul_f64(self.rng.random())
        };
        self.offered += 1;
        let arrival = now + shape.delay + jitter;
        self.under_way.insert((arrival, self.offered), frame);
        Ok(())
    }

    /// When the next frame arrives.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let first = self.under_way.first_key_value();
        first.map(|((arrival, _), _)| *arrival)
    }

    /// The next frame that has arrived by `now`.
    pub(super) fn arrived(&mut self, now: Instant) -> Option<Bytes> {
        let first = self.under_way.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// How many frames are on their way.
    pub(super) fn len(&self) -> usize {
        self.under_way.len()
    }

    /// The next frame, arrived or not: for the last moments of a node that leaves.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        self.under_way.pop_first().map(|(_, frame)| frame)
    }
}

fn happens(part: f64, rng: &mut StdRng) -> bool {
    part > 0.0 && rng.random::<f64>() < part
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    const US: RegionId = RegionId(0);
    const EU: RegionId = RegionId(1);

    fn shaper() -> Shaper {
        Shaper::new(StdRng::seed_from_u64(1))
    }

    fn offered(shape: LinkShape, frames: usize) -> (Shaper, Instant, usize) {
        let (mut shaper, now) = (shaper(), Instant::now());
        let lost = (0..frames)
            .filter(|_| shaper.offer(now, shape, Bytes::new()).is_err())
            .count();
        (shaper, now, lost)
    }

    #[test]
    fn links_are_shaped_one_way_and_only_when_asked() {
        let links = Links::default();
        assert_eq!(links.shape(US, EU), LinkShape::default());
        let delay = Duration::from_millis(40);
        let shape = LinkShape {
            delay,
            ..LinkShape::default()
        };
        links.clone().set(US, EU, shape);
        assert_eq!(links.shape(US, EU), shape);
        assert_eq!(links.shape(EU, US), LinkShape::default());
        links.cut(US, EU, true);
        assert_eq!(links.shape(US, EU), LinkShape { cut: true, ..shape });
        links.cut(US, EU, false);
        assert_eq!(links.all(), [(US, EU, shape)]);
        links.set(US, EU, LinkShape::default());
        assert_eq!(links.all(), []);
    }

    #[test]
    fn shaper_holds_frames_for_the_delay_and_the_jitter() {
        let shape = LinkShape {
            delay: Duration::from_millis(40),
            jitter: Duration::from_millis(20),
            ..LinkShape::default()
        };
        let (mut shaper, now, lost) = offered(shape, 100);
        assert_eq!(lost, 0);
        assert_eq!(shaper.arrived(now + Duration::from_millis(39)), None);
        let first = shaper.deadline().unwrap();
        assert!(first < now + Duration::from_millis(45), "jitter varies");
        let end = now + Duration::from_millis(60);
        let arrived = std::iter::from_fn(|| shaper.arrived(end)).count();
        assert_eq!(arrived, 100);
    }

    #[test]
    fn shaper_loses_and_doubles_the_stated_part() {
        let shape = LinkShape {
            loss: 0.2,
            duplication: 0.5,
            ..LinkShape::default()
        };
        let (shaper, _, lost) = offered(shape, 1_000);
        assert!((150..250).contains(&lost), "{lost}");
        assert!(shaper.len() > 1_000, "{}", shaper.len());
    }

    #[test]
    fn shaper_lets_nothing_through_a_cut_and_keeps_a_bound() {
        let cut = LinkShape {
            cut: true,
            ..LinkShape::default()
        };
        assert_eq!(offered(cut, 10).2, 10);
        let (shaper, _, lost) = offered(LinkShape::default(), FRAMES_MAX + 5);
        assert_eq!((shaper.len(), lost), (FRAMES_MAX, 5));
    }
}
