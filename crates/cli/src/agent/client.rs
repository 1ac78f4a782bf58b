//! Asking an agent: HTTP over its socket.

use super::{LOOK, default_dir};
use crate::terminal::Terminal;
use headstart_agent::daemon::SOCKET;
use headstart_agent::disks::{DiskSpec, check_name};
use headstart_agent::keeper::WarmSpec;
use headstart_agent::peers::CountedImage;
use headstart_agent::pins::Pin;
use headstart_block::{Error, ErrorKind, Result};
use headstart_image::progress::Progress;
use headstart_swarm::tracker::Counts;
use reqwest::{Client, Method, Response, StatusCode};
use serde_json::Value;
use std::path::{Path, PathBuf};
use tokio::runtime::Runtime;

/// Where agents are asked. The name is of no importance.
const HOST: &str = "http://agent";

/// An agent of this host.
pub(crate) struct AgentClient {
    client: Client,
    runtime: Runtime,
    socket: PathBuf,
}

impl AgentClient {
    /// The one at this socket, or where an agent is when nobody says. It may not be there.
    ///
    /// # Errors
    /// Where there are no threads to be had.
    pub(crate) fn new(socket: Option<&Path>) -> Result<Self> {
        let socket = socket.map_or_else(|| default_dir().join(SOCKET), Path::to_owned);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| Error::io("cannot start", e))?;
        let client = Client::builder().unix_socket(socket.as_path()).no_proxy().build();
        let client = client.map_err(|e| Error::invalid("cannot make a client").caused_by(e))?;
        Ok(Self { client, runtime, socket })
    }

    /// Attaches a disk; returns when it can be used.
    ///
    /// # Errors
    /// What the agent says; [`ErrorKind::Unavailable`] where it is not there.
    pub(crate) fn attach(&self, spec: &DiskSpec) -> Result<Value> {
        let body = serde_json::to_string(spec).map_err(|e| Error::invalid("is no disk").caused_by(e))?;
        self.ask(Method::POST, "/v1/disks", Some(body))
    }

    /// Detaches it.
    ///
    /// # Errors
    /// As [`AgentClient::attach`]; [`ErrorKind::Invalid`] where no disk can be called so.
    pub(crate) fn detach(&self, name: &str) -> Result<Value> {
        // A name has nothing in it that means something in a path.
        check_name(name)?;
        self.ask(Method::DELETE, &format!("/v1/disks/{name}"), None)
    }

    /// All disks.
    ///
    /// # Errors
    /// As [`AgentClient::attach`].
    pub(crate) fn list(&self) -> Result<Value> {
        self.ask(Method::GET, "/v1/disks", None)
    }

    /// Its part in the swarm.
    ///
    /// # Errors
    /// As [`AgentClient::attach`]; [`ErrorKind::NotFound`] where it has none.
    pub(crate) fn swarm(&self) -> Result<Value> {
        let status = self.ask(Method::GET, "/v1/swarm", None)?;
        if status.is_null() {
            return Err(Error::new(ErrorKind::NotFound, "the agent is in no swarm")
                .about(self.socket.display())
                .remedy("start it with --credentials, or with --plain on loopback"));
        }
        Ok(status)
    }

    /// Brings blobs to hosts; returns when that is done.
    ///
    /// # Errors
    /// As [`AgentClient::attach`].
    pub(crate) fn warm(&self, spec: &WarmSpec) -> Result<Value> {
        let body = serde_json::to_string(spec).map_err(|e| Error::invalid("is no image").caused_by(e))?;
        self.ask(Method::POST, "/v1/warm", Some(body))
    }

    /// Has hosts keep an image; returns when each has its part.
    ///
    /// # Errors
    /// As [`AgentClient::attach`].
    pub(crate) fn pin(&self, pin: &Pin) -> Result<Value> {
        let body = serde_json::to_string(pin).map_err(|e| Error::invalid("is no image").caused_by(e))?;
        self.ask(Method::POST, "/v1/pin", Some(body))
    }

    /// Nobody needs to keep it any more.
    ///
    /// # Errors
    /// As [`AgentClient::attach`].
    pub(crate) fn unpin(&self, image: &str) -> Result<Value> {
        self.ask(Method::POST, "/v1/unpin", Some(serde_json::json!({ "image": image }).to_string()))
    }

    /// What its tracker has counted.
    ///
    /// # Errors
    /// As [`AgentClient::attach`]; [`ErrorKind::NotFound`] where it is none.
    pub(crate) fn counts(&self) -> Result<Vec<Counts>> {
        let counts = self.ask(Method::GET, "/v1/counts", None)?;
        let counts: Vec<CountedImage> = serde_json::from_value(counts)
            .map_err(|e| Error::corrupt("the agent's counts make no sense").caused_by(e))?;
        counts.iter().map(CountedImage::counts).collect()
    }

    /// All disks, for who is in a future.
    ///
    /// # Errors
    /// As [`AgentClient::attach`].
    pub(super) async fn list_now(&self) -> Result<Value> {
        self.asked(Method::GET, "/v1/disks", None).await
    }

    /// Its events, as they come.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] where it is not there.
    pub(super) async fn events(&self) -> Result<Response> {
        let request = self.client.get(format!("{HOST}/v1/events"));
        request.send().await.and_then(Response::error_for_status).map_err(|e| self.away(e))
    }

    /// What comes of `work`; nothing where the user wants it stopped first.
    pub(super) fn until<T>(&self, terminal: &Terminal, work: impl Future<Output = T>) -> Option<T> {
        let stopped = async {
            while !terminal.is_cancelled() {
                tokio::time::sleep(LOOK).await;
            }
        };
        self.runtime.block_on(async {
            tokio::select! {
                done = work => Some(done),
                () = stopped => None,
            }
        })
    }

    fn away(&self, e: reqwest::Error) -> Error {
        Error::new(ErrorKind::Unavailable, "no agent answers")
            .caused_by(e)
            .about(self.socket.display())
            .remedy("start one by `headstart agent`, or name its agent.sock with --agent")
    }

    fn ask(&self, method: Method, path: &str, body: Option<String>) -> Result<Value> {
        self.runtime.block_on(self.asked(method, path, body))
    }

    async fn asked(&self, method: Method, path: &str, body: Option<String>) -> Result<Value> {
        let mut request = self.client.request(method, format!("{HOST}{path}"));
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        let answer = request.send().await.map_err(|e| self.away(e))?;
        let status = answer.status();
        let text = answer.text().await.map_err(|e| self.away(e))?;
        let value: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        if status.is_success() {
            return Ok(value);
        }
        let why = value.get("error").and_then(Value::as_str).map_or(text.clone(), str::to_owned);
        let kind = match status {
            StatusCode::NOT_FOUND => ErrorKind::NotFound,
            StatusCode::CONFLICT => ErrorKind::Conflict,
            StatusCode::SERVICE_UNAVAILABLE => ErrorKind::Unavailable,
            _ => ErrorKind::Invalid,
        };
        Err(Error::new(kind, why))
    }
}
