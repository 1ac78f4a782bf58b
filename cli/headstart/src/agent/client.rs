//! The client of an agent.

use super::{LOOK, default_dir};
use crate::local_client::{Away, LocalClient};
use crate::terminal::Terminal;
use headstart_agentd::daemon::SOCKET;
use headstart_agentd::disks::DiskSpec;
use headstart_agentd::pin_manager::WarmSpec;
use headstart_block::{Error, ErrorKind, Result};
use headstart_daemon::names::check_disk_name;
use headstart_image::progress::Progress;
use headstart_peer_net::CountedImage;
use headstart_peer_net::pin::Pin;
use headstart_swarm::tracker::ImageCounts;
use reqwest::{Method, Response};
use serde_json::Value;
use std::path::Path;

/// The error if there is none.
const AWAY: Away = Away {
    cause: "no agent answers",
    remedy: "start one by `headstart agent`, or name its agent.sock with --agent",
    remedy_for_user: "run this as the agent's user, or start the agent with --socket-owner USER[:GROUP] (and \
                      --socket-mode) for users who may attach and detach disks with its rights",
};

/// An agent of this host.
pub(crate) struct AgentClient(LocalClient);

impl AgentClient {
    /// The agent at this socket, or at the default one. It may not be there.
    ///
    /// # Errors
    /// If threads cannot be started.
    pub(crate) fn new(socket: Option<&Path>) -> Result<Self> {
        let socket = socket.map_or_else(|| default_dir().join(SOCKET), Path::to_owned);
        LocalClient::new(socket, AWAY).map(Self)
    }

    /// Attaches a disk; returns when it can be used.
    ///
    /// # Errors
    /// Errors of the agent; [`ErrorKind::Unavailable`] if it is not there.
    pub(crate) fn attach(&self, spec: &DiskSpec) -> Result<Value> {
        let body = serde_json::to_string(spec).map_err(|e| Error::invalid("is not a disk").caused_by(e))?;
        self.0.ask(Method::POST, "/v1/disks", Some(body))
    }

    /// Detaches a disk.
    ///
    /// # Errors
    /// As [`AgentClient::attach`]; [`ErrorKind::Invalid`] if no disk can have this name.
    pub(crate) fn detach(&self, name: &str) -> Result<Value> {
        // A valid name contains no character with a meaning in a path.
        check_disk_name(name)?;
        self.0.ask(Method::DELETE, &format!("/v1/disks/{name}"), None)
    }

    /// All disks.
    ///
    /// # Errors
    /// As [`AgentClient::attach`].
    pub(crate) fn list(&self) -> Result<Value> {
        self.0.ask(Method::GET, "/v1/disks", None)
    }

    /// The agent's part in the swarm.
    ///
    /// # Errors
    /// As [`AgentClient::attach`]; [`ErrorKind::NotFound`] if it has none.
    pub(crate) fn swarm(&self) -> Result<Value> {
        let status = self.0.ask(Method::GET, "/v1/swarm", None)?;
        if status.is_null() {
            return Err(Error::new(ErrorKind::NotFound, "the agent is in no swarm")
                .about(self.0.socket().display())
                .remedy("start it with --credentials, or with --plain on loopback"));
        }
        Ok(status)
    }

    /// Has hosts fetch blobs; returns when that is done.
    ///
    /// # Errors
    /// As [`AgentClient::attach`].
    pub(crate) fn warm(&self, spec: &WarmSpec) -> Result<Value> {
        let body = serde_json::to_string(spec).map_err(|e| Error::invalid("is not an image").caused_by(e))?;
        self.0.ask(Method::POST, "/v1/warm", Some(body))
    }

    /// Has hosts keep an image; returns when each has its part.
    ///
    /// # Errors
    /// As [`AgentClient::attach`].
    pub(crate) fn pin(&self, pin: &Pin) -> Result<Value> {
        let body = serde_json::to_string(pin).map_err(|e| Error::invalid("is not an image").caused_by(e))?;
        self.0.ask(Method::POST, "/v1/pin", Some(body))
    }

    /// Ends the pin of an image.
    ///
    /// # Errors
    /// As [`AgentClient::attach`].
    pub(crate) fn unpin(&self, image: &str) -> Result<Value> {
        self.0.ask(Method::POST, "/v1/unpin", Some(serde_json::json!({ "image": image }).to_string()))
    }

    /// Sends a list of the authority to the swarm.
    ///
    /// # Errors
    /// As [`AgentClient::attach`].
    pub(crate) fn tell_trust(&self, list: &[u8]) -> Result<Value> {
        self.0.ask(Method::POST, "/v1/trust", Some(serde_json::json!({ "list": list }).to_string()))
    }

    /// The counts of the agent's tracker.
    ///
    /// # Errors
    /// As [`AgentClient::attach`]; [`ErrorKind::NotFound`] if it is none.
    pub(crate) fn counts(&self) -> Result<Vec<ImageCounts>> {
        let counts = self.0.ask(Method::GET, "/v1/counts", None)?;
        let counts: Vec<CountedImage> = serde_json::from_value(counts)
            .map_err(|e| Error::corrupt("the agent's counts make no sense").caused_by(e))?;
        counts.iter().map(CountedImage::counts).collect()
    }

    /// All disks, for callers in a future.
    ///
    /// # Errors
    /// As [`AgentClient::attach`].
    pub(super) async fn list_now(&self) -> Result<Value> {
        self.0.asked(Method::GET, "/v1/disks", None).await
    }

    /// The agent's events, as they come.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if it is not there.
    pub(super) async fn events(&self) -> Result<Response> {
        self.0.stream("/v1/events").await
    }

    /// The result of `work`; `None` if the user stops it first.
    pub(super) fn until<T>(&self, terminal: &Terminal, work: impl Future<Output = T>) -> Option<T> {
        let stopped = async {
            while !terminal.is_cancelled() {
                tokio::time::sleep(LOOK).await;
            }
        };
        self.0.runtime.block_on(async {
            tokio::select! {
                done = work => Some(done),
                () = stopped => None,
            }
        })
    }
}
