//! How a ledger is stored: versioned bytes that begin with the ledger's version, big endian, so
//! that a script can compare it without reading on.

use std::time::Duration;

use crate::ledger::{Applied, Borrowed, Grant, HOLDS_MAX, Hold, Ledger, Lent, Peer, Returned};
use crate::units::{Generation, Level, RegionId, Sequence, Share, Stamp, Timestamp, micros};

/// The length of the version at the beginning.
pub const VERSION_LEN: usize = 16;

/// The format that is written. Formats are only ever added.
const FORMAT: u8 = 2;

/// The first format: it does not say which holds have ended by themselves.
const WITHOUT_LAPSED: u8 = 1;

/// The most regions that a stored ledger may name.
const PEERS_MAX: u64 = 64;

/// A ledger as bytes.
#[must_use]
pub fn encode_ledger(ledger: &Ledger) -> Vec<u8> {
    let mut out = Writer(version_prefix(ledger.version).to_vec());
    out.0.push(FORMAT);
    out.0.extend(ledger.terms.to_be_bytes());
    out.number(ledger.waits_until.0);
    out.length(ledger.peers.len());
    for (region, peer) in &ledger.peers {
        out.number(region.0.into());
        out.peer(peer);
    }
    out.0
}

/// The version prefix of a ledger's bytes.
#[must_use]
pub fn version_prefix(version: Sequence) -> [u8; VERSION_LEN] {
    (u128::from(version.generation.0) << 64 | u128::from(version.n)).to_be_bytes()
}

/// The version that a ledger's bytes begin with; `None` if they are too short.
#[must_use]
pub fn decode_version(bytes: &[u8]) -> Option<Sequence> {
    let mut input = Reader(bytes);
    Some(Sequence {
        generation: Generation(input.fixed()?),
        n: input.fixed()?,
    })
}

/// A ledger from its bytes; `None` if they are not one.
#[must_use]
pub fn decode_ledger(bytes: &[u8]) -> Option<Ledger> {
    let mut input = Reader(bytes);
    let version = Sequence {
        generation: Generation(input.fixed()?),
        n: input.fixed()?,
    };
    let format = input.byte()?;
    if !(WITHOUT_LAPSED..=FORMAT).contains(&format) {
        return None;
    }
    let terms = input.fixed()?;
    let waits_until = Timestamp(input.number()?);
    let mut ledger = Ledger {
        version,
        terms,
        waits_until,
        ..Ledger::default()
    };
    for _ in 0..input.length(PEERS_MAX)? {
        let region = RegionId(u16::try_from(input.number()?).ok()?);
        ledger
            .peers
            .insert(region, input.peer((format, Timestamp(version.n)))?);
    }
    input.0.is_empty().then_some(ledger)
}

struct Writer(Vec<u8>);

impl Writer {
    /// Seven bits a byte, the lowest first; the top bit says that more follow (LEB128).
    fn number(&mut self, mut number: u64) {
        loop {
            let low = (number & 0x7f).to_le_bytes()[0];
            number >>= 7;
            if number == 0 {
                self.0.push(low);
                return;
            }
            self.0.push(low | 0x80);
        }
    }

    fn length(&mut self, length: usize) {
        self.number(u64::try_from(length).unwrap_or(u64::MAX));
    }

    fn level(&mut self, level: Level) {
        self.number(level.0.cast_unsigned());
    }

    fn sequence(&mut self, sequence: Sequence) {
        self.number(sequence.generation.0);
        self.number(sequence.n);
    }

    fn stamp(&mut self, stamp: Stamp) {
        self.number(stamp.generation.0);
        self.number(stamp.clock.0);
    }

    fn maybe<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.0.push(u8::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }

    fn peer(&mut self, peer: &Peer) {
        self.sequence(peer.seen);
        self.stamp(peer.stamp);
        self.number(peer.heard.0);
        self.0.push(u8::from(peer.echoed));
        self.number(peer.demand.0);
        self.number(peer.share.0);
        self.lent(&peer.lent);
        self.borrowed(&peer.borrowed);
    }

    fn lent(&mut self, lent: &Lent) {
        self.maybe(lent.grant, |out, grant| {
            out.sequence(grant.sequence);
            out.number(grant.share.0);
            out.stamp(grant.basis);
            out.number(micros(grant.ttl));
            out.level(grant.tokens);
            out.level(grant.dead);
        });
        self.length(lent.holds.len());
        for hold in &lent.holds {
            self.sequence(hold.sequence);
            self.number(hold.share.0);
            self.stamp(hold.basis);
            self.number(hold.until.0);
            self.level(hold.tokens);
        }
        self.maybe(lent.applied, Self::sequence);
        self.level(lent.returned);
        self.number(lent.returned_by.0);
        self.maybe(lent.recalled, Self::sequence);
        self.maybe(lent.lapsed, |out, lapsed| out.number(lapsed.0));
    }

    fn borrowed(&mut self, borrowed: &Borrowed) {
        self.maybe(borrowed.applied, |out, applied| {
            out.sequence(applied.sequence);
            out.number(applied.share.0);
        });
        self.number(borrowed.until.0);
        self.level(borrowed.credited);
        self.number(borrowed.credited_by.0);
        self.sequence(borrowed.returned.sequence);
        self.number(borrowed.returned.at.0);
        self.level(borrowed.returned.tokens);
        self.level(borrowed.returned.dead);
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn fixed(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_be_bytes(*first))
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            number |= part
                .checked_shl(shift)
                .filter(|moved| moved >> shift == part)?;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn length(&mut self, most: u64) -> Option<usize> {
        usize::try_from(self.number().filter(|length| *length <= most)?).ok()
    }

    fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn level(&mut self) -> Option<Level> {
        Some(Level(self.number()?.cast_signed()))
    }

    fn share(&mut self) -> Option<Share> {
        Some(Share(self.number()?))
    }

    fn sequence(&mut self) -> Option<Sequence> {
        Some(Sequence {
            generation: Generation(self.number()?),
            n: self.number()?,
        })
    }

    fn stamp(&mut self) -> Option<Stamp> {
        let generation = Generation(self.number()?);
        Some(Stamp {
            generation,
            clock: Timestamp(self.number()?),
        })
    }

    fn maybe<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        if self.flag()? {
            read(self).map(Some)
        } else {
            Some(None)
        }
    }

    fn peer(&mut self, from: (u8, Timestamp)) -> Option<Peer> {
        Some(Peer {
            seen: self.sequence()?,
            stamp: self.stamp()?,
            heard: Timestamp(self.number()?),
            echoed: self.flag()?,
            demand: self.share()?,
            share: self.share()?,
            lent: self.lent(from)?,
            borrowed: self.borrowed()?,
        })
    }

    fn lent(&mut self, (format, written): (u8, Timestamp)) -> Option<Lent> {
        let grant = self.maybe(|input| {
            Some(Grant {
                sequence: input.sequence()?,
                share: input.share()?,
                basis: input.stamp()?,
                ttl: Duration::from_micros(input.number()?),
                tokens: input.level()?,
                dead: input.level()?,
            })
        })?;
        let holds_max = u64::try_from(HOLDS_MAX + 1).unwrap_or(u64::MAX);
        let holds = (0..self.length(holds_max)?)
            .map(|_| {
                Some(Hold {
                    sequence: self.sequence()?,
                    share: self.share()?,
                    basis: self.stamp()?,
                    until: Timestamp(self.number()?),
                    tokens: self.level()?,
                })
            })
            .collect::<Option<Vec<_>>>()?;
        Some(Lent {
            grant,
            holds,
            applied: self.maybe(Self::sequence)?,
            returned: self.level()?,
            returned_by: Generation(self.number()?),
            recalled: self.maybe(Self::sequence)?,
            lapsed: if format == WITHOUT_LAPSED {
                // Any of them may have: then what was given back before it was written is dead.
                Some(written)
            } else {
                self.maybe(|input| Some(Timestamp(input.number()?)))?
            },
        })
    }

    fn borrowed(&mut self) -> Option<Borrowed> {
        let applied = self.maybe(|input| {
            Some(Applied {
                sequence: input.sequence()?,
                share: input.share()?,
            })
        })?;
        Some(Borrowed {
            applied,
            until: Timestamp(self.number()?),
            credited: self.level()?,
            credited_by: Generation(self.number()?),
            returned: Returned {
                sequence: self.sequence()?,
                at: Timestamp(self.number()?),
                tokens: self.level()?,
                dead: self.level()?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn ledger() -> Ledger {
        let sequence = Sequence {
            generation: Generation(7),
            n: 1_700_000_000_000_000,
        };
        let stamp = Stamp {
            generation: Generation(3),
            clock: Timestamp(99),
        };
        let grant = Grant {
            sequence,
            share: Share(300_000),
            basis: stamp,
            ttl: Duration::from_secs(2),
            tokens: Level(5),
            dead: Level(4),
        };
        let hold = Hold {
            sequence,
            share: Share(1),
            basis: stamp,
            until: Timestamp(12),
            tokens: Level(1 << 50),
        };
        let peer = Peer {
            seen: sequence,
            stamp,
            heard: Timestamp(8),
            echoed: true,
            demand: Share(9),
            share: Share(u64::MAX),
            lent: Lent {
                grant: Some(grant),
                holds: vec![hold; 3],
                applied: None,
                returned: Level(-1),
                returned_by: Generation(2),
                recalled: Some(sequence),
                lapsed: Some(Timestamp(7)),
            },
            borrowed: Borrowed {
                applied: Some(Applied {
                    sequence,
                    share: Share(2),
                }),
                returned: Returned {
                    sequence,
                    at: Timestamp(6),
                    tokens: Level(3),
                    dead: Level(2),
                },
                ..Borrowed::default()
            },
        };
        let peers = [(RegionId(0), Peer::default()), (RegionId(2), peer)].into();
        Ledger {
            version: sequence,
            terms: 11,
            waits_until: Timestamp(5),
            peers,
        }
    }

    #[test]
    fn ledger_survives_its_bytes() {
        let bytes = encode_ledger(&ledger());
        assert_eq!(decode_ledger(&bytes), Some(ledger()));
        assert_eq!(decode_version(&bytes), Some(ledger().version));
        assert_eq!(bytes[..VERSION_LEN], version_prefix(ledger().version));
    }

    #[test]
    fn ledger_is_refused_when_bytes_are_missing_or_left_over() {
        let mut bytes = encode_ledger(&ledger());
        for length in 0..bytes.len() {
            assert_eq!(decode_ledger(&bytes[..length]), None, "{length}");
        }
        bytes.push(0);
        assert_eq!(decode_ledger(&bytes), None);
    }

    proptest! {
        #[test]
        fn ledger_never_panics_on_hostile_bytes(bytes in vec(any::<u8>(), 0..200)) {
            drop(decode_ledger(&bytes));
            let mut framed = version_prefix(Sequence::default()).to_vec();
            framed.push(FORMAT);
            framed.extend(bytes);
            drop(decode_ledger(&framed));
        }
    }
}
