//! What policies do while the store does not answer.

use crate::support::{PATIENCE, Process, Redis, sum, user_body};

fn policies() -> String {
    let policy = |mode: &str| {
        format!(
            "[[policy]]\nname = \"{mode}\"\ndomain = \"{mode}\"\nkey = [\"user\"]\nrate = 3\n\
             per = \"1h\"\nscope = \"regional\"\non_store_failure = \"{mode}\"\n"
        )
    };
    let modes = ["local", "open", "closed"].map(policy).concat();
    format!("[regions]\nus = 1\n{modes}")
}

#[tokio::test]
async fn case_24_dead_store_means_what_the_policy_says_and_is_counted() {
    let redis = Redis::start().await;
    let node = Process::start(&redis.node("1s"), &policies()).await;
    let before = node.check(&body("closed")).await;
    assert_eq!((before.status, before.json().get("degraded")), (200, None));
    redis.kill().await;
    tokio::time::timeout(PATIENCE, async {
        while node.check(&body("closed")).await.status != 503 {}
    })
    .await
    .expect("the loss is noticed");
    let lines = node.log().lines().count();
    for (mode, admitted, denial) in [("local", 3, 429), ("open", 100, 0), ("closed", 0, 503)] {
        let counter = format!("tidegate_fallback_total{{domain=\"{mode}\"");
        let counted = sum(&node.metrics().await, &counter);
        let mut allowed = 0;
        for _ in 0..100 {
            let answer = node.check(&body(mode)).await;
            let told = answer.json();
            assert_eq!(told["degraded"], true, "{mode}: {told}");
            assert!(
                told["policies"][0]["fallback"].is_string(),
                "{mode}: {told}"
            );
            if answer.status == 200 {
                allowed += 1;
                assert_eq!(answer.header("retry-after"), None);
            } else {
                assert_eq!(answer.status, denial, "{mode}: {told}");
                assert!(answer.header("retry-after").is_some(), "{mode}: {told}");
            }
            if mode == "closed" {
                assert_eq!(answer.header("retry-after"), Some("1"));
            }
        }
        assert_eq!(allowed, admitted, "{mode}");
        assert_eq!(
            sum(&node.metrics().await, &counter) - counted,
            100,
            "{mode}"
        );
    }
    let lines = node.log().lines().count() - lines;
    assert!(lines <= 5, "{lines} lines were logged:\n{}", node.log());
    tokio::time::timeout(PATIENCE, async {
        while !node.log().contains("shard cannot be used") {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("the log tells that the shard is gone");
}

fn body(mode: &str) -> String {
    user_body("7").replace("\"api\"", &format!("\"{mode}\""))
}
