//! The list that the authority sends to all hosts of its cluster: the revoked hosts, and the key that seals gossip.
//!
//! The list is signed by the authority's key, and each has a higher number than the one before: a host that has one
//! accepts no earlier one. It is sent only over connections between hosts with certificates, because it contains the
//! gossip key, and is stored where only its owner can read it.
//!
//! ```text
//! "headstart trust 1\n"   and, in postcard:
//!     content             the list, in postcard, as it was signed
//!     signature           ECDSA with P-256 and SHA-256, ASN.1, of the first line and the content
//! ```
//!
//! A revocation names a host and a time. It holds for all certificates of that name whose host was added at that time
//! or before, renewed ones too, and not for those of a host of the same name that is added later. It stays in the lists
//! until they are too long, and all certificates that it holds for have ended.

use super::certificate::HostCertificate;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use headstart_block::{Error, ErrorKind, Result};
use rcgen::{KeyPair, SigningKey};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

/// The first bytes of a list, which are signed with it.
const HEAD: &[u8] = b"headstart trust 1\n";

/// The most bytes of a list, so that it fits into a frame between hosts.
pub(crate) const TRUST_LIST_MAX: usize = 64 << 10;

/// Bytes of a list beside its content, at most: the head, lengths, and a signature of P-256.
const AROUND_MAX: usize = 128;

/// A revoked host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Revoked {
    pub(crate) name: String,
    /// The latest time of addition that is revoked, in seconds since 1970: certificates of hosts added then or before
    /// are refused.
    pub(crate) at: u64,
}

/// The revocations and the gossip key of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TrustList {
    /// The number of the list, higher than that of all lists before.
    pub(crate) number: u64,
    /// The time at which it was signed, in seconds since 1970.
    pub(crate) signed_at: u64,
    /// The revocations, sorted by name.
    pub(crate) revoked: Vec<Revoked>,
    pub(crate) gossip_key: [u8; 32],
}

#[derive(Serialize, Deserialize)]
struct Signed {
    content: Vec<u8>,
    signature: Vec<u8>,
}

impl TrustList {
    /// Revokes all certificates that the host of this name has got until now.
    pub(crate) fn revoke(&mut self, name: &str, now: u64) {
        match self.revoked.binary_search_by(|revoked| revoked.name.as_str().cmp(name)) {
            Ok(at) => self.revoked[at].at = self.revoked[at].at.max(now),
            Err(at) => self.revoked.insert(at, Revoked { name: name.to_owned(), at: now }),
        }
    }

    /// Drops the revocations that hold for no certificate any more, according to `is_over`, if otherwise the list would
    /// be too long.
    pub(crate) fn make_room(&mut self, is_over: impl Fn(&Revoked) -> bool) {
        let len = postcard::to_extend(self, Vec::new()).map_or(usize::MAX, |content| content.len());
        if len > TRUST_LIST_MAX - AROUND_MAX {
            self.revoked.retain(|revoked| !is_over(revoked));
        }
    }

    /// The revocation that a certificate falls under. Certificates of earlier versions do not contain the time at which
    /// their host was added: every revocation of the name holds for them.
    pub(crate) fn revocation(&self, certificate: &HostCertificate) -> Option<&Revoked> {
        let at = self.revoked.binary_search_by(|revoked| revoked.name.cmp(&certificate.name)).ok()?;
        self.revoked.get(at).filter(|revoked| certificate.added.unwrap_or_default() <= revoked.at)
    }

    /// The signed list in the form that hosts receive.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it is too long, [`ErrorKind::Io`] if it cannot be signed.
    pub(crate) fn sign(&self, key: &KeyPair) -> Result<Vec<u8>> {
        let failed = |e: postcard::Error| Error::new(ErrorKind::Io, "cannot write a trust list").caused_by(e);
        let content = postcard::to_extend(self, Vec::new()).map_err(failed)?;
        let signature = key
            .sign(&[HEAD, &content].concat())
            .map_err(|e| Error::new(ErrorKind::Io, "cannot sign a trust list").caused_by(e))?;
        let signed = postcard::to_extend(&Signed { content, signature }, HEAD.to_vec()).map_err(failed)?;
        if signed.len() > TRUST_LIST_MAX {
            return Err(Error::invalid(format!(
                "{} hosts are revoked, too many to be told",
                self.revoked.len()
            ))
            .remedy("make a new cluster by `headstart swarm init`"));
        }
        Ok(signed)
    }

    /// Parses a list that one of these authorities has signed.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if it is of another version, [`ErrorKind::Corrupt`] if it is not a list, or not
    /// signed by them.
    pub(crate) fn open(bytes: &[u8], authorities: &[CertificateDer<'_>]) -> Result<Self> {
        let Some(rest) = bytes.strip_prefix(HEAD).filter(|_| bytes.len() <= TRUST_LIST_MAX) else {
            if bytes.starts_with(b"headstart trust ") {
                return Err(Error::unsupported("a trust list of another version")
                    .remedy("run the same version of headstart on all hosts"));
            }
            return Err(Error::corrupt("is not a trust list"));
        };
        let nonsense = |e: postcard::Error| Error::corrupt("is not a trust list").caused_by(e);
        let signed: Signed = postcard::from_bytes(rest).map_err(nonsense)?;
        let message = [HEAD, &signed.content].concat();
        if !authorities.iter().any(|authority| is_signed_by(authority, &message, &signed.signature)) {
            return Err(Error::corrupt("the cluster's authority has not signed this trust list"));
        }
        let list: Self = postcard::from_bytes(&signed.content).map_err(nonsense)?;
        let is_sorted = list.revoked.is_sorted_by(|a, b| a.name < b.name);
        if is_sorted { Ok(list) } else { Err(Error::corrupt("is not a trust list")) }
    }
}

fn is_signed_by(authority: &CertificateDer<'_>, message: &[u8], signature: &[u8]) -> bool {
    let Ok((_, parsed)) = X509Certificate::from_der(authority) else { return false };
    let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &parsed.public_key().subject_public_key.data);
    key.verify(message, signature).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::Roles;
    use crate::credentials::validity::Validity;
    use proptest::prelude::*;

    fn certificate(name: &str, added: Option<u64>) -> HostCertificate {
        HostCertificate {
            name: name.to_owned(),
            roles: Roles::default(),
            added,
            validity: Validity { not_before: 0, not_after: u64::MAX },
            public_key: Vec::new(),
        }
    }

    fn authority() -> (KeyPair, CertificateDer<'static>) {
        let key = KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::default();
        let certificate = params.self_signed(&key).unwrap();
        (key, certificate.der().clone())
    }

    fn list() -> TrustList {
        TrustList { number: 3, signed_at: 5, revoked: Vec::new(), gossip_key: [7; 32] }
    }

    #[test]
    fn only_what_the_authority_signed_is_a_list() {
        let ((key, ours), (other_key, others)) = (authority(), authority());
        let mut list = list();
        list.revoke("b", 9);
        list.revoke("a", 8);
        let signed = list.sign(&key).unwrap();
        assert_eq!(TrustList::open(&signed, &[others.clone(), ours.clone()]).unwrap(), list);
        let refused = |bytes: &[u8]| TrustList::open(bytes, std::slice::from_ref(&ours)).unwrap_err().kind();
        assert_eq!(refused(&list.sign(&other_key).unwrap()), ErrorKind::Corrupt);
        for at in 0..signed.len() {
            let mut flipped = signed.clone();
            flipped[at] ^= 1;
            assert!(TrustList::open(&flipped, std::slice::from_ref(&ours)).is_err(), "{at}");
            assert!(TrustList::open(&signed[..at], std::slice::from_ref(&ours)).is_err(), "{at}");
        }
        assert_eq!(refused(b"headstart trust 2\nxyz"), ErrorKind::Unsupported);
        assert_eq!(refused(&vec![0; TRUST_LIST_MAX + 1]), ErrorKind::Corrupt);
    }

    #[test]
    fn a_revocation_holds_for_what_was_renewed_and_not_for_a_host_that_is_added_later() {
        let mut list = list();
        list.revoke("a", 100);
        for (added, is_revoked) in [(None, true), (Some(1), true), (Some(100), true), (Some(101), false)] {
            assert_eq!(list.revocation(&certificate("a", added)).is_some(), is_revoked, "{added:?}");
        }
        assert_eq!(list.revocation(&certificate("b", None)), None);
        // A later revocation holds for the new host, too; an earlier one takes nothing back.
        list.revoke("a", 200);
        list.revoke("a", 150);
        assert!(list.revocation(&certificate("a", Some(200))).is_some());
    }

    proptest! {
        #[test]
        fn revocations_in_any_order_are_as_in_a_plain_map(
            revoked in prop::collection::vec(("[a-d]{1,2}", 0u64..20), 0..40), name in "[a-d]{1,2}", added in 0u64..20,
        ) {
            let (mut list, mut plain) = (list(), std::collections::BTreeMap::new());
            for (name, at) in revoked {
                list.revoke(&name, at);
                let entry = plain.entry(name).or_insert(at);
                *entry = at.max(*entry);
            }
            let is_revoked = plain.get(&name).is_some_and(|at| added <= *at);
            prop_assert_eq!(list.revocation(&certificate(&name, Some(added))).is_some(), is_revoked);
        }

        #[test]
        fn no_bytes_are_taken_for_a_list(bytes: Vec<u8>) {
            let (_, ours) = authority();
            let with_head = [HEAD, &bytes].concat();
            for bytes in [&bytes, &with_head] {
                prop_assert!(TrustList::open(bytes, std::slice::from_ref(&ours)).is_err());
            }
        }
    }
}
