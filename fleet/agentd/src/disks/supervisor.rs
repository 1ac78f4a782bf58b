//! The life of one disk, from the request to attach it to its end.

use super::ended::{Ended, failed_kind};
use super::images::images_of;
use super::keeper::KeeperProcess;
use super::pauses::Pauses;
use super::process::{Process, Task};
use super::record::{Record, line_with};
use super::{DiskState, DiskStatus, DisksSettings, file};
use headstart_block::{Error, ErrorKind, Result};
use headstart_daemon::pid_file::{last_words, warnings_behind};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, broadcast, watch};
use tokio::time::{Instant, timeout};

/// The intervals at which a starting process is checked: the first, and the longest. Programs wait for a disk that is
/// whole on this host, which is ready within a few hundredths of a second.
const LOOKS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];
/// The share of the time since its start that is waited until the next look.
const LOOK_SHARE: u32 = 32;

/// The least pause after an end in good order that the agent did not ask for. Where the host goes down, all processes
/// get a signal, and this leaves the agent the time to end before it starts another.
const AGAIN_AFTER_SIGNAL: Duration = Duration::from_millis(500);

/// The longest wait for the end of a process that an agent before this one has asked to end, or was about to ask. After
/// that it is asked again.
const UNHEARD: Duration = Duration::from_secs(10);

/// The longest wait for detaching: a guest's writes have to become durable.
const DETACH: Duration = Duration::from_secs(120);

/// The longest wait for a process that releases the images of a disk: longer than its own wait for each store.
const RELEASE: Duration = Duration::from_secs(30);

/// Looks after one disk.
pub(super) struct Supervisor {
    status: watch::Receiver<DiskStatus>,
    detach: Arc<Notify>,
}

/// The time until a process that was started so long ago is looked at again.
fn until_next_look(age: Duration) -> Duration {
    (age / LOOK_SHARE).clamp(LOOKS[0], LOOKS[1])
}

struct Kept {
    settings: Arc<DisksSettings>,
    keeper: Arc<KeeperProcess>,
    record: Record,
    status: watch::Sender<DiskStatus>,
    events: broadcast::Sender<DiskStatus>,
    detach: Arc<Notify>,
}

impl Supervisor {
    /// Starts to look after the disk of a record; `over` is called when this ends.
    pub(super) fn start(
        (settings, keeper): (Arc<DisksSettings>, Arc<KeeperProcess>),
        record: Record,
        events: broadcast::Sender<DiskStatus>,
        over: impl FnOnce() + Send + 'static,
    ) -> Arc<Self> {
        let status = DiskStatus {
            spec: record.spec.shown(),
            state: DiskState::Starting,
            pid: None,
            restarts: record.restarts,
            adopted: false,
            images: images_of(&settings.dir, &record.spec.name),
            ready: None,
            report: None,
            error: None,
            error_kind: None,
            space: Vec::new(),
        };
        let (status, seen) = watch::channel(status);
        let detach = Arc::new(Notify::new());
        let kept = Kept { settings, keeper, record, status, events, detach: Arc::clone(&detach) };
        tokio::spawn(async move { kept.keep(over).await });
        Arc::new(Self { status: seen, detach })
    }

    pub(super) fn status(&self) -> DiskStatus {
        self.status.borrow().clone()
    }

    /// Waits until the disk is served for the first time, or cannot be.
    pub(super) async fn started(&self) -> DiskStatus {
        self.until(|status| status.state != DiskState::Starting).await
    }

    async fn until(&self, is: impl FnMut(&DiskStatus) -> bool) -> DiskStatus {
        let mut status = self.status.clone();
        match status.wait_for(is).await {
            Ok(status) => status.clone(),
            Err(_) => self.status(),
        }
    }

    pub(super) async fn detach(&self) -> Result<DiskStatus> {
        self.detach.notify_one();
        let over = |status: &DiskStatus| matches!(status.state, DiskState::Detached | DiskState::Failed);
        match timeout(DETACH, self.until(over)).await {
            Ok(status) => Ok(status),
            Err(_) => {
                Err(Error::new(ErrorKind::Unavailable, "is not detached yet: its process does not end")
                    .about(&self.status().spec.name)
                    .remedy("look at its log; it may still be writing"))
            }
        }
    }
}

impl Kept {
    fn set(&self, change: impl FnOnce(&mut DiskStatus)) {
        self.status.send_modify(change);
        // There may be no watcher.
        let _ = self.events.send(self.status.borrow().clone());
    }

    fn file(&self, ending: &str) -> std::path::PathBuf {
        file(&self.settings.dir, &self.record.spec.name, ending)
    }

    fn save(&self) {
        if let Err(error) = self.record.write(&self.settings.dir) {
            tracing::warn!(%error, "the next agent may not know how this disk is");
        }
    }

    async fn keep(mut self, over: impl FnOnce()) {
        let mut pauses = Pauses::default();
        let mut found = Process::find(&self.settings.dir, &self.record.spec.name);
        let (state, last) = loop {
            // A process that was asked to end has ended while there was no agent.
            if self.record.detaching && found.is_none() {
                break (DiskState::Detached, None);
            }
            let begun = Instant::now();
            let adopted = found.is_some();
            let ended = match found.take().map_or_else(|| self.start(), Ok) {
                Ok(process) => self.serve(process, adopted).await,
                Err(error) => Ended::NotStarted(error.to_string()),
            };
            // A process that an agent started in its last moment may have been faster than the one started here.
            found = Process::find(&self.settings.dir, &self.record.spec.name);
            if self.record.detaching && (ended == Ended::InOrder || found.is_none()) {
                break (DiskState::Detached, Some(ended));
            }
            if found.is_some() {
                continue;
            }
            if !self.record.served {
                break (DiskState::Failed, Some(ended));
            }
            let has_served = self.status.borrow().state == DiskState::Serving;
            let mut pause = pauses.after(begun.elapsed(), has_served);
            if ended == Ended::InOrder {
                pause = pause.max(AGAIN_AFTER_SIGNAL);
            }
            self.start_again(&ended);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.detach.notified() => {
                    // This is saved so that the next agent does not start the disk again if this agent ends here.
                    self.record.detaching = true;
                    self.save();
                    self.set(|status| status.state = DiskState::Detaching);
                    break (DiskState::Detached, None);
                }
            }
        };
        // If its process is down, programs that use its mount wait for another one.
        self.keeper.give_up(&self.record.spec).await;
        // A process that was asked to end has released the images itself.
        if state == DiskState::Failed || last != Some(Ended::InOrder) {
            self.release_images().await;
        }
        self.record.remove(&self.settings.dir);
        over();
        self.set(|status| {
            status.state = state;
            status.pid = None;
            if let Some(last) = last {
                status.error_kind = (state == DiskState::Failed).then(|| last.kind());
                let is_well = state == DiskState::Detached && last == Ended::InOrder;
                status.error = (!is_well).then(|| last.to_string());
            }
        });
    }

    fn start(&self) -> Result<Process> {
        Process::start(&self.settings, &self.record.spec, Task::Serve)
    }

    /// Starts a process that releases the images that the processes of the disk have held.
    async fn release_images(&self) {
        // If no images are recorded, the process has released what it held.
        if !self.file("images").exists() {
            return;
        }
        let disk = &self.record.spec.name;
        let process = match Process::start(&self.settings, &self.record.spec, Task::Release) {
            Ok(process) => process,
            Err(error) => {
                tracing::warn!(disk, %error, "the images of a disk that is over may stay held");
                return;
            }
        };
        if timeout(RELEASE, process.ended()).await.is_err() {
            process.stop();
        }
        if !process.status().await.is_some_and(|status| status.success()) {
            let why = last_words(&self.file("log")).unwrap_or_default();
            tracing::warn!(disk, why, "the images of a disk that is over may stay held");
        }
    }

    fn start_again(&mut self, ended: &Ended) {
        self.record.restarts += 1;
        self.save();
        let (name, restarts) = (&self.record.spec.name, self.record.restarts);
        let why = ended.to_string();
        tracing::warn!(disk = %name, why, "the disk's process is started again");
        self.set(|status| {
            status.state = DiskState::Restarting;
            status.restarts = restarts;
            status.pid = None;
            status.error = Some(why);
        });
    }

    /// Sees a process through to its end.
    async fn serve(&mut self, process: Process, adopted: bool) -> Ended {
        self.set(|status| {
            status.pid = Some(process.pid);
            status.adopted = adopted;
            if status.state == DiskState::Restarting {
                status.state = DiskState::Starting;
            }
        });
        let (mut ready, mut asked_at) = (false, None);
        let started = Instant::now();
        let log = self.file("log");
        // The length of its log at the time when it was asked to end.
        let ask = || {
            let len = log.metadata().map_or(0, |found| found.len());
            process.stop();
            Some(len)
        };
        let unheard = tokio::time::sleep(UNHEARD);
        tokio::pin!(unheard);
        loop {
            if !ready && let Some(line) = line_with(&self.file("out"), "disks") {
                ready = true;
                let images = images_of(&self.settings.dir, &self.record.spec.name);
                self.record.served = true;
                self.record.has_images |= !images.is_empty();
                self.save();
                self.set(|status| {
                    status.state = DiskState::Serving;
                    status.images = images;
                    status.ready = Some(line);
                    status.error = None;
                });
            }
            tokio::select! {
                () = process.ended() => break,
                () = self.detach.notified() => {
                    // A process that is asked a second time ends without care.
                    if !std::mem::replace(&mut self.record.detaching, true) {
                        // The process reads there that it ends for good.
                        self.save();
                        asked_at = ask();
                    }
                    self.set(|status| status.state = DiskState::Detaching);
                }
                () = &mut unheard, if self.record.detaching && asked_at.is_none() => asked_at = ask(),
                () = tokio::time::sleep(until_next_look(started.elapsed())), if !ready => {}
            }
        }
        let report = line_with(&self.file("out"), "reads");
        let ended = if report.is_some() {
            Ended::InOrder
        } else {
            let kind = failed_kind(&self.file("out"));
            Ended::Died { status: process.status().await, words: last_words(&log), kind }
        };
        // Its log goes with the disk.
        for warning in asked_at.map(|from| warnings_behind(&log, from)).into_iter().flatten() {
            tracing::warn!(disk = %self.record.spec.name, "{warning}");
        }
        let is_detached = self.record.detaching;
        self.set(|status| status.report = report.filter(|_| is_detached));
        ended
    }
}
