//! One peer: its queue, and the task that connects to it and sends.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use quinn::Connection;
use rand::RngExt as _;
use rand::rngs::StdRng;
use region::units::RegionId;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{info, warn};

use super::counters::{Counters, Dropped};
use super::link::{LinkShape, Shaper};
use super::{Shared, connection, lock, tls};

/// The most frames that wait for one peer.
const FRAMES_MAX: usize = 4_096;

/// The most bytes that wait for one peer.
const BYTES_MAX: usize = 8 * 1024 * 1024;

/// The most frames that are being written to streams at once.
const WRITERS_MAX: usize = 8;

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The first pause after a failed attempt; doubles each time.
const BACKOFF_MIN: Duration = Duration::from_millis(100);

/// The longest pause between attempts.
const BACKOFF_MAX: Duration = Duration::from_secs(4);

/// When a peer has been out of reach for this long, what waits for it is of no use any more.
const GIVE_UP: Duration = Duration::from_secs(10);

/// How long the last datagrams of a leaving node may take.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(300);

/// A node that there is, or was, something to send to.
#[derive(Debug)]
pub(super) struct Peer {
    address: SocketAddr,
    /// The frames that wait, oldest first.
    outbox: Mutex<Outbox>,
    /// Something waits, or a connection is wanted.
    wake: Notify,
    /// The connection to send over.
    live: watch::Sender<Option<Live>>,
}

#[derive(Debug, Default)]
struct Outbox {
    frames: VecDeque<Bytes>,
    bytes: usize,
    /// Whether to connect although nothing waits.
    wanted: bool,
    /// Whether nobody looks after this peer any more.
    retired: bool,
}

/// A connection to the peer, whoever made it.
#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) connection: Connection,
    pub(super) region: RegionId,
    /// Which run of the peer answers there; zero before it has greeted.
    pub(super) incarnation: u64,
}

impl Peer {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            outbox: Mutex::default(),
            wake: Notify::new(),
            live: watch::Sender::new(None),
        }
    }

    /// Adds a frame; the oldest ones make room for it.
    pub(super) fn queue(&self, frame: Bytes, counters: &Counters) {
        let mut outbox = lock(&self.outbox);
        if outbox.retired {
            counters.count_dropped(Dropped::Unreachable, 1);
            return;
        }
        outbox.bytes += frame.len();
        outbox.frames.push_back(frame);
        while outbox.frames.len() > FRAMES_MAX || outbox.bytes > BYTES_MAX {
            if outbox.take().is_none() {
                break;
            }
            counters.count_dropped(Dropped::QueueFull, 1);
        }
        drop(outbox);
        self.wake.notify_one();
    }

    /// Asks for a connection although there may be nothing to send; true if there is one.
    pub(super) fn want(&self) -> bool {
        let connected = self.connected().is_some();
        if !connected {
            lock(&self.outbox).wanted = true;
            self.wake.notify_one();
        }
        connected
    }

    /// Ends the task of a peer that is not connected and has nothing to be sent.
    pub(super) fn retire_if_unused(&self) -> bool {
        if self.connected().is_some() {
            return false;
        }
        let mut outbox = lock(&self.outbox);
        outbox.retired = outbox.frames.is_empty();
        let retired = outbox.retired;
        drop(outbox);
        self.wake.notify_one();
        retired
    }

    /// Offers a connection for sending. One to a newer run of the peer replaces an older one.
    pub(super) fn offer(&self, offered: Live) {
        self.live.send_if_modified(|live| {
            let better = live.as_ref().is_none_or(|live| {
                live.connection.close_reason().is_some() || live.incarnation < offered.incarnation
            });
            if better {
                *live = Some(offered);
            }
            better
        });
        self.wake.notify_one();
    }

    fn connected(&self) -> Option<Live> {
        let live = self.live.borrow();
        live.clone()
            .filter(|live| live.connection.close_reason().is_none())
    }

    fn take(&self) -> Option<Bytes> {
        lock(&self.outbox).take()
    }

    /// Waits until a connection is of use; false if that will never be.
    async fn in_demand(&self) -> bool {
        loop {
            let notified = self.wake.notified();
            {
                let mut outbox = lock(&self.outbox);
                if outbox.retired {
                    return false;
                }
                if std::mem::take(&mut outbox.wanted) || !outbox.frames.is_empty() {
                    return true;
                }
            }
            notified.await;
        }
    }

    /// The next frame, once there is one.
    async fn next(&self) -> Bytes {
        loop {
            let notified = self.wake.notified();
            if let Some(frame) = self.take() {
                return frame;
            }
            notified.await;
        }
    }

    fn discard(&self, counters: &Counters) {
        let mut outbox = lock(&self.outbox);
        let frames = outbox.frames.len();
        outbox.frames.clear();
        outbox.bytes = 0;
        drop(outbox);
        counters.count_dropped(Dropped::Unreachable, frames);
    }
}

impl Outbox {
    fn take(&mut self) -> Option<Bytes> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.len();
        Some(frame)
    }
}

/// Looks after one peer until the transport stops or nobody talks to it any more.
pub(super) async fn run(shared: Arc<Shared>, peer: Arc<Peer>) {
    let mut rng = shared.rng();
    loop {
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => break,
            in_demand = peer.in_demand() => if !in_demand {
                break;
            },
        }
        let connected = match peer.connected() {
            Some(live) => Some(live),
            None => tokio::select! {
                biased;
                () = shared.stop.cancelled() => break,
                live = connect(&shared, &peer, &mut rng) => live,
            },
        };
        if let Some(live) = connected {
            send(&shared, &peer, live).await;
        }
    }
    if let Some(live) = peer.connected() {
        leave(&shared, &peer, live).await;
    }
}

/// Dials until there is a connection, whoever made it, or until the peer is given up.
async fn connect(shared: &Arc<Shared>, peer: &Arc<Peer>, rng: &mut StdRng) -> Option<Live> {
    let began = Instant::now();
    let mut pause = BACKOFF_MIN;
    let mut offers = peer.live.subscribe();
    loop {
        match dial(shared, peer.address).await {
            Ok(live) => {
                shared.counters.count_connect(true);
                peer.offer(live.clone());
                shared.spawn(connection::run(
                    Arc::clone(shared),
                    live.connection.clone(),
                    live.region,
                ));
                info!(peer = %peer.address, region = shared.names.name(live.region), "connected");
                return Some(live);
            }
            Err(reason) => {
                shared.counters.count_connect(false);
                if pause == BACKOFF_MIN {
                    warn!(peer = %peer.address, reason, "cannot connect");
                }
            }
        }
        if began.elapsed() > GIVE_UP {
            peer.discard(&shared.counters);
            return None;
        }
        // Full jitter, so that nodes that lost a peer together don't come back together.
        let jittered = pause.mul_f64(rng.random());
        pause = (pause * 2).min(BACKOFF_MAX);
        // The peer may get through to this node meanwhile; else nothing is to be waited for.
        if timeout(jittered, offers.changed()).await.is_ok()
            && let Some(live) = peer.connected()
        {
            return Some(live);
        }
    }
}

/// One attempt to connect.
async fn dial(shared: &Shared, address: SocketAddr) -> Result<Live, String> {
    let connecting = shared
        .endpoint
        .connect(address, tls::NODE_NAME)
        .map_err(|error| error.to_string())?;
    let connection = timeout(CONNECT_TIMEOUT, connecting)
        .await
        .map_err(|_elapsed| "timed out".to_owned())?
        .map_err(|error| error.to_string())?;
    let region = connection::region_of(shared, &connection)
        .ok_or_else(|| "its certificate names no region".to_owned())?;
    Ok(Live {
        connection,
        region,
        incarnation: 0,
    })
}

/// Sends over one connection until it ends or a better one is there.
async fn send(shared: &Shared, peer: &Peer, live: Live) {
    let mut lane = Lane::new(shared, &live);
    let mut offers = peer.live.subscribe();
    offers.mark_unchanged();
    loop {
        let deadline = lane.deadline();
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => break,
            error = live.connection.closed() => {
                info!(peer = %peer.address, reason = %error, "disconnected");
                break;
            }
            changed = offers.changed() => {
                if changed.is_err() || is_replaced(peer, &live) {
                    break;
                }
            }
            () = at(deadline) => lane.forward().await,
            frame = peer.next() => {
                lane.offer(shared.links.shape(shared.region, live.region), frame);
                lane.forward().await;
            }
        }
    }
    if shared.stop.is_cancelled() {
        lane.finish().await;
    }
}

fn is_replaced(peer: &Peer, live: &Live) -> bool {
    peer.connected()
        .is_some_and(|now| now.connection.stable_id() != live.connection.stable_id())
}

/// Sends the last frames of a leaving node.
async fn leave(shared: &Shared, peer: &Peer, live: Live) {
    let mut lane = Lane::new(shared, &live);
    while let Some(frame) = peer.take() {
        lane.offer(shared.links.shape(shared.region, live.region), frame);
    }
    lane.finish().await;
    let flushed = async {
        while live.connection.datagram_send_buffer_space() < tls::DATAGRAM_BUFFER
            && live.connection.close_reason().is_none()
        {
            sleep(Duration::from_millis(2)).await;
        }
    };
    if timeout(FLUSH_TIMEOUT, flushed).await.is_err() {
        warn!(peer = %peer.address, "the last frames may not have been sent");
    }
}

/// The way of frames over one connection: the shaped link, then a datagram or a stream.
pub(super) struct Lane {
    connection: Connection,
    counters: Arc<Counters>,
    shaper: Shaper,
    writers: JoinSet<()>,
}

impl Lane {
    pub(super) fn new(shared: &Shared, live: &Live) -> Self {
        Self {
            connection: live.connection.clone(),
            counters: Arc::clone(&shared.counters),
            shaper: Shaper::new(shared.rng()),
            writers: JoinSet::new(),
        }
    }

    /// Puts a frame on its way.
    pub(super) fn offer(&mut self, shape: LinkShape, frame: Bytes) {
        if let Err(reason) = self.shaper.offer(Instant::now(), shape, frame) {
            self.counters.count_dropped(reason, 1);
        }
    }

    /// When the next frame has come to the end of the shaped link.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.shaper.deadline()
    }

    /// Sends the frames that have come to the end of the shaped link.
    pub(super) async fn forward(&mut self) {
        while let Some(frame) = self.shaper.arrived(Instant::now()) {
            self.transmit(frame).await;
        }
    }

    /// Sends everything now, and waits for the streams.
    async fn finish(&mut self) {
        while let Some(frame) = self.shaper.next() {
            self.transmit(frame).await;
        }
        while self.writers.join_next().await.is_some() {}
    }

    /// Waits for the congestion controller, which is why frames queue here and not in QUIC.
    async fn transmit(&mut self, frame: Bytes) {
        let len = frame.len();
        let by_stream = self
            .connection
            .max_datagram_size()
            .is_none_or(|max| len > max);
        if by_stream {
            while self.writers.try_join_next().is_some() {}
            if self.writers.len() >= WRITERS_MAX {
                self.writers.join_next().await;
            }
            let (connection, counters) = (self.connection.clone(), Arc::clone(&self.counters));
            self.writers.spawn(async move {
                if write(&connection, &frame).await.is_err() {
                    counters.count_dropped(Dropped::ConnectionLost, 1);
                }
            });
        } else if self.connection.send_datagram_wait(frame).await.is_err() {
            self.counters.count_dropped(Dropped::ConnectionLost, 1);
            return;
        }
        self.counters.count_sent(len, by_stream);
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let lost = self.shaper.len();
        self.counters.count_dropped(Dropped::ConnectionLost, lost);
    }
}

/// Writes one frame to a stream of its own, and waits until the peer has it.
async fn write(connection: &Connection, frame: &[u8]) -> Result<(), quinn::WriteError> {
    let mut stream = connection.open_uni().await?;
    stream.write_all(frame).await?;
    if stream.finish().is_ok() {
        // Acknowledged or refused: either way there is nothing left to do.
        drop(stream.stopped().await);
    }
    Ok(())
}

/// Waits for an instant; for ever if there is none.
pub(super) async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
