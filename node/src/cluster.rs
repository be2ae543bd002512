//! This node among the others: starts gossip, starts it again if it panics, and shows it.

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gossip::dues::{DueReceiver, Dues};
use gossip::service::{self, Service, ServiceCounters, Status};
use gossip::transport::{
    BindError, Counters, Credentials, CredentialsError, Dropped, Inbound, LinkShape, Links,
    Rejected, Settings, Transport,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use region::limiter::Limiter;
use region::policy::PolicySet;
use region::store::Store;
use region::units::{RegionId, micros};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::admin::{Cluster, Member, ShaperOff};
use crate::config::{GossipConfig, LinkConfig, NodeConfig};
use crate::tasks::{OnCancel, OnError, Tasks};

/// How long gossip rests after its first panic in a row; twice as long after each further one.
const RESTART_AFTER: Duration = Duration::from_millis(500);

/// How long it rests at most.
const RESTART_AFTER_MAX: Duration = Duration::from_secs(30);

/// Gossip that could not be started. Nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// A file of the configuration could not be read.
    #[error("{}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// The certificate, its key or the CA is of no use.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The socket could not be bound, or the certificate is not one of the node's region.
    #[error("gossip")]
    Bind(#[from] BindError),
}

/// A node that takes part in gossip.
pub struct Gossiping {
    settings: Arc<Recipe>,
    status: Arc<Status>,
    /// The transport that is in use; locked to look at it or to replace it after a panic.
    transport: Mutex<Transport>,
    shaped: bool,
    leave: CancellationToken,
    left: CancellationToken,
}

/// What a transport is made from, again if need be.
struct Recipe {
    name: String,
    region: RegionId,
    regions: Vec<String>,
    gossip: GossipConfig,
    links: Links,
}

impl Gossiping {
    /// Binds the gossip socket. Frames wait in the returned receiver until [`Gossiping::run`].
    ///
    /// # Errors
    /// If a file cannot be read, the credentials are of no use or the address is taken.
    pub fn bind(
        node: &NodeConfig,
        gossip: &GossipConfig,
        policies: &PolicySet,
    ) -> Result<(Arc<Self>, mpsc::Receiver<Inbound>), JoinError> {
        let region = policies.region(&node.region);
        let settings = Arc::new(Recipe {
            name: node.name.clone(),
            region: region.expect("the configuration names a region of the policies"),
            regions: policies
                .regions()
                .iter()
                .map(|region| region.name.clone())
                .collect(),
            gossip: gossip.clone(),
            links: Links::default(),
        });
        settings.shape(gossip.links.as_deref().unwrap_or_default());
        let (transport, inbound) = settings.bind()?;
        let gossiping = Self {
            settings,
            status: Arc::default(),
            transport: Mutex::new(transport),
            shaped: gossip.links.is_some(),
            leave: CancellationToken::new(),
            left: CancellationToken::new(),
        };
        Ok((Arc::new(gossiping), inbound))
    }

    /// The address that others reach this node's gossip at.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.transport().own().address()
    }

    /// Has gossip run as one of `tasks`. A panic in it ends no decision: it is started again,
    /// after a while that grows.
    pub fn run<S: Store + 'static>(
        self: &Arc<Self>,
        tasks: &mut Tasks,
        limiter: Arc<Limiter<S>>,
        inbound: mpsc::Receiver<Inbound>,
        dues: DueReceiver,
    ) {
        let this = Arc::clone(self);
        tasks.spawn(
            "gossip",
            (OnError::StopNode, OnCancel::Finish),
            async move {
                this.keep_running(limiter, inbound, dues).await;
                this.left.cancel();
                Ok(())
            },
        );
    }

    async fn keep_running<S: Store + 'static>(
        &self,
        limiter: Arc<Limiter<S>>,
        mut inbound: mpsc::Receiver<Inbound>,
        dues: DueReceiver,
    ) {
        let dues = Arc::new(tokio::sync::Mutex::new(dues));
        let mut rest = RESTART_AFTER;
        loop {
            let parts = service::Parts {
                limiter: Arc::clone(&limiter),
                transport: self.transport(),
                inbound,
                dues: Arc::clone(&dues),
                rng: StdRng::from_rng(&mut rand::rng()),
                status: Arc::clone(&self.status),
            };
            let mut running = JoinSet::new();
            running.spawn(Service::run(parts, self.leave.clone()));
            match running.join_next().await {
                Some(Err(error)) if error.is_panic() => {
                    tracing::error!(%error, "gossip panicked; decisions go on");
                }
                _ => return,
            }
            self.transport().shutdown().await;
            inbound = loop {
                sleep(rest).await;
                rest = (rest * 2).min(RESTART_AFTER_MAX);
                match self.settings.bind() {
                    Ok((transport, inbound)) => {
                        *self
                            .transport
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner) = transport;
                        break inbound;
                    }
                    Err(error) => tracing::error!(%error, "gossip could not be started again"),
                }
            };
        }
    }

    fn transport(&self) -> Transport {
        self.transport
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Recipe {
    fn bind(&self) -> Result<(Transport, mpsc::Receiver<Inbound>), JoinError> {
        let GossipConfig {
            listen,
            advertise,
            seeds,
            ca,
            cert,
            key,
            ..
        } = &self.gossip;
        let (ca, cert, key) = (read(ca)?, read(cert)?, read(key)?);
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Ok(Transport::bind(Settings {
            bind: *listen,
            advertise: *advertise,
            name: self.name.clone(),
            regions: self.regions.clone(),
            region: self.region,
            incarnation: micros(since),
            seeds: seeds.clone(),
            credentials: Credentials::from_pem(&ca, &cert, &key)?,
            links: self.links.clone(),
            seed: rand::rng().random(),
        })?)
    }

    /// Replaces what the link shaper does.
    fn shape(&self, links: &[LinkConfig]) {
        for (from, to, _) in self.links.all() {
            self.links.set(from, to, LinkShape::default());
        }
        for link in links {
            if let (Some(from), Some(to)) = (self.id(&link.from), self.id(&link.to)) {
                self.links.set(
                    from,
                    to,
                    LinkShape {
                        delay: link.delay,
                        jitter: link.jitter,
                        loss: f64::from(link.loss_ppm) / 1e6,
                        duplication: 0.0,
                        cut: link.cut,
                    },
                );
            }
        }
    }

    fn id(&self, name: &str) -> Option<RegionId> {
        let index = self.regions.iter().position(|region| region == name)?;
        u16::try_from(index).ok().map(RegionId)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, JoinError> {
    fs::read(path).map_err(|source| JoinError::File {
        path: path.to_owned(),
        source,
    })
}

impl Cluster for Gossiping {
    fn members(&self) -> Vec<Member> {
        let members = self.status.members();
        let shown = members.iter().map(|member| Member {
            name: member.name().to_owned(),
            region: member.region().to_owned(),
            address: member.address(),
            state: "alive",
            incarnation: member.incarnation(),
        });
        shown.collect()
    }

    fn shape(&self, links: Vec<LinkConfig>) -> Result<(), ShaperOff> {
        if !self.shaped {
            return Err(ShaperOff);
        }
        self.settings.shape(&links);
        Ok(())
    }

    fn leave(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.leave.cancel();
        Box::pin(self.left.cancelled())
    }
}

impl fmt::Debug for Gossiping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gossiping")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

/// Gossip's metrics.
#[derive(Debug)]
pub struct GossipMetrics(pub Arc<Gossiping>, pub Arc<Dues>);

/// A counter without labels: its name, what it tells, and how it is read.
type Plain<T> = (&'static str, &'static str, fn(&T) -> u64);

const SERVICE: [Plain<ServiceCounters>; 7] = [
    ("gossip_rows_sent", "Rows sent to other regions", |c| {
        c.rows_sent.value()
    }),
    (
        "gossip_rows_received",
        "Rows received from other regions",
        |c| c.rows_received.value(),
    ),
    (
        "gossip_misdirected",
        "Messages from a region that cannot send them",
        |c| c.misdirected.value(),
    ),
    (
        "gossip_packets_refused",
        "Membership packets dropped",
        |c| c.packets_refused.value(),
    ),
    (
        "gossip_duplicate_nodes",
        "Meetings with a node of this node's name",
        |c| c.duplicates.value(),
    ),
    (
        "gossip_store_failures",
        "Loads and swaps that the store did not answer",
        |c| c.store_failures.value(),
    ),
    (
        "gossip_grants_held_back",
        "Grants not sent because no replica of their shard had them in time",
        |c| c.held_back.value(),
    ),
];

const TRANSPORT: [Plain<Counters>; 7] = [
    ("gossip_frames_sent", "Frames sent", Counters::sent_frames),
    (
        "gossip_bytes_sent",
        "Bytes of frames sent",
        Counters::sent_bytes,
    ),
    (
        "gossip_frames_by_stream",
        "Frames too large for a datagram",
        Counters::sent_by_stream,
    ),
    (
        "gossip_frames_received",
        "Frames received",
        Counters::received_frames,
    ),
    (
        "gossip_bytes_received",
        "Bytes of frames received",
        Counters::received_bytes,
    ),
    ("gossip_connects", "Connections made", Counters::connects),
    (
        "gossip_connect_failures",
        "Connections that could not be made",
        Counters::connect_failures,
    ),
];

impl Collector for GossipMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (status, transport) = (&self.0.status, self.0.transport());
        let counters = transport.counters();
        for (name, help, read) in SERVICE {
            count(&mut encoder, (name, help), read(&status.counters))?;
        }
        for (name, help, read) in TRANSPORT {
            count(&mut encoder, (name, help), read(counters))?;
        }
        let help = "Signs of pressure that found no place in their queue";
        count(
            &mut encoder,
            ("gossip_dues_dropped", help),
            self.1.dropped(),
        )?;
        let rejected = Rejected::ALL.map(|reason| (reason.name(), counters.rejected(reason)));
        let rows = [
            ("row_invalid", status.counters.rows_invalid.value()),
            ("row_other_terms", status.counters.rows_other_terms.value()),
        ];
        let help = "What other nodes sent and this one refused";
        by_reason(
            &mut encoder,
            ("gossip_rejected", help),
            rejected.into_iter().chain(rows),
        )?;
        let dropped = Dropped::ALL.map(|reason| (reason.name(), counters.dropped(reason)));
        let help = "Frames that were not sent or not handed on";
        by_reason(&mut encoder, ("gossip_dropped", help), dropped)?;
        let gauges = [
            (
                "gossip_members",
                "Nodes alive, this one included",
                status.members().len(),
            ),
            (
                "gossip_regions_heard",
                "Other regions heard of late",
                status.regions_heard(),
            ),
            (
                "gossip_keys",
                "Keys with work in flight between regions",
                status.keys(),
            ),
        ];
        for (name, help, value) in gauges {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(metric)?;
        }
        Ok(())
    }
}

fn count(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    value: u64,
) -> fmt::Result {
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    ConstCounter::new(value).encode(metric)
}

fn by_reason(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    values: impl IntoIterator<Item = (&'static str, u64)>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (reason, value) in values {
        let labels = [("reason", reason)];
        ConstCounter::new(value).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}
