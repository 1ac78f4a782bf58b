//! The bound on the map in memory: where there are too many runs, those of a window are made one.
//!
//! All of a window, a few hundred kilobytes of the disk, is read, holes included, which show what is below, and
//! written as one run; neighbouring windows that are written together share one. Windows with eight runs or more come
//! first, then those with four, then two. So no disk has more runs than [`runs_max`] and a quarter, of some 50 bytes
//! each, at the price of data that is copied up from the base: only a disk of very many scattered small writes pays it.
//! Up to twice as many more are there while a commit goes on, which keeps those of its start.

use super::WritableDisk;
use super::collector::Collector;
use super::pair::Pair;
use super::policy::Limits;
use super::runs::{Piece, What};
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

/// Most runs of a disk of `size` bytes: one for 64 KiB, and 2^18 at least.
pub(super) fn runs_max(limits: &Limits, size: u64) -> u64 {
    limits.runs.unwrap_or_else(|| (size >> 16).max(1 << 18))
}

/// Sectors of a window: so many that two runs in each are half of [`runs_max`].
fn window_sectors(limits: &Limits, size: u64) -> u64 {
    let bytes = size.div_ceil((runs_max(limits, size) / 4).max(1));
    bytes.next_power_of_two().max(64 << 10) / SECTOR_SIZE
}

/// A window that is to become one run.
struct Window {
    start: u64,
    end: u64,
    /// The runs that it had when it was read.
    pieces: Vec<Piece>,
    /// Where its bytes are in what was read, in sectors; none where all are zeros.
    place: Option<u64>,
}

impl Window {
    /// `false` if zeros were read as something else: they were written, and may be zeros again by now. Nothing
    /// else can change and be the same again, because no place of the data file is used twice.
    #[expect(clippy::cast_possible_truncation, reason = "places in a window")]
    fn agrees_with(&self, bytes: &[u8]) -> bool {
        let zeros = self.pieces.iter().filter(|piece| piece.what == What::Zero);
        zeros
            .map(|piece| [piece.start, piece.end].map(|at| ((at - self.start) * SECTOR_SIZE) as usize))
            .all(|[start, end]| bytes[start..end].iter().all(|byte| *byte == 0))
    }
}

impl WritableDisk {
    /// Merges the runs of some windows that have `least` or more; returns whether the pass came to its end.
    pub(super) fn coarsen(&self, collector: &mut Collector, least: u64) -> Result<bool> {
        let active = Arc::clone(&self.generation().active);
        let (mut position, mut looked, mut ended) = (collector.pass.coarsened, 0, false);
        let (mut buffer, mut windows) = (Vec::new(), Vec::new());
        while !ended && looked < LOOK_MAX && buffer.len() < STEP_BYTES {
            let found;
            (found, position) = self.next_window(position, least);
            looked += LOOK_AT_ONCE;
            ended = found.is_none() && position == u64::MAX;
            let Some(mut window) = found else { continue };
            let filled = buffer.len();
            let range = ByteRange::between(window.start * SECTOR_SIZE, window.end * SECTOR_SIZE);
            #[expect(clippy::cast_possible_truncation, reason = "a window")]
            buffer.resize(filled + range.len() as usize, 0);
            match self.read_at(&mut buffer[filled..], range.offset()) {
                Ok(()) if !window.agrees_with(&buffer[filled..]) => {
                    buffer.truncate(filled);
                    continue;
                }
                Ok(()) if buffer[filled..].iter().any(|byte| *byte != 0) => {
                    if !self.has_room_for_copy(buffer.len() as u64) {
                        // Others take as much. Once something is discarded, another pass begins.
                        buffer.truncate(filled);
                        ended = true;
                        break;
                    }
                    window.place = Some(filled as u64 / SECTOR_SIZE);
                }
                Ok(()) => buffer.truncate(filled),
                // What cannot be read stays in pieces.
                Err(error) => {
                    buffer.truncate(filled);
                    if error.kind() == ErrorKind::Absent {
                        collector.pass.absent = Some(range);
                    }
                    continue;
                }
            }
            windows.push(window);
        }
        collector.pass.coarsened = if ended { 0 } else { position };
        collector.pass.merged |= !windows.is_empty();
        self.enter_windows(&active, &buffer, &windows)?;
        Ok(ended)
    }

    /// `true` if so many bytes of copies fit below [`Limits::max`], where clients would be admitted as well.
    fn has_room_for_copy(&self, bytes: u64) -> bool {
        let view = self.view();
        let (limits, space) = (&view.limits, self.space_of(&view));
        space.live + bytes <= limits.usable()
            && limits.max.is_none_or(|max| space.files() + bytes <= max - limits.slack() / 8)
    }

    /// Takes the part of the base that [`collect`](Self::collect) would have read last, had it been on this host.
    #[must_use]
    pub fn take_absent(&self) -> Option<ByteRange> {
        let absent = self.collector.try_lock().ok()?.pass.absent.take()?;
        let base = self.generation().base.as_ref().map_or(0, |base| base.size());
        Some(absent.intersect(ByteRange::between(0, base))).filter(|range| !range.is_empty())
    }

    /// The next window from `position` on whose runs are worth merging, and where to go on: at `u64::MAX` at the end.
    fn next_window(&self, position: u64, least: u64) -> (Option<Window>, u64) {
        let view = self.view();
        let (sectors, size) = (window_sectors(&view.limits, view.size), view.size / SECTOR_SIZE);
        let mut position = position;
        for _ in 0..LOOK_AT_ONCE {
            let runs_end = view.runs.end();
            let next = view.runs.pieces(position, runs_end).find(|piece| piece.what != What::Hole);
            let Some(next) = next else { return (None, u64::MAX) };
            let start = next.start - next.start % sectors;
            let end = (start + sectors).min(size);
            if next.end >= end {
                // Nothing in it but this run.
                position = next.end;
                continue;
            }
            let pieces: Vec<_> = view.runs.pieces(start, end).collect();
            let runs = pieces.iter().filter(|piece| piece.what != What::Hole).count() as u64;
            let crosses = |sector: u64| {
                let around = sector > 0 && sector < runs_end;
                u64::from(
                    around && view.runs.pieces(sector - 1, sector + 1).count() == 1 && {
                        view.runs.pieces(sector - 1, sector).any(|piece| piece.what != What::Hole)
                    },
                )
            };
            position = end;
            if runs >= least + crosses(start) + crosses(end) {
                return (Some(Window { start, end, pieces, place: None }), end);
            }
        }
        (None, position)
    }

    fn enter_windows(&self, to: &Arc<Pair>, buffer: &[u8], windows: &[Window]) -> Result<()> {
        if windows.is_empty() {
            return Ok(());
        }
        self.bound_pending()?;
        let moffset = self.append(to, buffer)?;
        let mut stale = Vec::new();
        for Window { start, end, pieces, place } in windows {
            let mut view = self.view_mut();
            let is_active = Arc::ptr_eq(&view.generation.active, to);
            // Holes show the base and frozen pairs, which a change of these runs would tell of.
            let same = is_active && view.runs.pieces(*start, *end).eq(pieces.iter().copied());
            let place = place.map(|place| moffset + place);
            if same {
                let what = place.map_or(What::Zero, What::Data);
                let records = view.write(Piece { start: *start, end: *end, what });
                self.unlogged.fetch_add(records as u64, Ordering::Relaxed);
            } else if let Some(first) = place {
                space::push(
                    &mut stale,
                    FileRange { pair: to.number, start: first, end: first + end - start },
                );
            }
        }
        super::lock(&self.ready).append(&mut stale);
        self.counters.copied.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}
