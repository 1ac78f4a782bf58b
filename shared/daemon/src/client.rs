//! The client of a daemon of this host: HTTP over its socket.

use headstart_block::{Error, ErrorKind, Result};
use reqwest::{Client, Response, StatusCode};
use serde_json::Value;
use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};

pub use reqwest::Method;

/// The start of the URLs of requests. The name is of no importance.
const HOST: &str = "http://daemon";

/// The error if a daemon is not there.
#[derive(Clone, Copy, Debug)]
pub struct Away {
    /// The cause of the error.
    pub cause: &'static str,
    /// The remedy.
    pub remedy: &'static str,
    /// The remedy if the socket is not for this user.
    pub remedy_for_user: &'static str,
}

/// A daemon at a Unix socket. It may not be there.
#[derive(Clone, Debug)]
pub struct LocalClient {
    client: Client,
    socket: PathBuf,
    away: Away,
}

/// An answer that is received as a stream.
#[derive(Debug)]
pub struct AnswerStream(Response);

impl LocalClient {
    /// The daemon at this socket.
    ///
    /// # Errors
    /// If there are no resources for a client.
    pub fn new(socket: PathBuf, away: Away) -> Result<Self> {
        // No connection is kept: the next request may be of another runtime.
        let client = Client::builder().unix_socket(socket.as_path()).no_proxy().pool_max_idle_per_host(0);
        let client = client.build().map_err(|e| Error::invalid("cannot make a client").caused_by(e))?;
        Ok(Self { client, socket, away })
    }

    /// The path of the socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sends a request and returns the answer.
    ///
    /// # Errors
    /// Errors of the daemon; [`ErrorKind::Unavailable`] if it is not there, [`ErrorKind::Denied`] if this user may not
    /// use the socket.
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
        let why = value.get("error").and_then(Value::as_str).map_or(text.clone(), str::to_owned);
        let kind = match status {
            StatusCode::NOT_FOUND => ErrorKind::NotFound,
            StatusCode::CONFLICT => ErrorKind::Conflict,
            StatusCode::SERVICE_UNAVAILABLE => ErrorKind::Unavailable,
            StatusCode::INSUFFICIENT_STORAGE => ErrorKind::NoSpace,
            _ => ErrorKind::Invalid,
        };
        Err(Error::new(kind, why))
    }

    /// Asks for an answer that is received as a stream.
    ///
    /// # Errors
    /// As [`LocalClient::ask`].
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

impl AnswerStream {
    /// The next bytes; `None` at the end, or after an error.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        self.0.chunk().await.ok().flatten().map(Vec::from)
    }
}
