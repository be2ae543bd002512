//! The decision path over stores in memory, on a clock that the test moves.

mod cases;
mod failure;
mod properties;
mod several;
mod waiting;

use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use region::bucket::{Base, Memory};
use region::limiter::{Answer, Limiter, Pressure, Settings, Subject};
use region::policy::PolicySet;
use region::store::memory::MemoryStore;
use region::store::{Loaded, ShardId, Store, StoreError, Swap, Swapped, Take, Taken};
use region::units::{Client, Key, RegionId, Stamp, Timestamp, Tokens, micros};

/// T0 of the cases, in microseconds.
const T0: u64 = 1_700_006_400_000_000;

/// Three shards in memory that can be broken one by one.
struct Shards {
    stores: [MemoryStore; 3],
    broken: [AtomicBool; 3],
    /// How often each has been asked for tokens.
    asked: [AtomicU64; 3],
}

impl Shards {
    fn new(clock: &Arc<AtomicU64>, memory: Memory) -> Self {
        let clock = Arc::clone(clock);
        Self::on(&move || Timestamp(clock.load(Ordering::SeqCst)), memory)
    }

    fn on<C>(clock: &C, memory: Memory) -> Self
    where
        C: Fn() -> Timestamp + Clone + Send + Sync + 'static,
    {
        let store = || MemoryStore::new(memory, 10_000, clock.clone());
        Self {
            stores: [store(), store(), store()],
            broken: [const { AtomicBool::new(false) }; 3],
            asked: [const { AtomicU64::new(0) }; 3],
        }
    }

    fn store(&self, shard: ShardId) -> Result<&MemoryStore, StoreError> {
        let index = usize::from(shard.0);
        if self.broken[index].load(Ordering::SeqCst) {
            return Err(StoreError::Unreachable);
        }
        Ok(&self.stores[index])
    }
}

impl Store for Shards {
    fn shard(&self, client: Client) -> ShardId {
        ShardId(u16::try_from(client.0 % 3).expect("below three"))
    }

    async fn take(&self, shard: ShardId, takes: &[Take]) -> Result<Taken, StoreError> {
        if takes.iter().any(|take| take.cost > Tokens(0)) {
            self.asked[usize::from(shard.0)].fetch_add(1, Ordering::SeqCst);
        }
        self.store(shard)?.take(shard, takes).await
    }

    async fn give_back(&self, shard: ShardId, takes: &[Take]) -> Result<Stamp, StoreError> {
        self.store(shard)?.give_back(shard, takes).await
    }

    async fn load(&self, key: Key, base: &Base) -> Result<Loaded, StoreError> {
        self.store(self.shard(key.client))?.load(key, base).await
    }

    async fn swap(&self, swap: &Swap) -> Result<Swapped, StoreError> {
        self.store(self.shard(swap.key.client))?.swap(swap).await
    }
}

/// What the control plane is told.
#[derive(Default)]
struct Heard(Mutex<Vec<(Key, Tokens)>>);

impl Pressure for Heard {
    fn offer(&self, key: Key, wanted: Tokens) {
        self.0.lock().expect("not poisoned").push((key, wanted));
    }
}

/// One region's limiter and the clock of its store.
struct World {
    clock: Arc<AtomicU64>,
    limiter: Limiter<Shards>,
    heard: Arc<Heard>,
}

/// One region without others: what it has is the whole limit.
const ALONE: &str = "[regions]\nus = 1\n";
/// Three regions; the tests stand in `eu`, which has three tenths.
const THREE: &str = "[regions]\nus = 50\neu = 30\nap = 20\n";

impl World {
    fn new(policies: &str) -> Self {
        Self::with(policies, Memory::default(), 1)
    }

    fn with(policies: &str, memory: Memory, nodes_max: u32) -> Self {
        let set = PolicySet::parse(policies, "policies.toml");
        let set = set.unwrap_or_else(|problems| panic!("{problems}"));
        let region = set.region("eu").unwrap_or(RegionId(0));
        let clock = Arc::new(AtomicU64::new(T0));
        let settings = Settings {
            key_secret: [7; 16],
            nodes_max: NonZeroU32::new(nodes_max).expect("not zero"),
            emergency_keys_max: 1_000,
        };
        let heard = Arc::new(Heard::default());
        let shards = Shards::new(&clock, memory);
        let limiter = Limiter::new(Arc::new(set), region, shards, settings);
        Self {
            clock,
            limiter: limiter.with_pressure(Arc::clone(&heard) as Arc<dyn Pressure>),
            heard,
        }
    }

    /// Sets the clock to microseconds after T0.
    fn at(&self, micros: u64) -> &Self {
        self.clock.store(T0 + micros, Ordering::SeqCst);
        self
    }

    fn later(&self, by: Duration) -> &Self {
        let micros = u64::try_from(by.as_micros()).expect("short");
        self.clock.fetch_add(micros, Ordering::SeqCst);
        self
    }

    fn break_shard(&self, client: &str, broken: bool) {
        let shard = usize::from(self.shard_of(client).0);
        self.limiter.store().broken[shard].store(broken, Ordering::SeqCst);
    }

    /// The shard of a client under the first policy.
    fn shard_of(&self, client: &str) -> ShardId {
        let policy = &self.limiter.policies().policies()[0];
        let pairs = [("customer", client)];
        let key = self
            .limiter
            .key(policy, region::policy::Attributes::new(&pairs));
        self.limiter
            .store()
            .shard(key.expect("keyed by customer").client)
    }

    /// Clients on three different shards.
    fn clients(&self) -> [String; 3] {
        let on = |shard: u16| {
            let mut names = (0..).map(|n| format!("c{n}"));
            names.find(|name| self.shard_of(name) == ShardId(shard))
        };
        [0, 1, 2].map(|shard| on(shard).expect("there are enough names"))
    }

    /// A request of one subject that is a customer.
    fn check(&self, customer: &str, cost: u64) -> Answer {
        self.check_all(&[(&[("customer", customer)], cost)])
    }

    fn check_all(&self, subjects: &[(&[(&str, &str)], u64)]) -> Answer {
        let subjects: Vec<Subject<'_>> = subjects
            .iter()
            .map(|(attributes, cost)| Subject {
                attributes,
                cost: Tokens(*cost),
            })
            .collect();
        done(self.limiter.check("api", &subjects))
    }

    fn refund(&self, customer: &str, cost: u64) -> Answer {
        let subject = Subject {
            attributes: &[("customer", customer)],
            cost: Tokens(cost),
        };
        done(self.limiter.refund("api", &[subject]))
    }

    /// A letter for each of `count` requests of customer `c`: A for admitted, d for denied.
    fn letters(&self, count: usize) -> String {
        let letter = |_| if self.check("c", 1).allowed { 'A' } else { 'd' };
        (0..count).map(letter).collect()
    }
}

/// The result of a future over stores that answer at once.
fn done<T>(future: impl Future<Output = T>) -> T {
    let Poll::Ready(result) = pin!(future).poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("a store in memory answers at once")
    };
    result
}

/// A policy of domain `api` keyed by customer.
fn policy(name: &str, fields: &str) -> String {
    format!("[[policy]]\nname = \"{name}\"\ndomain = \"api\"\nkey = [\"customer\"]\n{fields}\n")
}

/// The first verdict's decision.
fn first(answer: &Answer) -> region::decision::Decision {
    answer.subjects[0][0].decision
}
