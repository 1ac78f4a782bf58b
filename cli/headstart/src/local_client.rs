//! Asking a daemon of this host: HTTP over its socket.

use crate::terminal::before_stop;
use headstart_block::{Error, ErrorKind, Result};
use reqwest::{Client, Method, Response, StatusCode};
use serde_json::Value;
use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};
use tokio::runtime::Runtime;

/// Where daemons are asked. The name is of no importance.
const HOST: &str = "http://daemon";

/// What is said where a daemon is not there.
#[derive(Clone, Copy)]
pub(crate) struct Away {
    /// What does not answer.
    pub(crate) cause: &'static str,
    /// What to do about it.
    pub(crate) remedy: &'static str,
    /// The remedy where the socket is not for this user.
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
    /// The one at this socket.
    ///
    /// # Errors
    /// Where there are no threads to be had.
    pub(crate) fn new(socket: PathBuf, away: Away) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| Error::io("cannot start", e))?;
        let client = Client::builder().unix_socket(socket.as_path()).no_proxy().build();
        let client = client.map_err(|e| Error::invalid("cannot make a client").caused_by(e))?;
        Ok(Self { client, runtime, socket, away })
    }

    /// Where it is asked.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// What it answers.
    ///
    /// # Errors
    /// What it says; [`ErrorKind::Unavailable`] where it is not there, [`ErrorKind::Denied`] where this user may not
    /// ask it, [`ErrorKind::Cancelled`] where the user wants to stop first.
    pub(crate) fn ask(&self, method: Method, path: &str, body: Option<String>) -> Result<Value> {
        let asked = self.runtime.block_on(before_stop(self.asked(method, path, body)));
        asked.unwrap_or_else(|| {
            let stopped = "stopped on request; what it was asked for and has begun goes on";
            Err(Error::new(ErrorKind::Cancelled, stopped).about(self.socket.display()))
        })
    }

    /// The same, for who is in a future.
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

    /// An answer that comes bit by bit.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] where it is not there.
    pub(crate) async fn stream(&self, path: &str) -> Result<Response> {
        let request = self.client.get(format!("{HOST}{path}"));
        request.send().await.and_then(Response::error_for_status).map_err(|e| self.not_there(&e))
    }

    fn not_there(&self, e: &reqwest::Error) -> Error {
        let Away { cause, remedy, remedy_for_user } = self.away;
        // The innermost says it: that the socket is another user's, or not there.
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
