//! What the swarm does and did, as plain data.

use serde::Serialize;
use std::net::SocketAddr;

/// What it does at present.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// This host's name.
    pub name: String,
    /// What it is to others: `root` or `agent`.
    pub role: &'static str,
    /// Where it listens.
    pub address: Option<SocketAddr>,
    /// The hosts that it is connected to, by name.
    pub peers: Vec<PeerStatus>,
    /// The blobs that it takes part in.
    pub blobs: Vec<BlobStatus>,
}

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerStatus {
    /// The other host's name.
    pub name: String,
    /// What it is: `root` or `agent`.
    pub role: &'static str,
    /// Its address.
    pub address: SocketAddr,
    /// How many blobs both have proved to each other that they may read.
    pub shared_blobs: usize,
    /// Bytes of chunks that went there.
    pub sent_bytes: u64,
    /// Bytes of chunks that came from there.
    pub received_bytes: u64,
    /// Messages and chunks that wait to be sent.
    pub waiting: usize,
}

/// One blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlobStatus {
    /// Its digest.
    pub digest: String,
    /// Its length in bytes.
    pub len: u64,
    /// Bytes of it that are here.
    pub local_bytes: u64,
    /// How many disks have it.
    pub users: usize,
    /// How many other hosts share it.
    pub peers: usize,
}

/// What it did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Connections that were made, either way.
    pub connections: u64,
    /// Connections that were refused: no certificate of the cluster, no answer in time, too many.
    pub refused_connections: u64,
    /// Hosts that were dropped for bytes that are not what they should be.
    pub dropped_corrupt: u64,
    /// Hosts that were dropped for lies, slowness or nonsense.
    pub dropped_other: u64,
    /// Bytes of chunks that went to others.
    pub sent_bytes: u64,
    /// Bytes of chunks that came from others, verified or not.
    pub received_bytes: u64,
    /// Bytes of chunks that came from others and were not asked for (any more).
    pub stray_bytes: u64,
    /// Bytes that this host's agent fetched from stores for others.
    pub fetched_bytes: u64,
    /// What of disks' wants the swarm brought, in bytes.
    pub brought_bytes: u64,
    /// What of disks' wants was left to the store, in bytes.
    pub elsewhere_bytes: u64,
}
