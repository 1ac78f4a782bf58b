//! The data path of a ring: each request from its head in the avail ring to its answer.
//!
//! A request is served at once as far as its bytes are local; if it is much work and others are behind it, by a helper.
//! If it must wait, it is put aside: a thread of a pool does the work in memory of its own, and the ring's thread goes
//! on with it when the result is in the mailbox.

use super::super::blk::{Request, Status, Step, Work};
use super::super::chain::{Broken, Chain, MEMORY_LOST, NoMemory, Table};
use super::super::memory::GuestMemory;
use super::{Finished, Outcome, READ_THREADS, Ring, RingHandle, RingParts, notify};
use headstart_block::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use virtio_queue::{QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

/// The bytes of answered requests after which the guest is notified although the ring holds more requests.
const NOTIFY_BYTES: u64 = 1 << 20;

/// A request that was put aside.
pub(super) struct Waiting {
    head: u16,
    request: Request,
    chain: Chain,
    work: Work,
}

impl Ring {
    /// Serves all that the ring holds, or until there is mail.
    pub(super) fn drain(&mut self) -> Result<(), Broken> {
        let memory = Arc::clone(&self.parts.memory);
        while let Some(head) = self.resumed.pop_front() {
            self.take(&memory, head)?;
        }
        self.serve_gathered(&memory)?;
        loop {
            self.parts.queue.disable_notification(&**memory).map_err(ring_lost)?;
            while let Some(head) = self.next_head(&memory)? {
                if let Some(record) = &mut self.parts.record {
                    record.submit(head)?;
                }
                self.take(&memory, head)?;
                if self.unnotified >= NOTIFY_BYTES {
                    self.notify_guest()?;
                }
                if self.has_mail() {
                    return self.serve_gathered(&memory);
                }
            }
            self.serve_gathered(&memory)?;
            self.notify_guest()?;
            if !self.parts.queue.enable_notification(&**memory).map_err(ring_lost)? {
                return Ok(());
            }
        }
    }

    /// The head of the next request in the avail ring.
    fn next_head(&mut self, memory: &GuestMemory) -> Result<Option<u16>, Broken> {
        let queue = &mut self.parts.queue;
        // Looked at first, because the iterator ends in the same way if there is nothing and if it cannot read, and an
        // avail ring that it cannot read would make this thread spin.
        let end = queue.avail_idx(&**memory, Ordering::Acquire).map_err(ring_lost)?.0;
        if memory.is_lost() {
            return Err(MEMORY_LOST);
        }
        if end == queue.next_avail() {
            return Ok(None);
        }
        let next = queue.iter(&**memory).map(|mut heads| heads.next());
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
        if self.needs_help(memory, &request) {
            return self.hand_over(head, request);
        }
        if self.is_gathered(&request) {
            return self.gather(memory, head, request);
        }
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
        // The status is a written byte too.
        parts.queue.add_used(&**memory, head, written.saturating_add(1)).map_err(ring_lost)?;
        if let Some(record) = &mut parts.record {
            record.answered(head, parts.queue.next_used())?;
        }
        self.unnotified = self.unnotified.saturating_add(request.len().max(1));
        Ok(())
    }

    /// Notifies the guest of answers, if it wants that and has not been notified.
    pub(super) fn notify_guest(&mut self) -> Result<(), Broken> {
        if self.unnotified == 0 {
            return Ok(());
        }
        self.unnotified = 0;
        let wanted = self.parts.queue.needs_notification(&**self.parts.memory).map_err(ring_lost)?;
        if let Some(call) = self.parts.call.as_ref().filter(|_| wanted) {
            notify(call);
        }
        Ok(())
    }

    pub(super) fn in_flight(&self) -> usize {
        self.waiting.len() - self.free.len()
    }

    /// Takes a free slot.
    pub(super) fn take_slot(&mut self) -> Result<usize, Broken> {
        if self.in_flight() >= usize::from(self.parts.queue.size()) {
            return Err(Broken("more requests are in flight than the ring has entries"));
        }
        let slot = self.free.pop().unwrap_or(self.waiting.len());
        if slot == self.waiting.len() {
            self.waiting.push(None);
        }
        Ok(slot)
    }

    /// Hands a request to the pool that does its work.
    fn put_aside(&mut self, waiting: Waiting) -> Result<(), Broken> {
        let slot = self.take_slot()?;
        let work = waiting.work;
        self.waiting[slot] = Some(waiting);
        let (target, pools) = (Arc::clone(&self.parts.target), Arc::clone(&self.parts.pools));
        let reply = Reply { handle: Arc::clone(&self.handle), slot, result: None };
        match work {
            Work::Flush => {
                self.parts
                    .pools
                    .flushes
                    .run(move || reply.send(|| target.device.flush().map(|()| Vec::new())));
            }
            Work::Read(range) => {
                if pools.waiting.fetch_add(1, Ordering::Relaxed) >= READ_THREADS {
                    // It will wait for a thread: its bytes can be fetched meanwhile.
                    target.device.prefetch(range);
                }
                self.parts.pools.reads.run(move || {
                    reply.send(|| target.read_waiting(range));
                    pools.waiting.fetch_sub(1, Ordering::Relaxed);
                });
            }
        }
        Ok(())
    }

    /// Goes on with the requests whose work is done.
    pub(super) fn take_results(&mut self) -> Result<(), Broken> {
        let finished = self.handle.mailbox.take();
        if finished.is_empty() {
            return Ok(());
        }
        let memory = Arc::clone(&self.parts.memory);
        for Finished { slot, outcome } in finished {
            self.free.push(slot);
            match outcome {
                Outcome::Helped(helped) => self.take_back(&memory, helped)?,
                Outcome::Worked(result) => {
                    let Some(mut waiting) = self.waiting.get_mut(slot).and_then(Option::take) else {
                        continue;
                    };
                    let step = self.go_on(&memory, &mut waiting, result);
                    let Waiting { head, request, mut chain, .. } = waiting;
                    self.follow(&memory, (head, request), &mut chain, step)?;
                }
            }
        }
        Ok(())
    }

    /// Answers a request, or puts it aside with its chain.
    pub(super) fn follow(
        &mut self,
        memory: &GuestMemory,
        (head, request): (u16, Request),
        chain: &mut Chain,
        step: Step,
    ) -> Result<(), Broken> {
        match step {
            Step::Done(status, written) => self.answer(memory, head, &request, status, written),
            Step::Wait(work) => self.put_aside(Waiting { head, request, chain: std::mem::take(chain), work }),
        }
    }

    /// The next step of a request that waited, with the result of its work.
    fn go_on(&mut self, memory: &GuestMemory, waiting: &mut Waiting, result: Result<Vec<u8>>) -> Step {
        let Waiting { request, chain, work, .. } = waiting;
        match (*work, result) {
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

/// The way back of a request's result. If it is lost (its thread panicked), the request fails.
struct Reply {
    handle: Arc<RingHandle>,
    slot: usize,
    result: Option<Result<Vec<u8>>>,
}

impl Reply {
    /// Does the work, unless nothing waits for it any more.
    fn send(mut self, work: impl FnOnce() -> Result<Vec<u8>>) {
        if !self.handle.mailbox.abandoned.load(Ordering::Acquire) {
            self.result = Some(work());
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let lost = || Err(Error::new(ErrorKind::Io, "the request was given up"));
        let outcome = Outcome::Worked(self.result.take().unwrap_or_else(lost));
        self.handle.mailbox.put(Finished { slot: self.slot, outcome });
    }
}

/// The reason if a ring that was in memory when it started is not any more, or a used ring never was.
fn ring_lost(_: virtio_queue::Error) -> Broken {
    Broken("a ring is not in the guest's memory")
}
