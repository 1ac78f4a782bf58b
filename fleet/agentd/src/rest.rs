//! The agent's interface for programs, over HTTP: disks, the swarm, metrics. The OpenAPI document is its reference.
//!
//! The whole interface is served over a Unix socket in the agent's directory, which only its user can open. Requests
//! that change nothing are served over TCP as well, if that is configured: for Prometheus, and for people.

mod metrics;

use crate::disks::{DiskHolder, DiskImage, DiskSpace, DiskSpec, DiskState, DiskStatus, Disks};
use crate::pin_manager::{PinManager, PinStatus, WarmSpec, Warmed};
use crate::scrub::ScrubCounts;
use axum::extract::{RawQuery, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::stream::{self, Stream};
use headstart_block::{Error, ErrorKind, Result};
use headstart_cache::Cache;
use headstart_daemon::http::answers::{ApiAnswer, Body, Failure, Refusal, UrlPath, not_here, nothing};
use headstart_daemon::http::{HttpPort, Rest};
use headstart_export::socket::listen;
use headstart_export::{Leftover, SocketAccess};
use headstart_peer_net::order::Order;
use headstart_peer_net::pin::Pin;
use headstart_peer_net::{CountedImage, Status, Swarm};
use headstart_range_proxy::Proxy;
use headstart_telemetry::exposition::PageFormat;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::broadcast::error::RecvError;
use utoipa::{OpenApi, ToSchema};

/// The state that the handlers share.
pub(crate) struct Served {
    pub(crate) disks: Arc<Disks>,
    pub(crate) swarm: Option<Arc<Swarm>>,
    /// The manager of ordered and pinned content, if there is a swarm.
    pub(crate) pin_manager: Option<Arc<PinManager>>,
    /// The range proxy for other programs.
    pub(crate) proxy: Option<Arc<Proxy>>,
    /// The cache that all disks of the host share.
    pub(crate) cache: Arc<Cache>,
    /// The counts of the scrub, if there is one.
    pub(crate) scrub: Option<Arc<ScrubCounts>>,
}

type Shared = State<Arc<Served>>;

/// Serves at a Unix socket to those that `access` names, and read-only over TCP.
///
/// # Errors
/// If it cannot listen.
pub(crate) async fn start(
    socket: &Path,
    access: &SocketAccess,
    port: Option<HttpPort>,
    served: Served,
) -> Result<Rest> {
    let served = Arc::new(served);
    let all = looking().merge(changing()).route("/v1/swarm", get(swarm)).with_state(Arc::clone(&served));
    let over_tcp = looking().route("/v1/swarm", get(swarm_without_blobs)).with_state(served);
    // The caller has the lock of the directory: a socket there belongs to an agent that is gone.
    let listener = listen(socket, access, Leftover::IsOurs)?;
    Rest::start(socket, listener, all, port, over_tcp).await
}

fn looking() -> Router<Arc<Served>> {
    Router::new()
        .route("/v1/disks", get(list))
        .route("/v1/disks/{name}", get(show))
        .route("/v1/events", get(watch))
        .route("/v1/targets", get(targets))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi))
        .fallback(nothing)
        .method_not_allowed_fallback(not_here)
}

fn changing() -> Router<Arc<Served>> {
    Router::new()
        .route("/v1/disks", post(attach))
        .route("/v1/disks/{name}", axum::routing::delete(detach))
        .route("/v1/warm", post(warm))
        .route("/v1/pin", post(pin))
        .route("/v1/unpin", post(unpin))
        .route("/v1/trust", post(trust))
        // Not over TCP, although it changes nothing: a host that knows an image's number is taken to be one that may
        // read it.
        .route("/v1/counts", get(counts))
}

/// The OpenAPI document.
#[derive(OpenApi)]
#[openapi(
    info(title = "headstart agent", description = "The disks of a host, and its part in the swarm."),
    paths(list, show, attach, detach, watch, swarm, warm, pin, unpin, trust, counts, targets, metrics),
    components(schemas(
        DiskSpec,
        DiskHolder,
        DiskStatus,
        DiskImage,
        DiskSpace,
        DiskState,
        Failure,
        Targets,
        WarmSpec,
        Warmed,
        Order,
        Pin,
        PinStatus,
        Unpin,
        TrustSpec,
        TrustSent,
        CountedImage,
        SwarmPart
    ))
)]
struct Document;

/// All disks.
#[utoipa::path(get, path = "/v1/disks", responses((status = 200, body = Vec<DiskStatus>)))]
async fn list(State(served): Shared) -> Json<Vec<DiskStatus>> {
    Json(served.disks.list())
}

/// One disk.
#[utoipa::path(get, path = "/v1/disks/{name}", params(("name" = String, Path, description = "The disk")),
    responses((status = 200, body = DiskStatus), (status = 404, body = Failure)))]
async fn show(State(served): Shared, UrlPath(name): UrlPath<String>) -> ApiAnswer<Json<DiskStatus>> {
    served.disks.get(&name).map(Json).map_err(Refusal)
}

/// Attaches a disk; answers when it can be used. Only over the Unix socket.
#[utoipa::path(post, path = "/v1/disks", request_body = DiskSpec,
    responses((status = 201, description = "It can be used", body = DiskStatus),
        (status = 404, description = "Its image, or a file of it, is not there", body = Failure),
        (status = 409, description = "There is a disk of that name, or the disk is in conflict", body = Failure),
        (status = 422, description = "The request is wrong, or the kernel makes it no block device", body = Failure),
        (status = 500, description = "It cannot be attached; `kind` says why", body = Failure),
        (status = 503, description = "A store or host does not answer at present", body = Failure),
        (status = 507, description = "No space is left", body = Failure)))]
async fn attach(
    State(served): Shared,
    Body(spec): Body<DiskSpec>,
) -> ApiAnswer<(StatusCode, Json<DiskStatus>)> {
    // The disk is attached even if the client hangs up meanwhile.
    let disks = Arc::clone(&served.disks);
    let attached = tokio::spawn(async move { disks.attach(spec).await }).await;
    let attached = attached.map_err(|e| Refusal(Error::invalid("attaching broke off").caused_by(e)))?;
    attached.map(|status| (StatusCode::CREATED, Json(status))).map_err(Refusal)
}

/// Detaches a disk; answers when what was written is durable and its process has ended. Only over the Unix socket.
#[utoipa::path(delete, path = "/v1/disks/{name}",
    params(("name" = String, Path, description = "The disk"),
        ("force" = Option<bool>, Query, description = "Also if a program has it for its own purposes")),
    responses((status = 200, description = "It is detached", body = DiskStatus), (status = 404, body = Failure),
        (status = 409, description = "A program has it for its own purposes", body = Failure),
        (status = 503, description = "It takes long; ask again", body = Failure)))]
async fn detach(
    State(served): Shared,
    UrlPath(name): UrlPath<String>,
    RawQuery(query): RawQuery,
) -> ApiAnswer<Json<DiskStatus>> {
    let force = query.is_some_and(|query| query.split('&').any(|word| word == "force=true"));
    served.disks.detach(&name, force).await.map(Json).map_err(Refusal)
}

/// All changes from now on, as server-sent events: each `disk` is one disk as it is then. `missed` says that the
/// watcher was too slow for some events, and is to list the disks again.
#[utoipa::path(get, path = "/v1/events",
    responses((status = 200, content_type = "text/event-stream", body = DiskStatus)))]
async fn watch(State(served): Shared) -> Sse<impl Stream<Item = std::result::Result<Event, Infallible>>> {
    let changes = stream::unfold(served.disks.watch(), |mut changes| async {
        let event = loop {
            match changes.recv().await {
                Ok(status) => match Event::default().event("disk").json_data(&status) {
                    Ok(event) => break event,
                    Err(error) => tracing::warn!(%error, "a disk cannot be reported"),
                },
                // The watcher is to list them again.
                Err(RecvError::Lagged(_)) => break Event::default().event("missed"),
                Err(RecvError::Closed) => return None,
            }
        };
        Some((Ok(event), changes))
    });
    Sse::new(changes).keep_alive(KeepAlive::default())
}

/// This host's part in the swarm; `null` if it has none. Over TCP, `blobs` and `pins` are empty.
#[utoipa::path(get, path = "/v1/swarm", responses((status = 200, body = Option<SwarmPart>)))]
async fn swarm(State(served): Shared) -> Response {
    let Some(swarm) = &served.swarm else { return Json(()).into_response() };
    Json(SwarmPart { swarm: swarm.status(), pins: pins(&served).await }).into_response()
}

/// The answer for programs that may not know which blobs are here and their lengths.
async fn swarm_without_blobs(State(served): Shared) -> Response {
    let Some(swarm) = &served.swarm else { return Json(()).into_response() };
    let swarm = Status { blobs: Vec::new(), ..swarm.status() };
    Json(SwarmPart { swarm, pins: Vec::new() }).into_response()
}

/// A host's part in the swarm.
#[derive(Serialize, ToSchema)]
struct SwarmPart {
    #[serde(flatten)]
    swarm: Status,
    /// Images that hosts keep together.
    pins: Vec<PinStatus>,
}

async fn pins(served: &Served) -> Vec<PinStatus> {
    match &served.pin_manager {
        Some(pin_manager) => pin_manager.pinned().await,
        None => Vec::new(),
    }
}

/// Fetches blobs to this host, or to others that it is connected to, ahead of need; answers when that is done. They
/// are fetched from hosts that have them, otherwise from their store, in parts, in the given order. Only over the Unix
/// socket.
#[utoipa::path(post, path = "/v1/warm", request_body = WarmSpec,
    responses((status = 200, description = "How it went on each host", body = Vec<Warmed>),
        (status = 404, description = "A host is not connected", body = Failure),
        (status = 422, description = "A blob is none", body = Failure),
        (status = 503, description = "The agent is in no swarm", body = Failure)))]
async fn warm(State(served): Shared, Body(spec): Body<WarmSpec>) -> ApiAnswer<Json<Vec<Warmed>>> {
    let pin_manager = served.pin_manager.clone().ok_or_else(|| Refusal(no_swarm()))?;
    // The blobs are fetched even if the client hangs up meanwhile.
    let warmed = tokio::spawn(async move { pin_manager.warm(&spec).await }).await;
    let warmed = warmed.map_err(|e| Refusal(Error::invalid("bringing it broke off").caused_by(e)))?;
    warmed.map(Json).map_err(Refusal)
}

/// Has hosts keep an image together from now on, so that all of it can be read while its store is away; answers when
/// each has its part. `since` is ignored; without `hosts`, all connected hosts keep it. Only over the Unix socket.
#[utoipa::path(post, path = "/v1/pin", request_body = Pin,
    responses((status = 200, description = "How it went on each host", body = Vec<Warmed>),
        (status = 404, description = "A host is not connected", body = Failure),
        (status = 422, description = "It is not an image, or there are fewer hosts than copies", body = Failure),
        (status = 503, description = "The agent is in no swarm", body = Failure)))]
async fn pin(State(served): Shared, Body(pin): Body<Pin>) -> ApiAnswer<Json<Vec<Warmed>>> {
    let pin_manager = served.pin_manager.clone().ok_or_else(|| Refusal(no_swarm()))?;
    // The image is kept even if the client hangs up meanwhile.
    let pinned = tokio::spawn(async move { pin_manager.pin(&pin).await }).await;
    let pinned = pinned.map_err(|e| Refusal(Error::invalid("pinning it broke off").caused_by(e)))?;
    pinned.map(Json).map_err(Refusal)
}

/// An image that need not be kept any more.
#[derive(Debug, Deserialize, ToSchema)]
struct Unpin {
    /// Its name, as it was pinned; or any name that ends with its digest.
    image: String,
}

/// Ends the pins of an image; answers with the digests of the images of that name. Only over the Unix socket.
#[utoipa::path(post, path = "/v1/unpin", request_body = Unpin,
    responses((status = 200, description = "Their digests", body = Vec<String>),
        (status = 404, description = "None of that name is pinned", body = Failure),
        (status = 503, description = "The agent is in no swarm", body = Failure)))]
async fn unpin(State(served): Shared, Body(unpin): Body<Unpin>) -> ApiAnswer<Json<Vec<String>>> {
    let pin_manager = served.pin_manager.clone().ok_or_else(|| Refusal(no_swarm()))?;
    let unpinned = tokio::spawn(async move { pin_manager.unpin(&unpin.image).await }).await;
    let unpinned = unpinned.map_err(|e| Refusal(Error::invalid("unpinning it broke off").caused_by(e)))?;
    unpinned.map(Json).map_err(Refusal)
}

/// The list that the authority signed for all hosts.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
struct TrustSpec {
    /// The bytes of the file `trust` in the cluster's directory.
    list: Vec<u8>,
}

/// The receivers of a list of the authority.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Told)]
struct TrustSent {
    /// The name of this host.
    host: String,
    /// The hosts that it was passed to at once; those pass it on.
    hosts: Vec<String>,
}

/// Sends all hosts of the swarm the list of revoked hosts and the key by which gossip is sealed from now on, as the
/// authority signed them: `headstart swarm revoke`. Only over the Unix socket.
#[utoipa::path(post, path = "/v1/trust", request_body = TrustSpec,
    responses((status = 200, description = "Where it went", body = TrustSent),
        (status = 409, description = "A later list is known", body = Failure),
        (status = 503, description = "The agent is in no swarm", body = Failure)))]
async fn trust(State(served): Shared, Body(spec): Body<TrustSpec>) -> ApiAnswer<Json<TrustSent>> {
    let swarm = served.swarm.clone().ok_or_else(|| Refusal(no_swarm()))?;
    let host = swarm.status().name;
    // The swarm has a runtime of its own, and the list is written to a file.
    let sent = tokio::task::block_in_place(|| swarm.publish_trust(&spec.list));
    sent.map(|hosts| Json(TrustSent { host, hosts })).map_err(Refusal)
}

/// The counts of this host as a tracker: `headstart train --counts` learns from them. Only over the Unix socket.
#[utoipa::path(get, path = "/v1/counts",
    responses((status = 200, description = "All images of which disks were counted", body = Vec<CountedImage>),
        (status = 404, description = "The agent is not a tracker", body = Failure)))]
async fn counts(State(served): Shared) -> ApiAnswer<Json<Vec<CountedImage>>> {
    let counts = served.swarm.as_ref().and_then(|swarm| swarm.counts());
    counts.map(Json).ok_or_else(|| {
        let error = Error::new(ErrorKind::NotFound, "the agent is not a tracker");
        Refusal(error.remedy("ask the one that was started with --tracker"))
    })
}

fn no_swarm() -> Error {
    Error::new(ErrorKind::Unavailable, "the agent is in no swarm")
        .remedy("start it with --credentials, or with --plain on loopback")
}

/// A disk's metrics, in the form of Prometheus' HTTP service discovery.
#[derive(Debug, Serialize, ToSchema)]
struct Targets {
    /// The addresses of the metrics.
    targets: Vec<String>,
    /// `disk`: its name.
    #[schema(value_type = Object)]
    labels: std::collections::BTreeMap<&'static str, String>,
}

/// The addresses of the disks' own metrics, for Prometheus' `http_sd_configs`.
#[utoipa::path(get, path = "/v1/targets", responses((status = 200, body = Vec<Targets>)))]
async fn targets(State(served): Shared) -> Json<Vec<Targets>> {
    let target = |status: DiskStatus| {
        let url = status.ready?.get("metrics")?.as_str()?.to_owned();
        let address = url.strip_prefix("http://")?.split('/').next()?.to_owned();
        Some(Targets { targets: vec![address], labels: [("disk", status.spec.name)].into() })
    };
    Json(served.disks.list().into_iter().filter_map(target).collect())
}

/// Metrics of the agent and of its part in the swarm, for Prometheus.
#[utoipa::path(get, path = "/metrics",
    responses((status = 200, content((String = "text/plain"), (String = "application/openmetrics-text")))))]
async fn metrics(State(served): Shared, headers: HeaderMap) -> impl IntoResponse {
    let format = PageFormat::accepted(headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()));
    let pins = pins(&served).await;
    ([(CONTENT_TYPE, format.media_type())], metrics::render(served, pins, format))
}

async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(Document::openapi())
}
