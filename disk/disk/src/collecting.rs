//! The threads that look after a writable layer: one collects its garbage, another fetches bytes of the image that are
//! to be merged with written bytes.
//!
//! The layer decides on the work ([`WritableDisk::collect`]) and on the share of time that it may take ([`Load`]); the
//! threads decide on the time. Fetching bytes may take minutes, so it has a thread of its own.

use crate::puller::Puller;
use headstart_block::{Error, Result};
use headstart_lsmt::writable::{Load, WritableDisk};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The time between two looks at a disk that has nothing to collect.
const LOOK: Duration = Duration::from_millis(100);

/// As [`LOOK`], while a write waits.
const LOOK_WHILE_WAITING: Duration = Duration::from_millis(5);

/// The time until the next try after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// The time between two warnings of refused writes.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// The collector of one disk. Ends when it is dropped; its owner closes the disk's puller first.
pub(crate) struct Collecting {
    stop: Vec<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Collecting {
    /// Starts the threads.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Io`] if a thread cannot be started.
    pub(crate) fn start(disk: &Arc<WritableDisk>, puller: Option<Arc<Puller>>) -> Result<Self> {
        let mut new = Self { stop: Vec::new(), threads: Vec::new() };
        let collected = Arc::clone(disk);
        new.spawn("collect", move |stopped| collect(&collected, stopped))?;
        if let Some(puller) = puller {
            let disk = Arc::clone(disk);
            new.spawn("collect-fetch", move |stopped| fetch(&disk, &puller, stopped))?;
        }
        Ok(new)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce(&Receiver<()>) + Send + 'static) -> Result<()> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || work(&stopped))
            .map_err(|e| Error::io("cannot start a thread", e))?;
        self.stop.push(stop);
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Collecting {
    fn drop(&mut self) {
        self.stop.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn collect(disk: &WritableDisk, stopped: &Receiver<()>) {
    let (mut writes, mut written_at) = (0, Instant::now());
    let (mut refused, mut refused_at) = (0, None::<Instant>);
    let mut pause = LOOK;
    let mut has_failed = false;
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) {
        let space = disk.space();
        if space.writes != writes {
            (writes, written_at) = (space.writes, Instant::now());
        }
        if space.refused_writes != refused && refused_at.is_none_or(|at| at.elapsed() >= SAY_AGAIN) {
            (refused, refused_at) = (space.refused_writes, Some(Instant::now()));
            tracing::warn!(
                pieces = space.runs,
                copied_up_bytes = space.copied_up_bytes,
                "writes are refused: a disk is in too many small pieces, and they cannot be merged"
            );
        }
        let load = Load::of(&space, written_at.elapsed());
        let started = Instant::now();
        pause = match disk.collect(load) {
            Ok(true) => load.pause(&space, started.elapsed()),
            Ok(false) if load == Load::Pressed => LOOK_WHILE_WAITING,
            Ok(false) => LOOK,
            Err(error) => {
                if !has_failed {
                    tracing::warn!(%error, "the garbage of a writable layer cannot be collected");
                }
                has_failed = true;
                AFTER_FAILURE
            }
        };
        has_failed &= pause == AFTER_FAILURE;
    }
}

/// Fetches bytes of the image that are to be merged with written bytes.
fn fetch(disk: &WritableDisk, puller: &Arc<Puller>, stopped: &Receiver<()>) {
    let mut failed_at = None::<Instant>;
    let mut pause = LOOK;
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) {
        let absent = disk.take_absent();
        if absent.is_empty() {
            if failed_at.is_some_and(|at| at.elapsed() >= AFTER_FAILURE) && disk.retry_absent() {
                failed_at = None;
            }
            pause = if disk.space().waiting_writes > 0 { LOOK_WHILE_WAITING } else { LOOK };
            continue;
        }
        let brought = puller.wait(&absent);
        if let Err(error) = &brought
            && !puller.is_closed()
        {
            tracing::warn!(%error, "small pieces of a writable layer cannot be merged: the image cannot be read");
            failed_at = Some(Instant::now());
        }
        disk.absent_came(brought.as_ref().copied());
        pause = LOOK_WHILE_WAITING;
    }
}
