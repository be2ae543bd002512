//! A peer with a good certificate that says what no node says.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::World;

#[derive(Debug)]
pub(crate) struct Stranger {
    /// Ends the connection when it is gone.
    _endpoint: Endpoint,
    connection: Connection,
}

impl Stranger {
    /// Connects to a node's gossip with a certificate of a region.
    pub(crate) async fn connect(world: &World, region: &str, to: SocketAddr) -> Self {
        let read = |name: String| fs::read(world.certificates().join(name)).expect("a file");
        let certificate = |name| {
            let pem = read(name);
            CertificateDer::from_pem_slice(&pem).expect("a certificate")
        };
        let key = read(format!("{region}-key.pem"));
        let key = PrivateKeyDer::from_pem_slice(&key).expect("a key");
        let mut roots = RootCertStore::empty();
        roots.add(certificate("ca.pem".to_owned())).expect("a root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("a version")
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate(format!("{region}.pem"))], key)
            .expect("the key of the certificate");
        tls.alpn_protocols = vec![b"tidegate/1".to_vec()];
        let crypto = QuicClientConfig::try_from(tls).expect("ciphers");
        let bind = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut endpoint = Endpoint::client(bind).expect("a port");
        endpoint.set_default_client_config(ClientConfig::new(Arc::new(crypto)));
        let connecting = endpoint.connect(to, "node.tidegate").expect("an address");
        Self {
            connection: connecting.await.expect("a connection"),
            _endpoint: endpoint,
        }
    }

    pub(crate) fn say(&self, bytes: Vec<u8>) {
        self.connection.send_datagram(bytes.into()).expect("sent");
    }

    /// Says something by a stream of its own.
    pub(crate) async fn say_at_length(&self, bytes: &[u8]) {
        let mut stream = self.connection.open_uni().await.expect("a stream");
        stream.write_all(bytes).await.expect("sent");
        stream.finish().expect("sent");
    }

    /// Whether the node has not hung up.
    pub(crate) fn is_connected(&self) -> bool {
        self.connection.close_reason().is_none()
    }
}
