//! What a node has done, in numbers that only grow.

use serde::Serialize;

/// Counts of chunks (where not said otherwise) and of events. A chunk is 64 KiB but for a blob's last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Wants that disks told.
    pub wants: u64,
    /// Chunks of wants that were left to the store, by whatever cause.
    pub elsewhere: u64,
    /// Chunks that came from peers because somebody waited for them.
    pub on_demand: u64,
    /// Chunks that came from peers because a disk brings, without hurry, what it will read.
    pub in_background: u64,
    /// Chunks that came from peers because these had advertised them, or sent them unasked.
    pub prefetched: u64,
    /// Of those, what was read since.
    pub prefetched_read: u64,
    /// Chunks that this host fetched from the store: for others, or by a disk of its own.
    pub from_store: u64,
    /// Chunks sent to peers.
    pub served: u64,
    /// Advertised chunks that were only taken note of, for too much was unread or a plan was followed.
    pub withheld: u64,
    /// Times that withheld prefetches would have been hits so often that the count of unread bytes began anew.
    pub resets: u64,
    /// Requests that were given up, for their peer was silent too long.
    pub timeouts: u64,
    /// Of those, requests whose peer had promised to answer.
    pub broken: u64,
    /// Chunks that came and were not what they should be.
    pub corrupt: u64,
    /// Chunks that came twice.
    pub duplicate: u64,
    /// Peers dropped.
    pub dropped: u64,
}
