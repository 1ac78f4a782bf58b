//! The agent's fetches from the store, and the knowledge about the store that they give.
//!
//! A fetch is *timed* until another host delivers some of its chunks: then it was *overtaken*, and tells nothing of the
//! store. Beside its own fetches, the agent watches one chunk at a time that a disk fetches ([`Fetches::watch_disk`]):
//! where only disks use the store, it is the only evidence.

use crate::Time;
use crate::event::{BlobId, Chunks, StoreFetchId, Urgency};
use std::collections::BTreeMap;
use std::time::Duration;

/// The value of a fetch as a measurement of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timing {
    /// All bytes come from the store.
    Timed,
    /// Another host has delivered some of the chunks meanwhile.
    Overtaken,
}

/// A fetch of the agent from the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetch {
    pub(super) blob: BlobId,
    pub(super) chunks: Chunks,
    /// The time at which it began, or at which a read began to wait for it.
    pub(super) waiting_since: Time,
    pub(super) urgency: Urgency,
    pub(super) timing: Timing,
}

/// The store, as the last answer shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StoreHealth {
    /// The store has answered, or was not asked.
    #[default]
    Answers,
    /// The store has failed at this time, and has not answered since.
    Failed { at: Time },
}

/// A chunk that a disk fetches from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DiskFetch {
    blob: BlobId,
    chunk: u32,
    since: Time,
}

/// The running fetches.
#[derive(Debug, Default)]
pub(super) struct Fetches {
    running: BTreeMap<StoreFetchId, Fetch>,
    next: u64,
    /// The chunk of a disk that is watched.
    watched: Option<DiskFetch>,
    health: StoreHealth,
}

impl Fetches {
    /// Starts a fetch; returns its number.
    pub(super) fn start(
        &mut self,
        blob: BlobId,
        chunks: Chunks,
        urgency: Urgency,
        now: Time,
    ) -> StoreFetchId {
        let fetch = StoreFetchId(self.next);
        self.next += 1;
        let record = Fetch { blob, chunks, waiting_since: now, urgency, timing: Timing::Timed };
        self.running.insert(fetch, record);
        fetch
    }

    /// The fetch of a number.
    #[cfg(test)]
    pub(super) fn get(&self, fetch: StoreFetchId) -> Option<&Fetch> {
        self.running.get(&fetch)
    }

    /// Notes that a read waits for a fetch now.
    pub(super) fn promote(&mut self, fetch: StoreFetchId, now: Time) -> Option<Fetch> {
        let record = self.running.get_mut(&fetch)?;
        (record.waiting_since, record.urgency) = (now, Urgency::Demand);
        Some(*record)
    }

    /// Notes that another host has delivered chunks of a fetch.
    pub(super) fn overtake(&mut self, fetch: StoreFetchId) {
        if let Some(record) = self.running.get_mut(&fetch) {
            record.timing = Timing::Overtaken;
        }
    }

    /// Takes a fetch that has ended, and notes the store's health.
    pub(super) fn finish(&mut self, fetch: StoreFetchId, ok: bool, now: Time) -> Option<Fetch> {
        let record = self.running.remove(&fetch)?;
        match record.timing {
            _ if !ok => self.health = StoreHealth::Failed { at: now },
            Timing::Timed => self.health = StoreHealth::Answers,
            Timing::Overtaken => {}
        }
        Some(record)
    }

    /// Watches a chunk that is left to a disk, unless another is watched that has not taken `longest` already.
    pub(super) fn watch_disk(&mut self, blob: BlobId, chunk: u32, now: Time, longest: Duration) {
        if self.watched.is_none_or(|watched| now.since(watched.since) >= longest) {
            self.watched = Some(DiskFetch { blob, chunk, since: now });
        }
    }

    /// Notes that a disk has fetched chunks. Returns the time since when it has fetched the watched chunk, if that is
    /// among them.
    pub(super) fn disk_answered(&mut self, blob: BlobId, chunks: Chunks) -> Option<Time> {
        self.health = StoreHealth::Answers;
        let is_it =
            |watched: &mut DiskFetch| watched.blob == blob && chunks.numbers().contains(&watched.chunk);
        self.watched.take_if(is_it).map(|watched| watched.since)
    }

    /// Ends the watch of a chunk that has come, from whichever source.
    pub(super) fn chunk_came(&mut self, blob: BlobId, chunk: u32) {
        self.watched.take_if(|watched| (watched.blob, watched.chunk) == (blob, chunk));
    }

    /// Ends the watch of a blob's chunk.
    pub(super) fn forget_blob(&mut self, blob: BlobId) {
        self.watched.take_if(|watched| watched.blob == blob);
    }

    /// Notes that other hosts delivered what the store did not.
    pub(super) fn store_failed(&mut self, now: Time) {
        self.health = StoreHealth::Failed { at: now };
    }

    /// `true` if the store has failed and not answered since.
    pub(super) fn has_failed(&self) -> bool {
        self.health != StoreHealth::Answers
    }

    /// `true` if the store has failed within the last `span`, and not answered since.
    pub(super) fn has_failed_within(&self, span: Duration, now: Time) -> bool {
        matches!(self.health, StoreHealth::Failed { at } if now.since(at) < span)
    }

    /// The longest time that this host has waited for the store, at least with this urgency. A watched chunk that has
    /// taken `longest` does not count.
    pub(super) fn waits(&self, urgency: Urgency, longest: Duration, now: Time) -> Option<Duration> {
        let fetches = self.running.values().filter(|fetch| fetch.urgency <= urgency);
        let watched = self.watched.map(|watched| watched.since).filter(|since| now.since(*since) < longest);
        fetches.map(|fetch| fetch.waiting_since).chain(watched).min().map(|since| now.since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOB: BlobId = BlobId(1);
    const RUN: Chunks = Chunks { first: 4, count: 4 };
    const LONG: Duration = Duration::from_secs(1);

    #[test]
    fn a_failed_fetch_is_forgotten_with_the_next_answer_of_the_store_itself() {
        let mut fetches = Fetches::default();
        let mut end = |overtaken: bool, ok: bool, at: u64| {
            let fetch = fetches.start(BLOB, RUN, Urgency::Demand, Time(0));
            if overtaken {
                fetches.overtake(fetch);
            }
            fetches.finish(fetch, ok, Time(at));
            fetches.has_failed()
        };
        assert!(end(false, false, 10));
        assert!(end(true, true, 20), "other hosts have delivered it");
        assert!(!end(false, true, 30));
        assert!(end(true, false, 40));
        assert!(fetches.has_failed_within(Duration::from_micros(10), Time(49)));
        assert!(!fetches.has_failed_within(Duration::from_micros(10), Time(50)));
        assert_eq!(fetches.disk_answered(BLOB, RUN), None);
        assert!(!fetches.has_failed(), "a disk has got its chunks");
    }

    #[test]
    fn one_chunk_of_a_disk_is_watched_until_it_comes_or_takes_too_long() {
        let mut fetches = Fetches::default();
        fetches.watch_disk(BLOB, 5, Time(10), LONG);
        fetches.watch_disk(BLOB, 9, Time(20), LONG);
        assert_eq!(fetches.disk_answered(BLOB, Chunks::one(9)), None, "another is watched");
        assert_eq!(fetches.disk_answered(BLOB, RUN), Some(Time(10)));
        fetches.watch_disk(BLOB, 6, Time(30), LONG);
        fetches.chunk_came(BLOB, 6);
        assert_eq!(fetches.waits(Urgency::Background, LONG, Time(40)), None);
        fetches.watch_disk(BLOB, 7, Time(50), LONG);
        fetches.watch_disk(BLOB, 8, Time(50) + LONG, LONG);
        assert_eq!(fetches.disk_answered(BLOB, RUN), None, "the next one took its place");
        fetches.forget_blob(BLOB);
        assert_eq!(fetches.waits(Urgency::Background, LONG, Time(60)), None);
    }

    #[test]
    fn the_longest_wait_counts_those_that_are_urgent_enough() {
        let mut fetches = Fetches::default();
        let first = fetches.start(BLOB, RUN, Urgency::Background, Time(10));
        fetches.start(BLOB, RUN, Urgency::Demand, Time(20));
        let waits = |fetches: &Fetches, urgency| {
            fetches.waits(urgency, LONG, Time(100)).map(|waits| waits.as_micros())
        };
        assert_eq!(waits(&fetches, Urgency::Background), Some(90));
        assert_eq!(waits(&fetches, Urgency::Demand), Some(80));
        assert_eq!(fetches.promote(first, Time(30)).map(|fetch| fetch.blob), Some(BLOB));
        assert_eq!(waits(&fetches, Urgency::Background), Some(80), "the wait begins with the read");
    }
}
