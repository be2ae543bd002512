//! Who may talk: mutual TLS 1.3 under a private CA. A certificate says which region its node is of.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ConnectionId, ConnectionIdGenerator, EndpointConfig, IdleTimeout, VarInt};
use region::units::RegionId;
use ring::hmac;
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{RootCertStore, version};

/// The name that every node's certificate carries and that a dialler asks for.
pub const NODE_NAME: &str = "node.tidegate";

/// What follows the region's name in a certificate.
pub const REGION_SUFFIX: &str = ".region.tidegate";

/// What is spoken over a connection; a new number for frames that old nodes cannot skip.
const ALPN: &[u8] = b"tidegate/1";

/// Keeps NAT mappings and the idle timeout alive.
const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// After this long without a sign of life a connection is over.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// The most streams that a peer may have open.
const STREAMS_MAX: u32 = 16;

/// A node's certificate and key, and the CA that the other nodes' certificates come from.
pub struct Credentials {
    authorities: Vec<CertificateDer<'static>>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

/// Credentials that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A file is not PEM, or has nothing of what it should have.
    #[error("the {what} cannot be read")]
    Pem {
        /// Which of the three files.
        what: &'static str,
        /// What is wrong with it.
        source: rustls::pki_types::pem::Error,
    },
    /// The certificate, the key and the CA don't fit together.
    #[error("the certificate, its key and the CA cannot be used together")]
    Tls(#[from] rustls::Error),
    /// The CA is not one.
    #[error("the CA cannot verify peers")]
    Authority(#[from] rustls::server::VerifierBuilderError),
    /// The ciphers that QUIC needs are missing.
    #[error("no cipher suite for QUIC")]
    Cipher(#[from] quinn::crypto::rustls::NoInitialCipherSuite),
    /// The certificate is for another region, for none, or for several.
    #[error("the certificate does not name region {0} and only that")]
    Region(String),
}

impl Credentials {
    /// Credentials from PEM files: the CA's certificates, the node's chain, the node's key.
    ///
    /// # Errors
    /// If a file has no certificate or key, or is not PEM.
    pub fn from_pem(ca: &[u8], chain: &[u8], key: &[u8]) -> Result<Self, CredentialsError> {
        Ok(Self {
            authorities: certificates(ca, "CA")?,
            chain: certificates(chain, "certificate")?,
            key: PrivateKeyDer::from_pem_slice(key).map_err(|source| CredentialsError::Pem {
                what: "key",
                source,
            })?,
        })
    }

    pub(super) fn server(&self) -> Result<quinn::ServerConfig, CredentialsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(self.roots()?, Arc::clone(&provider))
                .build()?;
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain.clone(), self.key.clone_key())?;
        tls.alpn_protocols = vec![ALPN.to_vec()];
        // A resumed session would keep a region that the certificate no longer names.
        tls.send_tls13_tickets = 0;
        let crypto = Arc::new(QuicServerConfig::try_from(tls)?);
        let mut config = quinn::ServerConfig::with_crypto(crypto);
        config.transport_config(transport_config());
        Ok(config)
    }

    pub(super) fn client(&self) -> Result<quinn::ClientConfig, CredentialsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])?
            .with_root_certificates(self.roots()?)
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())?;
        tls.alpn_protocols = vec![ALPN.to_vec()];
        tls.resumption = rustls::client::Resumption::disabled();
        let crypto = Arc::new(QuicClientConfig::try_from(tls)?);
        let mut config = quinn::ClientConfig::new(crypto);
        config.transport_config(transport_config());
        Ok(config)
    }

    /// An endpoint whose stateless resets a peer still believes after a restart (case 54).
    ///
    /// The key is one of this address, because the nodes of a region may share a certificate:
    /// with one key for all, one node's reset could end another's connections (RFC 9000, 10.3.2).
    pub(super) fn endpoint(&self, advertised: SocketAddr) -> EndpointConfig {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, self.key.secret_der());
        let purpose = format!("tidegate stateless reset {advertised}");
        let reset = hmac::sign(&secret, purpose.as_bytes());
        let mut config =
            EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, reset.as_ref())));
        config.cid_generator(|| Box::new(RandomIds));
        config
    }

    /// Checks that the node's own certificate names its region.
    pub(super) fn check_region(
        &self,
        names: &RegionNames,
        own: RegionId,
    ) -> Result<(), CredentialsError> {
        let named = self.chain.first().and_then(|leaf| names.region_of(leaf));
        if named == Some(own) {
            Ok(())
        } else {
            Err(CredentialsError::Region(names.name(own).to_owned()))
        }
    }

    fn roots(&self) -> Result<Arc<RootCertStore>, CredentialsError> {
        let mut roots = RootCertStore::empty();
        for authority in &self.authorities {
            roots.add(authority.clone())?;
        }
        Ok(Arc::new(roots))
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("key", &"***")
            .finish_non_exhaustive()
    }
}

/// The configured regions, as certificates name them.
#[derive(Debug)]
pub(super) struct RegionNames(Vec<(String, Option<ServerName<'static>>)>);

impl RegionNames {
    pub(super) fn new(regions: &[String]) -> Self {
        Self(
            regions
                .iter()
                .map(|region| {
                    let name = ServerName::try_from(format!("{region}{REGION_SUFFIX}"));
                    (region.clone(), name.ok())
                })
                .collect(),
        )
    }

    pub(super) fn name(&self, region: RegionId) -> &str {
        let named = self.0.get(usize::from(region.0));
        named.map_or("", |(region, _)| region.as_str())
    }

    /// The only configured region that a certificate names.
    pub(super) fn region_of(&self, certificate: &CertificateDer<'_>) -> Option<RegionId> {
        let parsed = ParsedCertificate::try_from(certificate).ok()?;
        let mut regions = (0_u16..).zip(&self.0).filter(|(_, (_, name))| {
            name.as_ref()
                .is_some_and(|name| verify_server_name(&parsed, name).is_ok())
        });
        let (region, _) = regions.next()?;
        regions.next().is_none().then_some(RegionId(region))
    }

    /// The region of the node at the other end of a connection.
    pub(super) fn region_at(&self, connection: &quinn::Connection) -> Option<RegionId> {
        let identity = connection.peer_identity()?;
        let chain = identity.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        self.region_of(chain.first()?)
    }
}

/// Connection ids that any run of a node takes for its own, so that it answers packets of its
/// former connections with a reset.
struct RandomIds;

impl ConnectionIdGenerator for RandomIds {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&rand::random::<[u8; 8]>())
    }

    fn cid_len(&self) -> usize {
        8
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

fn certificates(
    pem: &[u8],
    what: &'static str,
) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let failed = |source| CredentialsError::Pem { what, source };
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(failed)?;
    if found.is_empty() {
        return Err(failed(rustls::pki_types::pem::Error::NoItemsFound));
    }
    Ok(found)
}

fn transport_config() -> Arc<quinn::TransportConfig> {
    let mut config = quinn::TransportConfig::default();
    config
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(Some(
            IdleTimeout::try_from(IDLE_TIMEOUT).expect("four seconds fit a QUIC timeout"),
        ))
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(STREAMS_MAX))
        .stream_receive_window(VarInt::from_u32(512 * 1024))
        .receive_window(VarInt::from_u32(4 * 1024 * 1024))
        .datagram_receive_buffer_size(Some(4 * 1024 * 1024))
        .datagram_send_buffer_size(DATAGRAM_BUFFER);
    Arc::new(config)
}

/// How many bytes of datagrams wait for the congestion controller.
pub(super) const DATAGRAM_BUFFER: usize = 1024 * 1024;
