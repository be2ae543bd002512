//! Denials that wait for what other regions lend (`borrow_wait`), in virtual time.

use region::limiter::{Pause, Timer, WAITING_MAX, WaitEnd};
use region::store::Change;
use region::units::{Sequence, Share, Ticks};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::*;

/// The runtime's paused clock.
struct Virtual;

impl Timer for Virtual {
    fn after(&self, span: Duration) -> Pause {
        Box::pin(sleep(span))
    }
}

/// A node of `eu`, which has three tenths of each limit, on the runtime's clock.
struct Node {
    limiter: Arc<Limiter<Shards>>,
    heard: Arc<Heard>,
    start: Instant,
}

const WAITS: &str = "rate = 10\nper = \"60s\"\nburst = 1000\nborrow_wait = \"300ms\"";

impl Node {
    fn new(policies: &str) -> Self {
        let set = PolicySet::parse(&(THREE.to_owned() + policies), "policies.toml");
        let set = set.unwrap_or_else(|problems| panic!("{problems}"));
        let region = set.region("eu").expect("it is there");
        let start = Instant::now();
        let clock = move || Timestamp(T0 + micros(start.elapsed()));
        let heard = Arc::new(Heard::default());
        let shards = Shards::on(&clock, Memory::default());
        let limiter = Limiter::new(Arc::new(set), region, shards, Settings::default())
            .with_pressure(Arc::clone(&heard) as Arc<dyn Pressure>)
            .with_timer(Arc::new(Virtual));
        Self {
            limiter: Arc::new(limiter),
            heard,
            start,
        }
    }

    /// Begins a request and returns what it will come to.
    fn ask(&self, customers: &[&str], cost: u64, most: Duration) -> Asked {
        let limiter = Arc::clone(&self.limiter);
        let customers: Vec<String> = customers.iter().map(ToString::to_string).collect();
        let mut asked = JoinSet::new();
        asked.spawn(async move {
            let pairs: Vec<_> = customers
                .iter()
                .map(|c| [("customer", c.as_str())])
                .collect();
            let subjects = pairs.iter().map(|attributes| Subject {
                attributes,
                cost: Tokens(cost),
            });
            let subjects: Vec<_> = subjects.collect();
            limiter.check_within("api", &subjects, most).await
        });
        Asked(asked)
    }

    /// Has the whole base used up.
    async fn exhaust(&self, customer: &str) {
        let answer = self.ask(&[customer], 305, Duration::ZERO).answer().await;
        assert!(answer.allowed);
    }

    fn key(&self, policy: usize, customer: &str) -> Key {
        let policy = &self.limiter.policies().policies()[policy];
        let pairs = [("customer", customer)];
        let key = self
            .limiter
            .key(policy, region::policy::Attributes::new(&pairs));
        key.expect("keyed by customer")
    }

    async fn load(&self, key: Key) -> (Loaded, Base) {
        let policy = self.limiter.policies().by_id(key.policy).expect("known");
        let base = policy
            .base(self.limiter.region(), key.client)
            .expect("a bucket");
        let loaded = self.limiter.store().load(key, &base).await;
        (loaded.expect("the shard answers"), base)
    }

    /// A grant of so many tokens arrives: some node of the region swaps it in. Without tokens all
    /// that is there from then on is a ledger, in which demand is counted.
    async fn granted(&self, key: Key, tokens: u64) {
        let (loaded, base) = self.load(key).await;
        let policy = self.limiter.policies().by_id(key.policy).expect("known");
        let split = policy.split().expect("a bucket");
        let mut ledger = loaded.ledger.clone().unwrap_or_default();
        ledger.version = Sequence {
            generation: loaded.stamp.generation,
            n: ledger.version.n + 1,
        };
        let share = Share(base.share.0 + u64::from(tokens > 0));
        let swap = Swap {
            key,
            base,
            expected: loaded.version,
            ledger,
            change: Change {
                credit: split.limit().level(Tokens(tokens)),
                ..Change::default()
            },
            pieces: vec![region::bucket::Piece {
                until: Ticks::NEVER,
                share,
                capacity: split.limit().level(Tokens(1_000)),
            }],
            keep: Duration::from_secs(60),
        };
        let swapped = self.limiter.store().swap(&swap).await.expect("it answers");
        assert!(matches!(swapped, Swapped::Done { .. }));
    }

    fn ended(&self) -> [u64; 4] {
        WaitEnd::ALL.map(|end| self.limiter.waits().ended(end))
    }

    fn elapsed_ms(&self) -> u128 {
        self.start.elapsed().as_millis()
    }
}

/// A request on its way; dropped, its caller has gone.
struct Asked(JoinSet<Answer>);

impl Asked {
    async fn answer(mut self) -> Answer {
        let answer = self.0.join_next().await.expect("it was begun");
        answer.expect("no panic")
    }
}

#[tokio::test(start_paused = true)]
async fn denial_waits_until_a_grant_arrives_and_is_offered_once() {
    let node = Node::new(&policy("p", WAITS));
    let key = node.key(0, "c");
    node.granted(key, 0).await;
    node.exhaust("c").await;
    let asked = node.ask(&["c"], 100, Duration::MAX);
    sleep(Duration::from_millis(100)).await;
    assert_eq!(node.limiter.waits().waiting(), 1);
    let dues = node.heard.0.lock().expect("not poisoned").len();
    assert!(dues > 4, "it is due as long as it waits, {dues}");
    node.granted(key, 150).await;
    let answer = asked.answer().await;
    assert!(answer.allowed);
    assert_eq!(first(&answer).remaining, Tokens(50));
    assert!(node.elapsed_ms() <= 121, "{}", node.elapsed_ms());
    let count = node
        .load(key)
        .await
        .0
        .bucket
        .count
        .expect("it has a ledger");
    assert_eq!((count.offered, count.admitted), (405, 405));
    assert_eq!(
        (node.ended(), node.limiter.waits().waiting()),
        ([1, 0, 0, 0], 0)
    );
}

#[tokio::test(start_paused = true)]
async fn wait_ends_at_the_policys_time_with_the_retry_time_of_then() {
    let node = Node::new(&policy("p", WAITS));
    node.exhaust("c").await;
    // One token in 20 s at three tenths of ten a minute.
    let answer = node.ask(&["c"], 1, Duration::MAX).answer().await;
    assert_eq!(node.elapsed_ms(), 300);
    let retry = Duration::from_millis(20_000 - 300);
    assert_eq!(
        (answer.allowed, first(&answer).retry_after),
        (false, Some(retry))
    );
    assert_eq!(node.ended(), [0, 1, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn wait_ends_when_its_caller_or_the_node_has_no_more_time() {
    let node = Node::new(&policy("p", WAITS));
    node.exhaust("c").await;
    let most = Duration::from_millis(70);
    assert!(!node.ask(&["c"], 1, most).answer().await.allowed);
    assert_eq!(node.elapsed_ms(), 70);
    let gone = node.ask(&["c"], 1, Duration::MAX);
    let drained = node.ask(&["c"], 1, Duration::MAX);
    sleep(Duration::from_millis(30)).await;
    drop(gone);
    node.limiter.waits().end_all();
    assert!(!drained.answer().await.allowed);
    assert!(node.elapsed_ms() <= 120, "{}", node.elapsed_ms());
    let late = node.ask(&["c"], 1, Duration::MAX).answer().await;
    assert!(!late.allowed && node.elapsed_ms() <= 120);
    assert_eq!(node.ended(), [0, 2, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn waits_are_bounded_and_hold_nobody_up() {
    let node = Node::new(&policy("p", WAITS));
    node.exhaust("c").await;
    let waiting: Vec<Asked> = (0..WAITING_MAX + 50)
        .map(|_| node.ask(&["c"], 1, Duration::MAX))
        .collect();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(node.limiter.waits().waiting(), WAITING_MAX);
    assert_eq!(node.ended(), [0, 0, 0, 50]);
    assert!(
        node.ask(&["other"], 1, Duration::MAX)
            .answer()
            .await
            .allowed
    );
    assert_eq!(node.elapsed_ms(), 1);
    for asked in waiting {
        assert!(!asked.answer().await.allowed);
    }
    assert_eq!(node.ended(), [0, 256, 0, 50]);
}

#[tokio::test(start_paused = true)]
async fn wait_over_several_shards_takes_nothing_before_it_passes() {
    let node = Node::new(&policy("p", WAITS));
    let shard = |c: &str| node.limiter.store().shard(node.key(0, c).client);
    let other = (0..)
        .map(|n| format!("c{n}"))
        .find(|other| shard(other) != shard("c"));
    let other = other.expect("there are enough names");
    node.exhaust("c").await;
    let asked = node.ask(&["c", &other], 100, Duration::MAX);
    sleep(Duration::from_millis(200)).await;
    node.granted(node.key(0, "c"), 100).await;
    let answer = asked.answer().await;
    let remaining: Vec<u64> = answer
        .subjects
        .iter()
        .map(|s| s[0].decision.remaining.0)
        .collect();
    assert_eq!((answer.allowed, remaining), (true, vec![0, 205]));
    let asked = &node.limiter.store().asked[usize::from(shard(&other).0)];
    assert_eq!(
        asked.load(Ordering::SeqCst),
        2,
        "the first and the last try"
    );
}

#[tokio::test(start_paused = true)]
async fn denial_does_not_wait_where_nothing_can_come_of_it() {
    let never = "rate = 10\nper = \"60s\"\nburst = 1000";
    let patient_and_not = policy("p", WAITS) + &policy("q", never);
    for (policies, cost, why) in [
        (policy("p", never), 1, "the policy does not ask for it"),
        (patient_and_not, 1, "another policy denies, too"),
        (
            policy("p", WAITS),
            1_001,
            "it is more than all regions have",
        ),
    ] {
        let node = Node::new(&policies);
        node.exhaust("c").await;
        assert!(!node.ask(&["c"], cost, Duration::MAX).answer().await.allowed);
        assert_eq!((node.elapsed_ms(), node.ended()), (0, [0; 4]), "{why}");
    }
    let node = Node::new(&policy(
        "p",
        &format!("{WAITS}\non_store_failure = \"closed\""),
    ));
    for broken in &node.limiter.store().broken {
        broken.store(true, Ordering::SeqCst);
    }
    assert!(!node.ask(&["c"], 1, Duration::MAX).answer().await.allowed);
    assert_eq!(
        (node.elapsed_ms(), node.ended()),
        (0, [0; 4]),
        "the store fails"
    );
}

#[tokio::test(start_paused = true)]
async fn denial_does_not_wait_once_the_region_has_the_whole_limit() {
    let text = policy("p", &WAITS.replace("burst = 1000", "burst = 10"));
    let node = Node::new(&text);
    let key = node.key(0, "c");
    let (loaded, base) = node.load(key).await;
    let limit = *node.limiter.policies().policies()[0]
        .split()
        .expect("a bucket")
        .limit();
    let swap = Swap {
        key,
        base,
        expected: None,
        ledger: region::ledger::Ledger {
            version: Sequence {
                generation: loaded.stamp.generation,
                n: 1,
            },
            ..region::ledger::Ledger::default()
        },
        change: Change::default(),
        pieces: vec![region::bucket::Piece {
            until: Ticks::NEVER,
            share: limit.total(),
            capacity: limit.level(limit.burst()),
        }],
        keep: Duration::from_secs(60),
    };
    let swapped = node.limiter.store().swap(&swap).await.expect("it answers");
    assert!(matches!(swapped, Swapped::Done { .. }));
    assert!(!node.ask(&["c"], 9, Duration::MAX).answer().await.allowed);
    assert_eq!((node.elapsed_ms(), node.ended()), (0, [0; 4]));
}
