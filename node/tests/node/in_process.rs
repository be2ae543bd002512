//! A node in this process, over a memory store on a clock that the test moves.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use node::admin::Alone;
use node::config::load;
use node::serve::{Addresses, Node, Parts, Sockets};
use node::tasks::Tasks;
use node::telemetry::health::Health;
use node::telemetry::metrics::Metrics;
use node::waits::RuntimeTimer;
use region::bucket::Memory;
use region::limiter::{Limiter, Settings, WaitEnd};
use region::store::memory::MemoryStore;
use region::units::{Generation, Timestamp};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::{Answer, Dir, NODE, get, post, request};

/// 2023-11-15T00:00:00Z in microseconds.
const T0: u64 = 1_700_006_400_000_000;

const POLICIES: &str = r#"
[regions]
us = 1
[[policy]]
name = "tight"
domain = "tight"
key = ["user"]
rate = 1
per = "106ms"
[[policy]]
name = "three"
domain = "three"
key = ["user"]
rate = 3
per = "10s"
[[policy]]
name = "five"
domain = "five"
key = ["user"]
rate = 5
per = "1s"
[[policy]]
name = "none"
domain = "none"
key = ["user"]
rate = 0
"#;

/// Half of two tokens is the region's own; for the other one a request waits.
const PATIENT: &str = r#"
[regions]
us = 1
eu = 1
[[policy]]
name = "patient"
domain = "patient"
key = ["user"]
rate = 2
per = "1h"
borrow_wait = "1s"
"#;

struct Clocked {
    addresses: Addresses,
    limiter: Arc<Limiter<MemoryStore>>,
    health: Arc<Health>,
    clock: Arc<AtomicU64>,
    _running: JoinSet<()>,
}

impl Clocked {
    async fn start(settings: &str) -> Self {
        Self::start_with(settings, POLICIES).await
    }

    async fn start_with(settings: &str, policies: &str) -> Self {
        let dir = Dir::new();
        let node = dir.write("node.toml", &format!("{NODE}{settings}"));
        let policies = dir.write("policies.toml", policies);
        let loaded = load(&node, &policies, &[]).expect("the configuration is right");
        let sockets = Sockets::bind(&loaded.node).await.expect("ports are free");
        let addresses = sockets.addresses();
        let clock = Arc::new(AtomicU64::new(T0));
        let shown = Arc::clone(&clock);
        let memory = Memory {
            generation: Generation(1),
            began: Timestamp(0),
        };
        let now = move || Timestamp(shown.load(Ordering::Relaxed));
        let policies = Arc::new(loaded.policies);
        let limiter = Limiter::new(
            Arc::clone(&policies),
            policies.region("us").expect("the region is there"),
            MemoryStore::new(memory, 1_000, now),
            Settings {
                key_secret: [7; 16],
                nodes_max: NonZeroU32::MIN,
                emergency_keys_max: 1_000,
            },
        );
        let limiter = Arc::new(limiter.with_timer(Arc::new(RuntimeTimer)));
        let parts = Parts {
            limiter: Arc::clone(&limiter),
            metrics: Arc::new(Metrics::new(("us", "us-1"), &policies, Vec::new())),
            cluster: Arc::new(Alone),
            sockets,
        };
        let node = Node::new(loaded.node, parts);
        let health = node.health();
        let mut running = JoinSet::new();
        running.spawn(async move {
            let ended = node.run(Tasks::new(CancellationToken::new())).await;
            ended.expect("no task dies");
        });
        Self {
            addresses,
            limiter,
            health,
            clock,
            _running: running,
        }
    }

    /// Moves the clock to so many milliseconds after the start.
    fn at(&self, ms: u64) {
        self.clock.store(T0 + ms * 1_000, Ordering::Relaxed);
    }

    async fn check(&self, domain: &str, cost: u64) -> Answer {
        let body = json!({"domain": domain, "attributes": {"user": "7"}, "cost": cost});
        post(self.addresses.http, "/v1/check", &body.to_string()).await
    }
}

fn wait(answer: &Answer) -> (u16, Option<&str>, Value) {
    let retry_ms = answer.json()["policies"][0]["retry_ms"].clone();
    (answer.status, answer.header("retry-after"), retry_ms)
}

#[tokio::test]
async fn case_33_retry_after_is_whole_seconds_that_suffice() {
    let node = Clocked::start("").await;
    assert_eq!(
        wait(&node.check("tight", 1).await),
        (200, None, json!(null))
    );
    assert_eq!(
        wait(&node.check("tight", 1).await),
        (429, Some("1"), json!(106))
    );
    for _ in 0..3 {
        assert_eq!(node.check("three", 1).await.status, 200);
    }
    assert_eq!(
        wait(&node.check("three", 1).await),
        (429, Some("4"), json!(3_334))
    );
    node.at(3_333);
    assert_eq!(
        wait(&node.check("three", 1).await),
        (429, Some("1"), json!(1))
    );
    node.at(4_000);
    assert_eq!(node.check("three", 1).await.status, 200);
}

#[tokio::test]
async fn case_33_request_that_can_never_pass_has_no_retry_time() {
    let node = Clocked::start("").await;
    assert_eq!(
        wait(&node.check("three", 4).await),
        (429, None, json!(null))
    );
}

#[tokio::test]
async fn case_06_limit_zero_denies_everything_that_costs() {
    let node = Clocked::start("").await;
    for _ in 0..2 {
        let denied = node.check("none", 1).await;
        assert_eq!(wait(&denied), (429, None, json!(null)));
        assert_eq!(denied.header("x-ratelimit-limit"), Some("0"));
        assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
        assert_eq!(denied.header("x-ratelimit-reset"), None);
    }
    let look = node.check("none", 0).await;
    assert_eq!(
        (look.status, look.json()["policies"][0]["remaining"].clone()),
        (200, json!(0))
    );
}

#[tokio::test]
async fn case_10_headers_tell_the_configured_limit() {
    let node = Clocked::start("").await;
    let first = node.check("five", 1).await;
    assert_eq!(first.header("x-ratelimit-limit"), Some("5"));
    assert_eq!(first.header("x-ratelimit-remaining"), Some("4"));
    assert_eq!(first.header("x-ratelimit-reset"), Some("1700006401"));
    assert_eq!(first.header("ratelimit"), Some("\"five\";r=4;t=1"));
    assert_eq!(first.header("ratelimit-policy"), Some("\"five\";q=5;w=1"));
    assert_eq!(first.header("cache-control"), None);
    let policy = &first.json()["policies"][0];
    assert_eq!(policy["reset_ms"], 200);
    assert_eq!(policy["decided_at_us"], T0);
    for _ in 0..4 {
        assert_eq!(node.check("five", 1).await.status, 200);
    }
    let denied = node.check("five", 1).await;
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("cache-control"), Some("no-store"));
    assert_eq!(denied.header("ratelimit"), Some("\"five\";r=0;t=1"));
}

#[tokio::test]
async fn reset_is_told_in_seconds_by_setting() {
    let node = Clocked::start("[shutdown]\ndelay = \"0s\"\n").await;
    let unix = node.check("three", 1).await;
    assert_eq!(unix.header("x-ratelimit-reset"), Some("1700006404"));
    let settings = NODE.replace("[grpc]", "reset = \"seconds\"\n[grpc]");
    let dir = Dir::new();
    let file = dir.write("node.toml", &settings);
    let policies = dir.write("policies.toml", POLICIES);
    let loaded = load(&file, &policies, &[]).expect("the configuration is right");
    assert_eq!(loaded.node.http.reset, node::config::Reset::Seconds);
}

#[tokio::test]
async fn request_that_makes_no_sense_is_refused_and_consumes_nothing() {
    let node = Clocked::start("").await;
    let http = node.addresses.http;
    for (body, error) in [
        ("{", "invalid_json"),
        (
            r#"{"domain":"five","attributes":{"user":"7"},"cost":-1}"#,
            "invalid_cost",
        ),
        (
            r#"{"domain":"five","attributes":{"user":7}}"#,
            "invalid_attributes",
        ),
        (r#"{"domain":"five","attribute":{}}"#, "unknown_field"),
    ] {
        let refused = post(http, "/v1/check", body).await;
        assert_eq!(
            (refused.status, refused.json()["error"].as_str()),
            (400, Some(error))
        );
    }
    let large = format!("{{\"domain\":\"{}\"}}", "x".repeat(70_000));
    assert_eq!(post(http, "/v1/check", &large).await.status, 413);
    let framed = "POST /v1/check HTTP/1.1\r\nTransfer-Encoding: chunked\r\n";
    let broken = request(http, framed, "zz\r\nno chunk\r\n").await;
    assert_eq!(
        (broken.status, broken.json()["error"].as_str()),
        (400, Some("broken_body"))
    );
    assert_eq!(post(http, "/v1/nothing", "{}").await.status, 404);
    let wrong = request(http, "GET /v1/check HTTP/1.1\r\n", "").await;
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("POST")));
    let untouched = node.check("five", 0).await;
    assert_eq!(untouched.header("x-ratelimit-remaining"), Some("5"));
}

#[tokio::test]
async fn request_that_no_policy_is_for_passes_without_headers() {
    let node = Clocked::start("").await;
    let answer = node.check("elsewhere", 1).await;
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (200, r#"{"allowed":true,"policies":[]}"#)
    );
    assert_eq!(answer.header("ratelimit"), None);
}

#[tokio::test]
async fn draining_node_lets_no_request_wait_for_a_loan() {
    let settings = "[shutdown]\ndelay = \"10m\"\n";
    let node = Clocked::start_with(settings, PATIENT).await;
    let denied = || node.limiter.waits().ended(WaitEnd::Denied);
    assert_eq!(node.check("patient", 1).await.status, 200);
    assert_eq!(node.check("patient", 1).await.status, 429);
    assert_eq!(denied(), 1);
    node.health.ask_to_drain();
    while get(node.addresses.admin, "/readyz").await.status != 503 {}
    assert_eq!(node.check("patient", 1).await.status, 429);
    assert_eq!(denied(), 1);
}
