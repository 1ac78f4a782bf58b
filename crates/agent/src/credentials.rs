//! Who belongs to a cluster: its certificate authority, hosts' certificates, the gossip key.
//!
//! ```text
//! DIR/ca.pem, DIR/ca.key      the authority; its key stays with who adds hosts
//! DIR/gossip.key              64 hexadecimal digits, the same on all hosts
//! DIR/hosts/NAME/             all that one host needs, to be copied there:
//!     ca.pem, gossip.key      as above
//!     host.pem, host.key      its certificate, in which its name is, and its key
//! ```
//!
//! A host is what its certificate says. Everybody who has one may connect; what he gets beyond that, he has to prove
//! blob by blob.

use crate::file::{Readers, replace};
use aws_lc_rs::rand;
use headstart_block::digest::parse_hex;
use headstart_block::{Error, ErrorKind, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, RootCertStore};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CA: &str = "ca.pem";
const CA_KEY: &str = "ca.key";
const HOST: &str = "host.pem";
const HOST_KEY: &str = "host.key";
const GOSSIP_KEY: &str = "gossip.key";
const HOSTS: &str = "hosts";

/// What one host proves with that it belongs to its cluster.
pub struct Credentials {
    pub(crate) name: String,
    pub(crate) authority: Vec<CertificateDer<'static>>,
    pub(crate) certificate: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
    pub(crate) gossip_key: [u8; 32],
}

impl Credentials {
    /// Reads what [`init`] made for one host, whose name it is.
    ///
    /// # Errors
    /// What the operating system reports; [`ErrorKind::Corrupt`] where a file is not what it should be, the
    /// certificate is not for `name`, or authority, certificate and key do not belong together.
    pub fn load(dir: &Path, name: &str) -> Result<Self> {
        let authority = certificates(&dir.join(CA))?;
        let certificate = certificates(&dir.join(HOST))?;
        let key_path = dir.join(HOST_KEY);
        let key = PrivateKeyDer::from_pem_slice(&read(&key_path)?)
            .map_err(|e| Error::corrupt("is no private key").caused_by(e).about(key_path.display()))?;
        let first = certificate.first().map(|first| is_for(first, name));
        if first != Some(true) {
            return Err(Error::corrupt(format!("is not the certificate of `{name}`"))
                .about(dir.join(HOST).display())
                .remedy("give the name that it was made for by --name"));
        }
        check_together(dir, &authority, &certificate, &key)?;
        let gossip_path = dir.join(GOSSIP_KEY);
        let gossip_key =
            std::str::from_utf8(&read(&gossip_path)?).ok().and_then(|text| parse_hex(text.trim()));
        let gossip_key = gossip_key
            .ok_or_else(|| Error::corrupt("is not 64 hexadecimal digits").about(gossip_path.display()))?;
        Ok(Self { name: name.to_owned(), authority, certificate, key, gossip_key })
    }

    /// The host's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Whether other hosts of the cluster will believe a certificate, and its key is its own.
fn check_together(
    dir: &Path,
    authority: &[CertificateDer<'static>],
    certificate: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
) -> Result<()> {
    let wrong = |file: &str, what: &'static str, e: rustls::Error| {
        let error = Error::corrupt(what).caused_by(e).about(dir.join(file).display());
        error.remedy("copy all of what `headstart swarm init` made for this host")
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    for certificate in authority {
        roots.add(certificate.clone()).map_err(|e| wrong(CA, "is no certificate of an authority", e))?;
    }
    let signing = provider.key_provider.load_private_key(key.clone_key());
    let signing = signing.map_err(|e| wrong(HOST_KEY, "is no key that can be used", e))?;
    let certified = CertifiedKey::new(certificate.to_vec(), signing);
    if let Err(e @ rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) = certified.keys_match() {
        return Err(wrong(HOST_KEY, "is not the key of the certificate beside it", e));
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
    let verifier =
        verifier.map_err(|e| Error::corrupt("hosts cannot be checked by it").caused_by(e).about(CA))?;
    let Some((first, others)) = certificate.split_first() else { return Ok(()) };
    let checked = verifier.verify_client_cert(first, others, UnixTime::now());
    checked.map(drop).map_err(|e| wrong(HOST, "is not a certificate of the authority in ca.pem", e))
}

/// Whether a certificate is for a host of this name.
pub(crate) fn is_for(certificate: &CertificateDer<'_>, name: &str) -> bool {
    let parsed = rustls::server::ParsedCertificate::try_from(certificate);
    let name = ServerName::try_from(name);
    matches!((parsed, name), (Ok(parsed), Ok(name)) if rustls::client::verify_server_name(&parsed, &name).is_ok())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| {
        Error::io("cannot read", e).about(path.display()).remedy("make it by `headstart swarm init`")
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let bytes = read(path)?;
    let certificates: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let certificates =
        certificates.map_err(|e| Error::corrupt("is no certificate").caused_by(e).about(path.display()))?;
    if certificates.is_empty() {
        return Err(Error::corrupt("has no certificate in it").about(path.display()));
    }
    Ok(certificates)
}

/// Makes what a cluster needs in `dir`, where it is not there yet, and what each of `hosts` needs. Hosts can be added
/// later; those that have a directory already keep what is in it. Gives the hosts' directories, in their order.
///
/// # Errors
/// [`ErrorKind::Invalid`] where a name is none; what the operating system reports.
pub fn init(dir: &Path, hosts: &[String]) -> Result<Vec<PathBuf>> {
    for host in hosts {
        check_name(host)?;
    }
    make_dir(dir)?;
    if !dir.join(CA).exists() {
        make_authority(dir)?;
    }
    let authority = read_text(&dir.join(CA))?;
    let gossip_key = read_text(&dir.join(GOSSIP_KEY))?;
    let key_path = dir.join(CA_KEY);
    let key = KeyPair::from_pem(&read_text(&key_path)?)
        .map_err(|e| Error::corrupt("is no private key").caused_by(e).about(key_path.display()))?;
    let issuer = Issuer::new(authority_params(), key);
    let mut made = Vec::new();
    for host in hosts {
        let host_dir = dir.join(HOSTS).join(host);
        if !host_dir.join(HOST).exists() {
            make_dir(&dir.join(HOSTS))?;
            make_dir(&host_dir)?;
            let (certificate, key) = sign(&issuer, host)?;
            replace(&host_dir.join(CA), authority.as_bytes(), Readers::All)?;
            replace(&host_dir.join(GOSSIP_KEY), gossip_key.as_bytes(), Readers::Owner)?;
            replace(&host_dir.join(HOST_KEY), key.as_bytes(), Readers::Owner)?;
            replace(&host_dir.join(HOST), certificate.as_bytes(), Readers::All)?;
        }
        made.push(host_dir);
    }
    Ok(made)
}

/// Whether a host can have this name.
///
/// # Errors
/// Where it cannot.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let is_name = |part: &str| {
        !part.is_empty()
            && !part.starts_with('-')
            && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    if name.len() <= crate::peers::frame::NAME_MAX
        && name.split('.').all(is_name)
        && ServerName::try_from(name).is_ok()
    {
        return Ok(());
    }
    Err(Error::invalid(format!("`{}` is no name of a host", name.escape_debug()))
        .remedy("use lower-case letters, digits, hyphens and dots, as in DNS"))
}

fn make_authority(dir: &Path) -> Result<()> {
    let failed =
        |e: rcgen::Error| Error::new(ErrorKind::Io, "cannot make a certificate authority").caused_by(e);
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = authority_params().self_signed(&key).map_err(failed)?;
    let mut gossip_key = [0; 32];
    rand::fill(&mut gossip_key).map_err(|_| Error::new(ErrorKind::Io, "cannot draw a key"))?;
    replace(&dir.join(GOSSIP_KEY), format!("{}\n", hex(&gossip_key)).as_bytes(), Readers::Owner)?;
    replace(&dir.join(CA_KEY), key.serialize_pem().as_bytes(), Readers::Owner)?;
    // Last: where it is, the others are.
    replace(&dir.join(CA), certificate.pem().as_bytes(), Readers::All)
}

/// What an authority is but for its key: so that hosts can be added who has that.
fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "headstart swarm");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn hex(bytes: &[u8; 32]) -> String {
    headstart_block::Digest::from_bytes(*bytes).hex()
}

/// A host's certificate and its key.
fn sign(issuer: &Issuer<'_, KeyPair>, host: &str) -> Result<(String, String)> {
    let failed =
        |e: rcgen::Error| Error::new(ErrorKind::Io, "cannot make a certificate").caused_by(e).about(host);
    let key = KeyPair::generate().map_err(failed)?;
    let mut params = CertificateParams::new(vec![host.to_owned()]).map_err(failed)?;
    params.distinguished_name.push(DnType::CommonName, host);
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&key, issuer).map_err(failed)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read(path)?).map_err(|_| Error::corrupt("is no text").about(path.display()))
}

fn make_dir(path: &Path) -> Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Error::io("cannot make a directory", e).about(path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::{Security, SwarmSettings};
    use std::os::unix::fs::PermissionsExt;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn hosts_are_added_and_what_is_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("cluster");
        let made = init(&dir, &names(&["a", "b.example"])).unwrap();
        let before = std::fs::read(made[0].join(HOST)).unwrap();
        let again = init(&dir, &names(&["a", "c"])).unwrap();
        assert_eq!(std::fs::read(again[0].join(HOST)).unwrap(), before);
        let a = Credentials::load(&made[0], "a").unwrap();
        let c = Credentials::load(&again[1], "c").unwrap();
        assert!(a.authority == c.authority && a.gossip_key == c.gossip_key && a.gossip_key != [0; 32]);
        // Each is for its own name, and no key can be read by others.
        assert_eq!(Credentials::load(&made[1], "a").err().map(|e| e.kind()), Some(ErrorKind::Corrupt));
        assert!(Credentials::load(&made[1], "b.example").is_ok());
        for path in [made[0].join(HOST_KEY), made[0].join(GOSSIP_KEY), dir.join(CA_KEY), dir.join(GOSSIP_KEY)]
        {
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{path:?}");
        }
        assert!(!made[0].join(CA_KEY).exists());
    }

    #[test]
    fn what_does_not_belong_together_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let made = init(&dir.path().join("one"), &names(&["a", "b"])).unwrap();
        let other = init(&dir.path().join("other"), &names(&["a"])).unwrap();
        let mixed = dir.path().join("mixed");
        make_dir(&mixed).unwrap();
        let (a, b, elsewhere) = (&made[0], &made[1], &other[0]);
        let because = |parts: [&Path; 3]| {
            for (from, name) in parts.into_iter().zip([CA, HOST, HOST_KEY]) {
                std::fs::copy(from.join(name), mixed.join(name)).unwrap();
            }
            std::fs::copy(a.join(GOSSIP_KEY), mixed.join(GOSSIP_KEY)).unwrap();
            Credentials::load(&mixed, "a").err().map(|e| e.to_string())
        };
        assert_eq!(because([a, a, a]), None);
        let why = because([a, a, b]).unwrap();
        assert!(why.contains("host.key: is not the key of the certificate"), "{why}");
        let why = because([elsewhere, a, a]).unwrap();
        assert!(why.contains("host.pem: is not a certificate of the authority"), "{why}");
        std::fs::write(mixed.join(CA), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
            .unwrap();
        let why = Credentials::load(&mixed, "a").err().map(|e| e.to_string()).unwrap();
        assert!(why.contains("ca.pem: is no certificate of an authority"), "{why}");
    }

    #[test]
    fn what_is_no_name_is_refused_before_anything_is_made() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["", "a/b", "..", "A", "a b", "-a", &"a".repeat(300)] {
            let refused = init(&dir.path().join("cluster"), &names(&["a", name])).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Invalid, "{name}");
        }
        assert!(!dir.path().join("cluster").exists());
    }

    #[test]
    fn without_certificates_nobody_listens_beyond_loopback() {
        let dir = tempfile::tempdir().unwrap();
        let cache =
            headstart_cache::Cache::open(dir.path(), headstart_cache::CacheSettings::default()).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let settings = SwarmSettings {
            security: Security::PlainOnLoopback { name: "a".into() },
            listen: std::net::SocketAddr::from(([0, 0, 0, 0], 0)),
            advertise: None,
            join: Vec::new(),
            role: headstart_swarm::Role::Agent,
            node: headstart_swarm::Settings::default(),
            connections_max: 1,
            tracker: None,
        };
        let started = runtime.block_on(crate::peers::Swarm::start(settings, cache, runtime.handle().clone()));
        assert_eq!(started.err().map(|e| e.kind()), Some(ErrorKind::Invalid));
    }
}
