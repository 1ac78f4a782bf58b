//! The work of a node, in counts that only grow.

use serde::Serialize;

/// Counters of a node (the state machine of one host), each starting at zero. Fields count chunks unless they say
/// otherwise. A chunk is 64 KiB; a blob's last chunk may be shorter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeCounters {
    /// Wants (requests of a disk for a run of chunks) that disks of this host have made; counts requests, not
    /// chunks.
    pub wants: u64,
    /// Wanted chunks that the swarm did not deliver, for any reason, and left to the disk to fetch from the
    /// store.
    #[serde(rename = "elsewhere")]
    pub not_from_peers: u64,
    /// Chunks that came from peers by a request of high urgency: a read waited for them.
    pub on_demand: u64,
    /// Chunks that came from peers by a request of low urgency: a disk preloads them before any read waits
    /// for them.
    pub in_background: u64,
    /// Chunks that came from peers and that no disk of this host had wanted: the peers had advertised them,
    /// or a root sent them without a request.
    pub prefetched: u64,
    /// Prefetched chunks (see `prefetched`) that a disk of this host has read after they came.
    pub prefetched_read: u64,
    /// Chunks that came from the store: this host's agent fetched them for other hosts, or one of its disks fetched
    /// them for itself.
    pub from_store: u64,
    /// Chunks that this host has sent to peers.
    pub served: u64,
    /// Advertised chunks that were not prefetched but only recorded, because too many prefetched bytes were
    /// unread or a disk followed a plan.
    pub withheld: u64,
    /// Times that the count of unread prefetched bytes was reset to zero. The count is reset when reads have missed
    /// enough advertised chunks that were not prefetched.
    pub resets: u64,
    /// Requests (not chunks) that were given up because the peer did not answer in time.
    pub timeouts: u64,
    /// Timeouts (see `timeouts`) of requests that the peer had promised to answer.
    pub broken: u64,
    /// Chunks received from peers whose bytes did not have the expected digest.
    pub corrupt: u64,
    /// Chunks that were already local when they came again.
    pub duplicate: u64,
    /// Peers (not chunks) whose connection this host closed because of an [offence](crate::Offence).
    pub dropped: u64,
}
