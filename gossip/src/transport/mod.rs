//! How frames travel: QUIC between nodes that hold certificates of one CA.
//!
//! One endpoint per node. Small frames go as datagrams, large ones each on a stream of its own.
//! Sending never waits: every peer has a bounded queue that keeps the newest frames, and a task
//! that connects when there is something to send. Frames that arrive are decoded, checked and
//! handed on; what is no frame is counted and forgotten.

mod connection;
mod counters;
mod link;
mod peer;
mod tls;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use quinn::{Endpoint, VarInt};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use region::units::RegionId;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use crate::codec::Codec;
use crate::frame::Frame;
use crate::identity::Member;

pub use counters::{Counters, Dropped, Rejected};
pub use link::{LinkShape, Links};
use peer::Peer;
use tls::RegionNames;
pub use tls::{Credentials, CredentialsError, NODE_NAME, REGION_SUFFIX};

/// The most frames that wait to be taken from [`Inbound`]'s receiver.
const INBOUND_MAX: usize = 4_096;

/// The most peers that a node talks to.
const PEERS_MAX: usize = 1_024;

/// The most connections that are open at once, both ways with every peer and some to spare.
const CONNECTIONS_MAX: usize = 2 * PEERS_MAX + 64;

/// How often seeds that are not connected are looked up and dialled again.
const SEED_INTERVAL: Duration = Duration::from_secs(2);

/// How often a seed that is connected is looked up again, since its name may mean another node.
const SEED_INTERVAL_MAX: Duration = Duration::from_secs(20);

/// How long a name look-up may take.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The most addresses of one seed name that are dialled.
const SEED_ADDRESSES_MAX: usize = 8;

/// How long a leaving node goes on sending what it has queued.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// What a transport is made from.
#[derive(Debug)]
pub struct Settings {
    /// Where to listen, for all interfaces `0.0.0.0` or `[::]`; port 0 picks a free one.
    pub bind: SocketAddr,
    /// Where others reach this node, if not where it listens: behind NAT or a load balancer.
    pub advertise: Option<SocketAddr>,
    /// The node's name.
    pub name: String,
    /// All regions, in the order of their ids.
    pub regions: Vec<String>,
    /// The region of this node.
    pub region: RegionId,
    /// When the node started, in microseconds: its first incarnation.
    pub incarnation: u64,
    /// Addresses or names, with ports, of nodes to begin with.
    pub seeds: Vec<String>,
    /// The node's certificate.
    pub credentials: Credentials,
    /// The shapes of the links between regions; the default shapes nothing.
    pub links: Links,
    /// What the jitter of links and of reconnecting is drawn from.
    pub seed: u64,
}

/// A transport that could not be started.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address is taken or not one of this machine.
    #[error("cannot listen on {address}")]
    Socket {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// The certificate, its key or the CA is of no use.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The name of the node or of its region cannot be used.
    #[error("node {0:?}: {1}")]
    Name(String, #[source] crate::identity::NameError),
    /// The region's id is not one of the configured regions.
    #[error("region {0} is not configured")]
    Region(RegionId),
}

/// A frame from another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inbound {
    /// Who sent it.
    pub from: Sender,
    /// The frame.
    pub frame: Frame,
}

/// The node at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The region that its certificate names.
    pub region: RegionId,
    /// Its advertised address, once it has greeted.
    pub address: Option<SocketAddr>,
}

/// One node's end of the network between nodes. Clones share it; it runs until
/// [`shutdown`](Self::shutdown).
#[derive(Clone, Debug)]
pub struct Transport(Arc<Shared>);

/// What the tasks of a transport have in common.
#[derive(Debug)]
struct Shared {
    endpoint: Endpoint,
    codec: Codec,
    names: RegionNames,
    region: RegionId,
    /// How this node introduces itself; changes with its incarnation.
    own: Mutex<Member>,
    links: Links,
    counters: Arc<Counters>,
    inbound: mpsc::Sender<Inbound>,
    /// The peers that there is or was something to send to, by advertised address.
    peers: Mutex<BTreeMap<SocketAddr, Arc<Peer>>>,
    /// Addresses that seeds' names gave and at which this node met itself.
    itself: Mutex<BTreeSet<SocketAddr>>,
    /// Every task of this transport.
    tasks: Mutex<JoinSet<()>>,
    runtime: Handle,
    stop: CancellationToken,
    seed: u64,
    /// How many generators have been seeded.
    seeded: AtomicU64,
}

impl Transport {
    /// Listens, begins to dial the seeds, and returns what arrives.
    ///
    /// # Errors
    /// If the address or the credentials are of no use.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn bind(settings: Settings) -> Result<(Self, mpsc::Receiver<Inbound>), BindError> {
        let names = RegionNames::new(&settings.regions);
        let region = settings
            .regions
            .get(usize::from(settings.region.0))
            .ok_or(BindError::Region(settings.region))?;
        settings.credentials.check_region(&names, settings.region)?;
        let failed = |source| BindError::Socket {
            address: settings.bind,
            source,
        };
        let socket = UdpSocket::bind(settings.bind).map_err(failed)?;
        let bound = socket.local_addr().map_err(failed)?;
        let advertised = settings.advertise.unwrap_or(bound);
        let own = Member::try_new(&settings.name, region, advertised, settings.incarnation)
            .map_err(|error| BindError::Name(settings.name.clone(), error))?;
        let mut endpoint = Endpoint::new(
            settings.credentials.endpoint(advertised),
            Some(settings.credentials.server()?),
            socket,
            Arc::new(quinn::TokioRuntime),
        )
        .map_err(failed)?;
        endpoint.set_default_client_config(settings.credentials.client()?);
        let (inbound, receiver) = mpsc::channel(INBOUND_MAX);
        let shared = Arc::new(Shared {
            endpoint,
            codec: Codec::new(&settings.regions),
            names,
            region: settings.region,
            own: Mutex::new(own),
            links: settings.links,
            counters: Arc::default(),
            inbound,
            peers: Mutex::default(),
            itself: Mutex::new(BTreeSet::from([bound, advertised])),
            tasks: Mutex::default(),
            runtime: Handle::current(),
            stop: CancellationToken::new(),
            seed: settings.seed,
            seeded: AtomicU64::new(0),
        });
        shared.spawn(connection::accept(Arc::clone(&shared)));
        for seed in settings.seeds {
            shared.spawn(dial_seed(Arc::clone(&shared), seed));
        }
        Ok((Self(shared), receiver))
    }

    /// This node as it introduces itself.
    #[must_use]
    pub fn own(&self) -> Member {
        lock(&self.0.own).clone()
    }

    /// Introduces this node under another incarnation from now on.
    pub fn introduce(&self, own: Member) {
        *lock(&self.0.own) = own;
    }

    /// The format of this deployment's frames, for splitting batches.
    #[must_use]
    pub fn codec(&self) -> &Codec {
        &self.0.codec
    }

    /// The shapes of the links, changeable while running.
    #[must_use]
    pub fn links(&self) -> &Links {
        &self.0.links
    }

    /// What has been counted.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.0.counters
    }

    /// Sends a frame to the node with an advertised address, without waiting.
    ///
    /// Nothing says whether it arrives. A peer that is not connected is dialled; meanwhile the
    /// newest frames are kept.
    pub fn send(&self, to: SocketAddr, frame: &Frame) {
        match self.0.codec.encode(frame) {
            Ok(bytes) => self.0.queue(to, Bytes::from(bytes)),
            Err(error) => {
                warn!(%to, %error, "a frame was not sent");
                self.0.counters.count_dropped(Dropped::TooLarge, 1);
            }
        }
    }

    /// Sends what is queued, then ends every connection and every task.
    pub async fn shutdown(&self) {
        let shared = &self.0;
        shared.endpoint.set_server_config(None);
        shared.stop.cancel();
        let mut tasks = std::mem::take(&mut *lock(&shared.tasks));
        if timeout(FLUSH_TIMEOUT, async {
            while tasks.join_next().await.is_some() {}
        })
        .await
        .is_err()
        {
            warn!("gossip connections did not end in time");
        }
        shared.endpoint.close(VarInt::from_u32(0), b"leaving");
        tasks.shutdown().await;
        if timeout(FLUSH_TIMEOUT, shared.endpoint.wait_idle())
            .await
            .is_err()
        {
            warn!("peers did not confirm the end of their connections");
        }
    }
}

impl Shared {
    /// Runs a task that ends when the transport stops.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if self.stop.is_cancelled() {
            return;
        }
        let mut tasks = lock(&self.tasks);
        while let Some(ended) = tasks.try_join_next() {
            if let Err(error) = ended
                && error.is_panic()
            {
                error!(%error, "a gossip task panicked");
            }
        }
        tasks.spawn_on(task, &self.runtime);
    }

    fn queue(self: &Arc<Self>, to: SocketAddr, frame: Bytes) {
        match self.peer(to) {
            Some(peer) => peer.queue(frame, &self.counters),
            None => self.counters.count_dropped(Dropped::TooManyPeers, 1),
        }
    }

    /// The peer with an advertised address; a task begins to look after a new one.
    fn peer(self: &Arc<Self>, address: SocketAddr) -> Option<Arc<Peer>> {
        let mut peers = lock(&self.peers);
        if let Some(peer) = peers.get(&address) {
            return Some(Arc::clone(peer));
        }
        if peers.len() >= PEERS_MAX {
            // Peers come and go with their addresses; what nobody talks to can go.
            peers.retain(|_, peer| !peer.retire_if_unused());
            if peers.len() >= PEERS_MAX {
                return None;
            }
        }
        let peer = Arc::new(Peer::new(address));
        peers.insert(address, Arc::clone(&peer));
        drop(peers);
        self.spawn(peer::run(Arc::clone(self), Arc::clone(&peer)));
        Some(peer)
    }

    /// A generator of its own for each task, so that no task's draws depend on another's.
    fn rng(&self) -> StdRng {
        let number = self.seeded.fetch_add(1, Ordering::Relaxed);
        StdRng::seed_from_u64(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

/// Keeps trying to be connected to a seed, whose name may mean another node from time to time.
async fn dial_seed(shared: Arc<Shared>, seed: String) {
    let mut rng = shared.rng();
    let mut known = true;
    loop {
        let found = timeout(LOOKUP_TIMEOUT, tokio::net::lookup_host(seed.as_str())).await;
        let addresses: Vec<_> = match found {
            Ok(Ok(addresses)) => addresses.take(SEED_ADDRESSES_MAX).collect(),
            Ok(Err(_)) | Err(_) => Vec::new(),
        };
        if known == addresses.is_empty() {
            known = !known;
            if !known {
                warn!(seed, "a seed's name is not known");
            }
        }
        let mut connected = false;
        for address in addresses {
            if !lock(&shared.itself).contains(&address)
                && let Some(peer) = shared.peer(address)
            {
                connected |= peer.want();
            }
        }
        let pause = if connected {
            SEED_INTERVAL_MAX
        } else {
            SEED_INTERVAL
        };
        let pause = pause.mul_f64(rng.random_range(0.5..1.5));
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            () = sleep(pause) => {}
        }
    }
}

/// Nothing panics while it holds one of these locks, so what they protect is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
