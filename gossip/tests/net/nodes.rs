//! Nodes for tests: their certificates, and waiting for what they receive.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use gossip::codec::Codec;
use gossip::frame::{Frame, Hello, KeyRow, Message};
use gossip::identity::Member;
use gossip::transport::{Credentials, Inbound, Links, Settings, Transport};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use region::ledger::{Entry, Row};
use region::units::{
    Client, Generation, Key, Level, PolicyId, RegionId, Sequence, Share, Stamp, Timestamp,
};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

pub(crate) const AP: RegionId = RegionId(0);
pub(crate) const EU: RegionId = RegionId(1);
pub(crate) const US: RegionId = RegionId(2);

const REGIONS: [&str; 3] = ["ap", "eu", "us"];

/// Nothing here takes longer than a few seconds, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A CA for one test, and the certificate of each region.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// The chain and the key of each region, as PEM.
    regions: Vec<(String, String)>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let regions = REGIONS.map(|region| {
            issue(
                &issuer,
                &["node.tidegate", &format!("{region}.region.tidegate")],
            )
        });
        Self {
            issuer,
            regions: regions.to_vec(),
        }
    }

    pub(crate) fn settings(&self, region: RegionId, name: &str, seeds: &[SocketAddr]) -> Settings {
        let (chain, key) = &self.regions[usize::from(region.0)];
        let ca = self.issuer.pem();
        Settings {
            bind: "127.0.0.1:0".parse().unwrap(),
            advertise: None,
            name: name.into(),
            regions: REGIONS.map(str::to_owned).to_vec(),
            region,
            incarnation: 1,
            seeds: seeds.iter().map(ToString::to_string).collect(),
            credentials: Credentials::from_pem(ca.as_bytes(), chain.as_bytes(), key.as_bytes())
                .unwrap(),
            links: Links::default(),
            seed: 7,
        }
    }

    /// A bare QUIC client with a certificate of this CA for these names.
    pub(crate) fn client(&self, names: &[&str]) -> quinn::Endpoint {
        use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
        let (chain, key) = issue(&self.issuer, names);
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let chain = vec![CertificateDer::from_pem_slice(chain.as_bytes()).unwrap()];
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .unwrap();
        tls.alpn_protocols = vec![b"tidegate/1".to_vec()];
        let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
        let mut endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(crypto)));
        endpoint
    }
}

/// A certificate with these names and its key, as PEM.
fn issue(issuer: &CertifiedIssuer<'static, KeyPair>, names: &[&str]) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let chain = params.signed_by(&key, issuer).unwrap().pem();
    (chain, key.serialize_pem())
}

/// A node that can die as with SIGKILL: it says nothing, and its port is free again.
pub(crate) struct Silent {
    pub(crate) address: SocketAddr,
    runtime: tokio::runtime::Runtime,
}

impl Silent {
    pub(crate) fn start(authority: &Authority, region: RegionId, seeds: &[SocketAddr]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let settings = authority.settings(region, "us-1", seeds);
        let guard = runtime.enter();
        let (transport, _) = Transport::bind(settings).unwrap();
        let address = transport.own().address();
        drop(guard);
        Self { address, runtime }
    }

    pub(crate) async fn kill(self) {
        self.runtime.shutdown_background();
        let end = Instant::now() + PATIENCE;
        while std::net::UdpSocket::bind(self.address).is_err() {
            assert!(Instant::now() < end, "the port is still taken");
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A transport and what it has received.
pub(crate) struct Node {
    pub(crate) transport: Transport,
    inbound: mpsc::Receiver<Inbound>,
}

impl From<(Transport, mpsc::Receiver<Inbound>)> for Node {
    fn from((transport, inbound): (Transport, mpsc::Receiver<Inbound>)) -> Self {
        Self { transport, inbound }
    }
}

impl Node {
    pub(crate) fn start(
        authority: &Authority,
        region: RegionId,
        name: &str,
        seeds: &[SocketAddr],
    ) -> Self {
        Self::start_linked(authority, region, name, seeds, &Links::default())
    }

    pub(crate) fn start_linked(
        authority: &Authority,
        region: RegionId,
        name: &str,
        seeds: &[SocketAddr],
        links: &Links,
    ) -> Self {
        let settings = authority.settings(region, name, seeds);
        let links = links.clone();
        Self::from(Transport::bind(Settings { links, ..settings }).unwrap())
    }

    pub(crate) fn start_at(
        authority: &Authority,
        region: RegionId,
        name: &str,
        bind: SocketAddr,
    ) -> Self {
        let settings = authority.settings(region, name, &[]);
        let incarnation = 2;
        Self::from(
            Transport::bind(Settings {
                bind,
                incarnation,
                ..settings
            })
            .unwrap(),
        )
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.transport.own().address()
    }

    /// The next frame that is no greeting: those are repeated until they are answered.
    pub(crate) async fn receive(&mut self) -> Inbound {
        loop {
            let inbound = self.next().await;
            if !matches!(inbound.frame.message, Message::Hello(_)) {
                return inbound;
            }
        }
    }

    pub(crate) async fn hello(&mut self) -> Hello {
        match self.next().await.frame.message {
            Message::Hello(hello) => hello,
            other => panic!("{other:?} before a greeting"),
        }
    }

    pub(crate) async fn next(&mut self) -> Inbound {
        let received = timeout(PATIENCE, self.inbound.recv()).await;
        received
            .expect("something to arrive")
            .expect("the transport to run")
    }

    pub(crate) async fn receives_nothing_for(&mut self, span: Duration) -> bool {
        timeout(span, self.inbound.recv()).await.is_err()
    }

    pub(crate) async fn receives_rows_within(&mut self, span: Duration) -> bool {
        let rows = async {
            loop {
                if let Message::Rows(_) = self.inbound.recv().await.unwrap().frame.message {
                    return;
                }
            }
        };
        timeout(span, rows).await.is_ok()
    }
}

pub(crate) async fn stop<const N: usize>(nodes: [Node; N]) {
    for node in nodes {
        node.transport.shutdown().await;
    }
}

pub(crate) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn encoded(frame: &Frame) -> Vec<u8> {
    Codec::new(&REGIONS).encode(frame).unwrap()
}

pub(crate) fn greeting(name: &str, region: &str) -> Vec<u8> {
    let member = Member::try_new(name, region, "127.0.0.1:9".parse().unwrap(), 1).unwrap();
    encoded(&Frame {
        heard: Vec::new(),
        message: Message::Hello(Hello {
            member,
            reply: true,
        }),
    })
}

pub(crate) fn swim(len: usize) -> Frame {
    Frame {
        heard: Vec::new(),
        message: Message::Swim(vec![7; len]),
    }
}

/// One frame with a row for each of these clients.
pub(crate) fn rows(clients: Range<u128>) -> Frame {
    let now = 1_796_000_000_000_000;
    let stamp = Stamp {
        generation: Generation(now - 90_000_000_000),
        clock: Timestamp(now),
    };
    let entry = |region| Entry {
        region,
        seen: stamp,
        ..Entry::default()
    };
    let row = Row {
        region: US,
        terms: 42,
        version: Sequence {
            generation: stamp.generation,
            n: now,
        },
        clock: stamp.clock,
        demand: Share(900_000),
        share: Share(500_000),
        level: Level(1_000_000_000),
        admitted: 77,
        entries: vec![entry(AP), entry(EU)],
    };
    let keys = clients.map(|client| Key {
        client: Client(client),
        policy: PolicyId(1),
    });
    Frame {
        heard: vec![EU],
        message: Message::Rows(
            keys.map(|key| KeyRow {
                key,
                row: row.clone(),
            })
            .collect(),
        ),
    }
}
