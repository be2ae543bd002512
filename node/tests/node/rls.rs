//! The gRPC front, asked by the generated client.

use std::net::SocketAddr;

use node::apis::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use node::apis::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use node::apis::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use node::apis::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use node::apis::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use node::apis::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::support::{NODE, Process, get, series};

const POLICIES: &str = r#"
[regions]
us = 1
[[policy]]
name = "minute"
domain = "api"
key = ["user"]
rate = 5
per = "1m"
[[policy]]
name = "tenant"
domain = "api"
key = ["tenant"]
rate = 100
per = "1h"
[[policy]]
name = "vast"
domain = "vast"
key = ["user"]
rate = 5_000_000_000
per = "1h"
[[policy]]
name = "none"
domain = "none"
key = ["user"]
rate = 0
"#;

type Client = RateLimitServiceClient<Channel>;

async fn client(to: SocketAddr) -> Client {
    let connected = Client::connect(format!("http://{to}")).await;
    connected.expect("the node listens")
}

fn descriptor(key: &str, value: &str) -> RateLimitDescriptor {
    RateLimitDescriptor {
        entries: vec![Entry {
            key: key.to_owned(),
            value: value.to_owned(),
        }],
        ..RateLimitDescriptor::default()
    }
}

fn asked(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors,
        hits_addend: 0,
    }
}

async fn ask(client: &mut Client, request: RateLimitRequest) -> RateLimitResponse {
    let answered = client.should_rate_limit(request).await;
    answered.expect("the request makes sense").into_inner()
}

async fn ask_one(
    client: &mut Client,
    domain: &str,
    one: RateLimitDescriptor,
) -> (Code, DescriptorStatus) {
    let mut answer = ask(client, asked(domain, vec![one])).await;
    assert_eq!(answer.statuses.len(), 1);
    (answer.overall_code(), answer.statuses.remove(0))
}

#[tokio::test]
async fn descriptor_is_told_its_limit_and_denied_over_it() {
    let node = Process::start(NODE, POLICIES).await;
    let mut client = client(node.grpc).await;
    for left in (0..5).rev() {
        let (overall, status) = ask_one(&mut client, "api", descriptor("user", "7")).await;
        assert_eq!((overall, status.code()), (Code::Ok, Code::Ok));
        let limit = status.current_limit.expect("the policy has a limit");
        assert_eq!((limit.requests_per_unit, limit.unit()), (5, Unit::Minute));
        assert_eq!(limit.name, "minute");
        assert_eq!(status.limit_remaining, left);
    }
    let answer = ask(&mut client, asked("api", vec![descriptor("user", "7")])).await;
    assert_eq!(answer.overall_code(), Code::OverLimit);
    let reset = answer.statuses[0]
        .duration_until_reset
        .expect("it is known");
    assert!((1..=12).contains(&reset.seconds) && reset.nanos == 0);
    let header = |name: &str| {
        let headers = &answer.response_headers_to_add;
        let found = headers.iter().find(|header| header.key == name);
        found.map(|header| header.value.clone())
    };
    assert_eq!(header("retry-after"), Some(reset.seconds.to_string()));
    assert_eq!(
        header("ratelimit-policy").as_deref(),
        Some("\"minute\";q=5;w=60")
    );
    assert!(
        header("ratelimit")
            .expect("it is told")
            .starts_with("\"minute\";r=0;t=")
    );
}

#[tokio::test]
async fn descriptors_are_answered_one_by_one_and_pass_or_fail_together() {
    let node = Process::start(NODE, POLICIES).await;
    let mut client = client(node.grpc).await;
    let mut greedy = descriptor("user", "7");
    greedy.hits_addend = Some(6);
    let request = asked(
        "api",
        vec![descriptor("tenant", "t"), greedy, descriptor("x", "")],
    );
    let answer = ask(&mut client, request).await;
    assert_eq!(answer.overall_code(), Code::OverLimit);
    let codes: Vec<Code> = answer.statuses.iter().map(DescriptorStatus::code).collect();
    assert_eq!(codes, [Code::Ok, Code::OverLimit, Code::Ok]);
    assert_eq!(
        answer.statuses[2],
        DescriptorStatus {
            code: Code::Ok.into(),
            ..DescriptorStatus::default()
        }
    );
    let (_, status) = ask_one(&mut client, "api", descriptor("tenant", "t")).await;
    assert_eq!(
        status.limit_remaining, 99,
        "the denied request took nothing"
    );
}

#[tokio::test]
async fn case_08_negative_hits_give_back_and_are_never_denied() {
    let node = Process::start(NODE, POLICIES).await;
    let mut client = client(node.grpc).await;
    let hits = |hits: u64, negative: bool| RateLimitDescriptor {
        hits_addend: Some(hits),
        is_negative_hits: negative,
        ..descriptor("user", "7")
    };
    let (_, status) = ask_one(&mut client, "api", hits(5, false)).await;
    assert_eq!(status.limit_remaining, 0);
    let (overall, status) = ask_one(&mut client, "api", hits(1, true)).await;
    assert_eq!((overall, status.limit_remaining), (Code::Ok, 1));
    let (overall, status) = ask_one(&mut client, "api", hits(100, true)).await;
    assert_eq!((overall, status.limit_remaining), (Code::Ok, 5));
    let (_, status) = ask_one(&mut client, "api", hits(0, false)).await;
    assert_eq!(status.limit_remaining, 5, "zero hits only look");
}

#[tokio::test]
async fn case_06_limit_zero_is_over_limit() {
    let node = Process::start(NODE, POLICIES).await;
    let mut client = client(node.grpc).await;
    let (overall, status) = ask_one(&mut client, "none", descriptor("user", "7")).await;
    assert_eq!((overall, status.code()), (Code::OverLimit, Code::OverLimit));
    assert_eq!(status.limit_remaining, 0);
}

#[tokio::test]
async fn request_without_domain_or_descriptors_is_an_invalid_argument() {
    let node = Process::start(NODE, POLICIES).await;
    let mut client = client(node.grpc).await;
    let many = vec![descriptor("user", "7"); 101];
    for (request, words) in [
        (
            asked("", vec![descriptor("user", "7")]),
            "rate limit domain must not be empty",
        ),
        (
            asked("api", vec![]),
            "rate limit descriptor list must not be empty",
        ),
        (
            asked("api", vec![descriptor("", "7")]),
            "key of a descriptor entry",
        ),
        (asked("api", many), "at most 100 descriptors"),
    ] {
        let refused = client.should_rate_limit(request).await.expect_err(words);
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        assert!(refused.message().contains(words), "{}", refused.message());
    }
    let (overall, status) = ask_one(&mut client, "unknown", descriptor("user", "7")).await;
    assert_eq!((overall, status.code()), (Code::Ok, Code::Ok));
    assert_eq!(status.current_limit, None);
}

#[tokio::test]
async fn case_42_undefined_unit_of_an_override_is_ignored_and_counted() {
    let node = Process::start(NODE, POLICIES).await;
    let mut client = client(node.grpc).await;
    for (left, unit) in [(4, 0), (3, 99)] {
        let mut one = descriptor("user", "7");
        one.limit = Some(RateLimitOverride {
            requests_per_unit: 10,
            unit,
        });
        let (overall, status) = ask_one(&mut client, "api", one).await;
        assert_eq!((overall, status.limit_remaining), (Code::Ok, left));
        let limit = status.current_limit.expect("the policy has a limit");
        assert_eq!((limit.requests_per_unit, limit.unit()), (5, Unit::Minute));
    }
    let ignored = series(&node.metrics().await, "tidegate_overrides_ignored_total");
    assert_eq!(ignored, Some(2));
}

#[tokio::test]
async fn case_42_no_request_brings_the_node_down() {
    let node = Process::start(NODE, POLICIES).await;
    let mut client = client(node.grpc).await;
    let mut state = 42_u64;
    let mut next = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    let texts = ["", "user", "tenant", "\u{0}\u{ffff}", "api", "vast", "none"];
    for _ in 0..500 {
        let descriptors = (0..next(4)).map(|_| RateLimitDescriptor {
            entries: (0..next(4))
                .map(|_| Entry {
                    key: texts[usize::try_from(next(7)).expect("small")].to_owned(),
                    value: texts[usize::try_from(next(7)).expect("small")].to_owned(),
                })
                .collect(),
            limit: (next(2) == 0).then(|| RateLimitOverride {
                requests_per_unit: u32::try_from(next(3)).expect("small"),
                unit: i32::try_from(next(200)).expect("small") - 100,
            }),
            hits_addend: (next(2) == 0).then(|| u64::MAX - next(3)),
            is_negative_hits: next(3) == 0,
        });
        let request = RateLimitRequest {
            descriptors: descriptors.collect(),
            domain: texts[usize::try_from(next(7)).expect("small")].to_owned(),
            hits_addend: u32::MAX - u32::try_from(next(3)).expect("small"),
        };
        match client.should_rate_limit(request.clone()).await {
            Ok(answer) => {
                let answer = answer.into_inner();
                assert_ne!(answer.overall_code(), Code::Unknown);
                assert_eq!(answer.statuses.len(), request.descriptors.len());
            }
            Err(refused) => assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{request:?}"),
        }
    }
    assert_eq!(get(node.admin, "/livez").await.status, 200);
}

#[tokio::test]
async fn case_44_large_numbers_saturate_in_the_answer_only() {
    let node = Process::start(NODE, POLICIES).await;
    let mut client = client(node.grpc).await;
    let (overall, status) = ask_one(&mut client, "vast", descriptor("user", "7")).await;
    assert_eq!((overall, status.limit_remaining), (Code::Ok, u32::MAX));
    let limit = status.current_limit.expect("the policy has a limit");
    assert_eq!(limit.requests_per_unit, u32::MAX);
    let mut huge = descriptor("user", "7");
    huge.hits_addend = Some(u64::MAX);
    let (overall, _) = ask_one(&mut client, "vast", huge).await;
    assert_eq!(overall, Code::OverLimit);
    let path = "/v1/key?domain=vast&policy=vast&attr.user=7";
    let state = get(node.admin, path).await.json();
    let tokens = state["bucket"]["tokens"].as_u64().expect("it is a number");
    assert!(
        tokens >= 4_999_999_999,
        "the denied request took nothing: {tokens}"
    );
    let (overall, _) = ask_one(&mut client, "vast", descriptor("user", "7")).await;
    assert_eq!(overall, Code::Ok);
}

#[tokio::test]
async fn health_service_knows_the_names_that_probes_use() {
    let node = Process::start(NODE, POLICIES).await;
    let endpoint = Channel::from_shared(format!("http://{}", node.grpc)).expect("it is a URI");
    let mut health = HealthClient::new(endpoint.connect().await.expect("the node listens"));
    for name in [
        "",
        "ratelimit",
        "envoy.service.ratelimit.v3.RateLimitService",
    ] {
        let request = HealthCheckRequest {
            service: name.to_owned(),
        };
        let answer = health.check(request).await.expect("the name is known");
        assert_eq!(answer.into_inner().status, 1, "{name} serves");
    }
    let request = HealthCheckRequest {
        service: "else".to_owned(),
    };
    let unknown = health
        .check(request)
        .await
        .expect_err("the name is not known");
    assert_eq!(unknown.code(), tonic::Code::NotFound);
}
