//! Joining: the hosts that `--join` names are looked for until one is connected, and what is there instead is said.
//!
//! Gossip finds other hosts by datagrams. Where those do not come through, or are sealed with another key, this host
//! connects to the named ones directly: their certificates say which hosts they are. A host that was away while the
//! gossip key changed comes back by that.

use crate::peers::channel::Channel;
use crate::peers::members::Door;
use headstart_block::{Error, Result};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::task::JoinSet;

/// How long gossip has to find a host before those that were named are connected to, and at most between two tries.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LAST_PAUSE: Duration = Duration::from_secs(60);

/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;

/// What has been said of each host that was to be joined, so that it is said once.
type Said = HashMap<String, String>;

impl Door {
    /// Looks for the hosts that were named, as often as this host is connected to none, until the swarm ends.
    pub(super) async fn join(self: Arc<Self>, named: Vec<String>) {
        if named.is_empty() {
            return;
        }
        let (mut said, mut connections) = (Said::new(), JoinSet::new());
        let mut stopping = self.stopping.clone();
        let mut pause = FIRST_PAUSE;
        loop {
            let stops = tokio::time::timeout(pause, stopping.wait_for(|stopping| *stopping));
            if stops.await.is_ok() {
                return;
            }
            while connections.try_join_next().is_some() {}
            if self.host.is_connected() {
                self.miss_gossip(&mut said);
            } else {
                for name in &named {
                    match self.find(name).await {
                        Ok(Some((channel, address))) => {
                            let door = Arc::clone(&self);
                            connections.spawn(async move { door.run(channel, address).await });
                        }
                        Ok(None) => {}
                        Err(error) => say(&mut said, name, &error),
                    }
                }
            }
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// A connection to the host that was named, or nothing where that is this host itself.
    ///
    /// # Errors
    /// What is there instead.
    async fn find(&self, name: &str) -> Result<Option<(Channel, SocketAddr)>> {
        let addresses = lookup_host(name).await.map_err(|e| {
            Error::io("is no name that can be found", e)
                .remedy("give --join a name that DNS has, or an address")
        })?;
        let mut last = Error::invalid("is a name without addresses");
        for address in addresses.take(ADDRESSES_MAX) {
            match self.connect_any(address).await {
                Ok(channel) if self.is_own(&channel) => return Ok(None),
                Ok(channel) => return Ok(Some((channel, address))),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Says once that other hosts are heard of by nobody, though this one is connected.
    fn miss_gossip(&self, said: &mut Said) {
        if self.host.members().is_empty() {
            let cause = "it is connected, and no gossip comes: the network does not let UDP through, or the \
                         gossip key is another";
            let error =
                Error::invalid(cause).remedy("copy what `headstart swarm init` made for this host again");
            say(said, "gossip", &error);
        } else {
            said.remove("gossip");
        }
    }
}

fn say(said: &mut Said, host: &str, error: &Error) {
    let why = error.to_string();
    if said.get(host) != Some(&why) {
        tracing::warn!(%host, %error, "this host is not in the swarm: it cannot join");
        said.insert(host.to_owned(), why);
    }
}
