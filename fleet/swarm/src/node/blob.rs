//! One blob, as this host knows it: put together from machines of its own.
//!
//! | part | state |
//! |---|---|
//! | [`ChunkTable`] | the chunks: remote, on their way, or local |
//! | [`Sharing`] | the hosts that share the blob, and the one that fetches for all |
//! | [`PrefetchQueue`] | advertised and withheld chunks, and chunks to be warm |
//! | [`Announcer`] | the local chunks that neighbours are told of |
//! | [`Redirects`] | the hosts to which askers are sent |
//! | [`PeerMap`] | for each peer, the chunks that it has |

use super::announcer::Announcer;
use super::chunks::{ChunkState, ChunkTable};
use super::prefetch::PrefetchQueue;
use super::redirects::Redirects;
use super::sharing::Sharing;
use crate::CHUNK_SIZE;
use crate::bits::Bits;
use crate::event::{BlobKey, Chunks, PeerId, PeerKey, ReaderId};
use crate::similarity::RecentReads;
use crate::throttle::Throttle;
use crate::{NodeSettings, Topology};
use headstart_block::saturating;
use std::collections::BTreeMap;

/// The number of reads that a sketch describes: 64 MiB.
const SKETCHED: u32 = 1024;

/// The knowledge of a peer's chunks.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerMap {
    /// Chunks that it has.
    pub(super) has: Bits,
    /// Chunks that were sent there without a request, or for a request without urgency.
    pub(super) sent: Bits,
    /// Chunks that it requested because a read waited, or reported as read: its next reads are predicted from them.
    pub(super) read: Bits,
}

/// A blob.
#[derive(Debug)]
pub(super) struct Blob {
    pub(super) key: BlobKey,
    pub(super) len: u64,
    /// The number of chunks.
    pub(super) chunks: u32,
    /// `true` if the agent can fetch it from its store.
    pub(super) fetchable: bool,
    pub(super) table: ChunkTable,
    pub(super) sharing: Sharing,
    pub(super) queue: PrefetchQueue,
    pub(super) announcer: Announcer,
    pub(super) redirects: Redirects,
    /// The chunks of the peers that advertised any, ascending.
    pub(super) maps: BTreeMap<PeerId, PeerMap>,
    /// The reader on whose account its prefetches are.
    pub(super) reader: Option<ReaderId>,
    /// The recent reads, if neighbours are chosen by them.
    pub(super) reads: Option<Box<RecentReads>>,
}

impl Blob {
    /// A blob of which nothing is local. `me` is this host, if it can be a designated fetcher.
    pub(super) fn new(
        key: BlobKey,
        len: u64,
        fetchable: bool,
        me: Option<PeerKey>,
        settings: &NodeSettings,
    ) -> Self {
        // What is beyond the last number (256 TiB) is not exchanged.
        let chunks = saturating(len.div_ceil(CHUNK_SIZE));
        let similar = matches!(settings.topology, Topology::Similar(_));
        Self {
            key,
            len,
            chunks,
            fetchable,
            table: ChunkTable::new(chunks),
            sharing: Sharing::new(key, me),
            queue: PrefetchQueue::default(),
            announcer: Announcer::new(),
            redirects: Redirects::new(),
            maps: BTreeMap::new(),
            reader: None,
            reads: similar.then(|| Box::new(RecentReads::new(SKETCHED))),
        }
    }

    /// The part of a run that is within the blob.
    pub(super) fn cut(&self, run: Chunks) -> Chunks {
        let first = run.first.min(self.chunks);
        Chunks { first, count: run.count.min(self.chunks - first) }
    }

    /// The number of bytes of a chunk.
    pub(super) fn bytes(&self, chunk: u32) -> u64 {
        Chunks::one(chunk).bytes(self.len).len()
    }

    /// The number of bytes that were prefetched and not read.
    pub(super) fn unread(&self) -> u64 {
        self.table.unread().map(|chunk| self.bytes(chunk)).sum()
    }

    /// `true` if a peer is known to have a chunk.
    pub(super) fn is_advertised(&self, chunk: u32) -> bool {
        self.maps.values().any(|map| map.has.has(chunk))
    }

    /// Notes that a disk read a chunk that is local, or that has just come because the disk waited; `account` is that
    /// of its reader. `true` if the chunk had been prefetched, and this was the first read.
    pub(super) fn read(&mut self, chunk: u32, account: Option<&mut Throttle>) -> bool {
        let before = self.table.read(chunk);
        if before == ChunkState::Read {
            return false;
        }
        let bytes = self.bytes(chunk);
        if let Some(account) = account {
            account.remove_unread(if before == ChunkState::Unread { bytes } else { 0 });
            account.add_read(bytes);
        }
        if let Some(reads) = &mut self.reads {
            reads.read(chunk);
        }
        before == ChunkState::Unread
    }
}

/// Adds a chunk to a list of runs.
pub(super) fn push(runs: &mut Vec<Chunks>, chunk: u32) {
    match runs.last_mut() {
        Some(last) if last.numbers().end == chunk => last.count += 1,
        _ => runs.push(Chunks::one(chunk)),
    }
}
