//! `tidegate serve`

use std::sync::Arc;

use prometheus_client::collector::Collector;
use region::limiter::{Limiter, Settings};
use region::store::any::AnyStore;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{Exit, Failure, Serve};
use crate::admin::Alone;
use crate::config::{Loaded, NodeConfig, load};
use crate::output;
use crate::serve::{Node, Parts, Sockets};
use crate::stores::{self, StoreMetrics};
use crate::tasks::Tasks;
use crate::telemetry::health::Health;
use crate::telemetry::log;
use crate::telemetry::metrics::Metrics;

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
    let node = assemble(loaded, sockets, first_start).await?;
    let (addresses, health) = (node.addresses(), node.health());
    output::line(&format!("ready {addresses}")).map_err(Failure::Output)?;
    tracing::info!(%addresses, "serving");
    let tasks = Tasks::new(CancellationToken::new());
    tokio::select! {
        biased;
        killed = signals.obey(&health) => Ok(killed),
        ended = node.run(tasks) => ended.map(|()| Exit::Done).map_err(Failure::Died),
    }
}

async fn assemble(
    loaded: Loaded,
    sockets: Sockets,
    first_start: bool,
) -> Result<Node<AnyStore>, Failure> {
    let Loaded { node, policies, .. } = loaded;
    let store = stores::open(&node.store, first_start).await?;
    let policies = Arc::new(policies);
    let region = policies.region(&node.region);
    let region = region.expect("the configuration names a region of the policies");
    let limiter = Limiter::new(Arc::clone(&policies), region, store, limits(&node));
    let limiter = Arc::new(limiter);
    let stored: Box<dyn Collector> = Box::new(StoreMetrics(Arc::clone(&limiter)));
    let metrics = Metrics::new((&node.region, &node.name), &policies, vec![stored]);
    let parts = Parts {
        limiter,
        metrics: Arc::new(metrics),
        cluster: Arc::new(Alone),
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
