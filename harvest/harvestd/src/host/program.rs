//! Pages on their way to flash: the writes of VMs, and the copies of collectors.

use super::Host;
use super::log::{Inner, from_flash};
use super::volume::Volume;
use headstart_block::{Error, ErrorKind, Result, saturating};
use headstart_broker::{BrokerEvent, BrokerReport, Notice};
use headstart_flash::device::{FlashBlock, FlashError};
use headstart_flash::queue;
use headstart_flash::scheduler::Class;
use headstart_flash::vssd::{CollectStep, Effort, Place, Placement};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A page of a disk, and its bytes.
pub(crate) type Page<'a> = (u32, &'a [u8]);

/// The outcome of a program.
enum Programmed {
    Done,
    /// The flash block is bad.
    Bad,
    Failed(Error),
}

/// The longest sleep of a write that waits for lent blocks to come back.
const PAUSE: Duration = Duration::from_millis(50);

/// Steps that a collector takes at a time.
const STEPS: usize = 16;

impl Host {
    /// Writes whole pages; the caller has their range.
    pub(crate) fn write_pages(&self, volume: &Volume, pages: &[Page<'_>]) -> Result<()> {
        let mut todo = pages.to_vec();
        while !todo.is_empty() {
            self.log.may_take(0)?;
            let mut batch = Vec::with_capacity(todo.len());
            // A regular VM has its channels to itself.
            let times = volume.class().is_harvest().then(|| self.media.queue().program_times());
            let stopped = {
                let mut inner = volume.write();
                if let Some(times) = times {
                    let of = |channel: u16| times.get(usize::from(channel)).copied().unwrap_or_default();
                    inner.vssd.set_program_times(of);
                }
                place_all(&mut inner, &todo, &mut batch)
            };
            if batch.is_empty() {
                match stopped? {
                    Some(Stop::Recall) => self.recall(volume, todo.len())?,
                    _ => self.make_room(volume)?,
                }
                continue;
            }
            let rest = todo.split_off(batch.len());
            let again = self.program_batch(volume, volume.class(), batch)?;
            todo.retain(|(page, _)| again.contains(page));
            todo.extend(rest);
        }
        Ok(())
    }

    /// Programs a batch and commits it; returns the pages whose flash block turned out to be bad. Each placement of the
    /// batch is committed or reported as failed, whatever happens.
    fn program_batch(
        &self,
        volume: &Volume,
        class: Class,
        batch: Vec<(Placement, &[u8])>,
    ) -> Result<Vec<u32>> {
        let allowed = batch.iter().all(|(placement, _)| self.custody.may_touch(volume.id, placement.block));
        if !allowed {
            let mut inner = volume.write();
            for (placement, _) in batch {
                let change = inner.vssd.failed(placement, false);
                debug_assert!(change.is_none(), "nothing was said to be bad");
            }
            volume.turn_over();
            return Err(foreign(volume));
        }
        let media = &self.media;
        if media.is_emulated() {
            let bundle: Vec<(FlashBlock, queue::FlashAccess)> = batch
                .iter()
                .map(|(placement, _)| (placement.block, queue::FlashAccess::Program { pages: 1 }))
                .collect();
            drop(media.queue().enter(class, &bundle));
        }
        let (mut programmed, mut again, mut failure) = (Vec::with_capacity(batch.len()), Vec::new(), None);
        for (placement, bytes) in batch {
            if !volume.is_turn(&placement) {
                // The turn may wait for one of these.
                self.commit_batch(volume, &mut programmed, &mut again, &mut failure);
                volume.wait_turn(&placement);
            }
            let bundle = [(placement.block, queue::FlashAccess::Program { pages: 1 })];
            let _permit = (!media.is_emulated()).then(|| media.queue().enter(class, &bundle));
            let result = match media.program(placement.block, placement.at, bytes) {
                Ok(()) => Programmed::Done,
                Err(FlashError::Bad(_)) => Programmed::Bad,
                Err(error) => Programmed::Failed(from_flash(error, "a page cannot be programmed")),
            };
            programmed.push((placement, result));
        }
        self.commit_batch(volume, &mut programmed, &mut again, &mut failure);
        failure.map_or(Ok(again), Err)
    }

    /// Commits the programmed pages, under one lock.
    fn commit_batch(
        &self,
        volume: &Volume,
        programmed: &mut Vec<(Placement, Programmed)>,
        again: &mut Vec<u32>,
        failure: &mut Option<Error>,
    ) {
        let mut inner = volume.write();
        for (placement, result) in programmed.drain(..) {
            let page = placement.page;
            let change = match result {
                Programmed::Done => inner.vssd.commit(placement),
                Programmed::Bad => {
                    again.push(page);
                    inner.vssd.failed(placement, true)
                }
                Programmed::Failed(error) => {
                    failure.get_or_insert(error);
                    inner.vssd.failed(placement, false)
                }
            };
            if let Some(change) = change
                && let Err(error) = self.log.change(volume.id, &mut inner, &change)
            {
                failure.get_or_insert(error);
            }
        }
        drop(inner);
        volume.turn_over();
    }

    /// Makes room for a write that found none, or waits for others that do.
    fn make_room(&self, volume: &Volume) -> Result<()> {
        if self.collect(volume, Effort::Needed)? > 0 {
            return Ok(());
        }
        let doubtful = volume.suspect_pages.lock().long(self.clock.now());
        if let Some((block, page)) = doubtful {
            let cause = "no room can be made: the flash does not answer";
            let error = Error::new(ErrorKind::Io, cause).caused_by(FlashError::Unreadable(block, page));
            let error = error.about(format_args!("vSSD {}", volume.name));
            return Err(error.remedy("see to the flash; nothing on it is given up meanwhile"));
        }
        volume.wait_a_moment();
        Ok(())
    }

    /// Requests a lender's blocks back when a write of it found no space, and waits a while.
    pub(crate) fn recall(&self, volume: &Volume, pages: usize) -> Result<()> {
        self.check()?;
        volume.check()?;
        let lent = volume.read().vssd.usage().lent;
        let blocks = pages.div_ceil(self.media.geometry().pages as usize) + 8;
        let capacity = saturating(blocks);
        self.notify(BrokerEvent::SpacePressure { lender: volume.id, bandwidth: 0, capacity })?;
        if self.closing.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Cancelled, "the host is being closed"));
        }
        if self.inline && volume.read().vssd.usage().lent >= lent {
            // No event will bring them.
            let cause = "what it lent does not come back";
            return Err(Error::new(ErrorKind::NoSpace, cause).about(format_args!("vSSD {}", volume.name)));
        }
        let mut control = self.control.lock();
        if volume.read().vssd.usage().lent >= lent {
            self.changed.wait_for(&mut control, PAUSE);
        }
        Ok(())
    }

    /// Does a few steps of a volume's collector; returns their number.
    pub(crate) fn collect(&self, volume: &Volume, effort: Effort) -> Result<usize> {
        // The deletion of the vSSD waits for this collector, or this collector sees the deletion.
        let _in = volume.enter_collector();
        if volume.check().is_err() || self.log.may_tidy().is_err() {
            return Ok(0);
        }
        let mut steps = Vec::with_capacity(STEPS);
        let again = volume.suspect_pages.lock().are_due(self.clock.now());
        {
            let mut inner = volume.write();
            if again {
                inner.vssd.look_again();
            }
            while steps.len() < STEPS
                && let Some(step) = inner.vssd.collect_next(effort)
            {
                let last = matches!(step, CollectStep::Sync { .. });
                steps.push(step);
                if last {
                    break;
                }
            }
        }
        self.do_steps(volume, steps)
    }

    /// Does all of the steps; returns the number that could be done. Fails if none could.
    fn do_steps(&self, volume: &Volume, steps: Vec<CollectStep>) -> Result<usize> {
        let (mut copies, mut erasures, mut sync) = (Vec::new(), Vec::new(), false);
        let (mut done, mut failure) = (0, None);
        for step in steps {
            match step {
                CollectStep::Copy { from, page, to } => copies.push((from, page, to)),
                CollectStep::Erase { block } => erasures.push(block),
                CollectStep::Sync { .. } => sync = true,
            }
        }
        // Copies first: other operations may wait for their turn behind them.
        if !copies.is_empty() {
            let count = copies.len();
            match self.copy(volume, copies) {
                Ok(()) => done += count,
                Err(error) => failure = Some(error),
            }
        }
        for block in erasures {
            match self.erase_one(volume, block) {
                Ok(()) => done += 1,
                Err(error) => drop(failure.get_or_insert(error)),
            }
        }
        if sync && failure.is_none() {
            volume.flush(&self.log, &self.media)?;
            done += 1;
        }
        match failure {
            Some(error) if done == 0 => Err(error),
            Some(error) => {
                tracing::warn!(%error, vssd = volume.name, "a step of the collector failed; it will be tried again");
                Ok(done)
            }
            None => Ok(done),
        }
    }

    /// Copies pages; each placement is committed or reported as failed, whatever happens.
    fn copy(&self, volume: &Volume, copies: Vec<(FlashBlock, u32, Placement)>) -> Result<()> {
        let (media, class) = (&self.media, volume.collect_class());
        let size = media.geometry().page_size;
        let bytes = size as usize;
        let mut pages = vec![0; bytes * copies.len()];
        let bundle: Vec<(FlashBlock, queue::FlashAccess)> = copies
            .iter()
            .map(|(from, page, _)| (*from, queue::FlashAccess::Read { offset: page * size, len: size }))
            .collect();
        if media.is_emulated() {
            drop(media.queue().enter(class, &bundle));
        }
        let mut readable = Vec::with_capacity(copies.len());
        let mut unread = Unread::default();
        for (index, (from, page, to)) in copies.into_iter().enumerate() {
            let one = &bundle[index..=index];
            let _permit = (!media.is_emulated()).then(|| media.queue().enter(class, one));
            let part = &mut pages[index * bytes..][..bytes];
            let read = if self.custody.may_touch(volume.id, from) {
                media.read(from, page * size, part)
            } else {
                Err(FlashError::Failed(foreign(volume)))
            };
            match read {
                Ok(()) => {
                    volume.suspect_pages.lock().forget((from, page));
                    readable.push((index, to));
                }
                Err(error) => self.not_read(volume, (from, page), to, error, &mut unread),
            }
        }
        let batch = readable.into_iter().map(|(index, to)| (to, &pages[index * bytes..][..bytes])).collect();
        // A page whose copy went to a bad block is still in its old place, and is copied again.
        let programmed = self.program_batch(volume, class, batch);
        self.report_lost(volume, &unread);
        programmed?;
        unread.failure.map_or(Ok(()), Err)
    }

    /// Handles a page that could not be read for a copy: it stays in its place, or is lost.
    fn not_read(
        &self,
        volume: &Volume,
        at: (FlashBlock, u32),
        to: Placement,
        error: FlashError,
        unread: &mut Unread,
    ) {
        let unreadable = matches!(error, FlashError::Unreadable(..));
        let lost = unreadable && self.is_given_up(volume, at, unread);
        let page = to.page;
        let mut inner = volume.write();
        if lost {
            if let Some(change) = inner.vssd.lose(to) {
                unread.lost.push((page, at));
                if let Err(error) = self.log.change(volume.id, &mut inner, &change) {
                    unread.failure.get_or_insert(error);
                }
            }
        } else if unreadable {
            inner.vssd.unread(to);
        } else {
            unread.failure.get_or_insert(from_flash(error, "a page cannot be read"));
            let change = inner.vssd.failed(to, false);
            debug_assert!(change.is_none(), "nothing was said to be bad");
        }
        drop(inner);
        volume.turn_over();
    }

    /// Counts that a page could not be read again; `true` if it is given up, because it was tried for long and other
    /// flash can be read.
    fn is_given_up(&self, volume: &Volume, at: (FlashBlock, u32), unread: &mut Unread) -> bool {
        let (block, page) = at;
        if !volume.suspect_pages.lock().failed(at, self.clock.now()) {
            return false;
        }
        let media = &self.media;
        if !*unread.answers.get_or_insert_with(|| media.answers(block)) {
            return false;
        }
        let size = media.geometry().page_size;
        let mut bytes = vec![0; size as usize];
        let lost = matches!(media.read(block, page * size, &mut bytes), Err(FlashError::Unreadable(..)));
        if lost {
            volume.suspect_pages.lock().forget(at);
        }
        lost
    }

    /// Reports the lost pages.
    fn report_lost(&self, volume: &Volume, unread: &Unread) {
        let Some(&(page, (block, at))) = unread.lost.first() else { return };
        self.media.gave_up(unread.lost.len() as u64);
        let what = Notice::Unreadable {
            pages: unread.lost.len() as u64,
            offset: u64::from(page) * u64::from(self.media.geometry().page_size),
            at: (block, at),
        };
        let report = BrokerReport { vm: volume.name.clone(), vssd: volume.id, at: self.time(), what };
        tracing::warn!(vssd = volume.name, "{report}");
        self.control.lock().report(report);
    }

    fn erase_one(&self, volume: &Volume, block: FlashBlock) -> Result<()> {
        let erased = if self.custody.may_touch(volume.id, block) {
            self.media.erase(volume.collect_class(), block)
        } else {
            Err(FlashError::Failed(foreign(volume)))
        };
        let mut inner = volume.write();
        let done = match erased {
            Ok(()) => inner.vssd.erased(block, self.media.wear(block)),
            // The content of a block whose erasure failed is unknown: it is never used again.
            Err(FlashError::Bad(_)) => {
                let change = inner.vssd.erase_failed(block)?;
                self.log.change(volume.id, &mut inner, &change)
            }
            Err(error) => {
                inner.vssd.erase_later(block)?;
                Err(from_flash(error, "a flash block cannot be erased"))
            }
        };
        drop(inner);
        volume.turn_over();
        done
    }
}

/// The pages of a batch that could not be read.
#[derive(Default)]
struct Unread {
    /// The reason that pages which are not in doubt were not read.
    failure: Option<Error>,
    /// Pages of the disk that are lost, and their places on flash.
    lost: Vec<(u32, (FlashBlock, u32))>,
    /// `Some(true)` if other flash answers; `None` until that was asked.
    answers: Option<bool>,
}

/// The reason that not all pages were placed.
enum Stop {
    Collect,
    Recall,
}

/// Places pages until one finds no place.
fn place_all<'a>(
    inner: &mut Inner,
    pages: &[Page<'a>],
    batch: &mut Vec<(Placement, &'a [u8])>,
) -> Result<Option<Stop>> {
    for (page, bytes) in pages {
        match inner.vssd.place(*page)? {
            Place::At(placement) => batch.push((placement, bytes)),
            Place::Collect => return Ok(Some(Stop::Collect)),
            Place::Recall => return Ok(Some(Stop::Recall)),
        }
    }
    Ok(None)
}

/// The FTL named a flash block that is not its own: a fault of this program, stopped before it did harm.
pub(crate) fn foreign(volume: &Volume) -> Error {
    let cause = "a flash block is not its own to touch";
    Error::new(ErrorKind::Io, cause)
        .about(format_args!("vSSD {}", volume.name))
        .remedy("restart the host, and report this as a fault of the program")
}
