//! A front end of a registry, as registries of cloud providers have it: it redirects reads of blobs to a storage on
//! another port, by signed URLs that expire.
//!
//! The front end asks the registry whether the client may have the blob, and answers `307` with the URL. The storage
//! serves byte ranges to requests with a URL that is still valid. A request with another URL gets the status
//! [`Behaviour::expired_status`]. A request with an Authorization header gets `400`, as with S3: a client must not send
//! the registry's credentials to the storage. Requests to the front end that are not for blobs are passed to the
//! registry.

use crate::registry::Registry;
use crate::served::{Served, serve};
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Response, StatusCode, header};
use axum::response::IntoResponse;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The most bytes of a request's body, or of an answer that is passed on.
const BODY_MAX: usize = 256 << 20;

/// The form in which a signed URL contains its expiry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RedirectStyle {
    /// The URL states the time at which it was signed and the seconds for which it is valid, as S3's URLs do.
    #[default]
    Amazon,
    /// The URL states the second in which it expires, as those of `CloudFront` do.
    Expires,
    /// The URL does not state its expiry.
    Untold,
}

/// The behaviour of a [`Front`].
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    /// `true` if requests for blobs are redirected to signed URLs of the storage; otherwise the front end
    /// answers them itself.
    pub redirect: bool,
    /// The form in which signed URLs contain their expiry.
    pub style: RedirectStyle,
    /// The duration for which the storage really accepts a signed URL, from the time at which it was signed.
    pub life: Duration,
    /// The duration for which signed URLs claim to be valid, cut to whole seconds. `None`: the true one, `life`.
    pub told: Option<Duration>,
    /// The HTTP status with which the storage refuses an expired URL.
    pub expired_status: u16,
    /// `true` if a request with a token that the registry refuses gets status 403 instead of 401.
    pub forbid: bool,
    /// `true` if a request without an Authorization header gets status 404, except for `/v2/`.
    pub hide: bool,
    /// `true` if uploads in several parts are refused: PATCH gets status 405.
    pub whole: bool,
}

impl Default for Behaviour {
    fn default() -> Self {
        let life = Duration::from_secs(300);
        Self {
            redirect: true,
            style: RedirectStyle::Amazon,
            life,
            told: None,
            expired_status: 403,
            forbid: false,
            hide: false,
            whole: false,
        }
    }
}

/// Counters of a [`Front`]: its front end and its storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Requests that the front end received.
    pub requests: u64,
    /// GET requests for blobs that the front end received.
    pub asked: u64,
    /// Requests whose token the registry refused and that got status 403 because of [`Behaviour::forbid`].
    pub forbidden: u64,
    /// Requests for blobs that the storage answered with bytes.
    pub served: u64,
    /// Requests that the storage refused because the signed URL had expired or was unknown.
    pub expired: u64,
    /// Requests to the storage with an Authorization header, which a client must not send there. They are
    /// refused.
    pub leaked: u64,
}

#[derive(Debug, Default)]
struct Counts {
    requests: AtomicU64,
    asked: AtomicU64,
    forbidden: AtomicU64,
    served: AtomicU64,
    expired: AtomicU64,
    leaked: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    blobs: PathBuf,
    client: reqwest::Client,
    behaviour: Mutex<Behaviour>,
    /// The status by which everything is answered, unless it is 0.
    broken: AtomicU16,
    storage: Mutex<Option<SocketAddr>>,
    /// The time at which each address was signed.
    signed: Mutex<HashMap<u64, Instant>>,
    counts: Counts,
}

/// A front end of a registry that redirects requests for blobs to signed URLs, and the storage behind those
/// URLs. Dropping it stops both.
#[derive(Debug)]
pub struct Front {
    front: Served,
    _storage: Served,
    shared: Arc<Shared>,
}

impl Front {
    /// Starts a front end and a storage that has the blobs of `registry`.
    pub async fn start(registry: &Registry, behaviour: Behaviour) -> Self {
        let shared = Arc::new(Shared {
            upstream: registry.address(),
            blobs: registry.blobs(),
            client: reqwest::Client::builder()
                .no_proxy()
                .redirect(reqwest::redirect::Policy::none())
                .build()
                .expect("a client"),
            behaviour: Mutex::new(behaviour),
            broken: AtomicU16::new(0),
            storage: Mutex::new(None),
            signed: Mutex::default(),
            counts: Counts::default(),
        });
        let storage = serve(axum::Router::new().fallback(storage).with_state(Arc::clone(&shared))).await;
        *shared.storage.lock() = Some(storage.address());
        let front = serve(axum::Router::new().fallback(front).with_state(Arc::clone(&shared))).await;
        Self { front, _storage: storage, shared }
    }

    /// The address and port of the front end, as image references contain it.
    #[must_use]
    pub fn host(&self) -> String {
        self.front.address().to_string()
    }

    /// Changes the behaviour, also for signed URLs that were handed out before: the storage accepts them for the new
    /// [`Behaviour::life`], counted from the time at which they were signed. The expiry that they state stays the same.
    pub fn set(&self, behaviour: Behaviour) {
        *self.shared.behaviour.lock() = behaviour;
    }

    /// Makes the front end answer every request with the HTTP status `status`; 0 ends that.
    pub fn set_broken(&self, status: u16) {
        self.shared.broken.store(status, Ordering::Relaxed);
    }

    /// The counters since the start.
    #[must_use]
    pub fn seen(&self) -> Seen {
        let counts = &self.shared.counts;
        let value = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Seen {
            requests: value(&counts.requests),
            asked: value(&counts.asked),
            forbidden: value(&counts.forbidden),
            served: value(&counts.served),
            expired: value(&counts.expired),
            leaked: value(&counts.leaked),
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

async fn front(State(shared): State<Arc<Shared>>, request: Request) -> Response<Body> {
    count(&shared.counts.requests);
    if let Ok(status) = StatusCode::from_u16(shared.broken.load(Ordering::Relaxed)) {
        return (status, "broken by the test").into_response();
    }
    let behaviour = *shared.behaviour.lock();
    let (parts, body) = request.into_parts();
    if behaviour.hide && parts.uri.path() != "/v2/" && !parts.headers.contains_key(header::AUTHORIZATION) {
        return StatusCode::NOT_FOUND.into_response();
    }
    if behaviour.whole && parts.method == Method::PATCH {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    let Ok(body) = to_bytes(body, BODY_MAX).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let hex = parts.uri.path().split_once("/blobs/sha256:").map(|(_, hex)| hex.to_owned());
    match hex {
        Some(hex) if parts.method == Method::GET => {
            count(&shared.counts.asked);
            if !behaviour.redirect {
                return shared.pass(parts.method.clone(), &parts, body, behaviour).await;
            }
            let allowed = shared.pass(Method::HEAD, &parts, Bytes::new(), behaviour).await;
            if !allowed.status().is_success() {
                return allowed;
            }
            let location = shared.sign(&hex, behaviour);
            (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, location)]).into_response()
        }
        _ => shared.pass(parts.method.clone(), &parts, body, behaviour).await,
    }
}

impl Shared {
    /// Passes a request to the registry, and returns its answer.
    async fn pass(&self, method: Method, parts: &Parts, body: Bytes, behaviour: Behaviour) -> Response<Body> {
        let url = format!("http://{}{}", self.upstream, parts.uri);
        let answer =
            match self.client.request(method, url).headers(parts.headers.clone()).body(body).send().await {
                Ok(answer) => answer,
                Err(error) => return (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
            };
        let (status, mut headers) = (answer.status(), answer.headers().clone());
        let body = answer.bytes().await.unwrap_or_default();
        if status == StatusCode::UNAUTHORIZED
            && behaviour.forbid
            && parts.headers.contains_key(header::AUTHORIZATION)
        {
            count(&self.counts.forbidden);
            return (StatusCode::FORBIDDEN, "the token is not good").into_response();
        }
        headers.remove(header::TRANSFER_ENCODING);
        (status, headers, body).into_response()
    }

    fn sign(&self, hex: &str, behaviour: Behaviour) -> String {
        let mut signed = self.signed.lock();
        let ticket = signed.len() as u64;
        signed.insert(ticket, Instant::now());
        let storage = self.storage.lock().expect("a running storage");
        let told = behaviour.told.unwrap_or(behaviour.life).as_secs();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock past 1970").as_secs();
        let life = match behaviour.style {
            RedirectStyle::Amazon => format!("&X-Amz-Date={}&X-Amz-Expires={told}", basic_date(now)),
            RedirectStyle::Expires => format!("&Expires={}", now + told),
            RedirectStyle::Untold => String::new(),
        };
        format!("http://{storage}/{hex}?ticket={ticket}{life}")
    }
}

/// A date such as `20130524T000000Z`, from seconds since 1970.
fn basic_date(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (mut year, mut day) = (1970, days);
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}{month:02}{:02}T{hour:02}{minute:02}{:02}Z", day + 1, second % 60)
}

async fn storage(State(shared): State<Arc<Shared>>, request: Request) -> Response<Body> {
    if request.headers().contains_key(header::AUTHORIZATION) {
        count(&shared.counts.leaked);
        return (StatusCode::BAD_REQUEST, "only one way to authenticate is allowed").into_response();
    }
    let behaviour = *shared.behaviour.lock();
    let query = request.uri().query().unwrap_or("");
    let ticket =
        query.split('&').find_map(|part| part.strip_prefix("ticket=")).and_then(|ticket| ticket.parse().ok());
    let signed = ticket.and_then(|ticket: u64| shared.signed.lock().get(&ticket).copied());
    if signed.is_none_or(|signed| signed.elapsed() >= behaviour.life) {
        count(&shared.counts.expired);
        let status = StatusCode::from_u16(behaviour.expired_status).expect("a status");
        return (status, "<Error><Message>Request has expired</Message></Error>").into_response();
    }
    let hex = request.uri().path().trim_start_matches('/');
    let path = shared.blobs.join(hex.get(..2).unwrap_or("")).join(hex).join("data");
    let Ok(bytes) = fs::read(path) else { return StatusCode::NOT_FOUND.into_response() };
    count(&shared.counts.served);
    ranged(request.headers(), bytes.into())
}

/// The bytes that a request's `Range` names.
fn ranged(headers: &HeaderMap, bytes: Bytes) -> Response<Body> {
    let range = headers
        .get(header::RANGE)
        .and_then(|range| range.to_str().ok()?.strip_prefix("bytes=")?.split_once('-'));
    let Some((start, end)) = range.and_then(|(start, end)| Some((start.parse().ok()?, end.parse().ok()?)))
    else {
        return bytes.into_response();
    };
    let (start, end): (usize, usize) = (start, end);
    let end = bytes.len().min(end.saturating_add(1));
    if start >= end {
        return StatusCode::RANGE_NOT_SATISFIABLE.into_response();
    }
    let content_range = format!("bytes {start}-{}/{}", end - 1, bytes.len());
    (StatusCode::PARTIAL_CONTENT, [(header::CONTENT_RANGE, content_range)], bytes.slice(start..end))
        .into_response()
}

#[cfg(test)]
mod tests {
    #[test]
    fn writes_dates() {
        assert_eq!(super::basic_date(1_369_353_600), "20130524T000000Z");
        assert_eq!(super::basic_date(1_709_210_096), "20240229T123456Z");
    }
}
