//! (7) One shard of two is lost: what the policies say happens, other keys do not notice, and when
//! it comes back empty nothing is used that could have been lent.

use std::time::{Duration, Instant};

use crate::world::{Answer, Client, Load, NODES_MAX, PATIENCE, World, check, now};
use crate::{LENT_MAX, TOO_MUCH, gets, micros};

/// Longer than a call to a shard that answers takes, and half of what one to a shard that hangs
/// may take.
const UNNOTICED_MAX: Duration = Duration::from_millis(500);

/// What one node may give away by the policy `local`: its part of the capacity of `us`, which is
/// the floor of 5 % and half of what is dealt by weight.
const LOCAL_BURST: usize = (20 + 170) / NODES_MAX;

/// `lost` is the shard of `us` that holds the key under load.
pub(crate) async fn shard_is_lost_and_comes_back_empty(
    world: &mut World,
    load: &Load,
    lost: &'static str,
) {
    load.offer(&[("us", TOO_MUCH)]);
    let mut client = Client::new(world.node("us-1").addresses.http);
    let (gone, other) = customers(world, &mut client, lost).await;
    let before = generation(world).await;
    world.shard("us", lost).kill();
    let began = Instant::now();
    while ask(&mut client, "closed", &gone).await.status != 503 {
        assert!(began.elapsed() < PATIENCE, "the loss is not noticed");
    }
    policies_do_what_they_say(world, &mut client, &gone).await;
    other_keys_do_not_notice(&mut client, &other).await;
    let refused = load.refusals("us").degraded;
    assert!(refused > 0, "{}", load.describe());

    // Nobody can say what it holds, or lend: then the whole lifetime is waited for.
    world.cut(&[("us", "ap"), ("us", "eu")]).await;
    let down = now();
    world.shard("us", lost).restart();
    world
        .eventually("(7) the shard is used again", async |world| {
            let after = generation(world).await;
            (after > before)
                .then_some(())
                .ok_or_else(|| format!("{after:?}"))
        })
        .await;
    let empty_until = generation(world).await.expect("just seen") + micros(LENT_MAX);
    if now() < empty_until - 1_000_000 {
        let answer = ask(&mut client, "closed", &gone).await;
        assert_eq!(
            (answer.status, degraded(&answer)),
            (429, false),
            "{answer:?}"
        );
    }
    world
        .eventually("(7) us has 80 % of its base share", async |_| {
            gets(load, "us", (40, empty_until))
        })
        .await;
    assert_eq!(load.admitted("us", down..empty_until), 0);
    world.cut(&[]).await;
    let healed = now();
    world
        .eventually("(7) us has 90 % of the limit", async |_| {
            gets(load, "us", (90, healed))
        })
        .await;
    load.offer(&[]);
}

async fn policies_do_what_they_say(world: &World, client: &mut Client, gone: &str) {
    for _ in 0..20 {
        let closed = ask(client, "closed", gone).await;
        assert_eq!(
            (closed.status, degraded(&closed)),
            (503, true),
            "{closed:?}"
        );
        let open = ask(client, "open", gone).await;
        assert_eq!((open.status, degraded(&open)), (200, true), "{open:?}");
    }
    let mut passed = 0;
    for _ in 0..2 * LOCAL_BURST {
        let local = ask(client, "local", gone).await;
        assert!(degraded(&local), "{local:?}");
        passed += usize::from(local.status == 200);
    }
    // A token comes every two minutes, and this takes a few seconds.
    assert!(
        (LOCAL_BURST..=LOCAL_BURST + 1).contains(&passed),
        "{passed}"
    );
    for mode in ["closed", "open", "local"] {
        let labels = format!("mode=\"{mode}\"");
        let counted = world.metric("us-1", "tidegate_fallback_total", &labels);
        assert!(counted.await >= 20, "{mode}");
    }
}

async fn other_keys_do_not_notice(client: &mut Client, other: &str) {
    let mut slowest = Duration::ZERO;
    for _ in 0..30 {
        let began = Instant::now();
        let answer = ask(client, "open", other).await;
        slowest = slowest.max(began.elapsed());
        assert_eq!(
            (answer.status, degraded(&answer)),
            (200, false),
            "{answer:?}"
        );
    }
    println!("(7) the slowest answer about another key took {slowest:?}");
    assert!(slowest < UNNOTICED_MAX, "{slowest:?}");
}

/// A customer whose keys are on a shard of `us`, and one whose keys are not.
async fn customers(world: &mut World, client: &mut Client, shard: &str) -> (String, String) {
    let (mut on, mut off) = (None, None);
    for number in 0..100 {
        let customer = format!("customer-{number}");
        let before = world.shard("us", shard).keys();
        let answer = ask(client, "open", &customer).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        if world.shard("us", shard).keys() > before {
            on.get_or_insert(customer);
        } else {
            off.get_or_insert(customer);
        }
        if let (Some(on), Some(off)) = (&on, &off) {
            return (on.clone(), off.clone());
        }
    }
    panic!("all keys are on one shard");
}

/// The generation of the memory of the shard under load.
async fn generation(world: &World) -> Option<u64> {
    let key = world.key("us", ("api", "strict")).await;
    key["generation"].as_u64()
}

async fn ask(client: &mut Client, mode: &str, customer: &str) -> Answer {
    let body = format!(
        r#"{{"domain":"outage","attributes":{{"mode":"{mode}","customer":"{customer}"}}}}"#
    );
    check(client, &body).await
}

fn degraded(answer: &Answer) -> bool {
    answer.json()["degraded"] == true
}
