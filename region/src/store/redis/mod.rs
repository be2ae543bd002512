//! The Redis store: one or more independent shards, whose scripts give the answers of the memory
//! store.

mod barrier;
mod keeper;
mod script;
mod shard;
mod wire;

use std::collections::BTreeSet;
use std::fmt;
use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{Client as Address, IntoConnectionInfo, RedisError};
use siphasher::sip::SipHasher13;
use tokio::task::JoinSet;

pub use self::shard::ShardStats;

use self::keeper::{Opened, Terms, keep, open};
use self::script::Script;
use self::shard::{Link, Shard};
use super::{Loaded, ShardId, Store, StoreError, Swap, Swapped, Take, Taken};
use crate::bucket::Base;
use crate::units::{Client, Generation, Key, Stamp};

/// The deadline of a call unless another is set.
pub const DEADLINE: Duration = Duration::from_millis(10);

/// Which shards a region has, and how they are used.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The shards. A name decides which keys a shard keeps; its address may change.
    pub shards: Vec<ShardSettings>,
    /// How long a call may take.
    pub deadline: Duration,
    /// A shard that has never been used is new: its keys start full. Holds for the first connection
    /// of this process to each shard; later a shard without a marker has lost its memory.
    pub first_start: bool,
    /// Shards that may evict keys are used all the same.
    pub accept_eviction: bool,
}

/// One shard.
#[derive(Clone)]
pub struct ShardSettings {
    /// Its name, unique in the region and never used for another shard again.
    pub name: String,
    /// Its address, as `redis://user:password@host:port/`.
    pub url: String,
}

/// Why a store cannot be used. Nothing has been written.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is no shard.
    #[error("a region needs a shard")]
    NoShard,
    /// Two shards have one name.
    #[error("two shards are named `{name}`")]
    SameName {
        /// The name.
        name: String,
    },
    /// An address cannot be read.
    #[error("the address of shard `{name}` cannot be read")]
    Address {
        /// The shard.
        name: String,
        /// What is wrong with it.
        #[source]
        source: RedisError,
    },
    /// A shard may evict keys, and with them limits that are in force, unseen.
    #[error(
        "shard `{name}` may evict keys (maxmemory-policy {policy}): set noeviction, or accept the \
         loss"
    )]
    Evicts {
        /// The shard.
        name: String,
        /// Its policy.
        policy: String,
    },
}

/// A region's store on Redis.
///
/// A shard that cannot be reached answers [`StoreError::Unreachable`] at once until it comes back.
#[derive(Debug)]
pub struct RedisStore {
    shards: Vec<Arc<Shard>>,
    /// The hash of each shard's name.
    seeds: Vec<u64>,
    /// The tasks that keep the links; they end with the store.
    _keepers: JoinSet<()>,
}

impl RedisStore {
    /// Connects to the shards. Those that cannot be reached now are connected when they come.
    ///
    /// # Errors
    /// If the settings make no sense, or a shard may evict keys and that is not accepted.
    pub async fn connect(settings: Settings) -> Result<Self, ConnectError> {
        let shards = shards(&settings)?;
        let seeds: Vec<u64> = shards
            .iter()
            .map(|shard| hash(shard.name.as_bytes()))
            .collect();
        let terms = Terms {
            map: map_of(&seeds),
            first_start: settings.first_start,
            accept_eviction: settings.accept_eviction,
        };
        let mut opening = JoinSet::new();
        for (index, shard) in shards.iter().cloned().enumerate() {
            opening.spawn(async move { (index, open(&shard, terms, Generation(0)).await) });
        }
        let mut opened: Vec<Option<Opened>> = shards.iter().map(|_| None).collect();
        for (index, open) in opening.join_all().await {
            let shard = &shards[index];
            match open {
                Ok(open) => {
                    let policy = open.declared.evicts.clone();
                    if let Some(policy) = policy.filter(|_| !settings.accept_eviction) {
                        let name = shard.name.clone();
                        return Err(ConnectError::Evicts { name, policy });
                    }
                    shard.set(open.link());
                    opened[index] = Some(open);
                }
                Err(error) => shard.set(Link::Down(error)),
            }
        }
        let mut keepers = JoinSet::new();
        for (shard, open) in shards.iter().zip(opened) {
            keepers.spawn(keep(Arc::clone(shard), terms, open));
        }
        Ok(Self {
            shards,
            seeds,
            _keepers: keepers,
        })
    }

    /// What has happened on each shard since the store was opened.
    #[must_use]
    pub fn stats(&self) -> Vec<ShardStats> {
        self.shards.iter().map(|shard| shard.stats()).collect()
    }

    /// The addressed shard; unreachable where there is none.
    fn at(&self, shard: ShardId) -> Result<&Shard, StoreError> {
        let shard = self.shards.get(usize::from(shard.0));
        shard.map(|shard| &**shard).ok_or(StoreError::Unreachable)
    }
}

impl Store for RedisStore {
    /// Rendezvous hashing: another shard takes over only its own part of the clients.
    fn shard(&self, client: Client) -> ShardId {
        let best = self.seeds.iter().zip(0_u16..).max_by_key(|(seed, _)| {
            let mut hasher = SipHasher13::new_with_keys(**seed, 0);
            hasher.write_u128(client.0);
            (hasher.finish(), **seed)
        });
        ShardId(best.map_or(0, |(_, index)| index))
    }

    async fn take(&self, shard: ShardId, takes: &[Take]) -> Result<Taken, StoreError> {
        let keys: Vec<_> = takes
            .iter()
            .map(|take| wire::bucket_key(take.key))
            .collect();
        let args = |memory| takes.iter().map(|take| wire::take(take, memory)).collect();
        let shard = self.at(shard)?;
        let read = |value, memory| wire::taken(value, memory, takes);
        shard.call(Script::Take, &keys, args, read).await
    }

    async fn give_back(&self, shard: ShardId, takes: &[Take]) -> Result<Stamp, StoreError> {
        let keys: Vec<_> = takes
            .iter()
            .map(|take| wire::bucket_key(take.key))
            .collect();
        let args = |memory| takes.iter().map(|take| wire::take(take, memory)).collect();
        let shard = self.at(shard)?;
        shard
            .call(Script::GiveBack, &keys, args, wire::given_back)
            .await
    }

    async fn load(&self, key: Key, base: &Base) -> Result<Loaded, StoreError> {
        let keys = [wire::bucket_key(key), wire::ledger_key(key)];
        let shard = self.at(self.shard(key.client))?;
        let args = |memory| vec![wire::base(base, memory)];
        let read = |value, memory| wire::loaded(value, memory, base);
        shard.call(Script::Load, &keys, args, read).await
    }

    async fn swap(&self, swap: &Swap) -> Result<Swapped, StoreError> {
        let keys = [wire::bucket_key(swap.key), wire::ledger_key(swap.key)];
        let shard = self.at(self.shard(swap.key.client))?;
        let args = |memory| wire::swap(swap, memory).to_vec();
        let read = |value, memory| wire::swapped(value, memory, &swap.base);
        shard.call(Script::Swap, &keys, args, read).await
    }

    async fn replicated(&self, client: Client) -> Result<bool, StoreError> {
        self.at(self.shard(client))?.replicated().await
    }
}

impl fmt::Debug for ShardSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardSettings")
            .field("name", &self.name)
            .field("url", &"***")
            .finish()
    }
}

/// Reads a shard's address as [`RedisStore::connect`] would.
///
/// # Errors
/// What is wrong with it.
pub fn check_address(url: &str) -> Result<(), RedisError> {
    address(url).map(drop)
}

fn address(url: &str) -> Result<Address, RedisError> {
    let tcp = TcpSettings::default().set_nodelay(true);
    Address::open(url.into_connection_info()?.set_tcp_settings(tcp))
}

fn shards(settings: &Settings) -> Result<Vec<Arc<Shard>>, ConnectError> {
    if settings.shards.is_empty() {
        return Err(ConnectError::NoShard);
    }
    let mut names = BTreeSet::new();
    let shard = |ShardSettings { name, url }: &ShardSettings| {
        if !names.insert(name.clone()) {
            return Err(ConnectError::SameName { name: name.clone() });
        }
        let address = address(url).map_err(|source| ConnectError::Address {
            name: name.clone(),
            source,
        })?;
        Ok(Arc::new(Shard::new(
            name.clone(),
            address,
            settings.deadline,
        )))
    };
    settings.shards.iter().map(shard).collect()
}

/// The same for the same set of shards, in whatever order they are listed.
fn map_of(seeds: &[u64]) -> u64 {
    let sorted: BTreeSet<_> = seeds.iter().collect();
    let bytes: Vec<u8> = sorted.iter().flat_map(|seed| seed.to_be_bytes()).collect();
    hash(&bytes)
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(bytes);
    hasher.finish()
}
