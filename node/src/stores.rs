//! Opens the store that the configuration names, and counts what happens in it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use region::bucket::Memory;
use region::limiter::Limiter;
use region::store::any::AnyStore;
use region::store::memory::MemoryStore;
use region::store::redis::{ConnectError, RedisStore, Settings, ShardSettings, ShardStats};
use region::units::{Generation, Timestamp, micros};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::config::StoreConfig;

/// How often it is looked whether a shard has gone or come back.
const WATCH_EVERY: Duration = Duration::from_millis(500);

/// Logs when a shard cannot be used any more, and when it can again; from the start, as if all
/// had been well before.
pub async fn watch(limiter: &Limiter<AnyStore>, stop: CancellationToken) {
    let AnyStore::Redis(store) = limiter.store() else {
        return stop.cancelled().await;
    };
    let mut up: Vec<bool> = store.stats().iter().map(|_| true).collect();
    while !stop.is_cancelled() {
        for (shard, was_up) in store.stats().iter().zip(&mut up) {
            let is_up = shard.memory.is_some();
            if std::mem::replace(was_up, is_up) == is_up {
                continue;
            }
            let name = shard.name.as_str();
            if is_up {
                tracing::info!(shard = name, "shard can be used again");
            } else {
                tracing::warn!(
                    shard = name,
                    "shard cannot be used: its policies' on_store_failure decides"
                );
            }
        }
        sleep(WATCH_EVERY).await;
    }
}

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
            let store = RedisStore::connect(settings).await?;
            for shard in store.stats().iter().filter(|shard| shard.evicts) {
                tracing::warn!(
                    shard = shard.name,
                    "the shard may evict keys: their limits are lost"
                );
            }
            Ok(AnyStore::Redis(store))
        }
    }
}

/// What happens in the store of a decision path; read at a scrape only.
#[derive(Debug)]
pub struct StoreMetrics(pub Arc<Limiter<AnyStore>>);

/// A metric of a shard: its name, what it tells, its type and its value.
type ShardMetric = (
    &'static str,
    &'static str,
    MetricType,
    fn(&ShardStats) -> u64,
);

const SHARD_METRICS: [ShardMetric; 6] = [
    (
        "store_up",
        "Whether the shard can be used",
        MetricType::Gauge,
        |shard| u64::from(shard.memory.is_some()),
    ),
    (
        "store_evicts",
        "Whether the shard may evict keys",
        MetricType::Gauge,
        |shard| u64::from(shard.evicts),
    ),
    (
        "store_replicas",
        "Replicas that follow the shard",
        MetricType::Gauge,
        |shard| shard.replicas,
    ),
    (
        "store_connections",
        "Connections to the shard that were opened",
        MetricType::Counter,
        |shard| shard.connections,
    ),
    (
        "store_timeouts",
        "Calls without an answer in time",
        MetricType::Counter,
        |shard| shard.timeouts,
    ),
    (
        "store_script_reloads",
        "How often the shard's scripts had to be loaded again",
        MetricType::Counter,
        |shard| shard.script_reloads,
    ),
];

impl Collector for StoreMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let shards = match self.0.store() {
            AnyStore::Memory(store) => {
                let keys = i64::try_from(store.len()).unwrap_or(i64::MAX);
                let (name, help) = ("store_keys", "Keys in memory");
                let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                return ConstGauge::new(keys).encode(metric);
            }
            AnyStore::Redis(store) => store.stats(),
        };
        for (name, help, kind, value) in SHARD_METRICS {
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            for shard in &shards {
                let labels = [("shard", shard.name.as_str())];
                let one = metric.encode_family(&labels)?;
                match kind {
                    MetricType::Counter => ConstCounter::new(value(shard)).encode(one)?,
                    _ => {
                        let value = i64::try_from(value(shard)).unwrap_or(i64::MAX);
                        ConstGauge::new(value).encode(one)?;
                    }
                }
            }
        }
        Ok(())
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
