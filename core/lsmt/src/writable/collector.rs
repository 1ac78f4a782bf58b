//! The collector: gives space back in small steps, beside reads, writes and commits.
//!
//! # The way of a dead sector
//!
//! ```text
//! a write or discard covers the last run that names it      View::dying, under the view's lock
//! a flush brings the record that did so into the log        `ready`
//! no reader is left that may have looked it up before             `retired`: all older generations are gone
//! its block is dead as a whole                              DeadMap
//! punched
//! ```
//!
//! *Crashes.* Recovery replays the records that were synced and perhaps those of one group more. A sector gets on the
//! list only when the record that killed it was synced, so no state that a crash leaves names it. It does not
//! matter if the hole itself outlives the crash.
//!
//! *Readers* take a generation along with the places that they looked up. To retire sectors, the generation is replaced
//! by one that differs only in its number. A reader that comes later finds places that are not dead; the ones
//! before it are gone when no generation with a lower number is left ([`Alive`]). Nothing is added to the way of a
//! read.
//!
//! *Commits* read for long. A commit notes at its start the end of the data file of each pair; a sector that dies
//! before that is *held* until no commit is left.
//!
//! *Evacuation* reads live sectors of a block, writes them at the end of the file and then, under the view's lock,
//! enters the new place for those that are still at the old one: an ordinary write that loses against any other. The
//! old places die as after any write.
//!
//! [`Alive`]: super::view::Alive

use super::WritableDisk;
use super::batch::Pass;
use super::coarsen::runs_max;
use super::pair::Pair;
use super::policy::{Action, Facts, Load, Policy};
use super::space::{self, CLASSES, DeadMap, FileRange};
use super::view::Generation;
use crate::Segment;
use headstart_block::{Error, ErrorKind, Result, SECTOR_SIZE};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Sectors of a dead range that is punched at once: 64 KiB.
const PUNCH_AT_ONCE: u64 = 128;

/// Holes punched in one step.
const PUNCHES: usize = 256;

/// The state of the collector. One step at a time.
pub(super) struct Collector {
    /// The dead sectors of each pair that may be punched.
    pub(super) dead: BTreeMap<u64, DeadMap>,
    /// Whole blocks that were dead when the disk was opened; most of them were punched before.
    sweep: Vec<FileRange>,
    /// Dead sectors that readers may still read, with the first generation whose readers do not.
    retired: VecDeque<(u64, Vec<FileRange>)>,
    /// Dead sectors that a commit may still read.
    held: Vec<FileRange>,
    /// Bytes that were entered as dead since the disk was opened.
    died: u64,
    pub(super) policy: Policy,
    pub(super) pass: Pass,
    can_punch: bool,
    /// Dead ranges whose punching has failed: tried again when there is nothing else to do.
    failed: Vec<FileRange>,
    /// The cause for which punching has failed in this step.
    failure: Option<Error>,
    /// The last failure of a step that a writer did, which the next step of the collector's thread reports.
    untold: Option<Error>,
    /// Pairs that are not punched: of other programs, or with sectors that are named twice.
    pub(super) shared: BTreeSet<u64>,
}

/// Commits that go on, and the data that they read.
#[derive(Default)]
pub(super) struct Commits {
    pub(super) count: usize,
    /// The pairs that existed when the last commit started, with the ends of their data files at that time. A pair
    /// that still exists and that an earlier commit reads is among them.
    pub(super) read: Vec<(u64, u64)>,
}

impl Commits {
    /// `true` if a commit may still read the data at `range`.
    fn reads(&self, range: FileRange) -> bool {
        self.count > 0 && self.read.iter().any(|(pair, end)| *pair == range.pair && range.start < *end)
    }
}

impl Collector {
    /// The collector of a disk that was opened with these pairs.
    pub(super) fn new(generation: &Generation, active: &super::runs::RunMap) -> Self {
        let mut new = Self {
            dead: BTreeMap::new(),
            sweep: Vec::new(),
            retired: VecDeque::new(),
            held: Vec::new(),
            died: 0,
            policy: Policy::default(),
            pass: Pass::default(),
            can_punch: true,
            failed: Vec::new(),
            failure: None,
            untold: None,
            shared: BTreeSet::new(),
        };
        let frozen = generation.frozen.iter().map(|level| (&level.pair, &level.runs));
        for (pair, runs) in frozen.chain([(&generation.active, active)]) {
            // The files of another program stay as they are until they are absorbed.
            let is_ours = pair.is_sealed().unwrap_or(false);
            let Some(unnamed) = space::unnamed(runs, pair.end()).filter(|_| is_ours) else {
                new.shared.insert(pair.number);
                continue;
            };
            let dead = new.dead.entry(pair.number).or_default();
            for (start, end) in unnamed {
                dead.insert(start, end);
            }
            while let Some((start, end)) = dead.take_longest(0) {
                pair.count_punched(end - start);
                new.sweep.push(FileRange { pair: pair.number, start, end });
            }
        }
        new
    }

    /// `true` once all sectors are punched that were dead when the disk was opened.
    #[cfg(test)]
    pub(super) fn is_swept(&self) -> bool {
        self.sweep.is_empty()
    }

    /// `true` while dead sectors wait for readers to end.
    pub(super) fn waits_for_readers(&self) -> bool {
        !self.retired.is_empty()
    }

    /// The reason for which punching has failed since the last call.
    pub(super) fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    /// Remembers a failure that is no error of the writer that met it.
    pub(super) fn leave_untold(&mut self, error: Error) {
        self.untold = Some(error);
    }

    /// Sets the failure of a step that ended early aside: it is none of the next one.
    fn begin_step(&mut self) {
        if let Some(error) = self.failure.take() {
            self.untold = Some(error);
        }
    }

    fn set_failed(&mut self, range: FileRange, error: Error) {
        self.failed.push(range);
        self.failure = Some(error);
    }

    /// Makes the collector try failed ranges again. Returns whether there are any and none failed just now.
    fn retry(&mut self, generation: &Generation) -> bool {
        if self.failure.is_some() || self.failed.is_empty() {
            return false;
        }
        for FileRange { pair, start, end } in std::mem::take(&mut self.failed) {
            if pair_of(generation, pair).is_some() {
                self.dead.entry(pair).or_default().insert(start, end);
            }
        }
        true
    }

    fn residue(&self) -> u64 {
        self.dead.values().map(|dead| dead.sectors() - dead.ripe_sectors().iter().sum::<u64>()).sum::<u64>()
            * SECTOR_SIZE
    }
}

impl WritableDisk {
    /// Does a step of garbage collection: some hundred holes, little more than a mebibyte of copies, one flush or one
    /// new log. Two kinds of steps take longer: one that moves data of frozen pairs passes over all of their runs that
    /// others hide until it has found a mebibyte, and where there are no holes all live data is copied at once.
    /// Returns `false` where there is nothing to do for this `load` at present.
    ///
    /// # Errors
    /// Errors of the files. The disk goes on as it was; the failed part is tried again later.
    pub fn collect(&self, load: Load) -> Result<bool> {
        let Some(mut collector) = self.collector.try_lock() else { return Ok(false) };
        let worked = self.step(&mut collector, load)?;
        collector.take_failure().or_else(|| collector.untold.take()).map_or(Ok(worked), Err)
    }

    /// Does a step. Holes that could not be punched are no error of it: the collector remembers them and the reason.
    pub(super) fn step(&self, collector: &mut Collector, load: Load) -> Result<bool> {
        self.check_usable()?;
        collector.begin_step();
        let settled = self.settle(collector);
        // If that fails, the next step tries again.
        let _ = self.note_copied_up();
        let _ = self.note_grown_logs(load);
        let facts = self.facts(collector, load);
        match collector.policy.next(&self.limits(), &facts) {
            Action::Rest => return Ok(collector.retry(&self.generation()) || settled),
            Action::Flush => self.flush_all()?,
            Action::Punch { class } => self.punch_ripe(collector, class),
            Action::CompactLog => self.compact_log()?,
            Action::Reunite => self.reunite(),
            Action::Absorb => return self.absorb(collector),
            Action::Evacuate { least } => {
                if self.evacuate(collector, least)? {
                    collector.policy.pass_ended();
                }
            }
            Action::Coarsen { least } => {
                if self.coarsen(collector, least)? {
                    let merged = std::mem::take(&mut collector.pass.merged);
                    let after = self.facts(collector, load);
                    collector.policy.coarse_pass_ended(merged, &after);
                    self.gate.notify_all();
                }
            }
            Action::CopyAll => return self.copy_all(),
        }
        self.settle(collector);
        Ok(true)
    }

    /// Takes dead sectors along their way; returns whether any came further.
    fn settle(&self, collector: &mut Collector) -> bool {
        let mut moved = self.sweep(collector);
        let ready = std::mem::take(&mut *self.ready.lock());
        if !ready.is_empty() {
            moved = true;
            let number = self.view_mut().renew();
            collector.retired.push_back((number, ready));
        }
        let oldest = self.alive.oldest();
        while let Some((_, extents)) = collector.retired.pop_front_if(|(number, _)| oldest >= *number) {
            moved = true;
            self.release(collector, extents);
        }
        if !collector.held.is_empty() && self.commits.lock().count == 0 {
            moved = true;
            let held = std::mem::take(&mut collector.held);
            self.held.store(0, Ordering::Relaxed);
            self.release(collector, held);
        }
        if moved {
            self.gate.notify_all();
        }
        moved
    }

    /// Enters sectors that only commits may still read; punches large ranges.
    fn release(&self, collector: &mut Collector, extents: Vec<FileRange>) {
        let generation = self.generation();
        for extent in extents {
            let Some(pair) = pair_of(&generation, extent.pair) else { continue };
            if collector.shared.contains(&extent.pair) {
                continue;
            }
            if self.commits.lock().reads(extent) {
                self.held.fetch_add(extent.len(), Ordering::Relaxed);
                space::push(&mut collector.held, extent);
                continue;
            }
            let dead = collector.dead.entry(extent.pair).or_default();
            let range = dead.insert(extent.start, extent.end);
            collector.died += extent.len() * SECTOR_SIZE;
            if collector.can_punch
                && let Some((start, end)) = dead.take(range, PUNCH_AT_ONCE)
            {
                self.punch(collector, &pair, start, end);
            }
        }
        let numbers: Vec<_> = generation.pairs().map(|pair| pair.number).collect();
        collector.dead.retain(|number, _| numbers.contains(number));
    }

    /// Punches the sectors that were dead when the disk was opened.
    fn sweep(&self, collector: &mut Collector) -> bool {
        if collector.sweep.is_empty() || !collector.can_punch {
            return false;
        }
        let generation = self.generation();
        for _ in 0..PUNCHES {
            let Some(range) = collector.sweep.pop() else { break };
            let Some(pair) = pair_of(&generation, range.pair) else { continue };
            match pair.punch(range.start, range.end) {
                Ok(true) => {}
                Ok(false) => {
                    collector.can_punch = false;
                    collector.sweep.push(range);
                    break;
                }
                Err(error) => {
                    // It was counted as punched.
                    pair.count_unpunched(range.len());
                    collector.set_failed(range, error);
                }
            }
        }
        if !collector.can_punch {
            // They were counted as punched, which they are not.
            for FileRange { pair: number, start, end } in std::mem::take(&mut collector.sweep) {
                let Some(pair) = pair_of(&generation, number) else { continue };
                pair.count_unpunched(end - start);
                collector.dead.entry(number).or_default().insert(start, end);
            }
        }
        true
    }

    fn punch(&self, collector: &mut Collector, pair: &Pair, start: u64, end: u64) {
        match pair.punch(start, end) {
            Ok(true) => {
                pair.count_punched(end - start);
                self.counters.collected.fetch_add((end - start) * SECTOR_SIZE, Ordering::Relaxed);
            }
            Ok(false) => {
                collector.can_punch = false;
                collector.dead.entry(pair.number).or_default().insert(start, end);
            }
            Err(error) => collector.set_failed(FileRange { pair: pair.number, start, end }, error),
        }
    }

    /// Punches dead ranges, the longest first, down to `class`.
    fn punch_ripe(&self, collector: &mut Collector, class: usize) {
        let generation = self.generation();
        let numbers: Vec<_> = collector.dead.keys().copied().collect();
        let mut left = PUNCHES;
        for number in numbers {
            let Some(pair) = pair_of(&generation, number) else {
                collector.dead.remove(&number);
                continue;
            };
            while left > 0
                && collector.can_punch
                && let Some((start, end)) =
                    collector.dead.get_mut(&number).and_then(|dead| dead.take_longest(class))
            {
                self.punch(collector, &pair, start, end);
                left -= 1;
            }
        }
        self.gate.notify_all();
    }

    fn facts(&self, collector: &Collector, load: Load) -> Facts {
        let (space, active, records, dying, frozen, set_aside, runs, runs_max, copy_room) = {
            let view = self.view();
            let generation = &view.generation;
            let set_aside = generation.set_aside().len();
            let dying = space::sectors(&view.dying);
            let aside: usize = generation.set_aside().iter().map(|level| level.runs.len()).sum();
            // A long run takes a record for each of its parts.
            let records = (view.runs.len() + aside) as u64 + view.size / SECTOR_SIZE / Segment::MAX_LEN;
            let active = Arc::clone(&generation.active);
            let (runs, runs_max) = (view.runs.len() as u64, runs_max(&view.limits, view.size));
            let frozen = generation.frozen.len() > set_aside;
            let space = self.space_of(&view);
            let copy_room = view.copy_room(space.live).min(view.limits.usable().saturating_sub(space.live));
            (space, active, records, dying, frozen, set_aside > 0, runs, runs_max, copy_room)
        };
        let ready = space::sectors(&self.ready.lock());
        let no_commit = self.commits.lock().count == 0;
        let may_absorb = frozen && !set_aside && no_commit && {
            // Announced first: another thread that wants the lock waits for this look instead of giving up.
            let _brief = self.brief();
            self.try_maintain().is_some_and(|it| it.awaiting.is_none())
        };
        let mut ripe = [0; CLASSES];
        for sectors in collector.dead.values().map(DeadMap::ripe_sectors) {
            ripe.iter_mut().zip(sectors).for_each(|(sum, sectors)| *sum += sectors * SECTOR_SIZE);
        }
        Facts {
            space,
            records,
            runs,
            runs_max,
            copy_room,
            awaits_base: collector.pass.awaits_base(),
            log: active.log_bytes(),
            dying: (dying + ready) * SECTOR_SIZE,
            ripe,
            residue: collector.residue(),
            died: collector.died,
            evacuated: collector.pass.moved,
            frozen: may_absorb,
            set_aside: set_aside && no_commit,
            can_punch: collector.can_punch,
            load,
        }
    }

    fn copy_all(&self) -> Result<bool> {
        match self.collect_garbage() {
            Ok(collected) => {
                self.counters.collected.fetch_add(collected.reclaimed_bytes, Ordering::Relaxed);
                self.counters.copied.fetch_add(collected.copied_bytes, Ordering::Relaxed);
                self.gate.notify_all();
                Ok(collected.reclaimed_bytes > 0)
            }
            // A commit goes on.
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Flushes also where nothing is pending but the death of sectors.
    fn flush_all(&self) -> Result<()> {
        self.flush_with(&mut self.flusher.lock())
    }
}

fn pair_of(generation: &Generation, number: u64) -> Option<Arc<Pair>> {
    generation.pairs().find(|pair| pair.number == number).map(Arc::clone)
}
