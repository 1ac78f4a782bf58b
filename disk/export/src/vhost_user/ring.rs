//! One queue's thread: takes requests from the avail ring, answers them in the used ring.
//!
//! # States
//!
//! A ring's thread starts when the front end has said all about it (memory, addresses, kick) and enabled it, and
//! ends when the front end asks for the ring's index (`GET_VRING_BASE`), goes away, or the server stops. Between,
//! others give it [`Orders`]; it takes them up between two requests:
//!
//! * **enabled**: takes requests and answers them.
//! * **disabled**: takes none; those in flight are answered.
//! * **draining**: as disabled, and ends when none is in flight.
//! * **abandoned**: ends now. What was in flight stays in the front end's record ([`super::inflight`]), if it keeps
//!   one, and is taken up when the ring starts again.
//! * **broken**: the guest's driver did what no driver may. The front end is told by the error descriptor; nothing
//!   is taken or answered any more until the ring ends.
//!
//! # Invariants
//!
//! * Only this thread touches the ring. Guest memory is touched by it and by the helpers that serve large reads for
//!   it beside the next requests, from bytes that are here. It takes up orders (other memory, the end) only while no
//!   helper serves for it, so that then nothing of ours is written there. Threads that wait for bytes from
//!   elsewhere read into memory of their own and leave it in the [`Mailbox`].
//! * A request is answered exactly once: it is either in hand, or in `waiting`, or answered.
//! * As many requests are in flight as the ring has entries, at most. A driver that offers more has broken it.
//!   So the lanes' queues are bounded.
//! * The ring's whole content is served before the guest is told, but it is told every [`TOLD_BYTES`] at least:
//!   a batch costs one notification and a small read does not wait behind many large ones.
//!
//! # Waking up
//!
//! The kick descriptor comes from outside: it is never read (that could block), only watched, edge-triggered.
//! Every write to an eventfd is an edge, so no kick is lost, and what is not an eventfd cannot make us spin.

mod gathered;
mod requests;
mod shared_work;

use super::blk::Target;
use super::chain::{Broken, Chain};
use super::inflight::QueueRecord;
use super::memory::GuestMemory;
use crate::complaints::complain;
use crate::processors::processors;
use crate::slow_lane::SlowLane;
use gathered::Gathered;
use headstart_block::Result;
use requests::Waiting;
use rustix::event::{EventfdFlags, epoll, eventfd};
use shared_work::{Helped, Spare};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use virtio_queue::{Queue, QueueT};

/// Threads of the slow lane that wait for bytes from elsewhere, a disk.
const READ_THREADS: usize = 64;

/// Threads of the slow lane that sync, a disk.
const FLUSH_THREADS: usize = 4;

/// Most threads that help with large reads, a disk: one less than processors, where those are fewer.
const HELPERS_MAX: usize = 4;

/// What all rings of a disk share. The lanes are apart, so that a guest can sync while all reads wait for a store
/// that is away, and read what is local.
pub(crate) struct Lanes {
    reads: SlowLane,
    flushes: SlowLane,
    /// Reads in `reads`, of all queues.
    waiting: AtomicUsize,
    /// Shares the work of large reads.
    helpers: SlowLane,
    helpers_max: usize,
    /// Reads in `helpers`, of all queues.
    helping: AtomicUsize,
}

impl Lanes {
    pub(crate) fn new() -> Self {
        let helpers_max = (processors() - 1).min(HELPERS_MAX);
        Self {
            reads: SlowLane::new(READ_THREADS),
            flushes: SlowLane::new(FLUSH_THREADS),
            waiting: AtomicUsize::new(0),
            helpers: SlowLane::new(helpers_max),
            helpers_max,
            helping: AtomicUsize::new(0),
        }
    }
}

/// How a ring shall end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Drain,
    Abandon,
}

/// What the ring's thread is told.
struct Orders {
    memory: Arc<GuestMemory>,
    call: Option<Arc<File>>,
    error: Option<Arc<File>>,
    enabled: bool,
    ending: Option<Ending>,
    /// Counts changes of the orders, and which of them the thread has taken up.
    given: u64,
    taken: u64,
    /// The thread has ended; the next index of the avail ring.
    ended: Option<u16>,
}

/// A ring, as its session and its server see it.
pub(crate) struct RingHandle {
    orders: Mutex<Orders>,
    /// Orders were taken up, or the thread has ended.
    taken: Condvar,
    mailbox: Mailbox,
}

/// Where others leave word for a ring's thread.
struct Mailbox {
    orders: AtomicBool,
    results: AtomicBool,
    finished: Mutex<Vec<Finished>>,
    /// Nobody waits for results any more.
    abandoned: AtomicBool,
    wake: OwnedFd,
}

/// What comes back to the request in a slot of `waiting`.
struct Finished {
    slot: usize,
    outcome: Outcome,
}

enum Outcome {
    /// The result of [`Work`](super::blk::Work).
    Worked(Result<Vec<u8>>),
    /// A helper served it as far as it goes.
    Helped(Helped),
}

impl Mailbox {
    /// Nothing panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Vec<Finished>> {
        self.finished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that has finished.
    fn take(&self) -> Vec<Finished> {
        if self.results.swap(false, Ordering::AcqRel) {
            std::mem::take(&mut *self.lock())
        } else {
            Vec::new()
        }
    }

    fn put(&self, finished: Finished) {
        self.lock().push(finished);
        self.results.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        // It fails only where the count is at its end, and then the thread is awake.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

/// Everything that a ring is made of.
pub(crate) struct RingParts {
    pub(crate) target: Arc<Target>,
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) memory: Arc<GuestMemory>,
    /// Configured and ready.
    pub(crate) queue: Queue,
    pub(crate) record: Option<QueueRecord>,
    pub(crate) kick: Arc<File>,
    pub(crate) call: Option<Arc<File>>,
    pub(crate) error: Option<Arc<File>>,
    pub(crate) driver_flushes: bool,
}

impl RingHandle {
    /// Starts the thread of ring `index`.
    pub(crate) fn start(index: u16, parts: RingParts) -> io::Result<Arc<Self>> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&poll, &wake, epoll::EventData::new_u64(0), edge)?;
        epoll::add(&poll, &parts.kick, epoll::EventData::new_u64(1), edge)?;
        let orders = Orders {
            memory: Arc::clone(&parts.memory),
            call: parts.call.clone(),
            error: parts.error.clone(),
            enabled: true,
            ending: None,
            given: 0,
            taken: 0,
            ended: None,
        };
        let mailbox = Mailbox {
            orders: AtomicBool::new(false),
            results: AtomicBool::new(false),
            finished: Mutex::default(),
            abandoned: AtomicBool::new(false),
            wake,
        };
        let handle = Arc::new(Self { orders: Mutex::new(orders), taken: Condvar::new(), mailbox });
        let ring = Ring {
            handle: Arc::clone(&handle),
            poll,
            parts,
            chain: Chain::default(),
            bounce: Vec::new(),
            waiting: Vec::new(),
            free: Vec::new(),
            helped: 0,
            gathered: Vec::new(),
            spare: Vec::new(),
            resumed: VecDeque::new(),
            untold: 0,
            enabled: true,
            ending: None,
        };
        std::thread::Builder::new().name(format!("vhost-queue-{index}")).spawn(move || ring.run())?;
        Ok(handle)
    }

    /// Nothing panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give(&self, change: impl FnOnce(&mut Orders)) -> u64 {
        let mut orders = self.lock();
        change(&mut orders);
        orders.given += 1;
        let given = orders.given;
        drop(orders);
        self.mailbox.orders.store(true, Ordering::Release);
        self.mailbox.wake();
        given
    }

    /// Waits until `is_so`, or `gone` says that nobody cares any more. Whether it is so.
    fn wait(&self, is_so: impl Fn(&Orders) -> bool, gone: &dyn Fn() -> bool) -> bool {
        let mut orders = self.lock();
        while !is_so(&orders) {
            if gone() {
                return false;
            }
            let waited = self.taken.wait_timeout(orders, Duration::from_millis(50));
            orders = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Tells it of other memory, and waits until it no longer uses what it had.
    pub(crate) fn set_memory(&self, memory: Arc<GuestMemory>, gone: &dyn Fn() -> bool) {
        let given = self.give(|orders| orders.memory = memory);
        self.wait(|orders| orders.taken >= given || orders.ended.is_some(), gone);
    }

    pub(crate) fn set_call(&self, call: Option<Arc<File>>) {
        self.give(|orders| orders.call = call);
    }

    pub(crate) fn set_error(&self, error: Option<Arc<File>>) {
        self.give(|orders| orders.error = error);
    }

    /// Waits until it has taken it up, so that a disabled ring takes nothing more.
    pub(crate) fn set_enabled(&self, enabled: bool, gone: &dyn Fn() -> bool) {
        let given = self.give(|orders| orders.enabled = enabled);
        self.wait(|orders| orders.taken >= given || orders.ended.is_some(), gone);
    }

    /// Has it end; [`wait_ended`](Self::wait_ended) tells when it has.
    pub(crate) fn end(&self, ending: Ending) {
        self.give(|orders| orders.ending = Some(ending));
    }

    /// Waits until its thread has ended, and tells the next index of the avail ring; `None` where `gone` came first.
    pub(crate) fn wait_ended(&self, gone: &dyn Fn() -> bool) -> Option<u16> {
        self.wait(|orders| orders.ended.is_some(), gone);
        self.lock().ended
    }
}

/// A ring, as its thread sees it.
struct Ring {
    handle: Arc<RingHandle>,
    poll: OwnedFd,
    parts: RingParts,
    chain: Chain,
    bounce: Vec<u8>,
    /// By slot.
    waiting: Vec<Option<Waiting>>,
    free: Vec<usize>,
    /// Requests that helpers serve.
    helped: usize,
    /// Reads that are asked for together; empty whenever the thread does something else.
    gathered: Vec<Gathered>,
    /// Buffers of helpers and gathered reads, while there is work for them.
    spare: Vec<Spare>,
    /// Heads of requests that an earlier life of the ring took and did not answer.
    resumed: VecDeque<u16>,
    /// Bytes of the requests that were answered since the guest was last told, 1 at least for each.
    untold: u64,
    enabled: bool,
    ending: Option<Ending>,
}

/// Says that a thread has ended, however it did.
struct EndNotice(Arc<RingHandle>, u16);

impl Drop for EndNotice {
    fn drop(&mut self) {
        self.0.mailbox.abandoned.store(true, Ordering::Release);
        self.0.lock().ended = Some(self.1);
        self.0.taken.notify_all();
    }
}

impl Ring {
    fn run(mut self) {
        let mut notice = EndNotice(Arc::clone(&self.handle), self.parts.queue.next_avail());
        let result = self.take_up_record().and_then(|()| self.serve());
        if let Err(Broken(why)) = result {
            let (disk, complaints) = (&self.parts.target.name, &self.parts.target.complaints);
            complain!(
                complaints,
                Driver,
                "{disk}: the guest's driver broke the rules, its queue is given up: {why}"
            );
            if let Some(error) = self.handle.lock().error.clone() {
                notify(&error);
            }
            self.stay_broken();
        }
        notice.1 = self.parts.queue.next_avail();
        // What this ring still keeps of the guest's memory is gone before anybody hears that it has ended.
        drop(self);
        drop(notice);
    }

    /// Goes on where an earlier life of the ring ended.
    fn take_up_record(&mut self) -> Result<(), Broken> {
        let Some(record) = &mut self.parts.record else { return Ok(()) };
        let queue = &mut self.parts.queue;
        self.resumed = record.take_up(queue.next_used())?.into();
        let in_flight = u16::try_from(self.resumed.len()).unwrap_or(u16::MAX);
        queue.set_next_avail(queue.next_used().wrapping_add(in_flight));
        Ok(())
    }

    fn serve(&mut self) -> Result<(), Broken> {
        loop {
            // In this order: the last result may be what the end waits for.
            self.take_results()?;
            if self.follow_orders() {
                return self.tell();
            }
            if self.enabled && !self.has_orders() {
                self.drain()?;
            }
            self.tell()?;
            if !self.can_go_on() {
                if self.in_flight() == 0 {
                    self.spare.clear();
                }
                self.sleep();
            }
        }
    }

    fn has_orders(&self) -> bool {
        self.handle.mailbox.orders.load(Ordering::Acquire)
    }

    fn has_mail(&self) -> bool {
        self.has_orders() || self.handle.mailbox.results.load(Ordering::Acquire)
    }

    /// Whether there is mail that can be taken up.
    fn can_go_on(&self) -> bool {
        self.handle.mailbox.results.load(Ordering::Acquire) || self.helped == 0 && self.has_orders()
    }

    fn sleep(&self) {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 2];
        // An error is an interruption by a signal: one turn more.
        let _ = epoll::wait(&self.poll, &mut events, None);
    }

    /// Takes up what others ordered, unless a helper serves for this ring. Whether to end.
    fn follow_orders(&mut self) -> bool {
        if self.helped > 0 {
            return false;
        }
        let handle = &self.handle;
        if handle.mailbox.orders.swap(false, Ordering::AcqRel) {
            let mut orders = handle.lock();
            self.parts.memory = Arc::clone(&orders.memory);
            self.parts.call = orders.call.clone();
            self.ending = orders.ending;
            self.enabled = orders.enabled && orders.ending.is_none();
            orders.taken = orders.given;
            handle.taken.notify_all();
        }
        match self.ending {
            Some(Ending::Abandon) => true,
            Some(Ending::Drain) => self.in_flight() == 0,
            None => false,
        }
    }

    /// Waits for the end in a state where nothing is served.
    fn stay_broken(&mut self) {
        loop {
            for finished in self.handle.mailbox.take() {
                self.helped -= usize::from(matches!(finished.outcome, Outcome::Helped(_)));
            }
            self.follow_orders();
            if self.ending.is_some() {
                return;
            }
            if !self.can_go_on() {
                self.sleep();
            }
        }
    }
}

/// Signals an eventfd of the front end. It never blocks: [`super::session`] saw to that.
fn notify(mut event: &File) {
    let _ = event.write(&1_u64.to_ne_bytes());
}
