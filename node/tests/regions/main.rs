//! The proof that the whole system keeps its promise: three regions of separate `tidegate serve`
//! processes, each with its own `redis-server` processes, on loopback with shaped links.
//!
//! Waits are bounded in seconds: what is exact is the audit of what the stores admitted.

#![expect(
    clippy::print_stdout,
    reason = "how long it all took is told with the result"
)]

mod cases;
mod outage;
mod world;

use std::time::Duration;

use node::apis::envoy;
use region::limit::Limit;
use region::units::Tokens;
use tokio::time::sleep;

use self::outage::shard_is_lost_and_comes_back_empty;
use self::world::{Client, Load, REGIONS, World, check, now};

/// Tokens per second in all regions together, and at once. A debug build on two busy cores can be
/// asked for all of them, and for more.
const LIMIT: u64 = 400;

/// More than the limit, so that there are always denials.
const TOO_MUCH: u64 = 600;

/// A grant's lifetime and the margin: the longest that anything lent can be used.
const LENT_MAX: Duration = Duration::from_millis(2_500);

const POLICIES: &str = r#"
[regions]
us = 50
eu = 30
ap = 20

[[policy]]
name = "strict"
domain = "api"
key = ["customer"]
rate = 400
per = "1s"
burst = 400
overrun = 0
on_store_failure = "closed"

[[policy]]
name = "closed"
domain = "outage"
match = [{ attribute = "mode", equals = "closed" }]
key = ["customer"]
rate = 100
per = "1s"
burst = 100
on_store_failure = "closed"

[[policy]]
name = "open"
domain = "outage"
match = [{ attribute = "mode", equals = "open" }]
key = ["customer"]
rate = 100
per = "1s"
burst = 100
on_store_failure = "open"

[[policy]]
name = "local"
domain = "outage"
match = [{ attribute = "mode", equals = "local" }]
key = ["customer"]
rate = 2
per = "1m"
burst = 400
on_store_failure = "local"
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regions_share_one_limit_through_cuts_crashes_and_losses() {
    let nodes = [
        ("us", "us-1"),
        ("us", "us-2"),
        ("eu", "eu-1"),
        ("ap", "ap-1"),
    ];
    let mut world = World::start(&nodes, &["a", "b"], POLICIES).await;
    for region in REGIONS {
        rls_call_is_answered(&world, region).await;
    }
    let body = r#"{"domain":"api","attributes":{"customer":"acme"}}"#;
    let shard = shard_of(&mut world, body).await;
    let load = Load::new(&world, body);
    one_region_gets_the_whole_limit(&world, &load).await;
    limit_follows_the_demand(&world, &load).await;
    rows_go_round_a_broken_link(&world, &load).await;
    region_that_is_cut_off_goes_on_with_its_base(&world, &load).await;
    lending_resumes_when_the_region_is_back(&world, &load).await;
    for name in ["us-1", "us-2"] {
        node_is_killed_and_comes_back(&mut world, &load, name).await;
    }
    let limit = Limit::try_new(Tokens(LIMIT), Duration::from_secs(1), Tokens(LIMIT));
    let limit = limit.expect("an exact limit");
    let (overrun, admitted) = load.audit(limit);
    println!(
        "admitted {} in (1) to (6), overrun {}",
        admitted.0, overrun.0
    );
    assert_eq!(overrun, Tokens(0));

    shard_is_lost_and_comes_back_empty(&mut world, &load, shard).await;
    let (overrun, admitted) = load.audit(limit);
    println!("admitted {} in all, overrun {}", admitted.0, overrun.0);
    assert_eq!(overrun, Tokens(0));
    assert_eq!(load.odd(), Vec::<String>::new());
    for node in &mut world.nodes {
        assert!(node.runs(), "{}", node.settings.name);
        assert_eq!(node.stop(), Some(0), "{}", node.log());
    }
}

async fn rls_call_is_answered(world: &World, region: &str) {
    use envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
    use envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
    use envoy::service::ratelimit::v3::RateLimitRequest;
    use envoy::service::ratelimit::v3::rate_limit_response::Code;
    use envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
    let node = world.of(region).next().expect("a node that runs");
    let address = format!("http://{}", node.addresses.grpc);
    let client = RateLimitServiceClient::connect(address).await;
    let entry = Entry {
        key: "customer".to_owned(),
        value: "by-rls".to_owned(),
    };
    let descriptor = RateLimitDescriptor {
        entries: vec![entry],
        ..RateLimitDescriptor::default()
    };
    let request = RateLimitRequest {
        domain: "api".to_owned(),
        descriptors: vec![descriptor],
        hits_addend: 2,
    };
    let mut client = client.expect("a connection");
    let response = client.should_rate_limit(request).await;
    let response = response.expect("an answer").into_inner();
    assert_eq!(response.overall_code, i32::from(Code::Ok), "{response:?}");
    let [status] = response.statuses.as_slice() else {
        panic!("one status for one descriptor: {response:?}");
    };
    let limit = status.current_limit.as_ref().expect("a limit");
    assert_eq!(u64::from(limit.requests_per_unit), LIMIT, "{response:?}");
}

/// The shard of `us` that a key comes to be on.
async fn shard_of(world: &mut World, body: &str) -> &'static str {
    let before = ["a", "b"].map(|name| world.shard("us", name).keys());
    let mut client = Client::new(world.node("us-1").addresses.http);
    let answer = check(&mut client, body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    if world.shard("us", "a").keys() > before[0] {
        return "a";
    }
    assert!(
        world.shard("us", "b").keys() > before[1],
        "the key is nowhere"
    );
    "b"
}

/// (1) Load only in the region with the smallest base share.
async fn one_region_gets_the_whole_limit(world: &World, load: &Load) {
    load.offer(&[("ap", TOO_MUCH)]);
    // The buckets were full, which must not be taken for rate.
    let settled = now() + 3_000_000;
    world
        .eventually("(1) ap has 95 % of the limit", async |_| {
            gets(load, "ap", (95, settled))
        })
        .await;
}

/// (2) The load moves.
async fn limit_follows_the_demand(world: &World, load: &Load) {
    load.offer(&[("us", TOO_MUCH)]);
    let settled = now() + 1_000_000;
    let soon = world
        .eventually("(2) us has 90 % of the limit", async |_| {
            gets(load, "us", (90, settled))
        })
        .await;
    assert!(soon < Duration::from_secs(15), "{soon:?}");
}

/// (3) What two regions lend each other goes on by way of the third.
async fn rows_go_round_a_broken_link(world: &World, load: &Load) {
    world.cut(&[("us", "eu")]).await;
    let cut = now();
    sleep(LENT_MAX * 2).await;
    let rate = load.rate("us", 2_000);
    assert!(rate >= LIMIT * 90 / 100, "{rate}\n{}", load.describe());
    let key = world.key("us", ("api", "strict")).await;
    let eu = &key["ledger"]["peers"]["eu"];
    let until = eu["borrowed_until_us"].as_u64();
    assert!(
        until > Some(cut + micros(LENT_MAX)) && eu["borrowed_ppm"].as_u64() > Some(200_000),
        "{key:#}"
    );
    println!("(3) us has {rate} tokens/s by way of ap");
    world.cut(&[]).await;
}

/// (4) A region that lends all that it has is cut off, and all want more than their base.
async fn region_that_is_cut_off_goes_on_with_its_base(world: &World, load: &Load) {
    world.cut(&[("us", "ap"), ("eu", "ap")]).await;
    load.offer(&[("us", TOO_MUCH), ("eu", 200), ("ap", 150)]);
    let cut = now();
    let bases = [("us", 500_000), ("eu", 300_000), ("ap", 200_000)];
    sleep(LENT_MAX).await;
    let back = world
        .eventually("(4) every region has its base share", async |world| {
            for (region, base) in bases {
                let key = world.key(region, ("api", "strict")).await;
                let share = key["bucket"]["share_ppm"].as_u64().unwrap_or_default();
                if share.abs_diff(base) > base / 20 {
                    return Err(format!("{region}: {key:#}"));
                }
            }
            Ok(())
        })
        .await;
    assert!(back < Duration::from_secs(5), "{back:?}");
    sleep(Duration::from_secs(4)).await;
    let begin = now() - 3_500_000;
    for (region, base) in bases {
        for second in 0..3 {
            let from = begin + second * 1_000_000;
            let tokens = load.admitted(region, from..from + 1_000_000);
            let least = base * LIMIT / 1_000_000 * 8 / 10;
            assert!(tokens >= least, "{region}: {tokens}\n{}", load.describe());
        }
    }
    let key = world.key("ap", ("api", "strict")).await;
    let peers = &key["ledger"]["peers"];
    for peer in ["us", "eu"] {
        let heard = peers[peer]["seen_us"].as_u64();
        assert!(heard < Some(cut + 1_000_000), "ap is cut off: {key:#}");
    }
}

/// (5) The link heals, and the demand moves to a region that has had its base only.
async fn lending_resumes_when_the_region_is_back(world: &World, load: &Load) {
    world.cut(&[]).await;
    load.offer(&[("eu", TOO_MUCH)]);
    let settled = now() + 1_000_000;
    world
        .eventually("(5) eu has 95 % of the limit", async |_| {
            gets(load, "eu", (95, settled))
        })
        .await;
}

/// (6) One of the two nodes of a region dies. One of them acts for the key, so that once it is that
/// one, and once the other.
async fn node_is_killed_and_comes_back(world: &mut World, load: &Load, name: &str) {
    load.offer(&[("us", TOO_MUCH)]);
    let settled = now() + 1_000_000;
    world
        .eventually("(6) us has 90 % of the limit", async |_| {
            gets(load, "us", (90, settled))
        })
        .await;
    world.node_mut(name).kill();
    load.find(world);
    // What was lent before is over by then.
    let settled = now() + micros(LENT_MAX);
    let what = format!("(6) us has 90 % without {name}");
    world
        .eventually(&what, async |_| gets(load, "us", (90, settled)))
        .await;
    let others = world.nodes.len() - 1;
    let what = format!("(6) {name} counts as down");
    world
        .eventually(&what, async |world| world.each_knows(others).await)
        .await;
    world.node_mut(name).restart();
    load.find(world);
    let all = world.nodes.len();
    let what = format!("(6) {name} is back");
    world
        .eventually(&what, async |world| world.each_knows(all).await)
        .await;
    let mut client = Client::new(world.node(name).addresses.http);
    let body = r#"{"domain":"api","attributes":{"customer":"other"}}"#;
    let answer = check(&mut client, body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let settled = now() + 1_000_000;
    let what = format!("(6) us has 90 % with {name} again");
    world
        .eventually(&what, async |_| gets(load, "us", (90, settled)))
        .await;
}

/// Whether a region was admitted so many percent of the limit in the last two seconds, all of them
/// after an instant, and denied the rest.
fn gets(load: &Load, region: &str, (percent, settled): (u64, u64)) -> Result<(), String> {
    let rate = load.rate(region, 2_000);
    let early = now() < settled + 2_000_000;
    if early || rate < LIMIT * percent / 100 {
        return Err(format!("{region} has {rate}\n{}", load.describe()));
    }
    Ok(())
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).expect("short")
}
