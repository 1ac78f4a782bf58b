//! Reading a blob: from the registry, or from the storage that it redirects to.
//!
//! [`super::redirect`] decides on the target of a read; this is the I/O around it. The question for a blob's place
//! is itself a read of the range, so that a registry that has the bytes answers at once and is never asked
//! twice. While a registry has served all blobs itself, reads of the next one do not wait for the first of them. The
//! first few reads of all wait for none either.
//!
//! A read that the storage behind a registry refuses (most often because the address has run out) goes back to the
//! registry, at most [`MOST_REFUSALS`] times a read; an address that cannot be reached is forgotten, because the
//! next one may lead elsewhere.

use super::auth::Access;
use super::endpoint::{Endpoint, MOST_HOPS};
use super::flight::Turn;
use super::redirect::{Address, Decision, life_in_url};
use super::routes::BlobRoute;
use crate::http::{self, http_date};
use crate::link::Answer;
use crate::retry::jitter;
use headstart_block::{ByteRange, Digest, Error, ErrorKind, Result};
use reqwest::header::DATE;
use reqwest::{Method, Response, StatusCode};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use url::Url;

/// Addresses that a read tries: one that was kept, one fetched ahead, one fresh.
const MOST_REFUSALS: usize = 2;

/// The time that fetching the next address may take: a read that needs it later waits for this.
const AHEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// The time for which a mirror is not asked for a blob that it does not have.
const LACKS: Duration = Duration::from_secs(60);

/// The registry's answer to a read.
enum ReadAnswer {
    /// The bytes, from the registry itself.
    Here(Response),
    /// A redirect to another place, noted in the route.
    Elsewhere,
}

impl Endpoint {
    /// `true` if the endpoint said lately that it does not have the blob.
    pub(super) fn lacks(&self, digest: &Digest) -> bool {
        self.clock.now() < *self.routes.get(digest).lacks_until.lock()
    }

    /// Notes that the endpoint does not have the blob.
    pub(super) fn note_lack(&self, digest: &Digest) {
        *self.routes.get(digest).lacks_until.lock() = self.clock.now().saturating_add(LACKS);
    }

    /// Begins to read `range` of a blob.
    pub(super) async fn open_range(self: &Arc<Self>, digest: &Digest, range: ByteRange) -> Result<Answer> {
        let blob = self.routes.get(digest);
        let mut is_first = self.routes.may_ask_first();
        let decide = || match blob.route.lock().decide(self.clock.now(), self.routes.shortest()) {
            // Nothing to share: reads of a blob that many need begin at once.
            Decision::Ask if self.routes.are_served_here() => Decision::Direct,
            decision => decision,
        };
        let mut refusals = 0;
        // Each round learns something; the bound is for a registry that changes its mind for ever.
        for _ in 0..8 {
            let decision = match decide() {
                Decision::Ask if std::mem::take(&mut is_first) => Decision::Direct,
                decision => decision,
            };
            match decision {
                Decision::Direct => {
                    if let ReadAnswer::Here(response) = self.ask(&blob, digest, range).await? {
                        return http::ranged_answer(response, range);
                    }
                }
                Decision::Ask => match blob.flight.join().await {
                    Turn::Followed(Ok(())) => {}
                    Turn::Followed(Err(failure)) => return Err(failure.error()),
                    Turn::Lead(lead) if decide() == Decision::Ask => {
                        let answer = self.ask(&blob, digest, range).await;
                        lead.publish(answer.as_ref().map(|_| ()));
                        if let ReadAnswer::Here(response) = answer? {
                            return http::ranged_answer(response, range);
                        }
                    }
                    // Another read was answered just before.
                    Turn::Lead(_) => {}
                },
                Decision::Use { address, prefetch } => {
                    if prefetch {
                        self.fetch_ahead(&blob, digest);
                    }
                    match self.read_away(&blob, &address, range).await? {
                        Ok(answer) => return Ok(answer),
                        Err(refusal) if refusals == MOST_REFUSALS => return Err(refusal),
                        Err(_) => refusals += 1,
                    }
                }
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "sends reads of a blob to and fro").about(&self.name))
    }

    /// Asks the registry for the range, and notes where the blob is.
    async fn ask(
        self: &Arc<Self>,
        blob: &Arc<BlobRoute>,
        digest: &Digest,
        range: ByteRange,
    ) -> Result<ReadAnswer> {
        let url = self.url(&format!("blobs/{digest}"))?;
        let now = self.clock.now();
        let limit = self.settings.first_byte_timeout;
        let ranged = |request| http::with_range(request, range);
        let response = self.send(Access::Pull, &Method::GET, &url, limit, ranged).await?;
        if let Some(target) = self.target(&response)? {
            self.routes.saw_redirect();
            let date = response.headers().get(DATE).and_then(|date| http_date(date.to_str().ok()?));
            let life = life_in_url(&target, date);
            let due = blob.route.lock().learn_address(target, now, life, self.routes.shortest());
            if let Some((generation, at)) = due {
                self.look_after(blob, digest, generation, at);
            }
            return Ok(ReadAnswer::Elsewhere);
        }
        match response.status() {
            // Wrong ranges are for the caller that asked for this range.
            StatusCode::OK | StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
                blob.route.lock().learn_direct();
                self.routes.saw_served();
                Ok(ReadAnswer::Here(response))
            }
            _ => Err(http::refusal(&response)),
        }
    }

    /// Schedules the fetch of the next address of a blob for `at`, when the new one of `generation` nears its end, if
    /// it was used by then. Keeps nothing alive.
    fn look_after(self: &Arc<Self>, blob: &Arc<BlobRoute>, digest: &Digest, generation: u64, at: Duration) {
        let (endpoint, blob, digest) = (Arc::downgrade(self), Arc::downgrade(blob), *digest);
        let pause = at.saturating_sub(self.clock.now());
        tokio::spawn(async move {
            // An image's blobs were all asked for at once; the next time is spread out.
            sleep(pause.mul_f64(1.0 + jitter() / 16.0)).await;
            let (Some(endpoint), Some(blob)) = (endpoint.upgrade(), blob.upgrade()) else { return };
            let (now, seen) = (endpoint.clock.now(), endpoint.routes.shortest());
            let is_due = blob.route.lock().is_due(generation, now, seen);
            if is_due {
                endpoint.fetch_ahead(&blob, &digest);
            }
        });
    }

    /// Fetches the next address of a blob while this one still serves, unless another read does so already.
    fn fetch_ahead(self: &Arc<Self>, blob: &Arc<BlobRoute>, digest: &Digest) {
        let Some(lead) = blob.flight.try_lead() else { return };
        let (endpoint, blob, digest) = (Arc::clone(self), Arc::clone(blob), *digest);
        tokio::spawn(async move {
            // One byte, in case that the registry gives the blob itself this time.
            let asked = endpoint.ask(&blob, &digest, ByteRange::between(0, 1));
            let asked = timeout(AHEAD_TIMEOUT, asked).await.unwrap_or_else(|_| {
                let cause = format!("did not answer within {} s", AHEAD_TIMEOUT.as_secs());
                Err(Error::new(ErrorKind::Unavailable, cause).about(&endpoint.name))
            });
            if let Err(error) = &asked {
                blob.route.lock().fail(endpoint.clock.now());
                tracing::warn!(%error, "asking for the next address of a blob ahead of time failed");
            }
            lead.publish(asked.as_ref().map(|_| ()));
        });
    }

    /// Reads from an address that the registry gave; inner errors are refusals, after which another one may
    /// serve.
    async fn read_away(
        &self,
        blob: &BlobRoute,
        address: &Address,
        range: ByteRange,
    ) -> Result<Result<Answer>> {
        let sent = self.get_away(&address.url, range).await;
        let response = match sent {
            Ok(response) => response,
            Err(error) => {
                blob.route.lock().reject(address.generation, self.clock.now());
                return Err(error);
            }
        };
        let url = response.url().clone();
        let status = response.status();
        match status.as_u16() {
            400 | 401 | 403 | 404 | 410 => {
                let lived = blob.route.lock().reject(address.generation, self.clock.now());
                if let Some(lived) = lived.filter(|_| !matches!(status.as_u16(), 404 | 410)) {
                    self.routes.saw(lived);
                }
                let message = super::server_message(response).await;
                let error = http::status_error(status, &url);
                let error = if message.is_empty() { error } else { error.caused_by(message.trim_start()) };
                Ok(Err(error.remedy("it is the storage that the registry redirects to: ask who runs it")))
            }
            // As with one that cannot be reached. This read need not find out: a storage that is down as a
            // whole is asked no more often for it.
            500.. => {
                blob.route.lock().reject(address.generation, self.clock.now());
                Err(http::refusal(&response))
            }
            _ => http::ranged_answer(response, range).map(Ok),
        }
    }

    /// Sends a read to an address, and on to the targets of its redirects. Only the registry itself gets
    /// credentials.
    async fn get_away(&self, url: &Url, range: ByteRange) -> Result<Response> {
        // Less than the whole is granted: an address that hangs must fail here, to be forgotten.
        let limit = self.answer_limit() / 4 * 3;
        let mut url = url.clone();
        for _ in 0..MOST_HOPS {
            let response = if self.owns(&url) {
                let ranged = |request| http::with_range(request, range);
                self.send(Access::Pull, &Method::GET, &url, limit, ranged).await?
            } else {
                let request = self.client.get()?.get(url.clone());
                http::send(http::with_range(request, range), &url, limit).await?
            };
            match self.target(&response)? {
                Some(next) => url = next,
                None => return Ok(response),
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "redirects without end").about(http::redact(&url)))
    }
}
