//! Members as foca sees them, and its packets as bytes.

use bytes::{Buf, BufMut};
use foca::{Header, Message, State};

use crate::codec::{self, WireHeader, WireMember, WireUpdate};
use crate::frame::SWIM_LEN_MAX;
use crate::identity::Member;

/// What foca knows of one member.
pub(super) type Known = foca::Member<Member>;

/// The most updates that one packet can hold, each taking more than ten bytes.
const UPDATES_MAX: u16 = 100;

/// A packet that cannot be written or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PacketError {
    /// The packet is full: what was to be added travels with a later one.
    #[error("no room left in the packet")]
    Full,
    /// The bytes are no packet.
    #[error("malformed packet")]
    Malformed,
}

/// Foca's view of the codec.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketCodec;

impl foca::Identity for Member {
    /// A node is its name: it may come back elsewhere, or at another address.
    type Addr = String;

    fn renew(&self) -> Option<Self> {
        Some(self.renewed(0))
    }

    fn addr(&self) -> String {
        self.name().to_owned()
    }

    fn win_addr_conflict(&self, other: &Self) -> bool {
        (self.incarnation(), self.address()) > (other.incarnation(), other.address())
    }
}

impl foca::Codec<Member> for PacketCodec {
    type Error = PacketError;

    fn encode_header(
        &mut self,
        header: &Header<Member>,
        buf: impl BufMut,
    ) -> Result<(), PacketError> {
        let (kind, probe, third) = split_message(&header.message);
        let wire = WireHeader {
            source: WireMember::from(&header.src),
            source_incarnation: header.src_incarnation,
            target: WireMember::from(&header.dst),
            kind,
            probe,
            third: third.map(WireMember::from),
        };
        put(codec::encode(&wire).ok(), buf)
    }

    fn decode_header(&mut self, mut buf: impl Buf) -> Result<Header<Member>, PacketError> {
        let (wire, read) = codec::decode(buf.chunk()).ok_or(PacketError::Malformed)?;
        buf.advance(read);
        to_header(wire).ok_or(PacketError::Malformed)
    }

    fn encode_member(&mut self, known: &Known, buf: impl BufMut) -> Result<(), PacketError> {
        let wire = WireUpdate {
            member: WireMember::from(known.id()),
            incarnation: known.incarnation(),
            state: match known.state() {
                State::Alive => 0,
                State::Suspect => 1,
                State::Down => 2,
            },
        };
        put(codec::encode(&wire).ok(), buf)
    }

    fn decode_member(&mut self, mut buf: impl Buf) -> Result<Known, PacketError> {
        let (wire, read) = codec::decode(buf.chunk()).ok_or(PacketError::Malformed)?;
        buf.advance(read);
        to_known(wire).ok_or(PacketError::Malformed)
    }
}

/// Reads a packet without acting on it: its header, and the members that it tells of.
pub(super) fn read(mut packet: &[u8]) -> Result<(Header<Member>, Vec<Known>), PacketError> {
    use foca::Codec as _;
    let header = PacketCodec.decode_header(&mut packet)?;
    if packet.is_empty() {
        return Ok((header, Vec::new()));
    }
    let count = packet
        .try_get_u16()
        .map_err(|_short| PacketError::Malformed)?;
    if count > UPDATES_MAX {
        return Err(PacketError::Malformed);
    }
    let known = (0..count)
        .map(|_| PacketCodec.decode_member(&mut packet))
        .collect::<Result<_, _>>()?;
    Ok((header, known))
}

/// A packet that tells `to` of one member.
pub(super) fn tell(from: &Member, to: &Member, known: &Known) -> Result<Vec<u8>, PacketError> {
    use foca::Codec as _;
    let header = Header {
        src: from.clone(),
        src_incarnation: 0,
        dst: to.clone(),
        message: Message::Gossip,
    };
    let mut packet = Vec::new().limit(SWIM_LEN_MAX);
    PacketCodec.encode_header(&header, &mut packet)?;
    packet.put_u16(1);
    PacketCodec.encode_member(known, &mut packet)?;
    Ok(packet.into_inner())
}

fn put(bytes: Option<Vec<u8>>, mut buf: impl BufMut) -> Result<(), PacketError> {
    let bytes = bytes.ok_or(PacketError::Malformed)?;
    if buf.remaining_mut() < bytes.len() {
        return Err(PacketError::Full);
    }
    buf.put_slice(&bytes);
    Ok(())
}

fn split_message(message: &Message<Member>) -> (u8, u8, Option<&Member>) {
    match message {
        Message::Ping(probe) => (0, *probe, None),
        Message::Ack(probe) => (1, *probe, None),
        Message::PingReq {
            target,
            probe_number,
        } => (2, *probe_number, Some(target)),
        Message::IndirectPing {
            origin,
            probe_number,
        } => (3, *probe_number, Some(origin)),
        Message::IndirectAck {
            target,
            probe_number,
        } => (4, *probe_number, Some(target)),
        Message::ForwardedAck {
            origin,
            probe_number,
        } => (5, *probe_number, Some(origin)),
        Message::Announce => (6, 0, None),
        Message::Feed => (7, 0, None),
        Message::Gossip => (8, 0, None),
        Message::Broadcast => (9, 0, None),
        Message::TurnUndead => (10, 0, None),
    }
}

fn to_header(wire: WireHeader) -> Option<Header<Member>> {
    let third = wire.third.map(Member::try_from).transpose().ok()?;
    let probe_number = wire.probe;
    let message = match (wire.kind, third) {
        (0, None) => Message::Ping(probe_number),
        (1, None) => Message::Ack(probe_number),
        (2, Some(target)) => Message::PingReq {
            target,
            probe_number,
        },
        (3, Some(origin)) => Message::IndirectPing {
            origin,
            probe_number,
        },
        (4, Some(target)) => Message::IndirectAck {
            target,
            probe_number,
        },
        (5, Some(origin)) => Message::ForwardedAck {
            origin,
            probe_number,
        },
        (6, None) => Message::Announce,
        (7, None) => Message::Feed,
        (8, None) => Message::Gossip,
        (9, None) => Message::Broadcast,
        (10, None) => Message::TurnUndead,
        _ => return None,
    };
    Some(Header {
        src: wire.source.try_into().ok()?,
        src_incarnation: wire.source_incarnation,
        dst: wire.target.try_into().ok()?,
        message,
    })
}

fn to_known(wire: WireUpdate) -> Option<Known> {
    let state = match wire.state {
        0 => State::Alive,
        1 => State::Suspect,
        2 => State::Down,
        _ => return None,
    };
    Some(Known::new(
        wire.member.try_into().ok()?,
        wire.incarnation,
        state,
    ))
}
