//! The bytes of frames, held still: neighbouring versions run together during an upgrade.
//!
//! A difference here is a change of the wire format: it needs a new version and a line in the
//! changelog.

#![expect(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::fmt::Write as _;
use std::time::Duration;

use expect_test::expect;
use gossip::codec::{Codec, Rejection};
use gossip::frame::{Due, Frame, Hello, KeyRow, Message};
use gossip::identity::Member;
use region::ledger::{Applied, Entry, Grant, Returned, Row};
use region::units::{
    Client, Generation, Key, Level, PolicyId, RegionId, Sequence, Share, Stamp, Timestamp, Tokens,
};

const REGIONS: [&str; 3] = ["ap", "eu", "us"];
const CLOCK: u64 = 1_796_088_000_123_456;

fn key() -> Key {
    Key {
        client: Client(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff),
        policy: PolicyId(0x0102_0304_0506_0708),
    }
}

fn sequence(generation: u64, n: u64) -> Sequence {
    let generation = Generation(generation);
    Sequence { generation, n }
}

fn stamp(generation: u64, clock: u64) -> Stamp {
    Stamp {
        generation: Generation(generation),
        clock: Timestamp(clock),
    }
}

/// A row as a busy region of three writes it: lending to one, borrowing from the other.
fn row() -> Row {
    const DAY: u64 = 86_400_000_000;
    let own = CLOCK - 3 * DAY;
    let (eu, us) = (CLOCK - 5 * DAY, CLOCK - 9 * DAY);
    Row {
        region: RegionId(0),
        terms: 0xfeed_beef_0123_4567,
        version: sequence(own, CLOCK),
        clock: Timestamp(CLOCK),
        demand: Share(912_345),
        share: Share(654_321),
        level: Level(123_456_789_012),
        admitted: 7_654_321,
        entries: vec![
            Entry {
                region: RegionId(1),
                seen: stamp(eu, CLOCK - 112_345),
                grant: Some(Grant {
                    sequence: sequence(own, CLOCK - 20_111),
                    share: Share(150_000),
                    basis: stamp(eu, CLOCK - 132_345),
                    ttl: Duration::from_secs(2),
                    tokens: Level(98_765_432_101),
                    dead: Level(0),
                }),
                ..Entry::default()
            },
            Entry {
                region: RegionId(2),
                seen: stamp(us, CLOCK - 76_543),
                applied: Some(Applied {
                    sequence: sequence(us, CLOCK - 98_765),
                    share: Share(204_321),
                }),
                ..Entry::default()
            },
        ],
    }
}

/// Every message once, with every part that it may have.
fn frames() -> Vec<Frame> {
    let mut full = row();
    for entry in &mut full.entries {
        entry.returned = Returned {
            sequence: sequence(1, 2),
            at: Timestamp(CLOCK - 5),
            tokens: Level(3),
            dead: Level(1),
        };
        entry.recalled = Some(full.version);
    }
    full.level = Level(-5);
    let address = "192.0.2.7:7946".parse().unwrap();
    let member = Member::try_new("ap-1", "ap", address, CLOCK).unwrap();
    let messages = vec![
        Message::Hello(Hello {
            member,
            reply: true,
        }),
        Message::Swim(vec![1, 2, 3]),
        Message::Rows(vec![KeyRow {
            key: key(),
            row: full,
        }]),
        Message::Dues(vec![Due {
            key: key(),
            wanted: Tokens(300),
        }]),
        Message::Digest(vec![(key(), sequence(5, 70_000))]),
        Message::Request(vec![key()]),
    ];
    messages
        .into_iter()
        .map(|message| Frame {
            heard: vec![RegionId(0), RegionId(2)],
            message,
        })
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.chunks(32).fold(String::new(), |mut text, line| {
        for byte in line {
            write!(text, "{byte:02x}").unwrap();
        }
        text.push('\n');
        text
    })
}

#[test]
fn frame_keeps_its_bytes() {
    let codec = Codec::new(&REGIONS);
    let mut text = String::new();
    for frame in frames() {
        text.push_str(&hex(&codec.encode(&frame).unwrap()));
        text.push('\n');
    }
    expect![[r#"
        015d3e976f020002000461702d3102617000c0000207fb0a1fc0a4ee9985b198
        0301

        015d3e976f0200020103010203

        015d3e976f0200020201ffeeddccbbaa99887766554433221100080706050403
        02010067452301efbeedfec0a4ee9985b19803ffffb0988b0f00d9d737f1f727
        09b197d30302011bffffa6d39219b1db0d009dba02f0930900bfb80280897aa5
        ca83f7ef0200fdc8b5e0f7c8b006c9edceb38ae2b0060503010000021dffff92
        c9a12dfdab09009bdb02a1bc0cfdc8c9eae8b4b006fd9cd3b38ae2b006050301
        0000

        015d3e976f0200020301ffeeddccbbaa99887766554433221100080706050403
        0201ac02

        015d3e976f0200020401ffeeddccbbaa99887766554433221100080706050403
        02010ae0c508

        015d3e976f0200020501ffeeddccbbaa99887766554433221100080706050403
        0201

    "#]]
    .assert_eq(&text);
}

#[test]
fn frame_is_read_back_as_it_was_written() {
    let codec = Codec::new(&REGIONS);
    for frame in frames() {
        let bytes = codec.encode(&frame).unwrap();
        assert_eq!(codec.decode(&bytes), Ok(frame));
    }
}

#[test]
fn row_of_three_regions_takes_less_than_120_bytes() {
    let codec = Codec::new(&REGIONS);
    let rows = |count| {
        let row = KeyRow {
            key: key(),
            row: row(),
        };
        let frame = Frame {
            heard: Vec::new(),
            message: Message::Rows(vec![row; count]),
        };
        codec.encode(&frame).unwrap().len()
    };
    let row = rows(2) - rows(1);
    assert!(row < 120, "a row takes {row} bytes");
}

#[test]
fn frame_of_another_version_or_other_regions_is_refused() {
    let codec = Codec::new(&REGIONS);
    let mut bytes = codec.encode(&frames()[0]).unwrap();
    let others = Codec::new(&["ap", "eu", "sa"]);
    assert_eq!(others.decode(&bytes), Err(Rejection::Regions));
    bytes[0] = 9;
    assert_eq!(codec.decode(&bytes), Err(Rejection::Version(9)));
    assert_eq!(codec.decode(&[]), Err(Rejection::Malformed));
}
