//! A node from bound sockets to its last answer: serves, and drains in order.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use region::limiter::Limiter;
use region::store::Store;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::admin::{self, Admin, Cluster};
use crate::config::NodeConfig;
use crate::front::listen::{Listener, Protocol};
use crate::front::{Gate, http, rls};
use crate::tasks::{Dead, OnCancel, OnError, Tasks};
use crate::telemetry::health::Health;
use crate::telemetry::metrics::{Api, Metrics};

/// How long the last tasks may take to end after everything else has.
const LAST_WAIT: Duration = Duration::from_secs(1);

const ESSENTIAL: (OnError, OnCancel) = (OnError::StopNode, OnCancel::Finish);

/// The sockets of a node, bound before anything is served.
#[derive(Debug)]
pub struct Sockets {
    http: Listener,
    grpc: Listener,
    admin: Listener,
}

/// The addresses that a node has bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The HTTP front's.
    pub http: SocketAddr,
    /// The gRPC front's.
    pub grpc: SocketAddr,
    /// The admin interface's.
    pub admin: SocketAddr,
}

/// A socket that could not be bound. Nothing is served.
#[derive(Debug, thiserror::Error)]
#[error("{setting} = \"{address}\" cannot be bound")]
pub struct BindError {
    /// The setting that names the address.
    pub setting: &'static str,
    /// The address.
    pub address: SocketAddr,
    /// What the system says.
    #[source]
    pub source: io::Error,
}

/// What a node is made of.
pub struct Parts<S> {
    /// The decision path.
    pub limiter: Arc<Limiter<S>>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The other nodes.
    pub cluster: Arc<dyn Cluster>,
    /// Its sockets.
    pub sockets: Sockets,
}

/// A node that is ready to serve.
#[derive(Debug)]
pub struct Node<S> {
    parts: Parts<S>,
    config: NodeConfig,
    health: Arc<Health>,
}

impl Sockets {
    /// Binds every TCP address of a configuration, or none.
    ///
    /// # Errors
    /// The first that cannot be bound.
    pub async fn bind(config: &NodeConfig) -> Result<Self, BindError> {
        let (http1, http2) = (Protocol::Http1, Protocol::Http2);
        Ok(Self {
            http: bind("http.listen", config.http.listen, http1).await?,
            grpc: bind("grpc.listen", config.grpc.listen, http2).await?,
            admin: bind("admin.listen", config.admin.listen, http1).await?,
        })
    }

    /// The addresses that are bound.
    #[must_use]
    pub const fn addresses(&self) -> Addresses {
        Addresses {
            http: self.http.address(),
            grpc: self.grpc.address(),
            admin: self.admin.address(),
        }
    }
}

impl<S: Store + 'static> Node<S> {
    /// A node of these parts.
    #[must_use]
    pub fn new(config: NodeConfig, parts: Parts<S>) -> Self {
        Self {
            parts,
            config,
            health: Arc::default(),
        }
    }

    /// The node's readiness, by which it can also be asked to drain.
    #[must_use]
    pub fn health(&self) -> Arc<Health> {
        Arc::clone(&self.health)
    }

    /// The addresses that are bound.
    #[must_use]
    pub const fn addresses(&self) -> Addresses {
        self.parts.sockets.addresses()
    }

    /// Serves until the node is asked to drain or a task dies that it cannot do without, then stops
    /// in order: not ready, the configured delay, no new connections, answers in flight, leaving
    /// the cluster, the other tasks. Dropping the future stops everything at once.
    ///
    /// `tasks` are those of the cluster; they learn last that the node stops.
    ///
    /// # Errors
    /// The task that died.
    pub async fn run(self, mut tasks: Tasks) -> Result<(), Dead> {
        let Self {
            parts,
            config,
            health,
        } = self;
        let metrics = &parts.metrics;
        let reset = config.http.reset;
        let limiter = Arc::clone(&parts.limiter);
        let gate = Gate::new(Arc::clone(&parts.limiter), Arc::clone(metrics), reset);
        let gate = Arc::new(gate);
        let (grpc, grpc_health) = rls::router(Arc::clone(&gate)).await;
        let Sockets {
            http: http_socket,
            grpc: grpc_socket,
            admin: admin_socket,
        } = parts.sockets;
        let drain = CancellationToken::new();
        let mut fronts = Tasks::new(drain.clone());
        let counted = metrics.listener(Api::Http).clone();
        let served = http_socket.serve(http::router(gate), counted, drain.clone());
        fronts.spawn("http", ESSENTIAL, done(served));
        let counted = metrics.listener(Api::Rls).clone();
        fronts.spawn(
            "grpc",
            ESSENTIAL,
            done(grpc_socket.serve(grpc, counted, drain)),
        );
        // Before the admin interface can be asked: who has read the ready line finds it ready.
        health.set_serving();
        let counted = metrics.listener(Api::Admin).clone();
        let admin = admin::router(Admin {
            limiter: parts.limiter,
            metrics: Arc::clone(metrics),
            health: Arc::clone(&health),
            cluster: Arc::clone(&parts.cluster),
            token: config.admin.token,
        });
        let served = admin_socket.serve(admin, counted, tasks.stop().clone());
        tasks.spawn("admin", (OnError::StopNode, OnCancel::Abort), done(served));
        let dead = tokio::select! {
            biased;
            () = health.drain_asked() => None,
            dead = fronts.watch() => Some(dead),
            dead = tasks.watch() => Some(dead),
        };
        tracing::info!(
            reason = dead.as_ref().map(tracing::field::display),
            "draining"
        );
        limiter.waits().end_all();
        health.set_draining();
        grpc_health.set_draining().await;
        sleep(config.shutdown.delay).await;
        stop(fronts, tasks, &*parts.cluster, config.shutdown.grace).await;
        dead.map_or(Ok(()), Err)
    }
}

/// Ends the fronts, then the membership, then the rest.
async fn stop(fronts: Tasks, tasks: Tasks, cluster: &dyn Cluster, grace: Duration) {
    for task in fronts.finish(grace).await {
        tracing::warn!(task, "requests in flight were cut off");
    }
    if timeout(grace, cluster.leave()).await.is_err() {
        tracing::warn!("the others were not told in time that this node leaves");
    }
    for task in tasks.finish(LAST_WAIT).await {
        tracing::warn!(task, "task was aborted");
    }
    tracing::info!("stopped");
}

async fn bind(
    setting: &'static str,
    address: SocketAddr,
    protocol: Protocol,
) -> Result<Listener, BindError> {
    let bound = Listener::bind(address, protocol).await;
    bound.map_err(|source| BindError {
        setting,
        address,
        source,
    })
}

async fn done(served: impl Future<Output = ()>) -> Result<(), crate::tasks::TaskError> {
    served.await;
    Ok(())
}

impl<S> fmt::Debug for Parts<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").finish_non_exhaustive()
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { http, grpc, admin } = self;
        write!(f, "http={http} grpc={grpc} admin={admin}")
    }
}
