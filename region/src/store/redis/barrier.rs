//! Waits until what a shard has written is at one of its replicas (PROTOCOL 3 rule 7).
//!
//! `WAIT` holds its connection up until replicas have what was written there. So it has
//! a connection of its own, beside that of decisions, and writes something of its own before:
//! replication keeps the order, and what others wrote earlier has then arrived as well. One `WAIT`
//! answers everybody who had asked when it began.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::keeper::{MARKER_KEEP, connect};
use super::shard::{Shard, store_error};
use super::wire::MARKER;
use crate::store::StoreError;

/// How long a replica has for its acknowledgement.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_millis(50);

/// How long everything together may take, a new connection included.
const LIMIT: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(super) struct Barrier {
    /// The number of those who have asked.
    asked: AtomicU64,
    /// Held by the one that waits for the replicas.
    last: Mutex<Last>,
}

/// The last `WAIT`.
#[derive(Debug, Default)]
struct Last {
    connection: Option<MultiplexedConnection>,
    /// The number of those who had asked when it began.
    asked: u64,
    outcome: Option<Result<bool, StoreError>>,
}

impl Barrier {
    /// Whether everything that the shard has written before this call is at a replica.
    pub(super) async fn pass(&self, shard: &Shard) -> Result<bool, StoreError> {
        let asked = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let mut last = self.last.lock().await;
        if let Some(outcome) = last.outcome.filter(|_| asked <= last.asked) {
            return outcome;
        }
        let asked = self.asked.load(Ordering::Acquire);
        let connection = last.connection.take();
        let waited = timeout(LIMIT.max(shard.deadline), wait(shard, connection)).await;
        let outcome = match waited {
            Ok(Ok((connection, reached))) => {
                last.connection = Some(connection);
                Ok(reached)
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(StoreError::Timeout),
        };
        (last.asked, last.outcome) = (asked, Some(outcome));
        outcome
    }
}

/// Writes to the marker, which changes nothing but how long it is kept, and waits for one replica.
async fn wait(
    shard: &Shard,
    connection: Option<MultiplexedConnection>,
) -> Result<(MultiplexedConnection, bool), StoreError> {
    let mut connection = match connection {
        Some(connection) => connection,
        None => connect(shard).await?,
    };
    let keep = u64::try_from(MARKER_KEEP.as_millis()).unwrap_or(u64::MAX);
    let within = u64::try_from(ACKNOWLEDGED_WITHIN.as_millis()).unwrap_or(u64::MAX);
    let mut pipe = redis::pipe();
    pipe.cmd("PEXPIRE").arg(MARKER).arg(keep);
    pipe.cmd("WAIT").arg(1).arg(within);
    let answered = pipe.query_async(&mut connection).await;
    let (written, replicas): (bool, u64) = answered.map_err(|error| store_error(&error))?;
    if !written {
        return Err(StoreError::Forgotten);
    }
    Ok((connection, replicas > 0))
}
