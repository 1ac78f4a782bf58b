//! The certificate by which a host proves its identity, and which is renewed while the host runs.
//!
//! Each new connection uses the current certificate; existing connections go on. A renewed certificate is for the same
//! name, key and roles, and ends later; it replaces the file of the one before it, so it is there after a restart. If
//! the file cannot be written, the renewed certificate is used anyway, and written as soon as that is possible.

use super::certificate::HostCertificate;
use super::request::SigningRequest;
use super::{HOST, certificates, is_for};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use headstart_block::{Error, ErrorKind, Result};
use headstart_daemon::file::{Readers, replace};
use parking_lot::{Mutex, MutexGuard, RwLock};
use rcgen::KeyPair;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{RootCertStore, SignatureScheme};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Most bytes of a certificate in DER.
pub(crate) const CERTIFICATE_MAX: usize = 8192;

/// Characters of a line in PEM.
const PEM_LINE: usize = 64;

/// A host's key, and the certificate that it has now.
pub(crate) struct Identity {
    file: PathBuf,
    verifier: Arc<dyn ClientCertVerifier>,
    key: PrivateKeyDer<'static>,
    current: RwLock<Arc<Current>>,
    kept: Mutex<Kept>,
    renewed: watch::Sender<()>,
}

struct Current {
    certified: Arc<CertifiedKey>,
    says: HostCertificate,
}

/// The certificate in the file, as this process left it: an earlier one than the host has where it cannot be written.
struct Kept {
    certificate: CertificateDer<'static>,
    /// `true` if the log has a line that it cannot be written.
    is_reported: bool,
}

/// The verifier of hosts' certificates under these authorities.
///
/// # Errors
/// If one of them is no authority.
pub(super) fn verifier(
    authorities: &[CertificateDer<'static>],
) -> std::result::Result<Arc<dyn ClientCertVerifier>, Box<dyn std::error::Error + Send + Sync>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone())?;
    }
    Ok(WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?)
}

impl Identity {
    /// The identity in a host's directory; the caller has checked that its parts belong together.
    pub(super) fn new(
        dir: &Path,
        verifier: Arc<dyn ClientCertVerifier>,
        chain: Vec<CertificateDer<'static>>,
        (key, signing): (PrivateKeyDer<'static>, Arc<dyn SigningKey>),
    ) -> Result<Self> {
        let first = chain.first().ok_or_else(|| Error::corrupt("has no certificate in it"))?;
        let says = HostCertificate::parse(first)?;
        let kept = Mutex::new(Kept { certificate: first.clone(), is_reported: false });
        let certified = Arc::new(CertifiedKey::new(chain, signing));
        let current = RwLock::new(Arc::new(Current { certified, says }));
        Ok(Self { file: dir.join(HOST), verifier, key, current, kept, renewed: watch::channel(()).0 })
    }

    fn current(&self) -> Arc<Current> {
        Arc::clone(&self.current.read())
    }

    /// The content of the certificate.
    pub(crate) fn says(&self) -> HostCertificate {
        self.current().says.clone()
    }

    /// The certificate.
    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        // There was one when the identity was made, and each replacement is one.
        self.current().certified.cert.first().cloned().unwrap_or_else(|| CertificateDer::from(Vec::new()))
    }

    /// The host's key.
    pub(crate) fn key(&self) -> Arc<dyn SigningKey> {
        Arc::clone(&self.current().certified.key)
    }

    /// A receiver that changes whenever the certificate has been renewed.
    pub(crate) fn renewals(&self) -> watch::Receiver<()> {
        self.renewed.subscribe()
    }

    /// A signing request for the name and the key, in DER.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if it cannot be signed.
    pub(crate) fn request(&self) -> Result<Vec<u8>> {
        let key = KeyPair::try_from(&self.key)
            .map_err(|e| Error::new(ErrorKind::Io, "the host's key cannot sign a request").caused_by(e))?;
        Ok(SigningRequest::make(&self.says().name, &key)?.der().to_vec())
    }

    /// Parses a certificate that the cluster's authority has signed and that is valid at `now`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is not such a certificate.
    pub(crate) fn verified(&self, der: &[u8], now: u64) -> Result<HostCertificate> {
        if der.len() > CERTIFICATE_MAX {
            return Err(Error::corrupt("is not a certificate of a host"));
        }
        let certificate = CertificateDer::from(der);
        let says = HostCertificate::parse(&certificate)?;
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        self.verifier.verify_client_cert(&certificate, &[], now).map_err(|e| {
            Error::corrupt("is not a certificate of the cluster's authority that is valid now").caused_by(e)
        })?;
        if is_for(&certificate, &says.name) {
            Ok(says)
        } else {
            Err(Error::corrupt("is for no name of a host"))
        }
    }

    /// Replaces the certificate by a renewed one.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is not signed by the authority, is not valid now, or is for another host, key or
    /// other roles; [`ErrorKind::Conflict`] if it does not end later, or an operator has put another one in its file.
    pub(crate) fn renew(&self, der: &[u8], now: u64) -> Result<()> {
        let says = self.verified(der, now)?;
        says.check_renews(&self.says())?;
        let mut kept = self.kept();
        // It may be there although the write reported an error.
        if self.found().is_some_and(|found| found != kept.certificate && found != self.certificate()) {
            return Err(Error::new(ErrorKind::Conflict, "another certificate was put there")
                .about(self.file.display())
                .remedy("start the agent again, which takes it"));
        }
        let chain = vec![CertificateDer::from(der.to_vec())];
        let certified = Arc::new(CertifiedKey::new(chain, self.key()));
        let renewed = Arc::new(Current { certified, says });
        *self.current.write() = renewed;
        self.write(&mut kept);
        self.renewed.send_replace(());
        Ok(())
    }

    /// Writes the certificate into its file, if that failed when it was renewed. A file that an operator has put there
    /// meanwhile stays.
    pub(crate) fn keep(&self) {
        let (mut kept, certificate) = (self.kept(), self.certificate());
        if kept.certificate == certificate {
            return;
        }
        match self.found() {
            Some(found) if found == certificate => *kept = Kept { certificate, is_reported: false },
            Some(found) if found != kept.certificate => {}
            _ => self.write(&mut kept),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock()
    }

    /// The certificate that is in the file now; `None` if none can be read.
    fn found(&self) -> Option<CertificateDer<'static>> {
        certificates(&self.file).ok()?.into_iter().next()
    }

    fn write(&self, kept: &mut Kept) {
        let certificate = self.certificate();
        match replace(&self.file, pem(&certificate).as_bytes(), Readers::Owner) {
            Ok(()) => *kept = Kept { certificate, is_reported: false },
            Err(error) if kept.is_reported => {
                tracing::debug!(%error, "the renewed certificate cannot be kept yet");
            }
            Err(error) => {
                kept.is_reported = true;
                tracing::warn!(
                    %error,
                    remedy = "let the agent write there: with systemd, by `ReadWritePaths=`",
                    "the renewed certificate will not be known after a restart; writing it is tried again"
                );
            }
        }
    }
}

impl HostCertificate {
    /// Checks that the certificate can replace another one of the same host.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is for another name, key or other roles, [`ErrorKind::Conflict`] if it does not end
    /// later.
    pub(crate) fn check_renews(&self, before: &Self) -> Result<()> {
        let differs = |is_other: bool, what: &str| {
            let error = || Error::corrupt(format!("is not the requested certificate: {what}"));
            if is_other { Err(error()) } else { Ok(()) }
        };
        differs(self.name != before.name, "it is for another host")?;
        differs(self.public_key != before.public_key, "it is for another key")?;
        differs(self.roles != before.roles, "it gives other roles")?;
        differs(self.added != before.added, "it says that the host was added at another time")?;
        if self.validity.not_after <= before.validity.not_after {
            return Err(Error::new(
                ErrorKind::Conflict,
                "the certificate does not end later than the one before",
            ));
        }
        Ok(())
    }
}

/// A certificate in PEM.
fn pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(PEM_LINE) {
        pem.extend(line.iter().map(|byte| char::from(*byte)));
        pem.push('\n');
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("name", &self.current().says.name).finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current().certified))
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current().certified))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::authority::{Authority, Grant};
    use crate::credentials::validity::Validity;
    use crate::credentials::{Credentials, InitSettings, Roles, init, unix_now};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_a_later_certificate_of_the_same_host_key_and_roles_is_taken_and_it_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = dir.path().join("cluster");
        let settings = InitSettings {
            hosts: vec!["a".to_owned(), "b".to_owned()],
            roots: vec!["b".to_owned()],
            ..InitSettings::default()
        };
        init(&cluster, &settings).unwrap();
        init(&dir.path().join("other"), &settings).unwrap();
        let of = |name: &str| Credentials::load(&cluster.join("hosts").join(name), name).unwrap().identity;
        let (a, b) = (of("a"), of("b"));
        let (before, now) = (b.says(), unix_now());
        let validity = Validity { not_before: now - 60, not_after: before.validity.not_after + 1 };
        let right = Grant { name: "b", roles: before.roles, added: before.added.unwrap(), validity };
        let signed = |dir: &Path, grant: &Grant<'_>, key: &Identity| {
            let key = SigningRequest::parse(&key.request().unwrap()).unwrap().key().unwrap();
            Authority::open(dir).unwrap().sign(grant, &key).unwrap().der().to_vec()
        };
        let (ours, theirs) = (cluster.as_path(), dir.path().join("other"));
        let wrong = [
            (signed(&theirs, &right, &b), ErrorKind::Corrupt),
            (signed(ours, &right, &a), ErrorKind::Corrupt),
            (signed(ours, &Grant { name: "a", ..right }, &b), ErrorKind::Corrupt),
            (signed(ours, &Grant { roles: Roles::default(), ..right }, &b), ErrorKind::Corrupt),
            (signed(ours, &Grant { roles: Roles::ALL, ..right }, &b), ErrorKind::Corrupt),
            (signed(ours, &Grant { added: right.added + 1, ..right }, &b), ErrorKind::Corrupt),
            (signed(ours, &Grant { validity: before.validity, ..right }, &b), ErrorKind::Conflict),
            (vec![0x30; CERTIFICATE_MAX + 1], ErrorKind::Corrupt),
        ];
        for (at, (der, kind)) in wrong.iter().enumerate() {
            assert_eq!(b.renew(der, now).unwrap_err().kind(), *kind, "{at}");
        }
        let der = signed(ours, &right, &b);
        // It has ended, or is not valid yet.
        assert!(b.renew(&der, validity.not_after + 1).is_err() && b.renew(&der, now - 61).is_err());
        assert_eq!(b.says(), before);
        let mut renewals = b.renewals();
        b.renew(&der, now).unwrap();
        assert!(renewals.has_changed().unwrap());
        renewals.mark_unchanged();
        assert_eq!(b.certificate().as_ref(), &der[..]);
        let file = cluster.join("hosts/b/host.pem");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(of("b").says(), b.says());
        assert_eq!(b.says().validity, validity);
        // The same certificate again ends no later.
        assert_eq!(b.renew(&der, now).unwrap_err().kind(), ErrorKind::Conflict);
        // A certificate that an operator has put there, with other roles for example, is not overwritten.
        let validity = Validity { not_after: validity.not_after + 1, ..validity };
        let der = signed(ours, &Grant { validity, ..right }, &b);
        let put = pem(&signed(ours, &Grant { roles: Roles::ALL, ..right }, &b));
        std::fs::write(&file, &put).unwrap();
        assert_eq!(b.renew(&der, now).unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), put);
        // A certificate that cannot be stored is used anyway.
        std::fs::remove_dir_all(cluster.join("hosts/b")).unwrap();
        b.renew(&der, now).unwrap();
        assert_eq!(b.says().validity, validity);
    }

    #[test]
    fn a_certificate_that_cannot_be_kept_is_renewed_again_and_kept_once_it_can_be() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = dir.path().join("cluster");
        init(&cluster, &InitSettings { hosts: vec!["b".to_owned()], ..InitSettings::default() }).unwrap();
        let home = cluster.join("hosts/b");
        let loaded = || Credentials::load(&home, "b").unwrap().identity;
        let (b, now) = (loaded(), unix_now());
        let (first, key) = (b.says(), SigningRequest::parse(&b.request().unwrap()).unwrap().key().unwrap());
        let signed = |later: u64, roles: Roles| {
            let validity = Validity { not_before: now - 60, not_after: first.validity.not_after + later };
            let grant = Grant { name: "b", roles, added: first.added.unwrap(), validity };
            Authority::open(&cluster).unwrap().sign(&grant, &key).unwrap().der().to_vec()
        };
        let in_file = || certificates(&home.join(HOST)).unwrap().remove(0);
        let (at_first, in_the_way) = (in_file(), home.join("host.pem.new"));
        // Nothing can be written there, not even by root.
        std::fs::create_dir_all(in_the_way.join("x")).unwrap();
        for later in 1..=3 {
            let der = signed(later, first.roles);
            b.renew(&der, now).unwrap();
            b.keep();
            assert_eq!((b.certificate().as_ref(), in_file()), (&der[..], at_first.clone()), "{later}");
        }
        std::fs::remove_dir_all(&in_the_way).unwrap();
        b.keep();
        assert_eq!((in_file(), loaded().says()), (b.certificate(), b.says()));
        // A certificate that an operator puts there in the meantime stays.
        std::fs::create_dir_all(in_the_way.join("x")).unwrap();
        b.renew(&signed(4, first.roles), now).unwrap();
        std::fs::remove_dir_all(&in_the_way).unwrap();
        let put = signed(9, Roles::ALL);
        std::fs::write(home.join(HOST), pem(&put)).unwrap();
        b.keep();
        assert_eq!(in_file().as_ref(), &put[..]);
        assert_eq!(b.renew(&signed(5, first.roles), now).unwrap_err().kind(), ErrorKind::Conflict);
    }
}
