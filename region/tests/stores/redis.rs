//! The Redis store and what befalls its shards.

use std::time::{Duration, Instant};

use region::limit::Limit;
use region::store::record::Record;
use region::store::redis::{ConnectError, RedisStore, Settings};
use region::store::{ShardId, Store, StoreError, Take};
use region::units::{Generation, Key, Level, Ticks, Tokens};
use tokio::time::sleep;

use crate::server::{PATIENCE, Server, settings};
use crate::support::{answer, key, limit, take};

const SHARD: ShardId = ShardId(0);

/// Ten tokens that take an hour to come back.
fn ten() -> Limit {
    limit(10, 3_600_000, 10)
}

fn one(key: Key) -> Take {
    take(key, &ten(), 1)
}

async fn ask(store: &RedisStore, take: Take) -> Result<bool, StoreError> {
    let taken = store.take(SHARD, &[take]).await?;
    Ok(taken.keys[0].affords)
}

async fn remaining(store: &RedisStore, key: Key) -> u64 {
    let look = take(key, &ten(), 0);
    let taken = store.take(SHARD, &[look]).await.expect("an answer");
    answer(&look, &ten(), &taken).remaining
}

fn generation(store: &RedisStore) -> Option<Generation> {
    store.stats()[0].memory.map(|memory| memory.generation)
}

/// Waits until something holds; how long it took.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        sleep(Duration::from_millis(5)).await;
    }
    start.elapsed()
}

/// Waits until the shard has begun another generation than this one, and answers.
async fn forgotten(store: &RedisStore, before: Option<Generation>) -> Duration {
    until("a new generation", async || {
        let answers = ask(store, take(key(9, 9), &ten(), 0)).await.is_ok();
        answers && generation(store) > before
    })
    .await
}

#[tokio::test]
async fn cold_key_is_small() {
    let server = Server::start();
    let store = server.store().await;
    for client in 0..20 {
        ask(&store, one(key(client, 1))).await.expect("an answer");
    }
    for key in server.ask::<Vec<String>>("KEYS tg:{*") {
        let usage: u64 = server.ask(&format!("MEMORY USAGE {key}"));
        assert!(usage <= 128, "{usage} bytes");
    }
}

#[tokio::test]
async fn look_writes_nothing_and_a_denial_neither() {
    let server = Server::start();
    let store = server.store().await;
    assert_eq!(remaining(&store, key(1, 1)).await, 10);
    assert_eq!(ask(&store, take(key(1, 1), &ten(), 11)).await, Ok(false));
    assert_eq!(server.ask::<u64>("DBSIZE"), 1, "the marker alone");
    assert_eq!(ask(&store, one(key(1, 1))).await, Ok(true));
    assert_eq!(remaining(&store, key(1, 1)).await, 9);
}

/// The clock of a server cannot be set back; a bucket that is settled ahead of it is the same.
#[tokio::test]
async fn case_01_clock_that_steps_back_starves_nobody() {
    let server = Server::start();
    let store = server.store().await;
    let one = take(key(1, 1), &limit(10, 10_000, 10), 1);
    let taken = store.take(SHARD, &[one]).await.expect("an answer");
    let names: Vec<String> = server.ask("KEYS tg:{*");
    let name = &names[0];
    let settled_ahead = |micros: u64| {
        let bytes: Vec<u8> = server.ask(&format!("GET {name}"));
        let mut record = Record::decode(&bytes, one.base.capacity).expect("a record");
        record.bucket.at = Ticks(taken.stamp.clock.0 + micros);
        record.bucket.level = Level::ZERO;
        redis::cmd("SET")
            .arg(name)
            .arg(record.encode())
            .arg("PX")
            .arg(600_000)
            .exec(&mut server.connection())
            .expect("an answer");
        record.bucket.at
    };
    let at = settled_ahead(4_000_000);
    let slightly = store.take(SHARD, &[one]).await.expect("an answer");
    assert_eq!(
        (slightly.keys[0].affords, slightly.keys[0].bucket.at),
        (false, at)
    );
    let at = settled_ahead(3_600_000_000);
    let far = store.take(SHARD, &[one]).await.expect("an answer");
    assert!(!far.keys[0].affords && far.keys[0].bucket.at < at);
    until("the bucket fills again", async || {
        ask(&store, one).await == Ok(true)
    })
    .await;
}

#[tokio::test]
async fn case_15_every_key_has_an_end_and_one_without_gets_it_back() {
    let server = Server::start();
    let store = server.store().await;
    for client in 0..50 {
        ask(&store, one(key(client, 1))).await.expect("an answer");
    }
    let ends = || -> Vec<i64> {
        let keys: Vec<String> = server.ask("KEYS *");
        keys.iter()
            .map(|key| server.ask(&format!("PTTL {key}")))
            .collect()
    };
    assert_eq!(ends().len(), 51);
    assert!(ends().iter().all(|end| *end > 0));
    for key in server.ask::<Vec<String>>("KEYS tg:{*") {
        server.ask::<()>(&format!("PERSIST {key}"));
    }
    for client in 0..50 {
        let cost = u64::try_from(client % 3).expect("small") * 10;
        ask(&store, take(key(client, 1), &ten(), cost))
            .await
            .expect("an answer");
    }
    let within = |end: &i64| (1..=7 * 86_400_000).contains(end);
    assert!(ends().iter().all(within), "{:?}", ends());
}

#[tokio::test]
async fn case_15_script_with_a_bad_time_to_live_fails_before_it_writes() {
    let server = Server::start();
    let store = server.store().await;
    ask(&store, one(key(1, 1))).await.expect("an answer");
    let size: u64 = server.ask("DBSIZE");
    // As long as a base, but with nothing in the place of the time to keep.
    let mut packed = vec![0_u8; 57 + 13];
    packed[7] = 1;
    packed[56] = 0;
    let marker: Vec<u8> = server.ask("GET tg:marker");
    let script = concat!(
        include_str!("../../src/store/redis/record.lua"),
        include_str!("../../src/store/redis/take.lua")
    );
    let error = redis::cmd("EVAL")
        .arg(script)
        .arg(2)
        .arg("tg:marker")
        .arg("tg:{x}:1")
        .arg(&marker[..7])
        .arg(packed)
        .query::<redis::Value>(&mut server.connection())
        .expect_err("a time to live of nothing");
    assert!(error.to_string().contains("kept for a time"), "{error}");
    assert_eq!(server.ask::<u64>("DBSIZE"), size);
}

#[tokio::test]
async fn case_17_scripts_are_loaded_again_and_every_take_counts_once() {
    let mut server = Server::start();
    let store = std::sync::Arc::new(server.store().await);
    let wide = limit(1_000, 3_600_000, 1_000);
    let hundred = async |store: &std::sync::Arc<RedisStore>| {
        let mut takes = tokio::task::JoinSet::new();
        for _ in 0..100 {
            let store = store.clone();
            takes.spawn(async move { ask(&store, take(key(1, 1), &wide, 1)).await });
        }
        let answers = takes.join_all().await;
        assert!(
            answers.iter().all(|answer| *answer == Ok(true)),
            "{answers:?}"
        );
        let look = take(key(1, 1), &wide, 0);
        let taken = store.take(SHARD, &[look]).await.expect("an answer");
        1_000 - answer(&look, &wide, &taken).remaining
    };
    server.ask::<()>("SCRIPT FLUSH");
    assert_eq!(hundred(&store).await, 100);
    let reloads = store.stats()[0].script_reloads;
    assert!((1..=10).contains(&reloads), "{reloads}");
    drop(store);
    server.kill();
    server.restart();
    let store = std::sync::Arc::new(server.store().await);
    assert_eq!(hundred(&store).await, 100);
}

#[tokio::test]
async fn case_20_shards_share_the_clients_and_a_new_one_takes_only_its_part() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let named = |count: usize| {
        let urls = servers.iter().map(Server::url);
        let shards: Vec<_> = ["a", "b", "c"].into_iter().zip(urls).take(count).collect();
        settings(&shards)
    };
    let three = RedisStore::connect(named(3)).await.expect("a store");
    for client in 0..30 {
        let take = one(key(client, 1));
        let shard = three.shard(take.key.client);
        assert!(three.take(shard, &[take]).await.expect("an answer").keys[0].affords);
    }
    let sizes: Vec<u64> = servers.iter().map(|server| server.ask("DBSIZE")).collect();
    assert_eq!(sizes.iter().sum::<u64>(), 33, "{sizes:?}");
    let two = RedisStore::connect(named(2)).await.expect("a store");
    assert!(
        generation(&two) > generation(&three),
        "another map is a loss of memory"
    );
    let mut kept = [0; 3];
    for client in 0..3_000 {
        let client = key(client, 0).client;
        let (before, after) = (two.shard(client), three.shard(client));
        assert!(
            after == before || after == ShardId(2),
            "only the new shard takes over"
        );
        kept[usize::from(after.0)] += 1;
    }
    assert!(
        kept.iter().all(|count| (800..1_200).contains(count)),
        "{kept:?}"
    );
}

#[tokio::test]
async fn flush_begins_a_new_generation_in_which_keys_start_empty() {
    let server = Server::start();
    let store = server.store().await;
    let before = generation(&store);
    assert_eq!(remaining(&store, key(1, 1)).await, 10);
    server.ask::<()>("FLUSHALL");
    assert_eq!(
        ask(&store, one(key(1, 1))).await,
        Err(StoreError::Forgotten)
    );
    forgotten(&store, before).await;
    assert_eq!(
        ask(&store, one(key(1, 1))).await,
        Ok(false),
        "empty, not full"
    );
}

#[tokio::test]
async fn restarted_shard_is_found_again_and_has_a_new_generation() {
    let mut server = Server::start();
    let store = server.store().await;
    let before = generation(&store);
    server.kill();
    until("the loss is seen", async || {
        ask(&store, one(key(1, 1))).await == Err(StoreError::Unreachable)
    })
    .await;
    server.restart();
    let took = forgotten(&store, before).await;
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert_eq!(
        ask(&store, one(key(1, 1))).await,
        Ok(false),
        "empty, not full"
    );
}

#[tokio::test]
async fn restored_snapshot_does_not_pass_for_memory() {
    let mut server = Server::with(&["--dbfilename", "dump.rdb"]);
    let store = server.store().await;
    let before = generation(&store);
    ask(&store, one(key(1, 1))).await.expect("an answer");
    server.ask::<()>("SAVE");
    ask(&store, one(key(1, 1))).await.expect("an answer");
    server.kill();
    server.restart();
    let sizes: u64 = server.ask("DBSIZE");
    assert_eq!(sizes, 2, "marker and bucket are back");
    forgotten(&store, before).await;
    assert_eq!(ask(&store, one(key(1, 1))).await, Ok(false), "empty, not 9");
}

#[cfg(feature = "mutants")]
#[tokio::test]
async fn run_id_is_planted_to_be_ignored_and_a_snapshot_passes_for_memory() {
    use region::mutant::{Mutant, plant};

    plant(Some(Mutant::RunIdIgnored));
    let mut server = Server::with(&["--dbfilename", "dump.rdb"]);
    let before = generation(&server.store().await);
    server.ask::<()>("SAVE");
    server.kill();
    server.restart();
    assert_eq!(generation(&server.store().await), before);
}

#[tokio::test]
async fn attached_replica_forgets_nothing_but_a_promotion_may_have() {
    let (server, other) = (Server::start(), Server::start());
    let store = server.store().await;
    let before = generation(&store);
    other.ask::<()>(&format!("REPLICAOF 127.0.0.1 {}", server.port()));
    until("the replica follows", async || {
        other
            .ask::<String>("INFO replication")
            .contains("master_link_status:up")
    })
    .await;
    let again = server.store().await;
    assert_eq!(generation(&again), before);
    other.ask::<()>("REPLICAOF NO ONE");
    let promoted = other.store().await;
    assert!(generation(&promoted) > before);
    server.ask::<()>(&format!("REPLICAOF 127.0.0.1 {}", other.port()));
    until("a replica refuses", async || {
        ask(&store, one(key(1, 1))).await == Err(StoreError::Refused)
    })
    .await;
    server.ask::<()>("REPLICAOF NO ONE");
    forgotten(&store, before).await;
}

#[tokio::test]
async fn stalled_shard_times_out_and_recovers_by_itself() {
    let server = Server::start();
    let store = RedisStore::connect(Settings {
        deadline: Duration::from_millis(100),
        ..server.settings()
    })
    .await
    .expect("a store");
    assert_eq!(ask(&store, one(key(1, 1))).await, Ok(true));
    server.signal("STOP");
    let start = Instant::now();
    assert_eq!(ask(&store, one(key(1, 1))).await, Err(StoreError::Timeout));
    assert!(start.elapsed() < Duration::from_secs(1));
    server.signal("CONT");
    until("answers again", async || {
        ask(&store, one(key(1, 1))).await.is_ok()
    })
    .await;
    assert_eq!(
        store.stats()[0].connections,
        1,
        "a timeout alone drops no connection"
    );
    server.signal("STOP");
    until("the half-open connection is found", async || {
        ask(&store, one(key(1, 1))).await == Err(StoreError::Unreachable)
    })
    .await;
    server.signal("CONT");
    until("answers again", async || {
        ask(&store, one(key(1, 1))).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn case_24_full_shard_is_no_verdict() {
    let server = Server::start();
    let store = server.store().await;
    assert_eq!(ask(&store, one(key(1, 1))).await, Ok(true));
    server.ask::<()>("CONFIG SET maxmemory 1");
    assert_eq!(ask(&store, one(key(1, 1))).await, Err(StoreError::Full));
    assert_eq!(remaining(&store, key(1, 1)).await, 9);
    server.ask::<()>("CONFIG SET maxmemory 0");
    assert_eq!(ask(&store, one(key(1, 1))).await, Ok(true));
}

#[tokio::test]
async fn shard_that_may_evict_is_refused_by_name_unless_that_is_accepted() {
    let server = Server::with(&["--maxmemory-policy", "allkeys-lru"]);
    let error = RedisStore::connect(server.settings())
        .await
        .expect_err("it may evict");
    assert!(
        matches!(&error, ConnectError::Evicts { name, .. } if name == "a"),
        "{error}"
    );
    assert!(error.to_string().contains("allkeys-lru"), "{error}");
    let accepting = Settings {
        accept_eviction: true,
        ..server.settings()
    };
    let store = RedisStore::connect(accepting).await.expect("a store");
    assert!(store.stats()[0].evicts);
    assert_eq!(ask(&store, one(key(1, 1))).await, Ok(true));
}

#[tokio::test]
async fn shard_that_is_down_at_the_start_is_connected_when_it_comes() {
    let mut server = Server::start();
    server.kill();
    let store = server.store().await;
    assert_eq!(
        ask(&store, one(key(1, 1))).await,
        Err(StoreError::Unreachable)
    );
    server.restart();
    until("it comes", async || {
        ask(&store, one(key(1, 1))).await == Ok(true)
    })
    .await;
}

#[tokio::test]
async fn two_nodes_at_once_agree_on_one_generation() {
    let server = Server::start();
    for _ in 0..10 {
        server.ask::<()>("FLUSHALL");
        let (one, two) = tokio::join!(server.store(), server.store());
        assert_eq!(generation(&one), generation(&two));
        assert!(generation(&one).is_some());
    }
}

#[tokio::test]
async fn shard_without_a_marker_starts_empty_unless_declared_new() {
    let server = Server::start();
    let store = RedisStore::connect(Settings {
        first_start: false,
        ..server.settings()
    })
    .await
    .expect("a store");
    let taken = store
        .take(SHARD, &[one(key(1, 1))])
        .await
        .expect("an answer");
    assert!(!taken.keys[0].affords);
    assert_eq!(Tokens(0), ten().tokens(taken.keys[0].bucket.level));
}

#[tokio::test]
async fn marker_that_is_not_ours_counts_as_forgotten_and_not_for_ever() {
    let server = Server::start();
    let store = server.store().await;
    // A generation beyond what a script can count exactly would be outgrown by none.
    for planted in [
        r#"return redis.call('SETRANGE', 'tg:marker', 0, '\255\255\255')"#,
        r#"return redis.call('SETRANGE', 'tg:marker', 0, '\031\255\255\255\255\255\255')"#,
        r#"redis.call('DEL', 'tg:marker') return redis.call('LPUSH', 'tg:marker', 'x')"#,
    ] {
        let before = generation(&store);
        redis::cmd("EVAL")
            .arg(planted)
            .arg(0)
            .query::<i64>(&mut server.connection())
            .expect("planted");
        forgotten(&store, before).await;
        assert!(generation(&store) < Some(Generation(1 << 52)));
    }
}
