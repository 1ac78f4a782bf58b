//! Runs a disk's pull engine with real I/O: reports events to the engine and carries out its actions.
//!
//! The engine decides everything. The puller only keeps state that the engine must not know: the waiter of each read,
//! the task of each fetch, the clock. The puller's lock is held while the engine handles an event (microseconds), never
//! while a thread waits. Reads of local bytes do not take the lock.

use crate::base::Health;
use crate::blobs::Blobs;
use crate::fetch::Fetcher;
use crate::need::Need;
use crate::opening::Opening;
use crate::sharing::Sharing;
use crate::streaming::{StreamProgress, Streaming};
use headstart_block::{ByteRange, Error, ErrorKind, Result, saturating};
use headstart_cache::{CachedBlob, Watcher};
use headstart_pull::{
    BlobRange, DiskBlobId, Engine, EngineAction, EngineEvent, EngineSettings, FetchId, FetchOutcome, Plan,
    Priority, ReadId, Time,
};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

/// The time past its deadline that a read waits for the engine's answer. It should never pass; without a bound, a fault
/// in the engine would hang a guest for good.
const GRACE: Duration = Duration::from_secs(30);

/// The interval at which the same kind of failure is logged: a store that is away fails every fetch.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The pause until an index that may be wrong is requested once more.
const OPENING_PAUSE: Duration = Duration::from_secs(1);

/// The driver of one disk's pull engine: reports misses to the engine and carries out its fetches.
pub struct Puller {
    blobs: Arc<Blobs>,
    /// The bytes by which each of the layers' blobs was opened; `None` if its hash tree proves them.
    openings: Vec<Option<Arc<Opening>>>,
    health: Arc<Health>,
    fetcher: Fetcher,
    runtime: Handle,
    started: Instant,
    deadline: Duration,
    state: Mutex<State>,
    /// Fetches that failed, so that a read that waited long can tell whether failures were the reason.
    failures: AtomicU64,
    /// Notified when the engine is to be woken at another time.
    wake_changed: Arc<Notify>,
}

/// A fetch under way.
struct Fetching {
    task: AbortHandle,
    /// For a stream: `true` while it is to take no bytes.
    held: watch::Sender<bool>,
    /// For a fetch without urgency: the offset in its blob up to which reads wait now.
    promoted_upto: watch::Sender<u64>,
    priority: Priority,
}

struct State {
    engine: Engine,
    /// The channel of each waiting read.
    waiting: HashMap<ReadId, SyncSender<Result<(), Arc<Error>>>>,
    fetching: HashMap<FetchId, Fetching>,
    /// Tasks that compare indices with their blobs.
    comparing: Vec<AbortHandle>,
    /// The rate, in bytes a second, at which the disk is filled.
    fill_rate: Option<u64>,
    next_read: u64,
    /// The next time at which the engine is woken.
    wake: Option<Time>,
    closed: bool,
    /// The kinds of failures that were logged, with the time of the last.
    logged: Vec<(ErrorKind, Time)>,
    /// The actions of the engine; kept for their memory.
    actions: Vec<EngineAction>,
}

impl Puller {
    pub(crate) fn new(
        blobs: Arc<Blobs>,
        openings: Vec<Option<Opening>>,
        health: Arc<Health>,
        fetcher: Fetcher,
        runtime: Handle,
        settings: EngineSettings,
    ) -> Arc<Self> {
        let deadline = settings.deadline;
        let engine = Engine::new(settings);
        let state = State {
            engine,
            waiting: HashMap::new(),
            fetching: HashMap::new(),
            comparing: Vec::new(),
            fill_rate: None,
            next_read: 0,
            wake: None,
            closed: false,
            logged: Vec::new(),
            actions: Vec::new(),
        };
        let puller = Arc::new(Self {
            blobs,
            openings: openings.into_iter().map(|opening| opening.map(Arc::new)).collect(),
            health,
            fetcher,
            runtime,
            started: Instant::now(),
            deadline,
            state: Mutex::new(state),
            failures: AtomicU64::new(0),
            wake_changed: Arc::default(),
        });
        puller.runtime.spawn(keep_time(Arc::downgrade(&puller), Arc::clone(&puller.wake_changed)));
        puller.watch_blobs();
        puller
    }

    /// Has the cache report blobs without a hash tree that turn out wrong.
    fn watch_blobs(self: &Arc<Self>) {
        let watcher = Arc::clone(self) as Arc<dyn Watcher>;
        for (blob, opening) in self.blobs.data().iter().zip(&self.openings) {
            let Some(opening) = opening else { continue };
            blob.watch(Arc::downgrade(&watcher));
            if blob.times_wrong() != opening.times_wrong {
                // The cache reported it a moment ago, when no watcher was set yet.
                Arc::clone(&watcher).found_wrong(blob);
            }
        }
    }

    /// Waits until `ranges` of the disk are local.
    pub(crate) fn wait(self: &Arc<Self>, ranges: &[ByteRange]) -> Result<()> {
        let (answer, answered) = sync_channel(1);
        let read = {
            let mut state = self.state();
            if state.closed {
                return Err(closed());
            }
            let read = ReadId(state.next_read);
            state.next_read += 1;
            state.waiting.insert(read, answer);
            self.step(&mut state, EngineEvent::Read { read, ranges });
            read
        };
        match answered.recv_timeout(self.deadline.saturating_add(GRACE)) {
            Ok(result) => result.map_err(|error| Error::new(error.kind(), error.to_string())),
            Err(RecvTimeoutError::Disconnected) => Err(closed()),
            Err(RecvTimeoutError::Timeout) => {
                let mut state = self.state();
                state.waiting.remove(&read);
                self.step(&mut state, EngineEvent::Forget { read });
                Err(Error::new(ErrorKind::Unavailable, "the read was not served before its deadline"))
            }
        }
    }

    /// Requests `range` of the disk without waiting.
    pub(crate) fn prefetch(self: &Arc<Self>, range: ByteRange) {
        let mut state = self.state();
        if state.closed || range.is_empty() {
            return;
        }
        // A read without a waiter.
        let read = ReadId(state.next_read);
        state.next_read += 1;
        self.step(&mut state, EngineEvent::Read { read, ranges: &[range] });
    }

    /// Makes the engine preload `plan` from now on, instead of the plan that it followed.
    pub fn set_plan(self: &Arc<Self>, plan: Plan) {
        let mut state = self.state();
        self.step(&mut state, EngineEvent::PlanChanged(plan));
    }

    /// Fetches the rest of the disk in the background at `rate` bytes a second; `None` stops that.
    pub fn set_fill_rate(self: &Arc<Self>, rate: Option<u64>) {
        let mut state = self.state();
        state.fill_rate = rate;
        self.step(&mut state, EngineEvent::FillRate(rate));
    }

    /// The progress of fetching the rest of the disk in the background.
    #[must_use]
    pub fn progress(&self) -> headstart_pull::FillProgress {
        self.state().engine.progress()
    }

    /// The plan that is preloaded, its progress, and the estimate of the link.
    #[must_use]
    pub fn preloading(&self) -> headstart_pull::Preloading {
        self.state().engine.preloading()
    }

    /// The number of bytes that became local while this disk waited for other hosts to send them; 0 without a swarm.
    #[must_use]
    pub fn brought_by_swarm(&self) -> u64 {
        self.fetcher.sharing().map_or(0, Sharing::brought)
    }

    /// `true` if any part of a plan is on its way.
    pub(crate) fn is_preloading(&self) -> bool {
        self.state().fetching.values().any(|fetching| fetching.priority == Priority::Preload)
    }

    /// The number of fetches that failed so far.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// `true` if its disk is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// The current estimate of the link to the store.
    #[must_use]
    pub fn estimate(&self) -> headstart_pull::Estimate {
        self.state().engine.estimate()
    }

    /// The counters of the pull engine.
    #[must_use]
    pub fn counters(&self) -> headstart_pull::EngineCounters {
        self.state().engine.counters()
    }

    /// The blobs of the image in the cache.
    #[must_use]
    pub fn blobs(&self) -> &Arc<Blobs> {
        &self.blobs
    }

    /// Ends all fetches; every waiting read gets an error.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.waiting.clear();
        state.fetching.drain().for_each(|(_, fetching)| fetching.task.abort());
        state.comparing.drain(..).for_each(|task| task.abort());
    }

    /// The time on the engine's clock.
    pub(crate) fn now(&self) -> Time {
        Time(saturating::<u64>(self.started.elapsed().as_micros()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Only the engine could panic here; its disk then gets no new bytes, the other disks go on.
        self.state.lock()
    }

    /// Tells the engine of `event` and performs the actions that it requests.
    fn step(self: &Arc<Self>, state: &mut State, event: EngineEvent<'_>) {
        if state.closed {
            return;
        }
        let mut actions = std::mem::take(&mut state.actions);
        state.engine.on_event(self.now(), event, &*self.blobs, &mut actions);
        for action in actions.drain(..) {
            self.perform(state, action);
        }
        state.actions = actions;
    }

    fn perform(self: &Arc<Self>, state: &mut State, action: EngineAction) {
        match action {
            EngineAction::Fetch { fetch, range, priority, stream, whole, .. } => {
                let (held, steered) = watch::channel(false);
                let (promoted_upto, promotion) = watch::channel(0);
                let stream = stream.then_some((steered, whole));
                let need = match priority {
                    Priority::Miss => Need::DEMAND,
                    Priority::Preload | Priority::Fill => Need::until_promoted(promotion),
                };
                let fetched = self.clone().fetch(fetch, range, need, stream);
                let task = self.runtime.spawn(fetched).abort_handle();
                state.fetching.insert(fetch, Fetching { task, held, promoted_upto, priority });
            }
            EngineAction::Cancel { fetch } => {
                if let Some(fetching) = state.fetching.remove(&fetch) {
                    fetching.task.abort();
                }
            }
            EngineAction::Promote { fetch, upto } => {
                if let Some(fetching) = state.fetching.get(&fetch) {
                    fetching.promoted_upto.send_replace(upto);
                }
            }
            EngineAction::Hold { fetch } => hold(state, fetch, true),
            EngineAction::Resume { fetch } => hold(state, fetch, false),
            EngineAction::Complete { read } => complete_read(state, read, Ok(())),
            EngineAction::Fail { read, error } => complete_read(state, read, Err(error)),
            EngineAction::WakeAt(time) => self.wake_at(state, time),
        }
    }

    /// Fetches a range, as a stream if it is one that can be held, and tells the engine the result.
    async fn fetch(
        self: Arc<Self>,
        fetch: FetchId,
        range: BlobRange,
        need: Need,
        stream: Option<(watch::Receiver<bool>, bool)>,
    ) {
        let Some(blob) = self.blobs.get(range.blob) else {
            let error = Error::invalid("the pull engine asked for a blob that is not there");
            return self.fetched(fetch, Err(error), false);
        };
        let arrived = || self.arrived(fetch);
        let on_progress = |progress| self.progressed(fetch, range.blob, progress);
        let result = match stream {
            Some((held, whole)) => {
                let streaming =
                    Streaming { need: &need, held, whole, on_progress: &on_progress, arrived: &arrived };
                self.fetcher.stream(blob, range.range, streaming).await
            }
            None => self.fetcher.fetch(blob, range.range, &need, &arrived).await,
        };
        let done = result.is_ok();
        self.fetched(fetch, result, !blob.is_refused());
        // The bytes were found wrong after they came and before the engine was told: the filling took them for being
        // under way, and passed them by.
        if done && blob.tree().is_none() && !blob.is_bypassed() && !blob.is_local(range.range) {
            self.fill_again(&mut self.state(), blob);
        }
    }

    /// Begins the filling of the disk again, because a blob's local bytes are gone.
    fn fill_again(self: &Arc<Self>, state: &mut State, blob: &CachedBlob) {
        if let Some(rate) = state.fill_rate.filter(|_| !state.closed && !blob.is_refused()) {
            self.step(state, EngineEvent::FillRate(None));
            self.step(state, EngineEvent::FillRate(Some(rate)));
        }
    }

    /// Notes that a part of a stream has come, or was found.
    fn progressed(self: &Arc<Self>, fetch: FetchId, blob: DiskBlobId, progress: StreamProgress) {
        let event = match progress {
            StreamProgress::Upto(upto) => EngineEvent::Progress { fetch, upto },
            StreamProgress::Found(range) => EngineEvent::BecameLocal { range: BlobRange { blob, range } },
        };
        let mut state = self.state();
        self.step(&mut state, event);
    }

    fn arrived(self: &Arc<Self>, fetch: FetchId) {
        let mut state = self.state();
        self.step(&mut state, EngineEvent::Arrived { fetch });
    }

    /// Notes that a fetch has ended; `hopeful`: another try may end better.
    fn fetched(self: &Arc<Self>, fetch: FetchId, result: Result<bool>, hopeful: bool) {
        let outcome = match result {
            Ok(true) => FetchOutcome::Done,
            Ok(false) => FetchOutcome::Found,
            Err(error) => FetchOutcome::Failed {
                retry: hopeful && is_worth_a_retry(error.kind()),
                corrupt: hopeful && error.kind() == ErrorKind::Corrupt,
                error: Arc::new(error),
            },
        };
        let mut state = self.state();
        if matches!(outcome, FetchOutcome::Failed { .. }) {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        if let FetchOutcome::Failed { retry: true, error, .. } = &outcome {
            self.log_failure(&mut state, error);
        }
        state.fetching.remove(&fetch);
        self.step(&mut state, EngineEvent::Fetched { fetch, outcome });
    }

    /// Logs bytes that came and were found wrong only when they were read.
    pub(crate) fn log_failed_read(&self, error: &Error) {
        let mut state = self.state();
        self.log_failure(&mut state, error);
    }

    /// Tells the user why reads wait.
    fn log_failure(&self, state: &mut State, error: &Error) {
        let (now, kind) = (self.now(), error.kind());
        // The cache itself reports that its disk is full, and no read waits for that.
        if kind == ErrorKind::NoSpace {
            return;
        }
        if state.closed
            || state.logged.iter().any(|(logged, at)| *logged == kind && now.since(*at) < LOG_INTERVAL)
        {
            return;
        }
        state.logged.retain(|(logged, _)| *logged != kind);
        state.logged.push((kind, now));
        tracing::warn!(%error, "a fetch failed; its reads wait, and it is tried again");
    }

    /// Sets the time of the engine's next tick to `time`, unless an earlier one is set: the engine then asks again. But
    /// an earlier time that has passed, and whose tick is still on its way, does not count: the engine, told of another
    /// event meanwhile, has seen the clock pass it, has asked again just now, and will not do so a third time.
    fn wake_at(&self, state: &mut State, time: Time) {
        let now = self.now();
        let sooner = state.wake.filter(|wake| *wake > now && *wake <= time);
        state.wake = Some(sooner.unwrap_or(time));
        self.wake_changed.notify_one();
    }
}

impl Watcher for Puller {
    /// Handles a blob whose local bytes were found wrong and dropped. Data that was made of its bytes may be wrong as
    /// well: frames and uncompressed data that are kept in memory, the index by which the disk was opened, the engine's
    /// belief that the disk is full.
    fn found_wrong(self: Arc<Self>, blob: &Arc<CachedBlob>) {
        self.blobs.forget_decoded();
        let mut state = self.state();
        if state.closed {
            return;
        }
        self.fill_again(&mut state, blob);
        let place = self.blobs.data().iter().position(|other| Arc::ptr_eq(other, blob));
        if let Some(Some(opening)) = place.and_then(|place| self.openings.get(place)) {
            let comparing = compare(Arc::downgrade(&self), Arc::clone(blob), Arc::clone(opening));
            state.comparing.retain(|task| !task.is_finished());
            state.comparing.push(self.runtime.spawn(comparing).abort_handle());
        }
    }
}

/// Fetches the bytes by which a layer was opened again, and condemns the disk if they are different now.
async fn compare(puller: Weak<Puller>, blob: Arc<CachedBlob>, opening: Arc<Opening>) {
    loop {
        let Some(puller) = puller.upgrade() else { return };
        match puller.fetcher.is_same(&blob, &opening).await {
            Ok(true) => return,
            Ok(false) => {
                let error = puller.health.condemn(blob.spec().digest);
                tracing::error!(%error, "a disk serves nothing of its image any more");
                return;
            }
            // Every read reports it.
            Err(_) if blob.is_refused() => return,
            Err(error) => tracing::debug!(%error, "an index that may be wrong cannot be fetched yet"),
        }
        drop(puller);
        tokio::time::sleep(OPENING_PAUSE).await;
    }
}

impl Drop for Puller {
    fn drop(&mut self) {
        // Ends the task that keeps the time.
        self.wake_changed.notify_one();
    }
}

/// Ticks the engine at its times, until its disk is gone.
async fn keep_time(puller: Weak<Puller>, wake_changed: Arc<Notify>) {
    loop {
        let wake = {
            let Some(puller) = puller.upgrade() else { return };
            let wake = puller.state().wake;
            wake.map(|wake| (wake, puller.started + Duration::from_micros(wake.0)))
        };
        let Some((time, at)) = wake else {
            wake_changed.notified().await;
            continue;
        };
        tokio::select! {
            () = wake_changed.notified() => continue,
            () = tokio::time::sleep_until(at.into()) => {}
        }
        let Some(puller) = puller.upgrade() else { return };
        let mut state = puller.state();
        if state.wake == Some(time) {
            state.wake = None;
            puller.step(&mut state, EngineEvent::Tick);
        }
    }
}

fn hold(state: &State, fetch: FetchId, held: bool) {
    if let Some(fetching) = state.fetching.get(&fetch) {
        // A fetch whose receiver is gone has ended.
        let _ = fetching.held.send(held);
    }
}

fn complete_read(state: &mut State, read: ReadId, result: Result<(), Arc<Error>>) {
    if let Some(waiting) = state.waiting.remove(&read) {
        // A full or closed channel is a reader that has given up.
        let _ = waiting.try_send(result);
    }
}

/// `true` if the same fetch may succeed later.
fn is_worth_a_retry(kind: ErrorKind) -> bool {
    // Credentials come back, too: a rotated secret, a token service that was away.
    matches!(
        kind,
        ErrorKind::Unavailable
            | ErrorKind::Denied
            | ErrorKind::Io
            | ErrorKind::Corrupt
            | ErrorKind::Absent
            | ErrorKind::Conflict
            | ErrorKind::NoSpace
    )
}

fn closed() -> Error {
    Error::new(ErrorKind::Cancelled, "the disk is being detached")
}
