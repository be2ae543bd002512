//! The bytes of a frame. The only place that names bincode.
//!
//! A frame is its version, the fingerprint of the regions that it counts in, and bincode of what
//! follows. Numbers are variable-length; instants and sequences are told relative to the clock of
//! the row that they stand in, so that a row of three regions takes about a hundred bytes. The
//! golden files in `tests/` hold the format still.

use core::net::SocketAddr;
use std::hash::Hasher as _;

use bincode::de::Decoder;
use bincode::enc::Encoder;
use bincode::enc::write::{SizeWriter, Writer as _};
use bincode::error::{DecodeError, EncodeError};
use bincode::{Decode, Encode};
use region::units::RegionId;
use siphasher::sip::SipHasher24;

use crate::frame::{
    ENTRIES_MAX, Frame, ITEMS_MAX, Invalid, STREAM_LEN_MAX, SWIM_LEN_MAX, VERSION, check_region,
};
use crate::identity::NAME_LEN_MAX;

mod convert;
mod split;

/// The most memory that decoding one frame may take, whatever its lengths claim.
const DECODED_LEN_MAX: usize = 4 * 1024 * 1024;

const CONFIG: bincode::config::Configuration<
    bincode::config::LittleEndian,
    bincode::config::Varint,
    bincode::config::Limit<DECODED_LEN_MAX>,
> = bincode::config::standard().with_limit::<DECODED_LEN_MAX>();

/// Encodes and decodes the frames of one deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Codec {
    regions: u16,
    fingerprint: u32,
}

/// A frame that cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {0} bytes is larger than {STREAM_LEN_MAX}")]
pub struct TooLarge(pub usize);

/// Why a received frame was dropped. The state of the receiver is as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// Nothing was decoded: the frame is larger than any that is sent.
    #[error("larger than {STREAM_LEN_MAX} bytes")]
    TooLarge,
    /// The sender speaks another version.
    #[error("unknown version {0}")]
    Version(u8),
    /// The sender is configured with other regions, so its numbers name others than ours do.
    #[error("the sender has other regions")]
    Regions,
    /// The bytes are no frame.
    #[error("malformed")]
    Malformed,
    /// The bytes are a frame with values that no honest node sends.
    #[error("invalid: {0}")]
    Invalid(#[from] Invalid),
}

impl Codec {
    /// The codec of a deployment with these regions, in their order.
    ///
    /// Regions travel as their place in this list; a frame of a node with another list is refused.
    #[must_use]
    pub fn new<S: AsRef<str>>(regions: &[S]) -> Self {
        let mut hasher = SipHasher24::new();
        for region in regions {
            hasher.write(region.as_ref().as_bytes());
            hasher.write_u8(0xff);
        }
        let [a, b, c, d, ..] = hasher.finish().to_le_bytes();
        Self {
            regions: u16::try_from(regions.len()).unwrap_or(u16::MAX),
            fingerprint: u32::from_le_bytes([a, b, c, d]),
        }
    }

    /// The bytes of a frame.
    ///
    /// # Errors
    /// If it is larger than a stream may carry: split it with [`split`](Self::split).
    pub fn encode(&self, frame: &Frame) -> Result<Vec<u8>, TooLarge> {
        let wire = WireFrame {
            version: VERSION,
            fingerprint: self.fingerprint.to_le_bytes(),
            heard: List(frame.heard.iter().map(|region| region.0).collect()),
            message: WireMessage::from(&frame.message),
        };
        let bytes = encode(&wire).map_err(|_too_many| TooLarge(usize::MAX))?;
        if bytes.len() > STREAM_LEN_MAX {
            return Err(TooLarge(bytes.len()));
        }
        Ok(bytes)
    }

    /// The frame in `bytes`, every value of it within its bounds.
    ///
    /// # Errors
    /// If it is not one that this node can use; see [`Rejection`].
    pub fn decode(&self, bytes: &[u8]) -> Result<Frame, Rejection> {
        if bytes.len() > STREAM_LEN_MAX {
            return Err(Rejection::TooLarge);
        }
        match bytes.first() {
            Some(&VERSION) => {}
            Some(&other) => return Err(Rejection::Version(other)),
            None => return Err(Rejection::Malformed),
        }
        if bytes.get(1..5) != Some(&self.fingerprint.to_le_bytes()) {
            return Err(Rejection::Regions);
        }
        let (wire, read): (WireFrame, usize) = decode(bytes).ok_or(Rejection::Malformed)?;
        if read != bytes.len() {
            return Err(Rejection::Malformed);
        }
        let heard: Vec<_> = wire.heard.0.into_iter().map(RegionId).collect();
        for region in &heard {
            check_region(*region, self.regions)?;
        }
        Ok(Frame {
            heard,
            message: wire.message.into_message(self.regions)?,
        })
    }
}

#[derive(Encode, Decode)]
struct WireFrame {
    version: u8,
    fingerprint: [u8; 4],
    heard: List<u16, ENTRIES_MAX>,
    message: WireMessage,
}

/// The order of the variants is part of the format.
#[derive(Encode, Decode)]
enum WireMessage {
    Hello(WireHello),
    Swim(List<u8, SWIM_LEN_MAX>),
    Rows(List<WireKeyRow, ITEMS_MAX>),
    Dues(List<WireDue, ITEMS_MAX>),
    Digest(List<(WireKey, WireSequence), ITEMS_MAX>),
    Request(List<WireKey, ITEMS_MAX>),
}

#[derive(Encode, Decode)]
struct WireHello {
    member: WireMember,
    reply: bool,
}

#[derive(Clone, Encode, Decode)]
pub(crate) struct WireMember {
    name: List<u8, NAME_LEN_MAX>,
    region: List<u8, NAME_LEN_MAX>,
    address: SocketAddr,
    incarnation: Number,
}

#[derive(Encode, Decode)]
struct WireKey {
    client: [u8; 16],
    policy: [u8; 8],
}

#[derive(Encode, Decode)]
struct WireDue {
    key: WireKey,
    wanted: Number,
}

#[derive(Encode, Decode)]
struct WireKeyRow {
    key: WireKey,
    region: u16,
    terms: [u8; 8],
    clock: Number,
    /// Relative to the clock.
    version: WireSequence,
    demand: Number,
    share: Number,
    level: Signed,
    admitted: Number,
    entries: List<WireEntry, ENTRIES_MAX>,
}

/// A generation and a number or an instant of it, relative to what the context says.
#[derive(Clone, Copy, Encode, Decode)]
struct WireSequence {
    generation: Signed,
    n: Signed,
}

/// Sequences of the speaking region are relative to its version, those of the other region to
/// `seen`. What is absent costs one bit.
struct WireEntry {
    region: u16,
    /// Relative to the row's clock.
    seen: Option<WireSequence>,
    grant: Option<WireGrant>,
    applied: Option<WireApplied>,
    returned: Option<WireReturned>,
    recalled: Option<WireSequence>,
}

#[derive(Encode, Decode)]
struct WireGrant {
    sequence: WireSequence,
    share: Number,
    basis: WireSequence,
    ttl_us: Number,
    tokens: Number,
    dead: Number,
}

#[derive(Encode, Decode)]
struct WireApplied {
    sequence: WireSequence,
    share: Number,
}

#[derive(Encode, Decode)]
struct WireReturned {
    sequence: WireSequence,
    /// How long before the row's clock.
    ago: Number,
    tokens: Number,
    dead: Number,
}

/// A packet's header in the membership protocol; the members that follow it are [`WireUpdate`]s.
#[derive(Encode, Decode)]
pub(crate) struct WireHeader {
    pub(crate) source: WireMember,
    pub(crate) source_incarnation: u16,
    pub(crate) target: WireMember,
    /// Which message, in the order of foca's enumeration.
    pub(crate) kind: u8,
    pub(crate) probe: u8,
    pub(crate) third: Option<WireMember>,
}

/// What is known of one member.
#[derive(Encode, Decode)]
pub(crate) struct WireUpdate {
    pub(crate) member: WireMember,
    pub(crate) incarnation: u16,
    pub(crate) state: u8,
}

impl Encode for WireEntry {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        let flags = u8::from(self.seen.is_some())
            | u8::from(self.grant.is_some()) << 1
            | u8::from(self.applied.is_some()) << 2
            | u8::from(self.returned.is_some()) << 3
            | u8::from(self.recalled.is_some()) << 4;
        (self.region, flags).encode(encoder)?;
        present(&self.seen, encoder)?;
        present(&self.grant, encoder)?;
        present(&self.applied, encoder)?;
        present(&self.returned, encoder)?;
        present(&self.recalled, encoder)
    }
}

impl<Context> Decode<Context> for WireEntry {
    fn decode<D: Decoder<Context = Context>>(decoder: &mut D) -> Result<Self, DecodeError> {
        let (region, flags) = <(u16, u8)>::decode(decoder)?;
        if flags >> 5 != 0 {
            return Err(DecodeError::Other("an entry has unknown parts"));
        }
        Ok(Self {
            region,
            seen: flagged(flags, 0, decoder)?,
            grant: flagged(flags, 1, decoder)?,
            applied: flagged(flags, 2, decoder)?,
            returned: flagged(flags, 3, decoder)?,
            recalled: flagged(flags, 4, decoder)?,
        })
    }
}

fn present<T: Encode, E: Encoder>(part: &Option<T>, encoder: &mut E) -> Result<(), EncodeError> {
    part.as_ref().map_or(Ok(()), |part| part.encode(encoder))
}

fn flagged<T: Decode<D::Context>, D: Decoder>(
    flags: u8,
    bit: u8,
    decoder: &mut D,
) -> Result<Option<T>, DecodeError> {
    (flags >> bit & 1 == 1)
        .then(|| T::decode(decoder))
        .transpose()
}

/// The bytes of a value that is part of the format.
pub(crate) fn encode(value: &impl Encode) -> Result<Vec<u8>, EncodeError> {
    bincode::encode_to_vec(value, CONFIG)
}

/// The value at the beginning of `bytes`, and how many of them it took.
pub(crate) fn decode<T: Decode<()>>(bytes: &[u8]) -> Option<(T, usize)> {
    bincode::decode_from_slice(bytes, CONFIG).ok()
}

/// How many bytes a value takes; more than any frame has if it cannot be encoded at all.
fn size(value: &impl Encode) -> usize {
    let mut encoder = bincode::enc::EncoderImpl::new(SizeWriter::default(), CONFIG);
    match value.encode(&mut encoder) {
        Ok(()) => encoder.into_writer().bytes_written,
        Err(_) => STREAM_LEN_MAX,
    }
}

/// A list whose length is checked before anything is allocated for it.
#[derive(Clone, Debug)]
pub(crate) struct List<T, const MAX: usize>(pub(crate) Vec<T>);

impl<T, const MAX: usize> FromIterator<T> for List<T, MAX> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Self(items.into_iter().collect())
    }
}

impl<T: Encode, const MAX: usize> Encode for List<T, MAX> {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        if self.0.len() > MAX {
            return Err(EncodeError::Other("a list is too long"));
        }
        number(self.0.len()).encode(encoder)?;
        self.0.iter().try_for_each(|item| item.encode(encoder))
    }
}

impl<Context, T: Decode<Context>, const MAX: usize> Decode<Context> for List<T, MAX> {
    fn decode<D: Decoder<Context = Context>>(decoder: &mut D) -> Result<Self, DecodeError> {
        let len = usize::try_from(Number::decode(decoder)?.0).unwrap_or(usize::MAX);
        if len > MAX {
            return Err(DecodeError::Other("a list is too long"));
        }
        decoder.claim_container_read::<T>(len)?;
        let mut items = Vec::with_capacity(len);
        for _ in 0..len {
            decoder.unclaim_bytes_read(size_of::<T>());
            items.push(T::decode(decoder)?);
        }
        Ok(Self(items))
    }
}

impl<'de, Context, T, const MAX: usize> bincode::BorrowDecode<'de, Context> for List<T, MAX>
where
    T: Decode<Context>,
{
    fn borrow_decode<D>(decoder: &mut D) -> Result<Self, DecodeError>
    where
        D: bincode::de::BorrowDecoder<'de, Context = Context>,
    {
        Self::decode(decoder)
    }
}

fn number(value: usize) -> Number {
    Number(u64::try_from(value).unwrap_or(u64::MAX))
}

/// A number in groups of seven bits, lowest first: small numbers take one byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number(pub(crate) u64);

impl Encode for Number {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        let mut rest = self.0;
        loop {
            let [low, ..] = (rest & 0x7f).to_le_bytes();
            rest >>= 7;
            if rest == 0 {
                return encoder.writer().write(&[low]);
            }
            encoder.writer().write(&[low | 0x80])?;
        }
    }
}

impl<Context> Decode<Context> for Number {
    fn decode<D: Decoder<Context = Context>>(decoder: &mut D) -> Result<Self, DecodeError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = u8::decode(decoder)?;
            let group = u64::from(byte & 0x7f);
            let placed = group << shift;
            if placed >> shift != group {
                break;
            }
            value |= placed;
            if byte & 0x80 == 0 {
                return Ok(Self(value));
            }
        }
        Err(DecodeError::Other("a number is too long"))
    }
}

bincode::impl_borrow_decode!(Number);

/// A difference of two numbers, or a number that may be negative: near zero takes one byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signed(pub(crate) i64);

impl Encode for Signed {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        let folded = (self.0 << 1) ^ (self.0 >> 63);
        Number(folded.cast_unsigned()).encode(encoder)
    }
}

impl<Context> Decode<Context> for Signed {
    fn decode<D: Decoder<Context = Context>>(decoder: &mut D) -> Result<Self, DecodeError> {
        let folded = Number::decode(decoder)?.0;
        let sign = (folded & 1).wrapping_neg();
        Ok(Self(((folded >> 1) ^ sign).cast_signed()))
    }
}

bincode::impl_borrow_decode!(Signed);
bincode::impl_borrow_decode!(WireEntry);
