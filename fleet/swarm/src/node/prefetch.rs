//! Prefetching: the bytes that are on their way ahead of need, and the order of those that are to come.
//!
//! [`Prefetch`] counts for the host: no more than a window of bytes is on its way ahead of need, and for each reader no
//! more is unread than its account allows (`throttle`). [`PrefetchQueue`] is a blob's: the advertised chunks that were
//! withheld, and the chunks that the agent wants to be warm, each in order.

use super::chunks::Aim;
use crate::CHUNK_SIZE;
use crate::event::{BlobId, Chunks, ReaderId};
use crate::settings::NodeSettings;
use crate::throttle::{Accounts, Throttle};
use std::collections::VecDeque;

/// The number of advertised runs that are remembered; beyond it, the oldest are forgotten.
const RECORDED: usize = 1 << 16;

/// The bytes that are on their way to this host ahead of need, and its readers' accounts.
#[derive(Debug)]
pub(super) struct Prefetch {
    accounts: Accounts,
    on_their_way: u64,
    window: u64,
    threshold: Option<u64>,
}

impl Prefetch {
    /// No reader, and nothing on its way.
    pub(super) fn new(settings: &NodeSettings) -> Self {
        Self {
            accounts: Accounts::default(),
            on_their_way: 0,
            window: settings.prefetch_window,
            threshold: settings.threshold,
        }
    }

    /// Makes a blob count on a reader's account, with the bytes of it that are unread.
    pub(super) fn join(&mut self, reader: ReaderId, blob: BlobId, unread: u64) {
        self.accounts.join(reader, blob, self.threshold);
        if let Some(account) = self.account(Some(reader)) {
            account.add_unread(unread);
        }
    }

    /// Removes a blob from its reader's account.
    pub(super) fn leave(&mut self, reader: ReaderId, blob: BlobId, unread: u64) {
        self.accounts.leave(reader, blob, unread);
    }

    /// The account of a reader.
    pub(super) fn account(&mut self, reader: Option<ReaderId>) -> Option<&mut Throttle> {
        self.accounts.throttle_of(reader)
    }

    /// The blob in the given place of those that count on a reader's account.
    pub(super) fn blob_of(&self, reader: Option<ReaderId>, at: usize) -> Option<BlobId> {
        self.accounts.blobs(reader).get(at).copied()
    }

    /// `true` if more may be requested ahead of need, for whatever reason.
    pub(super) fn has_window(&self) -> bool {
        self.on_their_way < self.window
    }

    /// `true` if a chunk that other hosts read may be requested for a reader.
    pub(super) fn has_room(&mut self, reader: Option<ReaderId>) -> bool {
        self.has_window() && self.account(reader).is_some_and(|account| account.has_room(CHUNK_SIZE))
    }

    /// Counts a chunk that is put on its way.
    pub(super) fn begin(&mut self, aim: Aim, reader: Option<ReaderId>, bytes: u64) {
        if aim == Aim::Prefetch
            && let Some(account) = self.account(reader)
        {
            account.request(bytes);
        }
        self.on_their_way += if aim == Aim::Needed { 0 } else { bytes };
    }

    /// Ends the count of a chunk that was put on its way for this reason: it has come, will not come, or is needed now.
    pub(super) fn end(&mut self, aim: Aim, reader: Option<ReaderId>, bytes: u64) {
        match aim {
            Aim::Needed => return,
            Aim::Warm => {}
            Aim::Prefetch => self.accounts.complete(reader, bytes),
        }
        self.on_their_way = self.on_their_way.saturating_sub(bytes);
    }

    /// Bytes that were prefetched and not read yet, and not forgiven.
    pub(super) fn unmatched(&self) -> u64 {
        self.accounts.unmatched()
    }

    /// Bytes on their way ahead of need.
    #[cfg(test)]
    pub(super) fn on_their_way(&self) -> u64 {
        self.on_their_way
    }

    /// The accounts of all readers.
    #[cfg(test)]
    pub(super) fn throttles(&self) -> impl Iterator<Item = (ReaderId, &Throttle)> {
        self.accounts.throttles()
    }
}

/// The chunks of a blob that are to be prefetched, in order.
#[derive(Debug, Default)]
pub(super) struct PrefetchQueue {
    /// Chunks that were advertised and not requested.
    advertised: VecDeque<Chunks>,
    /// Chunks that the agent wants to be warm and that were not requested.
    warming: VecDeque<Chunks>,
    /// `true` while a disk follows a plan: adverts are only noted.
    pub(super) is_planned: bool,
}

impl PrefetchQueue {
    /// `true` if nothing is to be prefetched.
    pub(super) fn is_empty(&self) -> bool {
        self.advertised.is_empty() && self.warming.is_empty()
    }

    /// Adds advertised chunks. Returns the number of runs before.
    pub(super) fn advertise(&mut self, runs: Vec<Chunks>) -> usize {
        let before = self.advertised.len();
        self.advertised.extend(runs);
        before
    }

    /// The number of advertised chunks behind the first `runs` runs; then forgets the oldest of too many runs.
    pub(super) fn withheld(&mut self, runs: usize) -> u64 {
        let withheld = self.advertised.iter().skip(runs.min(self.advertised.len()));
        let chunks = withheld.map(|run| u64::from(run.count)).sum();
        let too_many = self.advertised.len().saturating_sub(RECORDED);
        self.advertised.drain(..too_many);
        chunks
    }

    /// Adds chunks that are to be warm.
    pub(super) fn warm(&mut self, run: Chunks) {
        self.warming.extend((run.count > 0).then_some(run));
    }

    /// Takes the next chunk that is to be warm.
    pub(super) fn next_warm(&mut self) -> Option<u32> {
        pop(&mut self.warming)
    }

    /// Takes the next advertised chunk.
    pub(super) fn next_advertised(&mut self) -> Option<u32> {
        pop(&mut self.advertised)
    }
}

/// Takes the first chunk of the first run.
fn pop(runs: &mut VecDeque<Chunks>) -> Option<u32> {
    let first = runs.front_mut()?;
    let chunk = first.first;
    if first.count <= 1 {
        runs.pop_front();
    } else {
        *first = Chunks { first: chunk + 1, count: first.count - 1 };
    }
    Some(chunk)
}

#[cfg(test)]
mod tests {
    use super::*;

    const READER: Option<ReaderId> = Some(ReaderId(1));

    fn prefetch() -> Prefetch {
        let settings = NodeSettings {
            prefetch_window: 2 * CHUNK_SIZE,
            threshold: Some(2 * CHUNK_SIZE),
            ..NodeSettings::default()
        };
        let mut prefetch = Prefetch::new(&settings);
        prefetch.join(ReaderId(1), BlobId(1), 0);
        prefetch
    }

    #[test]
    fn prefetches_in_flight_stay_within_the_window() {
        let mut prefetch = prefetch();
        prefetch.begin(Aim::Needed, READER, 9 * CHUNK_SIZE);
        assert!(prefetch.has_window(), "it is needed");
        prefetch.begin(Aim::Warm, READER, CHUNK_SIZE);
        prefetch.begin(Aim::Prefetch, READER, CHUNK_SIZE);
        assert!(!prefetch.has_window());
        prefetch.end(Aim::Needed, READER, 9 * CHUNK_SIZE);
        assert!(!prefetch.has_window());
        prefetch.end(Aim::Warm, READER, CHUNK_SIZE);
        assert!(prefetch.has_window() && prefetch.has_room(READER));
        assert!(!prefetch.has_room(None), "a blob without a reader has no account");
    }

    #[test]
    fn unread_bytes_count_on_the_account_of_their_reader() {
        let mut prefetch = prefetch();
        prefetch.join(ReaderId(1), BlobId(2), CHUNK_SIZE);
        assert_eq!((prefetch.blob_of(READER, 1), prefetch.blob_of(READER, 2)), (Some(BlobId(2)), None));
        prefetch.begin(Aim::Prefetch, READER, CHUNK_SIZE);
        assert!(!prefetch.has_room(READER));
        prefetch.end(Aim::Prefetch, READER, CHUNK_SIZE);
        assert!(prefetch.has_room(READER));
        assert_eq!(prefetch.unmatched(), CHUNK_SIZE);
        prefetch.leave(ReaderId(1), BlobId(2), CHUNK_SIZE);
        assert_eq!(prefetch.unmatched(), 0);
    }

    #[test]
    fn chunks_are_taken_in_the_order_of_the_adverts() {
        let mut queue = PrefetchQueue::default();
        assert_eq!(queue.advertise(vec![Chunks { first: 5, count: 2 }, Chunks::one(1)]), 0);
        assert_eq!(queue.next_advertised(), Some(5));
        assert_eq!(queue.advertise(vec![Chunks { first: 8, count: 3 }]), 2);
        assert_eq!(queue.withheld(2), 3);
        assert_eq!([queue.next_advertised(), queue.next_advertised()], [Some(6), Some(1)]);
        assert_eq!(queue.withheld(2), 0, "fewer are left");
        assert_eq!(queue.next_warm(), None);
        queue.warm(Chunks { first: 3, count: 0 });
        queue.warm(Chunks::one(4));
        assert_eq!([queue.next_warm(), queue.next_warm()], [Some(4), None]);
        assert!(!queue.is_empty());
    }

    #[test]
    fn the_oldest_of_very_many_adverts_are_forgotten() {
        let mut queue = PrefetchQueue::default();
        queue.advertise((0..u32::try_from(RECORDED).unwrap() + 7).map(|n| Chunks::one(2 * n)).collect());
        queue.withheld(0);
        assert_eq!(queue.next_advertised(), Some(14));
    }
}
