//! The thread that collects the garbage of a writable layer.
//!
//! The layer decides what to do ([`WritableDisk::collect`]); the thread says when. While clients write it takes a tenth
//! of the time for itself, more as the garbage comes near the bound at which writes wait, and all of it when a write
//! waits or none has come for a second.

use crate::puller::Puller;
use headstart_block::{Error, Result};
use headstart_lsmt::writable::{Load, SpaceStatus, WritableDisk};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The time between two looks at a disk that has nothing to collect.
const LOOK: Duration = Duration::from_millis(100);

/// The time without writes after which a disk counts as quiet.
const QUIET: Duration = Duration::from_secs(1);

/// The time until the next try after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// The longest pause between two steps while there is something to do.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// The collector of one disk. Ends when it is dropped.
pub(crate) struct Collecting {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Collecting {
    /// Starts to collect.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Io`] where there are no threads left.
    pub(crate) fn start(disk: &Arc<WritableDisk>, puller: Option<Arc<Puller>>) -> Result<Self> {
        let (stop, stopped) = channel();
        let disk = Arc::clone(disk);
        let thread = std::thread::Builder::new()
            .name("collect".to_owned())
            .spawn(move || collect(&disk, puller.as_ref(), &stopped))
            .map_err(|e| Error::io("cannot start a thread", e))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Collecting {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn collect(disk: &WritableDisk, puller: Option<&Arc<Puller>>, stopped: &Receiver<()>) {
    let (mut writes, mut written_at) = (0, Instant::now());
    let mut pause = LOOK;
    let mut has_failed = false;
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) {
        let space = disk.space();
        if space.writes != writes {
            (writes, written_at) = (space.writes, Instant::now());
        }
        let load = load(&space, written_at.elapsed());
        let started = Instant::now();
        pause = match disk.collect(load) {
            Ok(true) => self::pause(load, space.garbage_percent, started.elapsed()),
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
        // Bytes of the image are brought here before they are merged with others.
        if let (Some(puller), Some(absent)) = (puller, disk.take_absent()) {
            let _ = puller.wait(&[absent]);
        }
    }
}

fn load(space: &SpaceStatus, silence: Duration) -> Load {
    if space.waiting_writes > 0 {
        Load::Pressed
    } else if silence > QUIET {
        Load::Quiet
    } else {
        Load::Busy
    }
}

/// The pause after a step that took so long.
fn pause(load: Load, garbage_percent: u64, took: Duration) -> Duration {
    match (load, garbage_percent) {
        (Load::Busy, 0..50) => (took * 9).clamp(Duration::from_millis(1), PAUSE_MAX),
        (Load::Busy, 50..75) => took.min(PAUSE_MAX),
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_come_first_until_the_garbage_is_much() {
        let took = Duration::from_millis(4);
        assert_eq!(pause(Load::Busy, 10, took), took * 9);
        assert_eq!(pause(Load::Busy, 10, Duration::ZERO), Duration::from_millis(1));
        assert_eq!(pause(Load::Busy, 60, took), took);
        assert_eq!(pause(Load::Busy, 90, took), Duration::ZERO);
        assert_eq!(pause(Load::Quiet, 10, took), Duration::ZERO);
        let waiting = SpaceStatus { waiting_writes: 1, ..SpaceStatus::default() };
        assert_eq!(load(&waiting, QUIET * 2), Load::Pressed);
        assert_eq!(load(&SpaceStatus::default(), QUIET * 2), Load::Quiet);
        assert_eq!(load(&SpaceStatus::default(), QUIET / 2), Load::Busy);
    }
}
