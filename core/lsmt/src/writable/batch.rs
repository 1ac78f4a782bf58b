//! Moving live data to the end of the active pair, in bounded batches: evacuation of blocks that are partly dead, and
//! absorption of frozen pairs.

use super::WritableDisk;
use super::collector::Collector;
use super::pair::Pair;
use super::pending::Pending;
use super::runs::{ExtentKind, RunMap, SectorExtent, visit_merged};
use super::space::{self, BLOCK_SECTORS, FileRange};
use super::view::{EXTENTS_AT_ONCE, Frozen, Generation};
use headstart_block::{Error, Result, SECTOR_SIZE};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of data in a batch, at most.
const BATCH_BYTES: usize = 1 << 20;

/// Runs looked at in one step of evacuation.
const LOOK_MAX: usize = 1 << 15;

/// Runs copied out of the map under one lock.
const LOOK_AT_ONCE: usize = 128;

/// Places entered under one lock.
const ENTER_AT_ONCE: usize = 64;

/// A run of this many sectors or fewer is moved as a whole: 64 KiB.
const MOVED_WHOLE: u64 = 128;

/// Data on its way to another place.
struct Batch {
    to: Arc<Pair>,
    buffer: Vec<u8>,
    entries: Vec<Entry>,
}

/// A range of the disk, the content that it must still have, and the sector of the batch where its data is; none
/// for zeros.
struct Entry {
    expected: SectorExtent,
    place: Option<u64>,
}

/// Ends a visit early.
enum Stop {
    Full,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Batch {
    fn new(to: Arc<Pair>) -> Self {
        Self { to, buffer: Vec::new(), entries: Vec::new() }
    }

    fn is_full(&self) -> bool {
        self.buffer.len() >= BATCH_BYTES || self.entries.len() >= LOOK_MAX
    }

    /// Reads data of `extent` as far as there is room for it; returns where it stopped.
    fn read(&mut self, from: &Pair, extent: SectorExtent, expected: ExtentKind) -> Result<u64> {
        let ExtentKind::Data(moffset) = extent.kind else { return Ok(extent.end) };
        let filled = self.buffer.len();
        let sectors = extent.len().min((BATCH_BYTES.saturating_sub(filled) as u64).div_ceil(SECTOR_SIZE));
        #[expect(clippy::cast_possible_truncation, reason = "at most a batch")]
        self.buffer.resize(filled + (sectors * SECTOR_SIZE) as usize, 0);
        from.read_at(&mut self.buffer[filled..], moffset * SECTOR_SIZE)?;
        let end = extent.start + sectors;
        let expected = SectorExtent { start: extent.start, end, kind: expected };
        self.entries.push(Entry { expected, place: Some(filled as u64 / SECTOR_SIZE) });
        Ok(end)
    }
}

impl WritableDisk {
    /// Moves a batch out of blocks with `least` dead sectors or more; returns whether the pass came to its end.
    pub(super) fn evacuate(&self, collector: &mut Collector, least: u64) -> Result<bool> {
        let mut position = collector.pass.evacuated;
        let (mut looked, mut ended) = (0, false);
        let mut batch: Option<Batch> = None;
        while !ended && looked < LOOK_MAX && batch.as_ref().is_none_or(|batch| !batch.is_full()) {
            let (active, extents, end) = self.next_runs(position);
            looked += LOOK_AT_ONCE;
            let batch = match &mut batch {
                Some(batch) if Arc::ptr_eq(&batch.to, &active) => batch,
                // The pair was frozen in between.
                Some(_) => break,
                empty => empty.insert(Batch::new(active)),
            };
            if collector.unpunched.contains(&batch.to.number) {
                ended = true;
                break;
            }
            let dead = collector.dead.entry(batch.to.number).or_default();
            position = end.unwrap_or(0);
            'extents: for extent in extents {
                for part in
                    sparse_parts(extent, |sector| dead.dead_beside(sector) >= least).into_iter().flatten()
                {
                    let from = Arc::clone(&batch.to);
                    let reached = batch.read(&from, part, part.kind)?;
                    if reached < part.end || batch.is_full() {
                        position = reached;
                        break 'extents;
                    }
                }
            }
            ended = end.is_none() && position == 0;
        }
        if let Some(batch) = batch {
            self.enter_batch(&batch)?;
            collector.pass.moved += batch.buffer.len() as u64;
        }
        collector.pass.evacuated = if ended { 0 } else { position };
        Ok(ended)
    }

    /// Copies the next runs of data from `position` on. Returns their end too, unless it is the end of the disk.
    fn next_runs(&self, position: u64) -> (Arc<Pair>, Vec<SectorExtent>, Option<u64>) {
        let view = self.view();
        let mut extents = Vec::with_capacity(LOOK_AT_ONCE);
        let (mut seen, mut end) = (0, Some(position));
        for extent in view.runs.extents(position, view.runs.end()) {
            if seen == LOOK_AT_ONCE {
                break;
            }
            (seen, end) = (seen + 1, Some(extent.end));
            if matches!(extent.kind, ExtentKind::Data(_)) {
                extents.push(extent);
            }
        }
        if end.is_some_and(|end| end >= view.runs.end()) {
            end = None;
        }
        (Arc::clone(&view.generation.active), extents, end)
    }

    /// Moves a batch out of the frozen pairs that no other directory shares; once upper pairs hide all of them, drops
    /// them. Shared ones stay: a copy of their data would take space, and dropping them would give none back. Returns
    /// whether it did anything.
    pub(super) fn absorb(&self, collector: &mut Collector) -> Result<bool> {
        let _brief = self.brief();
        let Some(maintenance) = self.try_maintain() else { return Ok(false) };
        let generation = self.generation();
        if maintenance.awaiting.is_some() || !generation.set_aside().is_empty() {
            return Ok(false);
        }
        let own = generation.frozen.iter().filter(|level| !level.pair.is_shared());
        let numbers: Vec<_> = own.clone().rev().map(|level| level.pair.number).collect();
        if numbers != collector.pass.absorbing {
            collector.pass.declared.retain(|number, _| numbers.contains(number));
            (collector.pass.absorbing, collector.pass.absorbed) = (numbers, 0);
        }
        let levels: Vec<_> = generation.frozen.iter().map(|frozen| &frozen.runs).collect();
        let (from, end) = (collector.pass.absorbed, levels.iter().map(|runs| runs.end()).max().unwrap_or(0));
        let mut batch = Batch::new(Arc::clone(&generation.active));
        let reached = self.gather(&generation, &levels, (from, end), &mut batch)?;
        if !self.enter_batch(&batch)? {
            return Ok(true);
        }
        self.declare_dead(collector, &generation.frozen, from, reached);
        collector.pass.absorbed = reached;
        if reached >= end {
            // The data that hides them must be durable before they go.
            self.flush_with(&mut self.flusher.lock())?;
            let before: u64 = own.map(|level| level.pair.file_bytes()).sum();
            let shared = generation.frozen.iter().filter(|level| level.pair.is_shared());
            self.replace_lower(shared.cloned().collect(), None)?;
            self.counters.collected.fetch_add(before, Ordering::Relaxed);
            collector.pass.absorbing = Vec::new();
            collector.pass.declared = BTreeMap::new();
        }
        drop(maintenance);
        Ok(true)
    }

    /// Reads into `batch` the visible data of those of `levels` that are not shared, in `range`; returns the place at
    /// which it stopped.
    fn gather(
        &self,
        generation: &Generation,
        levels: &[&RunMap],
        range: (u64, u64),
        batch: &mut Batch,
    ) -> Result<u64> {
        let mut reached = range.1;
        let mut extents = [SectorExtent::EMPTY; EXTENTS_AT_ONCE];
        let visited = visit_merged(levels, range.0, range.1, &mut |level, whole: SectorExtent| {
            if generation.frozen[level].pair.is_shared() {
                return Ok(());
            }
            let mut start = whole.start;
            while start < whole.end {
                if batch.is_full() {
                    reached = start;
                    return Err(Stop::Full);
                }
                let (count, looked) = self.view().extents(start, whole.end, &mut extents);
                for hole in extents[..count].iter().filter(|extent| extent.kind == ExtentKind::Hole) {
                    let seen = SectorExtent { kind: whole.kind.skip(hole.start - whole.start), ..*hole };
                    if seen.kind == ExtentKind::Zero {
                        let expected = SectorExtent { kind: ExtentKind::Hole, ..seen };
                        batch.entries.push(Entry { expected, place: None });
                        continue;
                    }
                    let stopped = batch.read(&generation.frozen[level].pair, seen, ExtentKind::Hole)?;
                    if stopped < seen.end {
                        reached = stopped;
                        return Err(Stop::Full);
                    }
                }
                start = looked;
            }
            Ok(())
        });
        match visited {
            Ok(()) | Err(Stop::Full) => Ok(reached),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    /// Declares the data of frozen pairs in `[from, reached)` of the disk dead, because the active pair hides it.
    fn declare_dead(&self, collector: &mut Collector, frozen: &[Arc<Frozen>], from: u64, reached: u64) {
        let mut dead = Vec::new();
        for level in frozen.iter().filter(|level| !level.pair.is_shared()) {
            let number = level.pair.number;
            let declared = collector.pass.declared.entry(number).or_default();
            for extent in level.runs.extents(from.max(*declared), reached.max(*declared)) {
                if let ExtentKind::Data(start) = extent.kind {
                    space::push(&mut dead, FileRange { pair: number, start, end: start + extent.len() });
                }
            }
            *declared = reached.max(*declared);
        }
        self.view_mut().dying.append(&mut dead);
    }

    /// Writes a batch, and enters it wherever the disk is unchanged. Returns `false` if the pair that it was
    /// made for takes nothing more, or if a commit has set runs aside: holes above these prove nothing.
    fn enter_batch(&self, batch: &Batch) -> Result<bool> {
        let Batch { to, buffer, entries } = batch;
        if entries.is_empty() {
            return Ok(true);
        }
        self.bound_pending()?;
        let start = self.append(to, buffer)?;
        let mut is_active = true;
        let mut stale = Vec::new();
        for some in entries.chunks(ENTER_AT_ONCE) {
            let mut view = self.view_mut();
            is_active = is_active && Arc::ptr_eq(&view.generation.active, to);
            if some.iter().any(|entry| entry.expected.kind == ExtentKind::Hole) {
                is_active = is_active && view.generation.set_aside().is_empty();
            }
            for Entry { expected, place } in some {
                let mut found = Vec::new();
                if is_active {
                    let same = |extent: &SectorExtent| {
                        extent.kind == expected.kind.skip(extent.start - expected.start)
                    };
                    found.extend(view.runs.extents(expected.start, expected.end).filter(same));
                }
                let mut entered = expected.start;
                let at = |sector: u64| place.map(|place| start + place + sector - expected.start);
                let mut skipped = |from: u64, to_sector: u64| {
                    if let (Some(from), Some(end)) = (at(from), at(to_sector))
                        && from < end
                    {
                        space::push(&mut stale, FileRange { pair: to.number, start: from, end });
                    }
                };
                for extent in found {
                    skipped(entered, extent.start);
                    let kind = at(extent.start).map_or(ExtentKind::Zero, ExtentKind::Data);
                    let records = view.write(SectorExtent { kind, ..extent });
                    self.unlogged.fetch_add(records as u64, Ordering::Relaxed);
                    entered = extent.end;
                }
                skipped(entered, expected.end);
            }
        }
        // No record names them.
        self.ready.lock().append(&mut stale);
        self.counters.copied.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        Ok(is_active)
    }

    /// Appends to the data file of `pair`, and remembers the bytes that no write can use any more.
    pub(super) fn append(&self, pair: &Pair, data: &[u8]) -> Result<u64> {
        self.append_to(pair, data, None).map(|(start, _)| start)
    }

    /// As [`append`](Self::append), for data that is to survive this process.
    pub(super) fn append_pending(&self, pair: &Pair, data: &[u8]) -> Result<(u64, Option<u32>)> {
        let pending = self.pending.is_on().then_some(&self.pending);
        self.append_to(pair, data, pending)
    }

    fn append_to(
        &self,
        pair: &Pair,
        data: &[u8],
        pending: Option<&Arc<Pending>>,
    ) -> Result<(u64, Option<u32>)> {
        pair.append(data, pending).map_err(|(error, lost)| {
            self.ready.lock().extend(lost);
            error
        })
    }
}

/// The parts of a run that are in blocks with dead sectors, as `is_sparse` tells: all of a short run, otherwise the
/// parts in its first and its last block. No other block can have any.
fn sparse_parts(extent: SectorExtent, is_sparse: impl Fn(u64) -> bool) -> [Option<SectorExtent>; 2] {
    let ExtentKind::Data(first) = extent.kind else { return [None; 2] };
    let last = first + extent.len() - 1;
    let (head, tail) = (is_sparse(first), is_sparse(last));
    if extent.len() <= MOVED_WHOLE {
        return [(head || tail).then_some(extent), None];
    }
    let head_end = extent.start + (BLOCK_SECTORS - first % BLOCK_SECTORS);
    let tail_start = extent.end - (last % BLOCK_SECTORS + 1);
    let tail_extent = SectorExtent {
        start: tail_start,
        end: extent.end,
        kind: extent.kind.skip(tail_start - extent.start),
    };
    [head.then_some(SectorExtent { end: head_end, ..extent }), tail.then_some(tail_extent)]
}
