//! The client of an agent on this host, by which other programs, such as the command line, send the agent requests.

mod events;
mod trust;

pub use events::{DiskEvent, DiskEvents};
pub use trust::TrustReceivers;

use crate::daemon::SOCKET;
use crate::disks::DiskSpec;
use crate::pin_manager::WarmSpec;
use headstart_block::exchange::ImageCounts;
use headstart_block::{Error, ErrorKind, Result};
use headstart_daemon::client::{Away, LocalClient, Method};
use headstart_daemon::names::check_disk_name;
use headstart_daemon::places::run_dir;
use headstart_peer_net::CountedImage;
use headstart_peer_net::pin::Pin;
use serde::Serialize;
use serde_json::Value;
use std::path::Path;

/// The error if there is none.
const AWAY: Away = Away {
    cause: "no agent answers",
    remedy: "start one by `headstart agent`, or name its agent.sock with --agent",
    remedy_for_user: "run this as the agent's user, or start the agent with --socket-owner USER[:GROUP] (and \
                      --socket-mode) for users who may attach and detach disks with its rights",
};

/// The client of an agent on this host. The asynchronous methods send a request to the agent and wait for the answer. A
/// result of type `Value` is the answer's JSON as the agent's REST interface defines it. Each method returns the
/// agent's errors; [`ErrorKind::Unavailable`] if no agent answers; and [`ErrorKind::Denied`] if this user may not use
/// the socket.
#[derive(Clone, Debug)]
pub struct AgentClient(LocalClient);

impl AgentClient {
    /// Returns the client of the agent at `socket`. `None` stands for the default socket: `agent.sock` in the default
    /// directory ([`run_dir`]). No connection is made yet, so the agent need not run.
    ///
    /// # Errors
    /// The system lacks the resources for a client.
    pub fn new(socket: Option<&Path>) -> Result<Self> {
        let socket = socket.map_or_else(|| run_dir().join(SOCKET), Path::to_owned);
        LocalClient::new(socket, AWAY).map(Self)
    }

    /// The path of the agent's socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        self.0.socket()
    }

    /// Attaches a disk, and returns its status when clients can use it.
    ///
    /// # Errors
    /// Those of all requests: see [`AgentClient`].
    pub async fn attach(&self, spec: &DiskSpec) -> Result<Value> {
        self.post("/v1/disks", spec).await
    }

    /// Detaches a disk, and returns its last status when its process has ended. With `force`, this includes a disk that
    /// a program has for its own purposes.
    ///
    /// # Errors
    /// Those of all requests (see [`AgentClient`]); [`ErrorKind::Invalid`] if no disk can have this name;
    /// [`ErrorKind::Conflict`] without `force`, if a program holds the disk.
    pub async fn detach(&self, name: &str, force: bool) -> Result<Value> {
        // A valid name contains no character with a meaning in a path.
        check_disk_name(name)?;
        let query = if force { "?force=true" } else { "" };
        self.0.ask(Method::DELETE, &format!("/v1/disks/{name}{query}"), None).await
    }

    /// Returns the status of all disks of the agent, sorted by name.
    ///
    /// # Errors
    /// Those of all requests: see [`AgentClient`].
    pub async fn list(&self) -> Result<Value> {
        self.0.ask(Method::GET, "/v1/disks", None).await
    }

    /// Returns a stream with the new status of a disk each time that the status of one of the agent's disks changes
    /// from now on.
    ///
    /// # Errors
    /// Those of all requests: see [`AgentClient`].
    pub async fn events(&self) -> Result<DiskEvents> {
        self.0.stream("/v1/events").await.map(DiskEvents::of)
    }

    /// Returns the state of the agent's host in the swarm: its connections, blobs and counters.
    ///
    /// # Errors
    /// Those of all requests (see [`AgentClient`]); [`ErrorKind::NotFound`] if the agent takes part in no swarm.
    pub async fn swarm(&self) -> Result<Value> {
        let status = self.0.ask(Method::GET, "/v1/swarm", None).await?;
        if status.is_null() {
            return Err(Error::new(ErrorKind::NotFound, "the agent is in no swarm")
                .about(self.0.socket().display())
                .remedy("start it with --credentials, or with --plain on loopback"));
        }
        Ok(status)
    }

    /// Has hosts fetch blobs into their caches. Returns one result for each host when all have finished; a failure on a
    /// host is part of its result.
    ///
    /// # Errors
    /// Those of all requests: see [`AgentClient`].
    pub async fn warm(&self, spec: &WarmSpec) -> Result<Value> {
        self.post("/v1/warm", spec).await
    }

    /// Has hosts keep an image together. Returns one result for each host when all have fetched their parts; a failure
    /// on a host is part of its result.
    ///
    /// # Errors
    /// Those of all requests: see [`AgentClient`].
    pub async fn pin(&self, pin: &Pin) -> Result<Value> {
        self.post("/v1/pin", pin).await
    }

    /// Ends all pins of images with the reference or digest `image`. Returns the digests of their manifests.
    ///
    /// # Errors
    /// Those of all requests: see [`AgentClient`].
    pub async fn unpin(&self, image: &str) -> Result<Value> {
        self.post("/v1/unpin", &serde_json::json!({ "image": image })).await
    }

    /// Returns what the agent, as a tracker, has counted of the reads of booting disks: one entry for each image.
    ///
    /// # Errors
    /// Those of all requests (see [`AgentClient`]); [`ErrorKind::NotFound`] if the agent is not a tracker;
    /// [`ErrorKind::Corrupt`] if the answer cannot be understood.
    pub async fn counts(&self) -> Result<Vec<ImageCounts>> {
        let counts = self.0.ask(Method::GET, "/v1/counts", None).await?;
        let counts: Vec<CountedImage> = serde_json::from_value(counts)
            .map_err(|e| Error::corrupt("the agent's counts make no sense").caused_by(e))?;
        counts.iter().map(CountedImage::counts).collect()
    }

    async fn post(&self, path: &str, body: &impl Serialize) -> Result<Value> {
        let body = serde_json::to_string(body);
        let body = body.map_err(|e| Error::invalid("cannot be asked for").caused_by(e))?;
        self.0.ask(Method::POST, path, Some(body)).await
    }
}
