//! When to stop prefetching what others read, and when to begin again.
//!
//! What was prefetched and not read yet is *unmatched*. Where that reaches a threshold, this host reads other things
//! than the others do, and stops to prefetch what they advertise, but for what is read of it in the end. A demand
//! read that finds its chunk at a peer which had advertised it in time shows that prefetching would have been right:
//! when such *withheld hits* reach the threshold too, all that is unmatched is forgiven.
//!
//! What was asked for ahead of need and has not come counts as if it had: else a fast link would bring more than the
//! threshold before the first of it can be counted.
//!
//! The account is a reader's: a disk's. All blobs of its image count on it, for it is the disk that reads as the
//! others do or does not. What no disk reads has no account, and nothing of it is prefetched because somebody has
//! it: a hash tree is read by whoever checks data by it, and is asked for together with that data.
//!
//! *What holds.* A reader never has more than the threshold that was prefetched because it was advertised and was
//! not read, once more for each time that all was forgiven; and to be forgiven, it must have read a threshold's worth
//! of what was withheld. For `unmatched` and what was forgiven are together what is unread: a chunk that is read
//! lessens the first, and where that is nothing the second. (What a root sends unasked counts as well, and can be
//! more.)

use crate::event::{BlobId, ReaderId};
use std::collections::BTreeMap;

/// What a disk may always leave unread.
const LEAST: u64 = 512 << 10;

/// And of what it has read, one part of so many more.
const PART: u64 = 100;

/// But never more than this: the paper's 512 chunks of 32 KiB.
const MOST: u64 = 16 << 20;

/// The account of one reader, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Throttle {
    /// What is set, instead of the above.
    set: Option<u64>,
    unmatched: u64,
    asked: u64,
    withheld_hits: u64,
    read: u64,
}

impl Throttle {
    pub(crate) fn new(set: Option<u64>) -> Self {
        Self { set, ..Self::default() }
    }

    pub(crate) fn threshold(&self) -> u64 {
        self.set.unwrap_or_else(|| MOST.min(LEAST + self.read / PART))
    }

    /// Whether a chunk of so many bytes may be asked for ahead of need.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.unmatched.saturating_add(self.asked).saturating_add(bytes) <= self.threshold()
    }

    /// What was prefetched and not read.
    pub(crate) fn unmatched(&self) -> u64 {
        self.unmatched
    }

    /// What is on its way ahead of need.
    #[cfg(test)]
    pub(crate) fn on_its_way(&self) -> u64 {
        self.asked
    }

    /// A prefetch was asked for.
    pub(crate) fn asked(&mut self, bytes: u64) {
        self.asked += bytes;
    }

    /// It is none any more: it came, or will not come, or somebody waits for it now.
    pub(crate) fn settled(&mut self, bytes: u64) {
        self.asked = self.asked.saturating_sub(bytes);
    }

    /// Something is here that nobody asked for yet.
    pub(crate) fn unread(&mut self, bytes: u64) {
        self.unmatched += bytes;
    }

    /// Such was read now, or was lost.
    pub(crate) fn matched(&mut self, bytes: u64) {
        self.unmatched = self.unmatched.saturating_sub(bytes);
    }

    /// A disk read so much for the first time.
    pub(crate) fn read(&mut self, bytes: u64) {
        self.read += bytes;
    }

    /// A read waits for what could have been prefetched: whether all is forgiven now.
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

/// The accounts of all readers that a host has. Without a reader there is none, and nothing to count.
#[derive(Debug, Default)]
pub(crate) struct Accounts(BTreeMap<ReaderId, Account>);

/// A reader's account, and the blobs that count on it.
#[derive(Debug)]
struct Account {
    throttle: Throttle,
    blobs: Vec<BlobId>,
}

impl Accounts {
    /// A blob counts on a reader's account from now on.
    pub(crate) fn join(&mut self, reader: ReaderId, blob: BlobId, set: Option<u64>) {
        let new = || Account { throttle: Throttle::new(set), blobs: Vec::new() };
        self.0.entry(reader).or_insert_with(new).blobs.push(blob);
    }

    /// It is gone; an account of none is, too. `unread` bytes of it are nobody's.
    pub(crate) fn leave(&mut self, reader: ReaderId, blob: BlobId, unread: u64) {
        let Some(account) = self.0.get_mut(&reader) else { return };
        account.throttle.matched(unread);
        account.blobs.retain(|known| *known != blob);
        if account.blobs.is_empty() {
            self.0.remove(&reader);
        }
    }

    pub(crate) fn of(&mut self, reader: Option<ReaderId>) -> Option<&mut Throttle> {
        self.0.get_mut(&reader?).map(|account| &mut account.throttle)
    }

    /// A prefetch of a blob that counts on a reader's account, if any does, is none any more.
    pub(crate) fn settled(&mut self, reader: Option<ReaderId>, bytes: u64) {
        if let Some(throttle) = self.of(reader) {
            throttle.settled(bytes);
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
        throttle.read(100 << 20);
        assert_eq!(throttle.threshold(), (512 << 10) + (1 << 20));
        throttle.read(100 << 30);
        assert_eq!(throttle.threshold(), 16 << 20);
    }

    #[test]
    fn what_is_unread_or_on_its_way_closes_it_and_what_is_read_opens_it() {
        let mut throttle = Throttle::new(Some(100));
        throttle.asked(60);
        assert!(throttle.has_room(1));
        throttle.asked(40);
        assert!(!throttle.has_room(1));
        throttle.settled(60);
        throttle.unread(60);
        assert!(!throttle.has_room(1));
        throttle.matched(60);
        assert!(throttle.has_room(1));
    }

    #[test]
    fn withheld_hits_open_it_again() {
        let mut throttle = Throttle::new(Some(100));
        throttle.unread(500);
        assert!(!throttle.withheld_hit(99));
        assert!(!throttle.has_room(1));
        assert!(throttle.withheld_hit(1));
        assert!(throttle.has_room(1));
        throttle.matched(500);
        assert_eq!(throttle.unmatched(), 0);
    }

    #[test]
    fn the_extremes() {
        let mut never = Throttle::new(Some(0));
        assert!(!never.has_room(1));
        assert!(never.withheld_hit(1) && !never.has_room(1));
        let mut always = Throttle::new(Some(u64::MAX));
        always.unread(1 << 60);
        assert!(always.has_room(1));
    }
}
