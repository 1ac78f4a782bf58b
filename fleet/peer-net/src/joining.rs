//! Joining: the hosts that `--join` names are tried until one is connected, and the errors of other listeners there are
//! logged.
//!
//! Gossip finds other hosts by datagrams. If those do not come through, or are sealed with another key, this host
//! connects to the named ones directly: their certificates have the hosts' names. A host that was away while the gossip
//! key changed comes back in this way.
//!
//! Several hosts that were away together gossip with each other under the earlier key, and are connected. So a
//! connected host continues at the longest pause: it connects to the named hosts, and to some of those that it was
//! connected to before, unless there is a connection to them. Over such a connection both send their authority's list.
//! The gossip about these hosts is ignored, because a revoked host that has the earlier key may be its source.

use crate::channel::Channel;
use crate::host::link::Link;
use crate::members::Door;
use crate::peer_key::key_of;
use headstart_block::{Error, Result};
use headstart_swarm::PeerKey;
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::task::JoinSet;

/// The time that gossip has to find a host before the named ones are connected to, and the longest pause between two
/// attempts.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LAST_PAUSE: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 60 });

/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;

/// The most remembered hosts that this one was connected to, and the number of them that are tried at a time.
const REMEMBERED_MAX: usize = 64;
const REMEMBERED_AT_ONCE: usize = 4;

/// The most addresses whose host is remembered: names in DNS change.
const PLACES_MAX: usize = 1024;

/// The last logged line of each host that was to be joined, so that it is logged once.
type Logged = HashMap<String, String>;

/// Hosts that this one was connected to, the next one to try first.
#[derive(Debug, Default)]
struct Remembered(VecDeque<(PeerKey, SocketAddr)>);

impl Remembered {
    /// Records the connected hosts; returns the addresses of others to try, in turns.
    fn next(&mut self, connected: &HashMap<PeerKey, SocketAddr>) -> Vec<SocketAddr> {
        self.0.retain(|(key, _)| !connected.contains_key(key));
        let away = self.0.len().min(REMEMBERED_AT_ONCE);
        let tried = self.0.iter().take(away).map(|(_, address)| *address).collect();
        self.0.rotate_left(away);
        // A lost host is tried before those that were lost earlier.
        connected.iter().for_each(|(key, address)| self.0.push_front((*key, *address)));
        self.0.truncate(REMEMBERED_MAX);
        tried
    }
}

/// The facts about addresses that were connected to.
#[derive(Debug, Default)]
struct Places {
    /// The hosts that were there. One listener may have several addresses.
    hosts: HashMap<SocketAddr, PeerKey>,
    /// Addresses of this host itself.
    own: HashSet<SocketAddr>,
}

impl Door {
    /// Tries the named hosts while this host is connected to none, and at the longest pause those that it is not
    /// connected to, until the swarm ends.
    pub(super) async fn join(self: Arc<Self>, named: Vec<String>) {
        let (mut logged, mut connections) = (Logged::new(), JoinSet::new());
        let (mut remembered, mut places) = (Remembered::default(), Places::default());
        let mut stopping = self.stopping.clone();
        let mut pause = FIRST_PAUSE;
        loop {
            let stops = tokio::time::timeout(pause, stopping.wait_for(|stopping| *stopping));
            if stops.await.is_ok() {
                return;
            }
            while connections.try_join_next().is_some() {}
            let is_longest = pause == LAST_PAUSE;
            let mut others = &named[..];
            if self.host.is_connected() {
                if !named.is_empty() {
                    self.miss_gossip(&mut logged);
                }
            } else {
                others = &[];
                for name in &named {
                    match self.find(name).await {
                        Ok(Some((channel, address))) => self.run_in(&mut connections, channel, address),
                        Ok(None) => {}
                        Err(error) => log_once(&mut logged, name, &error),
                    }
                }
            }
            if is_longest {
                self.join_others(others, &mut remembered, &mut places, &mut connections).await;
            }
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// Runs a connection in a task of its own, until it ends.
    fn run_in(
        self: &Arc<Self>,
        connections: &mut JoinSet<Result<()>>,
        channel: Channel,
        address: SocketAddr,
    ) {
        let door = Arc::clone(self);
        connections.spawn(async move { door.run_beyond(channel, address).await });
    }

    /// Connects to hosts that were named, or connected before, and that this host is not connected to.
    async fn join_others(
        self: &Arc<Self>,
        named: &[String],
        remembered: &mut Remembered,
        places: &mut Places,
        connections: &mut JoinSet<Result<()>>,
    ) {
        // The source address of an accepted connection is not the one at which its host listens.
        let members = self.host.members();
        let listens_at = |link: &Link| self.host.whereabouts().of_link(link, &members);
        let connected: HashMap<_, _> =
            self.host.links().iter().map(|(link, _)| (link.key, listens_at(link))).collect();
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for name in named {
            // A name that cannot be resolved is logged when this host is connected to no host.
            addresses.extend(lookup_host(name).await.into_iter().flatten().take(ADDRESSES_MAX));
        }
        if places.hosts.len() > PLACES_MAX {
            places.hosts.clear();
        }
        addresses.extend(remembered.next(&connected));
        for address in addresses {
            if *self.stopping.borrow() {
                return;
            }
            let is_connected = |key| connected.contains_key(key);
            if places.own.contains(&address) || places.hosts.get(&address).is_some_and(is_connected) {
                continue;
            }
            match self.connect_any(address).await {
                Ok(channel) if self.is_own(&channel) => _ = places.own.insert(address),
                Ok(channel) => {
                    let key = key_of(&channel.hello.name);
                    places.hosts.insert(address, key);
                    if !self.host.needs_no_connection(key) {
                        self.run_in(connections, channel, address);
                    }
                }
                Err(error) => tracing::debug!(%error, %address, "a host that is not connected is not there"),
            }
        }
    }

    /// Connects to the named host; `None` if that is this host itself.
    ///
    /// # Errors
    /// The error of the other listener or of the name.
    async fn find(&self, name: &str) -> Result<Option<(Channel, SocketAddr)>> {
        let addresses = lookup_host(name).await.map_err(|e| {
            Error::io("is not a name that can be found", e)
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

    /// Logs once that no gossip of other hosts comes, although this one is connected.
    fn miss_gossip(&self, logged: &mut Logged) {
        if self.host.members().is_empty() {
            let cause = "it is connected, and no gossip comes: the network does not let UDP through, or the \
                         gossip key is another";
            let error = Error::invalid(cause)
                .remedy("copy the files that `headstart swarm init` made for this host again");
            log_once(logged, "gossip", &error);
        } else {
            logged.remove("gossip");
        }
    }
}

fn log_once(logged: &mut Logged, host: &str, error: &Error) {
    let why = error.to_string();
    if logged.get(host) != Some(&why) {
        tracing::warn!(%host, %error, "this host is not in the swarm: it cannot join");
        logged.insert(host.to_owned(), why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(host: u64) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], u16::try_from(host).unwrap()))
    }

    proptest! {
        #[test]
        fn each_host_that_was_connected_is_tried_in_turn_and_none_that_is(
            times in prop::collection::vec(prop::collection::btree_set(0u64..200, 0..100), 1..30),
        ) {
            let mut remembered = Remembered::default();
            let mut last = HashMap::new();
            for connected in times {
                last = connected.iter().map(|host| (PeerKey(*host), address(*host))).collect();
                let tried = remembered.next(&last);
                prop_assert!(tried.len() <= REMEMBERED_AT_ONCE);
                prop_assert!(tried.iter().all(|it| !last.values().any(|other| other == it)));
            }
            // When all are lost, those of the last time are tried, and then those before.
            let (none, kept) = (HashMap::new(), remembered.0.len());
            let mut next = |times: usize| (0..times).flat_map(|_| remembered.next(&none)).collect::<HashSet<_>>();
            let (of_last, at_first) = (last.len().min(REMEMBERED_MAX), next(last.len().div_ceil(REMEMBERED_AT_ONCE)));
            prop_assert!(at_first.iter().filter(|it| last.values().any(|other| other == *it)).count() >= of_last);
            prop_assert!(kept <= REMEMBERED_MAX && next(kept).len() == kept);
        }
    }
}
