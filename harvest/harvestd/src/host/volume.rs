//! A vSSD with its lock, and the rules that keep its threads out of each other's way.
//!
//! * The FTL is behind one lock, held for look-ups (shared) and for placing and committing pages (exclusive), never
//!   while flash is read or programmed.
//! * *Ranges*: a thread that writes pages has them to itself from before it reads the content that it writes over until
//!   after the commit. Readers need no range: a page is old or new.
//! * *Turns*: pages of a flash block are programmed in the order in which they were placed. All pages that are placed
//!   under one hold of the lock are a *batch*; batches wait only for batches before them, so there is no circle of
//!   waits. A thread that has a batch finishes it before it does anything else.

use super::log::{Inner, Log};
use super::media::Media;
use super::meta::About;
use super::sampling::Meter;
use super::suspect_pages::SuspectPages;
use headstart_block::{Error, ErrorKind, Result};
use headstart_flash::device::FlashBlock;
use headstart_flash::journal::Lsn;
use headstart_flash::scheduler::Class;
use headstart_flash::vssd::{Pins, Placement, Vssd};
use headstart_flash::{VssdId, VssdKind};
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// A vSSD.
pub(crate) struct Volume {
    pub(crate) id: VssdId,
    pub(crate) name: String,
    pub(crate) kind: VssdKind,
    /// See [`Volume::channels`].
    channels: RwLock<Vec<u16>>,
    /// `true` if its size follows its leases.
    pub(crate) grows: bool,
    inner: RwLock<Inner>,
    pins: Arc<Pins>,
    size: AtomicU64,
    /// The last change known to be durable.
    durable: AtomicU64,
    pub(crate) ranges: Ranges,
    turns: Turns,
    pub(crate) meter: Meter,
    /// `true` if it is deleted, or being deleted.
    pub(crate) gone: AtomicBool,
    /// `true` if a collector runs in the background.
    pub(crate) collecting: AtomicBool,
    /// The number of threads that copy or erase blocks of it right now.
    collectors: AtomicUsize,
    /// The pages that its collectors could not read.
    pub(crate) suspect_pages: Mutex<SuspectPages>,
    /// The number of its leases that are moved for lenders that wait.
    promotions: AtomicUsize,
}

/// The guard of a lease that is moved for a lender that waits.
#[must_use]
pub(crate) struct PromotionGuard<'a>(&'a AtomicUsize);

impl Drop for PromotionGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The guard of a thread that copies or erases blocks of a volume.
#[must_use]
pub(crate) struct Collector<'a>(&'a AtomicUsize);

impl Drop for Collector<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Volume {
    pub(crate) fn new(about: About, vssd: Vssd, last: u64) -> Self {
        let About { id, name, kind, channels, grows } = about;
        Self {
            id,
            name,
            kind,
            channels: RwLock::new(channels),
            grows,
            pins: vssd.pins(),
            size: AtomicU64::new(vssd.size()),
            inner: RwLock::new(Inner { vssd, last, lsn: Lsn::default() }),
            durable: AtomicU64::new(0),
            ranges: Ranges::default(),
            turns: Turns::default(),
            meter: Meter::default(),
            gone: AtomicBool::new(false),
            collecting: AtomicBool::new(false),
            collectors: AtomicUsize::new(0),
            suspect_pages: Mutex::default(),
            promotions: AtomicUsize::new(0),
        }
    }

    pub(crate) fn about(&self) -> About {
        About {
            id: self.id,
            name: self.name.clone(),
            kind: self.kind,
            channels: self.channels(),
            grows: self.grows,
        }
    }

    /// The channels that it owns.
    pub(crate) fn channels(&self) -> Vec<u16> {
        self.channels.read().clone()
    }

    /// Replaces one of its channels by another.
    pub(crate) fn swap_channel(&self, from: u16, to: u16) {
        let mut channels = self.channels.write();
        channels.iter_mut().filter(|channel| **channel == from).for_each(|channel| *channel = to);
        channels.sort_unstable();
    }

    /// A thread that panicked left the FTL as it was before or after a call of it.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read()
    }

    /// Does the same as [`Volume::read`], exclusively.
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write()
    }

    pub(crate) fn pins(&self) -> &Pins {
        &self.pins
    }

    /// The bytes of the disk.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Its size changed, under its lock.
    pub(crate) fn resized(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    /// The class of operations that its VM waits for.
    pub(crate) fn class(&self) -> Class {
        if self.kind == VssdKind::Harvest { Class::Harvest } else { Class::Regular }
    }

    /// The class of background operations for it. If a lender waits for them, they go with the harvest VM's own
    /// operations, not after them.
    pub(crate) fn collect_class(&self) -> Class {
        match self.kind {
            VssdKind::Harvest if self.is_promoted() => Class::Harvest,
            VssdKind::Harvest => Class::HarvestCollect,
            _ => Class::RegularCollect,
        }
    }

    /// Notes that a lender waits for the data on a lease of it, until the guard is dropped.
    pub(crate) fn promote(&self) -> PromotionGuard<'_> {
        self.promotions.fetch_add(1, Ordering::SeqCst);
        PromotionGuard(&self.promotions)
    }

    /// `true` if a lender waits for the data on a lease of it.
    pub(crate) fn is_promoted(&self) -> bool {
        self.promotions.load(Ordering::Relaxed) > 0
    }

    /// Fails for a vSSD that is deleted.
    pub(crate) fn check(&self) -> Result<()> {
        if self.gone.load(Ordering::SeqCst) {
            let error = Error::new(ErrorKind::NotFound, "it is deleted");
            return Err(error.about(format_args!("vSSD {}", self.name)));
        }
        Ok(())
    }

    /// Makes all changes until now durable.
    pub(crate) fn flush(&self, log: &Log, media: &Media) -> Result<()> {
        let (last, lsn) = {
            let inner = self.read();
            (inner.last, inner.lsn)
        };
        log.sync(media, lsn)?;
        if self.durable.fetch_max(last, Ordering::AcqRel) < last {
            self.write().vssd.durable(last);
            self.turns.over();
        }
        Ok(())
    }

    /// `true` if the pages placed before it in its flash block are through.
    pub(crate) fn is_turn(&self, placement: &Placement) -> bool {
        self.read().vssd.turn(placement)
    }

    /// Waits until the pages placed before it in its flash block are through.
    pub(crate) fn wait_turn(&self, placement: &Placement) {
        loop {
            let seen = self.turns.now();
            if self.is_turn(placement) {
                return;
            }
            self.turns.wait(seen, None);
        }
    }

    /// Notes that a batch is through: others may go on.
    pub(crate) fn turn_over(&self) {
        self.turns.over();
    }

    /// Notes that a thread copies or erases blocks of it, until the guard is dropped.
    pub(crate) fn enter_collector(&self) -> Collector<'_> {
        self.collectors.fetch_add(1, Ordering::SeqCst);
        Collector(&self.collectors)
    }

    /// `true` if any part of it is read, written or collected. A thread that sees it gone does not begin any more.
    pub(crate) fn is_busy(&self, blocks: impl IntoIterator<Item = FlashBlock>) -> bool {
        // A thread that looked pages up before it was gone has pinned them when this lock is acquired.
        drop(self.write());
        let collected = self.collectors.load(Ordering::SeqCst) > 0;
        collected
            || !self.ranges.held.lock().is_empty()
            || blocks.into_iter().any(|block| self.pins.is_pinned(block))
    }

    /// Waits a moment for something to change.
    pub(crate) fn wait_a_moment(&self) {
        self.turns.wait(self.turns.now(), Some(MOMENT));
    }
}

/// The longest sleep between two checks: long beside a program, short beside a delay that a user notices.
const MOMENT: Duration = Duration::from_millis(2);

/// Pages under writes.
#[derive(Default)]
pub(crate) struct Ranges {
    held: Mutex<Vec<Range<u32>>>,
    freed: Condvar,
}

/// The guard of pages that no other thread writes, until it is dropped.
pub(crate) struct Held<'a>(&'a Ranges, Range<u32>);

impl Ranges {
    /// Waits until no thread writes any of these pages.
    pub(crate) fn enter(&self, pages: Range<u32>) -> Held<'_> {
        let mut held = self.held.lock();
        while held.iter().any(|other| other.start < pages.end && pages.start < other.end) {
            self.freed.wait(&mut held);
        }
        held.push(pages.clone());
        Held(self, pages)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut held = self.0.held.lock();
        if let Some(index) = held.iter().position(|range| *range == self.1) {
            held.swap_remove(index);
        }
        self.0.freed.notify_all();
    }
}

/// Counts events, for the threads that wait for one.
#[derive(Default)]
struct Turns {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Turns {
    fn now(&self) -> u64 {
        *self.count.lock()
    }

    fn over(&self) {
        *self.count.lock() += 1;
        self.changed.notify_all();
    }

    fn wait(&self, seen: u64, most: Option<Duration>) {
        let mut count = self.count.lock();
        while *count == seen {
            match most {
                None => self.changed.wait(&mut count),
                Some(most) => {
                    self.changed.wait_for(&mut count, most);
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_written_by_one_at_a_time() {
        let (ranges, count) = (Ranges::default(), Mutex::new(0_u32));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for first in 0..200 {
                        let _held = ranges.enter(first % 3..first % 3 + 2);
                        assert!(
                            first % 3 != 1
                                || count.try_lock().is_some_and(|mut count| {
                                    *count += 1;
                                    true
                                })
                        );
                    }
                });
            }
        });
        assert_eq!(*count.lock(), 8 * 67);
        assert!(ranges.held.lock().is_empty());
    }
}
