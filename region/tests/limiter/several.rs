//! Requests that several keys decide on: all must pass, else nothing is consumed.

use super::*;
use region::policy::Attributes;

fn remaining(answer: &Answer) -> Vec<u64> {
    let verdicts = answer.subjects.iter().flatten();
    verdicts
        .map(|verdict| verdict.decision.remaining.0)
        .collect()
}

#[test]
fn check_of_two_policies_of_one_client_takes_from_both_or_from_none() {
    let text = ALONE.to_owned()
        + &policy("burst", "rate = 5\nper = \"1s\"")
        + &policy("quota", "rate = 8\nper = \"1h\"");
    let world = World::new(&text);
    assert_eq!(remaining(&world.check("c", 5)), [0, 3]);
    let denied = world.check("c", 1);
    assert!(!denied.allowed);
    assert_eq!(remaining(&denied), [0, 3], "the quota has lost nothing");
    let allowed = denied.subjects[0]
        .iter()
        .map(|verdict| verdict.decision.allowed);
    assert_eq!(allowed.collect::<Vec<_>>(), [false, true]);
    let strictest = denied.strictest().expect("two verdicts");
    assert_eq!(strictest.policy, 0);
    world.at(1_000_000);
    assert_eq!(remaining(&world.check("c", 3)), [2, 0]);
    assert_eq!(
        world
            .check("c", 1)
            .strictest()
            .map(|verdict| verdict.policy),
        Some(1)
    );
}

#[test]
fn check_over_shards_gives_back_what_one_took_when_another_denies() {
    let text = ALONE.to_owned() + &policy("p", "rate = 10\nper = \"1h\"");
    let world = World::new(&text);
    let [a, b, c] = world.clients();
    assert!(world.check(&b, 8).allowed);
    let all: [(&[(&str, &str)], u64); 3] = [
        (&[("customer", &a)], 5),
        (&[("customer", &b)], 5),
        (&[("customer", &c)], 5),
    ];
    let denied = world.check_all(&all);
    assert!(!denied.allowed);
    assert_eq!(remaining(&denied), [10, 2, 10]);
    for (client, left) in [(&a, 10), (&b, 2), (&c, 10)] {
        assert_eq!(remaining(&world.check(client, 0)), [left], "{client}");
    }
    world.at(3_600_000_000);
    assert_eq!(remaining(&world.check_all(&all)), [5, 5, 5]);
}

#[test]
fn check_adds_up_what_several_subjects_cost_one_key() {
    let world = World::new(&(ALONE.to_owned() + &policy("p", "rate = 10\nper = \"1h\"")));
    let c: &[_] = &[("customer", "c")];
    let other: &[_] = &[("customer", "other")];
    let denied = world.check_all(&[(c, 6), (other, 1), (c, 5)]);
    assert!(!denied.allowed);
    assert_eq!(remaining(&denied), [10, 10, 10]);
    assert!(!denied.subjects[0][0].decision.allowed);
    assert!(!denied.subjects[2][0].decision.allowed);
    assert_eq!(remaining(&world.check_all(&[(c, 6), (c, 4)])), [0, 0]);
    let overflowing = world.check_all(&[(other, u64::MAX), (other, u64::MAX)]);
    assert!(!overflowing.allowed);
}

#[test]
fn check_with_a_policy_that_denies_asks_no_store() {
    let text = ALONE.to_owned()
        + &policy("p", "rate = 10\nper = \"1h\"")
        + &policy(
            "blocked",
            "rate = 0\nmatch = [{ attribute = \"plan\", equals = \"none\" }]",
        );
    let world = World::new(&text);
    let blocked: &[_] = &[("customer", "c"), ("plan", "none")];
    let answer = world.check_all(&[(blocked, 1), (&[("customer", "c")], 1)]);
    assert!(!answer.allowed);
    let policies = answer.subjects.iter().map(|verdicts| {
        let policies = verdicts.iter().map(|verdict| verdict.policy);
        policies.collect::<Vec<_>>()
    });
    assert_eq!(policies.collect::<Vec<_>>(), [vec![1], vec![]]);
    assert!(
        world
            .limiter
            .store()
            .stores
            .iter()
            .all(MemoryStore::is_empty)
    );
    assert_eq!(remaining(&world.check_all(&[(blocked, 0)])), [10, 0]);
}

#[test]
fn key_is_shared_by_policies_with_the_same_attributes_and_by_no_others() {
    let keyed = |name: &str, domain: &str, key: &str| {
        format!(
            "[[policy]]\nname = \"{name}\"\ndomain = \"{domain}\"\nkey = {key}\nrate = 1\n\
             per = \"1s\"\n"
        )
    };
    let text = ALONE.to_owned()
        + &keyed("a", "api", "[\"x\", \"y\"]")
        + &keyed("b", "api", "[\"y\", \"x\"]")
        + &keyed("c", "api", "[\"x\"]")
        + &keyed("d", "web", "[\"x\", \"y\"]");
    let world = World::new(&text);
    let policies = world.limiter.policies().policies();
    let key = |policy: usize, pairs: &[(&str, &str)]| {
        world.limiter.key(&policies[policy], Attributes::new(pairs))
    };
    let pairs = [("x", "1"), ("y", "2")];
    let keys: Vec<Key> = (0..4).filter_map(|policy| key(policy, &pairs)).collect();
    assert_eq!(keys[0].client, keys[1].client);
    assert_ne!(keys[0].policy, keys[1].policy);
    assert_ne!(keys[0].client, keys[2].client);
    assert_ne!(keys[0].client, keys[3].client, "another domain");
    assert_eq!(key(0, &[("y", "2"), ("x", "1"), ("z", "3")]), Some(keys[0]));
    assert_ne!(
        key(0, &[("x", "12"), ("y", "")]),
        key(0, &[("x", "1"), ("y", "2")])
    );
    assert_eq!(key(0, &[("x", "1")]), None);
}

#[test]
fn pressure_is_told_of_keys_that_are_denied_or_run_low() {
    let text = THREE.to_owned()
        + &policy("p", "rate = 1000\nper = \"1s\"")
        + "[[policy]]\nname = \"own\"\ndomain = \"api\"\nkey = [\"host\"]\nrate = 10\nper = \
           \"1s\"\nscope = \"regional\"\n";
    let world = World::new(&text);
    let heard = || std::mem::take(&mut *world.heard.0.lock().expect("not poisoned"));
    let wanted = || {
        let heard = heard();
        heard
            .into_iter()
            .map(|(_, wanted)| wanted.0)
            .collect::<Vec<_>>()
    };
    // eu has a capacity of 50 + 0.3 * 850 = 305.
    world.check("c", 100);
    assert_eq!(wanted(), []);
    world.check("c", 100);
    assert_eq!(wanted(), [0], "below half");
    world.check("c", 200);
    assert_eq!(wanted(), [200], "denied");
    world.check("c", 0);
    assert_eq!(wanted(), [], "a look wants nothing");
    world.check("big", 900);
    assert_eq!(wanted(), [900], "beyond the capacity");
    for _ in 0..20 {
        world.check_all(&[(&[("host", "h")], 1)]);
    }
    assert_eq!(wanted(), [], "a regional limit borrows nothing");
    let alone = World::new(&(ALONE.to_owned() + &policy("p", "rate = 10\nper = \"1s\"")));
    alone.letters(20);
    assert!(
        alone.heard.0.lock().expect("not poisoned").is_empty(),
        "nobody to ask"
    );
}

/// Answers only when two shards have been asked.
struct Meeting {
    shards: Shards,
    both: tokio::sync::Barrier,
}

impl Store for Meeting {
    fn shard(&self, client: Client) -> ShardId {
        self.shards.shard(client)
    }

    async fn take(&self, shard: ShardId, takes: &[Take]) -> Result<Taken, StoreError> {
        self.both.wait().await;
        self.shards.take(shard, takes).await
    }

    async fn give_back(&self, shard: ShardId, takes: &[Take]) -> Result<Stamp, StoreError> {
        self.both.wait().await;
        self.shards.give_back(shard, takes).await
    }

    async fn load(&self, key: Key, base: &Base) -> Result<Loaded, StoreError> {
        self.shards.load(key, base).await
    }

    async fn swap(&self, swap: &Swap) -> Result<Swapped, StoreError> {
        self.shards.swap(swap).await
    }
}

#[tokio::test]
async fn check_asks_all_shards_at_the_same_time() {
    let world = World::new(&(ALONE.to_owned() + &policy("p", "rate = 10\nper = \"1h\"")));
    let [a, b, _] = world.clients();
    let settings = Settings {
        key_secret: [7; 16],
        ..Settings::default()
    };
    let store = Meeting {
        shards: Shards::new(&world.clock, Memory::default()),
        both: tokio::sync::Barrier::new(2),
    };
    let policies = Arc::clone(world.limiter.policies());
    let limiter = Limiter::new(policies, RegionId(0), store, settings);
    let subjects = [&a, &b].map(|client| [("customer", client.as_str())]);
    let subjects = subjects.each_ref().map(|attributes| Subject {
        attributes,
        cost: Tokens(1),
    });
    let checked = limiter.check("api", &subjects);
    let checked = tokio::time::timeout(Duration::from_secs(30), checked).await;
    assert!(
        checked
            .expect("both are asked before either answers")
            .allowed
    );
    let refunded = limiter.refund("other", &subjects);
    assert!(refunded.await.allowed, "nothing matches");
}
