//! The thread that brings recorded requests into the trace directory.
//!
//! One thread serves all disks of a process; the threads that serve the disks do not wait for it. So no trouble of the
//! directory (full, gone, as slow as a dead network file system) reaches a disk. All failed writes are counted, and the
//! first is reported. A failed write is tried again with the boot's next save; after the last save there is none, and
//! the boot leaves its last written trace, or none.
//!
//! Once a second the thread takes out the records, and samples each link while a boot is recorded. It writes a boot's
//! trace again 5, 15, 35, ... seconds after the first read, so that `kill -9` loses at most a minute, and all saves of
//! a boot take only a few times as long as the last one. The last save comes when the window has ended, when the next
//! boot has begun, or at detach. It survives a loss of power, unless the next boot began within the window.
//!
//! If the next boot begins within the window, and before 16 reads were recorded, the boot was only a look at the disk,
//! by a tool or by firmware that was reset. It leaves no trace, and is counted and reported as a look.
//!
//! A guest decides how often it boots. So each disk has a [`TraceBudget`] and a limit on its number of traces, at which
//! the oldest is removed for the next one. One guest can then neither drive out many traces of other disks nor fill the
//! directory with files.

use crate::budget::TraceBudget;
use crate::directory::TraceDirectory;
use crate::record::{Op, Record};
use crate::recorder::{BootId, RECORDS_MAX, Recorder};
use crate::trace::{ATTACHED_BEFORE, Creation, ENTRYPOINT, ENTRYPOINT_AFTER, LinkSample, Trace};
use headstart_block::{Error, Result, saturating};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// A function that samples the link to the store. The argument is the time since the boot's first read, in
/// microseconds; the function must return it as [`LinkSample::t_us`] of the sample. The function returns `None` if
/// there is no link.
pub type SampleLink = Box<dyn Fn(u64) -> Option<LinkSample> + Send>;

/// The least number of reads of a boot that another one follows; with fewer, it was no boot.
const READS_MIN: usize = 16;

/// Boots of a disk that are open at the same time: one that goes on, and those before it that wait for the next look.
const OPEN_MAX: usize = 4;

/// A disk whose boots are recorded.
pub struct Recording {
    /// The recorder of the disk's requests.
    pub recorder: Arc<Recorder>,
    /// The known metadata of the disk. In the trace of each boot, the time of creation is replaced by that of the boot.
    /// From the second boot on, the number of the boot is appended to the name of the volume, as in `web-boot-2`.
    pub creation: Creation,
    /// The function that samples the disk's link to the store.
    pub sample: SampleLink,
}

/// The intervals between samples and between saves, and the limits on the number of traces. The thread wakes at
/// intervals of [`sample_every`](Self::sample_every), so saves may come later than their time by as much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The interval at which the thread takes out records, samples the link, and writes the traces whose time has come.
    pub sample_every: Duration,
    /// The time from a boot's first read to the first save of its trace. The interval to each next save doubles.
    pub save_first: Duration,
    /// The maximum interval between saves of a boot's trace.
    pub save_every_max: Duration,
    /// The maximum number of a disk's boots in any hour that leave a trace.
    pub traces_an_hour: usize,
    /// The maximum number of traces of a disk that are kept while it is attached; the oldest are removed.
    pub traces_max: usize,
}

impl Default for Pace {
    /// Samples each second, saves after 5 seconds and then at least each minute, and limits of 6 traces in an hour and
    /// of 64 traces that are kept of a disk.
    fn default() -> Self {
        Self {
            sample_every: Duration::from_secs(1),
            save_first: Duration::from_secs(5),
            save_every_max: Duration::from_secs(60),
            traces_an_hour: 6,
            traces_max: 64,
        }
    }
}

/// The numbers of boots and of their requests, by outcome, over all disks of a [`Saver`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedBoots {
    /// The number of boots that have begun.
    pub boots: u64,
    /// The number of boots of which a trace was written.
    pub traces: u64,
    /// The number of *looks*: boots that left no trace, because they had fewer than 16 reads when the next boot began.
    /// A tool or restarting firmware may cause them.
    pub looks: u64,
    /// The number of boots that left no trace, because their disk had reached its limit of traces in an hour.
    pub beyond: u64,
    /// The number of requests in all written traces.
    pub requests: u64,
    /// The number of requests of the boots that are counted in `looks`.
    pub requests_of_looks: u64,
    /// The number of requests of the boots that are counted in `beyond`.
    pub requests_beyond: u64,
    /// The number of failed attempts to write or remove traces.
    pub failures: u64,
}

/// The same counts, while they are updated.
#[derive(Default)]
struct Counts {
    boots: AtomicU64,
    traces: AtomicU64,
    looks: AtomicU64,
    beyond: AtomicU64,
    requests: AtomicU64,
    requests_of_looks: AtomicU64,
    requests_beyond: AtomicU64,
    failures: AtomicU64,
}

fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

/// The thread that collects the records of several disks and writes them as traces, until it is stopped. If this value
/// is dropped, the thread writes a last time and ends, but nothing waits for that.
pub struct Saver {
    /// The thread works until this is dropped.
    stop: Mutex<Option<Sender<()>>>,
    /// Disconnected when the thread has ended.
    ended: Mutex<Receiver<()>>,
    directory: Arc<TraceDirectory>,
    counts: Arc<Counts>,
}

impl Saver {
    /// Starts a thread that writes the traces of `recordings` to `directory`.
    ///
    /// # Errors
    /// Errors of the operating system if the thread cannot be started.
    pub fn start(directory: Arc<TraceDirectory>, recordings: Vec<Recording>, pace: Pace) -> Result<Self> {
        let (stop, stopped) = channel();
        let (end, ended) = channel();
        let counts = Arc::<Counts>::default();
        let mut work = Work {
            directory: Arc::clone(&directory),
            disks: recordings.into_iter().map(|recording| Disk::new(recording, &pace)).collect(),
            pace,
            counts: Arc::clone(&counts),
        };
        let run = move || {
            work.run(&stopped);
            drop(end);
        };
        thread::Builder::new()
            .name("traces".to_owned())
            .spawn(run)
            .map_err(|e| Error::io("cannot start a thread", e))?;
        Ok(Self { stop: Mutex::new(Some(stop)), ended: Mutex::new(ended), directory, counts })
    }

    /// Makes the thread write all traces a last time and end, and waits for its end, at most for `timeout`. Returns
    /// `true` if the thread has ended, `false` if it is still writing.
    pub fn stop(&self, timeout: Duration) -> bool {
        *self.stop.lock() = None;
        let ended = self.ended.lock();
        let ended = matches!(ended.recv_timeout(timeout), Err(RecvTimeoutError::Disconnected));
        if !ended {
            tracing::warn!(
                "{}: takes no traces in time: the last were not waited for",
                self.directory.dir().display()
            );
        }
        ended
    }

    /// Returns the numbers of boots and requests so far.
    #[must_use]
    pub fn saved(&self) -> SavedBoots {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SavedBoots {
            boots: load(&self.counts.boots),
            traces: load(&self.counts.traces),
            looks: load(&self.counts.looks),
            beyond: load(&self.counts.beyond),
            requests: load(&self.counts.requests),
            requests_of_looks: load(&self.counts.requests_of_looks),
            requests_beyond: load(&self.counts.requests_beyond),
            failures: load(&self.counts.failures),
        }
    }

    /// The directory that the traces are written to.
    #[must_use]
    pub fn directory(&self) -> &TraceDirectory {
        &self.directory
    }
}

/// The state of the thread.
struct Work {
    directory: Arc<TraceDirectory>,
    disks: Vec<Disk>,
    pace: Pace,
    counts: Arc<Counts>,
}

struct Disk {
    recording: Recording,
    /// Boots whose last save is to come, in their order.
    open: Vec<OpenBoot>,
    /// The boot that was opened last, and the number of boots so far.
    last: Option<BootId>,
    number: u64,
    share: Share,
}

/// A disk's share of the directory.
struct Share {
    budget: TraceBudget,
    /// The creations of its traces, oldest first.
    kept: VecDeque<Creation>,
    kept_max: usize,
}

/// The state in which a boot is saved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// The boot goes on.
    Midway,
    /// The next one has cut it short.
    CutShort,
    /// The boot is over.
    Over,
}

/// A boot whose trace is not complete.
struct OpenBoot {
    boot: BootId,
    /// The time of its first read, since the disk was attached.
    since: Duration,
    trace: Trace,
    /// The time at which it is saved next, since its first read, and the time until the save after that.
    save_at: Duration,
    save_after: Duration,
    /// Requests that were seen, kept or dropped, when it was saved last.
    saved: u64,
    /// `true` if its disk's budget has granted it a trace.
    granted: bool,
    /// Requests in the last written trace; `None` before the first save.
    written: Option<u64>,
}

impl OpenBoot {
    fn seen(&self) -> u64 {
        self.trace.records.len() as u64 + self.trace.dropped
    }

    /// Returns `true` if it was no boot but a look, where another one cuts it short.
    fn is_look(&self) -> bool {
        self.trace.records.iter().filter(|record| record.op == Op::Read).take(READS_MIN).count() < READS_MIN
    }

    /// Takes a request; `false` if there is no room.
    fn push(&mut self, record: Record) -> bool {
        let fits = self.trace.records.len() < RECORDS_MAX;
        if fits {
            self.trace.records.push(record);
        } else {
            self.trace.dropped += 1;
        }
        fits
    }
}

/// The wall clock's time `since` after a disk was attached.
#[expect(clippy::disallowed_methods, reason = "the time of a trace is what the clock says")]
fn unix_us(created: Instant, since: Duration) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let ago = created.elapsed().saturating_sub(since);
    saturating::<u64>(now.saturating_sub(ago).as_micros())
}

impl Disk {
    fn new(recording: Recording, pace: &Pace) -> Self {
        let budget = TraceBudget::new(pace.traces_an_hour);
        let share = Share { budget, kept: VecDeque::new(), kept_max: pace.traces_max };
        Self { recording, open: Vec::new(), last: None, number: 0, share }
    }

    /// Opens the boot if it is a new one. Returns its place, unless it was closed.
    fn place(&mut self, boot: BootId, pace: &Pace, counts: &Counts) -> Option<usize> {
        if self.last.is_none_or(|last| last < boot) {
            let since = boot.since()?;
            self.number += 1;
            self.last = Some(boot);
            add(&counts.boots, 1);
            let trace = Trace { creation: self.creation(since), ..Trace::default() };
            let (save_at, save_after) = (pace.save_first, pace.save_first);
            tracing::info!(volume = trace.creation.volume, "a boot is recorded, from its first read on");
            let (saved, granted, written) = (0, false, None);
            self.open.push(OpenBoot { boot, since, trace, save_at, save_after, saved, granted, written });
        }
        self.open.iter().position(|open| open.boot == boot)
    }

    fn creation(&self, since: Duration) -> Creation {
        let mut creation = self.recording.creation.clone();
        creation.created_us = unix_us(self.recording.recorder.created(), since);
        if self.number == 1 {
            creation.labels.insert(ATTACHED_BEFORE.to_owned(), since.as_micros().to_string());
        } else {
            creation.volume = format!("{}-boot-{}", creation.volume, self.number);
        }
        creation
    }
}

#[expect(clippy::disallowed_methods, reason = "samples are taken by the clock")]
impl Work {
    fn run(&mut self, stopped: &Receiver<()>) {
        while matches!(stopped.recv_timeout(self.pace.sample_every), Err(RecvTimeoutError::Timeout)) {
            self.look(Instant::now(), false);
        }
        self.look(Instant::now(), true);
    }

    /// Looks at all disks, for the last time if they are `detached`.
    fn look(&mut self, now: Instant, detached: bool) {
        let mut wrote = false;
        for mut disk in std::mem::take(&mut self.disks) {
            wrote |= self.collect(&mut disk);
            wrote |= self.tick(&mut disk, now, detached);
            self.disks.push(disk);
        }
        if wrote && let Err(error) = self.directory.evict() {
            self.failed(&error);
        }
    }

    /// Takes out the records of a disk's recorder; returns `true` if a trace was written to make room.
    fn collect(&self, disk: &mut Disk) -> bool {
        let mut wrote = false;
        let recorder = Arc::clone(&disk.recording.recorder);
        recorder.drain(&mut |boot, record| {
            let place = disk.place(boot, &self.pace, &self.counts);
            let kept = place.is_some_and(|place| disk.open[place].push(record));
            while disk.open.len() > OPEN_MAX {
                let oldest = disk.open.remove(0);
                wrote |= self.close(&mut disk.share, oldest, true);
            }
            kept
        });
        // Its first read may not have come back yet.
        disk.place(recorder.boot(), &self.pace, &self.counts);
        if let Some(start) = recorder.container_start()
            && let Some(open) = disk.open.iter_mut().find(|open| open.boot == start.boot)
        {
            let labels = &mut open.trace.creation.labels;
            labels.insert(ENTRYPOINT.to_owned(), start.entrypoint);
            labels.insert(ENTRYPOINT_AFTER.to_owned(), start.after.as_micros().to_string());
        }
        wrote
    }

    /// Samples the link of the boot that goes on, and saves due traces; returns `true` if a trace was written.
    fn tick(&self, disk: &mut Disk, now: Instant, detached: bool) -> bool {
        let mut wrote = false;
        let recorder = &disk.recording.recorder;
        let now = now.saturating_duration_since(recorder.created());
        let window = recorder.window();
        for mut open in std::mem::take(&mut disk.open) {
            let since = now.saturating_sub(open.since);
            let next = disk.last.filter(|last| *last != open.boot).and_then(BootId::since);
            // Requests are noted when they end: those that arrived last have a little time for that.
            if next.is_some() || detached || since > window + self.pace.sample_every {
                let is_cut_short = next.is_some_and(|next| next.saturating_sub(open.since) <= window);
                wrote |= self.close(&mut disk.share, open, is_cut_short);
                continue;
            }
            let t_us = saturating::<u64>(since.as_micros());
            open.trace.link.extend((disk.recording.sample)(t_us));
            if since >= open.save_at {
                wrote |= self.save(&mut disk.share, &mut open, Moment::Midway);
                open.save_after = (open.save_after * 2).min(self.pace.save_every_max);
                open.save_at = since + open.save_after;
            }
            disk.open.push(open);
        }
        wrote
    }

    /// Saves a boot for the last time; `is_cut_short` is `true` if the next one began within its window. Returns
    /// `true` if a trace was written.
    fn close(&self, share: &mut Share, mut open: OpenBoot, is_cut_short: bool) -> bool {
        let (volume, seen) = (open.trace.creation.volume.clone(), open.seen());
        if is_cut_short && open.is_look() {
            self.forget(share, &open);
            add(&self.counts.looks, 1);
            add(&self.counts.requests_of_looks, open.trace.records.len() as u64);
            tracing::info!(
                volume,
                requests = seen,
                "too little was read before the next boot: it leaves no trace"
            );
            return false;
        }
        let moment = if is_cut_short { Moment::CutShort } else { Moment::Over };
        let wrote = self.save(share, &mut open, moment);
        if !open.granted && seen > 0 {
            add(&self.counts.beyond, 1);
            add(&self.counts.requests_beyond, open.trace.records.len() as u64);
            tracing::info!(
                volume,
                requests = seen,
                "the disk has left as many traces as it may: this boot leaves none"
            );
        } else if open.written.is_none() && seen > 0 {
            tracing::warn!(volume, "a boot leaves no trace: none could be written");
        }
        wrote
    }

    /// Removes the written trace of a boot.
    fn forget(&self, share: &mut Share, open: &OpenBoot) {
        let Some(written) = open.written else { return };
        share.budget.take_back(open.since);
        // A label may have come since.
        let id = |creation: &Creation| (creation.volume.clone(), creation.created_us);
        share.kept.retain(|kept| id(kept) != id(&open.trace.creation));
        if let Err(error) = self.directory.remove(&open.trace.creation) {
            return self.failed(&error);
        }
        self.counts.traces.fetch_sub(1, Ordering::Relaxed);
        self.counts.requests.fetch_sub(written, Ordering::Relaxed);
    }

    /// Writes a boot's trace, unless nothing was added since or ever, or its disk may leave no more. Returns `true`
    /// if it wrote one.
    fn save(&self, share: &mut Share, open: &mut OpenBoot, moment: Moment) -> bool {
        let seen = open.seen();
        let last = moment == Moment::Over;
        if seen == 0 || (seen == open.saved && !last) {
            return false;
        }
        open.granted = open.granted || share.budget.grant(open.since);
        if !open.granted {
            return false;
        }
        // Requests are noted when they end, and by several threads.
        open.trace.records.sort_by_key(|record| record.t_us);
        match self.directory.save(&open.trace, last) {
            Ok(path) => {
                open.saved = seen;
                let now = open.trace.records.len() as u64;
                add(&self.counts.requests, now.saturating_sub(open.written.unwrap_or(0)));
                if open.written.is_none() {
                    add(&self.counts.traces, 1);
                    share.kept.push_back(open.trace.creation.clone());
                }
                open.written = Some(now);
                self.make_room(share);
                if moment != Moment::Midway {
                    tracing::info!(path = %path.display(), requests = now, "a boot was recorded");
                }
                true
            }
            Err(error) => {
                self.failed(&error);
                false
            }
        }
    }

    /// Removes the oldest traces of a disk that has too many.
    fn make_room(&self, share: &mut Share) {
        while share.kept.len() > share.kept_max {
            let oldest = share.kept.pop_front();
            if let Some(Err(error)) = oldest.map(|oldest| self.directory.evict_one(&oldest)) {
                self.failed(&error);
            }
        }
    }

    fn failed(&self, error: &Error) {
        if self.counts.failures.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(%error, "traces are lost; the disks go on");
        }
    }
}

#[cfg(test)]
mod tests;
