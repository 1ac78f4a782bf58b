//! An HTTP proxy on loopback in the form of OverlayBD's `p2pConfig`, for clients that are other programs.
//!
//! Such a client puts the proxy's address before the URL of a blob, and otherwise sends the request that it would have
//! sent to the blob's server: `GET /dadip2p/https://registry/v2/app/blobs/sha256:...` with a `Range` and the client's
//! own authorization. If a registry redirects to an object store, the client puts the proxy's address before the signed
//! URL of the object store. If this host exchanges the blob in the swarm, and the client may have the blob, the answer
//! comes from the cache and the swarm. All other `GET` and `HEAD` requests are passed to the server in the URL. Other
//! methods are refused.
//!
//! | module | content |
//! |---|---|
//! | `request` | the request of a client |
//! | `upstream` | the server in the client's URL, which the client would have asked without the proxy |
//! | `authorization` | the right of a client to a blob |
//!
//! # The right to a blob
//!
//! This host may read its blobs, but not every client on this host may. So the proxy first requests four parts of the
//! blob, drawn at random (all of a short blob), from the server in the client's URL, with the client's credentials. The
//! client gets bytes of the blob only if the server sends these parts and they are the same as this host's. So neither
//! the name of the server nor the form of the URL has to be trusted: a server that the client runs itself, and that
//! accepts every request, does not know the bytes.
//!
//! * If the parts are the same, the client is accepted for a minute. After that it is checked again; if the server
//!   cannot be reached then, the client stays accepted until an hour after the last successful check.
//! * Otherwise the client's requests are passed to the server, without another check for ten seconds. So a server's
//!   refusal reaches the client unchanged.
//! * If the server sent other bytes, or only some of the parts, no client at all is checked for this blob in the next
//!   minute: only clients that were accepted in the last minute get its bytes from the cache and the swarm.
//!
//! # Bounds
//!
//! The number of connections, the time in which a request's head has to arrive, the number of open requests, and the
//! bytes that each request has in memory are bounded. Only programs on this host reach the proxy. A request must name
//! this host in its `Host` header, so that no web page in a browser can use the proxy (DNS rebinding).

#![forbid(unsafe_code)]

mod authorization;
mod request;
mod upstream;

#[cfg(test)]
mod tests;

use crate::authorization::Authorizations;
use crate::request::{ClientRequest, RequestedRange, is_of_this_host};
use crate::upstream::Upstream;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT_RANGES, ALLOW, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HOST};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, StreamExt};
use headstart_block::{ByteRange, Error, ErrorKind, ReadAt, Result, to_usize};
use headstart_daemon::http::serve_all;
use headstart_peer_net::{SharedBlob, Swarm};
use headstart_store::StoreSettings;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

/// The most open requests; more wait.
const REQUESTS_MAX: usize = 256;

/// The most open connections; more wait. Some are only kept for a client's next request.
const CONNECTIONS_MAX: usize = 2 * REQUESTS_MAX;

/// The time within which the head of a request must arrive.
const HEAD_TIME: Duration = Duration::from_secs(10);

/// The longest wait of a request for its turn.
const TURN: Duration = Duration::from_secs(10);

/// The bytes that are fetched at once: OverlayBD asks for no more.
const PART: u64 = 256 << 10;

/// The number of such parts for one request, including the one that is being sent.
const PARTS_AHEAD: usize = 4;

/// The longest time for this host to fetch a part, before the client's server is asked.
const FETCH_TIMEOUT: Duration = Duration::from_secs(20);

/// The interval at which blobs without reading clients are closed.
const TIDY_EVERY: Duration = Duration::from_secs(60);

/// Counters of a range proxy since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyCounters {
    /// Requests received from clients.
    pub requests: u64,
    /// Requests that were answered with bytes from the cache or the swarm; the others were passed on to the
    /// client's server or refused.
    pub served: u64,
    /// Bytes sent to clients from the cache or the swarm.
    pub served_bytes: u64,
    /// Bytes of the answers counted by `served` that came from the client's server, because neither the cache nor the
    /// swarm could deliver them.
    pub filled_bytes: u64,
    /// Checks that a client may read a blob. Each one requests a few random parts of the blob from the
    /// client's server, with the client's credentials.
    pub checks: u64,
    /// Checks in which the server's bytes differed from the blob's, or in which the server sent only some of the parts.
    /// For a minute after such a check no client is accepted for the blob; clients that were accepted less than a
    /// minute ago are still served.
    pub impostors: u64,
}

/// The same counters, as atomics.
#[derive(Default)]
struct Counts {
    requests: AtomicU64,
    served: AtomicU64,
    served_bytes: AtomicU64,
    filled_bytes: AtomicU64,
    checks: AtomicU64,
    impostors: AtomicU64,
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

/// A running range proxy: an HTTP proxy that answers requests for blobs from this host's cache and the swarm.
/// Dropping it stops it.
pub struct Proxy {
    address: SocketAddr,
    state: Arc<ProxyState>,
    task: AbortHandle,
}

/// The state that all requests share.
struct ProxyState {
    swarm: Arc<Swarm>,
    upstream: Upstream,
    authorizations: Authorizations,
    turns: Arc<Semaphore>,
    counts: Counts,
    /// The port that it listens at.
    port: u16,
}

impl Proxy {
    /// Starts a proxy at the loopback address `address`. `stores` are the settings for connections to the clients'
    /// servers.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the address is not on loopback; an error of the operating system if the proxy cannot
    /// listen there; an error if `stores` are not valid.
    pub async fn start(address: SocketAddr, swarm: Arc<Swarm>, stores: &StoreSettings) -> Result<Self> {
        if !address.ip().is_loopback() {
            return Err(Error::invalid("the proxy is for programs on this host only")
                .about(address)
                .remedy("give an address of loopback, such as 127.0.0.1:9731"));
        }
        let failed = |e| Error::io("the proxy cannot listen", e).about(address);
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let state = Arc::new(ProxyState {
            swarm,
            upstream: Upstream::new(stores)?,
            authorizations: Authorizations::default(),
            turns: Arc::new(Semaphore::new(REQUESTS_MAX)),
            counts: Counts::default(),
            port: address.port(),
        });
        let all = Router::new().fallback(answer).with_state(Arc::clone(&state));
        let tidied = Arc::clone(&state);
        let tidying = async move {
            loop {
                tokio::time::sleep(TIDY_EVERY).await;
                tidied.authorizations.forget_unused();
            }
        };
        let serving = serve_all(listener, all, CONNECTIONS_MAX, HEAD_TIME);
        let both = async move {
            tokio::select! {
                () = serving => {}
                () = tidying => {}
            }
        };
        let task = tokio::spawn(both).abort_handle();
        Ok(Self { address, state, task })
    }

    /// The address at which the proxy listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The counters of this proxy since it was started.
    #[must_use]
    pub fn counters(&self) -> ProxyCounters {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = &self.state.counts;
        ProxyCounters {
            requests: read(&counts.requests),
            served: read(&counts.served),
            served_bytes: read(&counts.served_bytes),
            filled_bytes: read(&counts.filled_bytes),
            checks: read(&counts.checks),
            impostors: read(&counts.impostors),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The refusal of a request.
struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, format!("headstart: {}\n", self.1)).into_response()
    }
}

async fn answer(State(state): State<Arc<ProxyState>>, request: Request) -> Response {
    add(&state.counts.requests, 1);
    let (head, _) = request.into_parts();
    match state.answer(&head).await {
        Ok(response) => response,
        Err(refusal) => {
            let refused = matches!(refusal.0, StatusCode::METHOD_NOT_ALLOWED);
            let mut response = refusal.into_response();
            if refused {
                response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            }
            response
        }
    }
}

impl ProxyState {
    async fn answer(self: &Arc<Self>, request: &Parts) -> std::result::Result<Response, Refusal> {
        if !matches!(request.method, Method::GET | Method::HEAD) {
            return Err(Refusal(StatusCode::METHOD_NOT_ALLOWED, "it only gives GET and HEAD on".to_owned()));
        }
        if !request.headers.get(HOST).is_some_and(is_of_this_host) {
            let why = "it is asked by names of this host only, such as localhost";
            return Err(Refusal(StatusCode::FORBIDDEN, why.to_owned()));
        }
        let client_request = ClientRequest::of(request, self.port)?;
        let turn = tokio::time::timeout(TURN, Arc::clone(&self.turns).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else {
            return Err(Refusal(StatusCode::SERVICE_UNAVAILABLE, "too many requests; ask again".to_owned()));
        };
        if let Some((digest, requested)) = client_request.blob
            && let Some(blob) = self.authorized(&client_request, &digest).await
            && let Some(range) = requested.within(blob.blob().spec().len)
        {
            return self.serve(Arc::new(client_request), blob, requested, range, turn).await;
        }
        self.upstream.pass(&client_request, turn).await
    }

    /// Answers with bytes of a blob that the client may have.
    async fn serve(
        self: &Arc<Self>,
        client_request: Arc<ClientRequest>,
        blob: Arc<SharedBlob>,
        requested: RequestedRange,
        range: ByteRange,
        turn: OwnedSemaphorePermit,
    ) -> std::result::Result<Response, Refusal> {
        let spec = blob.blob().spec();
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(CONTENT_LENGTH, range.len().into());
        if let Ok(digest) = HeaderValue::from_str(&spec.digest.to_string()) {
            headers.insert("docker-content-digest", digest);
        }
        let mut status = StatusCode::OK;
        if requested != RequestedRange::All {
            status = StatusCode::PARTIAL_CONTENT;
            let content_range = format!("bytes {}-{}/{}", range.offset(), range.end() - 1, spec.len);
            headers.insert(
                CONTENT_RANGE,
                HeaderValue::from_str(&content_range).unwrap_or(HeaderValue::from_static("")),
            );
        }
        let mut parts = range.parts(PART);
        // This comes before the answer begins, because it may fail.
        let first = parts.next().unwrap_or(range);
        let first = self.read_range(&client_request, &blob, first).await.map_err(|e| {
            Refusal(StatusCode::BAD_GATEWAY, format!("cannot get a part of {}: {e}", spec.digest))
        })?;
        add(&self.counts.served, 1);
        let state = Arc::clone(self);
        let rest = stream::iter(parts).map(move |part| {
            let (state, client_request, blob) =
                (Arc::clone(&state), Arc::clone(&client_request), Arc::clone(&blob));
            async move { state.read_range(&client_request, &blob, part).await }
        });
        // The turn ends with the last part.
        let rest = rest.buffered(PARTS_AHEAD - 1).map(move |part| {
            let _ = &turn;
            part.map_err(std::io::Error::other)
        });
        let body = stream::once(async { Ok(first) }).chain(rest);
        Ok((status, headers, Body::from_stream(body)).into_response())
    }

    /// A part of a blob; from the client's server, if this host cannot get it.
    async fn read_range(
        &self,
        client_request: &ClientRequest,
        blob: &SharedBlob,
        part: ByteRange,
    ) -> Result<Bytes> {
        match local(blob, part).await {
            Ok(bytes) => {
                add(&self.counts.served_bytes, part.len());
                Ok(bytes)
            }
            Err(error) => {
                tracing::debug!(%error, blob = %blob.blob().spec().digest, "the client's server is asked instead");
                let bytes = self.upstream.read(client_request, part, blob.blob().spec().len).await?;
                add(&self.counts.filled_bytes, part.len());
                Ok(bytes)
            }
        }
    }
}

/// A part of a blob from this host's cache, the swarm or its store.
async fn local(blob: &SharedBlob, part: ByteRange) -> Result<Bytes> {
    let fetched = tokio::time::timeout(FETCH_TIMEOUT, blob.bring(part)).await;
    fetched.map_err(|_| Error::new(ErrorKind::Unavailable, "it takes too long to fetch"))??;
    let cached = Arc::clone(blob.blob());
    let read = tokio::task::spawn_blocking(move || {
        // The client has no hash tree to check the bytes by.
        cached.recheck(part)?;
        let mut bytes = vec![0; to_usize(part.len())];
        cached.read_at(&mut bytes, part.offset()).map(|()| Bytes::from(bytes))
    });
    let bytes = read.await.map_err(|e| Error::invalid("reading broke off").caused_by(e))??;
    blob.read(part);
    Ok(bytes)
}
