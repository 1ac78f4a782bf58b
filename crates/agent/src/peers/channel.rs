//! Connections: who is at the other end, and a number that names the connection.
//!
//! Both ends have a certificate of the cluster's authority (TLS 1.3 and nothing older, no tickets, no early data), and
//! the name that somebody says he has must be in his. Where security is none, on loopback, everybody is believed.

use crate::credentials::{Credentials, is_for};
use crate::peers::frame::{self, Header, Hello, Kind};
use crate::peers::proof::{Binding, Side};
use headstart_block::{Error, ErrorKind, Result};
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// How long both ends may take to find out who the other is.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// What the application protocol is called in the handshake.
const PROTOCOL: &[u8] = b"headstart-swarm/1";

/// What the exported secret is for.
const EXPORTER: &[u8] = b"EXPORTER-headstart-swarm";

/// Bytes that are read from a socket at once: several records, so that the library, which asks for 4 KiB at a time,
/// costs few system calls.
const READ_AHEAD: usize = 128 << 10;

/// Bytes that the kernel holds unsent for a connection: what is more urgent overtakes what waits here, and nothing
/// overtakes what waits there.
const UNSENT_MAX: u32 = 128 << 10;

/// How connections are made.
pub(super) enum Wire {
    Tls { connector: TlsConnector, acceptor: TlsAcceptor },
    Plain,
}

/// A connection whose other end is known.
pub(super) struct Channel {
    pub(super) stream: Stream,
    pub(super) hello: Hello,
    pub(super) side: Side,
    pub(super) binding: Binding,
}

/// Its bytes.
pub(super) enum Stream {
    Tls(Box<TlsStream<BufReader<TcpStream>>>),
    Plain(BufReader<TcpStream>),
}

impl Wire {
    pub(super) fn tls(credentials: &Credentials) -> Result<Self> {
        let failed = |what: &'static str| move |e: rustls::Error| Error::invalid(what).caused_by(e);
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        // The fastest first: clients choose the order, and they are all of us.
        provider.cipher_suites = vec![
            rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
            rustls::crypto::aws_lc_rs::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ];
        let provider = Arc::new(provider);
        let mut roots = RootCertStore::empty();
        for certificate in &credentials.authority {
            roots.add(certificate.clone()).map_err(failed("the cluster's authority is none"))?;
        }
        let roots = Arc::new(roots);
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider)).build();
        let verifier = verifier
            .map_err(|e| Error::invalid("hosts cannot be checked by the cluster's authority").caused_by(e))?;
        let (chain, key) = (credentials.certificate.clone(), &credentials.key);
        let unusable = "the host's certificate and key cannot be used";
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(failed("TLS 1.3 cannot be used"))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(failed(unusable))?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(failed("TLS 1.3 cannot be used"))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key.clone_key())
            .map_err(failed(unusable))?;
        client.resumption = Resumption::disabled();
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Self::Tls {
            connector: TlsConnector::from(Arc::new(client)),
            acceptor: TlsAcceptor::from(Arc::new(server)),
        })
    }

    /// Finds out who has connected, within a bounded time.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] where he does not belong to the cluster or is not who he says.
    pub(super) async fn accept(&self, socket: TcpStream, ours: &Hello) -> Result<Channel> {
        let accepting = async {
            let socket = prepared(socket)?;
            let stream = match self {
                Self::Plain => Stream::Plain(socket),
                Self::Tls { acceptor, .. } => {
                    let stream = acceptor.accept(socket).await.map_err(refused)?;
                    Stream::Tls(Box::new(TlsStream::Server(stream)))
                }
            };
            introduce(stream, ours, Side::Acceptor).await
        };
        in_time(accepting).await
    }

    /// Makes sure that the other end is the host `name`, within a bounded time.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub(super) async fn connect(&self, socket: TcpStream, name: &str, ours: &Hello) -> Result<Channel> {
        let connecting = async {
            let socket = prepared(socket)?;
            let stream = match self {
                Self::Plain => Stream::Plain(socket),
                Self::Tls { connector, .. } => {
                    let name = ServerName::try_from(name.to_owned())
                        .map_err(|e| Error::invalid("is no name of a host").caused_by(e).about(name))?;
                    let stream = connector.connect(name, socket).await.map_err(refused)?;
                    Stream::Tls(Box::new(TlsStream::Client(stream)))
                }
            };
            introduce(stream, ours, Side::Dialer).await
        };
        let channel = in_time(connecting).await?;
        if channel.hello.name != name {
            return Err(Error::new(ErrorKind::Denied, "another host answers there").about(name));
        }
        Ok(channel)
    }
}

async fn in_time<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| Err(Error::new(ErrorKind::Unavailable, "the other host does not answer in time"));
    tokio::time::timeout(HANDSHAKE, work).await.unwrap_or_else(late)
}

fn refused(error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::InvalidData => ErrorKind::Denied,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, "no connection under the cluster's certificates").caused_by(error)
}

fn prepared(socket: TcpStream) -> Result<BufReader<TcpStream>> {
    let failed = |e| Error::io("cannot set up a connection", e);
    socket.set_nodelay(true).map_err(failed)?;
    socket2::SockRef::from(&socket).set_tcp_notsent_lowat(UNSENT_MAX).map_err(failed)?;
    Ok(BufReader::with_capacity(READ_AHEAD, socket))
}

/// Both say who they are.
async fn introduce(mut stream: Stream, ours: &Hello, side: Side) -> Result<Channel> {
    let lost = |e| Error::io("the connection broke off", e);
    let mut ours = ours.clone();
    aws_lc_rs::rand::fill(&mut ours.nonce)
        .map_err(|_| Error::new(ErrorKind::Io, "no randomness can be had"))?;
    let mut out = Vec::new();
    frame::push_encoded(&mut out, Kind::Hello, &ours)?;
    stream.write_all(&out).await.map_err(lost)?;
    stream.flush().await.map_err(lost)?;
    let mut header = [0; frame::HEADER];
    stream.read_exact(&mut header).await.map_err(lost)?;
    let header = Header::decode(&header)?;
    if header.kind != Kind::Hello {
        return Err(Error::corrupt("the other host does not say who it is"));
    }
    let mut body = vec![0; header.len];
    stream.read_exact(&mut body).await.map_err(lost)?;
    let hello = Hello::decode(&body)?;
    if !stream.is_of(&hello.name) {
        return Err(Error::new(ErrorKind::Denied, "its certificate is not for the name that it says")
            .about(hello.name.escape_debug()));
    }
    let binding = stream.binding(side, &ours.nonce, &hello.nonce)?;
    Ok(Channel { stream, hello, side, binding })
}

impl Stream {
    /// Whether the other end is who it says.
    fn is_of(&self, name: &str) -> bool {
        match self {
            Self::Plain(_) => true,
            Self::Tls(stream) => {
                let certificates = stream.get_ref().1.peer_certificates();
                certificates.and_then(<[_]>::first).is_some_and(|certificate| is_for(certificate, name))
            }
        }
    }

    /// What names this connection.
    fn binding(&self, side: Side, ours: &[u8; 32], theirs: &[u8; 32]) -> Result<Binding> {
        let mut binding = [0; 32];
        match self {
            Self::Plain(_) => {
                let (dialer, acceptor) = if side == Side::Dialer { (ours, theirs) } else { (theirs, ours) };
                let mut hasher = blake3::Hasher::new_derive_key("headstart swarm 1 plain connection");
                hasher.update(dialer).update(acceptor);
                binding = *hasher.finalize().as_bytes();
            }
            Self::Tls(stream) => {
                let exported = match &**stream {
                    TlsStream::Client(stream) => {
                        stream.get_ref().1.export_keying_material(&mut binding[..], EXPORTER, None).map(drop)
                    }
                    TlsStream::Server(stream) => {
                        stream.get_ref().1.export_keying_material(&mut binding[..], EXPORTER, None).map(drop)
                    }
                };
                exported.map_err(|e| Error::new(ErrorKind::Io, "the connection has no name").caused_by(e))?;
            }
        }
        Ok(binding)
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
