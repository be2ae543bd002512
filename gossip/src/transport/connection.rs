//! One connection: who is at the other end, and what comes from there.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, ConnectionError, Incoming, RecvStream, VarInt};
use region::units::RegionId;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tracing::{info, warn};

use super::counters::{Dropped, Rejected};
use super::peer::{Lane, Live, at};
use super::{CONNECTIONS_MAX, Inbound, Sender, Shared, lock};
use crate::frame::{Frame, Hello, Message, STREAM_LEN_MAX};
use crate::identity::Member;

/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a stream may take to arrive.
const STREAM_TIMEOUT: Duration = Duration::from_secs(10);

/// How often this node introduces itself until the peer has answered.
const GREETING_INTERVAL: Duration = Duration::from_millis(500);

/// So much nonsense within [`FLOOD_WINDOW`] ends a connection.
const FLOOD_MAX: u32 = 1_000;

/// How long nonsense is remembered.
const FLOOD_WINDOW: Duration = Duration::from_secs(10);

/// What a connection is closed with.
const CLOSE_UNKNOWN_REGION: VarInt = VarInt::from_u32(1);
const CLOSE_FLOOD: VarInt = VarInt::from_u32(2);
const CLOSE_SELF: VarInt = VarInt::from_u32(3);

/// Takes connections until the transport stops. One that fails touches no other.
pub(super) async fn accept(shared: Arc<Shared>) {
    loop {
        let incoming = tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            incoming = shared.endpoint.accept() => incoming,
        };
        let Some(incoming) = incoming else { return };
        if shared.endpoint.open_connections() >= CONNECTIONS_MAX {
            incoming.refuse();
            continue;
        }
        shared.spawn(welcome(Arc::clone(&shared), incoming));
    }
}

async fn welcome(shared: Arc<Shared>, incoming: Incoming) {
    let Ok(connecting) = incoming.accept() else {
        return;
    };
    let Ok(Ok(connection)) = timeout(HANDSHAKE_TIMEOUT, connecting).await else {
        return;
    };
    if let Some(region) = region_of(&shared, &connection) {
        run(shared, connection, region).await;
    }
}

/// The region of the node at the other end; a connection to a node without one is closed.
pub(super) fn region_of(shared: &Shared, connection: &Connection) -> Option<RegionId> {
    let region = shared.names.region_at(connection);
    if region.is_none() {
        warn!(peer = %connection.remote_address(), "a peer's certificate names no region");
        shared.counters.count_rejected(Rejected::Certificate);
        connection.close(CLOSE_UNKNOWN_REGION, b"the certificate names no region");
    }
    region
}

/// Reads from a connection until it ends, and greets.
pub(super) async fn run(shared: Arc<Shared>, connection: Connection, region: RegionId) {
    shared.counters.count_open();
    let mut greeter = Greeter::new(&shared, connection.clone(), region);
    let mut greetings = interval(GREETING_INTERVAL);
    greetings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut streams = JoinSet::new();
    loop {
        let deadline = greeter.lane.deadline();
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => break,
            datagram = connection.read_datagram() => match datagram {
                Ok(bytes) => greeter.receive(&bytes),
                Err(_ended) => break,
            },
            stream = connection.accept_uni() => match stream {
                Ok(stream) => { streams.spawn(read(stream)); }
                Err(_ended) => break,
            },
            Some(read) = streams.join_next() => match read {
                Ok(Some(bytes)) => greeter.receive(&bytes),
                Ok(None) | Err(_) => greeter.reject(Rejected::Stream),
            },
            () = at(deadline) => {}
            _ = greetings.tick(), if !greeter.answered => greeter.greet(false),
        }
        if greeter.closed {
            // What QUIC has buffered is not worth reading any more.
            break;
        }
        greeter.lane.forward().await;
    }
    if met_itself(&connection) {
        lock(&shared.itself).insert(connection.remote_address());
    }
    shared.counters.count_closed();
}

/// Whether the other end, which is this node too, noticed first and closed the connection.
fn met_itself(connection: &Connection) -> bool {
    matches!(
        connection.close_reason(),
        Some(ConnectionError::ApplicationClosed(close)) if close.error_code == CLOSE_SELF
    )
}

/// What one stream carries: one frame, or `None` if it is too long, too slow or cut short.
async fn read(mut stream: RecvStream) -> Option<Vec<u8>> {
    timeout(STREAM_TIMEOUT, stream.read_to_end(STREAM_LEN_MAX))
        .await
        .ok()?
        .ok()
}

/// One end's knowledge of the other.
struct Greeter<'a> {
    shared: &'a Arc<Shared>,
    connection: Connection,
    region: RegionId,
    /// Who greeted from the other end.
    peer: Option<Member>,
    /// Whether the peer has answered this node's greeting.
    answered: bool,
    /// Whether this end has closed the connection.
    closed: bool,
    lane: Lane,
    nonsense: u32,
    nonsense_since: Instant,
}

impl<'a> Greeter<'a> {
    fn new(shared: &'a Arc<Shared>, connection: Connection, region: RegionId) -> Self {
        let live = Live {
            connection: connection.clone(),
            region,
            incarnation: 0,
        };
        Self {
            shared,
            connection,
            region,
            peer: None,
            answered: false,
            closed: false,
            lane: Lane::new(shared, &live),
            nonsense: 0,
            nonsense_since: Instant::now(),
        }
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.shared.counters.count_received(bytes.len());
        match self.shared.codec.decode(bytes) {
            Ok(Frame {
                heard,
                message: Message::Hello(hello),
            }) => self.greeted(heard, hello),
            Ok(frame) => self.hand_on(frame),
            Err(rejection) => self.reject(rejection.into()),
        }
    }

    fn greeted(&mut self, heard: Vec<RegionId>, hello: Hello) {
        if hello.member.region() != self.shared.names.name(self.region) {
            self.reject(Rejected::Greeting);
            return;
        }
        let own = lock(&self.shared.own).clone();
        if hello.member.name() == own.name() && hello.member.address() == own.address() {
            // A seed's name that means this node itself.
            lock(&self.shared.itself).insert(self.connection.remote_address());
            self.close(CLOSE_SELF, b"this is the same node");
            return;
        }
        if hello.reply {
            self.answered = true;
        } else {
            self.greet(true);
        }
        if self.peer.as_ref() == Some(&hello.member) {
            return;
        }
        info!(peer = %hello.member, "greeted");
        if let Some(peer) = self.shared.peer(hello.member.address()) {
            peer.offer(Live {
                connection: self.connection.clone(),
                region: self.region,
                incarnation: hello.member.incarnation(),
            });
        }
        self.peer = Some(hello.member.clone());
        self.hand_on(Frame {
            heard,
            message: Message::Hello(hello),
        });
    }

    fn greet(&mut self, reply: bool) {
        let member = lock(&self.shared.own).clone();
        let frame = Frame {
            heard: Vec::new(),
            message: Message::Hello(Hello { member, reply }),
        };
        let bytes = self.shared.codec.encode(&frame);
        let bytes = bytes.expect("two names and an address are far below the limit");
        let shape = self.shared.links.shape(self.shared.region, self.region);
        self.lane.offer(shape, Bytes::from(bytes));
    }

    fn hand_on(&self, frame: Frame) {
        let from = Sender {
            region: self.region,
            address: self.peer.as_ref().map(Member::address),
        };
        if self
            .shared
            .inbound
            .try_send(Inbound { from, frame })
            .is_err()
        {
            self.shared.counters.count_dropped(Dropped::InboundFull, 1);
        }
    }

    /// Counts nonsense. The connection goes on, unless it carries little else.
    fn reject(&mut self, reason: Rejected) {
        self.shared.counters.count_rejected(reason);
        if self.nonsense_since.elapsed() > FLOOD_WINDOW {
            self.nonsense = 0;
            self.nonsense_since = Instant::now();
        }
        if self.nonsense == 0 {
            let peer = self.connection.remote_address();
            warn!(%peer, reason = reason.name(), "a peer sends what cannot be used");
        }
        self.nonsense += 1;
        if self.nonsense >= FLOOD_MAX {
            self.shared.counters.count_rejected(Rejected::Flood);
            self.close(CLOSE_FLOOD, b"too much nonsense");
        }
    }

    fn close(&mut self, code: VarInt, reason: &[u8]) {
        self.closed = true;
        self.connection.close(code, reason);
    }
}
