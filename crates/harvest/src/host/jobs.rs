//! What takes time: erasing what changes hands, moving what is taken back, collecting.
//!
//! Each job has its thread; in tests they are done one after the other by whoever caused them. One that fails (the
//! flash cannot be reached) waits for the next tick and is begun anew; all may be done twice.

use super::actions::Job;
use super::volume::Volume;
use super::{Host, Kind};
use crate::broker::{Event, Run};
use crate::flash::{FlashBlock, FlashError, lock};
use crate::lane::Class;
use crate::vssd::Effort;
use crate::{Error, ErrorKind, GssdId, Result, VssdId};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Moments without any step after which an evacuation is given up: ten seconds.
const PATIENCE: u32 = 5000;

/// Steps of the collector between two looks at whether it should stop.
const IDLE_STEPS: usize = 8;

impl Host {
    /// Begins a job, unless the same one runs.
    pub(crate) fn begin(&self, job: Job) {
        if !lock(&self.jobs).running.insert(job) {
            return;
        }
        if self.inline {
            lock(&self.jobs).waiting.push_back(job);
            return;
        }
        let host = self.me.upgrade();
        let spawned = host.map(|host| {
            let name = format!("harvest {job:?}");
            std::thread::Builder::new().name(name).spawn(move || host.do_job(job)).map(drop)
        });
        if !matches!(spawned, Some(Ok(()))) {
            let mut jobs = lock(&self.jobs);
            jobs.running.remove(&job);
            jobs.failed.push(job);
        }
    }

    /// Does the jobs that wait, one after the other.
    pub(crate) fn run_jobs(&self) {
        loop {
            let job = lock(&self.jobs).waiting.pop_front();
            let Some(job) = job else { return };
            self.do_job(job);
        }
    }

    /// Begins again what failed.
    pub(crate) fn retry_jobs(&self) {
        let failed = std::mem::take(&mut lock(&self.jobs).failed);
        failed.into_iter().for_each(|job| self.begin(job));
        if self.inline {
            self.run_jobs();
        }
    }

    fn do_job(&self, job: Job) {
        let done = match job {
            Job::Erase(gssd) => self.erase(gssd),
            Job::Evacuate(gssd, ghost, slot) => self.evacuate(gssd, ghost, slot),
            Job::Detach(gssd, ghost, slot) => self.detach(gssd, ghost, slot),
            Job::Wipe(vssd) => self.wipe(vssd),
        };
        lock(&self.jobs).running.remove(&job);
        let told = match done {
            Ok(Some(event)) => self.tell(event),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = told {
            if !self.closing.load(Ordering::Acquire) {
                tracing::warn!(%error, ?job, "will be tried again");
            }
            lock(&self.jobs).failed.push(job);
        }
        self.changed.notify_all();
    }

    fn goes_on(&self) -> bool {
        !self.closing.load(Ordering::Acquire)
    }

    /// Erases a gSSD's blocks, its channels in parallel.
    fn erase(&self, gssd: GssdId) -> Result<Option<Event>> {
        let blocks = self.custody.blocks(gssd);
        let home = lock(&self.control).broker.gssd(gssd).map(|gssd| gssd.home);
        let bad = self.erase_runs(&blocks)?;
        if let Some(home) = home {
            self.lost_blocks(home, &bad)?;
        }
        Ok(Some(Event::Erased { gssd, bad }))
    }

    /// Erases blocks, channels in parallel; those that cannot be.
    fn erase_runs(&self, runs: &[Run]) -> Result<Vec<FlashBlock>> {
        let geometry = self.media.geometry();
        let blocks: Vec<FlashBlock> = runs.iter().copied().flat_map(Run::blocks).collect();
        let channels: Vec<&[FlashBlock]> =
            blocks.chunk_by(|a, b| geometry.channel(*a) == geometry.channel(*b)).collect();
        let erase =
            |blocks: &[FlashBlock]| self.media.erase_all(Class::HarvestCollect, blocks, || self.goes_on());
        let erased: Vec<Result<Vec<FlashBlock>, FlashError>> = if channels.len() < 2 || self.inline {
            channels.into_iter().map(erase).collect()
        } else {
            std::thread::scope(|scope| {
                let threads: Vec<_> =
                    channels.into_iter().map(|blocks| scope.spawn(move || erase(blocks))).collect();
                let gone = || FlashError::Failed(Error::new(ErrorKind::Io, "a thread that erased is gone"));
                threads.into_iter().map(|it| it.join().unwrap_or_else(|_| Err(gone()))).collect()
            })
        };
        let mut bad = Vec::new();
        for erased in erased {
            bad.extend(erased.map_err(|error| super::log::from_flash(error, "flash cannot be erased"))?);
        }
        Ok(bad)
    }

    /// Moves what is in a slot to the ghost's other slots.
    fn evacuate(&self, gssd: GssdId, ghost: VssdId, slot: u8) -> Result<Option<Event>> {
        let Some(volume) = self.volume(ghost) else { return Ok(None) };
        let begun = {
            let mut inner = volume.write();
            if !inner.vssd.has_slot(slot) {
                return Ok(Some(Event::Evacuated { gssd }));
            }
            inner.vssd.drain_slot(slot, None)
        };
        if let Err(error) = begun {
            return match error.kind() {
                ErrorKind::NoSpace => Ok(Some(Event::EvacuationFailed { gssd, cause: error.to_string() })),
                _ => Err(error),
            };
        }
        let mut idle = 0;
        loop {
            {
                let inner = volume.read();
                if !inner.vssd.has_slot(slot)
                    || !inner.vssd.is_draining(slot)
                    || volume.gone.load(Ordering::Acquire)
                {
                    // It was detached, or is kept.
                    return Ok(None);
                }
                if inner.vssd.drained(slot, None) {
                    break;
                }
            }
            if !self.goes_on() {
                return Err(Error::new(ErrorKind::Cancelled, "the host is being closed"));
            }
            if self.collect(&volume, Effort::Needed)? > 0 {
                idle = 0;
                continue;
            }
            idle += 1;
            if idle > PATIENCE {
                volume.write().vssd.keep_slot(slot);
                let cause = "what is there could not be moved in time".to_owned();
                return Ok(Some(Event::EvacuationFailed { gssd, cause }));
            }
            volume.flush(&self.log, &self.media)?;
            if idle > 1 {
                volume.wait_a_moment();
            }
        }
        volume.flush(&self.log, &self.media)?;
        Ok(Some(Event::Evacuated { gssd }))
    }

    /// Takes a slot from a ghost, with what is still in it, and waits for I/O that runs.
    fn detach(&self, gssd: GssdId, ghost: VssdId, slot: u8) -> Result<Option<Event>> {
        let Some(volume) = self.volume(ghost) else { return Ok(Some(Event::Detached { gssd })) };
        for round in 0.. {
            {
                let mut inner = volume.write();
                if !inner.vssd.has_slot(slot) {
                    break;
                }
                if let Some(change) = inner.vssd.abandon_slot(slot)? {
                    self.log.change(ghost, &mut inner, &change)?;
                }
                if inner.vssd.drained(slot, None) {
                    let leaving = inner.vssd.remove_slot(slot, None)?;
                    self.log.change(ghost, &mut inner, &leaving.change)?;
                    break;
                }
            }
            if !self.goes_on() {
                return Err(Error::new(ErrorKind::Cancelled, "the host is being closed"));
            }
            volume.flush(&self.log, &self.media)?;
            if round > 0 {
                volume.wait_a_moment();
            }
        }
        // A block whose counter another shares looks pinned for longer than it is, never for shorter.
        // Nobody pins them anew, so that each is to be seen once without a pin, not all at the same time.
        let blocks = self.custody.blocks(gssd);
        let mut read: Vec<_> = blocks.into_iter().flat_map(Run::blocks).collect();
        loop {
            read.retain(|block| volume.pins().is_pinned(*block));
            if read.is_empty() {
                break;
            }
            volume.wait_a_moment();
        }
        Ok(Some(Event::Detached { gssd }))
    }

    /// Erases all that a deleted vSSD has at home.
    fn wipe(&self, vssd: VssdId) -> Result<Option<Event>> {
        let Some(volume) = self.volume(vssd) else { return Ok(None) };
        volume.gone.store(true, Ordering::SeqCst);
        let geometry = *self.media.geometry();
        // Nobody comes in any more; who is in is waited for.
        let all = volume.channels.iter().flat_map(|channel| geometry.blocks_of(*channel)).map(FlashBlock);
        let runs = Run::gather(all);
        let blocks = || runs.iter().copied().flat_map(Run::blocks);
        while volume.is_busy(blocks()) || volume.collecting.load(Ordering::Acquire) {
            volume.wait_a_moment();
        }
        let bad = self.erase_runs(&runs)?;
        Ok(Some(Event::Wiped { vssd, bad }))
    }

    /// Begins to collect where room is short, unless somebody does.
    pub(crate) fn kick(&self, volume: &Arc<Volume>) {
        if !self.inline && volume.read().vssd.is_short() {
            self.collect_soon(volume, Effort::Needed);
        }
    }

    /// Collects in the background, unless somebody does.
    pub(crate) fn collect_soon(&self, volume: &Arc<Volume>, effort: Effort) {
        if volume.gone.load(Ordering::Acquire) || volume.collecting.swap(true, Ordering::AcqRel) {
            return;
        }
        if self.inline {
            self.collect_all(volume, effort);
            volume.collecting.store(false, Ordering::Release);
            return;
        }
        let spawned = self.me.upgrade().map(|host| {
            let volume = Arc::clone(volume);
            std::thread::Builder::new().name("harvest collect".to_owned()).spawn(move || {
                host.collect_all(&volume, effort);
                volume.collecting.store(false, Ordering::Release);
                volume.turn_over();
            })
        });
        if !matches!(spawned, Some(Ok(_))) {
            volume.collecting.store(false, Ordering::Release);
        }
    }

    fn collect_all(&self, volume: &Volume, effort: Effort) {
        let mut effort = effort;
        for round in 0.. {
            if !self.goes_on() || volume.gone.load(Ordering::Acquire) {
                return;
            }
            match self.collect(volume, effort) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, vssd = volume.name, "cannot collect");
                    return;
                }
            }
            // What only tidies up is done a little at a time.
            if round >= IDLE_STEPS && volume.kind != Kind::Unsold {
                effort = Effort::Needed;
            }
        }
    }
}
