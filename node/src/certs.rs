//! Certificates for gossip: a CA of one's own and a certificate per region, and the secret of keys.
//!
//! A node's certificate names what every node is called and the region that it speaks for; nodes
//! of one region may share it.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use gossip::transport::{Credentials, CredentialsError, NODE_NAME, REGION_SUFFIX};
use rand::TryRng as _;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// How long what is issued is valid.
const VALID_FOR: Duration = Duration::from_secs(10 * 365 * 86_400);

/// How far the clocks of the issuer and of a node may be apart.
const CLOCK_SLACK: Duration = Duration::from_secs(86_400);

/// Why certificates were not made. Files that were made before remain.
#[derive(Debug, thiserror::Error)]
pub enum CertsError {
    /// A file could not be read or written.
    #[error("{}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// A CA's certificate without its key, or the key without the certificate.
    #[error(
        "{} is missing beside the other half of its CA: restore it, or move both away", .0.display()
    )]
    Half(PathBuf),
    /// A region's name that no host name can hold.
    #[error("region `{0}`: names hold letters, digits and hyphens, and have at most 63 characters")]
    Name(String),
    /// A certificate could not be made, or the key of the CA could not be read.
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
    /// What was made cannot be used for gossip.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The system has no random numbers.
    #[error("the system's random numbers cannot be read")]
    Random,
}

/// A certificate authority.
#[derive(Debug)]
pub struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, both PEM.
#[derive(Clone)]
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

impl std::fmt::Debug for Issued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issued")
            .field("key", &"***")
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// A new authority.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn new() -> Result<Self, CertsError> {
        let key = KeyPair::generate()?;
        let params = authority_params();
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self {
            certificate,
            issuer: Issuer::new(params, key),
        })
    }

    /// The authority that [`Authority::new`] made before.
    ///
    /// # Errors
    /// If the key cannot be read.
    pub fn open(certificate: String, key: &str) -> Result<Self, CertsError> {
        let key = KeyPair::from_pem(key)?;
        Ok(Self {
            certificate,
            issuer: Issuer::new(authority_params(), key),
        })
    }

    /// A certificate for the nodes of a region.
    ///
    /// # Errors
    /// If no certificate can hold the region's name.
    pub fn issue(&self, region: &str) -> Result<Issued, CertsError> {
        let right = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if region.is_empty() || region.len() > 63 || !region.chars().all(right) {
            return Err(CertsError::Name(region.to_owned()));
        }
        let names = vec![NODE_NAME.to_owned(), format!("{region}{REGION_SUFFIX}")];
        let mut params = CertificateParams::new(names)?;
        params
            .distinguished_name
            .push(DnType::CommonName, format!("Tidegate node of {region}"));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        set_validity(&mut params);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Issued {
            certificate,
            key: key.serialize_pem(),
        })
    }

    /// Ready credentials for a node of a region, for worlds in one process.
    ///
    /// # Errors
    /// As [`Authority::issue`].
    pub fn credentials(&self, region: &str) -> Result<Credentials, CertsError> {
        let Issued { certificate, key } = self.issue(region)?;
        let ca = self.certificate.as_bytes();
        Ok(Credentials::from_pem(
            ca,
            certificate.as_bytes(),
            key.as_bytes(),
        )?)
    }
}

/// Makes `ca.pem`, `ca-key.pem`, `key.secret`, and `REGION.pem` and `REGION-key.pem` for each
/// region, and returns the files that were made. What is there already stays as it is, so that
/// regions can be added later.
///
/// # Errors
/// If half a CA is there, a name cannot be used, or a file cannot be read or written.
pub fn init(regions: &[String], directory: &Path) -> Result<Vec<PathBuf>, CertsError> {
    let failed = |source| CertsError::File {
        path: directory.to_owned(),
        source,
    };
    fs::create_dir_all(directory).map_err(failed)?;
    let mut made = Vec::new();
    let authority = authority(directory, &mut made)?;
    let secret = directory.join("key.secret");
    if !secret.exists() {
        let mut random = [0_u8; 16];
        rand::rngs::SysRng
            .try_fill_bytes(&mut random)
            .map_err(|_lost| CertsError::Random)?;
        let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        write(secret, &digits, PRIVATE, &mut made)?;
    }
    for region in regions {
        let certificate = directory.join(format!("{region}.pem"));
        let key = directory.join(format!("{region}-key.pem"));
        if certificate.exists() && key.exists() {
            continue;
        }
        let issued = authority.issue(region)?;
        write(key, &issued.key, PRIVATE, &mut made)?;
        write(certificate, &issued.certificate, PUBLIC, &mut made)?;
    }
    Ok(made)
}

/// File modes: keys and secrets are for their owner alone.
const PRIVATE: u32 = 0o600;
const PUBLIC: u32 = 0o644;

fn authority(directory: &Path, made: &mut Vec<PathBuf>) -> Result<Authority, CertsError> {
    let (certificate, key) = (directory.join("ca.pem"), directory.join("ca-key.pem"));
    match (certificate.exists(), key.exists()) {
        (true, true) => Authority::open(read(certificate)?, &read(key)?),
        (false, false) => {
            let authority = Authority::new()?;
            write(key, &authority.issuer.key().serialize_pem(), PRIVATE, made)?;
            write(certificate, &authority.certificate, PUBLIC, made)?;
            Ok(authority)
        }
        (true, false) => Err(CertsError::Half(key)),
        (false, true) => Err(CertsError::Half(certificate)),
    }
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
        .distinguished_name
        .push(DnType::CommonName, "Tidegate CA");
    set_validity(&mut params);
    params
}

fn set_validity(params: &mut CertificateParams) {
    let now = SystemTime::now();
    params.not_before = (now - CLOCK_SLACK).into();
    params.not_after = (now + VALID_FOR).into();
}

fn read(path: PathBuf) -> Result<String, CertsError> {
    fs::read_to_string(&path).map_err(|source| CertsError::File { path, source })
}

fn write(path: PathBuf, text: &str, mode: u32, made: &mut Vec<PathBuf>) -> Result<(), CertsError> {
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&path)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|source| CertsError::File {
        path: path.clone(),
        source,
    })?;
    made.push(path);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
        fs::remove_dir_all(&path).ok();
        path
    }

    fn regions(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn certs_are_made_once_and_regions_can_be_added() {
        let out = directory("certs-added");
        assert_eq!(init(&regions(&["us", "eu"]), &out).unwrap().len(), 7);
        let before = fs::read(out.join("us.pem")).unwrap();
        let made = init(&regions(&["us", "eu", "ap"]), &out).unwrap();
        assert_eq!(made, [out.join("ap-key.pem"), out.join("ap.pem")]);
        assert_eq!(fs::read(out.join("us.pem")).unwrap(), before);
        let mode = fs::metadata(out.join("us-key.pem"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(
            fs::read_to_string(out.join("key.secret")).unwrap().len(),
            32
        );
        let pem = |name: &str| fs::read(out.join(name)).unwrap();
        Credentials::from_pem(&pem("ca.pem"), &pem("ap.pem"), &pem("ap-key.pem")).unwrap();
        fs::remove_dir_all(out).unwrap();
    }

    #[test]
    fn half_an_authority_is_never_replaced() {
        let out = directory("certs-half");
        init(&regions(&["us"]), &out).unwrap();
        fs::remove_file(out.join("ca-key.pem")).unwrap();
        let error = init(&regions(&["eu"]), &out).unwrap_err();
        assert!(error.to_string().contains("ca-key.pem"), "{error}");
        assert!(!out.join("eu.pem").exists());
        fs::remove_dir_all(out).unwrap();
    }

    #[test]
    fn region_that_no_certificate_can_name_is_refused() {
        let out = directory("certs-name");
        let error = init(&regions(&["../us"]), &out).unwrap_err();
        assert!(matches!(error, CertsError::Name(_)), "{error}");
        fs::remove_dir_all(out).unwrap();
    }
}
