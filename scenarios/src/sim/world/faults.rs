//! What goes wrong, and gets well again.

use std::time::Duration;

use region::units::Timestamp;

use super::{Event, World};
use crate::sim::scenario::Fault;

impl World<'_> {
    pub(super) fn fault(&mut self, fault: Fault) {
        let elapsed = self.elapsed();
        self.trace.note(elapsed, format_args!("{fault}"));
        match fault {
            Fault::Cut { from, to } => {
                self.cut.insert((from, to));
            }
            Fault::Heal { from, to } => {
                self.cut.remove(&(from, to));
            }
            Fault::Crash { node } => self.nodes[node].process = None,
            Fault::Start { node } => {
                if self.nodes[node].process.is_none() {
                    self.start(node);
                }
            }
            Fault::Pause { node, span } => {
                self.nodes[node].paused_until = self.now.plus(span);
            }
            Fault::Forget { region } => {
                let region = &mut self.regions[region];
                let memory = region.clock.forgotten(self.now);
                region.store.forget(memory);
            }
            Fault::Down { region } => self.regions[region].store.set_up(false),
            Fault::Up { region } => self.regions[region].store.set_up(true),
            Fault::Step { region, by_us } => {
                self.regions[region].clock.step(self.now, by_us);
                let forward = u64::try_from(by_us).unwrap_or(0);
                if forward > 0 {
                    self.books.allow(Duration::from_micros(forward));
                }
            }
            Fault::Freeze { region, span } => {
                self.regions[region].clock.freeze(self.now);
                let (at, since) = (self.now.plus(span), self.now);
                self.post(at, Event::Thaw { region, since });
            }
        }
    }

    /// The clock catches up in one jump, which refills at once what it has missed.
    pub(super) fn thaw(&mut self, region: usize, since: Timestamp) {
        self.regions[region].clock.thaw();
        self.books.allow(self.now.since(since));
    }
}
