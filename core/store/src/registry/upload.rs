//! Writing to a registry: blobs, manifests, and artifacts that refer to a manifest.
//!
//! The registry is asked first if it has the blob, unless it said before that it does not. For a small blob
//! ([`SMALL`]) the upload begins at the same time: over a long way, asking first takes half as long again as sending.
//!
//! A small blob goes up in one request. A large one goes in ranges ([`RANGE_LEN`]), so that a broken connection
//! costs one range: the registry is asked for the number of bytes that it has, and the rest is sent. A registry
//! that knows no ranges gets the blob in one request. The registry checks the digest at the end and keeps nothing
//! that does not match.

use super::auth::Access;
use super::endpoint::{Endpoint, accepted};
use crate::counters::Meter;
use crate::http;
use crate::store::Copied;
use bytes::Bytes;
use futures::future::join;
use headstart_block::{ByteRange, Digest, Error, ErrorKind, ReadAt, Result, to_usize};
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, LOCATION, RANGE};
use reqwest::{Body, Method, Response, StatusCode};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use url::Url;

/// The bytes of a blob that one request carries, if the blob goes up in several.
const RANGE_LEN: u64 = 64 << 20;

/// The largest blob for which an upload begins before the registry has said that it does not have the blob.
const SMALL: u64 = 64 << 10;

/// Bytes that are read from the source and handed to the connection at once.
const PART: u64 = 1 << 20;

/// The time that a registry may take over a complete blob or range: it hashes it, and may copy it to a
/// storage.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(300);

/// The number of times in a row that a range is sent again, and the pause before.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(500);

/// The state of an upload.
struct Upload<'a> {
    endpoint: &'a Endpoint,
    source: Arc<dyn ReadAt>,
    location: Url,
    /// Bytes that the registry has.
    done: u64,
    copied: Copied<'a>,
    /// Bytes that were reported to `copied`: ranges that are sent again are not counted again.
    reported: u64,
    /// `true` if the source or the caller failed, not the registry.
    ended_here: bool,
}

impl Endpoint {
    /// Writes a blob, unless it is there.
    pub(super) async fn put_blob(
        &self,
        digest: &Digest,
        source: Arc<dyn ReadAt>,
        copied: Copied<'_>,
    ) -> Result<()> {
        let len = source.len();
        let Some(location) = self.begin_if_absent(digest, len).await? else { return copied(len) };
        let mut upload =
            Upload { endpoint: self, source, location, done: 0, copied, reported: 0, ended_here: false };
        if len > RANGE_LEN {
            if upload.send_ranges().await? {
                return upload.close(digest).await;
            }
            // The registry knows no ranges. No specification says that an upload survives one: begin again.
            upload.location = self.begin_upload().await?;
        }
        let mut url = upload.location.clone();
        url.query_pairs_mut().append_pair("digest", &digest.to_string());
        let response = upload.send(&Method::PUT, &url, ByteRange::between(0, len), None).await?;
        finished(response, digest).await
    }

    /// Takes over a blob of another repository; `false` if the registry does not do so.
    pub(super) async fn mount_blob(&self, digest: &Digest, repository: &str) -> Result<bool> {
        let from = self.beside(repository);
        let mut url = self.url("blobs/uploads/")?;
        url.query_pairs_mut().append_pair("mount", &digest.to_string()).append_pair("from", &from);
        // Without the right to read there, the registry begins an upload.
        self.auth.also_pull(&from);
        Meter::add(&self.meter.requests, 1);
        let empty = |request: reqwest::RequestBuilder| request.header(CONTENT_LENGTH, 0);
        let sent = self.send(Access::Push, &Method::POST, &url, COMMIT_TIMEOUT, empty).await;
        let response = match sent {
            // The other repository may be the reason, so that writing may be allowed without it.
            Err(error) if error.kind() == ErrorKind::Denied => {
                self.auth.no_longer_pull(&from);
                tracing::debug!(%error, from, "a blob is copied, because it may not be taken over");
                return Ok(false);
            }
            sent => sent?,
        };
        match response.status() {
            StatusCode::CREATED => {
                // It is there now, whatever was found before.
                self.routes.get(digest).is_absent.store(false, Ordering::Relaxed);
                Ok(true)
            }
            StatusCode::ACCEPTED => {
                if let Ok(location) = self.upload_location(&response) {
                    self.give_up(&location).await;
                }
                Ok(false)
            }
            status => {
                tracing::debug!(%status, from, "a blob is copied, because the registry does not take it over");
                Ok(false)
            }
        }
    }

    /// Begins the upload of a blob of `len` bytes; `None` if the registry has the blob.
    async fn begin_if_absent(&self, digest: &Digest, len: u64) -> Result<Option<Url>> {
        // Taken back: after a failure, the blob may be there.
        if self.routes.get(digest).is_absent.swap(false, Ordering::Relaxed) {
            return self.begin_upload().await.map(Some);
        }
        if len > SMALL {
            return if self.has_blob(digest).await? { Ok(None) } else { self.begin_upload().await.map(Some) };
        }
        match join(self.has_blob(digest), self.begin_upload()).await {
            (Ok(true), begun) => {
                if let Ok(location) = begun {
                    self.give_up(&location).await;
                }
                Ok(None)
            }
            (has_blob, begun) => has_blob.and(begun).map(Some),
        }
    }

    /// Notes that the registry does not have a blob.
    pub(super) fn note_absence(&self, digest: &Digest) {
        self.routes.get(digest).is_absent.store(true, Ordering::Relaxed);
    }

    /// Ends an upload that is not needed. Registries end it themselves after some days.
    async fn give_up(&self, location: &Url) {
        Meter::add(&self.meter.requests, 1);
        let limit = self.settings.first_byte_timeout;
        let sent = self.send(Access::Push, &Method::DELETE, location, limit, |request| request).await;
        if let Err(error) = sent {
            tracing::debug!(%error, "an upload that is not needed stays in the registry");
        }
    }

    async fn has_blob(&self, digest: &Digest) -> Result<bool> {
        let url = self.url(&format!("blobs/{digest}"))?;
        Meter::add(&self.meter.requests, 1);
        let limit = self.settings.first_byte_timeout;
        let response = self.send(Access::Push, &Method::HEAD, &url, limit, |request| request).await?;
        match response.status() {
            StatusCode::NOT_FOUND => Ok(false),
            status if status.is_redirection() => Ok(true),
            _ => accepted(response).await.map(|_| true),
        }
    }

    async fn begin_upload(&self) -> Result<Url> {
        let url = self.url("blobs/uploads/")?;
        Meter::add(&self.meter.requests, 1);
        let empty = |request: reqwest::RequestBuilder| request.header(CONTENT_LENGTH, 0);
        let limit = self.settings.first_byte_timeout;
        let response = self.send(Access::Push, &Method::POST, &url, limit, empty).await?;
        let response = writable(response).await?;
        self.upload_location(&response)
    }

    /// The URL at which an upload goes on, which must be at the registry itself, because it is shown credentials.
    fn upload_location(&self, response: &Response) -> Result<Url> {
        let about = http::redact(response.url());
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let location = location.and_then(|location| response.url().join(location).ok());
        let location = location.ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, "begins no upload: it names no place").about(&about)
        })?;
        if !self.owns(&location) {
            let cause =
                format!("sends uploads to {}: credentials are not sent there", http::redact(&location));
            return Err(Error::unsupported(cause)
                .about(about)
                .remedy("name the registry as it names itself, or set its external URL right"));
        }
        Ok(location)
    }

    /// Writes a manifest under `name`, a tag or a digest. Returns the response's headers.
    pub(super) async fn put_manifest(
        &self,
        name: &str,
        media_type: &str,
        bytes: &Bytes,
    ) -> Result<HeaderMap> {
        let url = self.url(&format!("manifests/{name}"))?;
        Meter::add(&self.meter.requests, 1);
        let fill = |request: reqwest::RequestBuilder| {
            request.header(CONTENT_TYPE, media_type).body(Body::from(bytes.clone()))
        };
        let response = self.send(Access::Push, &Method::PUT, &url, COMMIT_TIMEOUT, fill).await?;
        let response = writable(response).await?;
        let given = response.headers().get("docker-content-digest").and_then(|value| value.to_str().ok());
        let digest = Digest::of(bytes);
        if given.is_some_and(|given| given != digest.to_string()) {
            return Err(Error::corrupt(format!("the registry took {digest} for another manifest"))
                .about(http::redact(&url)));
        }
        Ok(response.headers().clone())
    }
}

impl Upload<'_> {
    /// Sends the whole blob in ranges. `false` if the registry does not take ranges.
    async fn send_ranges(&mut self) -> Result<bool> {
        // A registry that gets no further fails, even if it accepts ranges that it loses afterwards.
        let (mut failures, mut furthest) = (0, 0);
        while self.done < self.source.len() {
            let range =
                ByteRange::between(self.done, self.source.len().min(self.done.saturating_add(RANGE_LEN)));
            let url = self.location.clone();
            let header = format!("{}-{}", range.offset(), range.end() - 1);
            let sent = match self.send(&Method::PATCH, &url, range, Some(&header)).await {
                Ok(response) => match response.status().as_u16() {
                    400 | 404 | 405 | 411 | 415 | 501 if self.done == 0 => return Ok(false),
                    _ => writable(response).await,
                },
                Err(error) => Err(error),
            };
            match sent {
                Ok(response) => {
                    self.location = self.endpoint.upload_location(&response)?;
                    self.done = range.end();
                    if self.done > furthest {
                        (failures, furthest) = (0, self.done);
                    }
                }
                Err(error) if self.may_go_on(&error) && failures < TRIES => {
                    failures += 1;
                    sleep(PAUSE.saturating_mul(failures)).await;
                    tracing::warn!(%error, "sending a piece of a blob again");
                    // The number of bytes that it has is worth a request, but not a failure: the range is then sent
                    // as it was.
                    if let Err(error) = self.find_place().await {
                        tracing::debug!(%error, "cannot find out how far an upload got");
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// `true` if the upload may be resumed: 416 (`Corrupt`) is a range that does not fit
    /// there.
    fn may_go_on(&self, error: &Error) -> bool {
        !self.ended_here && matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Corrupt)
    }

    /// Asks for the number of bytes that the registry has.
    async fn find_place(&mut self) -> Result<()> {
        let limit = self.endpoint.settings.first_byte_timeout;
        let url = self.location.clone();
        let response = self.endpoint.send(Access::Push, &Method::GET, &url, limit, |request| request).await?;
        let response = accepted(response).await?;
        let range = response.headers().get(RANGE).and_then(|value| value.to_str().ok());
        let last = range
            .and_then(|range| range.trim_start_matches("bytes=").strip_prefix("0-")?.parse::<u64>().ok());
        self.location = self.endpoint.upload_location(&response)?;
        // Registries say `0-0` for nothing as well as for one byte: nothing is the safe reading, because a
        // range that does not fit is refused.
        self.done = match last {
            Some(last @ 1..) => last.saturating_add(1).min(self.source.len()),
            _ => 0,
        };
        Ok(())
    }

    async fn close(self, digest: &Digest) -> Result<()> {
        let mut url = self.location.clone();
        url.query_pairs_mut().append_pair("digest", &digest.to_string());
        let empty = |request: reqwest::RequestBuilder| request.header(CONTENT_LENGTH, 0);
        let response = self.endpoint.send(Access::Push, &Method::PUT, &url, COMMIT_TIMEOUT, empty).await?;
        finished(response, digest).await
    }

    /// Sends bytes of the source as a request's body, and reports them as they go.
    async fn send(
        &mut self,
        method: &Method,
        url: &Url,
        bytes: ByteRange,
        range: Option<&str>,
    ) -> Result<Response> {
        Meter::add(&self.endpoint.meter.requests, 1);
        let (progress, mut sent) = mpsc::unbounded_channel();
        let source = Arc::clone(&self.source);
        let fill = |request: reqwest::RequestBuilder| {
            let request = request
                .header(CONTENT_TYPE, "application/octet-stream")
                .header(CONTENT_LENGTH, bytes.len())
                .body(body(Arc::clone(&source), bytes, progress.clone()));
            match range {
                Some(range) => request.header(CONTENT_RANGE, range),
                None => request,
            }
        };
        // The time-out is for the pauses below, not for the whole request, which may be long.
        let request = self.endpoint.send(Access::Push, method, url, Duration::MAX, fill);
        let mut request = std::pin::pin!(request);
        let stall = self.endpoint.settings.stall_timeout;
        let mut limit = stall.max(self.endpoint.settings.first_byte_timeout);
        loop {
            let event = async {
                tokio::select! {
                    // The source's error first: it is the reason why the request fails.
                    biased;
                    Some(part) = sent.recv() => Ok(part),
                    response = &mut request => Err(response),
                }
            };
            match timeout(limit, event).await {
                Ok(Err(response)) => return response,
                Ok(Ok(part)) => {
                    self.ended_here = true;
                    let end = part?;
                    limit = if end == bytes.end() { COMMIT_TIMEOUT } else { stall };
                    let news = end.saturating_sub(self.reported);
                    self.reported = self.reported.max(end);
                    (self.copied)(news)?;
                    self.ended_here = false;
                }
                Err(_) => {
                    let cause = format!("took no bytes for {} s", limit.as_secs_f64());
                    return Err(Error::new(ErrorKind::Unavailable, cause).about(http::redact(url)));
                }
            }
        }
    }
}

/// A body that reads the source as the connection takes it. `progress` gets the end of each part, or the reason for
/// which it fails.
fn body(source: Arc<dyn ReadAt>, bytes: ByteRange, progress: mpsc::UnboundedSender<Result<u64>>) -> Body {
    let read = move |part: ByteRange| {
        let (source, progress) = (Arc::clone(&source), progress.clone());
        async move {
            let bytes = tokio::task::spawn_blocking(move || {
                let mut bytes = vec![0; to_usize(part.len())];
                source.read_at(&mut bytes, part.offset()).map(|()| Bytes::from(bytes))
            });
            let bytes =
                bytes.await.unwrap_or_else(|e| Err(Error::new(ErrorKind::Io, "reading failed").caused_by(e)));
            // There is no receiver any more when the request is given up.
            match bytes {
                Ok(bytes) => {
                    let _ = progress.send(Ok(part.end()));
                    Ok(bytes)
                }
                Err(error) => {
                    let _ = progress.send(Err(error));
                    // Ends the request; the error has been reported.
                    Err(io::Error::other("the source cannot be read"))
                }
            }
        }
    };
    Body::wrap_stream(futures::StreamExt::then(futures::stream::iter(bytes.parts(PART)), read))
}

/// The response to a write, if it is a success.
async fn writable(response: Response) -> Result<Response> {
    let url = http::redact(response.url());
    match response.status() {
        StatusCode::METHOD_NOT_ALLOWED => {
            Err(Error::new(ErrorKind::ReadOnly, "the registry cannot be written").about(url))
        }
        StatusCode::PAYLOAD_TOO_LARGE => {
            Err(Error::new(ErrorKind::NoSpace, "the registry takes no body of this size")
                .about(url)
                .remedy("raise the limit there, or in the proxy before it"))
        }
        _ => accepted(response).await,
    }
}

/// The answer to the last request of an upload.
async fn finished(response: Response, digest: &Digest) -> Result<()> {
    if response.status() == StatusCode::BAD_REQUEST {
        let message = super::server_message(response).await;
        return Err(Error::corrupt(format!("the registry refuses the blob{message}")).about(digest).remedy(
            "if its bytes are not those of its digest, the store that it comes from is damaged: verify it",
        ));
    }
    writable(response).await.map(drop)
}
