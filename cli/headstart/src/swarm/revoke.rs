//! `headstart swarm revoke`, `rekey`, `publish`: lists that the authority signs for all hosts, and that an agent sends
//! to them.

use crate::agent::AgentSocket;
use clap::Args;
use headstart_agentd::client::TrustReceivers;
use headstart_block::guarded::shell_word;
use headstart_block::words::count;
use headstart_block::{Error, Result};
use headstart_command_line::report::Outcome;
use headstart_peer_net::credentials::{self, PublishedTrustList};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};

pub(super) const EXAMPLES: &str = "Examples:\n  \
    headstart swarm revoke cluster node3\n  \
    headstart swarm revoke cluster node3 node4 --agent /run/headstart/agent.sock --json\n\n\
    Run it where the authority's key is. The agent of this host tells all others; hosts that are away are told once \
    they are connected again. All certificates of the host are refused from then on, renewed ones too, its \
    connections are closed, and gossip gets another key. Hosts that run version 0.1.0 are not told: they keep their \
    old lists, and find no other hosts any more. To add the host again: `headstart swarm init DIR --host NAME`.";

pub(super) const REKEY_EXAMPLES: &str = "Examples:\n  headstart swarm rekey cluster\n  \
    headstart swarm rekey cluster --agent /run/headstart/agent.sock\n\n\
    Gossip sealed with the earlier key is accepted for another minute. \
    Hosts that run version 0.1.0 are not told, and find no other hosts \
    any more.";

pub(super) const PUBLISH_EXAMPLES: &str = "Examples:\n  headstart swarm publish cluster\n  \
    headstart swarm publish cluster --agent /run/headstart/agent.sock\n\n\
    Of the cluster's directory only the files DIR/trust, ca.pem and ca.key are needed.";

#[derive(Args)]
pub(crate) struct Revoke {
    /// The cluster's directory, as `headstart swarm init` made it
    dir: PathBuf,
    /// A host that is no longer a member
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    agent: AgentSocket,
}

#[derive(Args)]
pub(crate) struct Directory {
    /// The cluster's directory, as `headstart swarm init` made it
    dir: PathBuf,
    #[command(flatten)]
    agent: AgentSocket,
}

impl Revoke {
    pub(super) fn run(&self) -> Result<SentTrustList> {
        let before = credentials::operators(&self.dir)?;
        let published = credentials::revoke(&self.dir, &self.names)?;
        // The warning comes before the list is sent, which may fail.
        if !before.is_empty() && credentials::operators(&self.dir)?.is_empty() {
            tracing::warn!("{}", nobody_orders(&self.dir));
        }
        send_list(&self.dir, published, &self.agent)
    }
}

/// The warning that no host may give orders to others any more.
fn nobody_orders(dir: &Path) -> String {
    let dir = shell_word(&dir.display().to_string());
    format!(
        "no host of the cluster may order others any more (warm, pin, unpin): `headstart swarm init {dir} --operator \
         NAME` gives NAME that role; then copy its directory there and start its agent again"
    )
}

impl Directory {
    pub(super) fn rekey(&self) -> Result<SentTrustList> {
        send_list(&self.dir, credentials::rekey(&self.dir)?, &self.agent)
    }

    pub(super) fn publish(&self) -> Result<SentTrustList> {
        send_list(&self.dir, credentials::published(&self.dir)?, &self.agent)
    }
}

/// Sends the swarm a list of the authority, or the latest one of its directory.
fn send_list(dir: &Path, mut published: PublishedTrustList, agent: &AgentSocket) -> Result<SentTrustList> {
    let receivers = agent.ask(async |agent| agent.publish_trust(dir, &mut published).await).map_err(|e| {
        Error::new(e.kind(), "it is signed, and no host of the swarm was told").caused_by(e).remedy(format!(
            "on a host whose agent is in the swarm, run `headstart swarm publish {}`",
            shell_word(&dir.display().to_string())
        ))
    })?;
    let TrustReceivers { host, hosts } = receivers;
    Ok(SentTrustList { number: published.number, revoked: published.revoked, host, hosts })
}

/// The signed list, and its receivers.
#[derive(Serialize)]
pub(super) struct SentTrustList {
    /// The number of the list.
    number: u64,
    /// All hosts that were revoked, now and before.
    revoked: Vec<String>,
    /// The host whose agent received it first.
    host: String,
    /// The hosts that this agent sent it to at once.
    hosts: Vec<String>,
}

impl Outcome for SentTrustList {}

impl fmt::Display for SentTrustList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, revoked, host, hosts } = self;
        let revoked = if revoked.is_empty() { "none".to_owned() } else { revoked.join(", ") };
        write!(f, "list {number} of the authority's: revoked: {revoked}; gossip has another key")?;
        write!(f, "\n{host} has it, and told {}", count(hosts.len() as u64, "host"))?;
        if hosts.is_empty() { Ok(()) } else { write!(f, ": {}", hosts.join(", ")) }
    }
}
