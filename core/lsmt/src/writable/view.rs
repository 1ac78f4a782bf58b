//! A writable disk at one moment: the active pair's runs over the frozen ones over the base.
//!
//! The runs and pending records of the active pair change under a lock that no thread holds while it
//! waits for a file. All else is in a [`Generation`], which is never changed, only replaced: a reader takes
//! it along with the extents of its range, lets the lock go and reads the files, which stay readable through
//! it even when garbage collection has since dropped them from the directory.

use super::copied_up::CopiedUp;
use super::log::LogEnd;
use super::pair::Pair;
use super::policy::Limits;
use super::runs::{ExtentKind, RunMap, SectorExtent, visit_merged};
use super::space::{self, FileRange};
use crate::Segment;
use headstart_block::{BlockDevice, ByteRange, Error, Extent, Result, SECTOR_SIZE, exact};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of extents of a range that a reader takes at once: a stack array of less than a kilobyte. A read that
/// meets more takes them in several turns.
pub(super) const EXTENTS_AT_ONCE: usize = 32;

/// Everything about the disk that changes as it is written.
pub(super) struct View {
    /// Size in bytes.
    pub(super) size: u64,
    pub(super) limits: Limits,
    pub(super) generation: Arc<Generation>,
    /// The runs of the active pair.
    pub(super) runs: RunMap,
    /// Records of the active pair that no flush has taken yet, in the order of the writes.
    pub(super) pending: Vec<Segment>,
    /// The number of writes; a flush remembers the number that it reached.
    pub(super) writes: u64,
    /// One past the last sector of data that a record of the active pair names: the place of the
    /// next data, which a zeroed record carries.
    pub(super) data_mark: u64,
    /// Sectors that died by records that no flush has taken yet.
    pub(super) dying: Vec<FileRange>,
    pub(super) copied_up: CopiedUp,
}

/// The generations that are still in use.
#[derive(Default)]
pub(super) struct Alive {
    next: AtomicU64,
    numbers: Mutex<BTreeSet<u64>>,
}

impl Alive {
    fn enter(&self) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.numbers.lock().insert(number);
        number
    }

    fn leave(&self, number: u64) {
        self.numbers.lock().remove(&number);
    }

    /// The number of the oldest generation that is still in use.
    pub(super) fn oldest(&self) -> u64 {
        let numbers = self.numbers.lock();
        numbers.first().copied().unwrap_or(u64::MAX)
    }
}

/// The pairs and the base, topmost first.
pub(super) struct Generation {
    /// The number of the generation; later ones have higher numbers.
    pub(super) number: u64,
    alive: Arc<Alive>,
    pub(super) active: Arc<Pair>,
    /// The frozen levels, topmost first. They begin with the older runs of the active pair, if a commit has set
    /// them aside.
    pub(super) frozen: Vec<Arc<Frozen>>,
    pub(super) base: Option<Arc<dyn BlockDevice>>,
}

/// Runs that do not change any more, of a pair that takes no more writes or had them set aside. A pair may
/// have several of these, next to each other.
pub(super) struct Frozen {
    pub(super) pair: Arc<Pair>,
    pub(super) runs: RunMap,
}

impl View {
    /// Lays `extent` over the active pair and puts it on its way to the log; returns the new records.
    pub(super) fn write(&mut self, extent: SectorExtent) -> usize {
        let before = self.pending.len();
        let (dying, pair) = (&mut self.dying, self.generation.active.number);
        self.runs.insert_over(extent, &mut |start, len| {
            space::push(dying, FileRange { pair, start, end: start + len });
        });
        for next in extent.segments(self.data_mark) {
            self.data_mark = self.data_mark.max(next.mend());
            match self.pending.last_mut() {
                Some(last) if last.is_continued_by(next) && last.len() + next.len() <= Segment::MAX_LEN => {
                    *last = last.lengthened(next.len());
                }
                _ => self.pending.push(next),
            }
        }
        self.writes += 1;
        self.pending.len() - before
    }

    /// Copies the first extents of the sectors `[start, end)`; returns their number and their end.
    pub(super) fn extents(
        &self,
        start: u64,
        end: u64,
        extents: &mut [SectorExtent; EXTENTS_AT_ONCE],
    ) -> (usize, u64) {
        let mut count = 0;
        for (slot, extent) in extents.iter_mut().zip(self.runs.extents(start, end)) {
            *slot = extent;
            count += 1;
        }
        (count, extents[..count].last().map_or(end, |last| last.end))
    }
}

impl View {
    /// Bytes that merging may still copy up. With the bytes that it has copied, they are at most
    /// [`Limits::copied_up`], or at most the bytes that clients wrote. `live` is the sum of both.
    ///
    /// [`Limits::copied_up`]: super::Limits::copied_up
    pub(super) fn copy_room(&self, live: u64) -> u64 {
        let copied = self.copied_up.bytes().min(live);
        self.limits.copied_up.max(live - copied).saturating_sub(copied)
    }

    /// Replaces the generation by an equal one; returns its number.
    pub(super) fn renew(&mut self) -> u64 {
        let Generation { active, frozen, base, .. } = &*self.generation;
        self.generation = Arc::new(self.generation.next(Arc::clone(active), frozen.clone(), base.clone()));
        self.generation.number
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.alive.leave(self.number);
    }
}

impl Generation {
    /// The first generation of a disk.
    pub(super) fn first(
        active: Arc<Pair>,
        frozen: Vec<Arc<Frozen>>,
        base: Option<Arc<dyn BlockDevice>>,
    ) -> Self {
        let alive = Arc::<Alive>::default();
        Self { number: alive.enter(), alive, active, frozen, base }
    }

    /// A generation that takes the place of this one.
    pub(super) fn next(
        &self,
        active: Arc<Pair>,
        frozen: Vec<Arc<Frozen>>,
        base: Option<Arc<dyn BlockDevice>>,
    ) -> Self {
        Self { number: self.alive.enter(), alive: Arc::clone(&self.alive), active, frozen, base }
    }

    /// The generations of the same disk.
    pub(super) fn alive(&self) -> Arc<Alive> {
        Arc::clone(&self.alive)
    }

    /// Fills `buf`, the disk's bytes from `offset` on, as far as `extent` of the active pair covers it.
    pub(super) fn read_extent(&self, extent: SectorExtent, buf: &mut [u8], offset: u64) -> Result<()> {
        self.read_from(&self.active, 0, extent, buf, offset)
    }

    /// Reads `extent` of `pair`; if it is a hole, reads `frozen[below..]` and then the base.
    fn read_from(
        &self,
        pair: &Pair,
        below: usize,
        extent: SectorExtent,
        buf: &mut [u8],
        offset: u64,
    ) -> Result<()> {
        let (skipped, part) = overlap(extent, buf, offset);
        match extent.kind {
            ExtentKind::Data(moffset) => pair.read_at(part, moffset * SECTOR_SIZE + skipped),
            ExtentKind::Zero => {
                part.fill(0);
                Ok(())
            }
            ExtentKind::Hole => match self.frozen.get(below) {
                Some(next) => next
                    .runs
                    .extents(extent.start, extent.end)
                    .try_for_each(|extent| self.read_from(&next.pair, below + 1, extent, buf, offset)),
                None => self.read_base(part, extent.start * SECTOR_SIZE + skipped),
            },
        }
    }

    /// Reads the base; beyond it, a disk that has grown reads as zeros.
    fn read_base(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let size = self.base.as_ref().map_or(0, |base| base.size());
        let inside = size.saturating_sub(offset).min(buf.len() as u64);
        #[expect(clippy::cast_possible_truncation, reason = "at most the length of a buffer")]
        let (inside, beyond) = buf.split_at_mut(inside as usize);
        beyond.fill(0);
        match &self.base {
            Some(base) if !inside.is_empty() => base.read_at(inside, offset),
            _ => Ok(()),
        }
    }

    /// The device's extent from byte `offset` on, given the extent of the active pair that it is in.
    pub(super) fn extent(&self, extent: SectorExtent, offset: u64) -> Result<Extent> {
        self.extent_from(0, extent, offset)
    }

    fn extent_from(&self, below: usize, extent: SectorExtent, offset: u64) -> Result<Extent> {
        let end = extent.end * SECTOR_SIZE;
        let own = |zero| Ok(Extent { range: ByteRange::between(offset, end), zero });
        match extent.kind {
            ExtentKind::Data(_) => own(false),
            ExtentKind::Zero => own(true),
            ExtentKind::Hole => match self.frozen.get(below) {
                Some(next) => {
                    let extent = next.runs.extents(offset / SECTOR_SIZE, extent.end).next();
                    extent.map_or_else(|| own(true), |extent| self.extent_from(below + 1, extent, offset))
                }
                None => match &self.base {
                    Some(base) if offset < base.size() => {
                        let Extent { range, zero } = base.extent_at(offset)?;
                        Ok(Extent { range: ByteRange::between(offset, range.end().min(end)), zero })
                    }
                    _ => own(true),
                },
            },
        }
    }

    /// Calls `visit` with the merged extents of the frozen pairs, each with its pair, in order.
    pub(super) fn visit_frozen(
        &self,
        visit: &mut impl FnMut(&Pair, SectorExtent) -> Result<()>,
    ) -> Result<()> {
        let levels: Vec<_> = self.frozen.iter().map(|frozen| &frozen.runs).collect();
        let end = levels.iter().map(|runs| runs.end()).max().unwrap_or(0);
        visit_merged(&levels, 0, end, &mut |level, extent| visit(&self.frozen[level].pair, extent))
    }

    /// The ends of the logs of its pairs.
    pub(super) fn log_ends(&self) -> Vec<(u32, LogEnd)> {
        let end =
            |pair: &Arc<Pair>| (exact(pair.number, "numbers of pairs have 32 bits"), pair.log().log.end());
        self.pairs().map(end).collect()
    }

    /// All its pairs, lowest first.
    pub(super) fn pairs(&self) -> impl Iterator<Item = &Arc<Pair>> {
        let pairs = || self.frozen.iter().rev().map(|frozen| &frozen.pair).chain([&self.active]);
        // Levels of one pair follow each other; the topmost stands for it.
        let above = pairs().skip(1).map(Some).chain([None]);
        let last_of = |(pair, above): (_, Option<_>)| {
            let more = above.is_some_and(|above| Arc::ptr_eq(pair, above));
            (!more).then_some(pair)
        };
        pairs().zip(above).filter_map(last_of)
    }
}

/// The part of `buf`, which starts at byte `offset` of the disk, that `extent` covers, and the number of bytes of
/// the extent before it.
fn overlap(extent: SectorExtent, buf: &mut [u8], offset: u64) -> (u64, &mut [u8]) {
    let start = (extent.start * SECTOR_SIZE).max(offset);
    let end = (extent.end * SECTOR_SIZE).min(offset + buf.len() as u64);
    #[expect(clippy::cast_possible_truncation, reason = "places in a buffer")]
    let part = &mut buf[(start - offset) as usize..(end - offset) as usize];
    (start - extent.start * SECTOR_SIZE, part)
}

/// Checks that the sectors of `[offset, offset + len)` are whole and on a disk of `size` bytes.
pub(super) fn whole_sectors(offset: u64, len: u64, size: u64) -> Result<(u64, u64)> {
    crate::stack::check_bounds(offset, len, size)?;
    if !offset.is_multiple_of(SECTOR_SIZE) || !len.is_multiple_of(SECTOR_SIZE) {
        return Err(Error::invalid(format!("{len} bytes at offset {offset} are not whole sectors"))
            .remedy(format!("write in multiples of {SECTOR_SIZE} bytes")));
    }
    Ok((offset / SECTOR_SIZE, (offset + len) / SECTOR_SIZE))
}
