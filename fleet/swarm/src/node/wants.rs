//! The wants of this host's disks, which wait for chunks.
//!
//! ```text
//!                     a chunk comes, or is left to the disk          the last one
//!     Waiting(n) ──────────────────────────────────────► Waiting(n-1) ──────────► Complete ──► answered
//!          │                                    the time is over                     ▲
//!          └────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A want that is complete is answered within the same event: the answer comes after the bytes that the same event
//! gives to other hosts.

use super::blob::push;
use crate::Time;
use crate::event::{Action, BlobId, Chunks, Urgency, WantId};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// The progress of a want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WantState {
    /// The want waits for this number of chunks.
    Waiting(NonZeroU32),
    /// The want waits for nothing, and is to be answered.
    Complete,
}

/// The want of a disk.
#[derive(Debug)]
pub(super) struct Want {
    /// The blob.
    pub(super) blob: BlobId,
    /// The urgency.
    pub(super) urgency: Urgency,
    /// The time at which the disk reported it.
    pub(super) wanted_at: Time,
    state: WantState,
    /// The chunks that the disk is to fetch from the store.
    from_store: Vec<u32>,
}

impl Want {
    /// A want of `waited` chunks; those of `from_store` are left to the disk.
    pub(super) fn new(
        blob: BlobId,
        urgency: Urgency,
        wanted_at: Time,
        waited: u32,
        from_store: Vec<u32>,
    ) -> Self {
        Self { blob, urgency, wanted_at, state: WantState::of(waited), from_store }
    }

    /// The number of chunks that it waits for.
    pub(super) fn remaining(&self) -> u32 {
        match self.state {
            WantState::Waiting(chunks) => chunks.get(),
            WantState::Complete => 0,
        }
    }

    /// Counts a chunk less; `true` if it waited for this one only.
    fn count_down(&mut self) -> bool {
        let WantState::Waiting(chunks) = self.state else { return false };
        self.state = WantState::of(chunks.get() - 1);
        self.state == WantState::Complete
    }
}

impl WantState {
    fn of(chunks: u32) -> Self {
        NonZeroU32::new(chunks).map_or(Self::Complete, Self::Waiting)
    }
}

/// All wants that were not answered.
#[derive(Debug, Default)]
pub(super) struct Wants(BTreeMap<WantId, Want>);

impl Wants {
    /// Adds a want.
    pub(super) fn add(&mut self, want: WantId, record: Want) {
        self.0.insert(want, record);
    }

    /// The want of a number.
    pub(super) fn get(&self, want: WantId) -> Option<&Want> {
        self.0.get(&want)
    }

    /// Notes that a chunk of a want has come. Returns the want's urgency, and `true` if it is complete now.
    pub(super) fn chunk_came(&mut self, want: WantId) -> Option<(Urgency, bool)> {
        let record = self.0.get_mut(&want)?;
        let complete = record.count_down();
        Some((record.urgency, complete))
    }

    /// Leaves a chunk of a want to its disk; `true` if the want is complete now.
    pub(super) fn leave_to_disk(&mut self, want: WantId, chunk: u32) -> bool {
        let Some(record) = self.0.get_mut(&want) else { return false };
        record.from_store.push(chunk);
        record.count_down()
    }

    /// Leaves all chunks that a want still waits for to its disk.
    pub(super) fn leave_rest_to_disk(&mut self, want: WantId, chunks: Vec<u32>) {
        if let Some(record) = self.0.get_mut(&want) {
            record.from_store.extend(chunks);
            record.state = WantState::Complete;
        }
    }

    /// Takes a want if it is complete. Returns its answer, and the number of chunks that are left to the disk.
    pub(super) fn take_answer(&mut self, want: WantId) -> Option<(Action, usize)> {
        if self.0.get(&want)?.state != WantState::Complete {
            return None;
        }
        let mut left = self.0.remove(&want)?.from_store;
        left.sort_unstable();
        let mut from_store: Vec<Chunks> = Vec::new();
        left.iter().for_each(|chunk| push(&mut from_store, *chunk));
        Some((Action::Answer { want, from_store }, left.len()))
    }

    /// Removes a want that needs no answer; returns its blob.
    pub(super) fn forget(&mut self, want: WantId) -> Option<BlobId> {
        self.0.remove(&want).map(|record| record.blob)
    }

    /// Removes all wants of a blob.
    pub(super) fn forget_blob(&mut self, blob: BlobId) {
        self.0.retain(|_, want| want.blob != blob);
    }

    /// All wants.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (&WantId, &Want)> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANT: WantId = WantId(1);

    fn wants(waited: u32, from_store: Vec<u32>) -> Wants {
        let mut wants = Wants::default();
        wants.add(WANT, Want::new(BlobId(7), Urgency::Demand, Time(0), waited, from_store));
        wants
    }

    #[test]
    fn a_want_is_answered_when_its_last_chunk_has_come_or_was_left_to_the_disk() {
        let mut wants = wants(3, vec![9]);
        assert_eq!(wants.chunk_came(WANT), Some((Urgency::Demand, false)));
        assert!(!wants.leave_to_disk(WANT, 4));
        assert!(wants.take_answer(WANT).is_none(), "one chunk is missing");
        assert!(wants.leave_to_disk(WANT, 3));
        let (answer, left) = wants.take_answer(WANT).unwrap();
        let from_store = vec![Chunks { first: 3, count: 2 }, Chunks::one(9)];
        assert_eq!((answer, left), (Action::Answer { want: WANT, from_store }, 3));
        assert!(wants.take_answer(WANT).is_none(), "once");
        assert_eq!(wants.chunk_came(WANT), None);
    }

    #[test]
    fn a_want_of_local_chunks_is_complete_at_once() {
        assert_eq!(wants(0, Vec::new()).take_answer(WANT).unwrap().1, 0);
    }

    #[test]
    fn the_rest_of_a_want_is_left_to_the_disk_when_its_time_is_over() {
        let mut wants = wants(2, Vec::new());
        wants.leave_rest_to_disk(WANT, vec![5, 6]);
        assert_eq!(wants.take_answer(WANT).unwrap().1, 2);
    }

    #[test]
    fn forgotten_wants_are_not_answered() {
        let mut first = wants(0, Vec::new());
        assert_eq!(first.forget(WANT), Some(BlobId(7)));
        assert!(first.take_answer(WANT).is_none());
        let mut second = wants(0, Vec::new());
        second.forget_blob(BlobId(8));
        assert!(second.get(WANT).is_some());
        second.forget_blob(BlobId(7));
        assert!(second.get(WANT).is_none());
    }
}
