//! Clients that ask at a pace, and what they were told.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use region::audit::Audit;
use region::limit::Limit;
use region::units::{Timestamp, Tokens};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::http::Client;
use super::{REGIONS, World, now};

/// Connections per region.
const CLIENTS: u64 = 6;

/// A client that falls behind does not make up for more than this.
const BEHIND_MAX: Duration = Duration::from_millis(500);

/// Clients of one key in every region.
#[derive(Debug)]
pub(crate) struct Load {
    regions: BTreeMap<&'static str, Arc<Gateway>>,
    told: Arc<Mutex<Vec<Admission>>>,
    /// What they ask, which names the key.
    body: String,
    _clients: JoinSet<()>,
}

/// What the clients of one region share: a gateway that asks any node of it.
#[derive(Debug, Default)]
struct Gateway {
    /// Tokens per second.
    rate: AtomicU64,
    /// Where the region's nodes are. Held to copy one address.
    nodes: Mutex<Vec<SocketAddr>>,
    denied: AtomicU64,
    degraded: AtomicU64,
    failed: AtomicU64,
    /// Answers that make no sense. Held to add one.
    odd: Mutex<Vec<String>>,
}

/// Tokens that a store has admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Admission {
    /// The store's clock.
    pub(crate) at: u64,
    pub(crate) region: &'static str,
}

/// What a region's clients were told beside admissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusals {
    pub(crate) denied: u64,
    /// Denials because the store did not answer.
    pub(crate) degraded: u64,
    /// Requests without an answer.
    pub(crate) failed: u64,
}

impl Load {
    /// Clients that ask nothing yet.
    pub(crate) fn new(world: &World, body: &str) -> Self {
        let told = Arc::default();
        let mut clients = JoinSet::new();
        let regions = REGIONS.map(|region| {
            let gateway = Arc::new(Gateway::default());
            for number in 0..CLIENTS {
                let (gateway, told) = (Arc::clone(&gateway), Arc::clone(&told));
                clients.spawn(client((region, number), gateway, told, body.to_owned()));
            }
            (region, gateway)
        });
        let load = Self {
            regions: regions.into(),
            told,
            body: body.to_owned(),
            _clients: clients,
        };
        load.find(world);
        load
    }

    /// Learns where the nodes are that run now.
    pub(crate) fn find(&self, world: &World) {
        for (region, gateway) in &self.regions {
            let nodes = world.of(region).map(|node| node.addresses.http);
            *locked(&gateway.nodes) = nodes.collect();
        }
    }

    /// Asks for so many tokens per second in each region from now on, and for none elsewhere.
    pub(crate) fn offer(&self, rates: &[(&str, u64)]) {
        for (region, gateway) in &self.regions {
            let rate = rates.iter().find(|(name, _)| name == region);
            let rate = rate.map_or(0, |(_, rate)| *rate);
            gateway.rate.store(rate, Ordering::Relaxed);
        }
    }

    /// Tokens admitted per second in a region in the last so many milliseconds.
    pub(crate) fn rate(&self, region: &str, last_ms: u64) -> u64 {
        let end = now();
        let tokens = self.admitted(region, end - last_ms * 1_000..end);
        tokens * 1_000 / last_ms
    }

    /// Tokens admitted in a region in a span of the stores' time.
    pub(crate) fn admitted(&self, region: &str, span: Range<u64>) -> u64 {
        let told = locked(&self.told);
        let those = told
            .iter()
            .filter(|admission| admission.region == region && span.contains(&admission.at));
        u64::try_from(those.count()).expect("few")
    }

    pub(crate) fn refusals(&self, region: &str) -> Refusals {
        let gateway = &self.regions[region];
        Refusals {
            denied: gateway.denied.load(Ordering::Relaxed),
            degraded: gateway.degraded.load(Ordering::Relaxed),
            failed: gateway.failed.load(Ordering::Relaxed),
        }
    }

    /// The overrun of all regions together since the beginning, and all tokens admitted.
    pub(crate) fn audit(&self, limit: Limit) -> (Tokens, Tokens) {
        let mut told = locked(&self.told).clone();
        told.sort_unstable();
        let mut auditor = Audit::new(limit, 1);
        for admission in told {
            auditor.admit(&self.body, Timestamp(admission.at), Tokens(1));
        }
        (auditor.overrun(), auditor.admitted())
    }

    /// Answers that no node should give.
    pub(crate) fn odd(&self) -> Vec<String> {
        let odd = self
            .regions
            .values()
            .map(|gateway| locked(&gateway.odd).clone());
        odd.flatten().collect()
    }

    /// Everything that is known, for a test that fails.
    pub(crate) fn describe(&self) -> String {
        let regions = self.regions.keys().map(|region| {
            let (rate, refusals) = (self.rate(region, 2_000), self.refusals(region));
            format!("{region}: {rate} tokens/s in the last 2 s, {refusals:?}")
        });
        regions.collect::<Vec<_>>().join("\n")
    }
}

/// Asks for ever, at the pace of the moment.
async fn client(
    (region, number): (&'static str, u64),
    gateway: Arc<Gateway>,
    told: Arc<Mutex<Vec<Admission>>>,
    body: String,
) {
    let mut connection: Option<Client> = None;
    let mut node = usize::try_from(number).expect("small");
    let mut next = Instant::now();
    loop {
        let rate = gateway.rate.load(Ordering::Relaxed);
        let address = {
            let nodes = locked(&gateway.nodes);
            nodes.get(node % nodes.len().max(1)).copied()
        };
        let Some(address) = address.filter(|_| rate > 0) else {
            sleep(Duration::from_millis(10)).await;
            next = Instant::now();
            continue;
        };
        // Clients of many users come at random, not in step.
        let random = -(1.0 - rand::random::<f64>()).ln();
        let pause = Duration::from_secs(CLIENTS).mul_f64(random / rate_of(rate));
        next = (next + pause).max(Instant::now() - BEHIND_MAX);
        sleep_until(next).await;
        let mut asked = connection
            .take()
            .filter(|client| client.address() == address)
            .unwrap_or_else(|| Client::new(address));
        let Ok(answer) = asked.ask("POST /v1/check", "", &body).await else {
            gateway.failed.fetch_add(1, Ordering::Relaxed);
            node += 1;
            sleep(Duration::from_millis(20)).await;
            continue;
        };
        connection = Some(asked);
        let at = answer.json()["policies"][0]["decided_at_us"].as_u64();
        match (answer.status, at) {
            (200, Some(at)) => locked(&told).push(Admission { at, region }),
            (429, Some(_)) => drop(gateway.denied.fetch_add(1, Ordering::Relaxed)),
            (503, None) => drop(gateway.degraded.fetch_add(1, Ordering::Relaxed)),
            _ => locked(&gateway.odd).push(format!("{answer:?}")),
        }
    }
}

fn rate_of(rate: u64) -> f64 {
    f64::from(u32::try_from(rate).expect("a rate that can be offered"))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
