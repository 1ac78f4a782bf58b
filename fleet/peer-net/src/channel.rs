//! Connections: the identity of the other end, and a number that names the connection.
//!
//! Both ends have a certificate of the cluster's authority (TLS 1.3 and nothing older, no tickets, no early data), and
//! the name in a host's hello must be in its certificate. Its roles come from there, too ([`Roles`]). Without security,
//! on loopback, every host is trusted.
//!
//! The version of the protocol is agreed upon in the handshake: hosts of an earlier version know only their own.

use crate::credentials::{Calendar, Credentials, HostCertificate, Roles, is_for};
use crate::frame::{self, FrameKind, Header, Hello};
use crate::proof::{Binding, Side};
use headstart_block::{Error, ErrorKind, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig,
    SignatureScheme,
};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// The longest time in which both ends identify each other.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// The name of the application protocol in the handshake, by its version.
const PROTOCOLS: [(u16, &[u8]); 2] =
    [(frame::VERSION, b"headstart-swarm/2"), (frame::VERSION_1, b"headstart-swarm/1")];

/// The label of the exported secret.
const EXPORTER: &[u8] = b"EXPORTER-headstart-swarm";

/// The name in the handshake of a host whose name is not known yet.
const ANY_NAME: &str = "swarm";

/// Bytes that are read from a socket at once: several records, so that the library, which asks for 4 KiB at a time,
/// costs few system calls.
const READ_AHEAD: usize = 128 << 10;

/// Bytes that the kernel holds unsent for a connection: urgent frames overtake those that wait here, and cannot
/// overtake those that wait in the kernel.
const UNSENT_MAX: u32 = 128 << 10;

/// The security of connections.
pub(super) enum Wire {
    Tls {
        connector: TlsConnector,
        /// The connector to hosts whose name is not known: their certificate has it.
        joiner: TlsConnector,
        acceptor: TlsAcceptor,
    },
    Plain,
}

/// A connection whose other end is known.
pub(super) struct Channel {
    pub(super) stream: Stream,
    pub(super) hello: Hello,
    /// The other end's certificate; without one, on loopback, all that it claims is trusted.
    pub(super) certificate: Option<HostCertificate>,
    pub(super) side: Side,
    pub(super) binding: Binding,
}

impl Channel {
    /// The roles that the other end has, whether it claims them or not.
    pub(super) fn roles(&self) -> Roles {
        let claimed = (self.hello.is_root, self.hello.is_tracker);
        let believed = Roles { root: claimed.0, tracker: claimed.1, ..Roles::ALL };
        self.certificate.as_ref().map_or(believed, |certificate| certificate.roles)
    }

    /// The version of the protocol on this connection.
    pub(super) fn protocol(&self) -> u16 {
        self.hello.version
    }
}

/// The byte stream of a connection.
pub(super) enum Stream {
    Tls(Box<TlsStream<BufReader<TcpStream>>>),
    Plain(BufReader<TcpStream>),
}

impl Wire {
    pub(super) fn tls(credentials: &Credentials) -> Result<Self> {
        Self::tls_up_to(credentials, frame::VERSION)
    }

    /// The TLS configuration of a host that speaks no later version of the protocol than `version`.
    pub(super) fn tls_up_to(credentials: &Credentials, version: u16) -> Result<Self> {
        let failed = |what: &'static str| move |e: rustls::Error| Error::invalid(what).caused_by(e);
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        // The fastest is first: clients choose the order, and all clients are hosts of the swarm.
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
        // Each connection uses the certificate of the moment.
        let identity = &credentials.identity;
        let spoken = PROTOCOLS.iter().filter(|(known, _)| *known <= version);
        let protocols: Vec<_> = spoken.map(|(_, name)| name.to_vec()).collect();
        let mut server = ServerConfig::builder_with_details(Arc::clone(&provider), Arc::new(Calendar))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(failed("TLS 1.3 cannot be used"))?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::clone(identity) as Arc<dyn ResolvesServerCert>);
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.alpn_protocols.clone_from(&protocols);
        let mut client = ClientConfig::builder_with_details(Arc::clone(&provider), Arc::new(Calendar))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(failed("TLS 1.3 cannot be used"))?
            .with_root_certificates(Arc::clone(&roots))
            .with_client_cert_resolver(Arc::clone(identity) as Arc<dyn ResolvesClientCert>);
        client.resumption = Resumption::disabled();
        client.alpn_protocols = protocols;
        let mut joiner = client.clone();
        joiner.dangerous().set_certificate_verifier(Arc::new(AnyMember::of(roots, provider)?));
        Ok(Self::Tls {
            connector: TlsConnector::from(Arc::new(client)),
            joiner: TlsConnector::from(Arc::new(joiner)),
            acceptor: TlsAcceptor::from(Arc::new(server)),
        })
    }

    /// Identifies a host that has connected, within a bounded time.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if it does not belong to the cluster or has another name than it claims.
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

    /// Connects to the host `name` and verifies that name, within a bounded time.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub(super) async fn connect(&self, socket: TcpStream, name: &str, ours: &Hello) -> Result<Channel> {
        let connector = match self {
            Self::Plain => None,
            Self::Tls { connector, .. } => Some(connector),
        };
        let channel = in_time(connect_by(connector, socket, name, ours)).await?;
        if channel.hello.name != name {
            return Err(Error::new(ErrorKind::Denied, "another host answers there").about(name));
        }
        Ok(channel)
    }

    /// Connects to any host of the cluster and identifies it, within a bounded time.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub(super) async fn connect_any(&self, socket: TcpStream, ours: &Hello) -> Result<Channel> {
        let connector = match self {
            Self::Plain => None,
            Self::Tls { joiner, .. } => Some(joiner),
        };
        in_time(connect_by(connector, socket, ANY_NAME, ours)).await
    }
}

/// Verifies that a certificate is the cluster's, for the name that is in it: the result is that name.
#[derive(Debug)]
struct AnyMember(Arc<WebPkiServerVerifier>);

impl AnyMember {
    fn of(roots: Arc<RootCertStore>, provider: Arc<CryptoProvider>) -> Result<Self> {
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
        let failed = |e| Error::invalid("hosts cannot be checked by the cluster's authority").caused_by(e);
        Ok(Self(verifier.map_err(failed)?))
    }
}

impl ServerCertVerifier for AnyMember {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let name = HostCertificate::parse(end_entity).ok().map(|certificate| certificate.name);
        let name = name.and_then(|name| ServerName::try_from(name).ok());
        let name = name.ok_or(rustls::Error::InvalidCertificate(CertificateError::BadEncoding))?;
        self.0.verify_server_cert(end_entity, intermediates, &name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

async fn in_time<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| Err(Error::new(ErrorKind::Unavailable, "the other host does not answer in time"));
    tokio::time::timeout(HANDSHAKE, work).await.unwrap_or_else(late)
}

/// Connects, with TLS if there is a connector.
async fn connect_by(
    connector: Option<&TlsConnector>,
    socket: TcpStream,
    name: &str,
    ours: &Hello,
) -> Result<Channel> {
    let socket = prepared(socket)?;
    let stream = match connector {
        None => Stream::Plain(socket),
        Some(connector) => {
            let name = ServerName::try_from(name.to_owned())
                .map_err(|e| Error::invalid("is not a name of a host").caused_by(e).about(name))?;
            let stream = connector.connect(name, socket).await.map_err(refused)?;
            Stream::Tls(Box::new(TlsStream::Client(stream)))
        }
    };
    introduce(stream, ours, Side::Dialer).await
}

/// The error of a handshake that failed; its kind names the end at fault, if that is known.
fn refused(error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::InvalidData => ErrorKind::Denied,
        _ => ErrorKind::Unavailable,
    };
    let remedy = error.get_ref().and_then(|inner| inner.downcast_ref()).and_then(remedy_of);
    let error = Error::new(kind, "no connection under the cluster's certificates").caused_by(error);
    match remedy {
        Some(remedy) => error.remedy(remedy),
        None => error,
    }
}

/// The remedy if two hosts do not accept each other's certificates.
fn remedy_of(error: &rustls::Error) -> Option<&'static str> {
    use CertificateError::{BadSignature, Expired, ExpiredContext, UnknownIssuer};
    Some(match error {
        rustls::Error::InvalidCertificate(UnknownIssuer | BadSignature)
        | rustls::Error::AlertReceived(AlertDescription::UnknownCA | AlertDescription::DecryptError) => {
            "one of the two hosts belongs to another cluster: make the certificates of both in the same DIR, by \
             `headstart swarm init DIR`"
        }
        rustls::Error::InvalidCertificate(Expired | ExpiredContext { .. })
        | rustls::Error::AlertReceived(AlertDescription::CertificateExpired) => {
            "a certificate has ended: renew it by `headstart swarm init DIR --host NAME` where the authority is, and \
             copy what that makes"
        }
        rustls::Error::InvalidMessage(_) => "what answers there is no host of a swarm, or has no certificate",
        _ => return None,
    })
}

fn prepared(socket: TcpStream) -> Result<BufReader<TcpStream>> {
    let failed = |e| Error::io("cannot set up a connection", e);
    socket.set_nodelay(true).map_err(failed)?;
    socket2::SockRef::from(&socket).set_tcp_notsent_lowat(UNSENT_MAX).map_err(failed)?;
    Ok(BufReader::with_capacity(READ_AHEAD, socket))
}

/// Exchanges hellos. Without TLS the dialer sends its version first, and is answered in that version.
async fn introduce(mut stream: Stream, ours: &Hello, side: Side) -> Result<Channel> {
    let lost = |e| Error::io("the connection broke off", e);
    let first = match (&stream, side) {
        (Stream::Plain(_), Side::Acceptor) => Some(their_hello(&mut stream).await?),
        _ => None,
    };
    let version = first.as_ref().map_or_else(|| stream.protocol(), |hello| hello.version);
    let mut ours = Hello { version, ..ours.clone() };
    aws_lc_rs::rand::fill(&mut ours.nonce[frame::PROCESS..])
        .map_err(|_| Error::new(ErrorKind::Io, "no random numbers can be drawn"))?;
    let mut out = Vec::new();
    frame::push_encoded(&mut out, FrameKind::Hello, &ours)?;
    stream.write_all(&out).await.map_err(lost)?;
    stream.flush().await.map_err(lost)?;
    let hello = match first {
        Some(hello) => hello,
        None => their_hello(&mut stream).await?,
    };
    if hello.version != ours.version {
        return Err(hello.other_version(ours.version));
    }
    if !stream.is_of(&hello.name) {
        return Err(Error::new(
            ErrorKind::Denied,
            "its certificate is for another name than the one that it gives",
        )
        .about(hello.name.escape_debug()));
    }
    let binding = stream.binding(side, &ours.nonce, &hello.nonce)?;
    let certificate = stream.certificate().map(HostCertificate::parse).transpose()?;
    Ok(Channel { stream, hello, certificate, side, binding })
}

async fn their_hello(stream: &mut Stream) -> Result<Hello> {
    let lost = |e| Error::io("the connection broke off", e);
    let mut header = [0; frame::HEADER];
    stream.read_exact(&mut header).await.map_err(lost)?;
    let header = Header::decode(&header)?;
    if header.kind != FrameKind::Hello {
        return Err(Error::corrupt("the other host does not give its name"));
    }
    let mut body = vec![0; header.len];
    stream.read_exact(&mut body).await.map_err(lost)?;
    Hello::decode(&body)
}

impl Stream {
    /// `true` if the other end has the name that it claims.
    fn is_of(&self, name: &str) -> bool {
        match self {
            Self::Plain(_) => true,
            Self::Tls(_) => self.certificate().is_some_and(|certificate| is_for(certificate, name)),
        }
    }

    /// The other end's certificate.
    fn certificate(&self) -> Option<&CertificateDer<'static>> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => stream.get_ref().1.peer_certificates().and_then(<[_]>::first),
        }
    }

    /// The version of the protocol that both ends speak.
    fn protocol(&self) -> u16 {
        match self {
            Self::Plain(_) => frame::VERSION,
            Self::Tls(stream) => {
                let name = stream.get_ref().1.alpn_protocol();
                let agreed = PROTOCOLS.iter().find(|(_, protocol)| name == Some(protocol));
                agreed.map_or(frame::VERSION_1, |(version, _)| *version)
            }
        }
    }

    /// The binding value that names this connection.
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
