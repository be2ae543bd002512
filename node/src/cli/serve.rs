//! `tidegate serve`

use std::sync::Arc;

use gossip::dues::Dues;
use prometheus_client::collector::Collector;
use region::limiter::{Limiter, Pressure, Settings};
use region::store::any::AnyStore;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{Exit, Failure, Serve};
use crate::admin::{Alone, Cluster};
use crate::cluster::{GossipMetrics, Gossiping};
use crate::config::{Loaded, NodeConfig, load};
use crate::output;
use crate::serve::{Node, Parts, Sockets};
use crate::stores::{self, StoreMetrics};
use crate::tasks::{OnCancel, OnError, Tasks};
use crate::telemetry::health::Health;
use crate::telemetry::log;
use crate::telemetry::metrics::Metrics;
use crate::waits::{RuntimeTimer, WaitMetrics};

/// The most keys that are limited in node memory while a store does not answer.
const EMERGENCY_KEYS_MAX: usize = 100_000;

/// The signals that stop a node.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Serve {
    pub(super) fn run(self, environment: &[(String, String)]) -> Result<Exit, Failure> {
        let loaded = match load(&self.files.config, &self.files.policies, environment) {
            Ok(loaded) => loaded,
            Err(faults) => {
                output::complain(&faults).map_err(Failure::Output)?;
                return Ok(Exit::BadConfiguration);
            }
        };
        let settings = &loaded.node.log;
        // The filter was read when the configuration was checked.
        if log::start(settings.format, &settings.level).is_err() {
            return Ok(Exit::BadConfiguration);
        }
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        let runtime = Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(Failure::Start)?;
        let exit = runtime.block_on(serve(loaded, self.first_start));
        // What is still running was told to stop, or must not be waited for.
        runtime.shutdown_background();
        exit
    }
}

async fn serve(loaded: Loaded, first_start: bool) -> Result<Exit, Failure> {
    let mut signals = Signals::catch().map_err(Failure::Start)?;
    let sockets = Sockets::bind(&loaded.node).await?;
    let mut tasks = Tasks::new(CancellationToken::new());
    let node = assemble(loaded, (sockets, &mut tasks), first_start).await?;
    let (addresses, health) = (node.addresses(), node.health());
    output::line(&format!("ready {addresses}")).map_err(Failure::Output)?;
    tracing::info!(%addresses, "serving");
    tokio::select! {
        biased;
        killed = signals.obey(&health) => Ok(killed),
        ended = node.run(tasks) => ended.map(|()| Exit::Done).map_err(Failure::Died),
    }
}

async fn assemble(
    loaded: Loaded,
    (sockets, tasks): (Sockets, &mut Tasks),
    first_start: bool,
) -> Result<Node<AnyStore>, Failure> {
    let Loaded { node, policies, .. } = loaded;
    let store = stores::open(&node.store, first_start).await?;
    let policies = Arc::new(policies);
    let region = policies.region(&node.region);
    let region = region.expect("the configuration names a region of the policies");
    let gossip = node.gossip.as_ref();
    let gossip = gossip
        .map(|gossip| Gossiping::bind(&node, gossip, &policies))
        .transpose()?;
    let (dues, receiver) = Dues::channel();
    let limiter = Limiter::new(Arc::clone(&policies), region, store, limits(&node));
    let limiter = Arc::new(match gossip {
        Some(_) => limiter
            .with_pressure(Arc::clone(&dues) as Arc<dyn Pressure>)
            .with_timer(Arc::new(RuntimeTimer)),
        None => limiter,
    });
    let (watched, stop) = (Arc::clone(&limiter), tasks.stop().clone());
    tasks.spawn("shards", (OnError::Report, OnCancel::Abort), async move {
        stores::watch(&watched, stop).await;
        Ok(())
    });
    let mut collectors: Vec<Box<dyn Collector>> = vec![
        Box::new(StoreMetrics(Arc::clone(&limiter))),
        Box::new(WaitMetrics(Arc::clone(&limiter))),
    ];
    let cluster: Arc<dyn Cluster> = match gossip {
        Some((gossiping, inbound)) => {
            gossiping.run(tasks, Arc::clone(&limiter), inbound, receiver);
            tracing::info!(address = %gossiping.address(), "gossiping");
            collectors.push(Box::new(GossipMetrics(Arc::clone(&gossiping), dues)));
            gossiping
        }
        None => Arc::new(Alone),
    };
    let metrics = Metrics::new((&node.region, &node.name), &policies, collectors);
    let parts = Parts {
        limiter,
        metrics: Arc::new(metrics),
        cluster,
        sockets,
    };
    Ok(Node::new(node, parts))
}

fn limits(node: &NodeConfig) -> Settings {
    Settings {
        key_secret: *node.key_secret.reveal(),
        nodes_max: node.nodes_max,
        emergency_keys_max: EMERGENCY_KEYS_MAX,
    }
}

impl Signals {
    fn catch() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Drains the node at the first signal; returns at the second.
    async fn obey(&mut self, health: &Health) -> Exit {
        self.next().await;
        health.ask_to_drain();
        Exit::Killed(self.next().await)
    }

    async fn next(&mut self) -> u8 {
        tokio::select! {
            Some(()) = self.terminate.recv() => 15,
            Some(()) = self.interrupt.recv() => 2,
            else => std::future::pending().await,
        }
    }
}
