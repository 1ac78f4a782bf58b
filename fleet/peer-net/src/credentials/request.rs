//! Signing requests: a host makes its own key, and asks the authority to sign a certificate for it.
//!
//! A request is a PKCS #10 structure with the host's name as its only DNS name, signed by the key that it names. The
//! key is one of P-256, as all keys of hosts are. Everything else in it is ignored: only the authority decides on roles
//! and times.

use super::authority::{Made, cannot_make};
use super::{CA, GOSSIP_KEY, HOST, HOST_KEY, REQUEST, TRUST, check_name, read_text};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use headstart_block::guarded::{OthersMay, check_own_directory, not_made_in};
use headstart_block::{Error, ErrorKind, Result, private};
use headstart_daemon::file::{Readers, replace};
use rcgen::{
    CertificateParams, CertificateSigningRequest, DnType, KeyPair, PKCS_ECDSA_P256_SHA256,
    SubjectPublicKeyInfo,
};
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::PemObject;
use std::path::{Path, PathBuf};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

/// Most bytes of a request in DER.
pub(crate) const REQUEST_MAX: usize = 4096;

/// The bytes before the point of a public key of P-256, in a SubjectPublicKeyInfo.
const P256: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// Bytes of an uncompressed point of P-256.
const POINT: usize = 65;

/// A host's request for a certificate (PKCS #10). It contains the host's name and public key, and is signed
/// with that key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningRequest {
    /// The name of the requesting host.
    pub(crate) name: String,
    /// Its public key, a SubjectPublicKeyInfo in DER.
    pub(crate) public_key: Vec<u8>,
}

impl SigningRequest {
    /// Parses a request in DER, and verifies its signature with the public key in it.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the bytes are not a request or the signature does not verify, [`ErrorKind::Invalid`]
    /// if it does not name exactly one host, the name is not valid for a host, or its key is not a P-256 key.
    pub fn parse(der: &[u8]) -> Result<Self> {
        let nonsense = || Error::corrupt("is not a signing request");
        if der.len() > REQUEST_MAX {
            return Err(nonsense());
        }
        let (rest, parsed) = X509CertificationRequest::from_der(der).map_err(|e| nonsense().caused_by(e))?;
        if !rest.is_empty() {
            return Err(nonsense());
        }
        let info = &parsed.certification_request_info;
        let public_key = info.subject_pki.raw;
        let point = public_key.strip_prefix(&P256).filter(|point| point.len() == POINT);
        let point = point.ok_or_else(|| {
            Error::invalid("a signing request whose key is not of P-256")
                .remedy("make the request by `headstart swarm request`")
        })?;
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point);
        key.verify(info.raw, &parsed.signature_value.data)
            .map_err(|_| Error::corrupt("a signing request that its key has not signed"))?;
        let extensions = parsed.requested_extensions().into_iter().flatten();
        let names = extensions.filter_map(|extension| match extension {
            ParsedExtension::SubjectAlternativeName(names) => Some(names.general_names.iter()),
            _ => None,
        });
        let mut names = names.flatten().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(*name),
            _ => None,
        });
        let (Some(name), None) = (names.next(), names.next()) else {
            return Err(Error::invalid("a signing request that does not name exactly one host"));
        };
        check_name(name)?;
        Ok(Self { name: name.to_owned(), public_key: public_key.to_vec() })
    }

    /// Reads a request from a file's bytes, in PEM or DER.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub(crate) fn from_file(bytes: &[u8]) -> Result<Self> {
        match CertificateSigningRequestDer::from_pem_slice(bytes) {
            Ok(der) => Self::parse(&der),
            Err(_) => Self::parse(bytes),
        }
    }

    /// The public key in the form that certificates are signed for.
    pub(crate) fn key(&self) -> Result<SubjectPublicKeyInfo> {
        SubjectPublicKeyInfo::from_der(&self.public_key).map_err(cannot_make)
    }

    /// Makes a request for a host's key.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if it cannot be signed.
    pub(crate) fn make(name: &str, key: &KeyPair) -> Result<CertificateSigningRequest> {
        let failed = |e: rcgen::Error| {
            Error::new(ErrorKind::Io, "cannot make a signing request").caused_by(e).about(name)
        };
        let mut params = CertificateParams::new(vec![name.to_owned()]).map_err(failed)?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.serialize_request(key).map_err(failed)
    }
}

/// The result of [`request`]: a file to be sent to the authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadeRequest {
    /// The host's name.
    pub name: String,
    /// The path of the file with the signing request, in PEM, to be copied to the authority.
    pub request: PathBuf,
    /// The result for the host's key: new, or kept from an earlier call.
    pub key: Made,
}

/// Writes a request for a certificate of the host `name` to `dir`. If `dir` has no key yet, one is created;
/// it never leaves the host.
///
/// # Errors
/// [`ErrorKind::Invalid`] if the name is not valid or the existing key is not a P-256 key,
/// [`ErrorKind::Conflict`] if `dir` contains files that do not belong to a host, [`ErrorKind::Corrupt`] if
/// the key file does not contain a key, [`ErrorKind::Denied`] if users other than root and this one may write to
/// `dir`; errors of the operating system.
pub fn request(dir: &Path, name: &str) -> Result<MadeRequest> {
    check_name(name)?;
    super::authority::refuse_foreign(dir, &[CA, HOST, HOST_KEY, GOSSIP_KEY, TRUST, REQUEST])?;
    private::make_directory(dir)
        .map_err(|e| not_made_in(dir, "cannot make the directory", e).about(dir.display()))?;
    check_own_directory(dir, OthersMay::WriteNothing)?;
    let path = dir.join(HOST_KEY);
    let (key, made) = if path.exists() {
        let key = KeyPair::from_pem(&read_text(&path)?)
            .map_err(|e| Error::corrupt("is not a private key").caused_by(e).about(path.display()))?;
        if key.algorithm() != &PKCS_ECDSA_P256_SHA256 {
            return Err(Error::invalid("is not a key of P-256")
                .about(path.display())
                .remedy("name another directory: a key is made in it"));
        }
        (key, Made::Kept)
    } else {
        let key = KeyPair::generate().map_err(|e| cannot_make(e).about(name))?;
        replace(&path, key.serialize_pem().as_bytes(), Readers::Owner)?;
        (key, Made::New)
    };
    let pem = SigningRequest::make(name, &key)?.pem().map_err(|e| cannot_make(e).about(name))?;
    let request = dir.join(REQUEST);
    replace(&request, pem.as_bytes(), Readers::All)?;
    Ok(MadeRequest { name: name.to_owned(), request, key: made })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rcgen::SanType;

    fn made() -> (Vec<u8>, KeyPair) {
        let key = KeyPair::generate().unwrap();
        (SigningRequest::make("node4.lan", &key).unwrap().der().to_vec(), key)
    }

    #[test]
    fn a_request_says_its_name_and_key_and_any_change_of_it_is_refused() {
        let (der, key) = made();
        let request = SigningRequest::parse(&der).unwrap();
        assert_eq!(request.name, "node4.lan");
        assert!(request.public_key.ends_with(key.public_key_raw()));
        request.key().unwrap();
        for at in 0..der.len() {
            assert!(SigningRequest::parse(&der[..at]).is_err(), "{at}");
            let mut flipped = der.clone();
            flipped[at] ^= 1;
            // The identifier of the signature's algorithm is not signed, and nothing depends on it.
            if let Ok(other) = SigningRequest::parse(&flipped) {
                assert_eq!(other, request, "{at}");
            }
        }
        let longer = [&der[..], &[0]].concat();
        assert!(SigningRequest::parse(&longer).is_err());
        assert!(SigningRequest::parse(&vec![0x30; REQUEST_MAX + 1]).is_err());
    }

    #[test]
    fn requests_for_no_or_several_hosts_or_with_another_kind_of_key_are_refused() {
        let key = KeyPair::generate().unwrap();
        let of = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let der = CertificateParams::new(names).unwrap().serialize_request(&key).unwrap();
            SigningRequest::parse(der.der()).map(|request| request.name)
        };
        assert_eq!(of(&["a"]).unwrap(), "a");
        for names in [&[][..], &["a", "b"], &["A"], &["*.a"], &["127.0.0.1"]] {
            assert!(of(names).is_err(), "{names:?}");
        }
        // Everything else in it is ignored.
        let mut params = CertificateParams::new(vec!["a".to_owned()]).unwrap();
        params.subject_alt_names.push(SanType::URI("headstart:role:operator".try_into().unwrap()));
        let der = params.serialize_request(&key).unwrap();
        assert_eq!(SigningRequest::parse(der.der()).unwrap().name, "a");
        let other = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
        let der = SigningRequest::make("a", &other).unwrap();
        assert_eq!(SigningRequest::parse(der.der()).unwrap_err().kind(), ErrorKind::Invalid);
    }

    proptest! {
        #[test]
        fn no_bytes_are_taken_for_a_request(bytes: Vec<u8>) {
            prop_assert!(SigningRequest::parse(&bytes).is_err());
            prop_assert!(SigningRequest::from_file(&bytes).is_err());
        }
    }
}
