//! The members of a cluster: its certificate authority, hosts' certificates, the gossip key.
//!
//! ```text
//! DIR/ca.pem, DIR/ca.key      the authority's certificate and key; the key stays with the operator that adds hosts
//! DIR/gossip.key              64 hexadecimal digits, the same on all hosts
//! DIR/trust                   the revoked hosts, signed; missing before the first revocation (`trust_list`)
//! DIR/records.json            the keys that were revoked (`records`)
//! DIR/hosts/NAME/             the files of the host NAME, to be copied to that host:
//!     ca.pem, gossip.key, trust   as above
//!     host.pem, host.key      the host's certificate, which contains its name, and the host's key; without the key if
//!                             the host has made its key itself (`request`)
//! ```
//!
//! A host's own directory has the same files, and `request.pem` if the host has made a request for its certificate. The
//! host's agent replaces `host.pem` by each renewed certificate (`identity`, `schedule`). Renewed certificates are
//! signed by the agent of a host that has the authority's key (`signer`).
//!
//! A host's certificate contains the host's name and the roles that the host may have (`certificate`). Every host with
//! a certificate may connect to the others; to exchange a blob, a host has to prove that it may read that blob.

mod adding;
mod authority;
mod certificate;
mod cluster_lock;
mod identity;
mod records;
mod request;
mod revoking;
mod schedule;
mod signer;
mod trust_list;
mod validity;

pub use adding::{AddSettings, add};
pub use authority::{DAYS, DAYS_MAX, InitSettings, Made, MadeCluster, MadeHost, init};
pub use certificate::Roles;
pub(crate) use certificate::{Calendar, HostCertificate, unix_now};
pub(crate) use identity::{CERTIFICATE_MAX, Identity};
pub(crate) use request::REQUEST_MAX;
pub use request::{MadeRequest, SigningRequest, request};
pub use revoking::{PublishedTrustList, operators, published, rekey, revoke};
pub(crate) use schedule::Schedule;
pub(crate) use signer::Signer;
pub(crate) use trust_list::{TRUST_LIST_MAX, TrustList};
pub(crate) use validity::{REMEDY, Reminder};

use headstart_block::digest::parse_hex;
use headstart_block::guarded::{
    OthersMay, check_own, check_own_directory, check_own_file, open_regular, shell_word,
};
use headstart_block::small_file::{PEM_MAX, read_small};
use headstart_block::{Error, ErrorKind, Result, private};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{CertificateError, InconsistentKeys};
use std::fmt::Write;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

const CA: &str = "ca.pem";
const CA_KEY: &str = "ca.key";
const HOST: &str = "host.pem";
const HOST_KEY: &str = "host.key";
const GOSSIP_KEY: &str = "gossip.key";
const HOSTS: &str = "hosts";
const TRUST: &str = "trust";
const RECORDS: &str = "records.json";
const REQUEST: &str = "request.pem";

/// Longest name of a host, in bytes: as in DNS.
pub(crate) const NAME_MAX: usize = 253;

/// The lock of a cluster's directory.
const LOCK: &str = "lock";

/// The entries of a cluster's directory.
const OWN_FILES: [&str; 7] = [CA, CA_KEY, GOSSIP_KEY, HOSTS, LOCK, RECORDS, TRUST];

/// The certificate and keys by which one host proves that it belongs to its cluster.
pub struct Credentials {
    pub(crate) name: String,
    pub(crate) authority: Vec<CertificateDer<'static>>,
    /// Its key and its certificate, which is renewed.
    pub(crate) identity: Arc<Identity>,
    pub(crate) gossip_key: [u8; 32],
    /// The authority's list at the time when the certificate was made; `None` if there was none.
    pub(crate) trust: Option<Vec<u8>>,
}

impl Credentials {
    /// Reads the credentials of the host `name` from its directory `dir`. That is a copy of the host's directory that
    /// [`init`] has made, or the directory that [`request()`] has made and to which the files that [`add`] has made
    /// were copied. A certificate that has expired is accepted here: the host's disks also work without the swarm.
    ///
    /// # Errors
    /// Errors of the operating system; [`ErrorKind::Corrupt`] if a file has invalid content, the certificate
    /// is not for `name`, or the authority's certificate, the host's certificate and its key do not match;
    /// [`ErrorKind::Denied`] if the directory or a file belongs to neither root nor this user, or if other users can
    /// write to the directory, or can read a key and that cannot be changed; [`ErrorKind::Invalid`] if the clock is
    /// before 1970.
    pub fn load(dir: &Path, name: &str) -> Result<Self> {
        Self::load_at(dir, name, calendar()?)
    }

    fn load_at(dir: &Path, name: &str, now: UnixTime) -> Result<Self> {
        // In a mounted secret of Kubernetes, each user may give its own files other names: they are checked one by one.
        check_own_directory(dir, OthersMay::MakeEntries)?;
        for public in [CA, HOST] {
            check_own(&dir.join(public))?;
        }
        for secret in [HOST_KEY, GOSSIP_KEY, TRUST] {
            keep_from_others(&dir.join(secret))?;
        }
        let authority = certificates(&dir.join(CA))?;
        let certificate = certificates(&dir.join(HOST))?;
        let key_path = dir.join(HOST_KEY);
        let key = PrivateKeyDer::from_pem_slice(&read(&key_path)?)
            .map_err(|e| Error::corrupt("is not a private key").caused_by(e).about(key_path.display()))?;
        let first = certificate.first().map(|first| is_for(first, name));
        if first != Some(true) {
            return Err(Error::corrupt(format!("is not the certificate of `{name}`"))
                .about(dir.join(HOST).display())
                .remedy("give the name that it was made for by --name"));
        }
        let (verifier, signing) = check_together(dir, &authority, &certificate, &key, now)?;
        let identity = Identity::new(dir, verifier, certificate, (key, signing));
        let identity = Arc::new(identity.map_err(|e| e.about(dir.join(HOST).display()))?);
        let gossip_path = dir.join(GOSSIP_KEY);
        let gossip_key =
            std::str::from_utf8(&read(&gossip_path)?).ok().and_then(|text| parse_hex(text.trim()));
        let gossip_key = gossip_key
            .ok_or_else(|| Error::corrupt("is not 64 hexadecimal digits").about(gossip_path.display()))?;
        let trust = headstart_daemon::file::read(&dir.join(TRUST), TRUST_LIST_MAX as u64)?;
        Ok(Self { name: name.to_owned(), authority, identity, gossip_key, trust })
    }

    /// The roles that the certificate permits this host to have.
    #[must_use]
    pub fn roles(&self) -> Roles {
        self.identity.says().roles
    }

    /// The host's name, which the certificate contains.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Takes away other users' rights to a key, or to the list that has one in it, if the file belongs to this user. A file
/// that cannot be opened passes: reading it reports why.
///
/// # Errors
/// [`ErrorKind::Denied`] where it belongs to another user, or others can read it and that cannot be changed.
fn keep_from_others(path: &Path) -> Result<()> {
    // A symbolic link of another user leads to any target of that user's choice.
    check_own(path)?;
    let Ok(file) = open_regular(path) else { return Ok(()) };
    check_own_file(&file, path)?;
    if file.metadata().is_ok_and(|found| is_given_to_this_group(&found)) {
        return Ok(());
    }
    let closed = private::close(&file).map_err(|e| {
        Error::new(ErrorKind::Denied, "other users can read it, and that cannot be changed")
            .caused_by(e)
            .about(path.display())
            .remedy(format!("run `chmod 600 {}`", shell_word(&path.to_string_lossy())))
    })?;
    if closed {
        let path = path.display();
        tracing::warn!("{path}: other users could use a key of the cluster; now they cannot");
    }
    Ok(())
}

/// `true` for a file of root's that only the group of this process may read: a service gets its keys in this way.
fn is_given_to_this_group(found: &Metadata) -> bool {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    !user.is_root() && found.uid() == 0 && found.gid() == group.as_raw() && found.mode() & 0o027 == 0
}

/// Checks that other hosts of the cluster will accept a certificate, and that its key is its own; returns the verifier
/// of other hosts' certificates, and the signing key.
fn check_together(
    dir: &Path,
    authority: &[CertificateDer<'static>],
    certificate: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
    now: UnixTime,
) -> Result<(Arc<dyn ClientCertVerifier>, Arc<dyn SigningKey>)> {
    fn wrong(
        dir: &Path,
        file: &str,
        what: &'static str,
        e: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        let error = Error::corrupt(what).caused_by(e).about(dir.join(file).display());
        error.remedy("copy all files that `headstart swarm init` or `swarm add` made for this host")
    }
    let verifier = identity::verifier(authority)
        .map_err(|e| wrong(dir, CA, "is not a certificate of an authority", e))?;
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let signing = provider.key_provider.load_private_key(key.clone_key());
    let signing = signing.map_err(|e| wrong(dir, HOST_KEY, "is not a key that can be used", e))?;
    let certified = CertifiedKey::new(certificate.to_vec(), Arc::clone(&signing));
    if let Err(e @ rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) = certified.keys_match() {
        return Err(wrong(dir, HOST_KEY, "is not the key of the certificate beside it", e));
    }
    if let Some((first, others)) = certificate.split_first() {
        match verifier.verify_client_cert(first, others, now) {
            // The starter of the agent gets a notice; other hosts refuse the certificate.
            Err(e) if is_about_time(&e) => {}
            Err(e) => return Err(wrong(dir, HOST, "is not a certificate of the authority in ca.pem", e)),
            Ok(_) => {}
        }
    }
    Ok((verifier, signing))
}

/// `true` if a certificate is refused only because its time is over, or has not come.
fn is_about_time(error: &rustls::Error) -> bool {
    use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    matches!(
        error,
        rustls::Error::InvalidCertificate(
            Expired | NotValidYet | ExpiredContext { .. } | NotValidYetContext { .. }
        )
    )
}

/// The time by which certificates are valid.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] where the clock is before 1970, which the calendar of certificates lacks.
#[expect(clippy::disallowed_methods, reason = "certificates are valid by the calendar")]
fn calendar() -> Result<UnixTime> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map(UnixTime::since_unix_epoch).map_err(|_| {
        Error::invalid("this host's clock is before 1970, and certificates are valid by the calendar")
            .remedy("set the clock, then start again")
    })
}

/// `true` if a certificate is for a host of this name.
pub(crate) fn is_for(certificate: &CertificateDer<'_>, name: &str) -> bool {
    let parsed = rustls::server::ParsedCertificate::try_from(certificate);
    let name = ServerName::try_from(name);
    matches!((parsed, name), (Ok(parsed), Ok(name)) if rustls::client::verify_server_name(&parsed, &name).is_ok())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    read_small(path, PEM_MAX).map_err(|e| e.remedy("make it by `headstart swarm init`"))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let bytes = read(path)?;
    let certificates: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let certificates = certificates
        .map_err(|e| Error::corrupt("is not a certificate").caused_by(e).about(path.display()))?;
    if certificates.is_empty() {
        return Err(Error::corrupt("has no certificate in it").about(path.display()));
    }
    Ok(certificates)
}

/// Checks that a host can have this name.
///
/// # Errors
/// [`ErrorKind::Invalid`] if it cannot.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let is_name = |part: &str| {
        !part.is_empty()
            && !part.starts_with('-')
            && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    if name.len() <= NAME_MAX && name.split('.').all(is_name) && ServerName::try_from(name).is_ok() {
        return Ok(());
    }
    Err(Error::invalid(format!("`{}` is not a name of a host", name.escape_debug()))
        .remedy("use lower-case letters, digits, hyphens and dots, as in DNS"))
}

fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read(path)?).map_err(|_| Error::corrupt("is not text").about(path.display()))
}

/// Two lower-case hexadecimal digits of each byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
pub(crate) use authority::{Authority, Grant};
#[cfg(test)]
pub(crate) use validity::Validity;

#[cfg(test)]
mod tests;
