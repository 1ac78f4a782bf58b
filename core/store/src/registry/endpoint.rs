//! One registry as a target of requests: the one that references name, or a mirror of it.
//!
//! A mirror that fails rests for a while, during which others are asked; a missing blob or manifest is no
//! failure.

use super::attempt::Attempt;
use super::auth::{Access, Auth, Refusal};
use super::credential::Credential;
use super::routes::BlobRoutes;
use super::{CHECKED, Clock};
use crate::counters::Meter;
use crate::guard::{self, Guard};
use crate::http::{self, LazyClient, Redirects};
use crate::settings::{StoreSettings, authority};
use crate::tls_fault::is_plain;
use bytes::Bytes;
use headstart_block::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use reqwest::header::LOCATION;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OnceCell, watch};
use url::Url;

/// The time for which a mirror that failed is not asked.
const REST: Duration = Duration::from_secs(30);

/// The longest time that a mirror gets to begin its answer: behind it, others wait to be asked.
const MIRROR_LIMIT: Duration = Duration::from_secs(4);

/// Most redirects that a request follows.
pub(super) const MOST_HOPS: usize = 4;

/// A repository at one registry.
pub(super) struct Endpoint {
    /// The name, for messages.
    pub(super) name: String,
    /// The registry's top.
    base: Url,
    /// The path below `v2/`.
    repository: String,
    /// The path below `v2/` that all its repositories have in common.
    prefix: String,
    /// The registry that a mirror stands for, which its requests name.
    stands_for: Option<String>,
    pub(super) client: Arc<LazyClient>,
    /// The guard of the addresses of its redirects and its token server.
    guard: Arc<Guard>,
    pub(super) settings: Arc<StoreSettings>,
    pub(super) clock: Clock,
    pub(super) auth: Arc<Auth>,
    pub(super) routes: BlobRoutes,
    pub(super) meter: Arc<Meter>,
    rests_until: Mutex<Duration>,
    /// The result of asking its top for a challenge: `true` if it sent one.
    knocked: OnceCell<bool>,
    /// `true` once it gave something of the repository to a request that showed nothing: it hides nothing then.
    is_open: watch::Sender<bool>,
}

/// The state that all endpoints of one store share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) settings: Arc<StoreSettings>,
    pub(super) clock: Clock,
    pub(super) meter: Arc<Meter>,
}

impl Endpoint {
    /// `repository` at `host`, which may have a path before its repositories; `stands_for` makes it a mirror.
    pub(super) fn new(
        host: &str,
        repository: &str,
        stands_for: Option<&str>,
        shared: &Shared,
    ) -> Result<Self> {
        // People write credentials before the host.
        let shown = host.rsplit('@').next().unwrap_or_default();
        let invalid = || Error::invalid(format!("`{}` is not the name of a registry", shown.escape_debug()));
        let (host, path) = host.split_once('/').unwrap_or((host, ""));
        let path = path.trim_matches('/');
        let repository = if path.is_empty() { repository.to_owned() } else { format!("{path}/{repository}") };
        let scheme = if shared.settings.is_plain_http(host) { "http" } else { "https" };
        let base = Url::parse(&format!("{scheme}://{host}/")).map_err(|_| invalid())?;
        if authority(&base).is_empty() || !base.username().is_empty() || base.path() != "/" {
            return Err(invalid().remedy("write it as HOST or HOST:PORT; `docker login` keeps credentials"));
        }
        let Shared { settings, clock, meter } = shared.clone();
        // A registry on the internet and its mirror here may redirect to different addresses.
        let guard =
            Guard::new(&base, &StoreSettings { one_origin: false, ..StoreSettings::clone(&settings) });
        let client = Arc::new(http::client(&settings, Redirects::Report, Some(&guard))?);
        let auth = Auth::new(
            host,
            &repository,
            Arc::clone(&client),
            Arc::clone(&guard),
            Arc::clone(&settings),
            clock,
        );
        Ok(Self {
            name: format!("{host}/{repository}"),
            base,
            repository,
            prefix: path.to_owned(),
            stands_for: stands_for.map(str::to_owned),
            client,
            guard,
            settings,
            clock,
            auth: Arc::new(auth),
            routes: BlobRoutes::default(),
            meter,
            rests_until: Mutex::default(),
            knocked: OnceCell::new(),
            is_open: watch::Sender::new(false),
        })
    }

    /// A URL as messages name it: a check asks for a manifest that the user does not want, so messages name the
    /// repository.
    pub(super) fn shown(&self, url: &Url) -> Url {
        let top = url.path().ends_with(CHECKED).then(|| self.base.join(&self.repository).ok()).flatten();
        top.unwrap_or_else(|| url.clone())
    }

    pub(super) fn is_mirror(&self) -> bool {
        self.stands_for.is_some()
    }

    pub(super) fn rests(&self) -> bool {
        self.clock.now() < *self.rests_until.lock()
    }

    /// The time in which it has to begin an answer, everything included.
    pub(super) fn answer_limit(&self) -> Duration {
        let first_byte = self.settings.first_byte_timeout;
        if self.is_mirror() { MIRROR_LIMIT.min(first_byte / 3) } else { first_byte }
    }

    /// Notes that it failed: others are asked for a while.
    pub(super) fn rest(&self) {
        *self.rests_until.lock() = self.clock.now().saturating_add(REST);
    }

    /// The URL of something in the repository: `blobs/sha256:...`.
    pub(super) fn url(&self, rest: &str) -> Result<Url> {
        let path = format!("v2/{}/{rest}", self.repository);
        let mut url =
            self.base.join(&path).map_err(|e| Error::invalid("makes no URL").about(&path).caused_by(e))?;
        if let Some(registry) = &self.stands_for {
            // Mirrors that stand for several registries use this.
            url.query_pairs_mut().append_pair("ns", registry);
        }
        Ok(url)
    }

    /// The path below `v2/` of another repository of the same registry.
    pub(super) fn beside(&self, repository: &str) -> String {
        if self.prefix.is_empty() { repository.to_owned() } else { format!("{}/{repository}", self.prefix) }
    }

    /// `true` if a URL is the registry's own: its credentials are shown only there.
    pub(super) fn owns(&self, url: &Url) -> bool {
        self.base.origin() == url.origin()
    }

    /// Sends a request to the registry with the proof that it takes, and begins again if that was refused. Any
    /// other status is an answer. `fill` adds headers and body, again for each try; the head must come within
    /// `limit`.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`]; [`ErrorKind::Unavailable`] where there is no answer.
    pub(super) async fn send(
        &self,
        access: Access,
        method: &Method,
        url: &Url,
        limit: Duration,
        fill: impl Fn(RequestBuilder) -> RequestBuilder + Send,
    ) -> Result<Response> {
        let mut attempt = Attempt::default();
        // The registry's own answer to the first credential: the others are tried in case that this one is wrong.
        let mut denial = None::<(Credential, Error)>;
        loop {
            let proof = match self.auth.proof(access, &attempt).await {
                Err(error) if error.kind() == ErrorKind::Denied => {
                    return Err(denial.map_or(error, |(_, denial)| denial));
                }
                proof => proof?,
            };
            let request = proof.show(fill(self.client.get()?.request(method.clone(), url.clone())));
            let sent = http::send(request, &self.shown(url), limit).await;
            let response = sent.map_err(|e| self.explain(e))?;
            let status = response.status();
            let hidden =
                matches!(status, StatusCode::NOT_FOUND | StatusCode::FORBIDDEN) && proof.shows_nothing();
            if hidden && self.hides(access).await? {
                continue;
            }
            if status.is_success() && access == Access::Pull && proof.shows_nothing() {
                self.is_open.send_if_modified(|is_open| !std::mem::replace(is_open, true));
            }
            if status.is_success() || status.is_redirection() {
                self.auth.taken(&proof, access).await;
            }
            if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
                return Ok(response);
            }
            let (error, of, is_last) = match self.auth.refused(&proof, access, response, &mut attempt).await?
            {
                Refusal::Unknown => continue,
                Refusal::One(error, of) => (error, of, false),
                Refusal::Last(error, of) => (error, of, true),
            };
            let (of, error) = match denial {
                Some(first) if !first.0.is_same(&of) => first,
                _ => (of, error),
            };
            if is_last {
                return Err(error);
            }
            denial = Some((of, error));
        }
    }

    /// `true` if what a request that showed nothing did not find may be hidden from it. The answer to another request
    /// may say first that nothing is.
    async fn hides(&self, access: Access) -> Result<bool> {
        if access == Access::Push {
            return self.knock().await;
        }
        let mut is_open = self.is_open.subscribe();
        tokio::select! {
            biased;
            // The sender is as old as the endpoint.
            _ = is_open.wait_for(|is_open| *is_open) => Ok(false),
            has_challenge = self.knock() => has_challenge,
        }
    }

    /// Asks the registry's top for a challenge, once: some registries hide from unknown clients what they would
    /// show to known ones, without a challenge. Returns `true` if there is one. If the request that asks is not
    /// answered or is given up, the next one asks.
    async fn knock(&self) -> Result<bool> {
        self.knocked.get_or_try_init(|| self.ask_at_the_top()).await.copied()
    }

    async fn ask_at_the_top(&self) -> Result<bool> {
        let top = self.base.join("v2/");
        let top = top.map_err(|e| Error::invalid("makes no URL").about(&self.base).caused_by(e))?;
        Meter::add(&self.meter.requests, 1);
        let limit = self.settings.first_byte_timeout;
        let response = http::send(self.client.get()?.get(top.clone()), &top, limit).await?;
        Ok(response.status() == StatusCode::UNAUTHORIZED && self.auth.learn(response.headers()))
    }

    /// Sends a request without a body, and follows redirects by hand: credentials stay at the registry.
    pub(super) async fn follow(
        &self,
        access: Access,
        method: &Method,
        url: Url,
        fill: impl Fn(RequestBuilder) -> RequestBuilder + Send + Sync,
    ) -> Result<Response> {
        let limit = self.settings.first_byte_timeout;
        let mut url = url;
        for _ in 0..=MOST_HOPS {
            Meter::add(&self.meter.requests, 1);
            let response = if self.owns(&url) {
                self.send(access, method, &url, limit, &fill).await?
            } else {
                let request = self.client.get()?.request(method.clone(), url.clone());
                http::send(fill(request), &url, limit).await?
            };
            match self.target(&response)? {
                Some(next) => url = next,
                None => return Ok(response),
            }
        }
        let error = Error::new(ErrorKind::Unavailable, "redirects without end").answered();
        Err(error.about(http::redact(&url)))
    }

    /// The target of a response, if it is a redirect.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if it leads from TLS to a host without, or to an address that is not allowed.
    pub(super) fn target(&self, response: &Response) -> Result<Option<Url>> {
        if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
            return Ok(None);
        }
        let from = response.url();
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let target = location.and_then(|location| from.join(location).ok());
        let target = target.filter(|target| target.has_host() && matches!(target.scheme(), "http" | "https"));
        let target = target.ok_or_else(|| {
            let error = Error::new(ErrorKind::Unavailable, "redirects to no usable address").answered();
            error.about(http::redact(from))
        })?;
        let host = authority(&target);
        if self.settings.is_downgrade(from, &target) {
            let cause = format!("redirects to {}, which has no TLS", http::redact(&target));
            return Err(Error::new(ErrorKind::Denied, cause)
                .about(http::redact(from))
                .remedy(format!("allow it by `--plain-http {host}` if the network is yours")));
        }
        if !self.owns(&target) {
            self.guard.check(&target).map_err(|why| guard::refused(why, http::redact(from)))?;
        }
        Ok(Some(target))
    }

    /// A small document of the repository, with its headers.
    pub(super) async fn document(
        &self,
        url: Url,
        most: u64,
        fill: impl Fn(RequestBuilder) -> RequestBuilder + Send + Sync,
    ) -> Result<(reqwest::header::HeaderMap, Bytes)> {
        let response = self.follow(Access::Pull, &Method::GET, url, fill).await?;
        let response = accepted(response).await?;
        let headers = response.headers().clone();
        let body = http::small_body(response, most, self.settings.stall_timeout).await?;
        Ok((headers, body))
    }

    /// The option by which commands reach it without TLS, after a space; empty if it has TLS.
    pub(super) fn plain_option(&self) -> String {
        match self.base.scheme() {
            "http" => format!(" --plain-http {}", authority(&self.base)),
            _ => String::new(),
        }
    }

    /// Adds the remedy if the cause is known.
    fn explain(&self, error: Error) -> Error {
        if !is_plain(&error) {
            return error;
        }
        let host = authority(&self.base);
        error.remedy(format!("if it speaks plain HTTP, allow that by `--plain-http {host}`"))
    }
}

/// The response, if it is a success; otherwise its error, with the server's message.
pub(super) async fn accepted(response: Response) -> Result<Response> {
    if response.status().is_success() {
        return Ok(response);
    }
    let error = http::refusal(&response);
    let message = super::server_message(response).await;
    Err(if message.is_empty() { error } else { error.caused_by(message.trim_start()) })
}
