//! The thread that brings what is recorded into the trace directory.
//!
//! One for all disks of a process, and none of theirs: it looks at the recorders from outside, so nothing that
//! befalls the directory (full, gone, as slow as a dead network file system) reaches a disk. What cannot be written
//! is said once and counted, and tried again with the next save.
//!
//! Once a second it samples each link. It writes a disk's trace anew after 5, 15, 35, ... seconds: `kill -9` then
//! costs at most as much as was there before, or a minute, and all the writing takes no more than a few times the
//! last one. The last save comes when the window has ended, or at detach, and survives a loss of power.

use crate::directory::TraceDirectory;
use crate::recorder::Recorder;
use crate::trace::{Creation, LinkSample, Trace};
use headstart_block::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Samples what is known of a link, at a time in microseconds since the creation; `None` where there is no link.
pub type SampleLink = Box<dyn Fn(u64) -> Option<LinkSample> + Send>;

/// A disk that is recorded.
pub struct Recording {
    /// What notes its requests.
    pub recorder: Arc<Recorder>,
    /// What is known of it.
    pub creation: Creation,
    /// What is known of its link.
    pub sample: SampleLink,
}

/// How often things happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Time between samples of the link.
    pub sample_every: Duration,
    /// Time to the first save, doubled after each.
    pub save_first: Duration,
    /// Longest time between saves.
    pub save_every_max: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            sample_every: Duration::from_secs(1),
            save_first: Duration::from_secs(5),
            save_every_max: Duration::from_secs(60),
        }
    }
}

/// Saves what disks' recorders note, until they are all through or it is stopped.
pub struct Saver {
    /// The thread works until this is dropped.
    stop: Mutex<Option<Sender<()>>>,
    /// Disconnected when the thread has ended.
    ended: Mutex<Receiver<()>>,
    directory: Arc<TraceDirectory>,
    failures: Arc<AtomicU64>,
    saved: Arc<AtomicU64>,
}

impl Saver {
    /// Starts the thread.
    ///
    /// # Errors
    /// What the operating system reports.
    pub fn start(directory: Arc<TraceDirectory>, recordings: Vec<Recording>, pace: Pace) -> Result<Self> {
        let (stop, stopped) = channel();
        let (end, ended) = channel();
        let [failures, saved] = [0, 0].map(|none| Arc::new(AtomicU64::new(none)));
        let mut work = Work {
            directory: Arc::clone(&directory),
            disks: recordings.into_iter().map(|recording| Disk::new(recording, &pace)).collect(),
            pace,
            failures: Arc::clone(&failures),
            saved: Arc::clone(&saved),
        };
        let run = move || {
            work.run(&stopped);
            drop(end);
        };
        thread::Builder::new()
            .name("traces".to_owned())
            .spawn(run)
            .map_err(|e| Error::io("cannot start a thread", e))?;
        Ok(Self { stop: Mutex::new(Some(stop)), ended: Mutex::new(ended), directory, failures, saved })
    }

    /// Writes what was recorded so far for the last time, and waits for that at most `patience`; whether it has
    /// ended.
    pub fn stop(&self, patience: Duration) -> bool {
        *self.stop.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = matches!(ended.recv_timeout(patience), Err(RecvTimeoutError::Disconnected));
        if !ended {
            tracing::warn!(
                "{}: takes no traces in time: the last were not waited for",
                self.directory.dir().display()
            );
        }
        ended
    }

    /// Saves that failed.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Requests in the traces that were written.
    #[must_use]
    pub fn saved(&self) -> u64 {
        self.saved.load(Ordering::Relaxed)
    }

    /// Where traces go.
    #[must_use]
    pub fn directory(&self) -> &TraceDirectory {
        &self.directory
    }
}

/// What the thread has.
struct Work {
    directory: Arc<TraceDirectory>,
    /// Those whose window has not ended.
    disks: Vec<Disk>,
    pace: Pace,
    failures: Arc<AtomicU64>,
    saved: Arc<AtomicU64>,
}

struct Disk {
    recording: Recording,
    link: Vec<LinkSample>,
    /// When it is saved next, since its creation, and the time until the one after.
    save_at: Duration,
    save_after: Duration,
    /// Requests that were seen, kept or dropped, when it was saved last.
    saved: u64,
    /// Requests in what was written last.
    written: u64,
}

impl Disk {
    fn new(recording: Recording, pace: &Pace) -> Self {
        Self {
            recording,
            link: Vec::new(),
            save_at: pace.save_first,
            save_after: pace.save_first,
            saved: 0,
            written: 0,
        }
    }

    fn since_creation(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.recording.recorder.created())
    }
}

#[expect(clippy::disallowed_methods, reason = "samples are taken by the clock")]
impl Work {
    fn run(&mut self, stopped: &Receiver<()>) {
        while !self.disks.is_empty()
            && matches!(stopped.recv_timeout(self.pace.sample_every), Err(RecvTimeoutError::Timeout))
        {
            self.tick(Instant::now());
        }
        let mut wrote = false;
        for mut disk in std::mem::take(&mut self.disks) {
            wrote |= self.save(&mut disk, true);
        }
        self.evict(wrote);
    }

    fn tick(&mut self, now: Instant) {
        let mut wrote = false;
        for mut disk in std::mem::take(&mut self.disks) {
            let since = disk.since_creation(now);
            // Requests are noted when they end: those that arrived last have a little time for that.
            if since > disk.recording.recorder.window() + self.pace.sample_every {
                wrote |= self.save(&mut disk, true);
                continue;
            }
            let t_us = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
            disk.link.extend((disk.recording.sample)(t_us));
            if since >= disk.save_at {
                wrote |= self.save(&mut disk, false);
                disk.save_after = (disk.save_after * 2).min(self.pace.save_every_max);
                disk.save_at = since + disk.save_after;
            }
            self.disks.push(disk);
        }
        self.evict(wrote);
    }

    /// Writes a disk's trace, unless nothing was added since or ever; whether it did.
    fn save(&self, disk: &mut Disk, last: bool) -> bool {
        let recorder = &disk.recording.recorder;
        let seen = recorder.recorded() + recorder.dropped();
        if seen == 0 || (seen == disk.saved && !last) {
            return false;
        }
        let trace = Trace {
            creation: disk.recording.creation.clone(),
            records: recorder.records(),
            link: disk.link.clone(),
            dropped: recorder.dropped(),
        };
        match self.directory.save(&trace, last) {
            Ok(_) => {
                disk.saved = seen;
                let written = trace.records.len() as u64;
                self.saved.fetch_add(written.saturating_sub(disk.written), Ordering::Relaxed);
                disk.written = written;
                true
            }
            Err(error) => {
                self.failed(&error);
                false
            }
        }
    }

    fn evict(&self, wrote: bool) {
        if wrote && let Err(error) = self.directory.evict() {
            self.failed(&error);
        }
    }

    fn failed(&self, error: &Error) {
        if self.failures.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(%error, "traces are lost; the disks go on");
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "what it works by is the clock")]
mod tests {
    use super::*;
    use crate::directory::DirectoryLimits;
    use crate::file::{ReadLimits, read_file};
    use crate::record::Op;
    use headstart_block::ByteRange;
    use std::path::Path;

    const PACE: Pace = Pace {
        sample_every: Duration::from_millis(5),
        save_first: Duration::from_millis(10),
        save_every_max: Duration::from_millis(20),
    };
    const PATIENCE: Duration = Duration::from_secs(20);

    fn recording(volume: &str, window: Duration) -> (Arc<Recorder>, Recording) {
        let recorder = Arc::new(Recorder::new(Instant::now(), window, 100));
        let creation = Creation { volume: volume.to_owned(), ..Creation::default() };
        let sample = |t_us| Some(LinkSample { t_us, bandwidth: Some(7), round_trip_us: None });
        (Arc::clone(&recorder), Recording { recorder, creation, sample: Box::new(sample) })
    }

    fn read(recorder: &Recorder, offset: u64) {
        recorder.record(Op::Read, ByteRange::between(offset, offset + 512), Instant::now(), Duration::ZERO);
    }

    fn traces(dir: &Path) -> Vec<Trace> {
        let paths = TraceDirectory::list(dir).unwrap();
        paths.iter().map(|path| read_file(path, &ReadLimits::default()).unwrap()).collect()
    }

    fn wait_for(what: impl Fn() -> bool) {
        let started = Instant::now();
        while !what() {
            assert!(started.elapsed() < PATIENCE);
            thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn saves_in_between_and_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Arc::new(TraceDirectory::open(dir.path(), DirectoryLimits::default()).unwrap());
        let (a, first) = recording("a", PATIENCE);
        let (_idle, second) = recording("b", PATIENCE);
        let saver = Saver::start(directory, vec![first, second], PACE).unwrap();
        assert_eq!(saver.saved(), 0);
        read(&a, 0);
        wait_for(|| traces(dir.path()).len() == 1);
        read(&a, 4096);
        assert!(saver.stop(PATIENCE));
        let traces = traces(dir.path());
        assert_eq!((traces.len(), traces[0].records.len(), saver.failures()), (1, 2, 0));
        assert_eq!(saver.saved(), 2);
        assert!(traces[0].link.iter().all(|sample| sample.bandwidth == Some(7)));
        assert!(!traces[0].link.is_empty());
    }

    #[test]
    fn ends_with_the_window() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Arc::new(TraceDirectory::open(dir.path(), DirectoryLimits::default()).unwrap());
        let (a, recording) = recording("a", Duration::from_millis(30));
        read(&a, 0);
        let saver = Saver::start(directory, vec![recording], PACE).unwrap();
        wait_for(|| {
            matches!(saver.ended.lock().unwrap().try_recv(), Err(std::sync::mpsc::TryRecvError::Disconnected))
        });
        assert_eq!(traces(dir.path()).len(), 1);
    }

    #[test]
    fn a_directory_that_fails_harms_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("gone");
        let directory = Arc::new(TraceDirectory::open(&gone, DirectoryLimits::default()).unwrap());
        std::fs::remove_dir(&gone).unwrap();
        let (a, recording) = recording("a", PATIENCE);
        read(&a, 0);
        let saver = Saver::start(directory, vec![recording], PACE).unwrap();
        wait_for(|| saver.failures() > 1);
        assert_eq!(saver.saved(), 0);
        // Once it works again, nothing was lost.
        std::fs::create_dir(&gone).unwrap();
        read(&a, 1);
        assert!(saver.stop(PATIENCE));
        assert_eq!(traces(&gone)[0].records.len(), 2);
    }
}
