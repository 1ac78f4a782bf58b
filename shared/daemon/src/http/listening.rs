//! The servers of a daemon's HTTP interface: a Unix socket that only the daemon's user can open, and a TCP port for
//! programs that only read.
//!
//! A client at the TCP port is unknown, so the port differs from the socket:
//!
//! * A request must name this host: an IP address, `localhost`, the host's own name, or a name that the operator gave.
//!   Only a request of HTTP/1.0 may have no `Host` header. A page in a browser cannot read answers by a name of its own
//!   that it points at this address (DNS rebinding).
//! * A request's head must arrive within [`HEAD_TIME`], and each connection carries one request.
//! * At most [`CONNECTIONS_MAX`] connections are open; one more closes the oldest. Connections at the socket are not
//!   counted.
//! * Digests are left out of answers: to other hosts of a swarm, knowing the digest of a blob is enough to ask for it.

use super::accepting::AFTER_ERROR;
use super::answers::refused;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST};
use axum::http::{HeaderMap, StatusCode, Version};
use axum::middleware::{Next, from_fn, map_response};
use axum::response::{IntoResponse, Response};
use futures::TryStreamExt;
use headstart_block::{Error, Result};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::any::Any;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// Connections over TCP that may be open at a time.
const CONNECTIONS_MAX: usize = 64;

/// The time within which the head of a request over TCP must arrive.
const HEAD_TIME: Duration = Duration::from_secs(5);

/// The longest answer from which digests are removed, in bytes.
const ANSWER_MAX: usize = 64 << 20;

/// Hexadecimal digits of a digest of 32 bytes.
const DIGEST_DIGITS: usize = 64;

/// Configures the TCP port of a daemon's read-only HTTP interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpPort {
    /// The address and port to listen at; with port 0, the system chooses one.
    pub address: SocketAddr,
    /// Host names that requests may have in their `Host` header, in addition to IP addresses, `localhost` and
    /// this host's own name. Requests with other names are refused.
    pub names: Vec<String>,
}

/// The running servers of a daemon's HTTP interface: one at a Unix socket and, if configured, one at a TCP port.
/// Dropping this stops them: connections over TCP are closed at once; a connection at the socket is closed as soon as
/// its request in progress has been answered.
pub struct Rest {
    tasks: Vec<AbortHandle>,
    /// The value that removes the socket when it is dropped.
    _socket: Box<dyn Any + Send + Sync>,
    /// The address and port at which the read-only interface listens over TCP; `None` if no port was
    /// configured.
    pub address: Option<SocketAddr>,
}

impl Rest {
    /// Starts to serve `all` at the Unix socket, and `looking`, the read-only part, at the TCP port `port`;
    /// without a port, there is no TCP server. `socket` is the listener of the Unix socket, and a value that
    /// is dropped when the servers stop (it may remove the socket). `path` names the socket in errors.
    ///
    /// # Errors
    /// Errors of the operating system if a server cannot listen, for instance because another process has the
    /// TCP port.
    pub async fn start(
        path: &Path,
        socket: (UnixListener, impl Any + Send + Sync),
        all: Router,
        port: Option<HttpPort>,
        looking: Router,
    ) -> Result<Self> {
        let (listener, file) = socket;
        let failed = |e| Error::io("cannot listen there", e).about(path.display());
        listener.set_nonblocking(true).map_err(failed)?;
        let listener = tokio::net::UnixListener::from_std(listener).map_err(failed)?;
        let mut tasks = Vec::new();
        tasks.push(tokio::spawn(async move { drop(axum::serve(listener, all).await) }).abort_handle());
        let mut bound = None;
        if let Some(HttpPort { address, names }) = port {
            let failed = |e| Error::io("cannot listen", e).about(address);
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            bound = Some(listener.local_addr().map_err(failed)?);
            tasks.push(tokio::spawn(serve(listener, looking, names)).abort_handle());
        }
        Ok(Self { tasks, _socket: Box::new(file), address: bound })
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// Serves `looking`, the read-only part of a daemon's interface, over TCP to clients that need not be trusted. A
/// request's `Host` header must have an IP address, `localhost`, this host's own name or one of `names`; others are
/// refused with status 421. Only a request of HTTP/1.0 may have no such header. At most 64 connections are open, and
/// one more closes the oldest. Each connection carries one request, whose head must arrive within 5 s. In answers, each
/// run of 64 or more hexadecimal digits is replaced by `-`, so that no digest of a blob is told; an answer of more than
/// 64 MiB is replaced by status 500. Runs until the future is dropped, which closes all connections.
pub async fn serve(listener: TcpListener, looking: Router, names: Vec<String>) {
    let names: Arc<[String]> = names.into_iter().chain(own_name()).collect();
    let check = move |request: Request, next: Next| {
        let names = Arc::clone(&names);
        // Browsers, which a page can lead here, always send the `Host` header; only the oldest clients do not.
        let says_nothing = request.version() == Version::HTTP_10 && !request.headers().contains_key(HOST);
        async move {
            if says_nothing || calls_this_host(request.headers(), &names) {
                next.run(request).await
            } else {
                unknown()
            }
        }
    };
    let looking = looking.layer(map_response(without_digests)).layer(from_fn(check));
    let mut open = Open::default();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => open.add(tokio::spawn(connection(stream, looking.clone())).abort_handle()),
            Err(error) => {
                tracing::debug!(%error, "a connection was not accepted");
                tokio::time::sleep(AFTER_ERROR).await;
            }
        }
    }
}

/// Connections that are open, the oldest first. They are closed when this is dropped.
#[derive(Default)]
struct Open(VecDeque<AbortHandle>);

impl Open {
    fn add(&mut self, connection: AbortHandle) {
        self.0.retain(|connection| !connection.is_finished());
        if self.0.len() >= CONNECTIONS_MAX
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.abort();
        }
        self.0.push_back(connection);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

/// Answers one request.
async fn connection(stream: TcpStream, looking: Router) {
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).keep_alive(false);
    let service = TowerToHyperService::new(looking);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a connection of a program that looks ended early");
    }
}

/// The name of this host, if it has one.
fn own_name() -> Option<String> {
    let name = rustix::system::uname().nodename().to_str().ok()?.to_owned();
    Some(name).filter(|name| !name.is_empty())
}

/// `true` if the only `Host` of a request is an address, `localhost` or one of `names`.
fn calls_this_host(headers: &HeaderMap, names: &[String]) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let Ok(host) = host.to_str() else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !name.is_empty() && port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let is_address = bare.parse::<IpAddr>().is_ok();
    is_address
        || name.eq_ignore_ascii_case("localhost")
        || names.iter().any(|own| own.eq_ignore_ascii_case(name))
}

fn unknown() -> Response {
    let why = "the request calls this host by a name that it does not know: use its address, or start the daemon \
               with --http-name NAME";
    refused(StatusCode::MISDIRECTED_REQUEST, why)
}

/// An answer in which digests are replaced by `-`.
async fn without_digests(response: Response) -> Response {
    let (mut parts, body) = response.into_parts();
    let is_endless =
        parts.headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    if is_endless {
        // Each event is one frame.
        let events = body.into_data_stream().map_ok(|event| hide_digests(&event).into_owned());
        return (parts, Body::from_stream(events)).into_response();
    }
    match to_bytes(body, ANSWER_MAX).await {
        Ok(bytes) => {
            parts.headers.remove(CONTENT_LENGTH);
            (parts, hide_digests(&bytes).into_owned()).into_response()
        }
        Err(_) => refused(StatusCode::INTERNAL_SERVER_ERROR, "the answer is too long"),
    }
}

/// The text with `-` in the place of each digest.
fn hide_digests(text: &[u8]) -> Cow<'_, [u8]> {
    let mut out: Option<Vec<u8>> = None;
    let (mut from, mut at) = (0, 0);
    while at < text.len() {
        let digits = text[at..].iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        if digits >= DIGEST_DIGITS {
            let out = out.get_or_insert_default();
            out.extend_from_slice(&text[from..at]);
            out.push(b'-');
            from = at + digits;
        }
        at += digits.max(1);
    }
    match out {
        Some(mut out) => {
            out.extend_from_slice(&text[from..]);
            out.into()
        }
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn only_names_of_this_host_are_answered() {
        let names = ["node1".to_owned(), "metrics.lan".to_owned()];
        for (host, is_known) in [
            ("127.0.0.1:9647", true),
            ("192.0.2.1", true),
            ("[::1]:9647", true),
            ("[::1]", true),
            ("localhost", true),
            ("LOCALHOST:1", true),
            ("node1:9647", true),
            ("Metrics.lan", true),
            ("evil.example", false),
            ("127.0.0.1.evil.example:9647", false),
            ("node1.evil.example", false),
            ("localhost.evil.example", false),
            (":9647", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static(host))]);
            assert_eq!(calls_this_host(&headers, &names), is_known, "{host}");
        }
        assert!(!calls_this_host(&HeaderMap::new(), &names));
        let mut twice = HeaderMap::new();
        twice.append(HOST, HeaderValue::from_static("localhost"));
        twice.append(HOST, HeaderValue::from_static("localhost"));
        assert!(!calls_this_host(&twice, &names));
    }

    #[test]
    fn digests_are_replaced_and_nothing_else() {
        let digest = "0123456789abcdef".repeat(4);
        let text = format!("{{\"digest\":\"sha256:{digest}\",\"x\":\"{digest}\",\"n\":12345678}}");
        assert_eq!(hide_digests(text.as_bytes()).as_ref(), br#"{"digest":"sha256:-","x":"-","n":12345678}"#);
        let short = &digest[1..];
        assert_eq!(hide_digests(short.as_bytes()).as_ref(), short.as_bytes());
        assert_eq!(hide_digests(b"").as_ref(), b"");
    }
}
