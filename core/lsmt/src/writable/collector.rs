//! The collector: gives space back in small steps (`step.rs`), beside reads, writes and commits.
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
use super::pair::Pair;
use super::pass::Pass;
use super::policy::Policy;
use super::space::{self, DeadMap, FileRange};
use super::view::Generation;
use headstart_block::{Error, SECTOR_SIZE};
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
    pub(super) died: u64,
    pub(super) policy: Policy,
    pub(super) pass: Pass,
    pub(super) can_punch: bool,
    /// Dead ranges whose punching has failed: tried again when there is nothing else to do.
    failed: Vec<FileRange>,
    /// The cause for which punching has failed in this step.
    failure: Option<Error>,
    /// The last failure of a step that a writer did, which the next step of the collector's thread reports.
    pub(super) unreported: Option<Error>,
    /// Pairs that are not punched: of other programs, or with sectors that are named twice.
    pub(super) unpunched: BTreeSet<u64>,
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
            unreported: None,
            unpunched: BTreeSet::new(),
        };
        let frozen = generation.frozen.iter().map(|level| (&level.pair, &level.runs));
        for (pair, runs) in frozen.chain([(&generation.active, active)]) {
            if pair.is_shared() {
                continue;
            }
            // The files of another program stay as they are until they are absorbed.
            let is_ours = pair.is_sealed().unwrap_or(false);
            let Some(unnamed) = space::unnamed(runs, pair.end()).filter(|_| is_ours) else {
                new.unpunched.insert(pair.number);
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
    pub(super) fn leave_unreported(&mut self, error: Error) {
        self.unreported = Some(error);
    }

    /// Sets the failure of a step that ended early aside: it is none of the next one.
    pub(super) fn begin_step(&mut self) {
        if let Some(error) = self.failure.take() {
            self.unreported = Some(error);
        }
    }

    fn set_failed(&mut self, range: FileRange, error: Error) {
        self.failed.push(range);
        self.failure = Some(error);
    }

    /// Makes the collector try failed ranges again. Returns whether there are any and none failed just now.
    pub(super) fn retry(&mut self, generation: &Generation) -> bool {
        if self.failure.is_some() || self.failed.is_empty() {
            return false;
        }
        for FileRange { pair, start, end } in std::mem::take(&mut self.failed) {
            if pair_of(generation, pair).is_some_and(|pair| !pair.is_shared()) {
                self.dead.entry(pair).or_default().insert(start, end);
            }
        }
        true
    }

    /// Forgets the dead sectors of a pair whose files other directories are about to get: they may have a use for them.
    pub(super) fn give_up(&mut self, pair: &Pair) {
        let number = pair.number;
        self.dead.remove(&number);
        let unpunched: u64 = self.sweep.iter().filter(|it| it.pair == number).map(|it| it.len()).sum();
        pair.count_unpunched(unpunched);
        self.sweep.retain(|it| it.pair != number);
        self.failed.retain(|it| it.pair != number);
    }

    pub(super) fn residue(&self) -> u64 {
        self.dead.values().map(|dead| dead.sectors() - dead.ripe_sectors().iter().sum::<u64>()).sum::<u64>()
            * SECTOR_SIZE
    }
}

impl WritableDisk {
    /// Takes dead sectors along their way; returns whether any came further.
    pub(super) fn advance(&self, collector: &mut Collector) -> bool {
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
            if collector.unpunched.contains(&extent.pair) || pair.is_shared() {
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
    pub(super) fn punch_ripe(&self, collector: &mut Collector, class: usize) {
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
}

fn pair_of(generation: &Generation, number: u64) -> Option<Arc<Pair>> {
    generation.pairs().find(|pair| pair.number == number).map(Arc::clone)
}
