//! The present and past activity of the swarm, as plain data.

use crate::credentials::Roles;
use crate::gossip::{Member, Strays};
use crate::host::Host;
use crate::host::link::Link;
use crate::peer_key::key_of;
use headstart_swarm::Role;
use serde::Serialize;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use utoipa::ToSchema;

/// The present state of this host in the swarm.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Status {
    /// The name of this host.
    pub name: String,
    /// The role of this host in the swarm: `root` or `agent`.
    #[schema(value_type = String)]
    pub role: &'static str,
    /// `true` if this host is a tracker, which counts the blocks that the disks of all hosts read while they
    /// boot.
    pub tracker: bool,
    /// The roles that this host's certificate permits, including those that it does not use; every role if it
    /// has no certificate.
    #[schema(value_type = Vec<String>)]
    pub roles: Vec<&'static str>,
    /// The address that this host names to others, at which it accepts their connections.
    #[schema(value_type = Option<String>)]
    pub address: Option<SocketAddr>,
    /// The last second in which this host's certificate is valid, in seconds since 1970; null if it has none.
    pub certificate_until: Option<u64>,
    /// The reason why the last attempt to renew this host's certificate failed; null if no renewal is due or
    /// none has failed.
    pub certificate_failure: Option<String>,
    /// The hosts that this host is connected to, sorted by name.
    pub peers: Vec<PeerStatus>,
    /// The hosts that this host knows of by gossip and is not connected to.
    pub unconnected: Vec<MemberStatus>,
    /// The blobs that this host takes part in, sorted by digest. A blob is a stored object, such as a layer
    /// of an image.
    pub blobs: Vec<BlobStatus>,
    /// Counters of this host's connections and transfers since its agent started.
    pub counters: SwarmCounters,
    /// Counters of the decisions of this host's state machine since its agent started, such as requests sent
    /// and timeouts.
    #[schema(value_type = std::collections::BTreeMap<String, u64>)]
    pub decisions: headstart_swarm::NodeCounters,
}

/// A host that this host knows of by gossip and is not connected to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct MemberStatus {
    /// The name of that host.
    pub name: String,
    /// The address at which that host says it accepts connections.
    #[schema(value_type = String)]
    pub address: SocketAddr,
    /// The reason why there is no connection, such as the error of the last attempt; null if none is known,
    /// for example because the other host is the one that connects.
    pub error: Option<String>,
}

/// A host that this host is connected to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct PeerStatus {
    /// The other host's name.
    pub name: String,
    /// The role of the other host in the swarm: `root` or `agent`.
    #[schema(value_type = String)]
    pub role: &'static str,
    /// `true` if the other host is a tracker, which counts the blocks that the disks of all hosts read while
    /// they boot.
    pub tracker: bool,
    /// The roles that the other host's certificate permits, including those that it does not use.
    #[schema(value_type = Vec<String>)]
    pub roles: Vec<&'static str>,
    /// The version of the connection format that both hosts use.
    pub protocol: u16,
    /// The address at which the other host accepts connections; if that is not known, the remote address of
    /// this connection.
    #[schema(value_type = String)]
    pub address: SocketAddr,
    /// The number of blobs for which both hosts have proved to each other that they may read them.
    pub shared_blobs: usize,
    /// Bytes of chunks sent to the other host on this connection.
    pub sent_bytes: u64,
    /// Bytes of chunks received from the other host on this connection.
    pub received_bytes: u64,
    /// The number of messages and chunks that wait to be sent to the other host.
    pub waiting: usize,
}

/// A blob that this host takes part in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct BlobStatus {
    /// The digest of the blob.
    pub digest: String,
    /// The length of the blob, in bytes.
    pub len: u64,
    /// Bytes of the blob that are in this host's cache.
    pub local_bytes: u64,
    /// The number of uses of the blob on this host: disks that read it and programs that keep it open.
    pub users: usize,
    /// The number of other hosts that exchange the blob with this host.
    pub peers: usize,
}

/// Counters of a host's connections and transfers since its agent started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Counters)]
pub struct SwarmCounters {
    /// Connections with other hosts that were established, no matter which side connected.
    pub connections: u64,
    /// Connections that were not established, because the other end had no certificate of the cluster or did not answer
    /// in time, or because there were too many connections.
    pub refused_connections: u64,
    /// Hosts that were disconnected because they sent bytes with a wrong digest.
    pub dropped_corrupt: u64,
    /// Hosts that were disconnected because they claimed chunks that they did not have, were too slow, or
    /// sent invalid messages.
    pub dropped_other: u64,
    /// Bytes of chunks sent to other hosts.
    pub sent_bytes: u64,
    /// Bytes of chunks received from other hosts, before they are verified.
    pub received_bytes: u64,
    /// Bytes of received chunks that were of no use, because they were not requested or no longer wanted.
    pub stray_bytes: u64,
    /// Bytes that this host's agent fetched from stores for other hosts.
    pub fetched_bytes: u64,
    /// Bytes that disks of this host asked the swarm for and that it delivered.
    pub brought_bytes: u64,
    /// Bytes that disks of this host asked the swarm for and that it left to the disks to fetch from the
    /// store.
    pub elsewhere_bytes: u64,
    /// Received gossip datagrams that were ignored because they were not sealed with the cluster's key.
    pub refused_datagrams: u64,
    /// The number of times that this host's certificate was renewed.
    pub renewed_certificates: u64,
    /// Certificates of other hosts that this one renewed, as an authority.
    pub signed_certificates: u64,
    /// Requests for certificates that this host refused.
    pub refused_requests: u64,
}

/// The same counters, as atomics.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) connections: AtomicU64,
    pub(crate) refused_connections: AtomicU64,
    pub(crate) dropped_corrupt: AtomicU64,
    pub(crate) dropped_other: AtomicU64,
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
    pub(crate) stray_bytes: AtomicU64,
    pub(crate) fetched_bytes: AtomicU64,
    pub(crate) brought_bytes: AtomicU64,
    pub(crate) elsewhere_bytes: AtomicU64,
    pub(crate) renewed_certificates: AtomicU64,
    pub(crate) signed_certificates: AtomicU64,
    pub(crate) refused_requests: AtomicU64,
    pub(crate) strays: Arc<Strays>,
}

impl Counts {
    pub(crate) fn read(&self) -> SwarmCounters {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        SwarmCounters {
            connections: read(&self.connections),
            refused_connections: read(&self.refused_connections),
            dropped_corrupt: read(&self.dropped_corrupt),
            dropped_other: read(&self.dropped_other),
            sent_bytes: read(&self.sent_bytes),
            received_bytes: read(&self.received_bytes),
            stray_bytes: read(&self.stray_bytes),
            fetched_bytes: read(&self.fetched_bytes),
            brought_bytes: read(&self.brought_bytes),
            elsewhere_bytes: read(&self.elsewhere_bytes),
            refused_datagrams: read(&self.strays.count),
            renewed_certificates: read(&self.renewed_certificates),
            signed_certificates: read(&self.signed_certificates),
            refused_requests: read(&self.refused_requests),
        }
    }
}

fn word(role: Role) -> &'static str {
    match role {
        Role::Root => "root",
        Role::Agent => "agent",
    }
}

/// The hosts that were refused because others of their names are connected.
fn rivals(host: &Host, links: &[(Arc<Link>, usize)], members: &[Member]) -> Vec<MemberStatus> {
    let whereabouts = host.whereabouts();
    let rival = |link: &Link| {
        let address = whereabouts.of_rival(link, members)?;
        let error = format!("two hosts are called `{}`, and the other one is connected", link.name);
        Some(MemberStatus { name: link.name.clone(), address, error: Some(error) })
    };
    let mut rivals: Vec<_> = links.iter().filter_map(|(link, _)| rival(link)).collect();
    rivals.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    rivals
}

impl Status {
    pub(crate) fn of(host: &Host, name: &str, (role, roles): (Role, Roles), address: SocketAddr) -> Self {
        let members = host.members();
        let links = host.links();
        let rivals = rivals(host, &links, &members);
        let mut peers: Vec<_> = links
            .into_iter()
            .map(|(link, shared_blobs)| PeerStatus {
                name: link.name.clone(),
                role: word(link.role),
                tracker: link.is_tracker,
                roles: link.roles.names().collect(),
                protocol: link.protocol,
                // A host that connected to this one has an ephemeral port.
                address: host.whereabouts().of_link(&link, &members),
                shared_blobs,
                sent_bytes: link.sent.load(Ordering::Relaxed),
                received_bytes: link.received.load(Ordering::Relaxed),
                waiting: link.outbox.waiting(),
            })
            .collect();
        peers.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let mut blobs: Vec<_> = host
            .blobs()
            .into_iter()
            .filter(|(blob, ..)| !blob.is_outboard())
            .map(|(blob, users, peers)| BlobStatus {
                digest: blob.identity.digest.to_string(),
                len: blob.len(),
                local_bytes: blob.cached.local_bytes(),
                users,
                peers,
            })
            .collect();
        blobs.sort_unstable_by(|a, b| a.digest.cmp(&b.digest));
        let is_connected = |name: &String| peers.binary_search_by(|peer| peer.name.cmp(name)).is_ok();
        let unconnected = members.into_iter().filter(|member| !is_connected(&member.name));
        let unconnected = unconnected.map(|Member { name, address }| {
            let error = host.why_unreached(key_of(&name));
            MemberStatus { name, address, error }
        });
        let namesakes: Vec<_> = host.namesakes().iter().copied().collect();
        let namesakes = namesakes.into_iter().map(|address| {
            let error = Some("it has this host's name".to_owned());
            MemberStatus { name: name.to_owned(), address, error }
        });
        Self {
            name: name.to_owned(),
            role: word(role),
            tracker: host.hints.counting.is_some(),
            roles: roles.names().collect(),
            address: Some(address),
            certificate_until: host.renewals.identity.as_ref().map(|one| one.says().validity.not_after),
            certificate_failure: host.renewals.failure(),
            unconnected: namesakes.chain(rivals).chain(unconnected).collect(),
            peers,
            blobs,
            counters: host.counts.read(),
            decisions: host.node_counters(),
        }
    }
}
