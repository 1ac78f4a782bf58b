//! Authentication: the proof that a request to a registry shows, and the reaction to a refusal.
//!
//! The first request to a registry shows nothing. Its refusal carries a challenge, which is remembered: from
//! then on requests show a password (`Basic`) or a token of the server that the challenge names (`Bearer`).
//! Tokens are kept per access; [`super::token`] decides when they are renewed, [`super::flight`] makes one
//! request renew them for all.
//!
//! A refusal is 401 or 403: there are registries that answer a token that has run out with either. A request
//! that is refused is tried again with a proof that it did not show before: a token after none, a new token after
//! an old one, a password that was changed meanwhile, another credential ([`super::attempt`]). If all are refused, it
//! is [`ErrorKind::Denied`].

use super::Clock;
use super::attempt::Attempt;
use super::challenge::{Bearer, Challenge};
use super::credential::{Credential, Secret};
use super::credentials::Credentials;
use super::domain::{host_of, is_same_domain};
use super::flight::{Flight, Lead, Turn};
use super::token::{Decision, LIFE_UNTOLD, Token, TokenSlot};
use crate::guard::{self, Guard};
use crate::http::{self, LazyClient};
use crate::settings::{StoreSettings, authority};
use headstart_block::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{RequestBuilder, Response, StatusCode};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use url::{Url, form_urlencoded};

/// Longest answer of a token server, in bytes: tokens of some clouds have several KB.
const TOKEN_ANSWER_MAX: u64 = 1 << 20;

/// The time that a renewal may take, with all credentials that are tried: all requests wait for it.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(45);

/// The name of this client for token servers.
const CLIENT_ID: &str = "headstart";

/// The access that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Pull,
    Push,
}

/// The proof that a request shows.
#[derive(Clone, Debug)]
pub(super) struct Proof {
    shown: Shown,
    header: Option<HeaderValue>,
}

#[derive(Clone, Debug)]
enum Shown {
    Nothing,
    Password(Credential),
    Token(Token),
}

impl Proof {
    /// `true` if it is the empty proof of a client that knows nothing of the registry yet.
    pub(super) fn shows_nothing(&self) -> bool {
        matches!(self.shown, Shown::Nothing)
    }

    /// Adds the proof to a request to the registry itself.
    pub(super) fn show(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.header {
            Some(header) => request.header(AUTHORIZATION, header.clone()),
            None => request,
        }
    }
}

/// The refusal of a registry.
pub(super) enum Refusal {
    /// A client whose credentials it has not asked for so far.
    Unknown,
    /// A credential, with the error that this is if no other helps.
    One(Error, Credential),
    /// The last one.
    Last(Error, Credential),
}

/// The authentication scheme of the registry, as far as it is known.
#[derive(Clone, Debug)]
enum Scheme {
    Unknown,
    Basic,
    Bearer(Bearer),
}

#[derive(Default)]
struct Slot {
    tokens: Mutex<TokenSlot>,
    flight: Flight,
}

/// The way into one repository of one registry.
pub(super) struct Auth {
    host: String,
    repository: String,
    /// `true` if requests to the registry itself go without TLS.
    plain: bool,
    client: Arc<LazyClient>,
    guard: Arc<Guard>,
    settings: Arc<StoreSettings>,
    clock: Clock,
    credentials: Credentials,
    scheme: Mutex<Scheme>,
    pull: Slot,
    push: Slot,
    /// Other repositories that a token to write here is to open for reading, because blobs are taken over from there.
    also_pull: Mutex<BTreeSet<String>>,
}

impl Auth {
    pub(super) fn new(
        host: &str,
        repository: &str,
        client: Arc<LazyClient>,
        guard: Arc<Guard>,
        settings: Arc<StoreSettings>,
        clock: Clock,
    ) -> Self {
        Self {
            host: host.to_owned(),
            repository: repository.to_owned(),
            plain: settings.is_plain_http(host),
            client,
            guard,
            credentials: Credentials::of_repository(host, repository, &settings),
            settings,
            clock,
            scheme: Mutex::new(Scheme::Unknown),
            pull: Slot::default(),
            push: Slot::default(),
            also_pull: Mutex::default(),
        }
    }

    /// Has the tokens to write here open another repository of the registry for reading from now on.
    pub(super) fn also_pull(&self, repository: &str) {
        if self.also_pull.lock().insert(repository.to_owned()) {
            self.push.tokens.lock().forget();
        }
    }

    /// Takes that back.
    pub(super) fn no_longer_pull(&self, repository: &str) {
        if self.also_pull.lock().remove(repository) {
            self.push.tokens.lock().forget();
        }
    }

    fn slot(&self, access: Access) -> &Slot {
        match access {
            Access::Pull => &self.pull,
            Access::Push => &self.push,
        }
    }

    /// `true` if credentials that a pull has offered may have been shown, or may be there unshown: a refusal may be
    /// theirs alone.
    pub(super) async fn has_offers(&self) -> bool {
        self.credentials.has_offers().await
    }

    /// The proof that a request shows now, to which those of `attempt` were refused.
    pub(super) async fn proof(self: &Arc<Self>, access: Access, attempt: &Attempt) -> Result<Proof> {
        let scheme = self.scheme.lock().clone();
        match scheme {
            Scheme::Unknown => Ok(Proof { shown: Shown::Nothing, header: None }),
            Scheme::Basic => {
                let credential = self.credentials.choose(attempt, true).await?;
                let credential = credential.unwrap_or(Credential::Nothing(None));
                let Credential::Password(user, password) = &credential else {
                    return Err(self.denied(&credential, "asks for a password"));
                };
                let header = basic(user, password)?;
                Ok(Proof { shown: Shown::Password(credential), header: Some(header) })
            }
            Scheme::Bearer(bearer) => {
                let token = self.token(&bearer, access, attempt).await?;
                let header = secret_header(format!("Bearer {}", token.secret.reveal()))?;
                Ok(Proof { shown: Shown::Token(token), header: Some(header) })
            }
        }
    }

    /// Notes that the registry has taken a proof.
    pub(super) async fn taken(self: &Arc<Self>, proof: &Proof, access: Access) {
        match &proof.shown {
            Shown::Nothing => {}
            Shown::Password(credential) => self.credentials.take(credential).await,
            Shown::Token(token) => {
                let comes = self.slot(access).tokens.lock().take(token);
                let scheme = self.scheme.lock().clone();
                if comes && let Scheme::Bearer(bearer) = scheme {
                    self.credentials.take(&token.credential).await;
                    self.look_after(&bearer, access, token.generation);
                }
            }
        }
    }

    /// Handles an answer of 401 or 403 to a request that showed `proof`, and notes it in `attempt`.
    ///
    /// # Errors
    /// Errors of looking for another credential.
    pub(super) async fn refused(
        &self,
        proof: &Proof,
        access: Access,
        response: Response,
        attempt: &mut Attempt,
    ) -> Result<Refusal> {
        let asked = challenge(response.headers());
        let status = response.status();
        let message = super::server_message(response).await;
        let changed = match &asked {
            Some(Challenge::Basic) => !matches!(self.take_up(Scheme::Basic), Scheme::Basic),
            Some(Challenge::Bearer(bearer)) => {
                !matches!(self.take_up(Scheme::Bearer(bearer.clone())), Scheme::Bearer(_))
            }
            None => false,
        };
        let denied =
            |credential: &Credential| self.denied(credential, &format!("answered {status}{message}"));
        let credential = match &proof.shown {
            Shown::Nothing if asked.is_some() => return Ok(Refusal::Unknown),
            _ if changed && attempt.takes_new_scheme() => return Ok(Refusal::Unknown),
            Shown::Nothing => {
                let nothing = Credential::Nothing(None);
                return Ok(Refusal::Last(denied(&nothing), nothing));
            }
            Shown::Password(credential) => {
                attempt.refuse(credential);
                credential
            }
            Shown::Token(token) => {
                // 403 may be about this request alone, and the token good for all others.
                if status == StatusCode::UNAUTHORIZED {
                    self.slot(access).tokens.lock().reject(token.generation);
                }
                attempt.refuse_token_of(&token.credential, token.generation);
                &token.credential
            }
        };
        let by_password = matches!(*self.scheme.lock(), Scheme::Basic);
        let next = self.credentials.choose(attempt, by_password).await?;
        let refusal = if next.is_some() { Refusal::One } else { Refusal::Last };
        Ok(refusal(denied(credential), credential.clone()))
    }

    /// Takes a challenge from the answer to a request that showed nothing. Returns `true` if there was one.
    pub(super) fn learn(&self, headers: &HeaderMap) -> bool {
        match challenge(headers) {
            Some(Challenge::Basic) => self.take_up(Scheme::Basic),
            Some(Challenge::Bearer(bearer)) => self.take_up(Scheme::Bearer(bearer)),
            None => return false,
        };
        true
    }

    /// `true` if the registry asks for a token, and none has come so far.
    pub(super) fn lacks_token(&self) -> bool {
        let asks = matches!(*self.scheme.lock(), Scheme::Bearer(_));
        asks && !self.pull.tokens.lock().has_had_any()
    }

    /// Sets the scheme, and returns the one before.
    fn take_up(&self, scheme: Scheme) -> Scheme {
        std::mem::replace(&mut *self.scheme.lock(), scheme)
    }

    /// A good token: the kept one, or a new one that this request or another one fetches.
    async fn token(self: &Arc<Self>, bearer: &Bearer, access: Access, attempt: &Attempt) -> Result<Token> {
        let slot = self.slot(access);
        let decide = || {
            let decision = slot.tokens.lock().decide(self.clock.now());
            match &decision {
                Decision::Use(token) | Decision::RenewSoon(token)
                    if attempt.has_refused_token(&token.credential, token.generation) =>
                {
                    Decision::Renew
                }
                _ => decision,
            }
        };
        let mut has_followed_refusal = false;
        // Twice is for a token that was refused right after it came, and once more for another request's refusal; more
        // is a server that gives no good ones.
        for _ in 0..5 {
            match decide() {
                Decision::Use(token) => return Ok(token),
                Decision::RenewSoon(token) => {
                    self.renew_ahead(bearer, access);
                    return Ok(token);
                }
                Decision::Renew if attempt.has_refusals() => {
                    return self.beside(bearer, access, attempt).await;
                }
                Decision::Renew => match slot.flight.join().await {
                    Turn::Followed(Ok(())) => {}
                    // There may be other credentials since the other request has begun.
                    Turn::Followed(Err(failure)) if failure.is_refusal() && !has_followed_refusal => {
                        has_followed_refusal = true;
                    }
                    Turn::Followed(Err(failure)) => return Err(failure.error()),
                    // Another request may have finished just before.
                    Turn::Lead(lead) if decide() == Decision::Renew => {
                        let renewal = self.begin_renewal(bearer, access, lead).await;
                        // The token counts as used from now on.
                        let _ = decide();
                        return renewal
                            .map_err(|e| Error::new(ErrorKind::Cancelled, "stopped").caused_by(e))?;
                    }
                    Turn::Lead(_) => {}
                },
            }
        }
        let cause = "its tokens run out as soon as they come";
        Err(Error::new(ErrorKind::Unavailable, cause).answered().about(&self.host))
    }

    /// A token for one request alone, to which others were refused.
    async fn beside(&self, bearer: &Bearer, access: Access, attempt: &Attempt) -> Result<Token> {
        let asked = self.clock.now();
        let (secret, life, credential) =
            self.fetch_in_time(bearer, access, attempt.clone()).await.map_err(ungranted)?;
        Ok(self.slot(access).tokens.lock().number((secret, credential), asked, life))
    }

    /// Renews in a task of its own: the first read that needs the token may be given up before it comes, and so may
    /// the one that would take over.
    fn begin_renewal(
        self: &Arc<Self>,
        bearer: &Bearer,
        access: Access,
        lead: Lead,
    ) -> JoinHandle<Result<Token>> {
        let (auth, bearer) = (Arc::clone(self), bearer.clone());
        tokio::spawn(async move { auth.renew(&bearer, access, lead).await })
    }

    /// Renews in the background, unless another request does so already.
    fn renew_ahead(self: &Arc<Self>, bearer: &Bearer, access: Access) {
        let Some(lead) = self.slot(access).flight.try_lead() else { return };
        let renewal = self.begin_renewal(bearer, access, lead);
        tokio::spawn(async move {
            if let Ok(Err(error)) = renewal.await {
                tracing::warn!(%error, "renewing a token ahead of its end failed");
            }
        });
    }

    /// Schedules the renewal of a new token for the time at which it nears its end, if it was used by then. Keeps
    /// nothing alive.
    fn look_after(self: &Arc<Self>, bearer: &Bearer, access: Access, generation: u64) {
        let Some(due_at) = self.slot(access).tokens.lock().due_at() else { return };
        let (auth, bearer) = (Arc::downgrade(self), bearer.clone());
        let pause = due_at.saturating_sub(self.clock.now());
        tokio::spawn(async move {
            sleep(pause).await;
            let Some(auth) = auth.upgrade() else { return };
            let is_due = auth.slot(access).tokens.lock().is_due(generation, auth.clock.now());
            if is_due {
                auth.renew_ahead(&bearer, access);
            }
        });
    }

    async fn renew(self: &Arc<Self>, bearer: &Bearer, access: Access, lead: Lead) -> Result<Token> {
        let asked = self.clock.now();
        let fetched = self.fetch_in_time(bearer, access, Attempt::default()).await;
        let token = match fetched {
            Ok((secret, life, credential)) => {
                self.credentials.take(&credential).await;
                let token = self.slot(access).tokens.lock().accept((secret, credential), asked, life);
                self.look_after(bearer, access, token.generation);
                Ok(token)
            }
            Err(error) => {
                self.slot(access).tokens.lock().fail(self.clock.now());
                Err(ungranted(error))
            }
        };
        lead.publish(token.as_ref().map(|_| ()));
        token
    }

    async fn fetch_in_time(
        &self,
        bearer: &Bearer,
        access: Access,
        attempt: Attempt,
    ) -> Result<(Secret, Duration, Credential)> {
        timeout(RENEWAL_TIMEOUT, self.fetch(bearer, access, attempt)).await.unwrap_or_else(|_| {
            let cause = format!("gave no token within {} s", RENEWAL_TIMEOUT.as_secs());
            Err(Error::new(ErrorKind::Unavailable, cause).about(http::redact(&bearer.realm)))
        })
    }

    /// Asks the token server with one credential after the other, but for those that `attempt` has refused. Returns the
    /// one that has bought the token, too.
    async fn fetch(
        &self,
        bearer: &Bearer,
        access: Access,
        mut attempt: Attempt,
    ) -> Result<(Secret, Duration, Credential)> {
        let url = &bearer.realm;
        // The first one: the others are tried in case that it is wrong.
        let mut refusal = None::<(Credential, String)>;
        loop {
            let Some(credential) = self.credentials.choose(&attempt, false).await? else {
                let nobody = || (Credential::Nothing(None), "refuses all credentials".to_owned());
                let (credential, what) = refusal.unwrap_or_else(nobody);
                return Err(self.denied(&credential, &what));
            };
            if !matches!(credential, Credential::Nothing(_)) {
                self.trust(url).await?;
            }
            if !self.is_own_host(url) {
                self.guard.check(url).map_err(|why| guard::refused(why, &self.host))?;
            }
            let request = self.token_request(bearer, access, &credential)?;
            let response = http::send(request, url, self.settings.first_byte_timeout).await?;
            match response.status() {
                StatusCode::OK => {
                    let (secret, life) = self.token_answer(response).await?;
                    let credential = match (credential, refusal) {
                        (Credential::Nothing(None), Some((first, what))) => {
                            Credential::Nothing(Some(format!("{what}; asked as {}", self.shown_as(&first))))
                        }
                        (credential, _) => credential,
                    };
                    return Ok((secret, life, credential));
                }
                status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST) => {
                    let message = super::server_message(response).await;
                    let shown = http::redact(url);
                    let what = format!("has its token server {shown}, which answered {status}{message}");
                    attempt.refuse(&credential);
                    refusal.get_or_insert((credential, what));
                }
                _ => return Err(http::refusal(&response)),
            }
        }
    }

    fn token_request(
        &self,
        bearer: &Bearer,
        access: Access,
        credential: &Credential,
    ) -> Result<RequestBuilder> {
        let scopes = self.scopes(bearer, access);
        let service = bearer.service.as_deref().map(|service| ("service", service));
        if let Credential::Identity(token) = credential {
            // Only OAuth's way takes them.
            let mut form = form_urlencoded::Serializer::new(String::new());
            form.extend_pairs([("grant_type", "refresh_token"), ("client_id", CLIENT_ID)]);
            form.extend_pairs(service).append_pair("scope", &scopes.join(" "));
            form.append_pair("refresh_token", token.reveal());
            let request = self.client.get()?.post(bearer.realm.clone());
            return Ok(request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(form.finish()));
        }
        let mut url = bearer.realm.clone();
        url.query_pairs_mut().extend_pairs(service).extend_pairs(scopes.iter().map(|scope| ("scope", scope)));
        if let Credential::Password(user, password) = credential {
            url.query_pairs_mut().append_pair("account", user);
            return Ok(self.client.get()?.get(url).header(AUTHORIZATION, basic(user, password)?));
        }
        Ok(self.client.get()?.get(url))
    }

    /// The scopes that the token has to cover: the one that we need, and that of the registry's challenge if it
    /// differs.
    fn scopes(&self, bearer: &Bearer, access: Access) -> Vec<String> {
        let actions = match access {
            Access::Pull => "pull",
            Access::Push => "pull,push",
        };
        let ours = format!("repository:{}:{actions}", self.repository);
        let within_ours = |scope: &str| scope.starts_with(&format!("repository:{}:", self.repository));
        let theirs = bearer.scope.iter().filter(|scope| !within_ours(scope)).cloned();
        let others: Vec<_> = match access {
            Access::Pull => Vec::new(),
            Access::Push => self.also_pull.lock().iter().map(|it| format!("repository:{it}:pull")).collect(),
        };
        let theirs = theirs.filter(|scope| !others.contains(scope));
        [ours].into_iter().chain(theirs).chain(others.clone()).collect()
    }

    /// Checks that credentials may go to a token server: over TLS, or where plain HTTP was allowed; and in the
    /// registry's own domain, or to a server that the user named.
    ///
    /// A registry could ask for a password in each request instead, so it gains none by naming a token server. But
    /// the owner of that other server would get it, and a registry could have this host send requests with a
    /// password to any address.
    pub(super) async fn trust(&self, realm: &Url) -> Result<()> {
        let (host, shown) = (authority(realm), http::redact(realm));
        let denied = |cause: String, remedy: String| {
            Err(Error::new(ErrorKind::Denied, cause).about(&self.host).remedy(remedy))
        };
        if realm.scheme() != "https" && !self.plain && !self.settings.is_plain_http(&host) {
            return denied(
                format!("its token server {shown} has no TLS: credentials are not sent there"),
                format!("allow it by `--plain-http {host}` if the network is yours"),
            );
        }
        let name = realm.host_str().unwrap_or_default();
        let named = &self.settings.allow_token_server;
        let is_named =
            named.iter().any(|named| named.eq_ignore_ascii_case(&host) || named.eq_ignore_ascii_case(name));
        if self.is_own_host(realm) || is_same_domain(host_of(&self.host), name) || is_named {
            return Ok(());
        }
        // A user that has credentials for the token server itself knows it.
        let of_it = Credentials::new(&host, self.settings.docker_config.as_deref());
        let of_it = of_it.choose(&Attempt::default(), false).await?;
        if !matches!(of_it, None | Some(Credential::Nothing(_))) {
            return Ok(());
        }
        denied(
            format!("its token server {shown} is in another domain: credentials are not sent there"),
            format!(
                "if that server is meant, name it by --allow-token-server {host}, or `docker login {host}`"
            ),
        )
    }

    /// `true` if a token server is at the registry's own host, at any port.
    fn is_own_host(&self, realm: &Url) -> bool {
        realm.host_str().is_some_and(|name| name.eq_ignore_ascii_case(host_of(&self.host)))
    }

    async fn token_answer(&self, response: Response) -> Result<(Secret, Duration)> {
        #[derive(Deserialize)]
        struct Answer {
            token: Option<String>,
            access_token: Option<String>,
            expires_in: Option<u64>,
        }
        let url = response.url().clone();
        let body = http::small_body(response, TOKEN_ANSWER_MAX, self.settings.stall_timeout).await?;
        let wrong = |cause: &'static str| {
            Error::new(ErrorKind::Unavailable, cause).answered().about(http::redact(&url))
        };
        let answer: Answer =
            serde_json::from_slice(&body).map_err(|_| wrong("the token server's answer is no JSON"))?;
        let token = answer.token.or(answer.access_token).filter(|token| !token.is_empty());
        let token = token.ok_or_else(|| wrong("the token server's answer has no token"))?;
        let life = answer.expires_in.filter(|life| *life > 0).map_or(LIFE_UNTOLD, Duration::from_secs);
        Ok((Secret::new(&token), life))
    }

    /// The error of refused access: the registry's answer, the user, and the remedy.
    fn denied(&self, credential: &Credential, what: &str) -> Error {
        let (host, who) = (&self.host, self.shown_as(credential));
        Error::new(ErrorKind::Denied, format!("{what}; asked as {who}"))
            .about(format!("{host}/{}", self.repository))
            .remedy(format!("log in as one who may: `docker login {host}`"))
    }

    /// The user of a credential, and its place.
    fn shown_as(&self, credential: &Credential) -> String {
        let place = self.credentials.place_of(credential);
        match credential {
            Credential::Password(user, _) => format!("the user `{}` of {place}", user.escape_debug()),
            Credential::Identity(_) => format!("the identity token of {place}"),
            Credential::Nothing(Some(why)) => format!("nobody: {why}"),
            Credential::Nothing(None) => format!("nobody: {place} has no credentials for it"),
        }
    }
}

fn challenge(headers: &HeaderMap) -> Option<Challenge> {
    Challenge::parse(headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok()))
}

/// The error of a registry that is there, but whose token server did not answer: it has granted no access.
fn ungranted(error: Error) -> Error {
    if error.kind() == ErrorKind::Unavailable { error.answered() } else { error }
}

pub(super) fn basic(user: &str, password: &Secret) -> Result<HeaderValue> {
    use base64::Engine;
    let text = format!("{user}:{}", password.reveal());
    secret_header(format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(text)))
}

/// A header that the HTTP library neither logs nor indexes.
fn secret_header(text: String) -> Result<HeaderValue> {
    let mut header = HeaderValue::try_from(text)
        .map_err(|_| Error::new(ErrorKind::Denied, "the token server's token is not printable"))?;
    header.set_sensitive(true);
    Ok(header)
}
