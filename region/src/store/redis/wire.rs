//! Names of keys, arguments and answers of the scripts.

use redis::Value;

use crate::bucket::{Base, Memory};
use crate::store::format::{decode_ledger, decode_version, encode_ledger, version_prefix};
use crate::store::record::{Record, base_keep, put_level, put_pieces, put_unsigned};
use crate::store::{Loaded, StoreError, Swap, Swapped, Take, Taken, TakenKey};
use crate::units::{Client, Generation, Key, Stamp, Tick, Ticks, Timestamp};

/// The key that says what a shard remembers since.
pub(super) const MARKER: &str = "tg:marker";

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The bucket's key. All keys of one client share a slot; nothing of the client's own text is in
/// the hash tag.
pub(super) fn bucket_key(key: Key) -> Vec<u8> {
    let Client(client) = key.client;
    let mut name = Vec::with_capacity(48);
    name.extend_from_slice(b"tg:{");
    name.extend((0..22).rev().map(|group| {
        let six = client >> (group * 6) & 0x3f;
        ALPHABET[usize::try_from(six).expect("six bits")]
    }));
    name.extend_from_slice(format!("}}:{:016x}", key.policy.0).as_bytes());
    name
}

/// The key of the ledger beside a bucket.
pub(super) fn ledger_key(key: Key) -> Vec<u8> {
    let mut name = bucket_key(key);
    name.extend_from_slice(b":l");
    name
}

/// The generation that a script checks before anything else.
pub(super) fn generation(generation: Generation) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(7);
    put_unsigned(&mut bytes, generation.0);
    bytes
}

/// What a key is that the shard does not know, and how long it is kept.
pub(super) fn base(base: &Base, memory: Memory) -> Vec<u8> {
    let [waits, _] = base.pieces(memory);
    let mut bytes = Vec::with_capacity(72);
    bytes.push(u8::from(base.tick == Tick::Milli));
    put_level(&mut bytes, base.token);
    put_unsigned(&mut bytes, base.share.0);
    put_level(&mut bytes, base.capacity);
    put_level(&mut bytes, base.floor);
    put_unsigned(&mut bytes, waits.until.0);
    put_unsigned(&mut bytes, base.unknown(memory).at.0);
    put_level(&mut bytes, base.debt);
    let keep = base_keep(base).as_micros().div_ceil(1_000);
    put_unsigned(&mut bytes, u64::try_from(keep).unwrap_or(u64::MAX));
    bytes
}

/// One key of a take: its base, its price, what is counted, and whether it is offered again.
pub(super) fn take(take: &Take, memory: Memory) -> Vec<u8> {
    let mut bytes = base(&take.base, memory);
    put_level(&mut bytes, take.price());
    bytes.extend_from_slice(&take.counted().to_be_bytes()[2..]);
    bytes.push(u8::from(take.again));
    bytes
}

/// The arguments of a swap after the generation.
pub(super) fn swap(swap: &Swap, memory: Memory) -> [Vec<u8>; 5] {
    let mut change = Vec::with_capacity(28);
    put_level(&mut change, swap.change.credit);
    put_level(&mut change, swap.change.debit);
    put_unsigned(&mut change, swap.change.before.unwrap_or(Ticks::NEVER).0);
    put_unsigned(&mut change, swap.base.tick.ticks(swap.keep).0);
    let expected = swap.expected.map(version_prefix);
    let mut pieces = Vec::new();
    put_pieces(&mut pieces, &swap.pieces);
    [
        base(&swap.base, memory),
        change,
        expected.map_or_else(Vec::new, |version| version.to_vec()),
        encode_ledger(&swap.ledger),
        pieces,
    ]
}

/// Splits an answer into its time and the rest. The time is 0 in another generation.
fn answer(value: Value, memory: Memory) -> Result<(Stamp, std::vec::IntoIter<Value>), StoreError> {
    let Value::Array(values) = value else {
        return Err(StoreError::Nonsense);
    };
    let mut values = values.into_iter();
    match values.next() {
        Some(Value::Int(0)) => Err(StoreError::Forgotten),
        Some(Value::Int(micros)) => {
            let clock = u64::try_from(micros).ok().ok_or(StoreError::Nonsense)?;
            let stamp = Stamp {
                generation: memory.generation,
                clock: Timestamp(clock),
            };
            Ok((stamp, values))
        }
        _ => Err(StoreError::Nonsense),
    }
}

/// Reads the answer to a take.
pub(super) fn taken(value: Value, memory: Memory, takes: &[Take]) -> Result<Taken, StoreError> {
    let (stamp, values) = answer(value, memory)?;
    let keys = takes
        .iter()
        .zip(values)
        .filter_map(|(take, value)| taken_key(&value, &take.base));
    let keys: Vec<TakenKey> = keys.collect();
    if keys.len() != takes.len() {
        return Err(StoreError::Nonsense);
    }
    Ok(Taken {
        stamp,
        memory,
        keys,
    })
}

fn taken_key(value: &Value, base: &Base) -> Option<TakenKey> {
    let Value::BulkString(bytes) = value else {
        return None;
    };
    let (verdict, record) = bytes.split_first()?;
    Some(TakenKey {
        affords: *verdict == b'A',
        bucket: Record::decode(record, base.capacity)?.bucket,
    })
}

/// Reads the answer to a give-back.
pub(super) fn given_back(value: Value, memory: Memory) -> Result<Stamp, StoreError> {
    answer(value, memory).map(|(stamp, _)| stamp)
}

/// Reads the answer to a load.
pub(super) fn loaded(value: Value, memory: Memory, base: &Base) -> Result<Loaded, StoreError> {
    let (stamp, values) = answer(value, memory)?;
    state((stamp, memory), values, base).ok_or(StoreError::Nonsense)
}

/// Reads the answer to a swap.
pub(super) fn swapped(value: Value, memory: Memory, base: &Base) -> Result<Swapped, StoreError> {
    let (stamp, values) = answer(value, memory)?;
    if values.len() == 0 {
        return Ok(Swapped::Done { stamp });
    }
    let current = state((stamp, memory), values, base).ok_or(StoreError::Nonsense)?;
    Ok(Swapped::Conflict {
        current: Box::new(current),
    })
}

fn state(
    (stamp, memory): (Stamp, Memory),
    mut values: std::vec::IntoIter<Value>,
    base: &Base,
) -> Option<Loaded> {
    let (Value::BulkString(record), Value::BulkString(ledger)) = (values.next()?, values.next()?)
    else {
        return None;
    };
    let version = decode_version(&ledger);
    let known = version.is_some_and(|version| version.generation == memory.generation);
    Some(Loaded {
        version,
        stamp,
        memory,
        ledger: decode_ledger(&ledger).filter(|_| known),
        bucket: Record::decode(&record, base.capacity)?.bucket,
    })
}

/// What a shard says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Declared {
    pub(super) memory: Memory,
    pub(super) evicts: Option<String>,
    pub(super) replicas: u64,
}

/// Reads the answer of the marker's script.
pub(super) fn declared(value: &Value) -> Option<Declared> {
    let Value::Array(values) = value else {
        return None;
    };
    let [
        Value::BulkString(head),
        Value::BulkString(policy),
        Value::Int(replicas),
    ] = values.as_slice()
    else {
        return None;
    };
    let number = |bytes: &[u8]| bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    let (generation, began) = head.split_at_checked(7)?;
    let policy = String::from_utf8_lossy(policy).into_owned();
    Some(Declared {
        memory: Memory {
            generation: Generation(number(generation)),
            began: Timestamp(number(began)),
        },
        evicts: Some(policy).filter(|policy| policy != "noeviction"),
        replicas: u64::try_from(*replicas).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bucket::Lost;
    use crate::units::{Level, PolicyId, Share};

    #[test]
    fn case_20_key_name_has_a_tag_of_its_own_making() {
        let key = Key {
            client: Client(u128::MAX),
            policy: PolicyId(0xab),
        };
        let name = String::from_utf8(bucket_key(key)).expect("text");
        assert_eq!(name, "tg:{D_____________________}:00000000000000ab");
        assert_eq!(ledger_key(key), format!("{name}:l").as_bytes());
    }

    #[test]
    fn answer_that_makes_no_sense_is_an_error() {
        let memory = Memory::default();
        let base = Base {
            tick: Tick::Micro,
            token: Level(1),
            share: Share(1),
            capacity: Level(1),
            floor: Level::ZERO,
            wait: Duration::ZERO,
            debt: Level::ZERO,
            lost: Lost::Empty,
        };
        for value in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(-1)]),
            Value::Array(vec![Value::Int(1), Value::Nil]),
        ] {
            assert_eq!(loaded(value, memory, &base), Err(StoreError::Nonsense));
        }
        let other = Value::Array(vec![Value::Int(0)]);
        assert_eq!(given_back(other, memory), Err(StoreError::Forgotten));
    }
}
