//! The thread that seals a disk's data ahead of its commit, as [`SealPolicy`] decides, and the completion of the layer
//! by a commit.
//!
//! The thread has a low priority, so that clients come first where processors are busy. Whatever fails here, the
//! disk goes on: a commit then writes all of its layer itself.

use crate::seal_policy::{SealAction, SealFacts, SealPolicy};
use headstart_block::{BlockDevice, Result};
use headstart_image::new_layer::{Packing, describe};
use headstart_image::sealed_ahead::{AheadFiles, AheadOutput, SealedLayer};
use headstart_lsmt::LayerMeta;
use headstart_lsmt::writable::{BegunCommit, DataMarks, LayerAhead, SealPass, WritableDisk};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The time between looks at the disk.
const LOOK: Duration = Duration::from_millis(50);

/// The niceness of the thread: a third of the processor time of one with the usual niceness, where they compete. With
/// much less, nothing would be sealed beside a build that keeps all processors busy.
const NICENESS: i32 = 5;

/// Seals the data of one disk ahead. Dropping this ends the thread and removes the layer.
pub(crate) struct Sealer {
    shared: Arc<SharedSealer>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The parts that the thread and commits share.
struct SharedSealer {
    dir: PathBuf,
    disk: Arc<WritableDisk>,
    packing: Packing,
    state: Mutex<SealerState>,
}

#[derive(Default)]
struct SealerState {
    ahead: Option<SealedAhead>,
    /// The number of layers that were begun.
    begun: u64,
    /// `true` if a commit took the layer since the thread looked.
    is_taken: bool,
}

/// The layer that is written ahead.
struct SealedAhead {
    layer: LayerAhead<AheadOutput>,
    files: AheadFiles,
}

/// A layer that a commit has completed, with its files.
pub(crate) struct CompletedLayer {
    pub(crate) sealed: SealedLayer,
    /// Dropped once the layer is part of an image.
    pub(crate) _files: AheadFiles,
}

impl Sealer {
    /// Starts the thread of `disk`, which this process has open in the directory `dir`. Without a thread, nothing is
    /// sealed ahead.
    pub(crate) fn start(dir: PathBuf, disk: Arc<WritableDisk>, packing: Packing) -> Self {
        let shared = Arc::new(SharedSealer { dir, disk, packing, state: Mutex::default() });
        let (stop, stopped) = channel::<()>();
        let sealing = Arc::clone(&shared);
        let seal = move || {
            // Best effort: without it, the pace alone spares the clients.
            let _ = rustix::process::setpriority_process(None, NICENESS);
            let mut pace = SealPace::new(&sealing.disk);
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOK) {
                while sealing.look(&mut pace) {
                    if !matches!(stopped.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty)) {
                        return;
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("seal".to_owned()).spawn(seal);
        Self { shared, stop: Some(stop), thread: thread.ok() }
    }

    /// Completes the layer for `commit`, in the form that `packing` describes; gives the commit back if there is no
    /// layer that is worth it.
    pub(crate) fn complete<'a>(
        &self,
        commit: BegunCommit<'a>,
        packing: &str,
        meta: LayerMeta,
    ) -> std::result::Result<Result<CompletedLayer>, BegunCommit<'a>> {
        let SharedSealer { disk, state, packing: own, .. } = &*self.shared;
        if describe(own) != packing {
            return Err(commit);
        }
        // The thread begins no other layer meanwhile: it would take time from this one.
        let mut state = state.lock();
        let Some(ahead) = state.ahead.take() else { return Err(commit) };
        state.is_taken = true;
        let is_worth_it = commit.share_of(disk, &ahead.layer).is_ok_and(|share| {
            tracing::debug!(?share, stored = ahead.layer.stored_bytes(), "a layer was sealed ahead");
            SealPolicy::is_worth_completing(share, ahead.layer.stored_bytes())
        });
        if !is_worth_it {
            return Err(commit);
        }
        let SealedAhead { layer, files } = ahead;
        let completed = commit.complete(disk, layer, meta).and_then(|(output, summary)| {
            let sealed = files.finish(output, summary)?;
            Ok(CompletedLayer { sealed, _files: files })
        });
        Ok(completed)
    }
}

impl Drop for Sealer {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread's own state.
struct SealPace {
    policy: SealPolicy,
    began: Instant,
    /// Bytes that the disk's files took up.
    written: u64,
    /// Moments of the disk, oldest first; at least one.
    marks: VecDeque<(Duration, DataMarks)>,
}

impl SealPace {
    fn new(disk: &WritableDisk) -> Self {
        let marks = VecDeque::from([(Duration::ZERO, disk.data_marks())]);
        Self { policy: SealPolicy::new(), began: Instant::now(), written: 0, marks }
    }
}

impl SharedSealer {
    /// Looks at the disk and does what is to be done; returns `true` if it did anything.
    fn look(&self, pace: &mut SealPace) -> bool {
        let mut state = self.state.lock();
        let facts = self.facts(pace, &state);
        if std::mem::take(&mut state.is_taken) {
            pace.policy.taken(&facts);
        }
        let action = pace.policy.next(&facts);
        let oldest = pace.policy.oldest();
        while pace.marks.get(1).is_some_and(|(time, _)| *time <= oldest) {
            pace.marks.pop_front();
        }
        match action {
            SealAction::Rest => false,
            SealAction::Discard => {
                state.ahead = None;
                true
            }
            SealAction::Pass { cold, most } => {
                let began = facts.now;
                match self.pass(pace, &mut state, cold, most) {
                    Ok(pass) => {
                        let after = self.facts(pace, &state);
                        pace.policy.passed(began, &after, &pass);
                        true
                    }
                    Err(error) => {
                        tracing::warn!(%error, "no layer is sealed ahead in {} for now", self.dir.display());
                        state.ahead = None;
                        pace.policy.failed(pace.began.elapsed());
                        false
                    }
                }
            }
        }
    }

    /// The facts of this moment, which is noted.
    fn facts(&self, pace: &mut SealPace, state: &SealerState) -> SealFacts {
        let (now, marks) = (pace.began.elapsed(), self.disk.data_marks());
        if let Some((_, last)) = pace.marks.back().filter(|(_, last)| *last != marks) {
            pace.written += marks.bytes_since(last);
            pace.marks.push_back((now, marks));
        }
        // A file system that does not tell is tried.
        let free = rustix::fs::statvfs(&self.dir).map_or(u64::MAX, |found| found.f_bavail * found.f_frsize);
        let stored = state.ahead.as_ref().map_or(0, |ahead| ahead.layer.stored_bytes());
        SealFacts { now, written: pace.written, stored, free }
    }

    fn pass(&self, pace: &SealPace, state: &mut SealerState, cold: Duration, most: u64) -> Result<SealPass> {
        let ahead = match &mut state.ahead {
            Some(ahead) => ahead,
            none => {
                state.begun += 1;
                let (files, output) = AheadFiles::create(&self.dir, state.begun, &self.packing)?;
                let meta = LayerMeta { virtual_size: self.disk.size(), ..LayerMeta::default() };
                let layer = self.disk.begin_layer(output, meta)?;
                none.insert(SealedAhead { layer, files })
            }
        };
        let marks = pace.marks.iter().rev().find(|(time, _)| *time <= cold);
        let marks = marks.map(|(_, marks)| marks.clone()).unwrap_or_default();
        self.disk.seal_ahead(&mut ahead.layer, &marks, most)
    }
}
