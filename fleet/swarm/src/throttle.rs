//! The decision when to stop prefetching chunks that other hosts read, and when to begin again.
//!
//! Bytes that were prefetched and not read yet are *unmatched*. When they reach a threshold, this host reads other
//! chunks than the other hosts, and stops prefetching what they advertise, until some of it is read. A demand read
//! that finds its chunk at a peer that had advertised it in time shows that prefetching would have been right: when
//! such *withheld hits* reach the threshold too, all unmatched bytes are forgiven.
//!
//! Bytes that were requested ahead of need and have not come count as if they had: otherwise a fast link would bring
//! more than the threshold before the first of them can be counted.
//!
//! The account belongs to a reader: a disk. All blobs of its image count on it, because it is the disk that reads as
//! the others do or does not. A blob that no disk reads has no account, and none of it is prefetched because a peer has
//! it: a hash tree is read by those that check data by it, and is requested together with that data.
//!
//! *Invariant.* The bytes of a reader that were prefetched because of adverts and not read never exceed the threshold,
//! plus one threshold for each time that all was forgiven; and to be forgiven, the reader must have read a threshold's
//! worth of withheld bytes. Proof: `unmatched` and the forgiven bytes together are the unread bytes, since a chunk that
//! is read lessens the first or, if that is zero, the second. (Chunks that a root sends without a request count as
//! well, and can be more.)

use crate::event::{BlobId, ReaderId};
use std::collections::BTreeMap;

/// Bytes that a disk may always leave unread.
const THRESHOLD_MIN: u64 = 512 << 10;

/// The divisor of a disk's read bytes that gives its further allowance.
const READ_DIVISOR: u64 = 100;

/// The most bytes that a disk may leave unread: the paper's 512 chunks of 32 KiB.
const THRESHOLD_MAX: u64 = 16 << 20;

/// The account of one reader, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Throttle {
    /// The threshold that is set, instead of the one above.
    fixed_threshold: Option<u64>,
    unmatched: u64,
    on_its_way: u64,
    withheld_hits: u64,
    read: u64,
}

impl Throttle {
    pub(crate) fn new(set: Option<u64>) -> Self {
        Self { fixed_threshold: set, ..Self::default() }
    }

    pub(crate) fn threshold(&self) -> u64 {
        self.fixed_threshold.unwrap_or_else(|| THRESHOLD_MAX.min(THRESHOLD_MIN + self.read / READ_DIVISOR))
    }

    /// `true` if a chunk of `bytes` bytes may be requested ahead of need.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.unmatched.saturating_add(self.on_its_way).saturating_add(bytes) <= self.threshold()
    }

    /// Bytes that were prefetched and not read.
    pub(crate) fn unmatched(&self) -> u64 {
        self.unmatched
    }

    /// Bytes that are on their way ahead of need.
    #[cfg(test)]
    pub(crate) fn on_its_way(&self) -> u64 {
        self.on_its_way
    }

    /// Counts a prefetch that was requested.
    pub(crate) fn request(&mut self, bytes: u64) {
        self.on_its_way += bytes;
    }

    /// Ends the count of a prefetch: it came, or will not come, or a read waits for it now.
    pub(crate) fn complete(&mut self, bytes: u64) {
        self.on_its_way = self.on_its_way.saturating_sub(bytes);
    }

    /// Counts bytes that are local and that no read has requested yet.
    pub(crate) fn add_unread(&mut self, bytes: u64) {
        self.unmatched += bytes;
    }

    /// Takes back unread bytes that were read now, or were lost.
    pub(crate) fn remove_unread(&mut self, bytes: u64) {
        self.unmatched = self.unmatched.saturating_sub(bytes);
    }

    /// Counts bytes that a disk read for the first time.
    pub(crate) fn add_read(&mut self, bytes: u64) {
        self.read += bytes;
    }

    /// Counts a read that waits for bytes that could have been prefetched; `true` if all is forgiven now.
    pub(crate) fn withheld_hit(&mut self, bytes: u64) -> bool {
        self.withheld_hits += bytes;
        let converged = self.withheld_hits >= self.threshold();
        if converged {
            self.withheld_hits = 0;
            self.unmatched = 0;
        }
        converged
    }
}

/// The accounts of all readers of a host. A blob without a reader has none, and nothing to count.
#[derive(Debug, Default)]
pub(crate) struct Accounts(BTreeMap<ReaderId, Account>);

/// A reader's account, and the blobs that count on it.
#[derive(Debug)]
struct Account {
    throttle: Throttle,
    blobs: Vec<BlobId>,
}

impl Accounts {
    /// Makes a blob count on a reader's account from now on.
    pub(crate) fn join(&mut self, reader: ReaderId, blob: BlobId, set: Option<u64>) {
        let new = || Account { throttle: Throttle::new(set), blobs: Vec::new() };
        self.0.entry(reader).or_insert_with(new).blobs.push(blob);
    }

    /// Removes a blob from its account, and the account with its last blob. Its `unread` bytes count no more.
    pub(crate) fn leave(&mut self, reader: ReaderId, blob: BlobId, unread: u64) {
        let Some(account) = self.0.get_mut(&reader) else { return };
        account.throttle.remove_unread(unread);
        account.blobs.retain(|other| *other != blob);
        if account.blobs.is_empty() {
            self.0.remove(&reader);
        }
    }

    pub(crate) fn throttle_of(&mut self, reader: Option<ReaderId>) -> Option<&mut Throttle> {
        self.0.get_mut(&reader?).map(|account| &mut account.throttle)
    }

    /// Ends the count of a prefetch on the account of the blob's reader, if it has one.
    pub(crate) fn complete(&mut self, reader: Option<ReaderId>, bytes: u64) {
        if let Some(throttle) = self.throttle_of(reader) {
            throttle.complete(bytes);
        }
    }

    /// The blobs that count on the same account.
    pub(crate) fn blobs(&self, reader: Option<ReaderId>) -> &[BlobId] {
        reader.and_then(|reader| self.0.get(&reader)).map_or(&[], |account| &account.blobs)
    }

    pub(crate) fn unmatched(&self) -> u64 {
        self.0.values().map(|account| account.throttle.unmatched()).sum()
    }

    #[cfg(test)]
    pub(crate) fn throttles(&self) -> impl Iterator<Item = (ReaderId, &Throttle)> {
        self.0.iter().map(|(reader, account)| (*reader, &account.throttle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_follows_what_was_read() {
        let mut throttle = Throttle::new(None);
        assert_eq!(throttle.threshold(), 512 << 10);
        throttle.add_read(100 << 20);
        assert_eq!(throttle.threshold(), (512 << 10) + (1 << 20));
        throttle.add_read(100 << 30);
        assert_eq!(throttle.threshold(), 16 << 20);
    }

    #[test]
    fn unread_bytes_close_the_throttle_and_reads_open_it() {
        let mut throttle = Throttle::new(Some(100));
        throttle.request(60);
        assert!(throttle.has_room(1));
        throttle.request(40);
        assert!(!throttle.has_room(1));
        throttle.complete(60);
        throttle.add_unread(60);
        assert!(!throttle.has_room(1));
        throttle.remove_unread(60);
        assert!(throttle.has_room(1));
    }

    #[test]
    fn withheld_chunks_that_are_read_open_the_throttle() {
        let mut throttle = Throttle::new(Some(100));
        throttle.add_unread(500);
        assert!(!throttle.withheld_hit(99));
        assert!(!throttle.has_room(1));
        assert!(throttle.withheld_hit(1));
        assert!(throttle.has_room(1));
        throttle.remove_unread(500);
        assert_eq!(throttle.unmatched(), 0);
    }

    #[test]
    fn thresholds_of_nothing_and_of_everything_hold() {
        let mut never = Throttle::new(Some(0));
        assert!(!never.has_room(1));
        assert!(never.withheld_hit(1) && !never.has_room(1));
        let mut always = Throttle::new(Some(u64::MAX));
        always.add_unread(1 << 60);
        assert!(always.has_room(1));
    }
}
