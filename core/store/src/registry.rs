//! OCI registries.
//!
//! A registry serves manifests and blobs of repositories over HTTP. The hard part of reading a disk from
//! one comes before the bytes: a challenge, a token server, and a redirect to a signed address of a
//! storage. Docker goes this way once a blob; a disk reads thousands of small ranges, and cannot. So the
//! token and the address are kept, and looked after (a registry that has served all blobs itself so far is not asked
//! first):
//!
//! ```text
//!   read -> [ token? ] ---- none, over, refused ----> token server   (one asks for all)
//!              |     `----- near its end ------------> the same, beside the read
//!              v
//!           [ address? ] -- unknown, over, refused --> registry      (one asks for all)
//!              |     `----- near its end ------------> the same, beside the read
//!              v
//!           storage, or the registry itself: the bytes
//! ```
//!
//! `oci-client` has tokens and ranges (`pull_blob_stream_partial`), and lacks what is between them: it asks the
//! registry for every range, has its HTTP client follow the redirect, wherever that leads, and gets a token when a
//! request finds none.
//!
//! | module | function |
//! |---|---|
//! | [`token`], [`redirect`] | decide about tokens and addresses from the time alone; no I/O |
//! | [`attempt`] | decides which credential a request shows after a refusal; no I/O |
//! | [`flight`] | one request asks, the others wait for its result |
//! | [`challenge`], [`credentials`], [`auth`] | the challenge, our credentials, and the proof that requests show |
//! | [`endpoint`] | one registry or mirror: URLs, requests, redirects followed by hand |
//! | [`blob`], [`routes`] | reading ranges; the routes to blobs that reads have found out |
//! | [`login`] | the same credentials for plain web servers |
//! | [`upload`] | writing blobs and manifests |
//! | [`referrers`] | artifacts of a manifest, listed by the registry or under a tag |
//!
//! Rules that hold throughout:
//!
//! * A token or password is shown to the registry that it is for, and to no other host, also not on a redirect, and
//!   never without TLS unless the settings allow plain HTTP for that host. A token server gets the password if it is
//!   in the registry's own domain, or the user named it.
//! * Redirects and token servers are at public addresses, or where the registry itself is ([`crate::guard`]).
//! * Everything from outside is bounded: documents, redirects, renewals a request, time.
//! * Mirrors are asked in their order, the registry itself last. One that fails rests for a while; one that lacks
//!   a blob is not asked for it for a while. Writing and listing go to the registry itself.

mod attempt;
mod auth;
mod blob;
mod challenge;
mod credential;
mod credentials;
mod domain;
pub use domain::owner_of;
mod endpoint;
mod flight;
mod login;
mod redirect;
mod referrers;
mod routes;
mod token;
mod upload;

use crate::MAX_MANIFEST_SIZE;
use crate::counters::{Meter, StoreCounters};
use crate::http;
use crate::layout::{self, is_referrers_tag};
use crate::link::{Answer, Link, about_errors};
use crate::media_type::{INDEX_DOCKER, INDEX_OCI, MANIFEST_DOCKER, MANIFEST_OCI};
use crate::reference::{Location, Selector, Tag};
use crate::referrers::{Change, Referrer};
use crate::settings::StoreSettings;
use crate::store::{Copied, Store, Urgency};
use async_trait::async_trait;
use auth::Access;
use bytes::Bytes;
use endpoint::{Endpoint, Shared, accepted};
use futures::stream::{BoxStream, StreamExt};
use headstart_block::{ByteRange, Digest, Error, ErrorKind, ReadAt, Result};
pub(crate) use login::Login;
use reqwest::header::{ACCEPT, CONTENT_LENGTH, CONTENT_RANGE, HeaderMap, LINK};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::Value;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::time::{Instant, timeout};
use url::Url;

/// Docker's own registry: the names that people use, and its host.
const DOCKER_HUB: [&str; 2] = ["docker.io", "index.docker.io"];
const DOCKER_HUB_API: &str = "registry-1.docker.io";

/// The media types that a manifest may have.
const MANIFEST_TYPES: [&str; 4] = [MANIFEST_OCI, MANIFEST_DOCKER, INDEX_OCI, INDEX_DOCKER];

/// Most pages of tags: a registry that gives one a page is not worth more.
const MOST_PAGES: usize = 1000;

/// Most tags that are listed: there are registries that never end a list.
const MOST_TAGS: usize = 500_000;

/// Largest page of tags: some registries give all in one.
const MAX_PAGE_SIZE: u64 = 32 << 20;

/// The path that is asked for to find out if a registry grants access.
const CHECKED: &str = "manifests/latest";

/// Longest text that is taken over from a server's message.
const SERVER_MESSAGE_MAX: usize = 200;

/// Opens a repository of a registry. No I/O, but reading the files of the settings.
pub(crate) fn open(host: &str, repository: &str, settings: &StoreSettings) -> Result<Arc<dyn Store>> {
    let link = Link::new(settings);
    let shared = Shared {
        settings: Arc::new(settings.clone()),
        clock: Clock::start(),
        meter: Arc::clone(link.meter()),
    };
    let mut endpoints = Vec::new();
    for mirror in settings.mirrors.iter().filter(|mirror| mirror.registry.eq_ignore_ascii_case(host)) {
        endpoints.push(Arc::new(Endpoint::new(&mirror.mirror, repository, Some(host), &shared)?));
    }
    let is_docker_hub = DOCKER_HUB.contains(&host);
    let api = if is_docker_hub { DOCKER_HUB_API } else { host };
    // Its official images have a prefix that users do not write.
    let path = if is_docker_hub && !repository.contains('/') {
        format!("library/{repository}")
    } else {
        repository.to_owned()
    };
    let origin = Arc::new(Endpoint::new(api, &path, None, &shared)?);
    endpoints.push(Arc::clone(&origin));
    let location = format!("oci://{host}/{repository}");
    Ok(Arc::new(Registry {
        location,
        link,
        endpoints,
        origin,
        lists_artifacts: AtomicBool::new(false),
        has_no_list: AtomicBool::new(false),
    }))
}

/// A repository of a registry, with the mirrors of that.
struct Registry {
    location: String,
    link: Link,
    /// Mirrors in their order, then the registry itself.
    endpoints: Vec<Arc<Endpoint>>,
    origin: Arc<Endpoint>,
    /// `true` once the registry listed artifacts itself, or said that it does.
    lists_artifacts: AtomicBool,
    /// `true` if the registry was seen not to list the artifacts of manifests, so that they are listed under tags.
    has_no_list: AtomicBool,
}

/// A monotonic clock, read in one place.
#[derive(Clone, Copy, Debug)]
struct Clock(Instant);

impl Clock {
    fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since the store was opened.
    fn now(self) -> Duration {
        self.0.elapsed()
    }
}

/// The message in the body of a refusal, in parentheses; empty without one.
async fn server_message(response: Response) -> String {
    let Ok(body) = http::small_body(response, 64 << 10, Duration::from_secs(5)).await else {
        return String::new();
    };
    let text = match serde_json::from_slice::<Value>(&body) {
        Ok(value) => {
            let error = &value["errors"][0];
            let text = [&error["message"], &error["code"], &value["message"], &value["details"]];
            text.into_iter().find_map(Value::as_str).unwrap_or("").to_owned()
        }
        Err(_) => String::new(),
    };
    if text.is_empty() {
        return String::new();
    }
    let text: String = text.chars().take(SERVER_MESSAGE_MAX).collect();
    format!(" ({})", text.escape_debug())
}

impl Registry {
    /// Asks the endpoints in turn until one succeeds. `skip` is `true` for those not to be asked, `lacks` is called
    /// with one that does not have the thing.
    async fn on_any<T, Fut>(
        &self,
        skip: impl Fn(&Endpoint) -> bool,
        lacks: impl Fn(&Endpoint),
        call: impl Fn(Arc<Endpoint>) -> Fut,
    ) -> Result<T>
    where
        Fut: Future<Output = Result<T>>,
    {
        for mirror in self.endpoints.iter().filter(|endpoint| endpoint.is_mirror()) {
            if mirror.rests() || skip(mirror) {
                continue;
            }
            let limit = mirror.answer_limit();
            let error = match timeout(limit, call(Arc::clone(mirror))).await {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(error)) if error.kind() == ErrorKind::NotFound => {
                    lacks(mirror);
                    continue;
                }
                Ok(Err(error)) => error,
                Err(_) => {
                    let cause = format!("did not begin to answer within {} s", limit.as_secs_f64());
                    Error::new(ErrorKind::Unavailable, cause).about(&mirror.name)
                }
            };
            mirror.rest();
            tracing::warn!(%error, mirror = mirror.name, "a mirror failed and is not asked for a while");
        }
        call(Arc::clone(&self.origin)).await
    }

    /// A manifest from the first endpoint that has it.
    async fn manifest_bytes(&self, selector: &Selector) -> Result<(Digest, Bytes)> {
        let name = name_of(selector);
        let fetch = |endpoint: Arc<Endpoint>| {
            let path = format!("manifests/{name}");
            async move {
                let url = endpoint.url(&path)?;
                let (headers, bytes) =
                    endpoint.document(url.clone(), MAX_MANIFEST_SIZE, accept_manifests).await?;
                checked_manifest(selector, &headers, bytes).map_err(|e| e.about(http::redact(&url)))
            }
        };
        self.on_any(|_| false, |_| {}, fetch).await
    }

    fn about_image(&self, error: Error, selector: &Selector) -> Error {
        let error = error.about(layout::name(&self.location, selector));
        match (error.kind(), selector) {
            (ErrorKind::NotFound, Selector::Tag(_)) => {
                let option = self.origin.plain_option();
                let list = format!("`headstart image list {}{option}`", self.location);
                error.remedy(format!("{list} shows those that there are"))
            }
            _ => error,
        }
    }
}

/// Adds the media types that a manifest may have.
fn accept_manifests(request: RequestBuilder) -> RequestBuilder {
    request.header(ACCEPT, MANIFEST_TYPES.join(", "))
}

/// The digest of a manifest by the registry's header.
fn header_digest(headers: &HeaderMap) -> Option<Digest> {
    headers.get("docker-content-digest").and_then(|value| value.to_str().ok()?.parse().ok())
}

/// A manifest that matches its selector. If it does not, `Unavailable` with an answer: it may be another
/// mirror's turn.
fn checked_manifest(selector: &Selector, headers: &HeaderMap, bytes: Bytes) -> Result<(Digest, Bytes)> {
    let digest = Digest::of(&bytes);
    let wanted = match selector {
        Selector::Digest(digest) => Some(*digest),
        Selector::Tag(_) => header_digest(headers),
    };
    if let Some(wanted) = wanted.filter(|wanted| *wanted != digest) {
        let cause = format!("the manifest should be {wanted}, but what came is {digest}");
        return Err(Error::new(ErrorKind::Unavailable, cause).answered());
    }
    Ok((digest, bytes))
}

fn name_of(selector: &Selector) -> String {
    match selector {
        Selector::Tag(tag) => tag.to_string(),
        Selector::Digest(digest) => digest.to_string(),
    }
}

#[async_trait]
impl Store for Registry {
    fn location(&self) -> String {
        self.location.clone()
    }

    /// Asks about a manifest, which need not be there: that needs exactly the right that reading needs.
    /// (Listing tags is a right of its own in some registries, and their top says nothing of the repository.) Only
    /// about it, not for it: this counts against no quota of pulls.
    async fn check(&self) -> Result<()> {
        let check = |endpoint: Arc<Endpoint>| async move {
            let url = endpoint.url(CHECKED)?;
            let response = endpoint.follow(Access::Pull, &Method::HEAD, url, accept_manifests).await?;
            match response.status() {
                // No such tag, none in a form that is known here, or no such question: but access was granted.
                StatusCode::NOT_FOUND
                | StatusCode::NOT_ACCEPTABLE
                | StatusCode::METHOD_NOT_ALLOWED
                | StatusCode::NOT_IMPLEMENTED => Ok(()),
                status if !status.is_success() => {
                    Err(http::refused(status, response.headers(), &endpoint.shown(response.url())))
                }
                _ => Ok(()),
            }
        };
        self.on_any(|_| false, |_| {}, check).await
    }

    async fn manifest(&self, selector: &Selector) -> Result<(Digest, Bytes)> {
        let find = async {
            let (digest, bytes) = self.manifest_bytes(selector).await?;
            let fetch = async |digest| Ok(self.manifest_bytes(&Selector::Digest(digest)).await?.1);
            layout::follow(digest, bytes, fetch).await
        };
        find.await.map_err(|e| self.about_image(e, selector))
    }

    async fn document(&self, selector: &Selector) -> Result<(Digest, Bytes)> {
        self.manifest_bytes(selector).await.map_err(|e| self.about_image(e, selector))
    }

    fn has_let_nobody_in(&self) -> bool {
        // A mirror that asks for a token says nothing about access to the registry.
        self.origin.auth.lacks_token()
    }

    async fn may_have_refused_others(&self) -> bool {
        self.origin.auth.has_offers().await
    }

    /// Asks only about the manifest, as a check does: the registry sends its digest. A registry that does not, or sends
    /// another one, is asked for the manifest.
    async fn manifest_again(&self, selector: &Selector, known: &Digest) -> Result<Option<(Digest, Bytes)>> {
        let wanted = match selector {
            Selector::Digest(digest) => *digest,
            Selector::Tag(_) => *known,
        };
        let ask = |endpoint: Arc<Endpoint>| {
            let path = format!("manifests/{}", name_of(selector));
            async move {
                let url = endpoint.url(&path)?;
                let response = endpoint.follow(Access::Pull, &Method::HEAD, url, accept_manifests).await?;
                let is_same = header_digest(response.headers()) == Some(wanted);
                let status = response.status();
                let is_refusal = matches!(status, StatusCode::NOT_FOUND | StatusCode::TOO_MANY_REQUESTS)
                    || status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED;
                if is_refusal { Err(http::refusal(&response)) } else { Ok(status.is_success() && is_same) }
            }
        };
        let asked = self.on_any(|_| false, |_| {}, ask).await;
        if asked.map_err(|e| e.about(layout::name(&self.location, selector)))? {
            return Ok(None);
        }
        self.manifest(selector).await.map(Some)
    }

    async fn read(&self, blob: &Digest, range: ByteRange, urgency: Urgency) -> Result<Bytes> {
        let open = |endpoint: Arc<Endpoint>| async move {
            let answer = endpoint.open_range(blob, range).await?;
            Ok(watched(answer, endpoint))
        };
        let send = || self.on_any(|endpoint| endpoint.lacks(blob), |endpoint| endpoint.note_lack(blob), open);
        self.link.read(range, urgency, send).await.map_err(|e| e.about(format!("{}@{blob}", self.location)))
    }

    async fn read_stream<'s>(
        &'s self,
        blob: &Digest,
        range: ByteRange,
        urgency: Urgency,
    ) -> Result<BoxStream<'s, Result<Bytes>>> {
        let thing = format!("{}@{blob}", self.location);
        let open = |endpoint: Arc<Endpoint>| async move {
            let answer = endpoint.open_range(blob, range).await?;
            Ok(watched(answer, endpoint))
        };
        let send = || self.on_any(|endpoint| endpoint.lacks(blob), |endpoint| endpoint.note_lack(blob), open);
        let begun = self.link.stream(range, urgency, send).await.map_err(|e| e.about(&thing))?;
        Ok(about_errors(begun, thing))
    }

    async fn blob_len(&self, blob: &Digest) -> Result<Option<u64>> {
        let len = |endpoint: Arc<Endpoint>| async move {
            let url = endpoint.url(&format!("blobs/{blob}"))?;
            let response =
                endpoint.follow(Access::Pull, &Method::HEAD, url.clone(), |request| request).await?;
            let length = header(response.headers(), &CONTENT_LENGTH).and_then(|text| text.parse().ok());
            if response.status().is_success()
                && let Some(length) = length
            {
                return Ok(length);
            }
            if response.status() == StatusCode::NOT_FOUND && endpoint.owns(response.url()) {
                endpoint.note_absence(blob);
                return Err(http::status_error(StatusCode::NOT_FOUND, &url));
            }
            // Storages behind registries refuse HEAD on addresses signed for GET.
            let first = ByteRange::between(0, 1);
            let ranged = |request| http::with_range(request, first);
            let response = endpoint.follow(Access::Pull, &Method::GET, url, ranged).await?;
            total_len(response).await
        };
        match self.on_any(|endpoint| endpoint.lacks(blob), |endpoint| endpoint.note_lack(blob), len).await {
            Ok(len) => Ok(Some(len)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn put_blob(&self, digest: &Digest, source: Arc<dyn ReadAt>, copied: Copied<'_>) -> Result<()> {
        self.origin.put_blob(digest, source, copied).await
    }

    /// Takes over blobs of other repositories of the same registry.
    async fn mount_blob(&self, digest: &Digest, from: &str) -> Result<bool> {
        match (self.location.parse(), from.parse()) {
            (
                Ok(Location::Registry { host: ours, .. }),
                Ok(Location::Registry { host: theirs, repository }),
            ) if ours == theirs => self.origin.mount_blob(digest, &repository).await,
            _ => Ok(false),
        }
    }

    async fn put_manifest(&self, media_type: &str, bytes: Bytes, tag: Option<&Tag>) -> Result<Digest> {
        let digest = Digest::of(&bytes);
        let name = tag.map_or_else(|| digest.to_string(), Tag::to_string);
        self.origin.put_manifest(&name, media_type, &bytes).await?;
        Ok(digest)
    }

    async fn tags(&self) -> Result<Vec<Tag>> {
        let mut tags = Vec::new();
        let mut url = self.origin.url("tags/list?n=1000")?;
        for _ in 0..MOST_PAGES {
            // Each page is tried again by itself: a long list must not begin again because its last page failed.
            let page = || self.origin.document(url.clone(), MAX_PAGE_SIZE, |request| request);
            let failed = |_| Meter::add(&self.link.meter().retries, 1);
            let (headers, body) = self.origin.settings.retry.run(page, failed).await?;
            let wrong = || {
                Error::new(ErrorKind::Unavailable, "the list of tags is not one").about(http::redact(&url))
            };
            let page: Value = serde_json::from_slice(&body).map_err(|_| wrong())?;
            // Null if the last image was deleted.
            let names = page["tags"].as_array().into_iter().flatten().filter_map(Value::as_str);
            tags.extend(
                names.filter(|name| !is_referrers_tag(name)).filter_map(|name| name.parse::<Tag>().ok()),
            );
            if tags.len() > MOST_TAGS {
                break;
            }
            match next_page(&headers, &url).filter(|next| self.origin.owns(next) && *next != url) {
                Some(next) => url = next,
                None => return Ok(tags),
            }
        }
        Err(Error::unsupported("has too many tags").about(&self.location))
    }

    fn drops_unnamed_blobs(&self) -> bool {
        true
    }

    async fn referrers(&self, subject: &Digest, artifact_type: &str) -> Result<Vec<Referrer>> {
        let listed = self.list_referrers(subject, &[artifact_type]).await;
        let listed = listed.map_err(|e| e.about(&self.location))?;
        Ok(listed.into_iter().next().unwrap_or_default())
    }

    async fn referrers_of_types(
        &self,
        subject: &Digest,
        artifact_types: &[&str],
    ) -> Result<Vec<Vec<Referrer>>> {
        self.list_referrers(subject, artifact_types).await.map_err(|e| e.about(&self.location))
    }

    async fn put_referrer(
        &self,
        subject: &Digest,
        media_type: &str,
        bytes: Bytes,
        replaced: &[Digest],
    ) -> Result<Digest> {
        let digest = Digest::of(&bytes);
        let change = Change { artifact: &bytes, digest, media_type, replaced };
        self.add_referrer(subject, &change).await?;
        Ok(digest)
    }

    fn counters(&self) -> StoreCounters {
        self.link.counters()
    }
}

/// The answer; its failure lets a mirror rest.
fn watched(answer: Answer, endpoint: Arc<Endpoint>) -> Answer {
    if !endpoint.is_mirror() {
        return answer;
    }
    let watch = move |part: &Result<Bytes>| {
        if part.is_err() {
            endpoint.rest();
        }
    };
    Answer { thing: answer.thing, body: answer.body.inspect(watch).boxed() }
}

fn header<'a>(headers: &'a HeaderMap, name: &reqwest::header::HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The length of the whole, from the answer to a request for its first byte, which an empty blob lacks.
async fn total_len(response: Response) -> Result<u64> {
    let total = match response.status() {
        StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
            header(response.headers(), &CONTENT_RANGE).and_then(|text| Some(text.rsplit_once('/')?.1))
        }
        StatusCode::OK => header(response.headers(), &CONTENT_LENGTH),
        _ => None,
    };
    if let Some(total) = total.and_then(|total| total.trim().parse().ok()) {
        return Ok(total);
    }
    let response = accepted(response).await?;
    Err(Error::new(ErrorKind::Unavailable, "does not tell the length of a blob")
        .about(http::redact(response.url())))
}

/// The next page of a list: `Link: </v2/...>; rel="next"`.
fn next_page(headers: &HeaderMap, url: &Url) -> Option<Url> {
    let link = header(headers, &LINK)?;
    let (target, rest) = link.trim().strip_prefix('<')?.split_once('>')?;
    let next = rest.contains("rel=\"next\"") || rest.contains("rel=next");
    if next { url.join(target).ok() } else { None }
}

#[cfg(test)]
mod tests;
