//! The task that drives a node's machines, over real QUIC: it lends, and a fault in it stays small.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gossip::dues::Dues;
use gossip::service::{Parts, Service, Status};
use gossip::transport::Transport;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use region::bucket::{Base, Memory};
use region::limiter::{Limiter, Pressure, Settings, Subject};
use region::policy::{Attributes, PolicySet};
use region::store::memory::MemoryStore;
use region::store::{Loaded, ShardId, Store, StoreError, Swap, Swapped, Take, Taken};
use region::units::{Client, Generation, Key, RegionId, Stamp, Timestamp, Tokens, micros};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::nodes::{AP, Authority, EU, eventually};

/// A memory store whose first loads panic, and whose replica can be stopped.
struct Panicking {
    store: MemoryStore,
    panics: AtomicU32,
    replicates: AtomicBool,
}

impl Store for Panicking {
    fn shard(&self, client: Client) -> ShardId {
        self.store.shard(client)
    }

    async fn take(&self, shard: ShardId, takes: &[Take]) -> Result<Taken, StoreError> {
        self.store.take(shard, takes).await
    }

    async fn give_back(&self, shard: ShardId, takes: &[Take]) -> Result<Stamp, StoreError> {
        self.store.give_back(shard, takes).await
    }

    async fn load(&self, key: Key, base: &Base) -> Result<Loaded, StoreError> {
        let left = self
            .panics
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            });
        assert!(left.is_err(), "a load that panics, as planned");
        self.store.load(key, base).await
    }

    async fn swap(&self, swap: &Swap) -> Result<Swapped, StoreError> {
        self.store.swap(swap).await
    }

    async fn replicated(&self, _: Client) -> Result<bool, StoreError> {
        Ok(self.replicates.load(Ordering::Relaxed))
    }
}

struct Running {
    limiter: Arc<Limiter<Panicking>>,
    status: Arc<Status>,
    address: SocketAddr,
}

fn start(
    authority: &Authority,
    tasks: &mut JoinSet<()>,
    (region, name, seeds): (RegionId, &str, &[SocketAddr]),
    panics: u32,
) -> Running {
    let text = "[regions]\nap = 20\neu = 80\nus = 0\n[[policy]]\nname = \"p\"\ndomain = \"d\"\n\
                key = [\"customer\"]\nrate = 1000\nper = \"1s\"\n";
    let policies = Arc::new(PolicySet::parse(text, "policies.toml").unwrap());
    let memory = Memory {
        generation: Generation(1),
        began: Timestamp(0),
    };
    let store = MemoryStore::new(memory, 100, || {
        Timestamp(micros(
            SystemTime::now().duration_since(UNIX_EPOCH).unwrap(),
        ))
    });
    let store = Panicking {
        store,
        panics: AtomicU32::new(panics),
        replicates: AtomicBool::new(true),
    };
    let (dues, receiver) = Dues::channel();
    let limiter = Limiter::new(policies, region, store, Settings::default());
    let limiter = Arc::new(limiter.with_pressure(dues as Arc<dyn Pressure>));
    let (transport, inbound) = Transport::bind(authority.settings(region, name, seeds)).unwrap();
    let address = transport.own().address();
    let status = Arc::<Status>::default();
    let parts = Parts {
        limiter: Arc::clone(&limiter),
        transport,
        inbound,
        dues: Arc::new(Mutex::new(receiver)),
        rng: StdRng::seed_from_u64(1),
        status: Arc::clone(&status),
    };
    tasks.spawn(Service::run(parts, CancellationToken::new()));
    Running {
        limiter,
        status,
        address,
    }
}

async fn admitted_of(node: &Running, requests: u32) -> u32 {
    let attributes = [("customer", "c")];
    let subject = Subject {
        attributes: &attributes,
        cost: Tokens(1),
    };
    let mut admitted = 0;
    for _ in 0..requests {
        admitted += u32::from(node.limiter.check("d", &[subject]).await.allowed);
    }
    admitted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_lends_over_quic_and_outlives_store_calls_that_panic() {
    let (authority, mut tasks) = (Authority::new(), JoinSet::new());
    let eu = start(&authority, &mut tasks, (EU, "eu-1", &[]), 0);
    let ap = start(&authority, &mut tasks, (AP, "ap-1", &[eu.address]), 3);
    eventually("the regions to hear each other", || {
        ap.status.regions_heard() == 1 && eu.status.regions_heard() == 1
    })
    .await;
    // More than the burst and the base share of `ap` together can ever admit in this time.
    let (mut admitted, begun) = (0, Instant::now());
    while admitted < 1_500 {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "only {admitted} were admitted"
        );
        admitted += admitted_of(&ap, 20).await;
        sleep(Duration::from_millis(10)).await;
    }
    let alone = 250.0 + 200.0 * begun.elapsed().as_secs_f64();
    assert!(
        f64::from(admitted) > alone,
        "{admitted} could have been admitted without a loan"
    );
    assert_eq!(ap.status.counters.store_failures.value(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_sends_no_grant_that_no_replica_has() {
    let (authority, mut tasks) = (Authority::new(), JoinSet::new());
    let eu = start(&authority, &mut tasks, (EU, "eu-1", &[]), 0);
    let ap = start(&authority, &mut tasks, (AP, "ap-1", &[eu.address]), 0);
    let replicates = |yes| eu.limiter.store().replicates.store(yes, Ordering::Relaxed);
    replicates(false);
    eventually("the regions to hear each other", || {
        ap.status.regions_heard() == 1 && eu.status.regions_heard() == 1
    })
    .await;
    let begun = Instant::now();
    while eu.status.counters.held_back.value() < 3 {
        assert!(begun.elapsed() < Duration::from_secs(30), "nothing is lent");
        admitted_of(&ap, 20).await;
        assert!(!borrows(&ap).await);
        sleep(Duration::from_millis(10)).await;
    }
    replicates(true);
    while !borrows(&ap).await {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing is said");
        admitted_of(&ap, 20).await;
        sleep(Duration::from_millis(10)).await;
    }
}

/// Whether the region has more than its base share.
async fn borrows(node: &Running) -> bool {
    let policy = &node.limiter.policies().policies()[0];
    let pairs = [("customer", "c")];
    let key = node.limiter.key(policy, Attributes::new(&pairs)).unwrap();
    let base = policy.base(node.limiter.region(), key.client).unwrap();
    let loaded = node.limiter.store().load(key, &base).await.unwrap();
    loaded.bucket.share(&base.pieces(loaded.memory)) > base.share
}
