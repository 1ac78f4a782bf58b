//! The certificate authorities by which servers are checked. The host's are many, and reading them takes 50 ms: that is
//! done when the first server shows a certificate. A registry without TLS may still redirect to a server with it.

use headstart_block::{Error, Result};
use parking_lot::Mutex;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_platform_verifier::Verifier;
use std::sync::Arc;

/// A check of servers by the authorities of the host and some more.
#[derive(Debug)]
struct LazyRoots {
    more: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
    /// The check, once a server has shown a certificate.
    verifier: Mutex<Option<Arc<Verifier>>>,
}

impl LazyRoots {
    fn verifier(&self) -> std::result::Result<Arc<Verifier>, rustls::Error> {
        let mut made = self.verifier.lock();
        if let Some(verifier) = &*made {
            return Ok(Arc::clone(verifier));
        }
        let verifier = Verifier::new_with_extra_roots(self.more.iter().cloned(), Arc::clone(&self.provider))?;
        Ok(Arc::clone(made.insert(Arc::new(verifier))))
    }
}

impl ServerCertVerifier for LazyRoots {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let verifier = self.verifier()?;
        verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The certificates in a file's PEM text; `None` if it has none, or damaged ones.
pub(crate) fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let list: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<std::result::Result<_, _>>().ok()?;
    let mut roots = rustls::RootCertStore::empty();
    (!list.is_empty() && list.iter().all(|one| roots.add(one.clone()).is_ok())).then_some(list)
}

/// The TLS of a client for HTTP/1.1 that trusts the host's authorities and `more`.
///
/// # Errors
/// The library of TLS has no protocol.
pub(crate) fn client_config(more: Vec<CertificateDer<'static>>) -> Result<ClientConfig> {
    let ours = || Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let provider = CryptoProvider::get_default().map_or_else(ours, Arc::clone);
    let roots = LazyRoots { more, provider: Arc::clone(&provider), verifier: Mutex::default() };
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|e| Error::invalid("cannot set up TLS").caused_by(e))?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(roots));
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
