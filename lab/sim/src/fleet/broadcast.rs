//! The image sent to all hosts beforehand, over a tree: the baseline for a swarm.
//!
//! The store sends chunk after chunk to the first host; each host sends every chunk on to its children as soon as it
//! has it. When all hosts have everything the disks are attached, and all their reads are hits.

use super::Fleet;
use super::content::What;
use super::net::{Parcel, on_wire};
use crate::slab::NONE;
use headstart_block::exact;
use headstart_pull::{BlobRange, DiskBlobId};
use headstart_replay::time::Nanos;
use headstart_swarm::{CHUNK_SIZE, SendClass};

/// The progress of a broadcast.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tree {
    arity: u32,
    /// Chunks that are still to come, of all hosts.
    left: u64,
}

impl Fleet<'_> {
    /// Begins to send the image.
    pub(super) fn broadcast(&mut self, arity: u32) {
        let chunks = self.first_chunk.last().copied().unwrap_or(0);
        let left = u64::from(chunks) * u64::from(self.model.hosts);
        self.tree = Some(Tree { arity: arity.max(1), left });
        if left == 0 {
            self.attach_all();
        }
        for number in 0..chunks {
            let parcel = Parcel {
                what: What::Spread { to: 0, number },
                bytes: on_wire(self.length(number)),
                class: 0,
                flow: 0,
                way: [self.store, self.rack_down(0), self.hosts[0].down, NONE, NONE],
                latency: Nanos(Nanos::from_duration(self.model.links.store_round_trip).0 / 2),
                note: NONE,
            };
            self.store_bytes += self.length(number);
            self.net.send(self.now, parcel.packed(), &mut self.agenda);
        }
    }

    /// Bytes of a chunk, by its number among those of all blobs.
    fn length(&self, number: u32) -> u64 {
        self.place(number).len()
    }

    fn place(&self, number: u32) -> BlobRange {
        let blob = self.first_chunk.partition_point(|first| *first <= number).saturating_sub(1);
        let chunk = u64::from(number - self.first_chunk.get(blob).copied().unwrap_or(0));
        let blob: u32 = exact(blob, "blobs have numbers of 32 bits");
        let len = self.hosts[0].local.blobs().nth(blob as usize).map_or(0, |(len, _)| len);
        let (start, end) = (chunk * CHUNK_SIZE, (chunk + 1) * CHUNK_SIZE);
        BlobRange::between(DiskBlobId(blob), start.min(len), end.min(len))
    }

    /// Takes a chunk that has come to a host, and sends it on.
    pub(super) fn spread(&mut self, to: u32, number: u32) {
        let Some(mut tree) = self.tree else { return };
        let (range, bytes) = (self.place(number), self.length(number));
        self.hosts[to as usize].local.insert(range);
        self.hosts[to as usize].from_store += if to == 0 { bytes } else { 0 };
        let first = to.saturating_mul(tree.arity).saturating_add(1);
        for child in (first..first.saturating_add(tree.arity)).take_while(|child| *child < self.model.hosts) {
            self.hosts[to as usize].sent += bytes;
            self.send(to, child, SendClass::DemandReply, bytes, What::Spread { to: child, number }, NONE);
        }
        tree.left = tree.left.saturating_sub(1);
        self.tree = Some(tree);
        if tree.left == 0 {
            self.attach_all();
        }
    }
}
