//! One queue's thread: takes requests from the avail ring, answers them in the used ring.
//!
//! # States
//!
//! A ring's thread starts when the front end has described it (memory, addresses, kick) and enabled it, and ends when
//! the front end asks for the ring's index (`GET_VRING_BASE`), goes away, or the server stops. In between, other
//! threads give it [`Orders`]; it takes them up between two requests:
//!
//! * **enabled**: takes requests and answers them.
//! * **disabled**: takes none; those in flight are answered.
//! * **draining**: as disabled, and ends when none is in flight.
//! * **abandoned**: ends now. Requests in flight stay in the front end's record ([`super::inflight`]), if it keeps
//!   one, and is taken up when the ring starts again.
//! * **broken**: the guest's driver broke the rules. The front end is notified by the error descriptor; nothing is
//!   taken or answered any more until the ring ends.
//!
//! # Invariants
//!
//! * Only this thread touches the ring. Guest memory is touched by it and by the helpers that serve large reads for it
//!   beside the next requests, from local bytes. It takes up orders (other memory, the end) only while no helper serves
//!   for it, so that no byte is written there then. Threads that wait for remote bytes read into memory of their own
//!   and leave it in the [`Mailbox`].
//! * A request is answered exactly once: it is either in hand, or in `waiting`, or answered.
//! * As many requests are in flight as the ring has entries, at most. A driver that offers more has broken the queue.
//!   So the pools' queues are bounded.
//! * The ring's whole content is served before the guest is notified, but it is notified every [`NOTIFY_BYTES`] at
//!   least: a batch costs one notification and a small read does not wait behind many large ones.
//!
//! # Waking up
//!
//! The kick descriptor comes from the front end: it is never read (that could block), only watched, edge-triggered.
//! Every write to an eventfd is an edge, so no kick is lost, and a descriptor that is not an eventfd cannot make the
//! thread spin.

mod gathered;
mod requests;
mod shared_work;

use super::blk::Target;
use super::chain::{Broken, Chain};
use super::inflight::QueueRecord;
use super::memory::GuestMemory;
use crate::blocking_pool::BlockingPool;
use crate::complaints::complain;
use crate::processors::processors;
use gathered::Gathered;
use headstart_block::{Result, exact};
use parking_lot::{Condvar, Mutex, MutexGuard};
use requests::Waiting;
use rustix::event::{EventfdFlags, epoll, eventfd};
use shared_work::{Helped, Spare};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use virtio_queue::{Queue, QueueT};

/// The threads of the blocking pool that wait for remote bytes, for each disk.
const READ_THREADS: usize = 64;

/// The threads of the blocking pool that sync, for each disk.
const FLUSH_THREADS: usize = 4;

/// The most threads that help with large reads, for each disk: one less than processors, if that is fewer.
const HELPERS_MAX: usize = 4;

/// The pools that all rings of a disk share. They are separate, so that a guest can sync while all reads wait for a
/// store that is away, and read local bytes.
pub(crate) struct WorkerPools {
    reads: BlockingPool,
    flushes: BlockingPool,
    /// The number of reads in `reads`, of all queues.
    waiting: AtomicUsize,
    /// The pool that shares the work of large reads.
    helpers: BlockingPool,
    helpers_max: usize,
    /// The number of reads in `helpers`, of all queues.
    helping: AtomicUsize,
}

impl WorkerPools {
    pub(crate) fn new() -> Self {
        let helpers_max = (processors() - 1).min(HELPERS_MAX);
        Self {
            reads: BlockingPool::new(READ_THREADS),
            flushes: BlockingPool::new(FLUSH_THREADS),
            waiting: AtomicUsize::new(0),
            helpers: BlockingPool::new(helpers_max),
            helpers_max,
            helping: AtomicUsize::new(0),
        }
    }
}

/// The way in which a ring has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Drain,
    Abandon,
}

/// The orders to the ring's thread.
struct Orders {
    memory: Arc<GuestMemory>,
    call: Option<Arc<File>>,
    error: Option<Arc<File>>,
    enabled: bool,
    ending: Option<Ending>,
    /// The number of changes of the orders.
    given: u64,
    taken: u64,
    /// The next index of the avail ring, once the thread has ended.
    ended: Option<u16>,
}

/// A ring, as its session and its server see it.
pub(crate) struct RingHandle {
    orders: Mutex<Orders>,
    /// Notified when orders were taken up, or the thread has ended.
    taken: Condvar,
    mailbox: Mailbox,
}

/// The messages of other threads to a ring's thread.
struct Mailbox {
    orders: AtomicBool,
    results: AtomicBool,
    finished: Mutex<Vec<Finished>>,
    /// `true` once no thread waits for results any more.
    abandoned: AtomicBool,
    wake: OwnedFd,
}

/// The result for the request in a slot of `waiting`.
struct Finished {
    slot: usize,
    outcome: Outcome,
}

enum Outcome {
    /// The result of a [`Work`](super::blk::Work).
    Worked(Result<Vec<u8>>),
    /// The request as far as a helper served it.
    Helped(Helped),
}

impl Mailbox {
    /// Locks the finished results.
    fn lock(&self) -> MutexGuard<'_, Vec<Finished>> {
        self.finished.lock()
    }

    /// Takes all results.
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
        // This fails only at the end of the count, and then the thread is awake.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

/// Everything that a ring is made of.
pub(crate) struct RingParts {
    pub(crate) target: Arc<Target>,
    pub(crate) pools: Arc<WorkerPools>,
    pub(crate) memory: Arc<GuestMemory>,
    /// The queue, configured and ready.
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
            unnotified: 0,
            enabled: true,
            ending: None,
        };
        std::thread::Builder::new().name(format!("vhost-queue-{index}")).spawn(move || ring.run())?;
        Ok(handle)
    }

    /// Locks the orders.
    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock()
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

    /// Waits until `is_so` is `true`, or `gone` is, because nothing needs the answer any more. `true` if `is_so` was.
    fn wait(&self, is_so: impl Fn(&Orders) -> bool, gone: &dyn Fn() -> bool) -> bool {
        let mut orders = self.lock();
        while !is_so(&orders) {
            if gone() {
                return false;
            }
            self.taken.wait_for(&mut orders, Duration::from_millis(50));
        }
        true
    }

    /// Gives the thread other memory, and waits until it no longer uses the former.
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

    /// Enables or disables the ring, and waits until the thread has taken that up, so that a disabled ring takes
    /// nothing more.
    pub(crate) fn set_enabled(&self, enabled: bool, gone: &dyn Fn() -> bool) {
        let given = self.give(|orders| orders.enabled = enabled);
        self.wait(|orders| orders.taken >= given || orders.ended.is_some(), gone);
    }

    /// Has the thread end; [`wait_ended`](Self::wait_ended) waits for that.
    pub(crate) fn end(&self, ending: Ending) {
        self.give(|orders| orders.ending = Some(ending));
    }

    /// Waits until its thread has ended, and returns the next index of the avail ring; `None` if `gone` is `true`
    /// first.
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
    /// The requests that were put aside, by slot.
    waiting: Vec<Option<Waiting>>,
    free: Vec<usize>,
    /// The number of requests that helpers serve.
    helped: usize,
    /// Reads that are sent together; empty whenever the thread does something else.
    gathered: Vec<Gathered>,
    /// Buffers of helpers and gathered reads, while there is work for them.
    spare: Vec<Spare>,
    /// Heads of requests that an earlier life of the ring took and did not answer.
    resumed: VecDeque<u16>,
    /// The bytes of the requests that were answered since the guest was last notified, 1 at least for each.
    unnotified: u64,
    enabled: bool,
    ending: Option<Ending>,
}

/// Notes that a thread has ended, in whatever way.
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
        // The rest of the guest's memory that this ring keeps is released before the end becomes known.
        drop(self);
        drop(notice);
    }

    /// Goes on from the end of an earlier life of the ring.
    fn take_up_record(&mut self) -> Result<(), Broken> {
        let Some(record) = &mut self.parts.record else { return Ok(()) };
        let queue = &mut self.parts.queue;
        self.resumed = record.take_up(queue.next_used())?.into();
        let in_flight = exact(self.resumed.len(), "a record names each of a ring's entries once at most");
        queue.set_next_avail(queue.next_used().wrapping_add(in_flight));
        Ok(())
    }

    fn serve(&mut self) -> Result<(), Broken> {
        loop {
            // In this order, because the end may wait for the last result.
            self.take_results()?;
            if self.follow_orders() {
                return self.notify_guest();
            }
            if self.enabled && !self.has_orders() {
                self.drain()?;
            }
            self.notify_guest()?;
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

    /// `true` if there is mail that can be taken up.
    fn can_go_on(&self) -> bool {
        self.handle.mailbox.results.load(Ordering::Acquire) || self.helped == 0 && self.has_orders()
    }

    fn sleep(&self) {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 2];
        // An error is an interruption by a signal: then the caller looks once more.
        let _ = epoll::wait(&self.poll, &mut events, None);
    }

    /// Takes up the orders of other threads, unless a helper serves for this ring. `true` if the thread has to end.
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

/// Signals an eventfd of the front end. This never blocks: [`super::session`] made the descriptor non-blocking.
fn notify(mut event: &File) {
    let _ = event.write(&1_u64.to_ne_bytes());
}
