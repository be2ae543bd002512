//! The Redis store over links that break, and what a shard finds of an older memory.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use region::ledger::Ledger;
use region::store::redis::{RedisStore, Settings};
use region::store::{Change, ShardId, Store, StoreError, Swap, Swapped, Take};
use region::units::{Sequence, Stamp, Ticks};
use tokio::io::copy;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::server::{PATIENCE, Server, settings};
use crate::support::{answer, base, key, limit, take};

const SHARD: ShardId = ShardId(0);

fn one() -> Take {
    take(key(1, 1), &limit(10, 3_600_000, 10), 1)
}

async fn remaining(store: &RedisStore) -> u64 {
    let ten = limit(10, 3_600_000, 10);
    let look = take(key(1, 1), &ten, 0);
    let taken = store.take(SHARD, &[look]).await.expect("an answer");
    answer(&look, &ten, &taken).remaining
}

/// Passes everything on to a server, until it is told to swallow the answers.
struct Proxy {
    port: u16,
    swallows: Arc<AtomicBool>,
    _passing: JoinSet<()>,
}

impl Proxy {
    async fn before(server: &Server) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let swallows = Arc::new(AtomicBool::new(false));
        let (to, swallowing) = (server.port(), swallows.clone());
        let mut passing = JoinSet::new();
        passing.spawn(async move {
            let mut links = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect((Ipv4Addr::LOCALHOST, to))
                    .await
                    .expect("the server");
                let swallowing = swallowing.clone();
                links.spawn(pass(near, far, swallowing));
            }
        });
        Self {
            port,
            swallows,
            _passing: passing,
        }
    }
}

async fn pass(near: TcpStream, far: TcpStream, swallowing: Arc<AtomicBool>) {
    let (mut from_near, to_near) = near.into_split();
    let (from_far, mut to_far) = far.into_split();
    let answers = async {
        let mut bytes = [0; 4_096];
        loop {
            from_far.readable().await.expect("a socket");
            let Ok(count) = from_far.try_read(&mut bytes) else {
                continue;
            };
            if count == 0 {
                break;
            }
            if !swallowing.load(Ordering::Relaxed) {
                to_near.writable().await.expect("a socket");
                to_near.try_write(&bytes[..count]).ok();
            }
        }
    };
    tokio::join!(answers, copy(&mut from_near, &mut to_far))
        .1
        .ok();
}

#[tokio::test]
async fn take_whose_answer_is_lost_counts_once() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let url = format!("redis://127.0.0.1:{}/", proxy.port);
    let through = RedisStore::connect(Settings {
        deadline: Duration::from_millis(200),
        ..settings(&[("a", url)])
    })
    .await
    .expect("a store");
    let direct = server.store().await;
    assert_eq!(remaining(&direct).await, 10);
    proxy.swallows.store(true, Ordering::Relaxed);
    for left in [9, 8] {
        let lost = through.take(SHARD, &[one()]).await;
        assert_eq!(lost, Err(StoreError::Timeout));
        assert_eq!(remaining(&direct).await, left);
    }
    proxy.swallows.store(false, Ordering::Relaxed);
    let start = std::time::Instant::now();
    while through
        .take(
            SHARD,
            &[Take {
                cost: region::units::Tokens(0),
                ..one()
            }],
        )
        .await
        .is_err()
    {
        assert!(start.elapsed() < PATIENCE, "the link never recovers");
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(remaining(&through).await, 8, "nothing was repeated");
}

#[tokio::test]
async fn case_22_killed_connection_is_replaced() {
    let server = Server::start();
    let store = server.store().await;
    server.ask::<()>("CLIENT KILL TYPE normal");
    let start = std::time::Instant::now();
    while store.take(SHARD, &[one()]).await.is_err() {
        assert!(
            start.elapsed() < PATIENCE,
            "the connection is never replaced"
        );
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(store.stats()[0].connections, 2);
}

#[tokio::test]
async fn case_15_clients_that_vanish_in_the_middle_leave_no_key_without_an_end() {
    let server = Server::start();
    let mut clients = JoinSet::new();
    for client in 0..16_u128 {
        let settings = server.settings();
        clients.spawn(async move {
            let store = RedisStore::connect(settings).await.expect("a store");
            for i in 0..10_000 {
                let take = Take {
                    key: key(client * 10_000 + i % 50, 1),
                    ..one()
                };
                store.take(SHARD, &[take]).await.expect("an answer");
            }
        });
    }
    while server.ask::<u64>("DBSIZE") < 400 {
        sleep(Duration::from_millis(5)).await;
    }
    clients.shutdown().await;
    let keys: Vec<String> = server.ask("KEYS *");
    let ends = keys
        .iter()
        .map(|key| server.ask::<i64>(&format!("PTTL {key}")));
    assert!(ends.into_iter().all(|end| end != -1));
}

fn swap_of(expected: Option<Sequence>, at: Stamp) -> Swap {
    let base = base(&limit(10, 3_600_000, 10));
    Swap {
        key: key(1, 1),
        base,
        expected,
        ledger: Ledger {
            version: expected.unwrap_or_default().next(at),
            ..Ledger::default()
        },
        change: Change::default(),
        pieces: vec![region::bucket::Piece {
            until: Ticks::NEVER,
            share: base.share,
            capacity: base.capacity,
        }],
        keep: Duration::from_secs(600),
    }
}

#[tokio::test]
async fn ledger_of_an_older_memory_is_none_but_its_version_must_be_named() {
    let mut server = Server::with(&["--dbfilename", "dump.rdb"]);
    let base = base(&limit(10, 3_600_000, 10));
    let store = server.store().await;
    let loaded = store.load(key(1, 1), &base).await.expect("an answer");
    let first = swap_of(None, loaded.stamp);
    let swapped = store.swap(&first).await;
    assert!(matches!(swapped, Ok(Swapped::Done { .. })), "{swapped:?}");
    drop(store);
    server.ask::<()>("SAVE");
    server.kill();
    server.restart();
    let store = server.store().await;
    let loaded = store.load(key(1, 1), &base).await.expect("an answer");
    assert_eq!(
        (loaded.version, loaded.ledger),
        (Some(first.ledger.version), None)
    );
    assert_eq!(loaded.bucket.count, None);
    let nameless = store.swap(&swap_of(None, loaded.stamp)).await;
    assert!(
        matches!(nameless, Ok(Swapped::Conflict { .. })),
        "{nameless:?}"
    );
    let late = Swap {
        expected: loaded.version,
        ..first
    };
    let late = store.swap(&late).await;
    assert!(
        matches!(late, Ok(Swapped::Conflict { .. })),
        "worked out in the older memory"
    );
    let next = swap_of(loaded.version, loaded.stamp);
    let swapped = store.swap(&next).await;
    assert!(matches!(swapped, Ok(Swapped::Done { .. })), "{swapped:?}");
    let ends = [":l", ""].map(|end| {
        let keys: Vec<String> = server.ask("KEYS tg:{*");
        let key = keys
            .into_iter()
            .find(|key| key.ends_with(":l") != end.is_empty());
        server.ask::<i64>(&format!("PTTL {}", key.expect("both are there")))
    });
    assert!(
        ends[0] > 0 && ends[0] <= ends[1],
        "a bucket outlives its ledger: {ends:?}"
    );
}
