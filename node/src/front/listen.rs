//! Accepts connections and serves them: with limits, with timeouts, and never giving up.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::telemetry::metrics::ListenerMetrics;

/// The most connections of one listener; more wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 8192;

/// How long a new connection may take to send its first request, or its HTTP/2 preface.
const GREETING_MAX: Duration = Duration::from_secs(10);

/// How long an HTTP/1 connection may stay idle, or take over the head of a later request.
const IDLE_MAX: Duration = Duration::from_secs(75);

/// How often a quiet HTTP/2 peer is asked whether it is still there, and how long it may think.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest head of a request.
const HEAD_MAX: usize = 16 * 1024;

/// The most requests at once on one HTTP/2 connection.
const STREAMS_MAX: u32 = 1024;

/// The pause after an accept error: doubled up to the longest, forgotten after a success.
const PAUSE_FIRST: Duration = Duration::from_millis(5);
const PAUSE_LONGEST: Duration = Duration::from_millis(500);

/// The bytes with which every HTTP/2 client begins.
const PREFACE_LEN: usize = 24;

/// What is spoken on a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1
    Http1,
    /// HTTP/2 without TLS, which is what gRPC needs.
    Http2,
}

/// A bound socket that is not served yet.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    protocol: Protocol,
}

/// Serves one connection; shared by all connections of a listener.
#[derive(Clone, Debug)]
struct Server {
    router: Router,
    protocol: Protocol,
    drain: CancellationToken,
}

impl Listener {
    /// Binds an address; port 0 takes a free one.
    ///
    /// # Errors
    /// If the address is taken or not ours.
    pub async fn bind(address: SocketAddr, protocol: Protocol) -> io::Result<Self> {
        let socket = TcpListener::bind(address).await?;
        Ok(Self {
            address: socket.local_addr()?,
            socket,
            protocol,
        })
    }

    /// The address that is bound.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves connections until `drain`: then accepts no more, lets requests in flight end, and
    /// returns when the last connection is closed. The caller bounds how long that may take.
    pub async fn serve(self, router: Router, metrics: ListenerMetrics, drain: CancellationToken) {
        let server = Server {
            router,
            protocol: self.protocol,
            drain: drain.clone(),
        };
        let mut connections = JoinSet::new();
        let mut pause = PAUSE_FIRST;
        loop {
            let accepted = tokio::select! {
                biased;
                () = drain.cancelled() => break,
                Some(_) = connections.join_next() => {
                    metrics.connections.dec();
                    continue;
                }
                accepted = self.socket.accept(), if connections.len() < CONNECTIONS_MAX => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    pause = PAUSE_FIRST;
                    metrics.connections.inc();
                    connections.spawn(server.clone().connection(stream));
                }
                Err(error) => {
                    metrics.accept_errors.inc();
                    tracing::debug!(%error, address = %self.address, "accepting failed");
                    if !is_of_the_connection(&error) {
                        sleep(pause).await;
                        pause = pause.saturating_mul(2).min(PAUSE_LONGEST);
                    }
                }
            }
        }
        drop(self.socket);
        while connections.join_next().await.is_some() {
            metrics.connections.dec();
        }
    }
}

impl Server {
    async fn connection(self, stream: TcpStream) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection was gone at once");
            return;
        }
        match self.protocol {
            Protocol::Http1 => self.http1(stream).await,
            Protocol::Http2 => self.http2(stream).await,
        }
    }

    async fn http1(self, stream: TcpStream) {
        let greeted = Arc::new(AtomicBool::new(false));
        let service = self.service(Arc::clone(&greeted));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE_MAX)
            .max_buf_size(HEAD_MAX)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let mut draining = pin!(self.drain.cancelled());
        let mut greeting = pin!(sleep(GREETING_MAX));
        loop {
            let ended = tokio::select! {
                biased;
                () = &mut draining => {
                    connection.as_mut().graceful_shutdown();
                    connection.as_mut().await
                }
                () = &mut greeting, if !greeting.is_elapsed() => {
                    if greeted.load(Ordering::Relaxed) {
                        continue;
                    }
                    return;
                }
                ended = connection.as_mut() => ended,
            };
            return ended_with(ended);
        }
    }

    async fn http2(self, stream: TcpStream) {
        let hello = timeout(GREETING_MAX, preface(&stream));
        tokio::select! {
            biased;
            () = self.drain.cancelled() => return,
            greeted = hello => if !matches!(greeted, Ok(Ok(true))) {
                return;
            },
        }
        let service = self.service(Arc::default());
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(u32::try_from(HEAD_MAX).unwrap_or(u32::MAX))
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let ended = tokio::select! {
            biased;
            () = self.drain.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.as_mut().await
            }
            ended = connection.as_mut() => ended,
        };
        ended_with(ended);
    }

    /// The router as a service that remembers whether it was ever called.
    fn service(
        &self,
        greeted: Arc<AtomicBool>,
    ) -> impl Service<
        Request<Incoming>,
        Response = axum::response::Response,
        Error = std::convert::Infallible,
        Future: Send + 'static,
    > + Send
    + use<> {
        let router = TowerToHyperService::new(self.router.clone());
        service_fn(move |request| {
            greeted.store(true, Ordering::Relaxed);
            router.call(request)
        })
    }
}

/// Waits until as many bytes have arrived as every HTTP/2 client sends first.
async fn preface(stream: &TcpStream) -> io::Result<bool> {
    let mut bytes = [0; PREFACE_LEN];
    loop {
        match stream.peek(&mut bytes).await? {
            0 => return Ok(false),
            PREFACE_LEN => return Ok(true),
            // Readiness would report the same bytes at once; wait for more without spinning.
            _ => sleep(Duration::from_millis(20)).await,
        }
    }
}

/// A fault of one connection says nothing about the next one.
fn is_of_the_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

fn ended_with(ended: Result<(), hyper::Error>) {
    if let Err(error) = ended {
        tracing::trace!(%error, "a connection ended");
    }
}
