//! The client of a daemon on this host. The client sends HTTP requests over the daemon's Unix socket.

use headstart_block::{Error, ErrorKind, Result};
use reqwest::{Client, Response, StatusCode};
use serde_json::Value;
use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};

pub use reqwest::Method;

/// The start of the URLs of requests. The name is of no importance.
const HOST: &str = "http://daemon";

/// The texts of the error that a [`LocalClient`] returns if its daemon is away, that is, cannot be reached at its
/// socket.
#[derive(Clone, Copy, Debug)]
pub struct Away {
    /// The cause of the error, such as that no daemon runs.
    pub cause: &'static str,
    /// The remedy if nothing answers at the socket.
    pub remedy: &'static str,
    /// The remedy if this user may not use the socket.
    pub remedy_for_user: &'static str,
}

/// A client of the daemon that serves HTTP at a Unix socket of this host. Each request makes a connection of its own,
/// so the daemon may start, end and start again in between.
#[derive(Clone, Debug)]
pub struct LocalClient {
    client: Client,
    socket: PathBuf,
    away: Away,
}

/// The body of an answer, which is received part by part.
#[derive(Debug)]
pub struct AnswerStream(Response);

impl LocalClient {
    /// Makes a client of the daemon at `socket`; `away` has the texts of the error if the daemon cannot be reached.
    /// Connects to nothing yet.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the HTTP client cannot be set up.
    pub fn new(socket: PathBuf, away: Away) -> Result<Self> {
        // No connection is kept: the next request may be of another runtime.
        let client = Client::builder().unix_socket(socket.as_path()).no_proxy().pool_max_idle_per_host(0);
        // A socket of this host has no TLS. Reading the host's certificates takes 50 ms, and there may be none.
        let client = client.tls_certs_only([]);
        let client = client.build().map_err(|e| Error::invalid("cannot make a client").caused_by(e))?;
        Ok(Self { client, socket, away })
    }

    /// Returns the path of the daemon's socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sends a request and returns the body of the answer, parsed as JSON; [`Value::Null`] if the body is not JSON.
    /// `path` begins with `/` and may have a query. `body` must be a JSON text, and is sent as it is; with `None` the
    /// request has no body.
    ///
    /// # Errors
    /// An error with the daemon's text if it refuses the request, of the kind that the answer names. An answer of an
    /// earlier version names none: then of the kind that the status stands for ([`ErrorKind::Invalid`] for a status
    /// other than 404, 409, 503 and 507; [`ErrorKind::NoDevice`] for 422 if the text is about nbd).
    /// [`ErrorKind::Unavailable`] if the daemon cannot be reached, or the connection breaks before the whole answer has
    /// come; [`ErrorKind::Denied`] if this user may not use the socket. There is no time limit.
    pub async fn ask(&self, method: Method, path: &str, body: Option<String>) -> Result<Value> {
        let mut request = self.client.request(method, format!("{HOST}{path}"));
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        let answer = request.send().await.map_err(|e| self.not_there(&e))?;
        let status = answer.status();
        let text = answer.text().await.map_err(|e| self.not_there(&e))?;
        let value: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        if status.is_success() {
            return Ok(value);
        }
        Err(refusal(status, &value, text))
    }

    /// Sends a GET request and returns the body of the answer as a stream, once the answer has begun.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the daemon cannot be reached or refuses the request; [`ErrorKind::Denied`] if this
    /// user may not use the socket.
    pub async fn stream(&self, path: &str) -> Result<AnswerStream> {
        let request = self.client.get(format!("{HOST}{path}"));
        let answer = request.send().await.and_then(Response::error_for_status);
        answer.map(AnswerStream).map_err(|e| self.not_there(&e))
    }

    fn not_there(&self, e: &reqwest::Error) -> Error {
        let Away { cause, remedy, remedy_for_user } = self.away;
        // The innermost error has the cause: the socket belongs to another user, or is not there.
        let (mut why, mut is_denied): (&dyn StdError, _) = (e, false);
        while let Some(source) = why.source() {
            why = source;
            let error = source.downcast_ref::<io::Error>();
            is_denied |= error.is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
        }
        let why = why.to_string();
        if is_denied {
            let denied = Error::new(ErrorKind::Denied, "this user may not use the socket").caused_by(why);
            return denied.about(self.socket.display()).remedy(remedy_for_user);
        }
        Error::new(ErrorKind::Unavailable, cause).caused_by(why).about(self.socket.display()).remedy(remedy)
    }
}

/// The error of an answer that refuses a request: `value` is its JSON, and `text` its body.
fn refusal(status: StatusCode, value: &Value, text: String) -> Error {
    let word = |field: &str| value.get(field).and_then(Value::as_str);
    let text = word("error").map_or(text, str::to_owned);
    // The only words of an earlier version that lead to another way.
    let is_of_nbd = value.get("kind").is_none() && text.contains("nbd");
    let kind = word("kind").and_then(ErrorKind::of_word).unwrap_or(match status {
        StatusCode::NOT_FOUND => ErrorKind::NotFound,
        StatusCode::CONFLICT => ErrorKind::Conflict,
        StatusCode::SERVICE_UNAVAILABLE => ErrorKind::Unavailable,
        StatusCode::INSUFFICIENT_STORAGE => ErrorKind::NoSpace,
        StatusCode::UNPROCESSABLE_ENTITY if is_of_nbd => ErrorKind::NoDevice,
        _ => ErrorKind::Invalid,
    });
    Error::new(kind, text)
}

impl AnswerStream {
    /// Waits for the next bytes of the body, of any number, and returns them. `None` at the end of the body, or if the
    /// connection failed: the two cannot be told apart.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        self.0.chunk().await.ok().flatten().map(Vec::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::answers::{Failure, Refusal};
    use axum::response::IntoResponse;

    fn read(status: u16, body: &str) -> (ErrorKind, String) {
        let value = serde_json::from_str(body).unwrap_or(Value::Null);
        let error = refusal(StatusCode::from_u16(status).unwrap(), &value, body.to_owned());
        (error.kind(), error.to_string())
    }

    #[test]
    fn the_kind_of_an_error_comes_with_its_words_and_from_the_status_where_an_earlier_version_has_none() {
        let text = |text: &str| text.to_owned();
        let named = r#"{"error": "no nbd here", "kind": "no-device"}"#;
        assert_eq!(read(422, named), (ErrorKind::NoDevice, text("no nbd here")));
        // Of an earlier version, of a later one, and of no daemon of ours.
        assert_eq!(read(409, r#"{"error": "it is there"}"#), (ErrorKind::Conflict, text("it is there")));
        let nbd = r#"{"error": "disk tree-1: the kernel's nbd module is not loaded"}"#;
        assert_eq!(read(422, nbd).0, ErrorKind::NoDevice);
        let later = r#"{"error": "disk tree-1: nbd", "kind": "new"}"#;
        assert_eq!(read(422, later).0, ErrorKind::Invalid);
        assert_eq!(read(422, r#"{"error": "a blob is damaged"}"#).0, ErrorKind::Invalid);
        assert_eq!(read(503, r#"{"error": "e", "kind": "new"}"#), (ErrorKind::Unavailable, text("e")));
        assert_eq!(read(500, "oh"), (ErrorKind::Invalid, text("oh")));
    }

    #[test]
    fn every_error_of_a_daemon_is_read_as_it_was() {
        for kind in [ErrorKind::Denied, ErrorKind::NoDevice, ErrorKind::Conflict, ErrorKind::Corrupt] {
            let status = Refusal(Error::new(kind, "x")).into_response().status().as_u16();
            let failure = Failure { error: "x".to_owned(), kind: Some(kind.word()) };
            assert_eq!(read(status, &serde_json::to_string(&failure).unwrap()).0, kind);
        }
    }
}
