//! The parts that all stores over HTTP share: a client, one request, answers checked, errors that keep secrets.
//!
//! They are at the bottom of the stack: nothing here tries again or waits for a turn. Redirects of signed URLs and
//! errors of the HTTP library have credentials in their query: every URL that gets into a message goes through
//! [`redact`].

use crate::guard::{self, Guard, Resolver};
use crate::lazy_roots::{certificates, client_config};
use crate::link::Answer;
use crate::link::pace::Pace;
pub(crate) use crate::redact::redact;
use crate::settings::StoreSettings;
use crate::tls_fault::TlsFault;
use bytes::{Bytes, BytesMut};
use chrono::DateTime;
use futures::stream::{Stream, StreamExt};
use headstart_block::small_file::{PEM_MAX, read_small};
use headstart_block::{ByteRange, Error, ErrorKind, Result};
use parking_lot::Mutex;
use reqwest::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, DATE, HeaderMap,
    HeaderValue, RANGE, RETRY_AFTER,
};
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use std::error::Error as StdError;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::timeout;
use url::Url;

/// The time for which an unused connection is kept: most servers close theirs after a minute.
const KEEP_IDLE: Duration = Duration::from_secs(50);

/// Most hops of one request.
const MOST_REDIRECTS: usize = 5;

/// The remedy if a server that was asked without TLS may have it.
const WITHOUT_TLS: &str =
    "it was asked without TLS: if it has TLS, leave out `--plain-http`, or write https://";

/// The remedy if nothing is at the port of servers without TLS, where the address has no port.
const NOT_AT_PORT_80: &str = "check the address, and that the server runs; it was asked without TLS on port 80: if it \
                              has TLS, leave out `--plain-http`, or write https://";

/// The way in which an HTTP client handles redirects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirects {
    /// The client follows redirects itself, up to 5 for each request.
    Follow,
    /// The client returns the redirect as the answer, and the caller follows it.
    Report,
}

/// A client that is made when it is used first. Making one reads all certificates that the host trusts, which takes
/// longer than opening an image that is whole in the cache and needs no request.
pub(crate) struct LazyClient {
    settings: Mutex<Option<reqwest::ClientBuilder>>,
    made: OnceLock<std::result::Result<Client, String>>,
}

impl LazyClient {
    /// The client.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if it cannot be made, such as for certificates that the library refuses.
    pub(crate) fn get(&self) -> Result<&Client> {
        let make = || match self.settings.lock().take() {
            Some(builder) => builder.build().map_err(cause),
            None => Err("an earlier attempt has failed".to_owned()),
        };
        let failed = |why: &String| Error::invalid("cannot make an HTTP client").caused_by(why.clone());
        self.made.get_or_init(make).as_ref().map_err(failed)
    }
}

/// A client with its own pool of connections, which connects where `guard` allows, if there is one.
///
/// HTTP/1.1 only: with HTTP/2 all reads would share one connection, demand behind background.
///
/// # Errors
/// An error if a file of certificates or the proxy in the settings is not usable.
pub(crate) fn client(
    settings: &StoreSettings,
    redirects: Redirects,
    guard: Option<&Arc<Guard>>,
) -> Result<LazyClient> {
    let policy = match redirects {
        Redirects::Follow => followed(settings.clone(), guard.cloned()),
        Redirects::Report => reqwest::redirect::Policy::none(),
    };
    let mut builder = Client::builder()
        .user_agent(concat!("headstart/", env!("CARGO_PKG_VERSION")))
        .http1_only()
        .connect_timeout(settings.connect_timeout)
        .pool_idle_timeout(KEEP_IDLE)
        .tcp_nodelay(true)
        .referer(false)
        .redirect(policy)
        // The bytes as they are, of all documents: they are checked against digests.
        .default_headers(HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static("identity"))]));
    let mut authorities = Vec::new();
    for (path, pem) in ca_files(settings)? {
        authorities.extend(certificates(&pem).ok_or_else(|| no_certificates(&path))?);
    }
    builder = builder.tls_backend_preconfigured(client_config(authorities)?);
    if let Some(proxy) = proxy(settings)? {
        builder = builder.proxy(proxy);
    }
    if let Some(guard) = guard {
        builder = builder.dns_resolver(Arc::new(Resolver(Arc::clone(guard))));
    }
    Ok(LazyClient { settings: Mutex::new(Some(builder)), made: OnceLock::new() })
}

/// The proxy of the settings. The error does not repeat it: it may have a password.
pub(crate) fn proxy(settings: &StoreSettings) -> Result<Option<reqwest::Proxy>> {
    let proxy = settings.proxy.as_ref().map(|proxy| reqwest::Proxy::all(proxy.reveal())).transpose();
    proxy.map_err(|e| Error::invalid("the proxy is not a URL").caused_by(cause(e)))
}

/// A policy that follows a few redirects, but none from TLS to a host without, unless the settings allow that one,
/// and none that `guard` refuses.
fn followed(settings: StoreSettings, guard: Option<Arc<Guard>>) -> reqwest::redirect::Policy {
    reqwest::redirect::Policy::custom(move |attempt| {
        let downgraded =
            attempt.previous().last().is_some_and(|from| settings.is_downgrade(from, attempt.url()));
        if downgraded {
            let cause = format!("redirects to {}, which has no TLS", redact(attempt.url()));
            attempt.error(cause)
        } else if attempt.previous().len() > MOST_REDIRECTS {
            attempt.error("redirects without end")
        } else {
            match guard.as_ref().map_or(Ok(()), |guard| guard.check(attempt.url())) {
                Ok(()) => attempt.follow(),
                Err(why) => attempt.error(why),
            }
        }
    })
}

/// The certificate files of the settings, read.
pub(crate) fn ca_files(settings: &StoreSettings) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let read = |path: &PathBuf| Ok((path.clone(), read_small(path, PEM_MAX)?));
    settings.ca_files.iter().map(read).collect()
}

/// The error of a file of certificates that has none.
pub(crate) fn no_certificates(path: &Path) -> Error {
    Error::invalid("holds no certificates").about(path.display()).remedy("give a file in PEM form")
}

/// The text of an error of the HTTP library, with all of its causes and without its URL.
pub(crate) fn cause(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut inner = error.source();
    while let Some(cause) = inner {
        let cause_text = cause.to_string();
        // Many of them repeat the cause in their own text.
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        inner = cause.source();
    }
    text
}

/// The error of a connection that failed, or broke.
pub(crate) fn broken(error: reqwest::Error, url: &Url) -> Error {
    let (is_connect, is_redirect) = (error.is_connect(), error.is_redirect());
    if let Some(fault) = is_connect.then(|| TlsFault::find(&error)).flatten() {
        return fault.into_error().about(redact(url));
    }
    let cause = cause(error);
    if cause.contains(guard::REFUSED) {
        return guard::refused(cause, redact(url));
    }
    let remedy = match is_connect {
        true if cause.contains("refused") || cause.contains("dns error") => {
            Some(if url.scheme() == "http" && url.port().is_none() && cause.contains("refused") {
                NOT_AT_PORT_80
            } else {
                "check the address, and that the server runs"
            })
        }
        _ => None,
    };
    let error = Error::new(ErrorKind::Unavailable, cause).about(redact(url));
    let error = if is_redirect { error.answered() } else { error };
    match remedy {
        Some(remedy) => error.remedy(remedy),
        None => error,
    }
}

/// Sends one request; any status is an answer. The head must come within `first_byte`.
///
/// # Errors
/// [`ErrorKind::Unavailable`] where there is no answer.
pub(crate) async fn send(request: RequestBuilder, url: &Url, first_byte: Duration) -> Result<Response> {
    match timeout(first_byte, request.send()).await {
        Ok(answer) => answer.map_err(|e| broken(e, url)),
        Err(_) => {
            let cause = format!("did not begin to answer within {} s", first_byte.as_secs_f64());
            Err(Error::new(ErrorKind::Unavailable, cause).about(redact(url)))
        }
    }
}

/// The error that a status stands for; `url` is its source.
pub(crate) fn status_error(status: StatusCode, url: &Url) -> Error {
    let kind = match status.as_u16() {
        401 | 403 | 407 => ErrorKind::Denied,
        404 | 410 => ErrorKind::NotFound,
        405 => ErrorKind::ReadOnly,
        409 | 412 => ErrorKind::Conflict,
        // The blob is shorter than its manifest says.
        416 => ErrorKind::Corrupt,
        507 => ErrorKind::NoSpace,
        // The last are redirects that lead nowhere and successes that should be failures.
        408 | 425 | 429 | 500.. | ..=399 => ErrorKind::Unavailable,
        _ => ErrorKind::Io,
    };
    let error = Error::new(kind, format!("the server answered {status}")).about(redact(url));
    // Behind a 5xx the server itself may be away.
    if status.is_server_error() { error } else { error.answered() }
}

/// The error that an unsuccessful answer stands for, with the time for which the server asks to be left alone.
pub(crate) fn refusal(response: &Response) -> Error {
    refused(response.status(), response.headers(), response.url())
}

/// As [`refusal`], from the parts of the answer.
pub(crate) fn refused(status: StatusCode, headers: &HeaderMap, url: &Url) -> Error {
    let error = status_error(status, url);
    if status == StatusCode::BAD_REQUEST && url.scheme() == "http" && !is_json(headers) {
        // A server with TLS that was asked without says so in a page, and a registry in JSON what it refuses.
        return error.remedy(WITHOUT_TLS);
    }
    match retry_after(headers) {
        Some(pause) if error.kind() == ErrorKind::Unavailable => error.retry_after(pause),
        _ => error,
    }
}

/// `true` if the answer says that it is JSON.
fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    kind.is_some_and(|kind| kind.contains("json"))
}

/// The time for which a server asks to be left alone: a number of seconds, or until a date by its own clock,
/// because this host's may be wrong.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).map(str::trim);
    let wanted = text(RETRY_AFTER)?;
    if let Ok(seconds) = wanted.parse::<u32>() {
        return Some(Duration::from_secs(seconds.into()));
    }
    let left = http_date(wanted)?.checked_sub(text(DATE).and_then(http_date)?)?;
    u64::try_from(left).ok().map(Duration::from_secs)
}

/// Seconds since 1970 of an HTTP date, `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(crate) fn http_date(text: &str) -> Option<i64> {
    DateTime::parse_from_rfc2822(text).ok().map(|date| date.timestamp())
}

/// Asks for a range.
pub(crate) fn with_range(request: RequestBuilder, range: ByteRange) -> RequestBuilder {
    // The end of a header's range is its last byte; no caller asks for an empty range.
    request.header(RANGE, format!("bytes={}-{}", range.offset(), range.end().saturating_sub(1)))
}

/// Takes a response as the answer to a request for `range`, if it promises to be that.
///
/// # Errors
/// [`status_error`] of a status that is no success; [`ErrorKind::Unavailable`] where it is another range than asked
/// for, the whole blob, or compressed.
pub(crate) fn ranged_answer(response: Response, range: ByteRange) -> Result<Answer> {
    let url = response.url().clone();
    check_range(response.status(), response.headers(), range, &url)?;
    let thing = redact(&url);
    let body = response.bytes_stream().map(move |part| part.map_err(|e| broken(e, &url)));
    Ok(Answer { thing, body: body.boxed() })
}

/// Refuses a body that is compressed on its way: it has other bytes and another length than those asked for.
fn check_encoding(headers: &HeaderMap) -> Result<()> {
    let mut encodings = headers.get_all(CONTENT_ENCODING).iter();
    let Some(encoding) = encodings.find(|encoding| *encoding != "identity") else { return Ok(()) };
    let cause = format!("the server compressed the answer ({encoding:?}), unasked");
    let error = Error::new(ErrorKind::Unavailable, cause).lasting().answered();
    Err(error.remedy("turn off compression of stored files at the server"))
}

fn check_range(status: StatusCode, headers: &HeaderMap, range: ByteRange, url: &Url) -> Result<()> {
    let wrong = |cause: String| Error::new(ErrorKind::Unavailable, cause).about(redact(url));
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let length = text(CONTENT_LENGTH).and_then(|text| text.parse::<u64>().ok());
    check_encoding(headers).map_err(|e| e.about(redact(url)))?;
    match status {
        StatusCode::PARTIAL_CONTENT => {
            let given = text(CONTENT_RANGE).and_then(parse_content_range);
            if given != Some((range.offset(), range.end() - 1)) {
                let given = text(CONTENT_RANGE).unwrap_or("none").escape_debug();
                return Err(wrong(format!("was asked for the bytes {range}, but sent the range `{given}`")));
            }
        }
        // The whole blob, if it was asked for.
        StatusCode::OK if range.offset() == 0 && length == Some(range.len()) => {}
        StatusCode::OK => {
            return Err(wrong(format!("was asked for the bytes {range}, but sent the whole blob"))
                .lasting()
                .remedy("serve it by a server that honours `Range`"));
        }
        status => return Err(refused(status, headers, url)),
    }
    if let Some(length) = length.filter(|length| *length != range.len()) {
        return Err(wrong(format!("was asked for {} bytes, but sends {length}", range.len())));
    }
    Ok(())
}

/// First and last byte of a `Content-Range` header.
fn parse_content_range(text: &str) -> Option<(u64, u64)> {
    let (range, _total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.trim().split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

/// The body of a small document of at most `most` bytes, whatever length the server claims.
///
/// # Errors
/// [`ErrorKind::Unsupported`] where it is larger, [`ErrorKind::Unavailable`] where it breaks off, stalls, is too slow
/// or is compressed.
pub(crate) async fn small_body(response: Response, most: u64, stall: Duration) -> Result<Bytes> {
    let url = response.url().clone();
    let thing = redact(&url);
    check_encoding(response.headers()).map_err(|e| e.about(&thing))?;
    collect_small(response.bytes_stream().map(|part| part.map_err(|e| broken(e, &url))), most, stall)
        .await
        .map_err(|e| e.about(thing))
}

/// All of a body of at most `most` bytes.
///
/// # Errors
/// As [`small_body`].
pub(crate) async fn collect_small(
    parts: impl Stream<Item = Result<Bytes>> + Send,
    most: u64,
    stall: Duration,
) -> Result<Bytes> {
    let mut pace = Pace::begin(stall);
    let mut parts = std::pin::pin!(parts);
    let mut body = BytesMut::new();
    while let Some(part) = pace.next(&mut parts, body.len() as u64).await? {
        if (body.len() as u64).saturating_add(part.len() as u64) > most {
            let cause = format!("is longer than the {most} bytes that such a document may have");
            return Err(Error::unsupported(cause));
        }
        body.extend_from_slice(&part);
    }
    Ok(body.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn messages_keep_secrets() {
        let url = Url::parse("https://user:secret@host/blob?X-Amz-Signature=secret#secret").unwrap();
        assert_eq!(redact(&url), "https://host/blob");
        assert_eq!(status_error(StatusCode::NOT_FOUND, &url).kind(), ErrorKind::NotFound);
        assert!(!status_error(StatusCode::FORBIDDEN, &url).to_string().contains("secret"));
    }

    #[test]
    fn statuses_say_what_to_do() {
        let url = Url::parse("http://host/").unwrap();
        for (status, kind) in [
            (401, ErrorKind::Denied),
            (403, ErrorKind::Denied),
            (404, ErrorKind::NotFound),
            (408, ErrorKind::Unavailable),
            (412, ErrorKind::Conflict),
            (416, ErrorKind::Corrupt),
            (429, ErrorKind::Unavailable),
            (500, ErrorKind::Unavailable),
            (503, ErrorKind::Unavailable),
            (507, ErrorKind::NoSpace),
            (302, ErrorKind::Unavailable),
            (400, ErrorKind::Io),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let error = status_error(status, &url);
            assert_eq!((error.kind(), error.has_answered()), (kind, status.as_u16() < 500), "{status}");
        }
    }

    #[test]
    fn a_server_with_tls_that_was_asked_without_gets_a_remedy() {
        let answer = |url: &str, kind: Option<&'static str>| {
            let headers = kind.map(|kind| (CONTENT_TYPE, HeaderValue::from_static(kind)));
            let headers = headers.into_iter().collect();
            refused(StatusCode::BAD_REQUEST, &headers, &Url::parse(url).unwrap()).to_string()
        };
        for kind in [None, Some("text/html"), Some("text/plain; charset=utf-8")] {
            assert!(answer("http://host/", kind).contains("--plain-http"), "{kind:?}");
        }
        assert!(!answer("http://host/", Some("application/json; charset=utf-8")).contains("TLS"));
        assert!(!answer("https://host/", None).contains("TLS"));
    }

    #[test]
    fn servers_say_when_to_come_back() {
        let after = |status: u16, headers: &[(&'static str, &'static str)]| {
            let headers = headers.iter().map(|(name, value)| {
                (reqwest::header::HeaderName::from_static(name), HeaderValue::from_static(value))
            });
            let url = Url::parse("http://host/").unwrap();
            let status = StatusCode::from_u16(status).unwrap();
            refused(status, &headers.collect(), &url).asked_pause().map(|pause| pause.as_secs())
        };
        assert_eq!(after(429, &[("retry-after", "7")]), Some(7));
        assert_eq!(after(503, &[("retry-after", " 0 ")]), Some(0));
        let date = ("date", "Fri, 24 May 2013 23:59:30 GMT");
        assert_eq!(after(503, &[date, ("retry-after", "Sat, 25 May 2013 00:00:10 GMT")]), Some(40));
        // Without its clock, a date says nothing; nor does one that is over, nor any other text.
        assert_eq!(after(503, &[("retry-after", "Sat, 25 May 2013 00:00:10 GMT")]), None);
        assert_eq!(after(503, &[date, ("retry-after", "Fri, 24 May 2013 00:00:10 GMT")]), None);
        for text in ["-1", "soon", "", "99999999999999999999"] {
            assert_eq!(after(503, &[date, ("retry-after", text)]), None, "{text}");
        }
        assert_eq!(after(503, &[]), None);
        assert_eq!(after(403, &[("retry-after", "7")]), None, "coming back would not help");
    }

    #[test]
    fn content_ranges_are_parsed_strictly() {
        assert_eq!(parse_content_range("bytes 0-99/1000"), Some((0, 99)));
        assert_eq!(parse_content_range("bytes 5-9/*"), Some((5, 9)));
        for text in ["", "bytes */1000", "bytes 5-/9", "bytes -5-9/10", "items 0-9/10", "bytes 0-9"] {
            assert_eq!(parse_content_range(text), None, "{text}");
        }
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        fs::write(&path, "no certificate").unwrap();
        let with =
            |settings: StoreSettings| client(&settings, Redirects::Follow, None).map(drop).unwrap_err();
        let error = with(StoreSettings { ca_files: vec![path.clone()], ..StoreSettings::default() });
        assert!(error.to_string().contains("ca.pem"), "{error}");
        fs::remove_file(&path).unwrap();
        let error = with(StoreSettings { ca_files: vec![path], ..StoreSettings::default() });
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let error =
            with(StoreSettings { proxy: Some("http://user:secret@[".into()), ..StoreSettings::default() });
        assert!(error.to_string().contains("proxy") && !error.to_string().contains("secret"), "{error}");
    }
}
