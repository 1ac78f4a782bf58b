//! The engine, which owns all state of one disk's fetching and changes it only when it is given an event.
//!
//! This module passes each event on. Its private parts: `reads` finds the bytes that a missed read lacks, and makes
//! requests for them. `fetches` sends requests, and handles their ends. `background` sends requests that no read waits
//! for, and `streams` handles the long ones among them.
//!
//! # The life of a request
//!
//! A *request* is a range of one blob that is to be fetched. The driver knows it by its [`FetchId`].
//!
//! ```text
//!   a read missed            room for background work
//!        │                              │
//!        ▼                              │
//!     Queued ───────── sent ──────────► Sent ── all bytes came ──► Arrived
//!        ▲                              │  │                        │   │
//!        │                              │  └────── Done ──► gone ◄──┘   │
//!   back-off over ◄── Waiting ◄──────── Failed ◄────────────────────────┘
//! ```
//!
//! * `Queued`: it will be sent as soon as the rules allow. A miss queues only if [`EngineSettings::miss_requests`] are
//!   in flight already. The first try of a background request does not queue: the request is made when there is room.
//! * `Sent`: it is on the link. It counts against the number of requests that may be in flight, and the estimator
//!   watches it.
//! * `Arrived`: it is off the link, but not yet verified (its pages of the hash tree may still be on their way). It
//!   takes no place on the link: otherwise data that waits for its hash-tree pages could keep them from being sent.
//! * `Waiting`: it failed, and is tried again when its back-off is over, or at once when the store answers again
//!   after it was down. (A request whose bytes were wrong does not wait: it is queued again at once.)
//! * *gone*: its bytes are local, from any source; or it failed for good, or too often.
//!
//! # Readers and requests
//!
//! A read holds the number of requests that it waits for. A request holds the reads that wait for it, each with the
//! bytes that the read needs. A request with waiters is a miss, whatever it was made for: a background request becomes
//! a miss (*promotion*) when it gets its first waiter. If it was sent before, it is promoted on the link as well
//! ([`EngineAction::Promote`]), because it may be queued behind more urgent requests there. Four special cases:
//!
//! * A read whose bytes are in a background request that is not sent, or is late, does not wait for that request but
//!   *bypasses* it: the read's own range becomes a new request, which takes over the holding of those bytes in
//!   `active`. If the background request is answered first anyway, the new request is complete and is cancelled.
//! * The failure of a background request does not fail the reads that wait for it: they bypass it, as misses. The reads
//!   fail only if the new requests fail too.
//! * A read that waits for data which has arrived waits for the pages of the hash tree that this data lacks, too, also
//!   for those that it does not need itself. If these are given up, the data is asked for again.
//! * If a read is abandoned by its client, its requests stay as background work, because their bytes are probably
//!   wanted again. If 256 background requests are queued already, those of this read that are not sent are dropped
//!   instead.
//!
//! # Priority
//!
//! A miss goes out at once, as long as fewer than [`EngineSettings::miss_requests`] are in flight. The background
//! starts a request only if all of this is true:
//!
//! * No miss is queued.
//! * Fewer than [`EngineSettings::depth_max`] background requests are in flight.
//! * Background fetches are not paused after a failure of the store.
//! * The bytes of the misses on the link must have left the store by now. (A background request that is sent at the
//!   same moment as a miss shares the link with the miss, and halves the miss's speed.)
//! * At most the bandwidth-delay product is on the link, misses included (a quarter more if no read has missed lately);
//!   or no read waits, and fewer than [`EngineSettings::depth_min`] background requests are in flight.
//!
//! A long preload is *streamed*: its bytes are used as they arrive ([`EngineSettings::stream_min`]). While a stream
//! makes progress, the last condition differs. Its second part does not count. But blocks in which the guest reads on,
//! and that the plan does not name, are requested as long as all requests other than streams have at most the
//! bandwidth-delay product on the link.
//!
//! A background request that is not streamed is at most so long that its transfer takes about a round trip (but at
//! least [`EngineSettings::background_min`]). So a miss waits only for the few transfers that were on the link before
//! it. With [`BackgroundSharing::Strict`] the background starts nothing while any miss is outstanding. Filling starts a
//! request only when nothing is to be preloaded.
//!
//! # Invariants
//!
//! 1. Every read that is reported to the engine ends once: completed, failed, or forgotten because its client left.
//! 2. Every byte has at most one holder (a request) in `active`. A request that ends releases its bytes.
//! 3. No byte is requested while a request that holds it is under way. The exception is a bypass. Local bytes are
//!    requested only in the gaps between two missing ranges: gaps of at most [`EngineSettings::gap`], or longer ones in
//!    a stream.
//! 4. A read waits for a request if and only if the request has it among its waiters.
//! 5. Everything is bounded. A setting limits the reads, and the reads limit the requests of misses. At most 64
//!    requests of the background are unverified or wait for another try, beyond those that may be in flight. One event
//!    passes at most 256 items of the plan; the rest follows in a tick that the engine asks for at once.

use crate::active::Active;
use crate::background_fill::BackgroundFill;
use crate::estimator::Estimator;
use crate::preload::Preload;
use crate::queue::{Queues, Wire};
use crate::request::{Requests, State};
use crate::retry::BackOff;
use crate::store_health::StoreHealth;
use crate::timers::{Timer, Timers};
use crate::{
    BackgroundSharing, BlobView, EngineAction, EngineCounters, EngineEvent, EngineSettings, Estimate,
    FetchId, FillProgress, Preloading, Priority, ReadId, Time,
};
use reads::Read;
use std::collections::BTreeMap;

mod background;
mod fetches;
mod reads;
mod streams;

/// Plan items and steps of the fill queue that one event may pass.
const BUDGET: u32 = 256;

/// The number of background requests that may be unverified or in back-off, beyond those in flight.
const UNVERIFIED_MAX: usize = 64;

/// The number of kept requests whose readers went away.
const ORPHANS_MAX: usize = 256;

/// The pull engine of one disk, which decides which ranges to fetch and when. It does no I/O: a driver
/// reports events and carries out the resulting actions.
#[derive(Debug)]
pub struct Engine {
    settings: EngineSettings,
    now: Time,
    /// The number of events so far.
    events: u64,
    reads: BTreeMap<ReadId, Read>,
    requests: Requests,
    active: Active,
    /// The requests that are sent and streamed, the latest last.
    streams: Vec<FetchId>,
    queues: Queues,
    wire: Wire,
    timers: Timers,
    preload: Preload,
    fill: BackgroundFill,
    estimator: Estimator,
    store: StoreHealth,
    back_off: BackOff,
    counters: EngineCounters,
    last_miss: Option<Time>,
    /// The time at which the bytes of all misses sent so far have left the store, if the link is as it was.
    misses_left_at: Time,
    /// The time of the tick that was asked for last.
    wake: Option<Time>,
}

impl Engine {
    /// Creates an engine without a plan. It does nothing before its first event. Settings out of range are
    /// replaced by the nearest valid ones.
    #[must_use]
    pub fn new(settings: EngineSettings) -> Self {
        Self {
            now: Time(0),
            events: 0,
            reads: BTreeMap::new(),
            requests: Requests::default(),
            active: Active::default(),
            streams: Vec::new(),
            queues: Queues::default(),
            wire: Wire::default(),
            timers: Timers::default(),
            preload: Preload::default(),
            fill: BackgroundFill::new(),
            estimator: Estimator::new(settings.depth_max),
            store: StoreHealth::default(),
            back_off: BackOff::new(settings.seed),
            counters: EngineCounters::default(),
            last_miss: None,
            misses_left_at: Time(0),
            wake: None,
            settings: settings.sane(),
        }
    }

    /// Handles `event`, which happened at `now`, and appends the actions that the driver has to carry out to
    /// `actions`. A `now` before that of an earlier event counts as the same time.
    pub fn on_event(
        &mut self,
        now: Time,
        event: EngineEvent<'_>,
        view: &dyn BlobView,
        actions: &mut Vec<EngineAction>,
    ) {
        self.now = self.now.max(now);
        self.events += 1;
        match event {
            EngineEvent::Read { read, ranges } => self.read(read, ranges, view, actions),
            EngineEvent::Arrived { fetch } => {
                self.arrived(fetch);
                self.want_pages_of(fetch, view, actions);
            }
            EngineEvent::Progress { fetch, upto } => self.progressed(fetch, upto, view, actions),
            EngineEvent::Fetched { fetch, outcome } => self.fetched(fetch, outcome, view, actions),
            EngineEvent::BecameLocal { range } => self.became_local(range, view, actions),
            EngineEvent::PlanChanged(plan) => {
                if self.preload.set_plan(plan) {
                    self.end_streams(actions);
                }
            }
            EngineEvent::FillRate(rate) => self.fill.set_rate(self.now, rate),
            EngineEvent::Forget { read } => self.forget(read),
            EngineEvent::Tick => {}
        }
        self.run_timers(view, actions);
        self.send_misses(view, actions);
        self.steer_streams(actions);
        let more = self.send_background(view, actions);
        self.ask_for_tick(more, actions);
    }

    /// The progress of filling the disk in the background.
    #[must_use]
    pub fn progress(&self) -> FillProgress {
        self.fill.progress(self.now)
    }

    /// The current estimate of the link to the store.
    #[must_use]
    pub fn estimate(&self) -> Estimate {
        self.estimator.estimate()
    }

    /// The counters since the engine was created.
    #[must_use]
    pub fn counters(&self) -> EngineCounters {
        self.counters
    }

    /// The plan that the engine preloads, and its progress.
    #[must_use]
    pub fn preloading(&self) -> Preloading {
        let (plan, items) = self.preload.progress();
        Preloading { plan: plan.clone(), items, estimate: self.estimate() }
    }

    fn run_timers(&mut self, view: &dyn BlobView, actions: &mut Vec<EngineAction>) {
        while let Some(timer) = self.timers.due(self.now) {
            match timer {
                Timer::Deadline(read) => self.deadline(read, actions),
                Timer::Retry(fetch) => self.queue(fetch),
                Timer::Late(fetch) => self.bypass(fetch, view, actions),
            }
        }
    }

    fn send_misses(&mut self, view: &dyn BlobView, actions: &mut Vec<EngineAction>) {
        while self.wire.misses() < self.settings.miss_requests {
            let Some(fetch) = self.queues.pop(Priority::Miss) else { return };
            self.send(fetch, view, actions);
        }
    }

    fn ask_for_tick(&mut self, more: bool, actions: &mut Vec<EngineAction>) {
        let later = |at: &Time| *at > self.now;
        let next = [
            more.then_some(self.now),
            self.timers.next(),
            Some(self.store.paused_until()).filter(later),
            self.fill.next_at().filter(later),
            Some(self.misses_left_at).filter(|at| {
                later(at) && self.wire.misses() > 0 && self.settings.sharing == BackgroundSharing::Fill
            }),
        ];
        let Some(next) = next.into_iter().flatten().min() else { return };
        if self.wake.is_none_or(|wake| wake <= self.now || next < wake) {
            self.wake = Some(next);
            actions.push(EngineAction::WakeAt(next));
        }
    }

    /// Puts a request into the queue that it belongs to by now.
    fn queue(&mut self, fetch: FetchId) {
        if let Some(request) = self.requests.get_mut(fetch) {
            let priority = request.priority();
            request.state = State::Queued(priority);
            self.queues.push(priority, fetch);
        }
    }
}

#[cfg(test)]
mod edges;
#[cfg(test)]
mod invariants;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod streaming;
#[cfg(test)]
mod tests;
