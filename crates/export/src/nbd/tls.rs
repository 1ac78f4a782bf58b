//! TLS: certificates, and the pump between an encrypted socket and the plain one that is served.
//!
//! The data path knows sockets only. When a client turns TLS on, its socket goes to a thread of its own that decrypts
//! into one end of a socket pair, whose other end is served like any client. That costs a copy in each
//! direction, which is little beside the encryption.
//!
//! Clients prove themselves by certificates or not at all: the TLS library has no pre-shared keys.

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
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader, copy_buf, split};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// Bytes moved at once: two records of TLS at least, and a batch of small replies.
const PUMP: usize = 64 << 10;
/// How long a client may take to hear the end.
const GOODBYE: Duration = Duration::from_secs(2);

/// Which certificates an NBD server uses. With them, it demands TLS of every client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// The server's certificate and what links it to its CA, PEM.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// The CA (PEM) whose certificates clients need; without it any client may connect.
    pub client_ca: Option<PathBuf>,
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
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
    let key = PrivateKeyDer::from_pem_file(&settings.key).map_err(|error| {
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

/// Starts a thread that decrypts `socket`; the plain stream is what it gives back. A client that does not finish the
/// TLS handshake within `patience` sees its connection closed, and so does the reader of the plain stream. `slot` is
/// dropped when the thread ends.
pub(crate) fn decrypt(
    acceptor: &TlsAcceptor,
    socket: OwnedFd,
    is_tcp: bool,
    patience: Duration,
    peer: String,
    slot: Box<dyn Any + Send>,
) -> io::Result<OwnedFd> {
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
                pump(acceptor, TcpStream::from_std(socket)?, far, patience).await
            } else {
                let socket = std::os::unix::net::UnixStream::from(socket);
                socket.set_nonblocking(true)?;
                pump(acceptor, UnixStream::from_std(socket)?, far, patience).await
            }
        })
    };
    std::thread::Builder::new().name("nbd-tls".to_owned()).spawn(move || {
        if let Err(error) = run() {
            tracing::warn!(peer, %error, "an NBD client failed to start TLS");
        }
        drop(slot);
    })?;
    Ok(near.into())
}

async fn pump(
    acceptor: TlsAcceptor,
    socket: impl AsyncRead + AsyncWrite + Unpin,
    plain: UnixStream,
    patience: Duration,
) -> io::Result<()> {
    let accepted = timeout(patience, acceptor.accept(socket)).await;
    let encrypted = accepted.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let (from_client, mut to_client) = split(encrypted);
    let (from_server, mut to_server) = plain.into_split();
    let inward = async {
        // However the client ends, the server sees an end and finishes what it has.
        let _ = copy_buf(&mut BufReader::with_capacity(PUMP, from_client), &mut to_server).await;
        let _ = to_server.shutdown().await;
        pending::<()>().await;
    };
    let outward = async {
        let _ = copy_buf(&mut BufReader::with_capacity(PUMP, from_server), &mut to_client).await;
        let _ = timeout(GOODBYE, to_client.shutdown()).await;
    };
    tokio::select! {
        () = inward => {}
        () = outward => {}
    }
    Ok(())
}
