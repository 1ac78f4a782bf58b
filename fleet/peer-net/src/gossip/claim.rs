//! A host's claim in the gossip, signed by the key of its certificate: no other host can make it.
//!
//! ```text
//! certificate ":" signature      both in hexadecimal: DER, and ECDSA of the line below
//! "headstart gossip claim 1\n" name "\n" address "\n" generation
//! ```
//!
//! A holder of the gossip key can put any entry into the gossip. An entry with a claim is that of a host of the
//! cluster, and this host connects to all of those. Of entries without a claim, which hosts of version 0.1.0 make, only
//! a bounded number is considered.

use crate::credentials::{Identity, hex, is_for, unix_now};
use headstart_block::{Error, ErrorKind, Result};
use rustls::SignatureScheme;
use rustls::pki_types::CertificateDer;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::watch;

/// The signature scheme of claims, for keys as `headstart swarm init` makes them.
const SCHEME: SignatureScheme = SignatureScheme::ECDSA_NISTP256_SHA256;

/// Most bytes of a claim.
const CLAIM_MAX: usize = 8192;

/// Makes this host's claims, and checks those of others.
pub(crate) struct Claims(Arc<Identity>);

fn message(name: &str, address: SocketAddr, generation: u64) -> String {
    format!("headstart gossip claim 1\n{name}\n{address}\n{generation}")
}

impl Claims {
    /// The claims of a host.
    pub(crate) fn of(identity: Arc<Identity>) -> Self {
        Self(identity)
    }

    /// A receiver that changes whenever the host's certificate has been renewed: its claim is to be made again then.
    pub(super) fn renewals(&self) -> watch::Receiver<()> {
        self.0.renewals()
    }

    /// This host's claim.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if it cannot be signed.
    pub(super) fn make(&self, name: &str, address: SocketAddr, generation: u64) -> Result<String> {
        let failed = || Error::new(ErrorKind::Io, "cannot sign for the gossip");
        let signer = self.0.key().choose_scheme(&[SCHEME]).ok_or_else(failed)?;
        let signature = signer.sign(message(name, address, generation).as_bytes());
        let signature = signature.map_err(|e| failed().caused_by(e))?;
        Ok(format!("{}:{}", hex(&self.0.certificate()), hex(&signature)))
    }

    /// `true` if the host of that name, with a certificate that is valid now, has made this claim.
    pub(super) fn is_right(&self, claim: &str, name: &str, address: SocketAddr, generation: u64) -> bool {
        let parts = claim.split_once(':').filter(|_| claim.len() <= CLAIM_MAX);
        let Some((Some(certificate), Some(signature))) =
            parts.map(|(certificate, signature)| (bytes(certificate), bytes(signature)))
        else {
            return false;
        };
        let certificate = CertificateDer::from(certificate);
        is_for(&certificate, name)
            && self.0.verified(&certificate, unix_now()).is_ok()
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

pub(super) fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    let pair = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
    if rest.is_empty() { pairs.iter().map(pair).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::{Authority, Credentials, Grant, InitSettings, SigningRequest, Validity, init};
    use crate::gossip::{CLAIM, Gossip, Gossiper, Member, Seal};
    use std::time::Duration;

    #[test]
    fn a_host_can_say_things_about_itself_alone() {
        let dir = tempfile::tempdir().unwrap();
        let claims = |cluster: &str, name: &str| {
            let hosts = vec!["a".to_owned(), "b".to_owned()];
            let dir = dir.path().join(cluster);
            init(&dir, &InitSettings { hosts, ..InitSettings::default() }).unwrap();
            Claims::of(Credentials::load(&dir.join("hosts").join(name), name).unwrap().identity)
        };
        let (a, b, elsewhere) = (claims("one", "a"), claims("one", "b"), claims("other", "a"));
        let (there, away) =
            (SocketAddr::from(([10, 0, 0, 1], 4647)), SocketAddr::from(([10, 0, 0, 2], 4647)));
        let claim = a.make("a", there, 7).unwrap();
        assert!(claim.len() < CLAIM_MAX && b.is_right(&claim, "a", there, 7));
        for (name, address, generation) in [("b", there, 7), ("a", away, 7), ("a", there, 8)] {
            assert!(!b.is_right(&claim, name, address, generation), "{name} {address} {generation}");
        }
        // Claims of another cluster, in the name of another host, and malformed ones.
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

    /// The claim of `b` as another host knows it.
    async fn known(gossip: &Gossip) -> Option<String> {
        let handle = &gossip.running.as_ref()?.handle;
        handle
            .with_chitchat(|chitchat| {
                let of_b = chitchat.node_states().iter().find(|(id, _)| &*id.node_id == "b");
                of_b.and_then(|(_, state)| state.get(CLAIM)).map(ToOwned::to_owned)
            })
            .await
    }

    #[test]
    fn once_the_certificate_was_renewed_others_hear_of_the_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let hosts = vec!["a".to_owned(), "b".to_owned()];
        init(dir.path().join("pki").as_path(), &InitSettings { hosts, ..InitSettings::default() }).unwrap();
        let pki = dir.path().join("pki");
        let identity = |name: &str| Credentials::load(&pki.join("hosts").join(name), name).unwrap().identity;
        let (a, b) = (identity("a"), identity("b"));
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let join = async |name: &str, identity: &Arc<Identity>, seeds: Vec<String>| {
            let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let address = socket.local_addr().unwrap();
            let gossiper = Gossiper {
                socket: Arc::new(socket),
                seal: Arc::new(Seal::new(Some([7; 32])).unwrap()),
                claims: Some(Claims::of(Arc::clone(identity))),
                own: Member { name: name.to_owned(), address },
                process: [0; 16],
                seeds,
                strays: Arc::default(),
            };
            (Gossip::join(gossiper).await.unwrap(), address)
        };
        runtime.block_on(async {
            let (at_a, address) = join("a", &a, Vec::new()).await;
            let (mut at_b, _) = join("b", &b, vec![address.to_string()]).await;
            tokio::spawn(async move { while at_b.changed().await.is_some() {} });
            let hears = async |certificate: &CertificateDer<'_>| {
                let wanted = hex(certificate);
                while known(&at_a).await.is_none_or(|claim| !claim.starts_with(&wanted)) {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            let limit = Duration::from_secs(20);
            tokio::time::timeout(limit, hears(&b.certificate())).await.expect("its claim is heard");
            let (says, now) = (b.says(), unix_now());
            let validity = Validity { not_before: now - 60, not_after: says.validity.not_after + 1 };
            let grant = Grant { name: "b", roles: says.roles, added: says.added.unwrap(), validity };
            let key = SigningRequest::parse(&b.request().unwrap()).unwrap().key().unwrap();
            let signed = Authority::open(&pki).unwrap().sign(&grant, &key).unwrap();
            b.renew(signed.der(), now).unwrap();
            tokio::time::timeout(limit, hears(signed.der())).await.expect("the new one is heard");
        });
    }
}
