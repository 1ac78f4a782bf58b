//! The queue of items for one host, in the order in which they are sent; and the precedence across all hosts.
//!
//! The order is that of [`SendClass`]: urgent bytes first, bytes of prefetches last. Small items are not held back for
//! long, though: they go between two chunks. Bytes of prefetches wait while urgent bytes are being sent to any host
//! ([`SendGate`]), because all go out by the same interface; but not for a receiver that takes nothing.
//!
//! Everything is bounded. The oldest adverts are dropped if there are too many: they are lossy by design. For all other
//! items, a host that does not read is cut off.

use crate::blob::Blob;
use crate::frame::{self, FrameKind};
use headstart_block::to_usize;
use headstart_swarm::{Chunks, Message, RequestId, SendClass, Urgency};
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tokio::sync::Notify;

/// Bytes of small frames that go out at once.
const BATCH: usize = 16 << 10;

/// The most small items that wait for one host.
const MESSAGES_MAX: usize = 16_384;

/// The most adverts that wait for one host.
const ADVERTS_MAX: usize = 512;

/// The most reports and answers about disks' reads that wait for one host.
const STATISTICS_MAX: usize = 16;

/// The most chunks that wait for one host.
const CHUNKS_MAX: u64 = 16_384;

/// The number of chunks after which the least urgent small items go anyway.
const CHUNKS_BETWEEN: u32 = 8;

/// Requested chunks that are remembered as sent: a repeated request with more urgency may cross them on their way.
const SENT_MAX: usize = 8192;

/// The time, in milliseconds, that bytes of prefetches wait for urgent ones that do not move.
pub(super) const STALLED_MS: u64 = 50;

/// The gate that holds bytes of prefetches back while urgent chunks are on their way to any host.
#[derive(Default)]
pub(super) struct SendGate {
    chunks: AtomicUsize,
    last_progress_ms: AtomicU64,
    pub(super) opened: Notify,
}

impl SendGate {
    fn enter(&self, chunks: usize, now_ms: u64) {
        if self.chunks.fetch_add(chunks, Ordering::Relaxed) == 0 {
            self.last_progress_ms.store(now_ms, Ordering::Relaxed);
        }
    }

    pub(super) fn progressed(&self, now_ms: u64) {
        self.last_progress_ms.store(now_ms, Ordering::Relaxed);
    }

    fn leave(&self, chunks: usize) {
        if chunks > 0 && self.chunks.fetch_sub(chunks, Ordering::Relaxed) == chunks {
            self.opened.notify_waiters();
        }
    }

    /// Counts a chunk that has left an outbox, until it is sent or given up.
    pub(super) fn sending(&self, sending: &Sending) -> Option<Moving<'_>> {
        (sending.serve.urgency == Urgency::Demand).then(|| Moving(self))
    }

    /// `true` if bytes of prefetches may go.
    fn is_open(&self, now_ms: u64) -> bool {
        self.chunks.load(Ordering::Relaxed) == 0
            || now_ms.saturating_sub(self.last_progress_ms.load(Ordering::Relaxed)) > STALLED_MS
    }
}

/// An urgent chunk that is being sent.
pub(super) struct Moving<'a>(&'a SendGate);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.leave(1);
    }
}

/// Chunks to be sent to a host.
#[derive(Clone)]
pub(super) struct Serve {
    pub(super) request: Option<RequestId>,
    pub(super) blob: Arc<Blob>,
    pub(super) chunks: Chunks,
    pub(super) urgency: Urgency,
}

/// One chunk to be sent.
pub(super) struct Sending {
    pub(super) serve: Serve,
    pub(super) chunk: u32,
    /// `true` if it was sent before, in answer to the same request: it need not be sent again.
    pub(super) was_sent: bool,
}

/// The next item.
pub(super) enum Next {
    /// A chunk, behind the small frames that are in the buffer now.
    Chunk(Box<Sending>),
    /// Only the small frames that are in the buffer now.
    Small,
    /// Nothing; `held_back` is `true` if prefetches wait for others.
    Nothing {
        held_back: bool,
    },
    Closed,
}

#[derive(Default)]
pub(super) struct Outbox {
    queues: Mutex<Queues>,
    pub(super) ready: Notify,
}

#[derive(Default)]
struct Queues {
    /// Frames without messages, such as proofs.
    control: Vec<u8>,
    urgent: VecDeque<Message>,
    adverts: VecDeque<Message>,
    later: VecDeque<Message>,
    /// Reports to and answers of trackers, as frames.
    statistics: VecDeque<Vec<u8>>,
    demand: VecDeque<(Serve, u32)>,
    background: VecDeque<(Serve, u32)>,
    /// The number of waiting chunks.
    chunks: u64,
    sent_since_small: u32,
    sent: HashSet<(RequestId, u32)>,
    sent_in_order: VecDeque<(RequestId, u32)>,
    closed: bool,
}

/// The error of a full queue: the other host does not read.
pub(super) struct Overflow;

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock()
    }

    fn change(&self, change: impl FnOnce(&mut Queues) -> Result<(), Overflow>) -> Result<(), Overflow> {
        let mut queues = self.lock();
        if queues.closed {
            return Ok(());
        }
        change(&mut queues)?;
        let full = queues.urgent.len() + queues.later.len() > MESSAGES_MAX
            || queues.chunks > CHUNKS_MAX
            || queues.control.len() > MESSAGES_MAX * (frame::HEADER + frame::PROOF);
        drop(queues);
        self.ready.notify_one();
        if full { Err(Overflow) } else { Ok(()) }
    }

    /// Queues a frame without a message of a state machine.
    pub(super) fn control(&self, kind: FrameKind, a: u32, body: &[u8]) -> Result<(), Overflow> {
        self.control_with(kind, a, 0, body)
    }

    /// Queues a frame with a second number in its header.
    pub(super) fn control_with(&self, kind: FrameKind, a: u32, b: u32, body: &[u8]) -> Result<(), Overflow> {
        self.change(|queues| {
            frame::push_frame(&mut queues.control, kind, a, b, body);
            Ok(())
        })
    }

    /// Queues a report to a tracker, or a tracker's answer. The oldest go if there are too many.
    pub(super) fn statistics(&self, kind: FrameKind, body: &impl Serialize) {
        let mut bytes = Vec::new();
        if let Err(error) = frame::push_encoded(&mut bytes, kind, body) {
            tracing::warn!(%error, "statistics are lost");
            return;
        }
        // A host that does not read is cut off by frames that matter.
        let _ = self.change(|queues| {
            if queues.statistics.len() >= STATISTICS_MAX {
                queues.statistics.pop_front();
            }
            queues.statistics.push_back(bytes);
            Ok(())
        });
    }

    pub(super) fn send(&self, message: Message) -> Result<(), Overflow> {
        self.change(|queues| {
            if let Message::Cancel { request } = &message
                && queues.take_back(*request)
            {
                return Ok(());
            }
            match message.class() {
                SendClass::Advert => {
                    if queues.adverts.len() >= ADVERTS_MAX {
                        queues.adverts.pop_front();
                    }
                    queues.adverts.push_back(message);
                }
                SendClass::PrefetchRequest => queues.later.push_back(message),
                _ => queues.urgent.push_back(message),
            }
            Ok(())
        })
    }

    pub(super) fn serve(&self, serve: Serve, gate: &SendGate, now_ms: u64) -> Result<(), Overflow> {
        self.change(|queues| {
            if serve.request.is_none() && serve.urgency == Urgency::Demand {
                queues.promote(&serve, gate, now_ms);
                return Ok(());
            }
            let count = serve.chunks.count;
            queues.chunks += u64::from(count);
            match serve.urgency {
                Urgency::Demand => {
                    gate.enter(count as usize, now_ms);
                    queues.demand.push_back((serve, 0));
                }
                Urgency::Background => queues.background.push_back((serve, 0)),
            }
            Ok(())
        })
    }

    /// Cancels the rest of a request; returns the chunks that are not sent because of that.
    pub(super) fn cancel(&self, request: RequestId, gate: &SendGate) -> Vec<Serve> {
        let mut queues = self.lock();
        let (mut cancelled, mut demand, mut all) = (Vec::new(), 0, 0);
        let mut keep = |(serve, done): &(Serve, u32), is_demand: bool| {
            if serve.request != Some(request) {
                return true;
            }
            let left = serve.chunks.count - done;
            all += u64::from(left);
            demand += if is_demand { left as usize } else { 0 };
            let rest = Chunks { first: serve.chunks.first + done, count: serve.chunks.count - done };
            cancelled.push(Serve { chunks: rest, ..serve.clone() });
            false
        };
        queues.demand.retain(|entry| keep(entry, true));
        queues.background.retain(|entry| keep(entry, false));
        queues.chunks -= all;
        drop(queues);
        gate.leave(demand);
        cancelled
    }

    /// Puts the next small items into `buf`, and returns what follows them.
    pub(super) fn next(&self, buf: &mut Vec<u8>, gate: &SendGate, now_ms: u64) -> Next {
        let mut queues = self.lock();
        if queues.closed {
            return Next::Closed;
        }
        buf.append(&mut queues.control);
        queues.fill(buf, SendClass::DemandRequest);
        let has_demand = !queues.demand.is_empty();
        if !has_demand || queues.sent_since_small >= CHUNKS_BETWEEN {
            queues.fill(buf, SendClass::Advert);
            queues.fill(buf, SendClass::PrefetchRequest);
            while buf.len() < BATCH
                && let Some(frame) = queues.statistics.pop_front()
            {
                buf.extend_from_slice(&frame);
            }
            queues.sent_since_small = 0;
        }
        if has_demand {
            return queues.chunk(true);
        }
        if !buf.is_empty() {
            return Next::Small;
        }
        if queues.background.is_empty() || gate.is_open(now_ms) {
            return queues.chunk(false);
        }
        Next::Nothing { held_back: true }
    }

    /// Closes the queues: they accept and give out nothing any more.
    pub(super) fn close(&self, gate: &SendGate) {
        let mut queues = self.lock();
        let left = queues.demand.iter().map(|(serve, done)| (serve.chunks.count - done) as usize).sum();
        *queues = Queues { closed: true, ..Queues::default() };
        drop(queues);
        gate.leave(left);
        self.ready.notify_one();
    }

    /// The number of waiting messages and chunks.
    pub(super) fn waiting(&self) -> usize {
        let queues = self.lock();
        let messages = queues.urgent.len() + queues.adverts.len() + queues.later.len();
        messages.saturating_add(to_usize(queues.chunks))
    }
}

impl Queues {
    /// Removes a cancelled request from the queues; `true` if it had not been sent at all.
    fn take_back(&mut self, cancelled: RequestId) -> bool {
        let is_it =
            |message: &Message| matches!(message, Message::Ask { request, .. } if *request == cancelled);
        let before = self.later.len();
        self.later.retain(|message| !is_it(message));
        // The item in this queue may be the second one, with more urgency.
        self.urgent.retain(|message| !is_it(message));
        before > self.later.len()
    }

    fn fill(&mut self, buf: &mut Vec<u8>, class: SendClass) {
        let queue = match class {
            SendClass::Advert => &mut self.adverts,
            SendClass::PrefetchRequest => &mut self.later,
            _ => &mut self.urgent,
        };
        while buf.len() < BATCH
            && let Some(message) = queue.pop_front()
        {
            if let Err(error) = frame::push_encoded(buf, FrameKind::Message, &message) {
                tracing::warn!(%error, "a message to another host is lost");
            }
        }
    }

    /// Moves up a push that has become urgent, if it has not gone.
    fn promote(&mut self, serve: &Serve, gate: &SendGate, now_ms: u64) {
        let is_it = |(known, _): &(Serve, u32)| {
            (known.request, known.blob.id, known.chunks) == (None, serve.blob.id, serve.chunks)
        };
        let Some(at) = self.background.iter().position(is_it) else { return };
        let Some((known, done)) = self.background.remove(at) else { return };
        gate.enter(known.chunks.count.saturating_sub(done) as usize, now_ms);
        self.demand.push_back((Serve { urgency: Urgency::Demand, ..known }, done));
    }

    fn chunk(&mut self, demand: bool) -> Next {
        let queue = if demand { &mut self.demand } else { &mut self.background };
        let Some((serve, done)) = queue.front_mut() else { return Next::Nothing { held_back: false } };
        let (chunk, serve_now) = (serve.chunks.first.saturating_add(*done), serve.clone());
        *done += 1;
        let is_last = *done >= serve.chunks.count;
        if is_last {
            queue.pop_front();
        }
        self.chunks -= 1;
        self.sent_since_small += 1;
        let was_sent = serve_now.request.is_some_and(|request| !self.is_first((request, chunk)));
        Next::Chunk(Box::new(Sending { serve: serve_now, chunk, was_sent }))
    }

    /// `true` if this is sent for the first time.
    fn is_first(&mut self, sent: (RequestId, u32)) -> bool {
        if !self.sent.insert(sent) {
            return false;
        }
        self.sent_in_order.push_back(sent);
        if self.sent_in_order.len() > SENT_MAX
            && let Some(oldest) = self.sent_in_order.pop_front()
        {
            self.sent.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests;
