//! The daemon's interface for programs, over HTTP. The OpenAPI document is its reference.
//!
//! The whole interface is served over a Unix socket in the daemon's directory, which only its user can open. Requests
//! that change nothing are served over TCP as well, if that is configured. The host's methods block, some for as long
//! as flash takes to be erased: each runs on a thread for blocking work, and is finished even if the client hangs up.

use super::export_process::ExportProcessStatus;
use super::exports::Exports;
use super::vssd::ServedVssd;
use super::ways::Ways;
use super::{broke_off, metrics};
use crate::host::{
    FlashStatus, ForecastStatus, HarvestRequest, Host, HostStatus, JournalStatus, LeaseStatus, PooledStatus,
    ReportKind, UserReport, VssdSpec, VssdStatus,
};
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::IntoResponse;
use axum::routing::{delete, get, patch, post, put};
use axum::{Json, Router};
use headstart_block::{ByteSize, Error, ErrorKind, Result};
use headstart_broker::Counters;
use headstart_daemon::http::answers::{ApiAnswer, Body, Failure, Refusal, UrlPath, not_here, nothing};
use headstart_daemon::http::{HttpPort, Rest};
use headstart_daemon::names::check_disk_name;
use headstart_export::socket::listen;
use headstart_export::{Leftover, SocketAccess};
use headstart_flash::{GssdId, VssdKind};
use headstart_telemetry::exposition::PageFormat;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use utoipa::{OpenApi, ToSchema};

/// The state that the handlers share.
pub(super) struct Served {
    pub(super) host: Arc<Host>,
    pub(super) exports: Arc<Exports>,
}

type Shared = State<Arc<Served>>;

/// Serves at a Unix socket to those that `access` names, and read-only over TCP.
///
/// # Errors
/// If it cannot listen.
pub(super) async fn start(
    socket: &Path,
    access: &SocketAccess,
    port: Option<HttpPort>,
    served: Served,
) -> Result<Rest> {
    let served = Arc::new(served);
    let all = looking().merge(changing()).with_state(Arc::clone(&served));
    // The caller has the lock of the directory: a socket there belongs to a daemon that is gone.
    let listener = listen(socket, access, Leftover::IsOurs)?;
    Rest::start(socket, listener, all, port, looking().with_state(served)).await
}

fn looking() -> Router<Arc<Served>> {
    Router::new()
        .route("/v1/vssds", get(list))
        .route("/v1/vssds/{name}", get(show))
        .route("/v1/status", get(status))
        .route("/v1/reports", get(reports))
        .route("/metrics", get(page))
        .route("/openapi.json", get(openapi))
        .fallback(nothing)
        .method_not_allowed_fallback(not_here)
}

fn changing() -> Router<Arc<Served>> {
    Router::new()
        .route("/v1/vssds", post(create))
        .route("/v1/vssds/{name}", patch(resize).delete(remove))
        .route("/v1/vssds/{name}/access", put(access))
        .route("/v1/vssds/{name}/offers", post(offer))
        .route("/v1/vssds/{name}/requests", post(request))
        .route("/v1/vssds/{name}/leases", delete(release_all))
        .route("/v1/vssds/{name}/leases/{id}", delete(release))
}

/// The OpenAPI document.
#[derive(OpenApi)]
#[openapi(
    info(title = "headstart harvest", description = "The vSSDs of a host, and what harvest VMs borrow."),
    paths(
        list,
        show,
        create,
        resize,
        remove,
        access,
        offer,
        request,
        release,
        release_all,
        status,
        reports,
        page
    ),
    components(schemas(
        NewVssd,
        NewSize,
        NewAccess,
        NewOffer,
        ServedVssd,
        ExportProcessStatus,
        VssdStatus,
        VssdKind,
        LeaseStatus,
        ForecastStatus,
        HarvestRequest,
        HostStatus,
        FlashStatus,
        PooledStatus,
        Counters,
        JournalStatus,
        UserReport,
        ReportKind,
        Failure
    ))
)]
struct Document;

/// A vSSD that is to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewVssd {
    /// The name of the vSSD: letters, digits, `-`, `_` and `.`, at most 64 characters. Its NBD export has the
    /// same name.
    pub name: String,
    /// The kind of the vSSD.
    pub kind: VssdKind,
    /// Number of channels that the vSSD is to own [default: as many as its size needs; one if no size is
    /// given].
    #[serde(default)]
    pub channels: Option<u16>,
    /// Size in bytes [default: all that its channels hold, less the spare flash for garbage collection].
    #[serde(default)]
    pub size: Option<u64>,
    /// Path of the socket at which the vSSD is served by NBD [default: one of its name in the daemon's
    /// directory].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub nbd: Option<PathBuf>,
    /// Path of a socket at which the vSSD is also served by vhost-user-blk [default: not served in this way].
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub vhost_user: Option<PathBuf>,
    /// Path at which the vSSD is also mounted as a file: an existing file, or a directory in which it is
    /// disk.raw [default: not mounted].
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub fuse: Option<PathBuf>,
    /// The owner of the vSSD's sockets and file, as `USER[:GROUP]` [default: the daemon's user].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_owner: Option<String>,
    /// Permissions of the vSSD's sockets and file, in octal [default: 0600, or 0660 if the owner names a
    /// group].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_mode: Option<String>,
    /// Names of the certificates whose clients may open the vSSD at the daemon's NBD address [default: none,
    /// and no client may if the daemon checks certificates].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tls_clients: Vec<String>,
}

/// The users that may open a vSSD.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAccess {
    /// The owner of the vSSD's sockets and file, as `USER[:GROUP]` [default: the daemon's user].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_owner: Option<String>,
    /// Permissions of the vSSD's sockets and file, in octal [default: 0600, or 0660 if the owner names a
    /// group].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_mode: Option<String>,
    /// Names of the certificates whose clients may open the vSSD at the daemon's NBD address [default: none,
    /// and no client may if the daemon checks certificates].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tls_clients: Vec<String>,
}

/// The new size of a vSSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSize {
    /// Size in bytes.
    pub size: u64,
}

/// Flash of a vSSD that is offered for lending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewOffer {
    /// Number of bytes to offer, at most; 0 withdraws the flash that is not on lease.
    pub capacity: u64,
    /// Number of channels to offer, at most.
    #[serde(default = "one")]
    pub bandwidth: u16,
    /// Duration for which the flash can be lent, in seconds.
    pub duration_s: u64,
}

fn one() -> u16 {
    1
}

impl NewAccess {
    /// The same ways, for these users.
    fn over(self, ways: Ways) -> Ways {
        let Self { socket_owner, socket_mode, tls_clients } = self;
        Ways { socket_owner, socket_mode, tls_clients, ..ways }
    }
}

impl Served {
    pub(super) fn vssds(&self) -> Vec<ServedVssd> {
        self.host.list().into_iter().map(|status| self.vssd(status)).collect()
    }

    fn vssd(&self, status: VssdStatus) -> ServedVssd {
        let (uris, error) = self.exports.places(&status.name);
        let clients = self.exports.clients(&status.name);
        let Ways { socket_owner, socket_mode, tls_clients, .. } = self.exports.ways(&status.name);
        let process = self.exports.process(&status.name);
        ServedVssd { status, uris, clients, error, process, socket_owner, socket_mode, tls_clients }
    }

    fn get(&self, name: &str) -> Result<ServedVssd> {
        let found = self.host.list().into_iter().find(|status| status.name == name);
        found.map(|status| self.vssd(status)).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "there is no vSSD of that name")
                .about(name.escape_debug())
                .remedy("`headstart harvest vssd list` lists them")
        })
    }

    /// The use that clients may make of a vSSD; `None` if there are certainly no clients.
    fn use_of(&self, vssd: &ServedVssd) -> Option<&'static str> {
        let ways = self.exports.ways(&vssd.status.name);
        if vssd.clients > 0 {
            return Some("is in use: clients have it open by NBD");
        }
        let may_be_open = ways.vhost_user.is_some() || ways.fuse.is_some();
        may_be_open.then_some("may be in use by vhost-user or as a file")
    }

    fn create(&self, new: NewVssd) -> Result<ServedVssd> {
        let NewVssd { name, kind, channels, size, nbd, vhost_user, fuse, .. } = new;
        let NewVssd { socket_owner, socket_mode, tls_clients, .. } = new;
        let ways = Ways { nbd, vhost_user, fuse, socket_owner, socket_mode, tls_clients };
        let spec = VssdSpec { kind, channels, size };
        check_disk_name(&name)?;
        let is_served = kind != VssdKind::Unsold;
        if !is_served && !ways.is_none() {
            let error = Error::invalid("an unsold vSSD has no owner, and is not served").about(&name);
            return Err(
                error.remedy("make a regular one, or leave out the options for serving and opening it")
            );
        }
        let status = self.host.create(&name, spec)?;
        if is_served && let Err(error) = self.exports.add(&self.host, &name, ways) {
            // A vSSD that cannot be served is removed again.
            if let Err(error) = self.host.delete(&name) {
                tracing::warn!(vssd = name, %error, "a vSSD that cannot be served is still there");
            }
            return Err(error);
        }
        Ok(self.vssd(status))
    }

    fn remove(&self, name: &str, force: bool) -> Result<ServedVssd> {
        let gone = self.get(name)?;
        if !force && let Some(used) = self.use_of(&gone) {
            let error = Error::new(ErrorKind::Conflict, used).about(name);
            return Err(error.remedy("disconnect its clients first, then delete it with --force"));
        }
        let ways = self.exports.ways(name);
        // The last writes of its clients are deleted along with the rest.
        if let Err(error) = self.exports.remove(name) {
            tracing::warn!(vssd = name, %error, "a vSSD that is to be deleted was not flushed");
        }
        if let Err(error) = self.host.delete(name) {
            if gone.status.kind != VssdKind::Unsold
                && let Err(error) = self.exports.add(&self.host, name, ways)
            {
                tracing::warn!(vssd = name, %error, "a vSSD that is not deleted is not served any more");
            }
            return Err(error);
        }
        Ok(gone)
    }

    fn resize(&self, name: &str, size: u64, force: bool) -> Result<ServedVssd> {
        let there = self.get(name)?;
        if size < there.status.size && !force {
            let beyond = self.host.stored_beyond(name, size)?;
            let cause = match self.use_of(&there) {
                Some(used) => format!("{used}, and what lies beyond the new size would be lost"),
                None if beyond > 0 => {
                    format!("holds {} beyond the new size, which would be lost", ByteSize(beyond))
                }
                None => String::new(),
            };
            if !cause.is_empty() {
                let error = Error::new(ErrorKind::Conflict, cause).about(name);
                return Err(
                    error.remedy("make the file system on it smaller first, then resize it with --force")
                );
            }
        }
        let status = self.host.resize(name, size);
        self.exports.refresh();
        Ok(self.vssd(status?))
    }

    fn set_access(&self, name: &str, access: NewAccess, force: bool) -> Result<ServedVssd> {
        let there = self.get(name)?;
        if there.status.kind == VssdKind::Unsold {
            return Err(Error::invalid("an unsold vSSD has no owner, and is not served").about(name));
        }
        let before = self.exports.ways(name);
        let may_be_open = there.clients > 0 || before.vhost_user.is_some() || before.fuse.is_some();
        if may_be_open && !force {
            let error = Error::new(ErrorKind::Conflict, "may be in use, and its clients would be cut off");
            return Err(error.about(name).remedy("disconnect them first, or say it with --force"));
        }
        self.exports.change(&self.host, name, access.over(before))?;
        self.get(name)
    }

    fn offer(&self, name: &str, offer: NewOffer) -> Result<ServedVssd> {
        self.get(name)?;
        let NewOffer { capacity, bandwidth, duration_s } = offer;
        self.host.offer(name, bandwidth, capacity, Duration::from_secs(duration_s))?;
        self.get(name)
    }

    fn request(&self, name: &str, request: HarvestRequest) -> Result<Vec<LeaseStatus>> {
        self.get(name)?;
        let leases = self.host.request(name, request);
        self.exports.refresh();
        leases
    }

    fn release(&self, name: &str, lease: Option<GssdId>) -> Result<ServedVssd> {
        self.get(name)?;
        let released = self.host.release(name, lease);
        self.exports.refresh();
        released?;
        self.get(name)
    }
}

/// Runs blocking work on a thread for that.
async fn blocking<T: Send + 'static>(
    State(served): Shared,
    work: impl FnOnce(&Served) -> Result<T> + Send + 'static,
) -> ApiAnswer<T> {
    let done = tokio::task::spawn_blocking(move || work(&served)).await;
    done.map_err(|e| Refusal(broke_off(e)))?.map_err(Refusal)
}

/// All vSSDs.
#[utoipa::path(get, path = "/v1/vssds", responses((status = 200, body = Vec<ServedVssd>)))]
async fn list(served: Shared) -> ApiAnswer<Json<Vec<ServedVssd>>> {
    blocking(served, |served| Ok(served.vssds())).await.map(Json)
}

/// One vSSD.
#[utoipa::path(get, path = "/v1/vssds/{name}", params(("name" = String, Path, description = "The vSSD")),
    responses((status = 200, body = ServedVssd), (status = 404, body = Failure)))]
async fn show(served: Shared, UrlPath(name): UrlPath<String>) -> ApiAnswer<Json<ServedVssd>> {
    blocking(served, move |served| served.get(&name)).await.map(Json)
}

/// Makes a vSSD and serves it. Only over the Unix socket.
#[utoipa::path(post, path = "/v1/vssds", request_body = NewVssd,
    responses((status = 201, description = "It can be used", body = ServedVssd),
        (status = 409, description = "There is a vSSD of that name", body = Failure),
        (status = 422, description = "It cannot be so", body = Failure),
        (status = 507, description = "There are not so many channels free", body = Failure)))]
async fn create(served: Shared, Body(new): Body<NewVssd>) -> ApiAnswer<(StatusCode, Json<ServedVssd>)> {
    blocking(served, move |served| served.create(new)).await.map(|vssd| (StatusCode::CREATED, Json(vssd)))
}

/// Makes a vSSD larger or smaller. Only over the Unix socket.
#[utoipa::path(patch, path = "/v1/vssds/{name}",
    params(("name" = String, Path, description = "The vSSD"),
        ("force" = Option<bool>, Query, description = "Make it smaller although clients may have it open")),
    request_body = NewSize,
    responses((status = 200, description = "It has that size", body = ServedVssd), (status = 404, body = Failure),
        (status = 409, description = "It would become smaller while it is in use", body = Failure),
        (status = 422, description = "It cannot have that size", body = Failure),
        (status = 507, description = "There is not so much flash for it", body = Failure)))]
async fn resize(
    served: Shared,
    UrlPath(name): UrlPath<String>,
    uri: Uri,
    Body(NewSize { size }): Body<NewSize>,
) -> ApiAnswer<Json<ServedVssd>> {
    let force = is_forced(&uri);
    blocking(served, move |served| served.resize(&name, size, force)).await.map(Json)
}

/// Replaces the access rules of a vSSD; fields that are left out get their defaults. Its servers are started again.
/// Only over the Unix socket.
#[utoipa::path(put, path = "/v1/vssds/{name}/access",
    params(("name" = String, Path, description = "The vSSD"),
        ("force" = Option<bool>, Query, description = "Cut off clients that have it open")),
    request_body = NewAccess,
    responses((status = 200, description = "These may open it", body = ServedVssd), (status = 404, body = Failure),
        (status = 409, description = "It may be in use", body = Failure),
        (status = 422, description = "There is no such user, or it cannot be so", body = Failure)))]
async fn access(
    served: Shared,
    UrlPath(name): UrlPath<String>,
    uri: Uri,
    Body(access): Body<NewAccess>,
) -> ApiAnswer<Json<ServedVssd>> {
    let force = is_forced(&uri);
    blocking(served, move |served| served.set_access(&name, access, force)).await.map(Json)
}

/// `true` if a request's query says `force=true`.
fn is_forced(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|part| part == "force=true"))
}

/// Deletes a vSSD with all its data; its flash is erased before another vSSD gets it. Only over the Unix socket.
#[utoipa::path(delete, path = "/v1/vssds/{name}",
    params(("name" = String, Path, description = "The vSSD"),
        ("force" = Option<bool>, Query, description = "Cut off clients that have it open")),
    responses((status = 200, description = "It was so, and is gone", body = ServedVssd), (status = 404, body = Failure),
        (status = 409, description = "Clients have it open", body = Failure)))]
async fn remove(served: Shared, UrlPath(name): UrlPath<String>, uri: Uri) -> ApiAnswer<Json<ServedVssd>> {
    let force = is_forced(&uri);
    blocking(served, move |served| served.remove(&name, force)).await.map(Json)
}

/// Offers space of a vSSD for lending, in place of a forecast: it can be lent once it is erased. Space that is not
/// leased when the next forecast, within three minutes, differs goes back to the vSSD. Only over the Unix socket.
#[utoipa::path(post, path = "/v1/vssds/{name}/offers",
    params(("name" = String, Path, description = "A regular or unsold vSSD")), request_body = NewOffer,
    responses((status = 200, description = "It was heard", body = ServedVssd), (status = 404, body = Failure),
        (status = 422, description = "A harvest vSSD lends nothing", body = Failure)))]
async fn offer(
    served: Shared,
    UrlPath(name): UrlPath<String>,
    Body(offer): Body<NewOffer>,
) -> ApiAnswer<Json<ServedVssd>> {
    blocking(served, move |served| served.offer(&name, offer)).await.map(Json)
}

/// Requests spare flash for a harvest vSSD; answers with the granted leases, when they can be used. Only over the Unix
/// socket.
#[utoipa::path(post, path = "/v1/vssds/{name}/requests",
    params(("name" = String, Path, description = "The harvest vSSD")), request_body = HarvestRequest,
    responses((status = 201, description = "What it was given", body = Vec<LeaseStatus>),
        (status = 404, body = Failure),
        (status = 422, description = "It is no harvest vSSD, or the request makes no sense", body = Failure),
        (status = 507, description = "There is not so much to spare", body = Failure)))]
async fn request(
    served: Shared,
    UrlPath(name): UrlPath<String>,
    Body(request): Body<HarvestRequest>,
) -> ApiAnswer<(StatusCode, Json<Vec<LeaseStatus>>)> {
    let leases = blocking(served, move |served| served.request(&name, request)).await;
    leases.map(|leases| (StatusCode::CREATED, Json(leases)))
}

/// Gives one lease back. Its data moves to the vSSD's other flash, and the lease is `leaving` meanwhile; if the data
/// does not fit, the lease is kept, and a report says so. Only over the Unix socket.
#[utoipa::path(delete, path = "/v1/vssds/{name}/leases/{id}",
    params(("name" = String, Path, description = "The harvest vSSD"),
        ("id" = u64, Path, description = "The lease")),
    responses((status = 200, description = "It goes back", body = ServedVssd), (status = 404, body = Failure)))]
async fn release(served: Shared, UrlPath((name, id)): UrlPath<(String, u64)>) -> ApiAnswer<Json<ServedVssd>> {
    blocking(served, move |served| served.release(&name, Some(GssdId(id)))).await.map(Json)
}

/// Gives all leases of a vSSD back, with all their data. Only over the Unix socket.
#[utoipa::path(delete, path = "/v1/vssds/{name}/leases",
    params(("name" = String, Path, description = "The harvest vSSD")),
    responses((status = 200, description = "They go back", body = ServedVssd), (status = 404, body = Failure)))]
async fn release_all(served: Shared, UrlPath(name): UrlPath<String>) -> ApiAnswer<Json<ServedVssd>> {
    blocking(served, move |served| served.release(&name, None)).await.map(Json)
}

/// The host as a whole: flash, pool, leases, counts.
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = HostStatus)))]
async fn status(served: Shared) -> ApiAnswer<Json<HostStatus>> {
    blocking(served, |served| Ok(served.host.status())).await.map(Json)
}

/// The reports to users of harvest VMs, newest last: evictions, and leases that ended.
#[utoipa::path(get, path = "/v1/reports", responses((status = 200, body = Vec<UserReport>)))]
async fn reports(served: Shared) -> ApiAnswer<Json<Vec<UserReport>>> {
    blocking(served, |served| Ok(served.host.reports())).await.map(Json)
}

/// Metrics, for Prometheus.
#[utoipa::path(get, path = "/metrics",
    responses((status = 200, content((String = "text/plain"), (String = "application/openmetrics-text")))))]
async fn page(served: Shared, headers: HeaderMap) -> ApiAnswer<impl IntoResponse> {
    let format = PageFormat::accepted(headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()));
    let render = move |served: &Served| Ok(metrics::page(served.vssds(), served.host.status(), format));
    Ok(([(CONTENT_TYPE, format.media_type())], blocking(served, render).await?))
}

async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(Document::openapi())
}
