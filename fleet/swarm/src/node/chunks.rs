//! The chunks of a blob: local, remote, or on their way here.
//!
//! ```text
//!                    it is wanted, to be prefetched, or to be warm
//!     Remote ─────────────────────────────────────────────────────► Pending(aim)
//!      ▲  ▲                                                          │  │    │
//!      │  └────────── no host sends it, and nothing waits ───────────┘  │    │ it comes
//!      │                           it comes because it was advertised   │    │ for another reason
//!      │                                                                ▼    ▼
//!      │ evicted                                                   Unread    Kept
//!      │                                                                │    │
//!      └──────────────────────────────────────────────── Read ◄────── a disk reads it
//! ```
//!
//! The states are those of the content-exchange paper, with two differences. `Written` is missing: blobs never change,
//! and a guest's writes go to a layer of their own, which no other host learns of. And a chunk that is local because a
//! plan or another host requested it is `Kept`: it says nothing about whether this host reads as its neighbours do, so
//! it does not count as unmatched.
//!
//! A chunk has a [`PendingChunk`] if and only if its state is `Pending`: both change together, and only here. A local
//! chunk that is on its way cannot be expressed, nor one that is on its way for two reasons: if a prefetched chunk is
//! wanted, its aim is another from then on.

use super::pending::PendingChunk;
use crate::event::{Chunks, Urgency};
use std::collections::BTreeMap;

/// The reason why a chunk is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    /// A disk or another host requested it.
    Needed,
    /// Other hosts read it.
    Prefetch,
    /// The agent was told to fetch it.
    Warm,
}

/// The state of a chunk: one byte each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkState {
    /// Not local.
    Remote,
    /// On its way here.
    Pending(Aim),
    /// Local because other hosts read it, and not read yet: unmatched.
    Unread,
    /// Local for another reason (a plan, or another host's request), and not read as far as is known.
    Kept,
    /// Local, and read.
    Read,
}

/// The states of all chunks of a blob.
#[derive(Debug)]
pub(super) struct ChunkTable {
    states: Vec<ChunkState>,
    pending: BTreeMap<u32, PendingChunk>,
}

impl ChunkTable {
    /// So many chunks, all of them remote.
    pub(super) fn new(chunks: u32) -> Self {
        Self { states: vec![ChunkState::Remote; chunks as usize], pending: BTreeMap::new() }
    }

    /// The state of a chunk; `Remote` beyond the blob's end.
    pub(super) fn state(&self, chunk: u32) -> ChunkState {
        self.states.get(chunk as usize).copied().unwrap_or(ChunkState::Remote)
    }

    fn set(&mut self, chunk: u32, state: ChunkState) {
        if let Some(record) = self.states.get_mut(chunk as usize) {
            *record = state;
        }
    }

    /// `true` if a chunk is local.
    pub(super) fn is_local(&self, chunk: u32) -> bool {
        matches!(self.state(chunk), ChunkState::Unread | ChunkState::Kept | ChunkState::Read)
    }

    /// `true` if a chunk is neither local nor on its way.
    pub(super) fn is_remote(&self, chunk: u32) -> bool {
        self.state(chunk) == ChunkState::Remote
    }

    /// `true` if a chunk is not local, and not prefetched already.
    pub(super) fn is_news(&self, chunk: u32) -> bool {
        use {Aim::Prefetch, ChunkState::Pending};
        !self.is_local(chunk) && self.state(chunk) != Pending(Prefetch)
    }

    /// The number of chunks in state `Unread`, by their numbers.
    pub(super) fn unread(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.states).filter(|(_, state)| **state == ChunkState::Unread).map(|(chunk, _)| chunk)
    }

    /// Puts a remote chunk on its way.
    pub(super) fn begin(&mut self, chunk: u32, aim: Aim, urgency: Urgency, hops: u8) -> &mut PendingChunk {
        debug_assert!(self.is_remote(chunk), "a chunk is put on its way once");
        self.set(chunk, ChunkState::Pending(aim));
        self.pending.entry(chunk).or_insert_with(|| PendingChunk::new(urgency, hops))
    }

    /// The reason why a chunk is on its way, if it is.
    pub(super) fn aim(&self, chunk: u32) -> Option<Aim> {
        match self.state(chunk) {
            ChunkState::Pending(aim) => Some(aim),
            _ => None,
        }
    }

    /// Notes that a chunk that is on its way is needed now. Returns the reason before.
    pub(super) fn need(&mut self, chunk: u32) -> Option<Aim> {
        let before = self.aim(chunk)?;
        self.set(chunk, ChunkState::Pending(Aim::Needed));
        Some(before)
    }

    /// Takes a chunk that is on its way: it is remote then.
    pub(super) fn end(&mut self, chunk: u32) -> Option<(Aim, PendingChunk)> {
        let aim = self.aim(chunk)?;
        self.set(chunk, ChunkState::Remote);
        self.pending.remove(&chunk).map(|pending| (aim, pending))
    }

    /// Makes a remote chunk local: `unread` if it came because other hosts read it.
    pub(super) fn came(&mut self, chunk: u32, unread: bool) {
        debug_assert!(self.is_remote(chunk), "a local chunk is not on its way");
        self.set(chunk, if unread { ChunkState::Unread } else { ChunkState::Kept });
    }

    /// Notes that a chunk is local from the beginning.
    pub(super) fn keep(&mut self, chunk: u32) {
        if self.is_remote(chunk) {
            self.came(chunk, false);
        }
    }

    /// Notes that a disk has read a local chunk. Returns the state before.
    pub(super) fn read(&mut self, chunk: u32) -> ChunkState {
        let before = self.state(chunk);
        if self.is_local(chunk) {
            self.set(chunk, ChunkState::Read);
        }
        before
    }

    /// Notes that a chunk is not local any more. Returns the state before, if it was local.
    pub(super) fn lost(&mut self, chunk: u32) -> Option<ChunkState> {
        let before = self.state(chunk);
        self.is_local(chunk).then(|| {
            self.set(chunk, ChunkState::Remote);
            before
        })
    }

    /// A chunk that is on its way.
    pub(super) fn pending(&self, chunk: u32) -> Option<&PendingChunk> {
        self.pending.get(&chunk)
    }

    /// A chunk that is on its way, to be changed.
    pub(super) fn pending_mut(&mut self, chunk: u32) -> Option<&mut PendingChunk> {
        self.pending.get_mut(&chunk)
    }

    /// The chunks of a run that are on their way, ascending.
    pub(super) fn pending_of(&self, run: Chunks) -> impl Iterator<Item = (u32, &PendingChunk)> {
        self.pending.range(run.numbers()).map(|(chunk, pending)| (*chunk, pending))
    }

    /// The chunks of a run that are on their way, to be changed, ascending.
    pub(super) fn pending_of_mut(&mut self, run: Chunks) -> impl Iterator<Item = (u32, &mut PendingChunk)> {
        self.pending.range_mut(run.numbers()).map(|(chunk, pending)| (*chunk, pending))
    }

    /// All chunks that are on their way, ascending.
    pub(super) fn all_pending(&self) -> impl Iterator<Item = (u32, &PendingChunk)> {
        self.pending.iter().map(|(chunk, pending)| (*chunk, pending))
    }

    /// All chunks that are on their way, to be changed, ascending.
    pub(super) fn all_pending_mut(&mut self) -> impl Iterator<Item = (u32, &mut PendingChunk)> {
        self.pending.iter_mut().map(|(chunk, pending)| (*chunk, pending))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_state_takes_a_byte() {
        assert_eq!(size_of::<ChunkState>(), 1);
    }

    #[test]
    fn a_prefetched_chunk_that_is_wanted_is_needed_and_kept() {
        let mut table = ChunkTable::new(4);
        table.begin(1, Aim::Prefetch, Urgency::Background, 3);
        assert!(!table.is_news(1) && table.is_news(2) && !table.is_remote(1) && !table.is_local(1));
        assert_eq!(table.need(1), Some(Aim::Prefetch));
        assert_eq!(table.need(1), Some(Aim::Needed));
        assert!(table.is_news(1), "its adverts are noted");
        let (aim, pending) = table.end(1).unwrap();
        assert_eq!((aim, pending.hops, table.state(1)), (Aim::Needed, 3, ChunkState::Remote));
        table.came(1, false);
        assert!(table.is_local(1) && table.pending(1).is_none());
        assert_eq!(table.unread().count(), 0);
    }

    #[test]
    fn an_unread_chunk_is_read_or_lost() {
        let mut table = ChunkTable::new(4);
        table.came(0, true);
        table.came(3, true);
        assert_eq!(table.unread().collect::<Vec<_>>(), [0, 3]);
        assert_eq!(table.read(0), ChunkState::Unread);
        assert_eq!(table.read(0), ChunkState::Read);
        assert_eq!(table.lost(3), Some(ChunkState::Unread));
        assert_eq!(table.lost(3), None);
        assert_eq!(table.read(3), ChunkState::Remote, "a chunk that is not local is not read");
        assert_eq!((table.state(3), table.state(9)), (ChunkState::Remote, ChunkState::Remote));
    }

    #[test]
    fn chunks_on_their_way_are_found_by_their_run() {
        let mut table = ChunkTable::new(10);
        for chunk in [2, 4, 8] {
            table.begin(chunk, Aim::Needed, Urgency::Demand, 0);
        }
        let of = |first, count| table.pending_of(Chunks { first, count }).map(|(chunk, _)| chunk);
        assert_eq!(of(3, 6).collect::<Vec<_>>(), [4, 8]);
        assert_eq!(table.all_pending().map(|(chunk, _)| chunk).collect::<Vec<_>>(), [2, 4, 8]);
    }
}
