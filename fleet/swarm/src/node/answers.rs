//! Requests of other hosts: chunks are sent, promised, fetched first, or hosts are named that have them.

use super::Node;
use super::blob::{PeerMap, push};
use super::chunks::Aim;
use super::pending::{Source, Waiter};
use super::redirects::Redirection;
use super::serving::{Transfer, WAITING, WithDriver};
use super::sources::HOPS_TO_HOLDER;
use crate::event::{Action, BlobId, Chunks, PeerId, PeerKey, Served, Urgency};
use crate::message::{Message, RejectReason, RequestId};
use crate::placement;
use headstart_block::exact;

/// The number of chunks of one request that are processed.
const ASKED: u32 = 4096;

/// A request as it came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) peer: PeerId,
    pub(super) request: RequestId,
    pub(super) urgency: Urgency,
    pub(super) hops: u8,
    pub(super) no_redirect: bool,
}

impl Ask {
    /// `true` if other hosts may be named to the asker. An asker that another host sent here has no hops, and is not
    /// sent on: it would be sent in a circle sooner or later.
    fn may_be_redirected(self) -> bool {
        self.hops > 0 && !self.no_redirect
    }
}

/// The decisions for the chunks of a request.
#[derive(Debug, Default)]
struct Answers {
    send: Vec<Chunks>,
    /// Chunks that are being sent without urgency.
    again: Vec<Chunks>,
    promise: Vec<Chunks>,
    missing: Vec<Chunks>,
    busy: Vec<Chunks>,
    named: Vec<(Chunks, PeerKey)>,
    /// Chunks to be fetched first.
    obtain: Vec<u32>,
    /// Chunks on their way without urgency, for which a read waits now.
    promote: Vec<u32>,
}

impl Node {
    /// Handles another host's request.
    pub(super) fn on_ask(&mut self, ask: Ask, id: BlobId, chunks: Chunks, actions: &mut Vec<Action>) {
        let Some(key) = self.membership.key_of(ask.peer) else { return };
        let mut answers = Answers::default();
        match self.blobs.get(&id) {
            Some(blob) if blob.sharing.is_with(key) => {
                let cut = Chunks { count: blob.cut(chunks).count.min(ASKED), ..blob.cut(chunks) };
                // Chunks beyond the blob's end are missing.
                let rest = Chunks { first: cut.numbers().end, count: chunks.count.saturating_sub(cut.count) };
                answers.missing.extend((rest.count > 0).then_some(rest));
                for chunk in cut.numbers() {
                    if self.is_sent_ahead(ask.peer, id, chunk, ask.urgency, actions) {
                        push(&mut answers.promise, chunk);
                    } else {
                        self.decide(ask, id, chunk, &mut answers);
                    }
                }
            }
            _ => answers.missing.push(chunks),
        }
        self.answer(ask, id, answers, actions);
        if ask.urgency == Urgency::Demand {
            self.predict(ask.peer, id, chunks, actions);
        }
    }

    /// Decides on one chunk that was requested.
    fn decide(&mut self, ask: Ask, id: BlobId, chunk: u32, answers: &mut Answers) {
        let Some(blob) = self.blobs.get(&id) else { return };
        if blob.table.is_local(chunk) {
            self.decide_local(ask, id, chunk, answers);
        } else if self.serving.is_promised_enough(ask.peer) {
            push(&mut answers.busy, chunk);
        } else if blob.table.pending(chunk).is_some() {
            self.decide_pending(ask, id, chunk, answers);
        } else {
            self.decide_remote(ask, id, chunk, answers);
        }
    }

    fn decide_local(&mut self, ask: Ask, id: BlobId, chunk: u32, answers: &mut Answers) {
        let Some(blob) = self.blobs.get(&id) else { return };
        let Ask { peer, request, urgency, .. } = ask;
        let with_driver =
            self.serving.requested_again(peer, request, (id, blob.len), chunk, urgency, self.now);
        match with_driver {
            WithDriver::No => {}
            WithDriver::Yes => return,
            WithDriver::Promoted(chunks) => {
                answers.again.push(chunks);
                return;
            }
        }
        let waited = self.serving.take_queued(peer, request, id, chunk);
        let backlog = self.serving.background_backlog(peer);
        let full = self.serving.is_full();
        let queued = if full { self.serving.demanded(peer) } else { 0 };
        // All agents prefetch the chunks that their root advertises: the root sends those to a few, which send them on.
        let is_root = self.membership.is_root();
        let ahead = is_root && urgency == Urgency::Background;
        let loaded = !waited && (ahead || self.serving.is_loaded(blob.bytes(chunk)));
        if loaded && self.redirect(ask, id, chunk, is_root, answers) {
            return;
        }
        let Some(blob) = self.blobs.get(&id) else { return };
        let busy = match urgency {
            // Waiting is better than the store, and worse than another peer that has the chunk.
            Urgency::Demand => {
                let another = |(other, map): (&PeerId, &PeerMap)| *other != peer && map.has.has(chunk);
                full && (queued >= WAITING || blob.maps.iter().any(another))
            }
            Urgency::Background => backlog >= WAITING as usize,
        };
        push(if busy { &mut answers.busy } else { &mut answers.send }, chunk);
        let late = self.serving.is_slow(self.now);
        if (full || late) && !busy && urgency == Urgency::Demand {
            push(&mut answers.promise, chunk);
        }
        self.has_soon(peer, id, chunk);
    }

    fn decide_pending(&mut self, ask: Ask, id: BlobId, chunk: u32, answers: &mut Answers) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let bytes = blob.bytes(chunk);
        let Some(pending) = blob.table.pending_mut(chunk) else { return };
        let circle = match (pending.source, &blob.sharing.pinned, self.membership.get(ask.peer)) {
            // Except for an asker that was sent on: it waits for a host that waits for a holder already.
            (Source::Peer(_), Some(pinned), Some(peer)) if ask.hops > 0 => {
                let stripe = placement::stripe_of(chunk, self.settings.stripe);
                pinned.rank(stripe) >= pinned.rank_of(peer.key, stripe)
            }
            (Source::Peer(request), _, _) => self.requests.is_to(request, ask.peer),
            _ => false,
        };
        // A host that asks any that may have the chunk does not wait: it may be the one that is waited for.
        if circle || (ask.hops == 0 && ask.no_redirect) {
            // Each would wait for the other.
            push(&mut answers.missing, chunk);
            return;
        }
        if ask.urgency < pending.urgency {
            answers.promote.push(chunk);
        }
        let is_it = |waiter: &&mut Waiter| (waiter.peer, waiter.request) == (ask.peer, ask.request);
        if let Some(waiter) = pending.waiters.iter_mut().find(is_it) {
            waiter.urgency = waiter.urgency.min(ask.urgency);
        } else {
            if self.serving.is_loaded(bytes) && self.redirect(ask, id, chunk, false, answers) {
                return;
            }
            self.promise(ask, id, chunk);
        }
        push(&mut answers.promise, chunk);
    }

    fn decide_remote(&mut self, ask: Ask, id: BlobId, chunk: u32, answers: &mut Answers) {
        if self.membership.is_root() && self.redirect(ask, id, chunk, true, answers) {
            return;
        }
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        if ask.hops == 0 || (blob.sharing.pinned.is_some() && ask.hops == HOPS_TO_HOLDER) {
            push(&mut answers.missing, chunk);
            return;
        }
        blob.table.begin(chunk, Aim::Needed, ask.urgency, ask.hops - 1);
        self.promise(ask, id, chunk);
        push(&mut answers.promise, chunk);
        answers.obtain.push(chunk);
    }

    /// Notes that a peer waits for a chunk that is on its way to this host.
    fn promise(&mut self, ask: Ask, id: BlobId, chunk: u32) {
        let Ask { peer, request, urgency, hops, .. } = ask;
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let bytes = blob.bytes(chunk);
        let Some(pending) = blob.table.pending_mut(chunk) else { return };
        pending.waiters.push(Waiter { peer, request, urgency, redirected: hops == 0 });
        if self.serving.promise(peer, bytes) {
            self.set_promise_timer();
        }
        self.has_soon(peer, id, chunk);
    }

    /// Notes that a peer will have this chunk: others can be sent there.
    fn has_soon(&mut self, peer: PeerId, id: BlobId, chunk: u32) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        if let Some(record) = self.membership.get(peer) {
            blob.redirects.add(chunk, peer, record.role, self.now);
        }
    }

    /// Sends an asker of a chunk to another host that has it, or will have it, if there is one; the asker will have it
    /// next. `seed`: hosts that are known to have it count. `true` if nothing more is to be done.
    fn redirect(&mut self, ask: Ask, id: BlobId, chunk: u32, seed: bool, answers: &mut Answers) -> bool {
        let Some(blob) = self.blobs.get_mut(&id) else { return false };
        if !ask.may_be_redirected() {
            return false;
        }
        let (now, membership) = (self.now, &self.membership);
        let Some(role) = membership.get(ask.peer).map(|asker| asker.role) else { return false };
        let asker = (ask.peer, role);
        for seeded in [false, true] {
            if seeded {
                let has = blob.maps.iter().filter(|(_, map)| map.has.has(chunk)).map(|(peer, _)| *peer);
                let is_like = |peer: &PeerId| membership.get(*peer).is_some_and(|peer| peer.role == role);
                if !seed || !blob.redirects.seed(chunk, asker, has.filter(is_like)) {
                    return false;
                }
            }
            let usable = |peer: PeerId| membership.usable(peer, now).is_some();
            match blob.redirects.next(chunk, asker, ask.request, now, usable) {
                Redirection::None => {}
                Redirection::Repeated => return true,
                Redirection::Member => return false,
                Redirection::To(other) => {
                    let Some(key) = membership.key_of(other) else { continue };
                    add_run(&mut answers.named, chunk, key);
                    return true;
                }
            }
        }
        false
    }

    fn answer(&mut self, ask: Ask, id: BlobId, answers: Answers, actions: &mut Vec<Action>) {
        let Ask { peer, request, urgency, .. } = ask;
        let len = self.blobs.get(&id).map_or(0, |blob| blob.len);
        for chunks in answers.send {
            let transfer = Transfer::new(Some(request), id, chunks, urgency);
            self.serving.send(peer, transfer, len, self.now, actions);
        }
        actions.extend(answers.again.into_iter().map(|chunks| {
            let urgency = Urgency::Demand;
            Action::Serve { peer, request: Some(request), blob: id, chunks, urgency }
        }));
        let reject = |chunks, why, others| {
            let message = Message::Reject { request, chunks, why, others };
            Action::Send { peer, message }
        };
        let named = answers.named.into_iter();
        actions.extend(named.map(|(chunks, other)| reject(chunks, RejectReason::Busy, vec![other])));
        actions.extend(answers.busy.into_iter().map(|chunks| reject(chunks, RejectReason::Busy, Vec::new())));
        actions.extend(
            answers.missing.into_iter().map(|chunks| reject(chunks, RejectReason::Missing, Vec::new())),
        );
        let promise = |chunks| Action::Send { peer, message: Message::Pending { request, chunks } };
        actions.extend(answers.promise.into_iter().map(promise));
        self.promote(id, &answers.promote, actions);
        self.obtain(id, &answers.obtain, actions);
    }

    /// Handles the driver's report that chunks were sent, or were not.
    pub(super) fn on_served(
        &mut self,
        (peer, request): (PeerId, Option<RequestId>),
        id: BlobId,
        chunks: Chunks,
        outcome: Served,
        actions: &mut Vec<Action>,
    ) {
        let why = match outcome {
            Served::Well => None,
            Served::Missing => Some(RejectReason::Missing),
            Served::Unchecked => Some(RejectReason::Unchecked),
        };
        if why.is_some() {
            // A chunk that is only not checked yet is advertised again when it is.
            self.on_lost(id, chunks, actions);
        }
        let len = self.blobs.get(&id).map(|blob| blob.len);
        let sent = self.serving.on_sent(peer, request, (id, len), chunks, self.now);
        let Some((count, urgency)) = sent else { return };
        if request.is_none() && why.is_none() {
            self.serving.has_left(peer, id, chunks, self.now);
        }
        if let (Some(why), Some(request)) = (why, request) {
            let message = Message::Reject { request, chunks, why, others: Vec::new() };
            actions.push(Action::Send { peer, message });
        } else {
            self.counters.served += u64::from(count);
        }
        if urgency == Urgency::Background {
            if why.is_none() {
                self.was_sent_ahead(peer, id, chunks);
            }
            self.send_ahead(peer, actions);
        }
        self.serving.fill_background(peer, actions);
    }

    /// Notes that a peer does not wait for the rest of a request any more.
    pub(super) fn on_cancel(&mut self, peer: PeerId, request: RequestId) {
        if self.serving.cancel(peer, request) {
            self.stop_waiting(peer, Some(request));
        }
    }

    /// Removes a peer from the chunks that it waits for: those of one request, or all.
    pub(super) fn stop_waiting(&mut self, peer: PeerId, request: Option<RequestId>) {
        let is_it = |w: &Waiter| w.peer == peer && request.is_none_or(|request| w.request == request);
        for blob in self.blobs.values_mut() {
            for (chunk, pending) in blob.table.all_pending_mut() {
                let before = pending.waiters.len();
                pending.waiters.retain(|waiter| !is_it(waiter));
                let count = before - pending.waiters.len();
                if count > 0 {
                    blob.redirects.forget_of(chunk, peer); // it may come from a host that waits for this one
                    let bytes = Chunks::one(chunk).bytes(blob.len).len();
                    self.serving.end_promises(
                        peer,
                        exact(count, "fewer requests wait than 32 bits count"),
                        bytes,
                    );
                }
            }
        }
    }
}

/// Adds a chunk to a list of runs with the same receiver.
fn add_run(runs: &mut Vec<(Chunks, PeerKey)>, chunk: u32, to: PeerKey) {
    match runs.last_mut() {
        Some((run, other)) if *other == to && run.numbers().end == chunk => run.count += 1,
        _ => runs.push((Chunks::one(chunk), to)),
    }
}
