//! Lists that the authority signs for all hosts, sent to them by an agent.

use super::AgentClient;
use headstart_block::{ErrorKind, Result};
use headstart_daemon::client::Method;
use headstart_peer_net::credentials::{self, PublishedTrustList};
use serde::Deserialize;
use std::path::Path;

/// The hosts that were told of a list.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TrustReceivers {
    /// The host whose agent received it first.
    pub host: String,
    /// The hosts that this agent sent it to at once.
    pub hosts: Vec<String>,
}

impl AgentClient {
    /// Sends the swarm a list of the authority, or the latest one of its directory: each list includes all before it,
    /// and an agent that has one refuses those before. Another command on the same directory may sign and send one at
    /// any time.
    ///
    /// # Errors
    /// As all methods; if the directory's files cannot be read.
    pub async fn publish_trust(
        &self,
        dir: &Path,
        published: &mut PublishedTrustList,
    ) -> Result<TrustReceivers> {
        loop {
            take_later(dir, published)?;
            let body = serde_json::json!({ "list": published.list }).to_string();
            match self.0.ask(Method::POST, "/v1/trust", Some(body)).await {
                Err(e) if e.kind() == ErrorKind::Conflict && take_later(dir, published)? => {}
                told => return told.map(|told| serde_json::from_value(told).unwrap_or_default()),
            }
        }
    }
}

/// Replaces a list by the latest one of the directory; `true` if that is a later one.
fn take_later(dir: &Path, published: &mut PublishedTrustList) -> Result<bool> {
    let latest = credentials::published(dir)?;
    let is_later = latest.number > published.number;
    if is_later {
        *published = latest;
    }
    Ok(is_later)
}
