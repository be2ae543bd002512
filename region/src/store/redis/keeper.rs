//! Keeps a shard's link: connects, learns what the shard remembers before anything else flows over
//! a connection, and looks after it for as long as it lasts. One connection at a time.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tokio::time::{sleep, timeout};

use super::script::Script;
use super::shard::{Link, Shard, load_scripts, store_error};
use super::wire::{self, Declared};
use crate::store::StoreError;
use crate::units::Generation;

/// How often the shard is asked whether it is there and remembers.
const BEAT: Duration = Duration::from_secs(1);
/// A connection that has not answered so often is half open, or the shard hangs.
const MISSED_MAX: u32 = 2;
/// The time in which a connection must be open and the shard have said what it remembers.
const OPEN_MAX: Duration = Duration::from_secs(1);
/// The longest first wait before connecting anew, and the longest of all. The waits are random, so
/// that nodes that lost a shard together do not come back together.
const BACKOFF: Duration = Duration::from_millis(400);
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// How long a marker is kept that nobody touches, as in its script.
pub(super) const MARKER_KEEP: Duration = Duration::from_hours(7 * 24);
/// Calls that may wait for their answers, and to be sent.
const IN_FLIGHT_MAX: usize = 4_096;
const BUFFER: usize = 1_024;

/// How a shard is opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// The hash of the shard map: another map is a loss of memory.
    pub(super) map: u64,
    /// A shard without a marker is new, and its keys start full.
    pub(super) first_start: bool,
    /// A shard that may evict keys is used all the same.
    pub(super) accept_eviction: bool,
}

/// An open connection to a shard that has said what it remembers.
#[derive(Debug)]
pub(super) struct Opened {
    connection: MultiplexedConnection,
    pub(super) declared: Declared,
}

impl Opened {
    /// The link over this connection.
    pub(super) fn link(&self) -> Link {
        Link::Up {
            connection: self.connection.clone(),
            memory: self.declared.memory,
        }
    }
}

/// Keeps the link up for ever. Starts with a connection that is already in use, if there is one.
pub(super) async fn keep(shard: Arc<Shard>, mut terms: Terms, first: Option<Opened>) {
    let mut opened = first;
    let mut seen = Generation(0);
    let mut failures = 0;
    loop {
        if let Some(open) = opened.take() {
            terms.first_start = false;
            let beats = watch(&shard, terms, open, &mut seen).await;
            failures = if beats > 0 { 0 } else { failures + 1 };
        } else {
            failures += 1;
        }
        sleep(backoff(failures)).await;
        match open(&shard, terms, seen).await {
            Ok(open) if open.declared.evicts.is_some() && !terms.accept_eviction => {
                shard.set(Link::Down(StoreError::Refused));
            }
            Ok(open) => {
                shard.set(open.link());
                opened = Some(open);
            }
            Err(error) => shard.set(Link::Down(error)),
        }
    }
}

/// Looks after a connection until it breaks; returns how often it answered.
async fn watch(shard: &Shard, terms: Terms, open: Opened, seen: &mut Generation) -> u64 {
    let mut opened = open;
    let (mut beats, mut missed) = (0, 0);
    let error = loop {
        *seen = opened.declared.memory.generation;
        tokio::select! {
            biased;
            () = shard.alarm.notified() => {}
            () = sleep(BEAT) => {}
        }
        let asked = declare(shard, &opened.connection, terms, *seen, Ask::Again);
        match timeout(BEAT.max(shard.deadline), asked).await {
            Ok(Ok(declared)) => {
                (beats, missed) = (beats + 1, 0);
                if declared.memory != opened.declared.memory {
                    opened.declared = declared;
                    shard.set(opened.link());
                }
            }
            Ok(Err(error)) => break error,
            Err(_) if missed + 1 == MISSED_MAX => break StoreError::Unreachable,
            Err(_) => missed += 1,
        }
    };
    shard.set(Link::Down(error));
    beats
}

/// Connects and asks the shard what it remembers.
pub(super) async fn open(
    shard: &Shard,
    terms: Terms,
    seen: Generation,
) -> Result<Opened, StoreError> {
    let limit = OPEN_MAX.max(shard.deadline);
    let opening = async {
        let mut connection = connect(shard).await?;
        let loaded = load_scripts(&mut connection).await;
        loaded.map_err(|error| store_error(&error))?;
        let declared = declare(shard, &connection, terms, seen, Ask::First).await?;
        Ok(Opened {
            connection,
            declared,
        })
    };
    timeout(limit, opening)
        .await
        .unwrap_or(Err(StoreError::Unreachable))
}

/// Opens a connection; the caller bounds how long it waits for it.
pub(super) async fn connect(shard: &Shard) -> Result<MultiplexedConnection, StoreError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(OPEN_MAX.max(shard.deadline)))
        .set_response_timeout(None)
        .set_concurrency_limit(IN_FLIGHT_MAX)
        .set_pipeline_buffer_size(BUFFER);
    shard.connections.fetch_add(1, Ordering::Relaxed);
    let client = &shard.client;
    let connected = client
        .get_multiplexed_async_connection_with_config(&config)
        .await;
    connected.map_err(|error| store_error(&error))
}

/// Whether a connection is new: only then is the map compared, so that nodes with different maps do
/// not take turns in making the shard forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    First,
    Again,
}

async fn declare(
    shard: &Shard,
    connection: &MultiplexedConnection,
    terms: Terms,
    seen: Generation,
    ask: Ask,
) -> Result<Declared, StoreError> {
    let flag = |set: bool| if set { b"1".to_vec() } else { b"0".to_vec() };
    let args = [
        wire::generation(seen),
        terms.map.to_be_bytes().to_vec(),
        flag(ask == Ask::First),
        flag(terms.first_start),
    ];
    let cmd = shard.scripts.call(Script::Marker, &[], &args);
    let value = shard.run(&cmd, connection.clone()).await;
    let value = value.map_err(|error| store_error(&error))?;
    let declared = wire::declared(&value).ok_or(StoreError::Nonsense)?;
    shard
        .evicts
        .store(declared.evicts.is_some(), Ordering::Relaxed);
    shard.replicas.store(declared.replicas, Ordering::Relaxed);
    Ok(declared)
}

/// A random part of a span that doubles with every failure.
fn backoff(failures: u32) -> Duration {
    let span = BACKOFF
        .saturating_mul(1 << failures.saturating_sub(1).min(8))
        .min(BACKOFF_MAX);
    let random = RandomState::new().build_hasher().finish() % 1_000;
    span.mul_f64(f64::from(u32::try_from(random).unwrap_or(0)) / 1_000.0)
}
