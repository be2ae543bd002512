//! The store that an operator has chosen.

use super::memory::MemoryStore;
#[cfg(feature = "redis")]
use super::redis::RedisStore;
use super::{Loaded, ShardId, Store, StoreError, Swap, Swapped, Take, Taken};
use crate::bucket::Base;
use crate::units::{Client, Key, Stamp};

/// One of the stores.
#[derive(Debug)]
pub enum AnyStore {
    /// In the memory of this node.
    Memory(MemoryStore),
    /// On Redis shards, shared by the nodes of a region.
    #[cfg(feature = "redis")]
    Redis(RedisStore),
}

/// Asks the chosen store.
macro_rules! ask {
    ($any:expr, $store:ident => $answer:expr) => {
        match $any {
            AnyStore::Memory($store) => $answer,
            #[cfg(feature = "redis")]
            AnyStore::Redis($store) => $answer,
        }
    };
}

impl Store for AnyStore {
    fn shard(&self, client: Client) -> ShardId {
        ask!(self, store => store.shard(client))
    }

    async fn take(&self, shard: ShardId, takes: &[Take]) -> Result<Taken, StoreError> {
        ask!(self, store => store.take(shard, takes).await)
    }

    async fn give_back(&self, shard: ShardId, takes: &[Take]) -> Result<Stamp, StoreError> {
        ask!(self, store => store.give_back(shard, takes).await)
    }

    async fn load(&self, key: Key, base: &Base) -> Result<Loaded, StoreError> {
        ask!(self, store => store.load(key, base).await)
    }

    async fn swap(&self, swap: &Swap) -> Result<Swapped, StoreError> {
        ask!(self, store => store.swap(swap).await)
    }

    async fn replicated(&self, client: Client) -> Result<bool, StoreError> {
        ask!(self, store => store.replicated(client).await)
    }
}
