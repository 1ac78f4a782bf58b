//! Trust lists, which the authority signs for all hosts of the swarm: an agent receives one and passes it on.

use super::AgentClient;
use headstart_block::{ErrorKind, Result};
use headstart_daemon::client::Method;
use headstart_peer_net::credentials::{self, PublishedTrustList};
use serde::Deserialize;
use std::path::Path;

/// The hosts that have received a trust list: the answer to [`AgentClient::publish_trust`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TrustReceivers {
    /// The name of the host whose agent received the list from the client.
    pub host: String,
    /// The names of the connected hosts that this agent sent the list to at once.
    pub hosts: Vec<String>,
}

impl AgentClient {
    /// Sends the trust list `published` to the swarm, by way of this agent, and returns the hosts that have received
    /// the list. If the cluster's directory `dir` has a later list, `published` is first replaced by that one. Each
    /// list includes all before it, and an agent refuses a list that is older than its own. If the agent refuses the
    /// list and `dir` has a later one by then, that one is sent. So another command may sign and send a list meanwhile.
    /// If the answer cannot be understood, the result has no names.
    ///
    /// # Errors
    /// Those of all requests (see [`AgentClient`]); errors of reading the directory's files.
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
