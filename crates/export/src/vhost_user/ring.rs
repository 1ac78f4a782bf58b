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
//! * Only this thread touches guest memory and the ring, so that when it has ended nothing of ours is written there.
//!   Threads of the slow lane read into memory of their own and leave it in the [`Mailbox`].
//! * A request is answered exactly once: it is either in hand, or in `waiting`, or answered.
//! * As many requests are in flight as the ring has entries, at most. A driver that offers more has broken it.
//!   So the slow lane's queue is bounded.
//! * The ring's whole content is served before the guest is told, but it is told every [`TOLD_BYTES`] at least:
//!   a batch costs one notification and a small read does not wait behind many large ones.
//!
//! # Waking up
//!
//! The kick descriptor comes from outside: it is never read (that could block), only watched, edge-triggered.
//! Every write to an eventfd is an edge, so no kick is lost, and what is not an eventfd cannot make us spin.

use super::blk::{Request, Status, Step, Target, Work};
use super::chain::{Broken, Chain, NoMemory, Table};
use super::inflight::QueueRecord;
use super::memory::GuestMemory;
use crate::slow_lane::SlowLane;
use headstart_block::{Error, ErrorKind, Result};
use rustix::event::{EventfdFlags, epoll, eventfd};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

/// Bytes of requests after which the guest is told of answers though the ring holds more requests.
const TOLD_BYTES: u64 = 1 << 20;

/// Threads of the slow lane that wait for bytes from elsewhere, a disk.
pub(crate) const READ_THREADS: usize = 64;

/// Threads of the slow lane that sync, a disk.
pub(crate) const FLUSH_THREADS: usize = 4;

/// What all rings of a disk share.
pub(crate) struct Lanes {
    pub(crate) reads: SlowLane,
    /// Apart, so that a guest can sync while all reads wait for a store that is away.
    pub(crate) flushes: SlowLane,
    /// Reads that wait, of all queues.
    waiting: AtomicUsize,
}

impl Lanes {
    pub(crate) fn new() -> Self {
        let (reads, flushes) = (SlowLane::new(READ_THREADS), SlowLane::new(FLUSH_THREADS));
        Self { reads, flushes, waiting: AtomicUsize::new(0) }
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

/// The result of [`Work`], for the request in a slot of `waiting`.
struct Finished {
    slot: usize,
    result: Result<Vec<u8>>,
}

impl Mailbox {
    /// Nothing panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Vec<Finished>> {
        self.finished.lock().unwrap_or_else(PoisonError::into_inner)
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

/// A request that waits for the slow lane.
struct Waiting {
    head: u16,
    request: Request,
    chain: Chain,
    work: Work,
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
            let disk = &self.parts.target.name;
            tracing::warn!("{disk}: the guest's driver broke the rules, its queue is given up: {why}");
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
            if self.enabled {
                self.drain()?;
            }
            self.tell()?;
            if !self.has_mail() {
                self.sleep();
            }
        }
    }

    fn has_mail(&self) -> bool {
        let mailbox = &self.handle.mailbox;
        mailbox.orders.load(Ordering::Acquire) || mailbox.results.load(Ordering::Acquire)
    }

    fn sleep(&self) {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 2];
        // An error is an interruption by a signal: one turn more.
        let _ = epoll::wait(&self.poll, &mut events, None);
    }

    /// Takes up what others ordered. Whether to end.
    fn follow_orders(&mut self) -> bool {
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
            self.handle.mailbox.results.store(false, Ordering::Release);
            self.follow_orders();
            if self.ending.is_some() {
                return;
            }
            if !self.has_mail() {
                self.sleep();
            }
        }
    }
}

/// The data path.
impl Ring {
    /// Serves all that the ring holds, or until there is mail.
    fn drain(&mut self) -> Result<(), Broken> {
        let memory = Arc::clone(&self.parts.memory);
        while let Some(head) = self.resumed.pop_front() {
            self.take(&memory, head)?;
        }
        loop {
            self.parts.queue.disable_notification(&*memory).map_err(ring_lost)?;
            while let Some(head) = self.next_head(&memory)? {
                if let Some(record) = &mut self.parts.record {
                    record.submit(head)?;
                }
                self.take(&memory, head)?;
                if self.untold >= TOLD_BYTES {
                    self.tell()?;
                }
                if self.has_mail() {
                    return Ok(());
                }
            }
            self.tell()?;
            if !self.parts.queue.enable_notification(&*memory).map_err(ring_lost)? {
                return Ok(());
            }
        }
    }

    /// The head of the next request in the avail ring.
    fn next_head(&mut self, memory: &GuestMemory) -> Result<Option<u16>, Broken> {
        let queue = &mut self.parts.queue;
        // Looked at first: the iterator ends in the same way where there is nothing and where it cannot read, and
        // what it cannot read would make us spin.
        if queue.avail_idx(memory, Ordering::Acquire).map_err(ring_lost)?.0 == queue.next_avail() {
            return Ok(None);
        }
        let next = queue.iter(memory).map(|mut heads| heads.next());
        let Ok(Some(chain)) = next else {
            return Err(Broken("the avail ring is not in memory or holds more than its size"));
        };
        let head = chain.head_index();
        if head >= queue.size() {
            return Err(Broken("the avail ring names a descriptor outside of the table"));
        }
        Ok(Some(head))
    }

    /// Serves the request that begins at `head`, as far as it goes without waiting.
    fn take(&mut self, memory: &GuestMemory, head: u16) -> Result<(), Broken> {
        let queue = &self.parts.queue;
        let table = Table { addr: GuestAddress(queue.desc_table()), len: queue.size() };
        self.chain.read(memory, table, head)?;
        let mut request = Request::read(memory, &self.chain)?;
        match self.parts.serve(memory, &self.chain, &mut request, &mut self.bounce) {
            Step::Done(status, written) => self.answer(memory, head, &request, status, written),
            Step::Wait(work) => {
                let chain = std::mem::take(&mut self.chain);
                self.put_aside(Waiting { head, request, chain, work })
            }
        }
    }

    fn answer(
        &mut self,
        memory: &GuestMemory,
        head: u16,
        request: &Request,
        status: Status,
        written: u32,
    ) -> Result<(), Broken> {
        let parts = &mut self.parts;
        memory
            .write_obj(status as u8, request.status)
            .map_err(|_| Broken("the status of a request is not in memory"))?;
        if let Some(record) = &mut parts.record {
            record.answering(head)?;
        }
        // The status is a byte that was written, too.
        parts.queue.add_used(memory, head, written.saturating_add(1)).map_err(ring_lost)?;
        if let Some(record) = &mut parts.record {
            record.answered(head, parts.queue.next_used())?;
        }
        self.untold = self.untold.saturating_add(request.len().max(1));
        Ok(())
    }

    /// Tells the guest of answers, if it wants to hear and has not.
    fn tell(&mut self) -> Result<(), Broken> {
        if self.untold == 0 {
            return Ok(());
        }
        self.untold = 0;
        let wanted = self.parts.queue.needs_notification(&*self.parts.memory).map_err(ring_lost)?;
        if let Some(call) = self.parts.call.as_ref().filter(|_| wanted) {
            notify(call);
        }
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.waiting.len() - self.free.len()
    }

    /// Hands a request to the slow lane.
    fn put_aside(&mut self, waiting: Waiting) -> Result<(), Broken> {
        if self.in_flight() >= usize::from(self.parts.queue.size()) {
            return Err(Broken("more requests are in flight than the ring has entries"));
        }
        let work = waiting.work;
        let slot = self.free.pop().unwrap_or(self.waiting.len());
        if slot == self.waiting.len() {
            self.waiting.push(None);
        }
        self.waiting[slot] = Some(waiting);
        let (target, lanes) = (Arc::clone(&self.parts.target), Arc::clone(&self.parts.lanes));
        let reply = Reply { handle: Arc::clone(&self.handle), slot, result: None };
        match work {
            Work::Flush => self.parts.lanes.flushes.run(move || reply.send(|| sync(&target))),
            Work::Read(range) => {
                if lanes.waiting.fetch_add(1, Ordering::Relaxed) >= READ_THREADS {
                    // It will wait for a thread: its bytes can come meanwhile.
                    target.device.prefetch(range);
                }
                self.parts.lanes.reads.run(move || {
                    reply.send(|| target.read_waiting(range));
                    lanes.waiting.fetch_sub(1, Ordering::Relaxed);
                });
            }
        }
        Ok(())
    }

    /// Goes on with the requests whose work is done.
    fn take_results(&mut self) -> Result<(), Broken> {
        let handle = Arc::clone(&self.handle);
        if !handle.mailbox.results.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let finished = std::mem::take(&mut *handle.mailbox.lock());
        let memory = Arc::clone(&self.parts.memory);
        for Finished { slot, result } in finished {
            let Some(mut waiting) = self.waiting.get_mut(slot).and_then(Option::take) else { continue };
            self.free.push(slot);
            match self.go_on(&memory, &mut waiting, result) {
                Step::Done(status, written) => {
                    self.answer(&memory, waiting.head, &waiting.request, status, written)?;
                }
                Step::Wait(work) => {
                    waiting.work = work;
                    self.put_aside(waiting)?;
                }
            }
        }
        Ok(())
    }

    /// The next step of a request that waited, with what it waited for.
    fn go_on(&mut self, memory: &GuestMemory, waiting: &mut Waiting, result: Result<Vec<u8>>) -> Step {
        let Waiting { request, chain, work, .. } = waiting;
        match (work, result) {
            (Work::Flush, Ok(_)) => Step::Done(Status::Ok, 0),
            (Work::Flush, Err(error)) => Step::Done(self.parts.target.failed("flush", error), 0),
            (Work::Read(_), Err(error)) => Step::Done(self.parts.target.failed("read", error), 0),
            (Work::Read(_), Ok(bytes)) => match request.got(memory, chain, &bytes) {
                Ok(()) => self.parts.serve(memory, chain, request, &mut self.bounce),
                Err(NoMemory) => Step::Done(Status::IoError, 0),
            },
        }
    }
}

impl RingParts {
    fn serve(
        &self,
        memory: &GuestMemory,
        chain: &Chain,
        request: &mut Request,
        bounce: &mut Vec<u8>,
    ) -> Step {
        self.target.serve(memory, chain, request, bounce, self.driver_flushes)
    }
}

fn sync(target: &Target) -> Result<Vec<u8>> {
    target.device.flush().map(|()| Vec::new())
}

/// The way back of a slow request. Where it is lost (its thread panicked), the request fails.
struct Reply {
    handle: Arc<RingHandle>,
    slot: usize,
    result: Option<Result<Vec<u8>>>,
}

impl Reply {
    /// Does the work, unless nobody wants it any more.
    fn send(mut self, work: impl FnOnce() -> Result<Vec<u8>>) {
        if !self.handle.mailbox.abandoned.load(Ordering::Acquire) {
            self.result = Some(work());
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let lost = || Err(Error::new(ErrorKind::Io, "the request was given up"));
        let finished = Finished { slot: self.slot, result: self.result.take().unwrap_or_else(lost) };
        let mailbox = &self.handle.mailbox;
        mailbox.lock().push(finished);
        mailbox.results.store(true, Ordering::Release);
        mailbox.wake();
    }
}

/// A ring that was in memory when it started is not any more, or a used ring never was.
fn ring_lost(_: virtio_queue::Error) -> Broken {
    Broken("a ring is not in the guest's memory")
}

/// Signals an eventfd of the front end. It never blocks: [`super::session`] saw to that.
fn notify(mut event: &File) {
    let _ = event.write(&1_u64.to_ne_bytes());
}
