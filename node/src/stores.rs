//! Opens the store that the configuration names.

use std::time::{Duration, Instant, SystemTime};

use region::bucket::Memory;
use region::store::any::AnyStore;
use region::store::memory::MemoryStore;
use region::store::redis::{ConnectError, RedisStore, Settings, ShardSettings};
use region::units::{Generation, Timestamp, micros};

use crate::config::StoreConfig;

/// Opens a store.
///
/// With `first_start` the store is declared to be new, and its keys start full; otherwise a store
/// without its marker counts as having lost its memory (PROTOCOL 3 rule 7). A memory store always
/// begins without one.
///
/// # Errors
/// If the store cannot be used as it is configured. A shard that is merely away is no error: the
/// policies say what happens until it comes.
pub async fn open(config: &StoreConfig, first_start: bool) -> Result<AnyStore, ConnectError> {
    match config {
        StoreConfig::Memory { keys_max } => Ok(AnyStore::Memory(memory(*keys_max, first_start))),
        StoreConfig::Redis {
            shards,
            deadline,
            accept_eviction,
        } => {
            let shards = shards.iter().map(|shard| ShardSettings {
                name: shard.name.clone(),
                url: shard.url.reveal().clone(),
            });
            let settings = Settings {
                shards: shards.collect(),
                deadline: *deadline,
                first_start,
                accept_eviction: *accept_eviction,
            };
            RedisStore::connect(settings).await.map(AnyStore::Redis)
        }
    }
}

/// A memory store on a clock that a step of the system's clock does not move.
fn memory(keys_max: usize, first_start: bool) -> MemoryStore {
    let started = Instant::now();
    let epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let epoch = epoch.unwrap_or(Duration::ZERO);
    let clock = move || Timestamp(micros(epoch.saturating_add(started.elapsed())));
    let now = clock();
    let memory = Memory {
        generation: Generation(now.0),
        began: if first_start { Timestamp(0) } else { now },
    };
    MemoryStore::new(memory, keys_max, clock)
}
