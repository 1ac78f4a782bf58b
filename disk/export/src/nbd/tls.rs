//! TLS: certificates, and the pump between an encrypted socket and the plain one that is served.
//!
//! The data path knows sockets only. When a client turns TLS on, its socket goes to a thread of its own that decrypts
//! into one end of a socket pair, whose other end is served like any client. That costs a copy in each direction, which
//! is little compared with the encryption.
//!
//! Clients identify themselves by certificates or not at all: the TLS library has no pre-shared keys.
//!
//! A client is known by the names in its certificate: DNS names, URIs and e-mail addresses of the subject's alternative
//! names; if it has no alternative names at all, which is common in certificates made by hand, the common name.

use crate::complaints::{Complaints, complain};
use headstart_block::small_file::{PEM_MAX, read_small};
use headstart_block::{Error, Result};
use rustix::fd::OwnedFd;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::any::Any;
use std::future::pending;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader, copy_buf, split};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsAcceptor;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;

/// The number of bytes moved at once: two records of TLS at least, and a batch of small replies.
const PUMP: usize = 64 << 10;
/// The time that a client may take to receive the end.
const GOODBYE: Duration = Duration::from_secs(2);

/// The TLS certificates of an NBD server. A server that has them demands TLS of every client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// The PEM file with the server's certificate, followed by the chain of certificates up to its CA.
    pub certificate: PathBuf,
    /// The PEM file with the private key of the server's certificate.
    pub key: PathBuf,
    /// The PEM file of the CA that must have issued the clients' certificates; every client then needs one. `None`:
    /// clients need no certificate.
    pub client_ca: Option<PathBuf>,
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let pem = read_small(path, PEM_MAX).map_err(|e| e.remedy("name a PEM file of certificates"))?;
    match CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>() {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(Error::invalid("holds no certificate").about(path.display())),
        Err(error) => Err(Error::invalid("cannot read certificates").caused_by(error).about(path.display())),
    }
}

/// Reads the certificates.
pub(crate) fn configure(settings: &TlsSettings) -> Result<TlsAcceptor> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let unfit = |error: rustls::Error| {
        Error::invalid("this certificate and key cannot serve")
            .caused_by(error)
            .about(settings.certificate.display())
    };
    let chain = certificates(&settings.certificate)?;
    let key = read_small(&settings.key, PEM_MAX)
        .map_err(|e| e.remedy("name the PEM file of the certificate's private key"))?;
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| {
        Error::invalid("cannot read a private key").caused_by(error).about(settings.key.display())
    })?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(unfit)?;
    let builder = match &settings.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let bad =
                |error: String| Error::invalid(format!("cannot be a CA: {error}")).about(path.display());
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| bad(error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| bad(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let config = builder.with_single_cert(chain, key).map_err(unfit)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// The names that a checked certificate gives its holder.
fn names_of(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    match certificate.subject_alternative_name() {
        Ok(Some(others)) => {
            let names = others.value.general_names.iter().filter_map(|name| match name {
                GeneralName::DNSName(name) | GeneralName::URI(name) | GeneralName::RFC822Name(name) => {
                    Some(*name)
                }
                _ => None,
            });
            names.map(str::to_owned).collect()
        }
        Ok(None) => {
            let names = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
            names.map(str::to_owned).collect()
        }
        // A certificate that has them twice has none that can be trusted.
        Err(_) => Vec::new(),
    }
}

/// Starts a thread that decrypts `socket`. Returns the plain stream, and a receiver of the names in the client's
/// certificate, which come once the handshake is done. A client that does not finish the TLS handshake within
/// `timeout` sees its connection closed, and so does the reader of the plain stream. `slot` is dropped when the thread
/// ends.
pub(crate) fn decrypt(
    acceptor: &TlsAcceptor,
    socket: OwnedFd,
    is_tcp: bool,
    timeout: Duration,
    peer: String,
    slot: Box<dyn Any + Send>,
    complaints: Arc<Complaints>,
) -> io::Result<(OwnedFd, Receiver<Vec<String>>)> {
    let (accepted, receiver) = channel();
    let (near, far) = std::os::unix::net::UnixStream::pair()?;
    far.set_nonblocking(true)?;
    let acceptor = acceptor.clone();
    let run = move || -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        runtime.block_on(async {
            let far = UnixStream::from_std(far)?;
            if is_tcp {
                let socket = std::net::TcpStream::from(socket);
                socket.set_nonblocking(true)?;
                pump(acceptor, TcpStream::from_std(socket)?, far, timeout, accepted).await
            } else {
                let socket = std::os::unix::net::UnixStream::from(socket);
                socket.set_nonblocking(true)?;
                pump(acceptor, UnixStream::from_std(socket)?, far, timeout, accepted).await
            }
        })
    };
    std::thread::Builder::new().name("nbd-tls".to_owned()).spawn(move || {
        if let Err(error) = run() {
            complain!(complaints, Tls, peer, %error, "an NBD client failed to start TLS");
        }
        drop(slot);
    })?;
    Ok((near.into(), receiver))
}

async fn pump(
    acceptor: TlsAcceptor,
    socket: impl AsyncRead + AsyncWrite + Unpin,
    plain: UnixStream,
    timeout: Duration,
    names: Sender<Vec<String>>,
) -> io::Result<()> {
    let accepted = tokio::time::timeout(timeout, acceptor.accept(socket)).await;
    let encrypted = accepted.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let shown = encrypted.get_ref().1.peer_certificates().and_then(<[_]>::first);
    if names.send(shown.map(names_of).unwrap_or_default()).is_err() {
        // The server does not wait for the client any more.
        return Ok(());
    }
    let (from_client, mut to_client) = split(encrypted);
    let (from_server, mut to_server) = plain.into_split();
    let inward = async {
        // In whatever way the client ends, the server sees an end and finishes the requests that it has.
        let _ = copy_buf(&mut BufReader::with_capacity(PUMP, from_client), &mut to_server).await;
        let _ = to_server.shutdown().await;
        pending::<()>().await;
    };
    let outward = async {
        let _ = copy_buf(&mut BufReader::with_capacity(PUMP, from_server), &mut to_client).await;
        let _ = tokio::time::timeout(GOODBYE, to_client.shutdown()).await;
    };
    tokio::select! {
        () = inward => {}
        () = outward => {}
    }
    Ok(())
}
