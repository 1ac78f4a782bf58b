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

/// The present state of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Status {
    /// This host's name.
    pub name: String,
    /// Its role for others: `root` or `agent`.
    #[schema(value_type = String)]
    pub role: &'static str,
    /// `true` if it counts the blocks that disks read, as a tracker.
    pub tracker: bool,
    /// The roles that its certificate allows, whether it has them or not; every role if it has no certificate.
    #[schema(value_type = Vec<String>)]
    pub roles: Vec<&'static str>,
    /// The address at which it listens.
    #[schema(value_type = Option<String>)]
    pub address: Option<SocketAddr>,
    /// The last second in which its certificate is valid, since 1970; nothing if it has none.
    pub certificate_until: Option<u64>,
    /// The reason for which its certificate, which is due, was not renewed at the last try.
    pub certificate_failure: Option<String>,
    /// The hosts that it is connected to, by name.
    pub peers: Vec<PeerStatus>,
    /// The hosts that it has heard of and is not connected to, by name.
    pub unconnected: Vec<MemberStatus>,
    /// The blobs that it takes part in.
    pub blobs: Vec<BlobStatus>,
    /// Counts of its connections so far.
    pub counters: SwarmCounters,
    /// Counts of its decisions so far.
    #[schema(value_type = std::collections::BTreeMap<String, u64>)]
    pub decisions: headstart_swarm::NodeCounters,
}

/// A host that others have named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct MemberStatus {
    /// Its name.
    pub name: String,
    /// The address that it gives for itself.
    #[schema(value_type = String)]
    pub address: SocketAddr,
    /// The reason why the last attempt to connect to it failed, if this host is the one to try.
    pub error: Option<String>,
}

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct PeerStatus {
    /// The other host's name.
    pub name: String,
    /// Its role: `root` or `agent`.
    #[schema(value_type = String)]
    pub role: &'static str,
    /// `true` if it counts the blocks that disks read, as a tracker.
    pub tracker: bool,
    /// The roles that its certificate allows, whether it has them or not.
    #[schema(value_type = Vec<String>)]
    pub roles: Vec<&'static str>,
    /// The version of the protocol that is spoken.
    pub protocol: u16,
    /// The address at which it listens, otherwise the other end of the connection.
    #[schema(value_type = String)]
    pub address: SocketAddr,
    /// The number of blobs that both have proved to each other that they may read.
    pub shared_blobs: usize,
    /// Bytes of chunks that went there.
    pub sent_bytes: u64,
    /// Bytes of chunks that came from there.
    pub received_bytes: u64,
    /// Messages and chunks that wait to be sent.
    pub waiting: usize,
}

/// One blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct BlobStatus {
    /// Its digest.
    pub digest: String,
    /// Its length in bytes.
    pub len: u64,
    /// Bytes of it that are here.
    pub local_bytes: u64,
    /// The number of disks that have it.
    pub users: usize,
    /// The number of other hosts that share it.
    pub peers: usize,
}

/// Counts of a host's work so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Counters)]
pub struct SwarmCounters {
    /// Connections that were made, either way.
    pub connections: u64,
    /// Connections that were refused: no certificate of the cluster, no answer in time, too many.
    pub refused_connections: u64,
    /// Hosts that were dropped because they sent wrong bytes.
    pub dropped_corrupt: u64,
    /// Hosts that were dropped because of false claims, slowness or nonsense.
    pub dropped_other: u64,
    /// Bytes of chunks that went to others.
    pub sent_bytes: u64,
    /// Bytes of chunks that came from others, verified or not.
    pub received_bytes: u64,
    /// Bytes of chunks that came from others and were not requested, or not any more.
    pub stray_bytes: u64,
    /// Bytes that this host's agent fetched from stores for others.
    pub fetched_bytes: u64,
    /// Bytes of disks' requests that the swarm delivered.
    pub brought_bytes: u64,
    /// Bytes of disks' requests that were left to the store.
    pub elsewhere_bytes: u64,
    /// Datagrams that no host of the cluster sealed.
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
