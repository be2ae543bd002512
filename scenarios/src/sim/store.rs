//! A region's store as its nodes reach it: shards of the embedded store of production, each on one
//! of two servers, with a way to it that can be closed.

mod clock;
mod shards;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use region::bucket::{Base, Memory};
use region::store::memory::MemoryStore;
use region::store::{Loaded, ShardId, Store, StoreError, Swap, Swapped, Take, Taken};
use region::units::{Client, Generation, Key, Stamp, Timestamp};

pub(super) use self::shards::Shards;

/// The most keys that a shard holds; no scenario has so many.
const KEYS_MAX: usize = 100_000;

/// The memory of a store that is declared to be new.
const NEW: Memory = Memory {
    generation: Generation(1),
    began: Timestamp(0),
};

/// A region's store, as one of its nodes reaches it.
#[derive(Clone, Debug)]
pub(super) struct SimStore {
    shards: Arc<Vec<Shard>>,
    node: usize,
}

/// A shard as nodes reach it.
#[derive(Debug)]
struct Shard {
    servers: [Server; 2],
    primary: AtomicUsize,
    /// The nodes that go on with the other server, a bit for each.
    astray: AtomicU64,
    silent: AtomicBool,
    dead: AtomicBool,
}

/// A server that holds a shard.
#[derive(Debug)]
struct Server {
    memory: MemoryStore,
    /// What its clock shows.
    reading: Arc<AtomicU64>,
}

/// Whether a shard answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// It does.
    Answers,
    /// It does not, but may do what is asked.
    Silent,
    /// It does not, because nothing is there.
    Dead,
}

/// Runs a future that never waits.
pub(super) fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("a memory store never waits"),
    }
}

impl SimStore {
    /// Whether the shard of a client answers.
    pub(super) fn reach(&self, client: Client) -> Reach {
        self.of(client).reach()
    }

    /// The server that this node would ask, whether or not it can reach it.
    pub(super) fn inside(&self, client: Client) -> &MemoryStore {
        &self.of(client).server(self.node).memory
    }

    fn of(&self, client: Client) -> &Shard {
        &self.shards[index(client, self.shards.len())]
    }

    fn asked(&self, shard: ShardId) -> Result<&MemoryStore, StoreError> {
        let shard = self.shards.get(usize::from(shard.0));
        let shard = shard.filter(|shard| shard.reach() == Reach::Answers);
        let shard = shard.ok_or(StoreError::Unreachable)?;
        Ok(&shard.server(self.node).memory)
    }
}

impl Shard {
    fn new() -> Self {
        Self {
            servers: [Server::new(), Server::new()],
            primary: AtomicUsize::new(0),
            astray: AtomicU64::new(0),
            silent: AtomicBool::new(false),
            dead: AtomicBool::new(false),
        }
    }

    fn reach(&self) -> Reach {
        if self.dead.load(Ordering::Relaxed) {
            Reach::Dead
        } else if self.silent.load(Ordering::Relaxed) {
            Reach::Silent
        } else {
            Reach::Answers
        }
    }

    /// The server that a node takes for the primary.
    fn server(&self, node: usize) -> &Server {
        let astray = self.astray.load(Ordering::Relaxed) >> node & 1;
        let primary = self.primary.load(Ordering::Relaxed);
        &self.servers[primary ^ usize::from(astray == 1)]
    }
}

impl Server {
    fn new() -> Self {
        let reading = Arc::new(AtomicU64::new(0));
        let shown = Arc::clone(&reading);
        let clock = move || Timestamp(shown.load(Ordering::Relaxed));
        Self {
            memory: MemoryStore::new(NEW, KEYS_MAX, clock),
            reading,
        }
    }
}

/// The shard of a client, out of so many.
fn index(client: Client, shards: usize) -> usize {
    let shards = u128::try_from(shards.max(1)).unwrap_or(1);
    usize::try_from(client.0 % shards).unwrap_or(0)
}

impl Store for SimStore {
    fn shard(&self, client: Client) -> ShardId {
        ShardId(u16::try_from(index(client, self.shards.len())).unwrap_or(0))
    }

    async fn take(&self, shard: ShardId, takes: &[Take]) -> Result<Taken, StoreError> {
        self.asked(shard)?.take(ShardId(0), takes).await
    }

    async fn give_back(&self, shard: ShardId, takes: &[Take]) -> Result<Stamp, StoreError> {
        self.asked(shard)?.give_back(ShardId(0), takes).await
    }

    async fn load(&self, key: Key, base: &Base) -> Result<Loaded, StoreError> {
        let shard = self.shard(key.client);
        self.asked(shard)?.load(key, base).await
    }

    async fn swap(&self, swap: &Swap) -> Result<Swapped, StoreError> {
        let shard = self.shard(swap.key.client);
        self.asked(shard)?.swap(swap).await
    }
}
