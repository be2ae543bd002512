//! Splitting a message into frames that can be sent.

use region::units::RegionId;

use super::{Codec, WireDue, WireKey, WireKeyRow, convert, size};
use crate::frame::{DATAGRAM_LEN_MAX, Frame, ITEMS_MAX, Message};

/// From this many datagrams on, a batch goes by stream: sent once, and resent where lost.
const DATAGRAMS_MAX: usize = 8;

/// How large the frames of a batch that goes by stream become.
const BATCH_LEN_MAX: usize = 64 * 1024;

impl Codec {
    /// Frames that together say what `message` says, none too large to send.
    ///
    /// Items that fit a few datagrams are packed into datagrams. More of them, or one that is too
    /// large for a datagram, go in frames for streams, where nothing is lost.
    #[must_use]
    pub fn split(&self, heard: &[RegionId], message: Message) -> Vec<Frame> {
        let envelope = 16 + 3 * heard.len();
        let messages = match message {
            Message::Rows(rows) => pack(rows, envelope, Message::Rows, |row| {
                size(&WireKeyRow::from(row))
            }),
            Message::Dues(dues) => pack(dues, envelope, Message::Dues, |due| {
                size(&WireDue::from(due))
            }),
            Message::Digest(versions) => pack(versions, envelope, Message::Digest, |version| {
                size(&convert::digest(version))
            }),
            Message::Request(keys) => pack(keys, envelope, Message::Request, |key| {
                size(&WireKey::from(key))
            }),
            single @ (Message::Hello(_) | Message::Swim(_)) => vec![single],
        };
        messages
            .into_iter()
            .map(|message| Frame {
                heard: heard.to_vec(),
                message,
            })
            .collect()
    }
}

/// Packs items, in their order, into as few messages as their sizes allow.
fn pack<T>(
    items: Vec<T>,
    envelope: usize,
    wrap: impl Fn(Vec<T>) -> Message,
    size: impl Fn(&T) -> usize,
) -> Vec<Message> {
    let sizes: Vec<usize> = items.iter().map(size).collect();
    let few = sizes.iter().sum::<usize>() <= DATAGRAMS_MAX * (DATAGRAM_LEN_MAX - envelope);
    let room = if few { DATAGRAM_LEN_MAX } else { BATCH_LEN_MAX };
    let mut messages = Vec::new();
    let mut batch = Vec::new();
    let mut used = envelope;
    for (item, size) in items.into_iter().zip(sizes) {
        if !batch.is_empty() && (used + size > room || batch.len() == ITEMS_MAX) {
            messages.push(wrap(std::mem::take(&mut batch)));
            used = envelope;
        }
        batch.push(item);
        used += size;
    }
    if !batch.is_empty() {
        messages.push(wrap(batch));
    }
    messages
}
