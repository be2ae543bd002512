//! Which rows go to whom: coalesced by key, within a budget per region and tick, relayed around a
//! broken link, and sent again when a digest shows that one was missed.
//!
//! Rows are newest-wins, so only the newest of a key waits in a queue, and a queue cannot outgrow
//! the number of keys.

use std::collections::BTreeMap;
use std::time::Duration;

use region::ledger::Row;
use region::units::{Key, RegionId, Sequence, Timestamp};

use crate::replica::TICK;

/// The most rows that go to one region in one tick.
const ROWS_PER_TICK: usize = 500;

/// The most rows that wait for one region; what comes beyond is dropped and counted.
const QUEUE_MAX: usize = 50_000;

/// The most keys whose newest versions are remembered.
const NEWEST_MAX: usize = 200_000;

/// How often digests are sent and memory is swept.
const DIGEST_EVERY: Duration = Duration::from_secs(1);

/// A row that nothing newer has followed for so long is worth a digest: nothing else would show
/// that it was lost.
const QUIET_AFTER: Duration = Duration::from_millis(900);

/// A row is offered again for so long: by then every grant that it could speak of is over.
const RECENT_FOR: Duration = Duration::from_millis(3_500);

/// How long the version of a key's newest row is remembered.
const NEWEST_FOR: Duration = Duration::from_secs(10);

/// A region counts as heard for so long after its last frame.
pub const HEARD_FOR: Duration = Duration::from_millis(1_500);

/// What happens to the machine.
#[derive(Clone, Debug)]
pub enum Input {
    /// This region says a row.
    Say {
        /// The key.
        key: Key,
        /// The row.
        row: Row,
    },
    /// A frame has come from another region, whatever it carries.
    Heard {
        /// The region that its sender's certificate names.
        from: RegionId,
        /// The regions that the sender hears itself.
        heard: Vec<RegionId>,
    },
    /// A row has come from another region: its own, or relayed.
    Row {
        /// The region that its sender's certificate names.
        from: RegionId,
        /// The key.
        key: Key,
        /// The row.
        row: Row,
    },
    /// A region says which of its rows are the newest.
    Digest {
        /// The region.
        from: RegionId,
        /// Keys and versions.
        entries: Vec<(Key, Sequence)>,
    },
    /// A region has missed rows.
    Request {
        /// The region.
        from: RegionId,
        /// The keys.
        keys: Vec<Key>,
    },
    /// The deadline has passed.
    Timeout,
}

/// What the machine wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A row is new here: let the replica hear it.
    Row {
        /// The key.
        key: Key,
        /// The row.
        row: Row,
    },
    /// Send rows to a region, each to the node that acts for its key.
    Send {
        /// The region.
        to: RegionId,
        /// Keys and rows.
        rows: Vec<(Key, Row)>,
    },
    /// Send a digest to a region.
    Digest {
        /// The region.
        to: RegionId,
        /// Keys and versions.
        entries: Vec<(Key, Sequence)>,
    },
    /// Ask a region for rows.
    Request {
        /// The region.
        to: RegionId,
        /// The keys.
        keys: Vec<Key>,
    },
    /// A region that was silent is heard again.
    RegionUp(RegionId),
}

/// The machine.
#[derive(Debug)]
pub struct Exchange {
    own: RegionId,
    peers: BTreeMap<RegionId, Peer>,
    newest: BTreeMap<(Key, RegionId), (Sequence, Timestamp)>,
    recent: BTreeMap<Key, (Row, Timestamp)>,
    next_digest: Timestamp,
    dropped: u64,
}

/// What is known of, and waits for, one other region.
#[derive(Debug, Default)]
struct Peer {
    queue: BTreeMap<(Key, RegionId), Row>,
    flushed_at: Timestamp,
    heard_at: Option<Timestamp>,
    /// When it last said that it hears a third region itself.
    hears: BTreeMap<RegionId, Timestamp>,
}

impl Exchange {
    /// A machine of region `own` among so many.
    #[must_use]
    pub fn new(own: RegionId, regions: u16, now: Timestamp) -> Self {
        let others = (0..regions).map(RegionId).filter(|region| *region != own);
        Self {
            own,
            peers: others.map(|region| (region, Peer::default())).collect(),
            newest: BTreeMap::new(),
            recent: BTreeMap::new(),
            next_digest: now.plus(DIGEST_EVERY),
            dropped: 0,
        }
    }

    /// The instant at which [`Input::Timeout`] is due.
    #[must_use]
    pub fn deadline(&self) -> Timestamp {
        let waiting = self.peers.values().filter(|peer| !peer.queue.is_empty());
        let flush = waiting.map(|peer| peer.flushed_at.plus(TICK)).min();
        flush.map_or(self.next_digest, |flush| flush.min(self.next_digest))
    }

    /// The regions heard within [`HEARD_FOR`]: what the envelope of a frame says.
    pub fn heard(&self, now: Timestamp) -> impl Iterator<Item = RegionId> {
        let recently = move |peer: &Peer| peer.heard_at.is_some_and(|at| now.since(at) < HEARD_FOR);
        self.peers
            .iter()
            .filter(move |(_, peer)| recently(peer))
            .map(|(region, _)| *region)
    }

    /// Rows that were dropped because too many were waiting.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Takes one input at `now`, an instant on the node's own clock.
    pub fn step(&mut self, now: Timestamp, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Say { key, row } => {
                self.recent.insert(key, (row.clone(), now));
                let all: Vec<RegionId> = self.peers.keys().copied().collect();
                for to in all {
                    self.enqueue(to, key, row.clone());
                }
                self.flush(now, out);
            }
            Input::Heard { from, heard } => self.hear_from(now, from, &heard, out),
            Input::Row { from, key, row } => self.receive(now, from, (key, row), out),
            Input::Digest { from, entries } => {
                let missed = |(key, version): &(Key, Sequence)| {
                    let known = self.newest.get(&(*key, from)).map(|(known, _)| *known);
                    (known < Some(*version)).then_some(*key)
                };
                let keys: Vec<Key> = entries.iter().filter_map(missed).collect();
                if !keys.is_empty() && self.peers.contains_key(&from) {
                    out.push(Output::Request { to: from, keys });
                }
            }
            Input::Request { from, keys } => {
                for key in keys {
                    if let Some((row, _)) = self.recent.get(&key) {
                        let row = row.clone();
                        self.enqueue(from, key, row);
                    }
                }
                self.flush(now, out);
            }
            Input::Timeout => {
                self.flush(now, out);
                if now >= self.next_digest {
                    self.next_digest = now.plus(DIGEST_EVERY);
                    self.sweep(now);
                    self.digest(now, out);
                }
            }
        }
    }

    fn hear_from(
        &mut self,
        now: Timestamp,
        from: RegionId,
        heard: &[RegionId],
        out: &mut Vec<Output>,
    ) {
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        if peer.heard_at.is_none_or(|at| now.since(at) >= HEARD_FOR) {
            out.push(Output::RegionUp(from));
        }
        peer.heard_at = Some(now);
        for third in heard {
            peer.hears.insert(*third, now);
        }
        peer.hears.retain(|_, at| now.since(*at) < HEARD_FOR);
    }

    /// Rule 8: newest wins, and what is new is relayed once to whom its origin cannot reach.
    fn receive(&mut self, now: Timestamp, from: RegionId, said: (Key, Row), out: &mut Vec<Output>) {
        let (key, row) = said;
        let origin = row.region;
        if origin == self.own || !self.peers.contains_key(&origin) {
            return;
        }
        let known = self.newest.get(&(key, origin)).map(|(version, _)| *version);
        if known >= Some(row.version) {
            return;
        }
        if known.is_some() || self.newest.len() < NEWEST_MAX {
            self.newest.insert((key, origin), (row.version, now));
        }
        let thirds: Vec<RegionId> = self
            .peers
            .iter()
            .filter(|(third, peer)| {
                let reached = peer.heard_at.is_some_and(|at| now.since(at) < HEARD_FOR);
                let hears = peer
                    .hears
                    .get(&origin)
                    .is_some_and(|at| now.since(*at) < HEARD_FOR);
                **third != origin && **third != from && reached && !hears
            })
            .map(|(third, _)| *third)
            .collect();
        for third in thirds {
            self.enqueue(third, key, row.clone());
        }
        out.push(Output::Row { key, row });
        self.flush(now, out);
    }

    fn enqueue(&mut self, to: RegionId, key: Key, row: Row) {
        let Some(peer) = self.peers.get_mut(&to) else {
            return;
        };
        let waiting = peer.queue.get(&(key, row.region)).map(|row| row.version);
        if waiting.is_none() && peer.queue.len() >= QUEUE_MAX {
            self.dropped = self.dropped.saturating_add(1);
        } else if waiting < Some(row.version) {
            peer.queue.insert((key, row.region), row);
        }
    }

    /// Sends what waits for each region, at most once a tick.
    fn flush(&mut self, now: Timestamp, out: &mut Vec<Output>) {
        for (to, peer) in &mut self.peers {
            if peer.queue.is_empty() || now < peer.flushed_at.plus(TICK) {
                continue;
            }
            let rest = peer.queue.keys().nth(ROWS_PER_TICK).copied();
            let rest = rest
                .map(|first| peer.queue.split_off(&first))
                .unwrap_or_default();
            let batch = std::mem::replace(&mut peer.queue, rest);
            let rows = batch
                .into_iter()
                .map(|((key, _), row)| (key, row))
                .collect();
            peer.flushed_at = now;
            out.push(Output::Send { to: *to, rows });
        }
    }

    fn digest(&self, now: Timestamp, out: &mut Vec<Output>) {
        let quiet = self
            .recent
            .iter()
            .filter(|(_, (_, said))| now.since(*said) >= QUIET_AFTER);
        let entries: Vec<_> = quiet
            .take(ROWS_PER_TICK)
            .map(|(key, (row, _))| (*key, row.version))
            .collect();
        if !entries.is_empty() {
            let sends = self.peers.keys().map(|to| (*to, entries.clone()));
            out.extend(sends.map(|(to, entries)| Output::Digest { to, entries }));
        }
    }

    fn sweep(&mut self, now: Timestamp) {
        self.recent
            .retain(|_, (_, said)| now.since(*said) < RECENT_FOR);
        self.newest
            .retain(|_, (_, heard)| now.since(*heard) < NEWEST_FOR);
    }
}

#[cfg(test)]
mod tests {
    use region::units::{Generation, PolicyId, Share};

    use super::*;

    const KEY: Key = Key {
        client: region::units::Client(7),
        policy: PolicyId(9),
    };

    fn row(region: u16, n: u64) -> Row {
        Row {
            region: RegionId(region),
            terms: 1,
            version: Sequence {
                generation: Generation(1),
                n,
            },
            clock: Timestamp(n),
            demand: Share(n),
            share: Share(0),
            level: region::units::Level(0),
            admitted: 0,
            entries: Vec::new(),
        }
    }

    fn at(ms: u64) -> Timestamp {
        Timestamp(1_000_000 + ms * 1_000)
    }

    fn sent(out: &[Output]) -> Vec<(u16, Vec<u64>)> {
        let sends = out.iter().filter_map(|output| match output {
            Output::Send { to, rows } => {
                Some((to.0, rows.iter().map(|(_, row)| row.version.n).collect()))
            }
            Output::Row { .. }
            | Output::Digest { .. }
            | Output::Request { .. }
            | Output::RegionUp(_) => None,
        });
        sends.collect()
    }

    fn step(exchange: &mut Exchange, ms: u64, input: Input) -> Vec<Output> {
        let mut out = Vec::new();
        exchange.step(at(ms), input, &mut out);
        out
    }

    #[test]
    fn exchange_sends_only_the_newest_row_of_a_key_in_a_tick() {
        let mut exchange = Exchange::new(RegionId(0), 3, at(0));
        let out = step(
            &mut exchange,
            0,
            Input::Say {
                key: KEY,
                row: row(0, 1),
            },
        );
        assert_eq!(sent(&out), [(1, vec![1]), (2, vec![1])]);
        for n in 2..5 {
            let out = step(
                &mut exchange,
                n,
                Input::Say {
                    key: KEY,
                    row: row(0, n),
                },
            );
            assert_eq!(sent(&out), []);
        }
        assert_eq!(exchange.deadline(), at(20));
        let out = step(&mut exchange, 20, Input::Timeout);
        assert_eq!(sent(&out), [(1, vec![4]), (2, vec![4])]);
    }

    #[test]
    fn exchange_relays_once_and_only_to_whom_the_origin_cannot_reach() {
        let mut exchange = Exchange::new(RegionId(0), 3, at(0));
        let hears = |from, heard| Input::Heard {
            from: RegionId(from),
            heard,
        };
        step(&mut exchange, 0, hears(1, vec![RegionId(0), RegionId(2)]));
        step(&mut exchange, 0, hears(2, vec![RegionId(0)]));
        let said = |n| Input::Row {
            from: RegionId(1),
            key: KEY,
            row: row(1, n),
        };
        assert_eq!(sent(&step(&mut exchange, 1, said(5))), [(2, vec![5])]);
        assert_eq!(step(&mut exchange, 40, said(5)), [], "once");
        assert_eq!(step(&mut exchange, 60, said(4)), [], "only if newer");
        step(&mut exchange, 80, hears(2, vec![RegionId(0), RegionId(1)]));
        assert_eq!(sent(&step(&mut exchange, 100, said(6))), []);
    }

    #[test]
    fn exchange_sends_a_lost_row_again_when_the_digest_shows_it() {
        let mut here = Exchange::new(RegionId(0), 2, at(0));
        let mut there = Exchange::new(RegionId(1), 2, at(0));
        step(
            &mut here,
            0,
            Input::Say {
                key: KEY,
                row: row(0, 3),
            },
        );
        let out = step(&mut here, 1_000, Input::Timeout);
        let [Output::Digest { entries, .. }] = out.as_slice() else {
            panic!("{out:?}")
        };
        let from = RegionId(0);
        let out = step(
            &mut there,
            1_001,
            Input::Digest {
                from,
                entries: entries.clone(),
            },
        );
        let [Output::Request { keys, .. }] = out.as_slice() else {
            panic!("{out:?}")
        };
        let request = Input::Request {
            from: RegionId(1),
            keys: keys.clone(),
        };
        assert_eq!(sent(&step(&mut here, 1_002, request)), [(1, vec![3])]);
        step(
            &mut there,
            1_003,
            Input::Row {
                from,
                key: KEY,
                row: row(0, 3),
            },
        );
        let again = step(
            &mut there,
            2_000,
            Input::Digest {
                from,
                entries: entries.clone(),
            },
        );
        assert_eq!(again, [], "nothing is missing any more");
    }

    #[test]
    fn case_49_exchange_ignores_rows_about_itself_and_of_unknown_regions() {
        let mut exchange = Exchange::new(RegionId(0), 2, at(0));
        for origin in [0, 7] {
            let input = Input::Row {
                from: RegionId(1),
                key: KEY,
                row: row(origin, 9),
            };
            assert_eq!(step(&mut exchange, 1, input), []);
        }
    }
}
