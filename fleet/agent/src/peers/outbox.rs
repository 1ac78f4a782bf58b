//! What waits to be sent to one host, in the order in which it is sent; and who waits for whom across all hosts.
//!
//! The order is that of [`Class`]: bytes that somebody waits for first, bytes of prefetches last. What is small is
//! not held back for long, though: it goes between two chunks. Bytes of prefetches wait as long as bytes that
//! somebody waits for are being sent to any host ([`Lanes`]), since all go out by the same interface; but not for a
//! receiver that takes nothing.
//!
//! Everything is bounded. Adverts that are too many are dropped, the oldest first: they are lossy by design. Of all
//! else a host that does not read is cut off.

use crate::peers::blob::Blob;
use crate::peers::frame::{self, Kind};
use headstart_swarm::{Chunks, Class, Message, RequestId, Urgency};
use serde::Serialize;
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Bytes of small frames that go out at once.
const BATCH: usize = 16 << 10;

/// Small things that wait for one host at most.
const MESSAGES_MAX: usize = 16_384;

/// Adverts that wait for one host at most.
const ADVERTS_MAX: usize = 512;

/// Reports and answers about what disks read that wait for one host at most.
const STATISTICS_MAX: usize = 16;

/// Chunks that wait for one host at most.
const CHUNKS_MAX: u64 = 16_384;

/// Chunks after which what is least urgent of the small things goes all the same.
const CHUNKS_BETWEEN: u32 = 8;

/// Chunks of requests that are remembered as sent: who asks again, with more urgency, may cross them on their way.
const SENT_MAX: usize = 8192;

/// How long bytes of prefetches wait for others of which nothing moves, in milliseconds.
pub(super) const STALLED_MS: u64 = 50;

/// Bytes that somebody waits for, on their way to any host.
#[derive(Default)]
pub(super) struct Lanes {
    chunks: AtomicUsize,
    moved_at: AtomicU64,
    pub(super) free: Notify,
}

impl Lanes {
    fn enter(&self, chunks: usize, now_ms: u64) {
        if self.chunks.fetch_add(chunks, Ordering::Relaxed) == 0 {
            self.moved_at.store(now_ms, Ordering::Relaxed);
        }
    }

    pub(super) fn moved(&self, now_ms: u64) {
        self.moved_at.store(now_ms, Ordering::Relaxed);
    }

    fn leave(&self, chunks: usize) {
        if chunks > 0 && self.chunks.fetch_sub(chunks, Ordering::Relaxed) == chunks {
            self.free.notify_waiters();
        }
    }

    /// What has left an outbox counts until it is sent, or given up.
    pub(super) fn sending(&self, sending: &Sending) -> Option<Moving<'_>> {
        (sending.serve.urgency == Urgency::Demand).then(|| Moving(self))
    }

    /// Whether bytes of prefetches may go.
    fn is_free(&self, now_ms: u64) -> bool {
        self.chunks.load(Ordering::Relaxed) == 0
            || now_ms.saturating_sub(self.moved_at.load(Ordering::Relaxed)) > STALLED_MS
    }
}

/// A chunk that somebody waits for and that is being sent.
pub(super) struct Moving<'a>(&'a Lanes);

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

/// One of them.
pub(super) struct Sending {
    pub(super) serve: Serve,
    pub(super) chunk: u32,
    /// It was sent before, in answer to the same request: it need not be sent again.
    pub(super) was_sent: bool,
}

/// What is next.
pub(super) enum Next {
    /// A chunk, behind the small frames that are in the buffer now.
    Chunk(Box<Sending>),
    /// Only the small frames that are in the buffer now.
    Small,
    /// Nothing; and whether prefetches wait for others.
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
    /// Proofs and the like, as frames.
    control: Vec<u8>,
    urgent: VecDeque<Message>,
    adverts: VecDeque<Message>,
    later: VecDeque<Message>,
    /// What trackers are told and tell, as frames.
    statistics: VecDeque<Vec<u8>>,
    demand: VecDeque<(Serve, u32)>,
    background: VecDeque<(Serve, u32)>,
    /// Chunks that wait.
    chunks: u64,
    sent_since_small: u32,
    sent: HashSet<(RequestId, u32)>,
    sent_in_order: VecDeque<(RequestId, u32)>,
    closed: bool,
}

/// There is no room: the other host does not read.
pub(super) struct Overflow;

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        // No change of it is interrupted by a panic.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// A frame without a state machine's message in it.
    pub(super) fn control(&self, kind: Kind, a: u32, body: &[u8]) -> Result<(), Overflow> {
        self.control_with(kind, a, 0, body)
    }

    /// The same with a second number in its header.
    pub(super) fn control_with(&self, kind: Kind, a: u32, b: u32, body: &[u8]) -> Result<(), Overflow> {
        self.change(|queues| {
            frame::push_frame(&mut queues.control, kind, a, b, body);
            Ok(())
        })
    }

    /// What a tracker is told, or tells. The oldest go where there are too many.
    pub(super) fn statistics(&self, kind: Kind, body: &impl Serialize) {
        let mut bytes = Vec::new();
        if let Err(error) = frame::push_encoded(&mut bytes, kind, body) {
            tracing::warn!(%error, "statistics are lost");
            return;
        }
        // Who does not read is cut off by what matters.
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
                Class::Advert => {
                    if queues.adverts.len() >= ADVERTS_MAX {
                        queues.adverts.pop_front();
                    }
                    queues.adverts.push_back(message);
                }
                Class::PrefetchRequest => queues.later.push_back(message),
                _ => queues.urgent.push_back(message),
            }
            Ok(())
        })
    }

    pub(super) fn serve(&self, serve: Serve, lanes: &Lanes, now_ms: u64) -> Result<(), Overflow> {
        self.change(|queues| {
            if serve.request.is_none() && serve.urgency == Urgency::Demand {
                queues.hurry(&serve, lanes, now_ms);
                return Ok(());
            }
            let count = serve.chunks.count;
            queues.chunks += u64::from(count);
            match serve.urgency {
                Urgency::Demand => {
                    lanes.enter(count as usize, now_ms);
                    queues.demand.push_back((serve, 0));
                }
                Urgency::Background => queues.background.push_back((serve, 0)),
            }
            Ok(())
        })
    }

    /// The other host does not want the rest of these any more; gives what is not sent therefore.
    pub(super) fn cancel(&self, request: RequestId, lanes: &Lanes) -> Vec<Serve> {
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
        lanes.leave(demand);
        cancelled
    }

    /// Puts what is next of the small things into `buf`, and says what comes behind them.
    pub(super) fn next(&self, buf: &mut Vec<u8>, lanes: &Lanes, now_ms: u64) -> Next {
        let mut queues = self.lock();
        if queues.closed {
            return Next::Closed;
        }
        buf.append(&mut queues.control);
        queues.fill(buf, Class::DemandRequest);
        let has_demand = !queues.demand.is_empty();
        if !has_demand || queues.sent_since_small >= CHUNKS_BETWEEN {
            queues.fill(buf, Class::Advert);
            queues.fill(buf, Class::PrefetchRequest);
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
        if queues.background.is_empty() || lanes.is_free(now_ms) {
            return queues.chunk(false);
        }
        Next::Nothing { held_back: true }
    }

    /// Nothing is taken or given any more.
    pub(super) fn close(&self, lanes: &Lanes) {
        let mut queues = self.lock();
        let left = queues.demand.iter().map(|(serve, done)| (serve.chunks.count - done) as usize).sum();
        *queues = Queues { closed: true, ..Queues::default() };
        drop(queues);
        lanes.leave(left);
        self.ready.notify_one();
    }

    /// Messages and chunks that wait.
    pub(super) fn waiting(&self) -> usize {
        let queues = self.lock();
        let messages = queues.urgent.len() + queues.adverts.len() + queues.later.len();
        messages.saturating_add(usize::try_from(queues.chunks).unwrap_or(usize::MAX))
    }
}

impl Queues {
    /// Whether a request that is cancelled had not been sent at all; what waits of it is not sent any more.
    fn take_back(&mut self, cancelled: RequestId) -> bool {
        let is_it =
            |message: &Message| matches!(message, Message::Ask { request, .. } if *request == cancelled);
        let before = self.later.len();
        self.later.retain(|message| !is_it(message));
        // What waits here may be the second time, with more urgency.
        self.urgent.retain(|message| !is_it(message));
        before > self.later.len()
    }

    fn fill(&mut self, buf: &mut Vec<u8>, class: Class) {
        let queue = match class {
            Class::Advert => &mut self.adverts,
            Class::PrefetchRequest => &mut self.later,
            _ => &mut self.urgent,
        };
        while buf.len() < BATCH
            && let Some(message) = queue.pop_front()
        {
            if let Err(error) = frame::push_encoded(buf, Kind::Message, &message) {
                tracing::warn!(%error, "a message to another host is lost");
            }
        }
    }

    /// Somebody waits now for what is sent unasked: it moves up, if it has not gone.
    fn hurry(&mut self, serve: &Serve, lanes: &Lanes, now_ms: u64) {
        let is_it = |(known, _): &(Serve, u32)| {
            (known.request, known.blob.id, known.chunks) == (None, serve.blob.id, serve.chunks)
        };
        let Some(at) = self.background.iter().position(is_it) else { return };
        let Some((known, done)) = self.background.remove(at) else { return };
        lanes.enter(known.chunks.count.saturating_sub(done) as usize, now_ms);
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

    /// Whether this is sent for the first time.
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
