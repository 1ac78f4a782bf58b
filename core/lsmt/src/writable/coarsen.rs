//! The bound on the map in memory: where there are too many runs, those of a window are made one.
//!
//! All of a window, a few hundred kilobytes of the disk, is read from its first run to its last and written as one
//! run. This includes its holes, which show the levels below. Windows with eight runs or more come first, then
//! those with four, then two. So no disk has more runs than [`Limits::runs_max`] and a quarter, of some 50 bytes each,
//! at the price of data that is copied up from the base: only a disk of very many scattered small writes pays it. The
//! amount of copied data is bounded, too (`copied_up.rs`): beyond the bound, or if the base cannot be read, writes
//! that make more runs are refused. While a commit goes on, which keeps the runs of its start, there may be up to
//! twice that number in addition.
//!
//! Bytes of the base that are not on this host are noted (`lack.rs`). The owner of the disk brings it while the
//! pass goes on elsewhere, and it is merged as soon as it has come.

use super::WritableDisk;
use super::collector::Collector;
use super::lack::Unmerged;
use super::pair::Pair;
use super::policy::Limits;
use super::runs::{ExtentKind, SectorExtent};
use super::space::{self, FileRange};
use headstart_block::{BlockDevice, ByteRange, ErrorKind, Result, SECTOR_SIZE};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of data in one step, at most, and one window more.
const STEP_BYTES: usize = 1 << 20;

/// Windows looked at under one lock.
const LOOK_AT_ONCE: usize = 64;

/// Windows looked at in one step.
const LOOK_MAX: usize = 1 << 14;

/// Sectors of a window: with two runs in each window, the disk has half of [`Limits::runs_max`].
fn window_sectors(limits: &Limits, size: u64) -> u64 {
    let bytes = size.div_ceil((limits.runs_max(size) / 4).max(1));
    bytes.next_power_of_two().max(64 << 10) / SECTOR_SIZE
}

/// A window that is to become one run.
struct Window {
    start: u64,
    end: u64,
    /// The runs that it had when it was read.
    extents: Vec<SectorExtent>,
    /// The place of its bytes in the buffer that was read, in sectors; `None` if all are zeros.
    place: Option<u64>,
}

impl Window {
    /// The sectors from the first of these runs to the last.
    fn of(mut extents: Vec<SectorExtent>) -> Option<Self> {
        let is_run = |extent: &SectorExtent| extent.kind != ExtentKind::Hole;
        let (first, last) = (extents.iter().position(is_run)?, extents.iter().rposition(is_run)?);
        extents.truncate(last + 1);
        extents.drain(..first);
        let (start, end) = (extents.first()?.start, extents.last()?.end);
        Some(Self { start, end, extents, place: None })
    }

    /// The parts that show the levels below.
    fn holes(&self) -> impl Iterator<Item = SectorExtent> {
        self.extents.iter().copied().filter(|extent| extent.kind == ExtentKind::Hole)
    }

    /// Bytes that merging it copies up.
    fn copied_up(&self) -> u64 {
        self.holes().map(|hole| hole.len() * SECTOR_SIZE).sum()
    }

    fn range(&self) -> ByteRange {
        ByteRange::between(self.start * SECTOR_SIZE, self.end * SECTOR_SIZE)
    }

    /// `false` if zeros were read as other bytes: they were written, and may be zeros again by now. No other
    /// content can change and be the same again, because no place of the data file is used twice.
    #[expect(clippy::cast_possible_truncation, reason = "places in a window")]
    fn agrees_with(&self, bytes: &[u8]) -> bool {
        let zeros = self.extents.iter().filter(|extent| extent.kind == ExtentKind::Zero);
        zeros
            .map(|extent| [extent.start, extent.end].map(|at| ((at - self.start) * SECTOR_SIZE) as usize))
            .all(|[start, end]| bytes[start..end].iter().all(|byte| *byte == 0))
    }
}

/// Windows on their way to be merged.
#[derive(Default)]
struct Batch {
    buffer: Vec<u8>,
    windows: Vec<Window>,
    /// Bytes that they copy up.
    copied_up: u64,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.buffer.len() >= STEP_BYTES
    }
}

/// The result of reading a window.
enum Read {
    Done,
    /// The window was written to meanwhile, and stays as it is.
    Changed,
    /// Bytes of the base are not on this host.
    Absent(String),
    Unmerged(Unmerged),
}

impl WritableDisk {
    /// Merges the runs of some windows that have `least` or more; returns whether the pass came to its end.
    pub(super) fn coarsen(&self, collector: &mut Collector, least: u64) -> Result<bool> {
        let active = Arc::clone(&self.generation().active);
        let pass = &mut collector.pass;
        let (mut position, mut looked, mut ended) = (pass.coarsened, 0, false);
        let mut batch = Batch::default();
        while !batch.is_full()
            && let Some(range) = pass.lack.next_arrived()
        {
            // Where its bytes are gone again, or others have come in between, a later pass finds it.
            if let Some(window) = self.window_of(range) {
                self.read_window(window, &mut batch);
            }
        }
        while !ended && looked < LOOK_MAX && !batch.is_full() && !pass.lack.is_full() {
            let found;
            (found, position) = self.next_window(position, least);
            looked += LOOK_AT_ONCE;
            ended = found.is_none() && position == u64::MAX;
            let Some(window) = found else { continue };
            let range = window.range();
            match self.read_window(window, &mut batch) {
                Read::Done | Read::Changed => {}
                Read::Absent(cause) => {
                    if !pass.lack.note(range) {
                        let cause = pass.lack.failure().map_or(cause, str::to_owned);
                        pass.unmerged = Some(Unmerged::Unreadable(cause));
                    }
                }
                Read::Unmerged(why) => {
                    // Other windows take as much space. Once something is discarded, another pass begins.
                    ended = matches!(why, Unmerged::Full);
                    pass.unmerged = Some(why);
                }
            }
        }
        if ended && pass.lack.is_waiting() {
            (ended, position) = (false, u64::MAX);
        }
        pass.coarsened = if ended { 0 } else { position };
        pass.merged |= !batch.windows.is_empty();
        self.enter_windows(&active, &batch)?;
        Ok(ended)
    }

    /// Reads a window into the batch, unless it is to stay as it is.
    fn read_window(&self, mut window: Window, batch: &mut Batch) -> Read {
        let copied_up = window.copied_up();
        {
            let view = self.view();
            if copied_up > 0 && batch.copied_up + copied_up > view.copy_room(self.space_of(&view).live) {
                return Read::Unmerged(Unmerged::CopiedUp);
            }
        }
        let (filled, range) = (batch.buffer.len(), window.range());
        #[expect(clippy::cast_possible_truncation, reason = "a window")]
        batch.buffer.resize(filled + range.len() as usize, 0);
        let read = match self.read_at(&mut batch.buffer[filled..], range.offset()) {
            Ok(()) if !window.agrees_with(&batch.buffer[filled..]) => Read::Changed,
            Ok(()) if batch.buffer[filled..].iter().all(|byte| *byte == 0) => {
                batch.buffer.truncate(filled);
                Read::Done
            }
            Ok(()) if !self.has_room_for_copy(batch.buffer.len() as u64) => Read::Unmerged(Unmerged::Full),
            Ok(()) => {
                window.place = Some(filled as u64 / SECTOR_SIZE);
                batch.copied_up += copied_up;
                Read::Done
            }
            Err(error) if error.kind() == ErrorKind::Absent => Read::Absent(error.to_string()),
            // A window that cannot be read stays in pieces.
            Err(error) => Read::Unmerged(Unmerged::Unreadable(error.to_string())),
        };
        if matches!(read, Read::Done) {
            batch.windows.push(window);
        } else {
            batch.buffer.truncate(filled);
        }
        read
    }

    /// `true` if `bytes` bytes of copies fit below [`Limits::max`], where clients would be admitted as well.
    fn has_room_for_copy(&self, bytes: u64) -> bool {
        let view = self.view();
        let (limits, space) = (&view.limits, self.space_of(&view));
        space.live + bytes <= limits.usable()
            && limits.max.is_none_or(|max| space.files() + bytes <= max - limits.slack() / 8)
    }

    /// The runs of a range that was a window, if there are still several.
    fn window_of(&self, range: ByteRange) -> Option<Window> {
        let view = self.view();
        let extents = view.runs.extents(range.offset() / SECTOR_SIZE, range.end() / SECTOR_SIZE);
        Window::of(extents.collect()).filter(|window| window.extents.len() > 1)
    }

    /// The next window from `position` on whose runs are worth merging, and the place to go on: `u64::MAX` at the end.
    fn next_window(&self, position: u64, least: u64) -> (Option<Window>, u64) {
        let view = self.view();
        let (sectors, size) = (window_sectors(&view.limits, view.size), view.size / SECTOR_SIZE);
        let mut position = position;
        for _ in 0..LOOK_AT_ONCE {
            let runs_end = view.runs.end();
            let next = view.runs.extents(position, runs_end).find(|extent| extent.kind != ExtentKind::Hole);
            let Some(next) = next else { return (None, u64::MAX) };
            let start = next.start - next.start % sectors;
            let end = (start + sectors).min(size);
            if next.end >= end {
                // Nothing in it but this run.
                position = next.end;
                continue;
            }
            let extents: Vec<_> = view.runs.extents(start, end).collect();
            let runs = extents.iter().filter(|extent| extent.kind != ExtentKind::Hole).count() as u64;
            let crosses = |sector: u64| {
                let around = sector > 0 && sector < runs_end;
                u64::from(
                    around && view.runs.extents(sector - 1, sector + 1).count() == 1 && {
                        view.runs.extents(sector - 1, sector).any(|extent| extent.kind != ExtentKind::Hole)
                    },
                )
            };
            position = end;
            if runs >= least + crosses(start) + crosses(end) {
                return (Window::of(extents), end);
            }
        }
        (None, position)
    }

    fn enter_windows(&self, to: &Arc<Pair>, batch: &Batch) -> Result<()> {
        if batch.windows.is_empty() {
            return Ok(());
        }
        self.bound_pending()?;
        let moffset = self.append(to, &batch.buffer)?;
        let mut stale = Vec::new();
        for window in &batch.windows {
            let Window { start, end, extents, place } = window;
            let mut view = self.view_mut();
            let is_active = Arc::ptr_eq(&view.generation.active, to);
            // Holes show the base and frozen pairs, whose changes would change these runs, too.
            let same = is_active && view.runs.extents(*start, *end).eq(extents.iter().copied());
            let place = place.map(|place| moffset + place);
            if same {
                let kind = place.map_or(ExtentKind::Zero, ExtentKind::Data);
                if kind.is_data() {
                    window.holes().for_each(|hole| view.copied_up.add(hole.start, hole.end));
                }
                let records = view.write(SectorExtent { start: *start, end: *end, kind });
                self.unlogged.fetch_add(records as u64, Ordering::Relaxed);
            } else if let Some(first) = place {
                space::push(
                    &mut stale,
                    FileRange { pair: to.number, start: first, end: first + end - start },
                );
            }
        }
        self.ready.lock().append(&mut stale);
        self.counters.copied.fetch_add(batch.buffer.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "small numbers")]
mod tests {
    use super::super::NewDisk;
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use uuid::Uuid;

    /// Sectors of a window of a small disk.
    const WINDOW: u64 = 128;
    /// The last window is a short one.
    const SECTORS: u64 = 8 * WINDOW + 40;

    fn disk() -> (tempfile::TempDir, WritableDisk) {
        let dir = tempfile::tempdir().unwrap();
        let new = NewDisk { size: SECTORS * SECTOR_SIZE, parent: String::new(), uuid: Uuid::from_u128(7) };
        let disk = WritableDisk::create(dir.path(), None, &new).unwrap();
        assert_eq!(window_sectors(&disk.limits(), new.size), WINDOW);
        (dir, disk)
    }

    /// The runs of the disk, without the holes.
    fn runs_of(disk: &WritableDisk) -> Vec<SectorExtent> {
        let view = disk.view();
        view.runs.extents(0, SECTORS).filter(|extent| extent.kind != ExtentKind::Hole).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn windows_with_enough_runs_that_end_in_them_are_found(
            steps in vec((0u64..40, 1u64..90, any::<bool>()), 0..40), least in 2u64..9,
        ) {
            let (_dir, disk) = disk();
            let (mut at, mut place) = (0, 8);
            for (gap, len, zeroed) in steps {
                let (start, end) = (at + gap, (at + gap + len).min(SECTORS));
                if start < end {
                    let kind = if zeroed { ExtentKind::Zero } else { ExtentKind::Data(place) };
                    disk.view_mut().runs.insert(SectorExtent { start, end, kind });
                }
                (at, place) = (end, place + len + 1);
            }
            let runs = runs_of(&disk);
            let mut expected = Vec::new();
            for start in (0..SECTORS).step_by(WINDOW as usize) {
                let end = (start + WINDOW).min(SECTORS);
                // A run that goes on outside is not one run less when the window is merged.
                let own = runs.iter().filter(|run| start <= run.start && run.end <= end).count() as u64;
                let mut touching = runs.iter().filter(|run| run.start < end && start < run.end);
                if own >= least && let Some(first) = touching.next() {
                    let last = touching.next_back().unwrap_or(first);
                    expected.push((first.start.max(start), last.end.min(end)));
                }
            }
            let (mut found, mut position) = (Vec::new(), 0);
            while position != u64::MAX {
                let (window, next) = disk.next_window(position, least);
                found.extend(window.map(|window| (window.start, window.end)));
                prop_assert!(next > position);
                position = next;
            }
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_range_that_has_become_one_run_is_no_window() {
        let (_dir, disk) = disk();
        let range = ByteRange::between(0, WINDOW * SECTOR_SIZE);
        assert!(disk.window_of(range).is_none());
        disk.write_at(&[1; 512], 8 * SECTOR_SIZE).unwrap();
        assert!(disk.window_of(range).is_none());
        disk.write_at(&[1; 512], 12 * SECTOR_SIZE).unwrap();
        let window = disk.window_of(range).unwrap();
        assert_eq!((window.start, window.end, window.extents.len()), (8, 13, 3));
        disk.write_at(&[2; 64 << 10], 0).unwrap();
        assert!(disk.window_of(range).is_none());
    }

    /// The copy of a window that was written to meanwhile is dead: its sectors, and no others, are given back.
    #[test]
    fn a_copy_that_came_too_late_is_given_back() {
        let (_dir, disk) = disk();
        for sector in [8, 12] {
            disk.write_at(&[1; 512], sector * SECTOR_SIZE).unwrap();
        }
        let window = disk.window_of(ByteRange::between(0, WINDOW * SECTOR_SIZE)).unwrap();
        let mut batch = Batch::default();
        assert!(matches!(disk.read_window(window, &mut batch), Read::Done));
        disk.write_at(&[2; 512], 8 * SECTOR_SIZE).unwrap();
        let before = runs_of(&disk);
        let active = Arc::clone(&disk.generation().active);
        let place = active.end();
        disk.enter_windows(&active, &batch).unwrap();
        assert_eq!(*disk.ready.lock(), [FileRange { pair: active.number, start: place, end: place + 5 }]);
        assert_eq!(active.end(), place + 5);
        assert_eq!(runs_of(&disk), before);
    }
}
