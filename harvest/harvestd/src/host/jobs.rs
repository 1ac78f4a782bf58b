//! Work that takes time: erasing blocks that change hands, moving data of leases that end, collecting.
//!
//! Each job has its thread; in tests they are done one after the other by the thread that caused them. One that fails
//! (the flash cannot be reached) waits for the next tick and begins again, if the broker still awaits it; all may be
//! done twice.
//!
//! # Waits and their limits
//!
//! The evacuation of a lease ends: after [`urgent_limit`](super::HostSettings::urgent_limit) from the time at which its
//! lender needs it at once, otherwise after a time that follows from the amount of data. No new page is placed on such
//! a lease. While a lender waits, copies take turns with the harvest VM's own I/O, and its writes move data as well, so
//! that no borrower writes faster than its data is moved.

use super::job::Job;
use super::volume::Volume;
use super::{Host, Jobs};
use headstart_block::{Error, ErrorKind, Result};
use headstart_broker::{BlockRun, BrokerEvent, Evacuation};
use headstart_flash::device::{FlashBlock, FlashError};
use headstart_flash::vssd::Effort;
use headstart_flash::{GssdId, VssdId, VssdKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The number of the collector's steps between two checks for a reason to stop.
const IDLE_STEPS: usize = 8;

/// The time limit of an evacuation.
struct Deadline {
    /// `true` if the time has come.
    is_over: bool,
    /// `true` if its lender waits for it.
    is_urgent: bool,
    /// The time that it may take.
    limit: Duration,
}

impl Jobs {
    /// Notes that a job is to be tried again. A swap is planned again.
    fn fail(&mut self, job: Job) {
        if !matches!(job, Job::Swap(..)) {
            self.failed.push(job);
        }
    }
}

impl Host {
    /// Begins a job; if the same one runs, after that.
    pub(crate) fn begin(&self, job: Job) {
        {
            let jobs = &mut *self.jobs.lock();
            if let Some(again) = jobs.running.get_mut(&job) {
                // The running one may have looked for work for the last time.
                *again = true;
                return;
            }
            jobs.running.insert(job, false);
            if self.inline {
                jobs.waiting.push_back(job);
                return;
            }
        }
        let host = self.me.upgrade();
        let spawned = host.map(|host| {
            let name = format!("harvest {job:?}");
            std::thread::Builder::new().name(name).spawn(move || host.do_job(job)).map(drop)
        });
        if !matches!(spawned, Some(Ok(()))) {
            let mut jobs = self.jobs.lock();
            jobs.running.remove(&job);
            jobs.fail(job);
        }
    }

    /// Does the jobs that wait, one after the other.
    pub(crate) fn run_jobs(&self) {
        loop {
            let job = self.jobs.lock().waiting.pop_front();
            let Some(job) = job else { return };
            self.do_job(job);
        }
    }

    /// Begins failed jobs again.
    pub(crate) fn retry_jobs(&self) {
        let failed = std::mem::take(&mut self.jobs.lock().failed);
        failed.into_iter().for_each(|job| self.begin(job));
        if self.inline {
            self.run_jobs();
        }
    }

    fn do_job(&self, job: Job) {
        // Since it was begun, or failed, the broker may have gone on.
        let awaited = job.action().is_none_or(|action| self.control.lock().broker.awaits(&action));
        let done = match job {
            _ if !awaited => Ok(None),
            Job::Erase(gssd) => self.erase(gssd),
            Job::Evacuate(gssd, borrower, slot) => self.evacuate(gssd, borrower, slot),
            Job::Detach(gssd, borrower, slot) => self.detach(gssd, borrower, slot),
            Job::Wipe(vssd) => self.wipe(vssd),
            Job::Swap(one, other) => self.swap(one, other),
        };
        let told = done.and_then(|event| event.map_or(Ok(()), |event| self.notify_now_or_later(event)));
        // Only now: no other thread does the same job while this one's event is on its way.
        let again = self.jobs.lock().running.remove(&job).unwrap_or(false);
        if let Err(error) = told {
            // The search for room on the journal's disk reports that once.
            if error.kind() == ErrorKind::NoSpace && self.log.refusal().is_some() {
                tracing::debug!(%error, ?job, "will be tried again");
            } else if !self.closing.load(Ordering::Acquire) {
                tracing::warn!(%error, ?job, "will be tried again");
            }
            self.jobs.lock().fail(job);
        } else if again {
            self.begin(job);
        }
        self.changed.notify_all();
    }

    pub(super) fn goes_on(&self) -> bool {
        !self.closing.load(Ordering::Acquire)
    }

    /// Erases a gSSD's blocks, its channels in parallel.
    fn erase(&self, gssd: GssdId) -> Result<Option<BrokerEvent>> {
        let blocks = self.custody.blocks(gssd);
        let lender = self.control.lock().broker.gssd(gssd).map(|gssd| gssd.lender);
        let bad = self.erase_runs(&blocks, true)?;
        if let Some(lender) = lender {
            self.lost_blocks(lender, &bad)?;
        }
        Ok(Some(BrokerEvent::Erased { gssd, bad }))
    }

    /// Erases blocks, channels in parallel; returns those that cannot be erased. `for_harvest` tells whose wear that
    /// is.
    pub(super) fn erase_runs(&self, runs: &[BlockRun], for_harvest: bool) -> Result<Vec<FlashBlock>> {
        let geometry = self.media.geometry();
        let blocks: Vec<FlashBlock> = runs.iter().copied().flat_map(BlockRun::blocks).collect();
        let channels: Vec<&[FlashBlock]> =
            blocks.chunk_by(|a, b| geometry.channel(*a) == geometry.channel(*b)).collect();
        let erase = |blocks: &[FlashBlock]| self.media.erase_all(for_harvest, blocks, || self.goes_on());
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

    /// Moves the data of a slot to the borrower's other slots.
    fn evacuate(&self, gssd: GssdId, borrower: VssdId, slot: u8) -> Result<Option<BrokerEvent>> {
        let Some(volume) = self.volume(borrower) else { return Ok(None) };
        let begun = {
            let mut inner = volume.write();
            if !inner.vssd.has_slot(slot) {
                return Ok(Some(BrokerEvent::Evacuated { gssd }));
            }
            inner.vssd.drain_slot(slot, None)
        };
        let bytes = match begun {
            Ok(fit) => fit.there.saturating_mul(self.media.geometry().page_size.into()),
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                return Ok(Some(BrokerEvent::EvacuationFailed { gssd, cause: error.to_string() }));
            }
            Err(error) => return Err(error),
        };
        let (mut promotion, mut idle) = (None, 0);
        loop {
            // It was detached, or is kept, and another may have the slot by now.
            let Some(deadline) = self.deadline(gssd, borrower, slot, bytes) else { return Ok(None) };
            if volume.gone.load(Ordering::Acquire) {
                return Ok(None);
            }
            if volume.read().vssd.drained(slot, None) && volume.write().vssd.close_slot(slot, None) {
                break;
            }
            if !self.goes_on() {
                return Err(Error::new(ErrorKind::Cancelled, "the host is being closed"));
            }
            if deadline.is_over {
                volume.write().vssd.keep_slot(slot, None);
                let cause = format!("it was not done within {} s", deadline.limit.as_secs());
                return Ok(Some(BrokerEvent::EvacuationFailed { gssd, cause }));
            }
            if deadline.is_urgent {
                promotion.get_or_insert_with(|| volume.promote());
            }
            // While the journal's disk is full nothing moves until a tick finds room.
            self.log.may_tidy()?;
            if self.collect(&volume, Effort::Needed)? > 0 {
                idle = 0;
                continue;
            }
            idle += 1;
            volume.flush(&self.log, &self.media)?;
            if idle > 1 {
                volume.wait_a_moment();
            }
        }
        volume.flush(&self.log, &self.media)?;
        Ok(Some(BrokerEvent::Evacuated { gssd }))
    }

    /// The time limit for moving `bytes` bytes from a slot; `None` if the broker does not await that any more.
    fn deadline(&self, gssd: GssdId, borrower: VssdId, slot: u8, bytes: u64) -> Option<Deadline> {
        let control = self.control.lock();
        let awaited = control.broker.evacuation(gssd);
        let Evacuation { since, pressed_since, .. } =
            awaited.filter(|it| it.borrower == borrower && it.slot == slot)?;
        let channels = control.broker.gssd(gssd)?.bandwidth;
        drop(control);
        let (now, limit) = (self.time(), self.settings.moving_limit(bytes, channels));
        let urgent = self.settings.urgent_limit;
        let late = now.since(since) >= limit;
        match pressed_since {
            Some(pressed_since) if !late => {
                Some(Deadline { is_urgent: true, is_over: now.since(pressed_since) >= urgent, limit: urgent })
            }
            _ => Some(Deadline { is_urgent: pressed_since.is_some(), is_over: late, limit }),
        }
    }

    /// Moves some data of a lease whose lender waits for it, as part of a write beside it. A failure here happens to
    /// the evacuation as well, which reports it.
    pub(crate) fn help_evacuate(&self, volume: &Volume) {
        if volume.is_promoted()
            && let Err(error) = self.collect(volume, Effort::Needed)
        {
            tracing::debug!(%error, vssd = volume.name, "cannot help to move what is on a lease");
        }
    }

    /// Takes a slot from a borrower, with the data that is still in it, and waits for running I/O.
    fn detach(&self, gssd: GssdId, borrower: VssdId, slot: u8) -> Result<Option<BrokerEvent>> {
        let Some(volume) = self.volume(borrower) else { return Ok(Some(BrokerEvent::Detached { gssd })) };
        for round in 0.. {
            {
                let mut inner = volume.write();
                if !inner.vssd.has_slot(slot) {
                    break;
                }
                if let Some(change) = inner.vssd.abandon_slot(slot)? {
                    self.log.change(borrower, &mut inner, &change)?;
                }
                if inner.vssd.drained(slot, None) {
                    let leaving = inner.vssd.remove_slot(slot, None)?;
                    self.log.change(borrower, &mut inner, &leaving.change)?;
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
        // A block whose counter another shares looks pinned for longer than it is, never for shorter. No new pins are
        // made, so that each has to be seen once without a pin, not all at the same time.
        let blocks = self.custody.blocks(gssd);
        let mut read: Vec<_> = blocks.into_iter().flat_map(BlockRun::blocks).collect();
        loop {
            read.retain(|block| volume.pins().is_pinned(*block));
            if read.is_empty() {
                break;
            }
            volume.wait_a_moment();
        }
        // The evacuation of this slot notices that it is not awaited. Its late event must not be taken for one about
        // the slot's next gSSD. (If one thread does all jobs, the evacuation may itself be the caller.)
        while !self.inline && self.jobs.lock().running.contains_key(&Job::Evacuate(gssd, borrower, slot)) {
            if !self.goes_on() {
                return Err(Error::new(ErrorKind::Cancelled, "the host is being closed"));
            }
            volume.wait_a_moment();
        }
        Ok(Some(BrokerEvent::Detached { gssd }))
    }

    /// Erases all blocks that a deleted vSSD owns.
    fn wipe(&self, vssd: VssdId) -> Result<Option<BrokerEvent>> {
        let Some(volume) = self.volume(vssd) else { return Ok(None) };
        volume.gone.store(true, Ordering::SeqCst);
        let geometry = *self.media.geometry();
        // No I/O comes in any more; running I/O is waited for.
        let channels = volume.channels();
        let all = channels.into_iter().flat_map(|channel| geometry.blocks_of(channel)).map(FlashBlock);
        let runs = BlockRun::gather(all);
        let blocks = || runs.iter().copied().flat_map(BlockRun::blocks);
        while volume.is_busy(blocks()) {
            volume.wait_a_moment();
        }
        let bad = self.erase_runs(&runs, volume.kind == VssdKind::Harvest)?;
        Ok(Some(BrokerEvent::Wiped { vssd, bad }))
    }

    /// Begins to collect if room is short, unless a collector runs.
    pub(crate) fn collect_if_short(&self, volume: &Arc<Volume>) {
        if !self.inline && volume.read().vssd.is_short() {
            self.collect_soon(volume, Effort::Needed);
        }
    }

    /// Collects in the background, unless a collector runs.
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
            // Mere tidying is done a little at a time.
            if round >= IDLE_STEPS {
                effort = Effort::Needed;
            }
        }
    }
}
