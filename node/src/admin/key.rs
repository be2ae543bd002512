//! `GET /v1/key?domain=..&policy=..&attr.<name>=..`: the state of one key in this region.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use region::bucket::Base;
use region::ledger::{Ledger, Peer};
use region::limit::Limit;
use region::policy::{Attributes, Policy, PolicySet};
use region::store::{Loaded, Store};
use region::units::{Level, Share, Ticks, mul_div};
use serde_json::{Value, json};

use super::{Admin, Refused};

type Pairs = Vec<(String, String)>;

pub(super) async fn show<S: Store>(
    State(admin): State<Arc<Admin<S>>>,
    Query(query): Query<Pairs>,
) -> Response {
    match state(&admin, &query).await {
        Ok(state) => Json(state).into_response(),
        Err(refused) => refused.into_response(),
    }
}

async fn state<S: Store>(admin: &Admin<S>, query: &Pairs) -> Result<Value, Refused> {
    let limiter = &admin.limiter;
    let policies = limiter.policies();
    let (domain, name) = (value(query, "domain")?, value(query, "policy")?);
    let policy = policies.by_name(domain, name).ok_or_else(|| {
        let reason = format!("there is no policy `{name}` in the domain `{domain}`");
        Refused(StatusCode::NOT_FOUND, "no_such_policy", reason)
    })?;
    let pairs: Vec<(&str, &str)> = query
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix("attr.")?, value.as_str())))
        .collect();
    let key = limiter
        .key(policy, Attributes::new(&pairs))
        .ok_or_else(|| {
            let names: Vec<String> = policy
                .key()
                .iter()
                .map(|name| format!("`attr.{name}`"))
                .collect();
            bad(format!("the key needs {}", names.join(" and ")))
        })?;
    let (base, limit) = policy
        .base(limiter.region(), key.client)
        .zip(policy.split().map(|split| split.limit()))
        .ok_or_else(|| bad("a policy without a rate keeps no state".to_owned()))?;
    let loaded = limiter.store().load(key, &base).await.map_err(|error| {
        let reason = error.to_string();
        Refused(StatusCode::SERVICE_UNAVAILABLE, error.reason(), reason)
    })?;
    let region = policies.regions().get(usize::from(limiter.region().0));
    Ok(json!({
        "region": region.map(|region| &region.name),
        "domain": domain,
        "policy": name,
        "key": format!("{:032x}", key.client.0),
        "generation": loaded.stamp.generation.0,
        "at_us": loaded.stamp.clock.0,
        "bucket": bucket((policy, limit), &base, &loaded),
        "ledger": loaded.ledger.as_ref().map(|one| ledger(one, policies, limit)),
    }))
}

fn bucket((policy, limit): (&Policy, &Limit), base: &Base, loaded: &Loaded) -> Value {
    let pieces = base.pieces(loaded.memory);
    let bucket = &loaded.bucket;
    let schedule = bucket
        .schedule(&pieces)
        .iter()
        .filter(|piece| piece.until > bucket.at);
    let schedule: Vec<Value> = schedule
        .map(|piece| {
            let until = limit.tick().span(piece.until).as_micros();
            json!({
                "until_us": (piece.until != Ticks::NEVER).then_some(until),
                "share_ppm": ppm(piece.share, limit),
                "capacity": tokens(piece.capacity, limit),
            })
        })
        .collect();
    json!({
        "tokens": tokens(bucket.level, limit),
        "level": bucket.level.0,
        "capacity": tokens(bucket.capacity(&pieces), limit),
        "share_ppm": ppm(bucket.share(&pieces), limit),
        "base_share_ppm": ppm(base.share, limit),
        "offered": bucket.count.map(|count| count.offered),
        "admitted": bucket.count.map(|count| count.admitted),
        "rate": limit.rate().0,
        "per_us": limit.per().as_micros(),
        "burst": limit.burst().0,
        "overrun": policy.overrun().0,
        "schedule": schedule,
    })
}

fn ledger(ledger: &Ledger, policies: &PolicySet, limit: &Limit) -> Value {
    let peers = ledger.peers.iter().map(|(region, peer)| {
        let name = policies.regions().get(usize::from(region.0));
        let name = name.map_or_else(|| region.to_string(), |region| region.name.clone());
        (name, self::peer(peer, limit))
    });
    let peers: serde_json::Map<String, Value> = peers.collect();
    json!({ "version": ledger.version.n, "peers": peers })
}

fn peer(peer: &Peer, limit: &Limit) -> Value {
    let held = peer.lent.holds.iter().map(|hold| hold.share).max();
    let borrowed = peer.borrowed;
    json!({
        "seen_us": peer.stamp.clock.0,
        "demand_ppm": ppm(peer.demand, limit),
        "share_ppm": ppm(peer.share, limit),
        "lent_ppm": peer.lent.grant.map(|grant| ppm(grant.share, limit)),
        "held_ppm": held.map(|share| ppm(share, limit)),
        "borrowed_ppm": borrowed.applied.map(|applied| ppm(applied.share, limit)),
        "borrowed_until_us": borrowed.applied.map(|_| borrowed.until.0),
    })
}

/// Whole tokens, negative while in debt.
fn tokens(level: Level, limit: &Limit) -> i64 {
    level.0.div_euclid(limit.token().0.max(1))
}

/// A share as parts per million of the whole limit.
fn ppm(share: Share, limit: &Limit) -> u64 {
    mul_div(share.0, 1_000_000, limit.total().0.max(1))
}

fn value<'q>(query: &'q Pairs, name: &'static str) -> Result<&'q str, Refused> {
    let found = query.iter().find(|(candidate, _)| candidate == name);
    let value = found.map(|(_, value)| value.as_str());
    value.ok_or_else(|| bad(format!("`{name}` is missing")))
}

const fn bad(reason: String) -> Refused {
    Refused(StatusCode::BAD_REQUEST, "invalid_query", reason)
}
