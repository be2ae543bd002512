//! What goes wrong, and gets well again.

use std::time::Duration;

use region::bound;

use super::{Event, Place, START, World};
use crate::sim::fault::{Fault, ShardFault};
use crate::sim::store::Reach;

impl World<'_> {
    /// Posts every fault, and what must be kept for it beforehand.
    pub(super) fn expect_faults(&mut self) {
        for (number, (at, fault)) in self.scenario.faults.iter().enumerate() {
            self.post(START.plus(*at), Event::Fault(number));
            let Fault::Shard {
                region,
                shard,
                fault,
            } = *fault
            else {
                continue;
            };
            let replica = self.scenario.regions[region].replica;
            let lost = match fault {
                ShardFault::FailOver { .. } | ShardFault::Split { .. } => {
                    replica.map(|replica| replica.lag)
                }
                ShardFault::Restore { lost } => Some(lost),
                ShardFault::Forget
                | ShardFault::Silence { .. }
                | ShardFault::Step { .. }
                | ShardFault::Freeze { .. } => None,
            };
            if let Some(lost) = lost {
                let (shard, fault) = (Place { region, shard }, number);
                let at = START.plus(at.saturating_sub(lost));
                self.post(at, Event::Save { shard, fault });
            }
        }
    }

    pub(super) fn fault(&mut self, number: usize) {
        let (elapsed, fault) = (self.elapsed(), self.scenario.faults[number].1);
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
            Fault::Shard {
                region,
                shard,
                fault,
            } => {
                let place = Place { region, shard };
                self.shard_fault(place, fault, number);
                self.look_at_shard(place);
            }
        }
    }

    fn shard_fault(&mut self, place: Place, fault: ShardFault, number: usize) {
        let now = self.now;
        self.costs_of(place, fault);
        let (shard, shards) = (place.shard, &mut self.regions[place.region].shards);
        match fault {
            ShardFault::Forget => shards.forget(shard, now),
            ShardFault::Silence { span } => {
                shards.silence(shard, now.plus(span));
                self.post(now.plus(span), Event::Recover { shard: place });
            }
            ShardFault::FailOver { after } => {
                shards.die(shard);
                let (shard, fault) = (place, number);
                self.post(now.plus(after), Event::Promote { shard, fault });
            }
            ShardFault::Split { stay, span } => {
                shards.promote(shard, number, now);
                let of_region = |index: &usize| self.nodes[*index].region == place.region;
                let all = (0..self.nodes.len()).filter(of_region);
                let astray = all.take(stay).fold(0, |bits, node| bits | 1_u64 << node);
                shards.stray(shard, astray, now.plus(span));
                self.post(now.plus(span), Event::Recover { shard: place });
            }
            ShardFault::Restore { .. } => shards.restore(shard, number, now),
            ShardFault::Step { by_us } => shards.step(shard, now, by_us),
            ShardFault::Freeze { span } => {
                let (server, shard) = (shards.freeze(shard, now), place);
                self.post(now.plus(span), Event::Thaw { shard, server });
            }
        }
    }

    pub(super) fn save(&mut self, place: Place, fault: usize) {
        self.show(place.region);
        let shards = &mut self.regions[place.region].shards;
        shards.save(place.shard, fault);
    }

    pub(super) fn promote(&mut self, place: Place, fault: usize) {
        let Place { region, shard } = place;
        self.regions[region].shards.promote(shard, fault, self.now);
        let elapsed = self.elapsed();
        self.trace.note(
            elapsed,
            format_args!("shard {shard} of r{region} has a new primary"),
        );
        self.look_at_shard(place);
    }

    pub(super) fn thaw(&mut self, place: Place, server: usize) {
        let shards = &mut self.regions[place.region].shards;
        shards.thaw(place.shard, server);
        self.look_at_shard(place);
    }

    /// Counts what a fault may cost the keys of its shard (PROTOCOL 6).
    fn costs_of(&mut self, place: Place, fault: ShardFault) {
        use bound::Fault::{ClockStep, Outage, StoreLoss, TwoPrimaries, UndetectedStoreLoss};
        let (now, keys) = (self.now, self.of_shard(place));
        let costs = &mut self.books.costs;
        for key in keys {
            let mut add = |fault, lasts| costs.happens(key, fault, (now, lasts));
            match fault {
                ShardFault::Forget => add(StoreLoss(1), Duration::ZERO),
                ShardFault::Silence { span } => add(Outage(span), span),
                ShardFault::FailOver { after } => {
                    add(Outage(after), after);
                    add(StoreLoss(1), after);
                }
                ShardFault::Split { span, .. } => add(TwoPrimaries(span), span),
                ShardFault::Restore { .. } => add(UndetectedStoreLoss(1), Duration::ZERO),
                // The clock catches up in one jump, and loans are kept for as long as it stands.
                ShardFault::Freeze { span } => add(ClockStep(span), span),
                ShardFault::Step { by_us } => {
                    let by = Duration::from_micros(by_us.unsigned_abs());
                    if by_us < 0 {
                        costs.steps_back(key, by, now);
                    } else {
                        add(ClockStep(by), by);
                    }
                }
            }
        }
    }

    /// A node that starts while a shard is away has an emergency bucket of its own.
    pub(super) fn costs_of_start(&mut self, node: usize) {
        let region = self.nodes[node].region;
        let store = self.regions[region].shards.store(node);
        let keys = self.keys.iter().enumerate();
        let away = keys.filter(|(_, (_, key))| store.reach(key.client) != Reach::Answers);
        for rank in away.map(|(rank, _)| rank).collect::<Vec<_>>() {
            let outage = bound::Fault::Outage(Duration::ZERO);
            let at = (self.now, Duration::ZERO);
            self.books.costs.happens(rank, outage, at);
        }
    }

    fn look_at_shard(&mut self, place: Place) {
        for rank in self.of_shard(place) {
            self.look(rank);
        }
    }

    /// The keys of a shard.
    fn of_shard(&self, place: Place) -> Vec<usize> {
        let shards = &self.regions[place.region].shards;
        let keys = self.keys.iter().enumerate();
        let keys = keys.filter(|(_, (_, key))| shards.of(key.client) == place.shard);
        keys.map(|(rank, _)| rank).collect()
    }
}
