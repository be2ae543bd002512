//! What the admin interface shows.

use serde_json::json;

use crate::support::{NODE, Process, get, request};

const POLICIES: &str = r#"
[regions]
eu = 1
us = 3
[[policy]]
name = "users"
domain = "api"
key = ["user"]
rate = 100
per = "1h"
"#;

#[tokio::test]
async fn key_is_shown_with_its_bucket_and_share() {
    let node = Process::start(NODE, POLICIES).await;
    assert_eq!(node.check_user("7").await.status, 200);
    let answer = get(node.admin, "/v1/key?domain=api&policy=users&attr.user=7").await;
    assert_eq!(answer.status, 200);
    let state = answer.json();
    assert_eq!(
        (&state["region"], &state["ledger"]),
        (&json!("us"), &json!(null))
    );
    let bucket = &state["bucket"];
    assert_eq!(bucket["base_share_ppm"], 750_000);
    assert_eq!(bucket["share_ppm"], 750_000);
    assert_eq!(
        bucket["capacity"], 72,
        "a twentieth for each region, and three quarters of 90"
    );
    assert_eq!(bucket["tokens"], 71);
    assert_eq!(bucket["schedule"].as_array().map(Vec::len), Some(1));
    for (query, status) in [
        ("domain=api&policy=users", 400),
        ("policy=users&attr.user=7", 400),
        ("domain=api&policy=others&attr.user=7", 404),
    ] {
        let path = format!("/v1/key?{query}");
        assert_eq!(get(node.admin, &path).await.status, status, "{query}");
    }
}

#[tokio::test]
async fn health_is_told_in_words() {
    let node = Process::start(NODE, POLICIES).await;
    for path in ["/livez", "/healthz", "/readyz"] {
        assert_eq!(get(node.admin, path).await.body, "ok\n", "{path}");
    }
    let verbose = get(node.admin, "/readyz?verbose").await.body;
    assert_eq!(verbose, "[+]listeners ok\n[+]drain ok\nok\n");
    assert_eq!(
        get(node.admin, "/v1/members").await.json(),
        json!({ "members": [] })
    );
    assert_eq!(get(node.admin, "/else").await.status, 404);
}

#[tokio::test]
async fn links_are_not_changed_without_a_token_or_a_shaper() {
    let token = "authorization: Bearer a token for the tests\r\n";
    let links = format!("PUT /v1/links HTTP/1.1\r\n{token}");
    let node = Process::start(NODE, POLICIES).await;
    assert_eq!(
        request(node.admin, &links, "[]").await.status,
        403,
        "no token is configured"
    );
    let node = Process::start(&format!("{NODE}token_file = \"token\"\n"), POLICIES).await;
    let unknown = r#"[{"from":"us","to":"mars"}]"#;
    assert_eq!(request(node.admin, &links, unknown).await.status, 400);
    let cut = r#"[{"from":"us","to":"eu","cut":true}]"#;
    assert_eq!(request(node.admin, &links, cut).await.status, 409);
}
