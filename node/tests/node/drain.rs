//! How a node stops.

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;

use crate::support::{NODE, PATIENCE, Process, Redis, get, post, request, user_body};

const POLICIES: &str = r#"
[regions]
us = 1
[[policy]]
name = "users"
domain = "api"
key = ["user"]
rate = 1000
per = "1s"
on_store_failure = "closed"
"#;

const TOKEN: &str = "authorization: Bearer a token for the tests\r\n";

async fn until_not_ready(node: &Process) {
    timeout(PATIENCE, async {
        while get(node.admin, "/readyz").await.status != 503 {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("the node says that it is not ready");
}

/// Starts requests that hang in the store and waits until they are there.
async fn requests_in_flight(node: &Process, redis: &Redis, pause_ms: u32) -> JoinSet<u16> {
    assert_eq!(node.check_user("0").await.status, 200);
    let paused = redis.command(&format!("CLIENT PAUSE {pause_ms} ALL")).await;
    assert!(paused.expect("the server answers").contains("OK"));
    let mut requests = JoinSet::new();
    for user in 0..20 {
        let http = node.http;
        requests.spawn(async move {
            post(http, "/v1/check", &user_body(&user.to_string()))
                .await
                .status
        });
    }
    // All of them have been read when as many connections are open.
    timeout(PATIENCE, async {
        let open = "tidegate_connections{api=\"http\"} 20";
        while !node.metrics().await.contains(open) {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("the requests arrive");
    requests
}

#[tokio::test]
async fn case_46_sigterm_answers_what_is_in_flight_and_exits_0() {
    let redis = Redis::start().await;
    let settings = format!("{}[shutdown]\ngrace = \"20s\"\n", redis.node("20s"));
    let node = Process::start(&settings, POLICIES).await;
    let endpoint = Channel::from_shared(format!("http://{}", node.grpc)).expect("it is a URI");
    let _idle = endpoint.connect().await.expect("the node listens");
    let _silent = TcpStream::connect(node.grpc)
        .await
        .expect("the node listens");
    let mut requests = requests_in_flight(&node, &redis, 2_000).await;
    node.signal("-TERM").await;
    until_not_ready(&node).await;
    while let Some(status) = requests.join_next().await {
        assert_eq!(status.expect("no panic"), 200);
    }
    let http = node.http;
    let (code, log) = node.end().await;
    assert_eq!(code, Some(0));
    assert!(
        !log.contains("cut off"),
        "idle connections were closed: {log}"
    );
    assert!(TcpStream::connect(http).await.is_err());
}

#[tokio::test]
async fn second_sigterm_ends_the_node_at_once() {
    let redis = Redis::start().await;
    let settings = format!("{}[shutdown]\ngrace = \"10m\"\n", redis.node("10m"));
    let node = Process::start(&settings, POLICIES).await;
    let _requests = requests_in_flight(&node, &redis, 600_000).await;
    node.signal("-TERM").await;
    until_not_ready(&node).await;
    node.signal("-TERM").await;
    assert_eq!(node.end().await.0, Some(143));
}

#[tokio::test]
async fn requests_are_cut_off_after_the_grace() {
    let redis = Redis::start().await;
    let settings = format!("{}[shutdown]\ngrace = \"100ms\"\n", redis.node("10m"));
    let node = Process::start(&settings, POLICIES).await;
    let _requests = requests_in_flight(&node, &redis, 600_000).await;
    node.signal("-INT").await;
    let (code, log) = node.end().await;
    assert_eq!(code, Some(0));
    assert!(log.contains("requests in flight were cut off"), "{log}");
}

#[tokio::test]
async fn drain_is_asked_for_with_the_token_only() {
    let settings = format!("{NODE}token_file = \"token\"\n");
    let node = Process::start(&settings, POLICIES).await;
    let drain = "POST /v1/drain HTTP/1.1\r\n";
    assert_eq!(request(node.admin, drain, "").await.status, 401);
    let wrong = format!("{drain}{}", TOKEN.replace("tests", "test"));
    assert_eq!(request(node.admin, &wrong, "").await.status, 403);
    assert_eq!(get(node.admin, "/readyz").await.status, 200);
    assert_eq!(
        request(node.admin, &format!("{drain}{TOKEN}"), "")
            .await
            .status,
        202
    );
    assert_eq!(node.end().await.0, Some(0));
}
