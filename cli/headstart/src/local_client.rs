//! The client of a daemon of this host: HTTP over its socket.

use crate::terminal::before_stop;
use headstart_block::{Error, ErrorKind, Result};
use reqwest::{Client, Method, Response, StatusCode};
use serde_json::Value;
use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};
use tokio::runtime::Runtime;

/// The start of the URLs of requests. The name is of no importance.
const HOST: &str = "http://daemon";

/// The error if a daemon is not there.
#[derive(Clone, Copy)]
pub(crate) struct Away {
    /// The cause of the error.
    pub(crate) cause: &'static str,
    /// The remedy.
    pub(crate) remedy: &'static str,
    /// The remedy if the socket is not for this user.
    pub(crate) remedy_for_user: &'static str,
}

/// A daemon at a Unix socket. It may not be there.
pub(crate) struct LocalClient {
    client: Client,
    pub(crate) runtime: Runtime,
    socket: PathBuf,
    away: Away,
}

impl LocalClient {
    /// The daemon at this socket.
    ///
    /// # Errors
    /// If threads cannot be started.
    pub(crate) fn new(socket: PathBuf, away: Away) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| Error::io("cannot start", e))?;
        let client = Client::builder().unix_socket(socket.as_path()).no_proxy().build();
        let client = client.map_err(|e| Error::invalid("cannot make a client").caused_by(e))?;
        Ok(Self { client, runtime, socket, away })
    }

    /// The path of the socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sends a request and returns the answer.
    ///
    /// # Errors
    /// Errors of the daemon; [`ErrorKind::Unavailable`] if it is not there, [`ErrorKind::Denied`] if this user may not
    /// use the socket, [`ErrorKind::Cancelled`] if the user wants to stop first.
    pub(crate) fn ask(&self, method: Method, path: &str, body: Option<String>) -> Result<Value> {
        let asked = self.runtime.block_on(before_stop(self.asked(method, path, body)));
        asked.unwrap_or_else(|| {
            let stopped = "stopped on request; what it was asked for and has begun goes on";
            Err(Error::new(ErrorKind::Cancelled, stopped).about(self.socket.display()))
        })
    }

    /// The same, for callers in a future.
    ///
    /// # Errors
    /// As [`LocalClient::ask`].
    pub(crate) async fn asked(&self, method: Method, path: &str, body: Option<String>) -> Result<Value> {
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

    /// An answer that is received as a stream.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if it is not there.
    pub(crate) async fn stream(&self, path: &str) -> Result<Response> {
        let request = self.client.get(format!("{HOST}{path}"));
        request.send().await.and_then(Response::error_for_status).map_err(|e| self.not_there(&e))
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
