//! Clients that misbehave: they cost nothing that lasts.

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::support::{NODE, PATIENCE, Process, get, sum};

const POLICIES: &str = r#"
[regions]
us = 1
[[policy]]
name = "users"
domain = "api"
key = ["user"]
rate = 1000
per = "1s"
"#;

#[tokio::test]
async fn case_62_accept_errors_do_not_end_the_listeners() {
    let node = Process::start_limited(NODE, POLICIES, Some(64)).await;
    let mut idle = Vec::new();
    for address in [node.http, node.grpc] {
        for _ in 0..200 {
            let connected = timeout(Duration::from_secs(1), TcpStream::connect(address)).await;
            // When the kernel's queue is full too, there are enough.
            let Ok(stream) = connected else { break };
            idle.push(stream.expect("the kernel accepts"));
        }
    }
    // Long enough that the node has run out of files and has paused several times.
    sleep(Duration::from_millis(300)).await;
    drop(idle);
    let answer = timeout(PATIENCE, node.check_user("7")).await;
    assert_eq!(answer.expect("the node serves again").status, 200);
    let metrics = node.metrics().await;
    assert!(
        sum(&metrics, "tidegate_accept_errors_total") > 0,
        "{metrics}"
    );
}

#[tokio::test]
async fn case_59_clients_cannot_make_series() {
    let node = Process::start(NODE, POLICIES).await;
    let names = |metrics: String| {
        let mut names: Vec<String> = metrics
            .lines()
            .filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned()))
            .collect();
        names.sort_unstable();
        names
    };
    let before = names(node.metrics().await);
    for number in 0..200 {
        let odd = format!(r#"{number}\"\n{{}}"#);
        assert_eq!(node.check_user(&odd).await.status, 200);
        let body = format!(r#"{{"domain":"odd{number}","attributes":{{"odd{number}":"x"}}}}"#);
        assert_eq!(node.check(&body).await.status, 200);
        assert_eq!(get(node.http, &format!("/odd/{number}")).await.status, 404);
    }
    let after = names(node.metrics().await);
    assert_eq!(before, after);
    assert!(!after.iter().any(|name| name.contains("odd")));
}
