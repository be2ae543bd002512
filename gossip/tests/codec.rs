//! Properties of the wire format: nothing is lost, nothing crashes, nothing out of bounds passes.

#![expect(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::time::Duration;

use gossip::codec::{Codec, Rejection};
use gossip::frame::{
    DATAGRAM_LEN_MAX, Due, Frame, ITEMS_MAX, Invalid, KeyRow, Message, STREAM_LEN_MAX, VERSION,
};
use proptest::prelude::*;
use region::ledger::{Applied, Entry, Grant, Returned, Row};
use region::units::{
    Client, EXACT_MAX, Generation, Key, Level, PolicyId, RegionId, Sequence, Share, Stamp,
    Timestamp, Tokens,
};

const REGIONS: [&str; 4] = ["ap", "eu", "sa", "us"];

fn codec() -> Codec {
    Codec::new(&REGIONS)
}

fn keys() -> BoxedStrategy<Key> {
    (any::<u128>(), any::<u64>())
        .prop_map(|(client, policy)| Key {
            client: Client(client),
            policy: PolicyId(policy),
        })
        .boxed()
}

fn numbers() -> BoxedStrategy<u64> {
    prop_oneof![0..=3_u64, 0..=EXACT_MAX, Just(EXACT_MAX)].boxed()
}

fn sequences() -> BoxedStrategy<Sequence> {
    (numbers(), numbers())
        .prop_map(|(generation, n)| Sequence {
            generation: Generation(generation),
            n,
        })
        .boxed()
}

fn stamps() -> BoxedStrategy<Stamp> {
    sequences()
        .prop_map(|sequence| Stamp {
            generation: sequence.generation,
            clock: Timestamp(sequence.n),
        })
        .boxed()
}

/// All tokens of a kind and the dead ones among them.
fn parcels() -> BoxedStrategy<(Level, Level)> {
    (numbers(), numbers())
        .prop_map(|(a, b)| {
            let level = |number| Level(i64::try_from(number).unwrap());
            (level(a.max(b)), level(a.min(b)))
        })
        .boxed()
}

fn grants() -> BoxedStrategy<Grant> {
    (
        sequences(),
        numbers(),
        stamps(),
        0..=60_000_000_u64,
        parcels(),
    )
        .prop_map(|(sequence, share, basis, ttl, (tokens, dead))| Grant {
            sequence,
            share: Share(share),
            basis,
            ttl: Duration::from_micros(ttl),
            tokens,
            dead,
        })
        .boxed()
}

fn entries(region: u16) -> BoxedStrategy<Entry> {
    let applied = (sequences(), numbers()).prop_map(|(sequence, share)| Applied {
        sequence,
        share: Share(share),
    });
    let returned = (sequences(), numbers(), parcels());
    let returned = returned.prop_map(|(sequence, at, (tokens, dead))| Returned {
        sequence,
        at: Timestamp(at),
        tokens,
        dead,
    });
    (
        stamps(),
        proptest::option::of(grants()),
        proptest::option::of(applied),
        prop_oneof![Just(Returned::default()), returned],
        proptest::option::of(sequences()),
    )
        .prop_map(move |(seen, grant, applied, returned, recalled)| Entry {
            region: RegionId(region),
            seen,
            grant,
            applied,
            returned,
            recalled,
        })
        .boxed()
}

fn rows() -> BoxedStrategy<Row> {
    let own = 0_u16..4;
    (
        own,
        any::<u64>(),
        sequences(),
        (numbers(), numbers(), numbers(), numbers()),
        any::<bool>(),
        (entries(0), entries(1), entries(2), entries(3)),
    )
        .prop_map(|(own, terms, version, numbers, debt, entries)| {
            let (clock, demand, share, level) = numbers;
            let level = i64::try_from(level).unwrap();
            let entries = [entries.0, entries.1, entries.2, entries.3];
            Row {
                region: RegionId(own),
                terms,
                version,
                clock: Timestamp(clock),
                demand: Share(demand),
                share: Share(share),
                level: Level(if debt { -level } else { level }),
                admitted: demand,
                entries: entries
                    .into_iter()
                    .filter(|entry| entry.region.0 != own)
                    .collect(),
            }
        })
        .boxed()
}

fn key_rows() -> BoxedStrategy<KeyRow> {
    (keys(), rows())
        .prop_map(|(key, row)| KeyRow { key, row })
        .boxed()
}

fn messages() -> BoxedStrategy<Message> {
    let due = (keys(), numbers()).prop_map(|(key, wanted)| Due {
        key,
        wanted: Tokens(wanted),
    });
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..1_000).prop_map(Message::Swim),
        proptest::collection::vec(key_rows(), 0..20).prop_map(Message::Rows),
        proptest::collection::vec(due, 0..20).prop_map(Message::Dues),
        proptest::collection::vec((keys(), sequences()), 0..20).prop_map(Message::Digest),
        proptest::collection::vec(keys(), 0..20).prop_map(Message::Request),
    ]
    .boxed()
}

fn frames() -> BoxedStrategy<Frame> {
    let heard = proptest::collection::vec((0_u16..4).prop_map(RegionId), 0..4);
    (heard, messages())
        .prop_map(|(heard, message)| Frame { heard, message })
        .boxed()
}

fn items(message: &Message) -> usize {
    match message {
        Message::Rows(rows) => rows.len(),
        Message::Dues(dues) => dues.len(),
        Message::Digest(versions) => versions.len(),
        Message::Request(keys) => keys.len(),
        Message::Hello(_) | Message::Swim(_) => 1,
    }
}

proptest! {
    #[test]
    fn frame_survives_the_wire(frame in frames()) {
        let bytes = codec().encode(&frame).unwrap();
        prop_assert_eq!(codec().decode(&bytes), Ok(frame));
    }

    #[test]
    fn case_49_random_bytes_never_panic(body in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(codec().decode(&body).is_err());
    }

    #[test]
    fn case_49_damaged_frames_never_panic(
        frame in frames(),
        place in any::<proptest::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<proptest::sample::Index>(),
    ) {
        let mut bytes = codec().encode(&frame).unwrap();
        let place = place.index(bytes.len());
        bytes[place] = byte;
        if let Ok(Frame { message: Message::Rows(rows), .. }) = codec().decode(&bytes) {
            for KeyRow { row, .. } in rows {
                prop_assert!(row.share.0 <= EXACT_MAX && row.admitted <= EXACT_MAX);
            }
        }
        let cut = cut.index(bytes.len());
        prop_assert!(codec().decode(&bytes[..cut]).is_err());
    }

    #[test]
    fn case_52_split_frames_fit_and_lose_nothing(message in messages()) {
        let codec = codec();
        let heard = [RegionId(1), RegionId(3)];
        let total = items(&message);
        let split = codec.split(&heard, message);
        prop_assert_eq!(split.iter().map(|frame| items(&frame.message)).sum::<usize>(), total);
        let sizes: Vec<_> = split.iter().map(|f| codec.encode(f).unwrap().len()).collect();
        if sizes.iter().sum::<usize>() < 8 * DATAGRAM_LEN_MAX {
            for (frame, size) in split.iter().zip(&sizes) {
                prop_assert!(*size <= DATAGRAM_LEN_MAX || items(&frame.message) == 1);
            }
        }
    }
}

fn plain_row() -> Row {
    Row {
        region: RegionId(1),
        terms: 7,
        version: Sequence::default(),
        clock: Timestamp(1_000),
        demand: Share(1),
        share: Share(1),
        level: Level(1),
        admitted: 1,
        entries: vec![Entry {
            region: RegionId(0),
            ..Entry::default()
        }],
    }
}

fn grant() -> Grant {
    Grant {
        sequence: Sequence::default(),
        share: Share(1),
        basis: Stamp::default(),
        ttl: Duration::from_secs(1),
        tokens: Level(5),
        dead: Level(1),
    }
}

fn received(row: Row) -> Result<Frame, Rejection> {
    let key = Key::default();
    let frame = Frame {
        heard: Vec::new(),
        message: Message::Rows(vec![KeyRow { key, row }]),
    };
    codec().decode(&codec().encode(&frame).unwrap())
}

#[test]
fn case_49_case_63_row_with_values_out_of_bounds_is_refused() {
    type Spoil = fn(&mut Row);
    let spoilt: [(Spoil, Invalid); 10] = [
        (|row| row.region = RegionId(4), Invalid::Region),
        (|row| row.entries[0].region = RegionId(1), Invalid::Region),
        (|row| row.entries[0].region = RegionId(9), Invalid::Region),
        (|row| row.entries.push(row.entries[0]), Invalid::Order),
        (|row| row.share = Share(1 << 53), Invalid::Number),
        (|row| row.level = Level(-(1 << 53)), Invalid::Number),
        (|row| row.version.n = u64::MAX, Invalid::Number),
        (|row| row.clock = Timestamp::NEVER, Invalid::Number),
        (
            |row| {
                let ttl = Duration::from_secs(61);
                row.entries[0].grant = Some(Grant { ttl, ..grant() });
            },
            Invalid::Lifetime,
        ),
        (
            |row| {
                let dead = Level(6);
                row.entries[0].grant = Some(Grant { dead, ..grant() });
            },
            Invalid::Number,
        ),
    ];
    assert!(received(plain_row()).is_ok());
    for (number, (spoil, invalid)) in spoilt.into_iter().enumerate() {
        let mut row = plain_row();
        spoil(&mut row);
        assert_eq!(
            received(row),
            Err(Rejection::Invalid(invalid)),
            "row {number}"
        );
    }
}

#[test]
fn case_49_length_beyond_the_limit_is_refused_before_it_is_believed() {
    let frame = Frame {
        heard: Vec::new(),
        message: Message::Request(Vec::new()),
    };
    let mut bytes = codec().encode(&frame).unwrap();
    assert_eq!(bytes.first(), Some(&VERSION));
    // The last byte is the length of the list: claim four thousand million keys instead.
    bytes.pop();
    bytes.extend([0xff, 0xff, 0xff, 0xff, 0x0f]);
    assert_eq!(codec().decode(&bytes), Err(Rejection::Malformed));
    let large = vec![VERSION; STREAM_LEN_MAX + 1];
    assert_eq!(codec().decode(&large), Err(Rejection::TooLarge));
}

#[test]
fn case_52_many_rows_go_in_few_large_frames() {
    let codec = codec();
    let rows: Vec<_> = (0..5_000)
        .map(|client| KeyRow {
            key: Key {
                client: Client(client),
                policy: PolicyId(1),
            },
            row: plain_row(),
        })
        .collect();
    let frames = codec.split(&[], Message::Rows(rows));
    assert!(frames.len() < 20, "{} frames", frames.len());
    for frame in &frames {
        assert!(items(&frame.message) <= ITEMS_MAX);
        assert!(codec.encode(frame).unwrap().len() <= STREAM_LEN_MAX);
    }
}
