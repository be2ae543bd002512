//! Between the types of the core and those of the wire.

use std::time::Duration;

use region::ledger::{Applied, Entry, Grant, Returned, Row};
use region::units::{
    Client, Generation, Key, Level, PolicyId, RegionId, Sequence, Share, Stamp, Timestamp, Tokens,
    micros,
};

use super::{
    List, Number, Signed, WireApplied, WireDue, WireEntry, WireGrant, WireHello, WireKey,
    WireKeyRow, WireMember, WireMessage, WireReturned, WireSequence,
};
use crate::frame::{Due, Hello, Invalid, KeyRow, Message, check_number, check_row, check_sequence};
use crate::identity::Member;

impl From<&Message> for WireMessage {
    fn from(message: &Message) -> Self {
        match message {
            Message::Hello(hello) => Self::Hello(WireHello::from(hello)),
            Message::Swim(packet) => Self::Swim(List(packet.clone())),
            Message::Rows(rows) => Self::Rows(rows.iter().map(WireKeyRow::from).collect()),
            Message::Dues(dues) => Self::Dues(dues.iter().map(WireDue::from).collect()),
            Message::Digest(versions) => Self::Digest(versions.iter().map(digest).collect()),
            Message::Request(keys) => Self::Request(keys.iter().map(WireKey::from).collect()),
        }
    }
}

impl WireMessage {
    pub(super) fn into_message(self, regions: u16) -> Result<Message, Invalid> {
        Ok(match self {
            Self::Hello(hello) => Message::Hello(hello.try_into()?),
            Self::Swim(packet) => Message::Swim(packet.0),
            Self::Rows(rows) => Message::Rows(
                rows.0
                    .iter()
                    .map(|row| row.to_key_row(regions))
                    .collect::<Result<_, _>>()?,
            ),
            Self::Dues(dues) => Message::Dues(
                dues.0
                    .iter()
                    .map(TryInto::try_into)
                    .collect::<Result<_, _>>()?,
            ),
            Self::Digest(versions) => Message::Digest(
                versions
                    .0
                    .iter()
                    .map(|(key, version)| Ok((key.into(), version.checked()?)))
                    .collect::<Result<_, Invalid>>()?,
            ),
            Self::Request(keys) => Message::Request(keys.0.iter().map(Into::into).collect()),
        })
    }
}

/// An item of a digest.
pub(super) fn digest((key, version): &(Key, Sequence)) -> (WireKey, WireSequence) {
    let version = WireSequence::of(*version, Sequence::default());
    (WireKey::from(key), version)
}

impl From<&Hello> for WireHello {
    fn from(hello: &Hello) -> Self {
        Self {
            member: WireMember::from(&hello.member),
            reply: hello.reply,
        }
    }
}

impl TryFrom<WireHello> for Hello {
    type Error = Invalid;

    fn try_from(wire: WireHello) -> Result<Self, Invalid> {
        Ok(Self {
            member: wire.member.try_into()?,
            reply: wire.reply,
        })
    }
}

impl From<&Member> for WireMember {
    fn from(member: &Member) -> Self {
        Self {
            name: List(member.name().into()),
            region: List(member.region().into()),
            address: member.address(),
            incarnation: Number(member.incarnation()),
        }
    }
}

impl TryFrom<WireMember> for Member {
    type Error = Invalid;

    fn try_from(wire: WireMember) -> Result<Self, Invalid> {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).map_err(|_not_text| Invalid::Name);
        check_number(wire.incarnation.0)?;
        let (name, region) = (text(wire.name.0)?, text(wire.region.0)?);
        Self::try_new(&name, &region, wire.address, wire.incarnation.0)
            .map_err(|_not_a_name| Invalid::Name)
    }
}

impl From<&Key> for WireKey {
    fn from(key: &Key) -> Self {
        Self {
            client: key.client.0.to_le_bytes(),
            policy: key.policy.0.to_le_bytes(),
        }
    }
}

impl From<&WireKey> for Key {
    fn from(wire: &WireKey) -> Self {
        Self {
            client: Client(u128::from_le_bytes(wire.client)),
            policy: PolicyId(u64::from_le_bytes(wire.policy)),
        }
    }
}

impl From<&Due> for WireDue {
    fn from(due: &Due) -> Self {
        Self {
            key: WireKey::from(&due.key),
            wanted: Number(due.wanted.0),
        }
    }
}

impl TryFrom<&WireDue> for Due {
    type Error = Invalid;

    fn try_from(wire: &WireDue) -> Result<Self, Invalid> {
        check_number(wire.wanted.0)?;
        Ok(Self {
            key: Key::from(&wire.key),
            wanted: Tokens(wire.wanted.0),
        })
    }
}

/// A number as its distance from another: whatever the two are, adding gives the number back.
const fn less(number: u64, base: u64) -> Signed {
    Signed(number.wrapping_sub(base).cast_signed())
}

const fn more(distance: Signed, base: u64) -> u64 {
    base.wrapping_add(distance.0.cast_unsigned())
}

impl WireSequence {
    const fn of(sequence: Sequence, base: Sequence) -> Self {
        Self {
            generation: less(sequence.generation.0, base.generation.0),
            n: less(sequence.n, base.n),
        }
    }

    const fn at(self, base: Sequence) -> Sequence {
        Sequence {
            generation: Generation(more(self.generation, base.generation.0)),
            n: more(self.n, base.n),
        }
    }

    fn checked(self) -> Result<Sequence, Invalid> {
        let sequence = self.at(Sequence::default());
        check_sequence(sequence)?;
        Ok(sequence)
    }
}

/// A stamp is told like a sequence: a generation and a place in it.
const fn sequence_of(stamp: Stamp) -> Sequence {
    Sequence {
        generation: stamp.generation,
        n: stamp.clock.0,
    }
}

const fn stamp_of(sequence: Sequence) -> Stamp {
    Stamp {
        generation: sequence.generation,
        clock: Timestamp(sequence.n),
    }
}

/// What the first numbers of a row are relative to.
const fn base_of(clock: Timestamp) -> Sequence {
    Sequence {
        generation: Generation(clock.0),
        n: clock.0,
    }
}

impl From<&KeyRow> for WireKeyRow {
    fn from(KeyRow { key, row }: &KeyRow) -> Self {
        Self {
            key: WireKey::from(key),
            region: row.region.0,
            terms: row.terms.to_le_bytes(),
            clock: Number(row.clock.0),
            version: WireSequence::of(row.version, base_of(row.clock)),
            demand: Number(row.demand.0),
            share: Number(row.share.0),
            level: Signed(row.level.0),
            admitted: Number(row.admitted),
            entries: row
                .entries
                .iter()
                .map(|entry| WireEntry::of(entry, row))
                .collect(),
        }
    }
}

impl WireKeyRow {
    pub(super) fn to_key_row(&self, regions: u16) -> Result<KeyRow, Invalid> {
        let clock = Timestamp(self.clock.0);
        let version = self.version.at(base_of(clock));
        let row = Row {
            region: RegionId(self.region),
            terms: u64::from_le_bytes(self.terms),
            version,
            clock,
            demand: Share(self.demand.0),
            share: Share(self.share.0),
            level: Level(self.level.0),
            admitted: self.admitted.0,
            entries: self
                .entries
                .0
                .iter()
                .map(|entry| entry.to_entry(version, clock))
                .collect::<Result<_, _>>()?,
        };
        check_row(&row, regions)?;
        Ok(KeyRow {
            key: Key::from(&self.key),
            row,
        })
    }
}

impl WireEntry {
    fn of(entry: &Entry, row: &Row) -> Self {
        let seen = sequence_of(entry.seen);
        Self {
            region: entry.region.0,
            seen: (entry.seen != Stamp::default())
                .then(|| WireSequence::of(seen, base_of(row.clock))),
            grant: entry.grant.as_ref().map(|grant| WireGrant {
                sequence: WireSequence::of(grant.sequence, row.version),
                share: Number(grant.share.0),
                basis: WireSequence::of(sequence_of(grant.basis), seen),
                ttl_us: Number(micros(grant.ttl)),
                tokens: positive(grant.tokens),
                dead: positive(grant.dead),
            }),
            applied: entry.applied.map(|applied| WireApplied {
                sequence: WireSequence::of(applied.sequence, seen),
                share: Number(applied.share.0),
            }),
            returned: (entry.returned != Returned::default()).then(|| WireReturned {
                sequence: WireSequence::of(entry.returned.sequence, seen),
                ago: Number(row.clock.0.wrapping_sub(entry.returned.at.0)),
                tokens: positive(entry.returned.tokens),
                dead: positive(entry.returned.dead),
            }),
            recalled: entry
                .recalled
                .map(|sequence| WireSequence::of(sequence, row.version)),
        }
    }

    fn to_entry(&self, version: Sequence, clock: Timestamp) -> Result<Entry, Invalid> {
        let seen = self
            .seen
            .map_or_else(Sequence::default, |seen| seen.at(base_of(clock)));
        let grant = self.grant.as_ref().map(|grant| {
            Ok(Grant {
                sequence: grant.sequence.at(version),
                share: Share(grant.share.0),
                basis: stamp_of(grant.basis.at(seen)),
                ttl: Duration::from_micros(grant.ttl_us.0),
                tokens: level(grant.tokens)?,
                dead: level(grant.dead)?,
            })
        });
        let returned = self.returned.as_ref().map(|returned| {
            Ok(Returned {
                sequence: returned.sequence.at(seen),
                at: Timestamp(clock.0.wrapping_sub(returned.ago.0)),
                tokens: level(returned.tokens)?,
                dead: level(returned.dead)?,
            })
        });
        Ok(Entry {
            region: RegionId(self.region),
            seen: stamp_of(seen),
            grant: grant.transpose()?,
            applied: self.applied.as_ref().map(|applied| Applied {
                sequence: applied.sequence.at(seen),
                share: Share(applied.share.0),
            }),
            returned: returned.transpose()?.unwrap_or_default(),
            recalled: self.recalled.map(|sequence| sequence.at(version)),
        })
    }
}

/// A running total, which is never negative.
fn positive(total: Level) -> Number {
    Number(total.positive().0.unsigned_abs())
}

fn level(number: Number) -> Result<Level, Invalid> {
    i64::try_from(number.0)
        .map(Level)
        .map_err(|_too_large| Invalid::Number)
}
