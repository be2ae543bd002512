//! One shard: its link, and calls over it. A call has one deadline and is never repeated, except
//! when the shard says that it does not have the script, for then it did not run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::sync::{Mutex, Notify};
use tokio::time::timeout;

use super::barrier::Barrier;
use super::script::{Script, Scripts};
use super::wire;
use crate::bucket::Memory;
use crate::store::StoreError;

/// What can be done with a shard now.
#[derive(Debug)]
pub(super) enum Link {
    /// Nothing; calls fail with this.
    Down(StoreError),
    /// Calls go over this connection and expect this memory.
    Up {
        connection: MultiplexedConnection,
        memory: Memory,
    },
}

/// One shard.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) name: String,
    pub(super) client: Client,
    pub(super) deadline: Duration,
    pub(super) link: ArcSwap<Link>,
    /// Rung when a call has found the connection broken or the memory another.
    pub(super) alarm: Notify,
    pub(super) scripts: Scripts,
    /// One reload at a time; whoever waited for another's does not need its own.
    reloading: Mutex<()>,
    reloads: AtomicU64,
    pub(super) connections: AtomicU64,
    timeouts: AtomicU64,
    pub(super) evicts: AtomicBool,
    /// Replicas that follow it, as of the last beat.
    pub(super) replicas: AtomicU64,
    barrier: Barrier,
}

/// What has happened on one shard since the store was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardStats {
    /// The shard's name.
    pub name: String,
    /// Its memory, while it can be used.
    pub memory: Option<Memory>,
    /// How often its scripts had to be loaded again.
    pub script_reloads: u64,
    /// How many connections to it have been opened.
    pub connections: u64,
    /// How many calls had no answer in time.
    pub timeouts: u64,
    /// Whether it may evict keys: an evicted ledger is a loss that nothing shows.
    pub evicts: bool,
    /// How many replicas follow it.
    pub replicas: u64,
}

impl Shard {
    pub(super) fn new(name: String, client: Client, deadline: Duration) -> Self {
        Self {
            name,
            client,
            deadline,
            link: ArcSwap::from_pointee(Link::Down(StoreError::Unreachable)),
            alarm: Notify::new(),
            scripts: Scripts::new(),
            reloading: Mutex::new(()),
            reloads: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            timeouts: AtomicU64::new(0),
            evicts: AtomicBool::new(false),
            replicas: AtomicU64::new(0),
            barrier: Barrier::default(),
        }
    }

    pub(super) fn stats(&self) -> ShardStats {
        ShardStats {
            name: self.name.clone(),
            memory: match &**self.link.load() {
                Link::Down(_) => None,
                Link::Up { memory, .. } => Some(*memory),
            },
            script_reloads: self.reloads.load(Ordering::Relaxed),
            connections: self.connections.load(Ordering::Relaxed),
            timeouts: self.timeouts.load(Ordering::Relaxed),
            evicts: self.evicts.load(Ordering::Relaxed),
            replicas: self.replicas.load(Ordering::Relaxed),
        }
    }

    /// Calls a script with arguments that depend on what the shard remembers; `read` makes sense
    /// of the answer.
    pub(super) async fn call<T>(
        &self,
        script: Script,
        keys: &[Vec<u8>],
        args: impl FnOnce(Memory) -> Vec<Vec<u8>>,
        read: impl FnOnce(Value, Memory) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (connection, memory) = match &**self.link.load() {
            Link::Down(error) => return Err(*error),
            Link::Up { connection, memory } => (connection.clone(), *memory),
        };
        let mut packed = vec![wire::generation(memory.generation)];
        packed.extend(args(memory));
        let cmd = self.scripts.call(script, keys, &packed);
        let result = match timeout(self.deadline, self.run(&cmd, connection)).await {
            Ok(Ok(value)) => read(value, memory),
            Ok(Err(error)) => Err(store_error(&error)),
            Err(_) => Err(StoreError::Timeout),
        };
        match &result {
            Err(StoreError::Unreachable | StoreError::Forgotten) => self.alarm.notify_one(),
            Err(StoreError::Timeout) => {
                self.timeouts.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
        result
    }

    /// Whether everything that it has written is at a replica, if it has one.
    pub(super) async fn replicated(&self) -> Result<bool, StoreError> {
        if self.replicas.load(Ordering::Relaxed) == 0 {
            return Ok(true);
        }
        self.barrier.pass(self).await
    }

    /// Runs a script, loading it first if the shard does not have it.
    pub(super) async fn run(
        &self,
        cmd: &Cmd,
        mut connection: MultiplexedConnection,
    ) -> RedisResult<Value> {
        let before = self.reloads.load(Ordering::Acquire);
        let result = cmd.query_async(&mut connection).await;
        match result {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.reload(before, &mut connection).await?;
                cmd.query_async(&mut connection).await
            }
            result => result,
        }
    }

    async fn reload(&self, before: u64, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        let _one_at_a_time = self.reloading.lock().await;
        if self.reloads.load(Ordering::Acquire) == before {
            load_scripts(connection).await?;
            self.reloads.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    pub(super) fn set(&self, link: Link) {
        self.link.store(Arc::new(link));
    }
}

/// Loads all scripts.
pub(super) async fn load_scripts(connection: &mut MultiplexedConnection) -> RedisResult<()> {
    let mut pipe = redis::pipe();
    for script in Script::ALL {
        pipe.cmd("SCRIPT").arg("LOAD").arg(script.text()).ignore();
    }
    pipe.query_async(connection).await
}

/// What an error means for the caller.
pub(super) fn store_error(error: &RedisError) -> StoreError {
    match error.code() {
        Some("OOM") => StoreError::Full,
        Some(
            "READONLY" | "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "NOREPLICAS" | "MISCONF"
            | "BUSY" | "MOVED" | "ASK" | "TRYAGAIN" | "NOAUTH" | "NOPERM" | "WRONGPASS",
        ) => StoreError::Refused,
        Some(_) => StoreError::Nonsense,
        None if error.is_timeout() => StoreError::Timeout,
        None if error.is_io_error() || error.is_unrecoverable_error() => StoreError::Unreachable,
        None => StoreError::Nonsense,
    }
}
