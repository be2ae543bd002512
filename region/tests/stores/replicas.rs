//! The Redis store on a shard with a replica: what was written is known to be there, or it is not.

use std::time::{Duration, Instant};

use region::store::redis::RedisStore;
use region::store::{ShardId, Store, StoreError};
use region::units::Client;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::server::{PATIENCE, Server};
use crate::support::{key, limit, take};

const SHARD: ShardId = ShardId(0);
const CLIENT: Client = Client(1);

/// A primary and its replica, and the store once it knows of it.
async fn followed() -> (Server, Server, RedisStore) {
    let primary = Server::with(&["--repl-diskless-sync-delay", "0"]);
    let port = primary.port().to_string();
    let replica = Server::with(&["--replicaof", "127.0.0.1", &port]);
    let store = primary.store().await;
    until_replicas(&store, 1).await;
    (primary, replica, store)
}

async fn until_replicas(store: &RedisStore, count: u64) {
    let start = Instant::now();
    while store.stats()[0].replicas != count {
        assert!(start.elapsed() < PATIENCE, "{:?}", store.stats());
        sleep(Duration::from_millis(20)).await;
    }
}

/// How often the server was asked to wait.
fn waits(server: &Server) -> u64 {
    let stats: String = server.ask("INFO commandstats");
    let wait = stats.split("cmdstat_wait:calls=").nth(1);
    let calls = wait.and_then(|rest| rest.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

#[tokio::test]
async fn shard_without_a_replica_waits_for_none() {
    let server = Server::start();
    let store = server.store().await;
    assert_eq!(store.replicated(CLIENT).await, Ok(true));
    assert_eq!((waits(&server), store.stats()[0].replicas), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_that_is_stopped_acknowledges_nothing_and_delays_no_decision() {
    let (primary, mut replica, store) = followed().await;
    let ten = limit(10, 3_600_000, 10);
    assert_eq!(store.replicated(CLIENT).await, Ok(true));
    replica.signal("STOP");
    let mut decisions = 0;
    for round in 0..10 {
        let mut waiting = std::pin::pin!(store.replicated(CLIENT));
        let outcome = loop {
            let cost = 0;
            let look = [take(key(round, 1), &ten, cost)];
            tokio::select! {
                outcome = &mut waiting => break outcome,
                taken = store.take(SHARD, &look) => taken.map(drop).expect("an answer"),
            }
            decisions += 1;
        };
        assert_eq!(outcome, Ok(false), "round {round}");
    }
    // One connection for both would let at most one through each time.
    assert!(decisions > 100, "{decisions} decisions in 10 waits");
    replica.signal("CONT");
    let start = Instant::now();
    while store.replicated(CLIENT).await != Ok(true) {
        assert!(start.elapsed() < PATIENCE, "the replica goes on");
    }
    replica.kill();
    until_replicas(&store, 0).await;
    assert_eq!(store.replicated(CLIENT).await, Ok(true), "there is none");
    drop(primary);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_wait_answers_all_who_had_asked_before_it() {
    let (primary, replica, store) = followed().await;
    let store = std::sync::Arc::new(store);
    replica.signal("STOP");
    let before = waits(&primary);
    let mut asked = JoinSet::new();
    for _ in 0..200 {
        let store = std::sync::Arc::clone(&store);
        asked.spawn(async move { store.replicated(CLIENT).await });
    }
    let outcomes = asked.join_all().await;
    assert!(outcomes.iter().all(|outcome| *outcome == Ok(false)));
    let waits = waits(&primary) - before;
    assert!((1..20).contains(&waits), "{waits} waits for 200");
}

#[tokio::test]
async fn shard_that_has_forgotten_has_nothing_replicated() {
    let (primary, _replica, store) = followed().await;
    primary.ask::<()>("DEL tg:marker");
    let outcome = store.replicated(CLIENT).await;
    // Unless a beat has begun a new generation meanwhile.
    let anew = store.stats()[0].memory;
    assert!(
        outcome == Err(StoreError::Forgotten) || outcome == Ok(true) && anew.is_some(),
        "{outcome:?}"
    );
}
