//! Drives a disk's pull engine with real I/O: events in, actions carried out.
//!
//! The engine decides everything; this only keeps what it must not know: who waits for which read, the task of
//! each fetch, the clock. Its lock is held while the engine thinks (microseconds), never while anything
//! waits. Reads of bytes that are here do not come near it.

use crate::base::Health;
use crate::blobs::Blobs;
use crate::fetch::{Fetcher, Need};
use crate::opening::Opening;
use crate::stream::{Piece, Streaming};
use crate::swarm::Sharing;
use headstart_block::{ByteRange, Error, ErrorKind, Result};
use headstart_cache::{CachedBlob, Watcher};
use headstart_pull::{
    Action, BlobId, BlobRange, Engine, Event, FetchId, Outcome, Plan, Priority, ReadId, Settings, Time,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

/// How long past its deadline a read waits for the engine's word. It never should; without a bound, a fault in
/// the engine would hang a guest for good.
const GRACE: Duration = Duration::from_secs(30);

/// How often the same kind of failure is said: a store that is away fails every fetch.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// How long to wait until an index that may be wrong is asked for once more.
const OPENING_PAUSE: Duration = Duration::from_secs(1);

/// A disk's pull engine and the I/O that it asked for.
pub struct Puller {
    blobs: Arc<Blobs>,
    /// What each of the layers' blobs was opened by; none where its hash tree proves that.
    openings: Vec<Option<Arc<Opening>>>,
    health: Arc<Health>,
    fetcher: Fetcher,
    runtime: Handle,
    started: Instant,
    deadline: Duration,
    state: Mutex<State>,
    /// Fetches that failed, so that who waited long knows whether it was for that.
    failures: AtomicU64,
    /// Told when the engine is to be woken at another time.
    wake_changed: Arc<Notify>,
}

/// A fetch under way.
struct Fetching {
    task: AbortHandle,
    /// Of a stream: whether it is to take nothing for now.
    held: watch::Sender<bool>,
    /// Of what nobody waited for: up to where in its blob somebody does now.
    hurried: watch::Sender<u64>,
    priority: Priority,
}

struct State {
    engine: Engine,
    /// Who waits for which read.
    waiting: HashMap<ReadId, SyncSender<Result<(), Arc<Error>>>>,
    fetching: HashMap<FetchId, Fetching>,
    /// Comparing indices with what they came from.
    comparing: Vec<AbortHandle>,
    /// At how many bytes a second the disk is filled.
    left_rate: Option<u64>,
    next_read: u64,
    /// When the engine is woken next.
    wake: Option<Time>,
    closed: bool,
    /// Which kinds of failures were said, and when last.
    said: Vec<(ErrorKind, Time)>,
    /// What the engine asked for; kept for its memory.
    actions: Vec<Action>,
}

impl Puller {
    pub(crate) fn new(
        blobs: Arc<Blobs>,
        openings: Vec<Option<Opening>>,
        health: Arc<Health>,
        fetcher: Fetcher,
        runtime: Handle,
        settings: Settings,
    ) -> Arc<Self> {
        let deadline = settings.deadline;
        let engine = Engine::new(settings);
        let state = State {
            engine,
            waiting: HashMap::new(),
            fetching: HashMap::new(),
            comparing: Vec::new(),
            left_rate: None,
            next_read: 0,
            wake: None,
            closed: false,
            said: Vec::new(),
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

    /// Has the cache tell of blobs without a hash tree that turn out wrong.
    fn watch_blobs(self: &Arc<Self>) {
        let watcher = Arc::clone(self) as Arc<dyn Watcher>;
        for (blob, opening) in self.blobs.data().iter().zip(&self.openings) {
            let Some(opening) = opening else { continue };
            blob.watch(Arc::downgrade(&watcher));
            if blob.times_wrong() != opening.times_wrong {
                // It was told a moment ago, when nobody listened yet.
                Arc::clone(&watcher).found_wrong(blob);
            }
        }
    }

    /// Waits until `parts` of the disk are here.
    pub(crate) fn wait(self: &Arc<Self>, parts: &[ByteRange]) -> Result<()> {
        let (tell, told) = sync_channel(1);
        let read = {
            let mut state = self.state();
            if state.closed {
                return Err(closed());
            }
            let read = ReadId(state.next_read);
            state.next_read += 1;
            state.waiting.insert(read, tell);
            self.turn(&mut state, Event::Read { read, parts });
            read
        };
        match told.recv_timeout(self.deadline.saturating_add(GRACE)) {
            Ok(result) => result.map_err(|error| Error::new(error.kind(), error.to_string())),
            Err(RecvTimeoutError::Disconnected) => Err(closed()),
            Err(RecvTimeoutError::Timeout) => {
                let mut state = self.state();
                state.waiting.remove(&read);
                self.turn(&mut state, Event::Forget { read });
                Err(Error::new(ErrorKind::Unavailable, "the read was not served before its deadline"))
            }
        }
    }

    /// Asks for `range` of the disk without waiting.
    pub(crate) fn prefetch(self: &Arc<Self>, range: ByteRange) {
        let mut state = self.state();
        if state.closed || range.is_empty() {
            return;
        }
        // A read that nobody waits for.
        let read = ReadId(state.next_read);
        state.next_read += 1;
        self.turn(&mut state, Event::Read { read, parts: &[range] });
    }

    /// Goes on by another plan.
    pub fn set_plan(self: &Arc<Self>, plan: Plan) {
        let mut state = self.state();
        self.turn(&mut state, Event::PlanChanged(plan));
    }

    /// Fills the disk in the background with so many bytes a second; `None` stops that.
    pub fn set_left_rate(self: &Arc<Self>, rate: Option<u64>) {
        let mut state = self.state();
        state.left_rate = rate;
        self.turn(&mut state, Event::LeftRate(rate));
    }

    /// How far the filling is.
    #[must_use]
    pub fn progress(&self) -> headstart_pull::Progress {
        self.state().engine.progress()
    }

    /// How far preloading is, and what it costs.
    #[must_use]
    pub fn preloading(&self) -> headstart_pull::Preloading {
        self.state().engine.preloading()
    }

    /// Bytes that other hosts brought while this disk waited for them.
    #[must_use]
    pub fn brought_by_swarm(&self) -> u64 {
        self.fetcher.sharing().map_or(0, Sharing::brought)
    }

    /// Whether anything of a plan is on its way.
    pub(crate) fn is_preloading(&self) -> bool {
        self.state().fetching.values().any(|fetching| fetching.priority == Priority::Preload)
    }

    /// How many fetches failed so far.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Whether its disk is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// What is known of the link.
    #[must_use]
    pub fn estimate(&self) -> headstart_pull::Estimate {
        self.state().engine.estimate()
    }

    /// What the engine counted.
    #[must_use]
    pub fn counters(&self) -> headstart_pull::Counters {
        self.state().engine.counters()
    }

    /// The image's blobs.
    #[must_use]
    pub fn blobs(&self) -> &Arc<Blobs> {
        &self.blobs
    }

    /// Ends all fetches; whoever waits gets an error.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.waiting.clear();
        state.fetching.drain().for_each(|(_, fetching)| fetching.task.abort());
        state.comparing.drain(..).for_each(|task| task.abort());
    }

    /// The time as the engine has it.
    pub(crate) fn now(&self) -> Time {
        Time(u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Only the engine could panic here; its disk is then without new bytes, the others go on.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the engine of `event` and does what it asks for.
    fn turn(self: &Arc<Self>, state: &mut State, event: Event<'_>) {
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

    fn perform(self: &Arc<Self>, state: &mut State, action: Action) {
        match action {
            Action::Fetch { fetch, range, priority, stream, whole, .. } => {
                let (held, steered) = watch::channel(false);
                let (hurried, hurry) = watch::channel(0);
                let stream = stream.then_some((steered, whole));
                let need = match priority {
                    Priority::Miss => Need::DEMAND,
                    Priority::Preload | Priority::Left => Need::until_hurried(hurry),
                };
                let fetched = self.clone().fetch(fetch, range, need, stream);
                let task = self.runtime.spawn(fetched).abort_handle();
                state.fetching.insert(fetch, Fetching { task, held, hurried, priority });
            }
            Action::Cancel { fetch } => {
                if let Some(fetching) = state.fetching.remove(&fetch) {
                    fetching.task.abort();
                }
            }
            Action::Hurry { fetch, upto } => {
                if let Some(fetching) = state.fetching.get(&fetch) {
                    fetching.hurried.send_replace(upto);
                }
            }
            Action::Hold { fetch } => hold(state, fetch, true),
            Action::Resume { fetch } => hold(state, fetch, false),
            Action::Complete { read } => tell(state, read, Ok(())),
            Action::Fail { read, error } => tell(state, read, Err(error)),
            Action::WakeAt(time) => self.wake_at(state, time),
        }
    }

    /// Brings a range, as a stream where it is one that can be held, and tells the engine how that went.
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
        let tell = |piece| self.progressed(fetch, range.blob, piece);
        let result = match stream {
            Some((held, whole)) => {
                let streaming = Streaming { need: &need, held, whole, tell: &tell, arrived: &arrived };
                self.fetcher.stream(blob, range.range, streaming).await
            }
            None => self.fetcher.fetch(blob, range.range, &need, &arrived).await,
        };
        let done = result.is_ok();
        self.fetched(fetch, result, !blob.is_refused());
        // Found wrong after it came and before it was told: the filling took it for being under way, and went by.
        if done && blob.tree().is_none() && !blob.is_bypassed() && !blob.is_local(range.range) {
            self.fill_again(&mut self.state(), blob);
        }
    }

    /// What was here of a blob is not any more: the filling of the disk begins anew.
    fn fill_again(self: &Arc<Self>, state: &mut State, blob: &CachedBlob) {
        if let Some(rate) = state.left_rate.filter(|_| !state.closed && !blob.is_refused()) {
            self.turn(state, Event::LeftRate(None));
            self.turn(state, Event::LeftRate(Some(rate)));
        }
    }

    /// Some of a stream has come, or was found.
    fn progressed(self: &Arc<Self>, fetch: FetchId, blob: BlobId, piece: Piece) {
        let event = match piece {
            Piece::Upto(upto) => Event::Progress { fetch, upto },
            Piece::Found(range) => Event::BecameLocal { range: BlobRange { blob, range } },
        };
        let mut state = self.state();
        self.turn(&mut state, event);
    }

    fn arrived(self: &Arc<Self>, fetch: FetchId) {
        let mut state = self.state();
        self.turn(&mut state, Event::Arrived { fetch });
    }

    /// A fetch has ended; `hopeful`: another try may end better.
    fn fetched(self: &Arc<Self>, fetch: FetchId, result: Result<bool>, hopeful: bool) {
        let outcome = match result {
            Ok(true) => Outcome::Done,
            Ok(false) => Outcome::Found,
            Err(error) => Outcome::Failed {
                retry: hopeful && is_worth_a_retry(error.kind()),
                corrupt: hopeful && error.kind() == ErrorKind::Corrupt,
                error: Arc::new(error),
            },
        };
        let mut state = self.state();
        if matches!(outcome, Outcome::Failed { .. }) {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        if let Outcome::Failed { retry: true, error, .. } = &outcome {
            self.say(&mut state, error);
        }
        state.fetching.remove(&fetch);
        self.turn(&mut state, Event::Fetched { fetch, outcome });
    }

    /// Something came and was found wrong only when it was read.
    pub(crate) fn say_failed(&self, error: &Error) {
        let mut state = self.state();
        self.say(&mut state, error);
    }

    /// Tells the user why reads wait.
    fn say(&self, state: &mut State, error: &Error) {
        let (now, kind) = (self.now(), error.kind());
        // The cache itself says where its disk is full, and no read waits for that.
        if kind == ErrorKind::NoSpace {
            return;
        }
        if state.closed || state.said.iter().any(|(said, at)| *said == kind && now.since(*at) < SAY_AGAIN) {
            return;
        }
        state.said.retain(|(said, _)| *said != kind);
        state.said.push((kind, now));
        tracing::warn!(%error, "a fetch failed; its reads wait, and it is tried again");
    }

    /// The engine is to be told at `time`. Where it is to be told earlier anyway, it asks again then. But not where
    /// that earlier time has passed and only its tick is still on its way: the engine, told of something else
    /// meanwhile, has seen the clock pass it, has asked again just now, and will not do so a third time.
    fn wake_at(&self, state: &mut State, time: Time) {
        let now = self.now();
        let sooner = state.wake.filter(|wake| *wake > now && *wake <= time);
        state.wake = Some(sooner.unwrap_or(time));
        self.wake_changed.notify_one();
    }
}

impl Watcher for Puller {
    /// Nothing of it is here any more. What was made of its bytes may be wrong as well: frames that threads remember,
    /// the index that the disk was opened by, the engine's belief that the disk is full.
    fn found_wrong(self: Arc<Self>, blob: &Arc<CachedBlob>) {
        headstart_zfile::forget_recent_frames();
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

/// Fetches anew what a layer was opened by, and condemns the disk where it is something else now.
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
            // Every read says so.
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

/// Tells the engine when it is time, until its disk is gone.
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
            puller.turn(&mut state, Event::Tick);
        }
    }
}

fn hold(state: &State, fetch: FetchId, held: bool) {
    if let Some(fetching) = state.fetching.get(&fetch) {
        // Where nobody listens any more, it has ended.
        let _ = fetching.held.send(held);
    }
}

fn tell(state: &mut State, read: ReadId, result: Result<(), Arc<Error>>) {
    if let Some(waiting) = state.waiting.remove(&read) {
        // A full or closed channel is a reader that has given up.
        let _ = waiting.try_send(result);
    }
}

/// Whether the same fetch may succeed later.
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
