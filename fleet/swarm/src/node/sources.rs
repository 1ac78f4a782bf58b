//! The choice of a source: for chunks that disks want, that other hosts request, or that are prefetched.

use super::blob::{PeerMap, push};
use super::chunks::Aim;
use super::peers::Peer;
use super::pending::Source;
use super::requests::Request;
use super::timers::Timer;
use super::wants::Want;
use super::{DISK, Node, fallback};
use crate::event::{Action, BlobId, Chunks, PeerId, StoreFetchId, Urgency, WantId};
use crate::message::{Message, RejectReason, RequestId};
use crate::placement;
use std::collections::BTreeMap;

/// The most hosts that a request passes through. A tree of a million hosts has 20 levels.
pub(super) const HOPS: u8 = 24;

/// The number of chunks that are fetched from the store in one request.
const FETCHED: u32 = 16;

/// The hops of a request to a host that keeps a pinned blob: it may name other hosts that have the chunk, and fetches
/// it for none.
pub(super) const HOPS_TO_HOLDER: u8 = 1;

/// The source of a chunk.
enum Route {
    Ask {
        peer: PeerId,
        hops: u8,
    },
    /// A peer that may have the chunk: only for local chunks.
    Anybody(PeerId),
    Store,
    /// No source: nothing waits for the chunk, or it was to be prefetched and no peer is known to have it.
    Nowhere,
}

/// Chunks that go into one request.
struct Batch {
    peer: PeerId,
    chunks: Chunks,
    urgency: Urgency,
    hops: u8,
    no_redirect: bool,
}

impl Node {
    pub(super) fn on_want(
        &mut self,
        want: WantId,
        id: BlobId,
        chunks: Chunks,
        urgency: Urgency,
        actions: &mut Vec<Action>,
    ) {
        self.counters.wants += 1;
        let (now, after) = (self.now, self.fallback_after());
        let Some(blob) = self.blobs.get_mut(&id) else {
            self.counters.not_from_peers += u64::from(chunks.count);
            actions.push(Action::Answer { want, from_store: vec![chunks] });
            return;
        };
        let (mut waited, mut left_to_disk) = (0, Vec::new());
        let (mut new, mut promoted, mut again) = (Vec::new(), Vec::new(), Vec::new());
        for chunk in blob.cut(chunks).numbers() {
            if blob.table.is_local(chunk) {
                continue;
            }
            let bytes = blob.bytes(chunk);
            if blob.table.aim(chunk) == Some(Aim::Prefetch) {
                blob.table.need(chunk);
                self.prefetch.end(Aim::Prefetch, blob.reader, bytes);
            }
            let pending = if blob.table.is_remote(chunk) {
                new.push(chunk);
                if urgency == Urgency::Demand && !blob.queue.is_planned && blob.is_advertised(chunk) {
                    let account = self.prefetch.account(blob.reader);
                    let hit = account.is_some_and(|account| account.withheld_hit(bytes));
                    self.counters.resets += u64::from(hit);
                }
                blob.table.begin(chunk, Aim::Needed, urgency, HOPS)
            } else {
                let Some(pending) = blob.table.pending_mut(chunk) else { continue };
                if let Source::Disk { since } = pending.source {
                    if now.since(since) < after {
                        left_to_disk.push(chunk);
                        continue;
                    }
                    // The disk asks again, after a while: the store has not delivered it.
                    again.push(chunk);
                    pending.urgency = urgency.min(pending.urgency);
                }
                pending
            };
            pending.wants.push(want);
            waited += 1;
            if urgency < pending.urgency {
                promoted.push(chunk);
            }
        }
        self.timers.set(now + self.retransmit.for_want(), Timer::Want(want));
        self.wants.add(want, Want::new(id, urgency, now, waited, left_to_disk));
        self.promote(id, &promoted, actions);
        self.obtain(id, &new, actions);
        if !again.is_empty() {
            self.fall_back(id, &again, actions);
        }
        self.answer_want(want, actions);
        self.prefetch_all(id, actions);
    }

    /// Answers a want that waits for no more chunks.
    pub(super) fn answer_want(&mut self, want: WantId, actions: &mut Vec<Action>) {
        if let Some((answer, left_to_disk)) = self.wants.take_answer(want) {
            self.counters.not_from_peers += left_to_disk as u64;
            actions.push(answer);
        }
    }

    /// Promotes chunks that were on their way without urgency, because a read waits for them now.
    pub(super) fn promote(&mut self, id: BlobId, chunks: &[u32], actions: &mut Vec<Action>) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let mut asked: BTreeMap<RequestId, Vec<Chunks>> = BTreeMap::new();
        let mut fetched: Vec<StoreFetchId> = Vec::new();
        for chunk in chunks {
            let Some(pending) = blob.table.pending_mut(*chunk) else { continue };
            pending.urgency = Urgency::Demand;
            match pending.source {
                Source::Peer(request) => push(asked.entry(request).or_default(), *chunk),
                Source::Fetch(fetch) if !fetched.contains(&fetch) => fetched.push(fetch),
                _ => {}
            }
        }
        for (request, runs) in asked {
            self.promote_request(request, runs, actions);
        }
        for fetch in fetched {
            let Some(record) = self.fetches.promote(fetch, self.now) else { continue };
            let (blob, chunks, urgency) = (record.blob, record.chunks, record.urgency);
            actions.push(Action::Fetch { fetch, blob, chunks, urgency });
        }
    }

    /// Repeats a request with urgency, for the runs that reads wait for.
    fn promote_request(&mut self, request: RequestId, runs: Vec<Chunks>, actions: &mut Vec<Action>) {
        let now = self.now;
        let Some(record) = self.requests.get_mut(request) else { return };
        let (peer, blob, hops, no_redirect) = (record.peer, record.blob, record.hops, record.no_redirect);
        if self.membership.get(peer).is_some_and(|peer| peer.is_avoided(now)) {
            // A peer that was silent to other requests is not waited for.
            let failed = self.give_up_request(request, actions);
            self.obtain(blob, &failed, actions);
            return;
        }
        record.promote(now);
        self.timers.set(now + self.retransmit.for_first_sign(), Timer::Request(request));
        actions.extend(runs.into_iter().map(|chunks| {
            let urgency = Urgency::Demand;
            Action::Send { peer, message: Message::Ask { request, blob, chunks, urgency, hops, no_redirect } }
        }));
    }

    /// Decides on the source of each of these chunks, which ascend and are new or failed to come, and requests them.
    pub(super) fn obtain(&mut self, id: BlobId, chunks: &[u32], actions: &mut Vec<Action>) {
        let most = self.settings.stripe;
        let mut store = Vec::new();
        let mut batch: Option<Batch> = None;
        for &chunk in chunks {
            if let Some(full) = batch.take_if(|batch| batch.chunks.count >= most) {
                self.ask(id, &full, actions);
            }
            let last =
                batch.as_ref().filter(|batch| batch.chunks.numbers().end == chunk).map(|batch| batch.peer);
            let (peer, hops, anybody) = match self.route(id, chunk, last) {
                Route::Ask { peer, hops } => (peer, hops, false),
                Route::Anybody(peer) => (peer, 0, true),
                Route::Store => {
                    store.push(chunk);
                    continue;
                }
                Route::Nowhere => {
                    self.drop_prefetch(id, chunk);
                    continue;
                }
            };
            let pending = self.blobs.get(&id).and_then(|blob| blob.table.pending(chunk));
            let Some(pending) = pending else { continue };
            let urgency = pending.urgency;
            let no_redirect = anybody || (pending.search.no_redirect() && hops > 0);
            match &mut batch {
                Some(batch)
                    if last == Some(peer)
                        && (batch.urgency, batch.hops, batch.no_redirect) == (urgency, hops, no_redirect) =>
                {
                    batch.chunks.count += 1;
                }
                _ => {
                    let new = Batch { peer, chunks: Chunks::one(chunk), urgency, hops, no_redirect };
                    if let Some(done) = batch.replace(new) {
                        self.ask(id, &done, actions);
                    }
                }
            }
        }
        if let Some(done) = batch {
            self.ask(id, &done, actions);
        }
        if !store.is_empty() {
            self.leave_to_store(id, &store, actions);
        }
    }

    /// The source of one chunk. `last` is the one that was chosen for the chunk before: of equal sources it is taken
    /// again.
    fn route(&mut self, id: BlobId, chunk: u32, last: Option<PeerId>) -> Route {
        let suspect = self.store_is_suspect();
        let (now, membership) = (self.now, &self.membership);
        let Some(blob) = self.blobs.get_mut(&id) else { return Route::Nowhere };
        let is_warm = blob.table.aim(chunk) == Some(Aim::Warm);
        let Some(pending) = blob.table.pending_mut(chunk) else { return Route::Nowhere };
        let is_unclaimed = pending.is_idle() && !is_warm;
        if suspect && !pending.is_idle() {
            pending.search.fall_back();
        }
        let over = pending.search.is_over();
        if over && !pending.search.is_probe() {
            return if is_unclaimed { Route::Nowhere } else { Route::Store };
        }
        let named = pending.search.next_named(|peer| membership.usable(peer, now).is_some());
        if let Some(peer) = named {
            return Route::Ask { peer, hops: 0 };
        }
        let Some(pending) = blob.table.pending(chunk) else { return Route::Nowhere };
        let untried = |peer: PeerId| membership.usable(peer, now).filter(|_| !pending.search.has_tried(peer));
        let best = least_loaded(&blob.maps, chunk, last, |peer| untried(peer).map(Peer::load));
        if best.is_none() && pending.search.asks_any() && !over {
            let place = placement::stripe_of(chunk, self.settings.stripe);
            let usable = |peer: PeerId| untried(peer).is_some();
            if let Some(peer) = fallback::next(&blob.sharing, membership, last, place, usable) {
                return Route::Anybody(peer);
            }
        }
        let Some(pending) = blob.table.pending_mut(chunk) else { return Route::Nowhere };
        // No other peer has it: the peer that has promised it is waited for again.
        if best.is_none()
            && let Some(peer) = pending.search.end_probe()
            && membership.usable(peer, now).is_some()
        {
            return Route::Ask { peer, hops: pending.hops };
        }
        if best.is_none() && is_unclaimed {
            return Route::Nowhere;
        }
        let (hops, search) = (pending.hops, &pending.search);
        let usable = |peer: PeerId| !search.has_tried(peer) && membership.usable(peer, now).is_some();
        let ask_upstream = hops > 0;
        let upstream =
            ask_upstream.then(|| blob.sharing.upstream(chunk, &self.settings, membership, usable)).flatten();
        // A peer that has the chunk is asked for local chunks only, unless it is the upstream, which may name others if
        // many ask.
        if let Some(peer) = best.filter(|best| upstream != Some(*best)) {
            return Route::Ask { peer, hops: 0 };
        }
        match upstream {
            Some(peer) if blob.sharing.pinned.is_some() => Route::Ask { peer, hops: HOPS_TO_HOLDER },
            Some(peer) => Route::Ask { peer, hops },
            None => Route::Store,
        }
    }

    fn ask(&mut self, id: BlobId, batch: &Batch, actions: &mut Vec<Action>) {
        let Batch { peer, chunks, urgency, hops, no_redirect } = *batch;
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let last = blob.table.pending_of(chunks).last();
        let probe_count = last.map_or(0, |(_, pending)| pending.search.probe_count());
        let mut record = Request::new(peer, id, chunks, urgency, self.now);
        (record.hops, record.no_redirect, record.probe_count) = (hops, no_redirect, probe_count);
        let request = self.requests.add(record);
        for (_, pending) in blob.table.pending_of_mut(chunks) {
            pending.source = Source::Peer(request);
            pending.search.on_requested();
        }
        if let Some(record) = self.membership.get_mut(peer) {
            record.was_requested(chunks.count);
        }
        self.timers.set(self.now + self.retransmit.for_request(urgency, false), Timer::Request(request));
        let message = Message::Ask { request, blob: id, chunks, urgency, hops, no_redirect };
        actions.push(Action::Send { peer, message });
    }

    /// Leaves chunks that no other host delivers to the store. If disks wait for them, and for nothing beside them, the
    /// disks fetch them themselves. Otherwise the agent does: a disk that waits for other chunks as well would begin
    /// only when those are local.
    pub(super) fn leave_to_store(&mut self, id: BlobId, chunks: &[u32], actions: &mut Vec<Action>) {
        let Some(blob) = self.blobs.get(&id) else { return };
        let mut counts: BTreeMap<WantId, u32> = BTreeMap::new();
        let mut alone = true;
        for pending in chunks.iter().filter_map(|chunk| blob.table.pending(*chunk)) {
            alone &= pending.waiters.is_empty() && !pending.wants.is_empty();
            pending.wants.iter().for_each(|want| *counts.entry(*want).or_default() += 1);
        }
        let waits_so = |(want, count): (&WantId, &u32)| {
            self.wants.get(*want).is_some_and(|want| want.remaining() == *count)
        };
        if !blob.fetchable || alone && counts.iter().all(waits_so) {
            self.leave_to_disks(id, chunks, actions);
        } else {
            self.fetch(id, chunks, actions);
        }
    }

    /// Leaves chunks to the disks that want them; other hosts that wait for them wait for those disks, or in vain.
    pub(super) fn leave_to_disks(&mut self, id: BlobId, chunks: &[u32], actions: &mut Vec<Action>) {
        let (now, longest) = (self.now, self.retransmit.store_max());
        let (mut complete, mut watched) = (Vec::new(), Vec::new());
        for &chunk in chunks {
            let Some(blob) = self.blobs.get_mut(&id) else { return };
            let (bytes, reader) = (blob.bytes(chunk), blob.reader);
            let Some(pending) = blob.table.pending_mut(chunk) else { continue };
            if pending.wants.is_empty() {
                self.give_up(id, chunk, RejectReason::Failed, actions);
                continue;
            }
            pending.source = Source::Disk { since: now };
            if pending.urgency == Urgency::Demand {
                self.fetches.watch_disk(id, chunk, now, longest);
            }
            let wants = std::mem::take(&mut pending.wants);
            if let Some(aim) = blob.table.need(chunk) {
                self.prefetch.end(aim, reader, bytes);
            }
            complete.extend(wants.into_iter().filter(|want| self.wants.leave_to_disk(*want, chunk)));
            push(&mut watched, chunk);
        }
        let late = now + self.fallback_after();
        for run in watched {
            self.timers.set(now + DISK, Timer::Disk(id, run));
            self.timers.set(late, Timer::Disk(id, run));
        }
        complete.into_iter().for_each(|want| self.answer_want(want, actions));
    }

    fn fetch(&mut self, id: BlobId, chunks: &[u32], actions: &mut Vec<Action>) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let mut runs: Vec<(Chunks, Urgency)> = Vec::new();
        for &chunk in chunks {
            let Some(pending) = blob.table.pending(chunk) else { continue };
            match runs.last_mut() {
                Some((run, urgency))
                    if run.numbers().end == chunk && run.count < FETCHED && *urgency == pending.urgency =>
                {
                    run.count += 1;
                }
                _ => runs.push((Chunks::one(chunk), pending.urgency)),
            }
        }
        for (chunks, urgency) in runs {
            let fetch = self.fetches.start(id, chunks, urgency, self.now);
            for (_, pending) in blob.table.pending_of_mut(chunks) {
                pending.source = Source::Fetch(fetch);
            }
            actions.push(Action::Fetch { fetch, blob: id, chunks, urgency });
        }
    }
}

/// Of the peers that advertised a chunk and can be asked, the one with the least load, or the `last`.
fn least_loaded(
    maps: &BTreeMap<PeerId, PeerMap>,
    chunk: u32,
    last: Option<PeerId>,
    load: impl Fn(PeerId) -> Option<(u32, u32)>,
) -> Option<PeerId> {
    let mut best: Option<((u32, u32), PeerId)> = None;
    for (peer, _) in maps.iter().filter(|(_, map)| map.has.has(chunk)) {
        let Some(load) = load(*peer) else { continue };
        if last == Some(*peer) {
            return last;
        }
        if best.is_none_or(|(least, _)| load < least) {
            best = Some((load, *peer));
        }
    }
    best.map(|(_, peer)| peer)
}
