//! A step of garbage collection: carries out what the policy decides (`policy.rs`).

use super::WritableDisk;
use super::collector::Collector;
use super::policy::{Action, Facts, Load};
use super::space::{self, CLASSES, DeadMap};
use super::state::State;
use crate::Segment;
use headstart_block::{ErrorKind, Result, SECTOR_SIZE};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl WritableDisk {
    /// Does one step of garbage collection: punches some hundred holes in files, or copies about a mebibyte, or
    /// flushes, or rewrites a log. Returns `false` if there is nothing to do for this `load` at present, if a commit
    /// has to end first, or if another thread is doing a step.
    ///
    /// Two kinds of steps take longer. A step that moves data out of the pairs below the active one passes over the
    /// runs that later writes hide, perhaps over all of them, until it has found a mebibyte. On a file system without
    /// holes, all live data is copied in one step.
    ///
    /// # Errors
    /// Errors of the files. The failed part is tried again later, and the disk stays usable unless a sync failed:
    /// writes and flushes then fail until the disk is opened again.
    pub fn collect(&self, load: Load) -> Result<bool> {
        let Some(mut collector) = self.collector.try_lock() else { return Ok(false) };
        let worked = self.step(&mut collector, load)?;
        collector.take_failure().or_else(|| collector.unreported.take()).map_or(Ok(worked), Err)
    }

    /// Does a step. Holes that could not be punched are no error of it: the collector remembers them and the reason.
    pub(super) fn step(&self, collector: &mut Collector, load: Load) -> Result<bool> {
        self.check_usable()?;
        collector.begin_step();
        self.notice_own_files();
        let advanced = self.advance(collector);
        // If that fails, the next step tries again.
        let _ = self.note_copied_up();
        let _ = self.note_grown_logs(load);
        if load != Load::Busy {
            self.pending.give_back();
        }
        let facts = self.facts(collector, load);
        match collector.policy.next(&self.limits(), &facts) {
            Action::Rest => return Ok(collector.retry(&self.generation()) || advanced),
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
        self.advance(collector);
        Ok(true)
    }

    /// Notes in `state.json` the bytes that were copied up, if that has changed much.
    fn note_copied_up(&self) -> Result<()> {
        let is_due = {
            let view = self.view();
            view.copied_up.is_to_be_noted(self.space_of(&view).live)
        };
        if !is_due {
            return Ok(());
        }
        let bytes = {
            let mut view = self.view_mut();
            let live = self.space_of(&view).live;
            view.copied_up.cut_to(live)
        };
        let mut state = self.state.lock();
        let noted = State { copied_up_bytes: bytes, ..state.clone() };
        self.store(&mut state, noted)?;
        self.view_mut().copied_up.set_noted(bytes);
        Ok(())
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
            let (runs, runs_max) = (view.runs.len() as u64, view.limits.runs_max(view.size));
            let frozen = generation.frozen[set_aside..].iter().any(|level| !level.pair.is_shared());
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
