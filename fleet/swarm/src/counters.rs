//! The work of a node, in counts that only grow.

use serde::Serialize;

/// Counts of chunks (unless stated otherwise) and of events. A chunk is 64 KiB; a blob's last chunk may be shorter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeCounters {
    /// Wants that disks reported.
    pub wants: u64,
    /// Chunks of wants that were left to the store, for any reason.
    #[serde(rename = "elsewhere")]
    pub not_from_peers: u64,
    /// Chunks that came from peers because a read waited for them.
    pub on_demand: u64,
    /// Chunks that came from peers because a disk preloads, without urgency, what it will read.
    pub in_background: u64,
    /// Chunks that came from peers because these had advertised them, or sent them without a request.
    pub prefetched: u64,
    /// Prefetched chunks that were read since.
    pub prefetched_read: u64,
    /// Chunks that this host fetched from the store: for other hosts, or by a disk of its own.
    pub from_store: u64,
    /// Chunks sent to peers.
    pub served: u64,
    /// Advertised chunks that were only noted, because too much was unread or a plan was followed.
    pub withheld: u64,
    /// Resets of the count of unread bytes, because withheld prefetches would have been hits often enough.
    pub resets: u64,
    /// Requests that were given up because their peer was silent for too long.
    pub timeouts: u64,
    /// Timeouts of requests whose peer had promised to answer.
    pub broken: u64,
    /// Chunks that came with a wrong digest.
    pub corrupt: u64,
    /// Chunks that came twice.
    pub duplicate: u64,
    /// Peers that were dropped.
    pub dropped: u64,
}
