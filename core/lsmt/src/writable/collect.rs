//! Freezing the active pair, and collecting the garbage of frozen ones.

use super::copied_up::CopiedUp;
use super::pair::{self, Pair};
use super::runs::{ExtentKind, RunMap, SectorExtent};
use super::state::{PAIRS_MAX, State};
use super::view::{EXTENTS_AT_ONCE, Frozen, Generation};
use super::{Flusher, Maintenance, WritableDisk};
use crate::Segment;
use crate::format::FIRST_DATA_SECTOR;
use headstart_block::{BlockDevice, Error, ErrorKind, Result, SECTOR_SIZE};
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The longest wait for others that look whether they have work.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes that garbage collection copies at once.
const COPY_CHUNK: usize = 1 << 20;

/// The space that the files of a writable disk take, and how much of it is live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WritableUsage {
    /// Bytes that all data and index files of the disk take, without the holes that garbage collection made.
    pub file_bytes: u64,
    /// Bytes of stored data that reads can still return.
    pub live_bytes: u64,
    /// Bytes of stored data that were overwritten or discarded, so that garbage collection would free them.
    /// Index records do not count.
    pub garbage_bytes: u64,
    /// Number of pairs of a data file and an index file that the disk has, with the active pair, which takes the
    /// writes.
    pub pairs: usize,
    /// Number of runs (entries of the map from the disk's sectors to stored data) in memory; each takes about
    /// 50 bytes.
    pub runs: usize,
}

/// The result of [`WritableDisk::collect_garbage`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Bytes of live data that were copied to new files.
    pub copied_bytes: u64,
    /// Bytes by which the files of the disk became smaller; 0 if they did not.
    pub reclaimed_bytes: u64,
}

impl WritableDisk {
    /// Returns the space that the disk takes, to decide when to collect garbage. The time that this takes is
    /// proportional to the number of runs in the pairs below the active one.
    #[must_use]
    pub fn usage(&self) -> WritableUsage {
        let (generation, mut live, runs) = {
            let view = self.view();
            (view.generation.clone(), view.runs.data_sectors(), view.runs.len())
        };
        // The visitor reads no file, so it cannot fail.
        let _ = self.visit_live(&generation, &mut |_, extent| {
            live += if extent.kind == ExtentKind::Zero { 0 } else { extent.len() };
            Ok(())
        });
        let taken: u64 = generation.pairs().map(|pair| pair.data_sectors()).sum();
        WritableUsage {
            file_bytes: generation.pairs().map(|pair| pair.file_bytes()).sum(),
            live_bytes: live * SECTOR_SIZE,
            garbage_bytes: taken.saturating_sub(live) * SECTOR_SIZE,
            pairs: generation.pairs().count(),
            runs: generation.frozen.iter().fold(runs, |sum, frozen| sum + frozen.runs.len()),
        }
    }

    /// Collects all garbage at once: copies live data to new files and removes the old ones, while reads and
    /// writes go on. (A disk with 64 pairs, the most that it may have, keeps the garbage in its active pair.)
    /// During the copy, the live data takes space twice. If the space does not suffice or
    /// anything else fails, the disk keeps its content. Nothing is done, and the result has zeros, if there is no
    /// garbage and at most one pair below the active one. For small steps beside clients, see
    /// [`collect`](Self::collect).
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] while another collection or a commit is in progress, or a committed layer
    /// waits for [`replace_frozen`](Self::replace_frozen); errors of the files.
    pub fn collect_garbage(&self) -> Result<Collected> {
        let maintenance = self.maintain()?;
        maintenance.check_not_awaiting()?;
        let before = self.usage();
        if before.garbage_bytes == 0 && before.pairs <= 2 {
            return Ok(Collected::default());
        }
        if before.pairs < PAIRS_MAX {
            self.freeze()?;
        }
        let number = self.take_number();
        let (copied, pair) = self.replace_by_copy(number).inspect_err(|_| {
            // If the state is in doubt it may name the copy.
            if self.check_usable().is_ok() {
                pair::remove_files(&*self.directory, number);
            }
        })?;
        if pair.is_none() {
            pair::remove_files(&*self.directory, number);
        }
        let reclaimed_bytes = before.file_bytes.saturating_sub(self.usage().file_bytes);
        Ok(Collected { copied_bytes: copied, reclaimed_bytes })
    }

    /// Copies the live data of the frozen pairs into pair `number`, and puts that pair in their place.
    fn replace_by_copy(&self, number: u64) -> Result<(u64, Option<Arc<Frozen>>)> {
        let generation = self.generation();
        let pair = Pair::create(&*self.directory, &self.state.lock().clone(), number)?;
        let mut copy = Copy::new(&pair);
        self.visit_live(&generation, &mut |from, extent| match (extent.kind, &generation.base) {
            // Set aside, and not to be collected.
            _ if from.number == generation.active.number => Ok(()),
            (ExtentKind::Data(_), _) => copy.data(from, extent),
            (_, base) => copy.zeroes(extent, base.as_deref()),
        })?;
        let (segments, copied) = copy.finish()?;
        self.directory.sync()?;
        // Data that was left out because the active pair hides it must stay hidden after a crash.
        self.flush()?;
        let runs: RunMap = segments.into_iter().collect();
        let kept = (!runs.is_empty()).then(|| Arc::new(Frozen { pair: Arc::new(pair), runs }));
        self.replace_lower(kept.clone().into_iter().collect(), None)?;
        Ok((copied, kept))
    }

    /// Makes `frozen` the pairs below the active one, durably, and removes the pairs that were there.
    /// With `new_base`, the base and its name are replaced in the same step.
    pub(super) fn replace_lower(
        &self,
        frozen: Vec<Arc<Frozen>>,
        new_base: Option<(Arc<dyn BlockDevice>, String)>,
    ) -> Result<()> {
        let mut state = self.state.lock();
        let active = self.generation().active.number;
        let numbers: Vec<_> = frozen.iter().rev().map(|frozen| frozen.pair.number).chain([active]).collect();
        let mut new = state.with_pairs(&numbers);
        let base = new_base.map(|(base, parent)| {
            (new.parent, new.copied_up_bytes) = (parent, 0);
            base
        });
        self.store(&mut state, new)?;
        let old = {
            let mut view = self.view_mut();
            if base.is_some() {
                view.copied_up = CopiedUp::default();
            }
            let base = base.or_else(|| view.generation.base.clone());
            let frozen = view.generation.set_aside().iter().cloned().chain(frozen).collect();
            let new = view.generation.next(view.generation.active.clone(), frozen, base);
            std::mem::replace(&mut view.generation, Arc::new(new))
        };
        let dropped = old.pairs().filter(|pair| !numbers.contains(&pair.number));
        dropped.for_each(|pair| pair::remove_files(&*self.directory, pair.number));
        Ok(())
    }

    /// Puts a new pair on top, unless the active one is still empty, and flushes the old one.
    pub(super) fn freeze(&self) -> Result<()> {
        self.freeze_with(|_| {})
    }

    /// Freezes, with a change to the new state, which names the new pair; or to the old one, if that is to stay.
    pub(super) fn freeze_with(&self, change: impl FnOnce(&mut State)) -> Result<()> {
        self.check_usable()?;
        let mut state = self.state.lock();
        let untouched = {
            let view = self.view();
            view.runs.is_empty() && view.generation.set_aside().is_empty()
        };
        if untouched {
            let mut same = state.clone();
            change(&mut same);
            if same != *state {
                self.store(&mut state, same)?;
            }
            drop(state);
            return self.flush();
        }
        if state.pairs.len() >= PAIRS_MAX {
            return Err(Error::new(ErrorKind::Conflict, format!("{PAIRS_MAX} pairs are stacked already"))
                .remedy("collect the garbage first"));
        }
        let number = self.take_number();
        let pair = Pair::create(&*self.directory, &state, number)
            .and_then(|pair| self.directory.sync().map(|()| pair))
            .inspect_err(|_| pair::remove_files(&*self.directory, number))?;
        let mut numbers = state.numbers();
        numbers.push(number);
        let mut stacked = state.with_pairs(&numbers);
        change(&mut stacked);
        let mut flusher = self.flusher.lock();
        // Before a write goes to the new pair, and so that no flush forgets it again.
        let end = pair.log().log.end();
        let named =
            self.pending.expect_end(number, end, end, None).and_then(|()| self.store(&mut state, stacked));
        named.inspect_err(|_| {
            if self.check_usable().is_ok() {
                pair::remove_files(&*self.directory, number);
            }
        })?;
        self.put_on_top(pair, &mut flusher);
        drop(state);
        self.flush_with(&mut flusher)
    }

    /// Makes `pair` the active one. The flusher's lock keeps the old one's records in one place.
    fn put_on_top(&self, pair: Pair, _flusher: &mut Flusher) {
        let (old, pending) = {
            let mut view = self.view_mut();
            view.set_aside();
            let Generation { active: old, frozen, base, .. } = &*view.generation;
            let (old, frozen, base) = (old.clone(), frozen.clone(), base.clone());
            view.generation = Arc::new(view.generation.next(Arc::new(pair), frozen, base));
            view.data_mark = FIRST_DATA_SECTOR;
            (old, std::mem::take(&mut view.pending))
        };
        old.log().unwritten.extend(pending);
    }

    /// Calls `visit` with the visible parts of the frozen runs: those that neither upper ones nor the active pair's
    /// hide. While a commit sets runs aside, it also gets some parts that those runs hide, which does no harm.
    fn visit_live(
        &self,
        generation: &Generation,
        visit: &mut impl FnMut(&Pair, SectorExtent) -> Result<()>,
    ) -> Result<()> {
        let mut extents = [SectorExtent::EMPTY; EXTENTS_AT_ONCE];
        generation.visit_frozen(&mut |pair, whole| {
            let mut start = whole.start;
            while start < whole.end {
                let (count, reached) = self.view().extents(start, whole.end, &mut extents);
                for hole in extents[..count].iter().filter(|extent| extent.kind == ExtentKind::Hole) {
                    visit(pair, SectorExtent { kind: whole.kind.skip(hole.start - whole.start), ..*hole })?;
                }
                start = reached;
            }
            Ok(())
        })
    }

    /// Takes the lock that lets only one copy or commit go on at a time. Waits for the collector's own short steps.
    pub(super) fn maintain(&self) -> Result<MutexGuard<'_, Maintenance>> {
        loop {
            let is_brief = self.brief.load(Ordering::SeqCst) > 0;
            if let Some(guard) = self.try_maintain() {
                return Ok(guard);
            }
            if !is_brief && self.brief.load(Ordering::SeqCst) == 0 {
                break;
            }
            std::thread::yield_now();
        }
        Err(Error::new(ErrorKind::Conflict, "another garbage collection or commit is going on")
            .remedy("try again when it has finished")
            .about(self.directory.name()))
    }

    /// The same for the end of a commit, which must not fail because others look whether they have work: none of them
    /// has any while the commit waits for its end.
    pub(super) fn maintain_patiently(&self) -> Result<MutexGuard<'_, Maintenance>> {
        self.maintenance.try_lock_for(PATIENCE).map_or_else(|| self.maintain(), Ok)
    }

    pub(super) fn try_maintain(&self) -> Option<MutexGuard<'_, Maintenance>> {
        self.maintenance.try_lock()
    }

    /// Announces, as long as the result lives, that the collector may hold `maintenance` for a short time.
    pub(super) fn brief(&self) -> Brief<'_> {
        self.brief.fetch_add(1, Ordering::SeqCst);
        Brief(&self.brief)
    }
}

/// See [`WritableDisk::brief`].
pub(super) struct Brief<'a>(&'a AtomicU64);

impl Drop for Brief<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A pair in the making: runs in ascending order, their data back to back.
struct Copy<'a> {
    to: &'a Pair,
    /// Data of the last runs that is not in the file yet.
    buffer: Vec<u8>,
    /// Sector of the file for the next data.
    data_end: u64,
    segments: Vec<Segment>,
}

impl<'a> Copy<'a> {
    fn new(to: &'a Pair) -> Self {
        Self { to, buffer: Vec::with_capacity(COPY_CHUNK), data_end: FIRST_DATA_SECTOR, segments: Vec::new() }
    }

    fn data(&mut self, from: &Pair, extent: SectorExtent) -> Result<()> {
        let mut rest = extent;
        while rest.start < rest.end {
            let ExtentKind::Data(moffset) = rest.kind else { return Ok(()) };
            let room = (COPY_CHUNK - self.buffer.len()) as u64 / SECTOR_SIZE;
            let sectors = rest.len().min(room);
            let filled = self.buffer.len();
            #[expect(clippy::cast_possible_truncation, reason = "at most COPY_CHUNK")]
            self.buffer.resize(filled + (sectors * SECTOR_SIZE) as usize, 0);
            from.read_at(&mut self.buffer[filled..], moffset * SECTOR_SIZE)?;
            self.record(SectorExtent {
                start: rest.start,
                end: rest.start + sectors,
                kind: ExtentKind::Data(self.data_end),
            });
            self.data_end += sectors;
            rest = SectorExtent { start: rest.start + sectors, end: rest.end, kind: rest.kind.skip(sectors) };
            if self.buffer.len() == COPY_CHUNK {
                self.write_out()?;
            }
        }
        Ok(())
    }

    /// Keeps the parts of a zeroed run that hide something of the base.
    fn zeroes(&mut self, extent: SectorExtent, base: Option<&dyn BlockDevice>) -> Result<()> {
        let Some(base) = base else { return Ok(()) };
        let (mut start, end) = (extent.start, extent.end.min(base.size().div_ceil(SECTOR_SIZE)));
        while start < end {
            let found = base.extent_at(start * SECTOR_SIZE)?;
            let stop = found.range.end().div_ceil(SECTOR_SIZE).clamp(start + 1, end);
            if !found.zero {
                self.record(SectorExtent { start, end: stop, kind: ExtentKind::Zero });
            }
            start = stop;
        }
        Ok(())
    }

    fn record(&mut self, extent: SectorExtent) {
        for next in extent.segments(self.data_end) {
            match self.segments.last_mut() {
                Some(last) if last.is_continued_by(next) && last.len() + next.len() <= Segment::MAX_LEN => {
                    *last = last.lengthened(next.len());
                }
                _ => self.segments.push(next),
            }
        }
    }

    fn write_out(&mut self) -> Result<()> {
        self.to.append(&self.buffer, None).map_err(|(error, _)| error)?;
        self.buffer.clear();
        Ok(())
    }

    /// Makes the pair durable, except for its names; returns its segments and the bytes of its data.
    fn finish(mut self) -> Result<(Vec<Segment>, u64)> {
        self.write_out()?;
        self.to.sync_data()?;
        let mut log = self.to.log();
        log.unwritten.clone_from(&self.segments);
        while !log.unwritten.is_empty() {
            let group = self.to.write_group(&log, |_, _| Ok(()))?;
            log.file.sync()?;
            self.to.accept(&mut log, &group);
        }
        drop(log);
        Ok((self.segments, (self.data_end - FIRST_DATA_SECTOR) * SECTOR_SIZE))
    }
}
