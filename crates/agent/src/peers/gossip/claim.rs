//! What a host says of itself in the gossip, signed by the key of its certificate: nobody else can say it.
//!
//! ```text
//! certificate ":" signature      both in hexadecimal: DER, and ECDSA of the line below
//! "headstart gossip claim 1\n" name "\n" address "\n" generation
//! ```
//!
//! Who has the gossip key can put any entry into the gossip. An entry with a claim is that of a host of the cluster,
//! and this host connects to as many of those as there are. Of entries without a claim, which hosts of version 0.1.0
//! make, only so many are looked at.

use crate::credentials::{Credentials, is_for, unix_now};
use headstart_block::{Error, ErrorKind, Result};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::SigningKey;
use rustls::{RootCertStore, SignatureScheme};
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How claims are signed: by keys as `headstart swarm init` makes them.
const SCHEME: SignatureScheme = SignatureScheme::ECDSA_NISTP256_SHA256;

/// Most bytes of a claim.
const CLAIM_MAX: usize = 8192;

/// Makes this host's claims, and checks those of others.
pub(in crate::peers) struct Claims {
    certificate: CertificateDer<'static>,
    key: Arc<dyn SigningKey>,
    verifier: Arc<dyn ClientCertVerifier>,
}

fn message(name: &str, address: SocketAddr, generation: u64) -> String {
    format!("headstart gossip claim 1\n{name}\n{address}\n{generation}")
}

impl Claims {
    /// # Errors
    /// Where the credentials cannot be used.
    pub(in crate::peers) fn of(credentials: &Credentials) -> Result<Self> {
        let unusable = |e| Error::invalid("the host's certificate and key cannot be used").caused_by(e);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let key = provider.key_provider.load_private_key(credentials.key.clone_key()).map_err(unusable)?;
        let mut roots = RootCertStore::empty();
        for authority in &credentials.authority {
            roots.add(authority.clone()).map_err(unusable)?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let verifier =
            verifier.map_err(|e| Error::invalid("hosts cannot be checked by the authority").caused_by(e))?;
        let certificate = credentials.certificate.first().cloned();
        let certificate = certificate.ok_or_else(|| Error::invalid("there is no certificate"))?;
        Ok(Self { certificate, key, verifier })
    }

    /// This host's claim.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] where it cannot be signed.
    pub(super) fn make(&self, name: &str, address: SocketAddr, generation: u64) -> Result<String> {
        let failed = || Error::new(ErrorKind::Io, "cannot sign for the gossip");
        let signer = self.key.choose_scheme(&[SCHEME]).ok_or_else(failed)?;
        let signature = signer.sign(message(name, address, generation).as_bytes());
        let signature = signature.map_err(|e| failed().caused_by(e))?;
        Ok(format!("{}:{}", hex(&self.certificate), hex(&signature)))
    }

    /// `true` if the host of that name, with a certificate that is valid now, has said that it is there.
    pub(super) fn is_right(&self, claim: &str, name: &str, address: SocketAddr, generation: u64) -> bool {
        let parts = claim.split_once(':').filter(|_| claim.len() <= CLAIM_MAX);
        let Some((Some(certificate), Some(signature))) =
            parts.map(|(certificate, signature)| (bytes(certificate), bytes(signature)))
        else {
            return false;
        };
        let certificate = CertificateDer::from(certificate);
        let now = UnixTime::since_unix_epoch(Duration::from_secs(unix_now()));
        is_for(&certificate, name)
            && self.verifier.verify_client_cert(&certificate, &[], now).is_ok()
            && is_signed(&certificate, message(name, address, generation).as_bytes(), &signature)
    }
}

fn is_signed(certificate: &CertificateDer<'_>, message: &[u8], signature: &[u8]) -> bool {
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
    use x509_parser::prelude::FromDer;
    let Ok((_, parsed)) = x509_parser::certificate::X509Certificate::from_der(certificate) else {
        return false;
    };
    let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &parsed.public_key().subject_public_key.data);
    key.verify(message, signature).is_ok()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    let pair = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
    if rest.is_empty() { pairs.iter().map(pair).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::{InitSettings, init};

    #[test]
    fn a_host_can_say_things_about_itself_alone() {
        let dir = tempfile::tempdir().unwrap();
        let claims = |cluster: &str, name: &str| {
            let hosts = vec!["a".to_owned(), "b".to_owned()];
            let dir = dir.path().join(cluster);
            init(&dir, &InitSettings { hosts, ..InitSettings::default() }).unwrap();
            Claims::of(&Credentials::load(&dir.join("hosts").join(name), name).unwrap()).unwrap()
        };
        let (a, b, elsewhere) = (claims("one", "a"), claims("one", "b"), claims("other", "a"));
        let (there, away) =
            (SocketAddr::from(([10, 0, 0, 1], 4647)), SocketAddr::from(([10, 0, 0, 2], 4647)));
        let claim = a.make("a", there, 7).unwrap();
        assert!(claim.len() < CLAIM_MAX && b.is_right(&claim, "a", there, 7));
        for (name, address, generation) in [("b", there, 7), ("a", away, 7), ("a", there, 8)] {
            assert!(!b.is_right(&claim, name, address, generation), "{name} {address} {generation}");
        }
        // Of another cluster; in the name of another host; nonsense.
        assert!(!elsewhere.is_right(&claim, "a", there, 7));
        assert!(!a.is_right(&b.make("a", there, 7).unwrap(), "a", there, 7));
        let (certificate, signature) = claim.split_once(':').unwrap();
        for wrong in
            ["", ":", "a:b", &claim[1..], &format!("{certificate}:{certificate}"), certificate, signature]
        {
            assert!(!b.is_right(wrong, "a", there, 7), "{wrong}");
        }
        assert_eq!(bytes(&hex(&[0, 1, 0xfe, 0xff])), Some(vec![0, 1, 0xfe, 0xff]));
    }
}
