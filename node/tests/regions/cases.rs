//! Cases that need a whole node or a hostile peer, by their numbers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gossip::codec::Codec;
use gossip::frame::{Frame, KeyRow, Message};
use region::ledger::{Entry, Grant, Row};
use region::policy::PolicySet;
use region::units::{
    Client as ClientHash, Generation, Key, Level, RegionId, Sequence, Share, Stamp, Timestamp,
};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::world::{Client, Stranger, World, check, now};

/// Nothing to speak of flows back while a test runs.
const POLICIES: &str = r#"
[regions]
us = 50
eu = 30
ap = 20

[[policy]]
name = "slow"
domain = "api"
key = ["customer"]
rate = 1
per = "1h"
burst = 100000
scope = "regional"
on_store_failure = "local"

[[policy]]
name = "strict"
domain = "shared"
key = ["customer"]
rate = 1
per = "12h"
burst = 100
on_store_failure = "closed"

[[policy]]
name = "patient"
domain = "patient"
key = ["customer"]
rate = 1
per = "12h"
burst = 100
borrow_wait = "1s"
on_store_failure = "closed"
"#;

/// A request of which `ap` alone has less than half: 5 of capacity that is never lent and a fifth
/// of the other 85.
const PATIENT_COST: u64 = 50;

/// What `slow` begins with.
const BURST: u64 = 100_000;

const FLUSHES: u64 = 10;

const SLOW: &str = r#"{"domain":"api","attributes":{"customer":"acme"}}"#;
const SHARED: &str = r#"{"domain":"shared","attributes":{"customer":"acme"}}"#;

/// Regions are numbered by their names.
const NAMES: [&str; 3] = ["ap", "eu", "us"];
const EU: RegionId = RegionId(1);
const US: RegionId = RegionId(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_17_flushed_scripts_cost_no_request_and_no_count() {
    let mut world = World::start(&[("us", "us-1")], &["a"], POLICIES).await;
    let address = world.node("us-1").addresses.http;
    let (end, ended) = watch::channel(false);
    let mut clients = JoinSet::new();
    for _ in 0..10 {
        let ended = ended.clone();
        clients.spawn(async move {
            let (mut client, mut passed) = (Client::new(address), 0);
            while !*ended.borrow() {
                assert!(passes_by_store(&mut client).await);
                passed += 1;
            }
            passed
        });
    }
    for _ in 0..FLUSHES {
        // Far enough apart that even a node that is starved has loaded and run its scripts.
        sleep(Duration::from_millis(200)).await;
        world.shard("us", "a").ask(&["SCRIPT FLUSH"]);
    }
    sleep(Duration::from_millis(200)).await;
    end.send_replace(true);
    let passed: u64 = clients.join_all().await.into_iter().sum();
    assert!(passed > 100, "{passed}");
    assert_eq!(tokens(&world, "api", "slow").await, Some(BURST - passed));
    let reloads = world.metric("us-1", "tidegate_store_script_reloads_total", "");
    let reloads = reloads.await;
    println!("{passed} passed, {FLUSHES} flushes, {reloads} reloads");
    assert!((1..=FLUSHES).contains(&reloads), "{reloads}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_26_what_an_outage_admitted_is_not_charged_later() {
    let mut world = World::start(&[("us", "us-1")], &["a"], POLICIES).await;
    let mut client = Client::new(world.node("us-1").addresses.http);
    let mut by_store = 0;
    for _ in 0..100 {
        by_store += u64::from(passes_by_store(&mut client).await);
    }
    assert_eq!(by_store, 100);
    world.shard("us", "a").turn_everyone_away();
    let mut without = 0;
    for _ in 0..100 {
        without += u64::from(!passes_by_store(&mut client).await);
    }
    assert!(without > 0, "the outage was not noticed");
    world.shard("us", "a").let_everyone_in();
    let address = world.node("us-1").addresses.http;
    world
        .eventually("the shard is used again", async |_| {
            let answer = check(&mut Client::new(address), SLOW).await;
            let back = answer.json()["policies"][0]["decided_at_us"].is_u64();
            back.then_some(()).ok_or_else(|| answer.body.clone())
        })
        .await;
    // The one that has just passed among them.
    by_store += 1 + (100 - without);
    for _ in 0..50 {
        by_store += u64::from(passes_by_store(&mut client).await);
    }
    println!("{without} of the outage were decided without the store");
    assert_eq!(tokens(&world, "api", "slow").await, Some(BURST - by_store));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_waits_for_a_loan_and_passes_at_its_first_try() {
    let nodes = [("us", "us-1"), ("ap", "ap-1")];
    let world = World::start(&nodes, &["a"], POLICIES).await;
    let address = world.node("ap-1").addresses.http;
    let customers = AtomicU64::new(0);
    world
        .eventually("a request that waited has passed", async |_| {
            let customer = customers.fetch_add(1, Ordering::Relaxed);
            let attributes = format!("{{\"customer\":\"c{customer}\"}}");
            let body = format!(
                "{{\"domain\":\"patient\",\"attributes\":{attributes},\"cost\":{PATIENT_COST}}}"
            );
            let answer = check(&mut Client::new(address), &body).await;
            let passed = answer.status == 200;
            passed.then_some(()).ok_or(answer.body)
        })
        .await;
    let waited = |outcome| {
        let labels = format!("outcome=\"{outcome}\"");
        let world = &world;
        async move {
            world
                .metric("ap-1", "tidegate_borrow_waits_total", &labels)
                .await
        }
    };
    let (admitted, denied) = (waited("admitted").await, waited("denied").await);
    assert_eq!(admitted, 1);
    assert_eq!(admitted + denied, customers.into_inner());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_49_and_63_nonsense_of_a_peer_is_counted_and_changes_nothing() {
    let nodes = [("us", "us-1"), ("eu", "eu-1")];
    let mut world = World::start(&nodes, &["a"], POLICIES).await;
    // The stranger is not shaped: from here on it alone speaks for `eu`.
    world.cut(&[("us", "eu")]).await;
    let to = world.node("us-1").settings.gossip;
    let mut client = Client::new(world.node("us-1").addresses.http);
    assert_eq!(check(&mut client, SHARED).await.status, 200);
    let before = world.key("us", ("shared", "strict")).await;
    let left = before["bucket"]["tokens"].as_u64().expect("tokens");

    let stranger = Stranger::connect(&world, "eu", to).await;
    stranger.say(vec![0xa5; 700]);
    stranger.say_at_length(&[7; 5_000]).await;
    let honest = row(&before);
    let frame = |names: &[&str], row: &Row| {
        let key = key(&before);
        let rows = vec![KeyRow {
            key,
            row: row.clone(),
        }];
        let frame = Frame {
            heard: Vec::new(),
            message: Message::Rows(rows),
        };
        Codec::new(names).encode(&frame).expect("small")
    };
    stranger.say(frame(&["ap", "eu", "us", "zz"], &honest));
    let whole = frame(&NAMES, &honest);
    stranger.say(whole[..whole.len() / 2].to_vec());
    for row in impossible(&honest) {
        stranger.say(frame(&NAMES, &row));
        // Of two rows that arrive together the replica would hear the newer one only.
        sleep(Duration::from_millis(200)).await;
    }
    world
        .eventually("everything is counted", async |world| {
            for reason in [
                "version",
                "malformed",
                "regions",
                "invalid",
                "row_invalid",
                "row_other_terms",
            ] {
                let labels = format!("reason=\"{reason}\"");
                let counted = world.metric("us-1", "tidegate_gossip_rejected_total", &labels);
                if counted.await == 0 {
                    return Err(format!("no {reason}"));
                }
            }
            Ok(())
        })
        .await;
    assert!(stranger.is_connected());
    let mut passed = 0;
    while check(&mut client, SHARED).await.status == 200 {
        passed += 1;
    }
    assert_eq!(passed, left);
    let after = world.key("us", ("shared", "strict")).await;
    for name in ["share_ppm", "capacity"] {
        assert_eq!(after["bucket"][name], before["bucket"][name], "{after:#}");
    }
    for node in &mut world.nodes {
        assert!(node.runs(), "{}", node.log());
    }
}

/// Rows that `eu` cannot mean, each newer than the one before.
fn impossible(honest: &Row) -> Vec<Row> {
    let version = |n| Sequence {
        n: honest.version.n + n,
        ..honest.version
    };
    let grant = Grant {
        sequence: honest.version,
        share: Share(1 << 50),
        basis: honest.entries[0].seen,
        ttl: Duration::from_secs(2),
        tokens: Level(1 << 50),
        dead: Level(0),
    };
    let mut too_much = honest.clone();
    too_much.version = version(1);
    too_much.entries[0].grant = Some(grant);
    let from_nowhere = Row {
        region: RegionId(9),
        ..honest.clone()
    };
    let huge = Row {
        version: version(2),
        share: Share(1 << 60),
        ..honest.clone()
    };
    let other_terms = Row {
        version: version(3),
        terms: honest.terms + 1,
        ..honest.clone()
    };
    vec![too_much, from_nowhere, huge, other_terms]
}

/// What `eu` could say of a key.
fn row(key: &serde_json::Value) -> Row {
    let policies = PolicySet::parse(POLICIES, "policies.toml").expect("good");
    let policy = policies.by_name("shared", "strict").expect("there");
    let clock = now();
    let seen = Stamp {
        generation: Generation(key["generation"].as_u64().expect("a generation")),
        clock: Timestamp(key["at_us"].as_u64().expect("an instant")),
    };
    let entry = Entry {
        region: US,
        seen,
        ..Entry::default()
    };
    let generation = Generation(clock - 1_000_000);
    Row {
        region: EU,
        terms: policy.terms(),
        version: Sequence {
            generation,
            n: clock,
        },
        clock: Timestamp(clock),
        demand: Share(0),
        share: Share(0),
        level: Level(0),
        admitted: 0,
        entries: vec![entry],
    }
}

fn key(key: &serde_json::Value) -> Key {
    let policies = PolicySet::parse(POLICIES, "policies.toml").expect("good");
    let policy = policies.by_name("shared", "strict").expect("there");
    let client = key["key"].as_str().expect("a hash");
    Key {
        client: ClientHash(u128::from_str_radix(client, 16).expect("a hash")),
        policy: policy.id(),
    }
}

/// Asks once; whether the store decided. It passes in any case.
async fn passes_by_store(client: &mut Client) -> bool {
    let answer = check(client, SLOW).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["policies"][0]["decided_at_us"].is_u64()
}

/// What `us` has left for the customer, in whole tokens.
async fn tokens(world: &World, domain: &str, policy: &str) -> Option<u64> {
    world.key("us", (domain, policy)).await["bucket"]["tokens"].as_u64()
}
