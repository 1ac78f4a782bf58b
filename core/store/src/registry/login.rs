//! The password that a plain web server asks for.
//!
//! No registry is behind it, so there is no token server, no repository and nothing to renew: one header, from the
//! same place as registries' passwords, shown once the server asked for it. Like those, it is shown to that server
//! only (the HTTP library drops it if a redirect leads to another host), and without TLS only where the settings
//! allow that.

use super::attempt::Attempt;
use super::auth::basic;
use super::credential::Credential;
use super::credentials::Credentials;
use crate::http;
use crate::settings::{StoreSettings, authority};
use crate::tls_fault::is_plain;
use headstart_block::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use reqwest::header::{AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{RequestBuilder, Response, StatusCode};
use std::time::Duration;
use url::Url;

/// Most times that one request is sent: without a password, with the one known, with one that was changed meanwhile.
const TRIES_MAX: usize = 3;

/// The way into one web server.
pub(crate) struct Login {
    /// `host` or `host:port`.
    host: String,
    /// `true` if a password may be sent.
    trusted: bool,
    credentials: Credentials,
    shown: Mutex<Option<Shown>>,
}

/// The proof that requests show, once the server has asked.
#[derive(Clone)]
struct Shown {
    credential: Credential,
    header: HeaderValue,
}

impl Login {
    pub(crate) fn new(base: &Url, settings: &StoreSettings) -> Self {
        let host = authority(base);
        Self {
            trusted: base.scheme() == "https" || settings.is_plain_http(&host),
            credentials: Credentials::new(&host, settings.docker_config.as_deref()),
            host,
            shown: Mutex::default(),
        }
    }

    /// Sends the request that `request` makes for `url`; any status but a refusal is an answer.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] with a remedy; otherwise as [`http::send`].
    pub(crate) async fn send(
        &self,
        request: impl Fn() -> RequestBuilder + Send + Sync,
        url: &Url,
        first_byte: Duration,
    ) -> Result<Response> {
        let mut shown = self.shown.lock().clone();
        let mut attempt = Attempt::default();
        for tried in 1.. {
            let request = match &shown {
                Some(shown) => request().header(AUTHORIZATION, shown.header.clone()),
                None => request(),
            };
            let response = http::send(request, url, first_byte).await.map_err(without_tls)?;
            match response.status() {
                StatusCode::UNAUTHORIZED if tried < TRIES_MAX => {
                    let next = self.others(shown, &response, &mut attempt).await?;
                    *self.shown.lock() = Some(next.clone());
                    shown = Some(next);
                }
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                    return Err(self.refused(shown.as_ref(), &response));
                }
                _ => return Ok(response),
            }
        }
        Err(Error::new(ErrorKind::Denied, "the server refuses all passwords").about(http::redact(url)))
    }

    /// The proof to show instead of the refused one, if there is any.
    async fn others(
        &self,
        refused: Option<Shown>,
        response: &Response,
        attempt: &mut Attempt,
    ) -> Result<Shown> {
        let ours = authority(response.url()) == self.host;
        let asks = response.headers().get_all(WWW_AUTHENTICATE).iter();
        let mut asks = asks.filter_map(|value| value.to_str().ok());
        let for_password = asks.any(|text| text.to_ascii_lowercase().contains("basic"));
        if !ours || !for_password {
            return Err(self.refused(refused.as_ref(), response));
        }
        if let Some(shown) = &refused {
            attempt.refuse(&shown.credential);
        }
        let credential = self.credentials.choose(attempt, true).await?;
        let Some(Credential::Password(user, password)) = &credential else {
            let error = self.refused(refused.as_ref(), response);
            return Err(match credential {
                Some(Credential::Nothing(Some(why))) => error.caused_by(why),
                _ => error,
            });
        };
        if !self.trusted {
            let host = &self.host;
            return Err(Error::new(ErrorKind::Denied, "asks for a password and has no TLS: none is sent")
                .about(http::redact(response.url()))
                .remedy(format!("allow it by `--plain-http {host}` if the network is yours, or use https")));
        }
        let header = basic(user, password)?;
        Ok(Shown { credential: Credential::Password(user.clone(), password.clone()), header })
    }

    /// The error of refused access: the user, and the remedy.
    fn refused(&self, shown: Option<&Shown>, response: &Response) -> Error {
        let (host, place, status) = (&self.host, self.credentials.place(), response.status());
        let user = match shown.map(|shown| &shown.credential) {
            Some(Credential::Password(user, _)) => Some(user.escape_debug()),
            _ => None,
        };
        let who = match &user {
            Some(user) => format!("the user `{user}` of {place}"),
            None => "nobody".to_owned(),
        };
        let error = Error::new(ErrorKind::Denied, format!("the server answered {status}; asked as {who}"))
            .about(http::redact(response.url()));
        match (user, status) {
            (Some(_), StatusCode::UNAUTHORIZED) => {
                error.remedy(format!("correct the password of {host} there"))
            }
            (None, StatusCode::UNAUTHORIZED) => error.remedy(format!(
                "give user and password of {host} in {place}: \
                 {{\"auths\": {{\"{host}\": {{\"auth\": \"BASE64 OF USER:PASSWORD\"}}}}}}"
            )),
            _ => error.remedy("check the URL, and that the server lets this user read its files"),
        }
    }
}

/// Adds the remedy if a web server that was named with `https` speaks no TLS.
fn without_tls(error: Error) -> Error {
    if is_plain(&error) { error.remedy("write http:// if the network is yours") } else { error }
}
