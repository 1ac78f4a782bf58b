//! Chunks that come, chunks that do not, and the hosts that are told.

use super::chunks::Aim;
use super::fetches::{Fetch, Timing};
use super::pending::{Finding, Source, Waiter};
use super::requests::{Late, PromiseEffect, Released, Sample};
use super::serving::Transfer;
use super::timeouts::LOOK_AGAIN;
use super::timers::Timer;
use super::{DISK, Node, blob::push};
use crate::Time;
use crate::event::{Action, BlobId, Came, Chunks, Offence, PeerId, PeerKey, StoreFetchId, Urgency, WantId};
use crate::message::{Message, RejectReason, RequestId};
use headstart_block::exact;
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of named hosts that are noted.
const NAMED: usize = 4;

/// The reason why chunks came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// A peer answers this request: it needs no cancellation of the rest.
    Answer(RequestId),
    /// The agent or a disk has fetched them from the store.
    Store,
    /// The request for them had been given up. If nothing waits for them any more, they may never be read.
    Delay,
    /// A peer sent them without a request.
    Push,
}

impl Node {
    /// Makes chunks local, however they came. Returns the number of new chunks, and the number of those that came only
    /// because they were advertised or pushed.
    pub(super) fn arrived(
        &mut self,
        id: BlobId,
        chunks: Chunks,
        by: By,
        actions: &mut Vec<Action>,
    ) -> (u64, u64) {
        let Some(blob) = self.blobs.get(&id) else { return (0, 0) };
        let mut unmatched = 0;
        let (mut ready, mut broken) = (Vec::new(), Vec::new());
        let (mut complete, mut runs): (Vec<WantId>, Vec<Chunks>) = Default::default();
        for chunk in blob.cut(chunks).numbers() {
            let Some(blob) = self.blobs.get_mut(&id) else { return (0, 0) };
            if blob.table.is_local(chunk) {
                self.counters.duplicate += 1;
                continue;
            }
            push(&mut runs, chunk);
            let (bytes, reader) = (blob.bytes(chunk), blob.reader);
            self.fetches.chunk_came(id, chunk);
            let (mut demanded, mut ahead) = (false, matches!(by, By::Delay | By::Push));
            if let Some((aim, pending)) = blob.table.end(chunk) {
                for want in &pending.wants {
                    let Some((urgency, is_complete)) = self.wants.chunk_came(*want) else { continue };
                    demanded |= urgency == Urgency::Demand;
                    complete.extend(is_complete.then_some(*want));
                }
                ahead = aim == Aim::Prefetch || by == By::Push && pending.wants.is_empty();
                self.prefetch.end(aim, reader, bytes);
                for waiter in pending.waiters {
                    self.serving.end_promises(waiter.peer, 1, bytes);
                    ready.push((waiter, chunk));
                }
                if let Source::Peer(request) = pending.source {
                    match pending.search.finding() {
                        Finding::Usual => {}
                        // The next chunk is requested from other hosts at once.
                        Finding::Fallback => self.fetches.store_failed(self.now),
                        Finding::BrokenPromise(peer, since) => broken.push((peer, since)),
                    }
                    self.release(request, 1, by != By::Answer(request), actions);
                }
            }
            let Some(blob) = self.blobs.get_mut(&id) else { return (0, 0) };
            unmatched += u64::from(ahead);
            blob.table.came(chunk, ahead && !demanded);
            let account = self.prefetch.account(reader);
            if demanded {
                blob.read(chunk, account);
            } else if ahead && let Some(account) = account {
                account.add_unread(bytes);
            }
        }
        self.hand_over(id, ready, actions);
        complete.into_iter().for_each(|want| self.answer_want(want, actions));
        let new = runs.iter().map(|run| u64::from(run.count)).sum();
        self.note(id, &runs);
        self.prefetch(id, actions);
        broken.into_iter().for_each(|(peer, since)| self.blame(peer, since, actions));
        (new, unmatched)
    }

    /// Sends chunks that have come to the peers that waited for them: the first chunk to all, then the second, and so
    /// on, because each of them may have others waiting.
    fn hand_over(&mut self, id: BlobId, mut ready: Vec<(Waiter, u32)>, actions: &mut Vec<Action>) {
        ready.sort_by_key(|(to, chunk)| (to.urgency, *chunk, to.peer, to.request));
        let len = self.blobs.get(&id).map_or(0, |blob| blob.len);
        for (to, chunk) in ready {
            let transfer = Transfer::new(Some(to.request), id, Chunks::one(chunk), to.urgency);
            self.serving.send(to.peer, transfer, len, self.now, actions);
        }
    }

    /// Notes that a disk has fetched these chunks from the store.
    pub(super) fn on_local(&mut self, id: BlobId, chunks: Chunks, actions: &mut Vec<Action>) {
        if let Some(since) = self.fetches.disk_answered(id, chunks) {
            self.retransmit.record_store(since, self.now);
        }
        self.counters.from_store += self.arrived(id, chunks, By::Store, actions).0;
    }

    /// Learns from a span that a peer's answer shows.
    fn learn(&mut self, sample: Option<Sample>) {
        match sample {
            Some(Sample::FirstSign(sent_at)) => self.retransmit.record_first_sign(sent_at, self.now),
            Some(Sample::Bytes(promised_at)) => self.retransmit.record_bytes(promised_at, self.now),
            None => {}
        }
    }

    /// Releases `count` chunks of a request, which are not waited for any more: the request is over when none is left,
    /// and is cancelled then if its peer has not just answered.
    fn release(&mut self, request: RequestId, count: u32, cancel: bool, actions: &mut Vec<Action>) {
        let Some(Released { peer, over }) = self.requests.release(request, count) else { return };
        if let Some(peer) = self.membership.get_mut(peer) {
            peer.was_released(count);
        }
        if !over {
            self.demote(request);
        } else if cancel {
            actions.push(Action::Send { peer, message: Message::Cancel { request } });
        }
    }

    /// Handles bytes that have come from a peer.
    pub(super) fn on_came(
        &mut self,
        peer: PeerId,
        request: RequestId,
        chunks: Chunks,
        outcome: Came,
        actions: &mut Vec<Action>,
    ) {
        let now = self.now;
        if let Some(record) = self.membership.get_mut(peer) {
            record.last_bytes_at = now;
        }
        if outcome == Came::Corrupt {
            self.counters.corrupt += u64::from(chunks.count);
            self.drop_peer(peer, Offence::Corrupt, actions);
            return;
        }
        let in_turn = self
            .requests
            .get(request)
            .is_some_and(|record| record.is_promised() && self.asks_in_turn(record));
        let Some(record) = self.requests.of(request, peer) else {
            let late = self.requests.late(request, peer);
            if let (Some(Late { blob, waiting_since, .. }), Came::Kept) = (late, outcome) {
                self.retransmit.record_bytes(waiting_since, now);
                self.overtake(blob, chunks);
                self.counters.prefetched += self.arrived(blob, chunks, By::Delay, actions).1;
            }
            return;
        };
        let (blob, urgency, sent_at) = (record.blob, record.urgency, record.sent_at);
        if outcome == Came::Failed {
            self.could_not_keep(blob, request, chunks, actions);
            return;
        }
        let came = chunks.count.min(record.chunks.count);
        let sample = record.on_bytes(now);
        self.learn(sample);
        let is_demand = urgency == Urgency::Demand;
        let late = is_demand && !in_turn && now.since(sent_at) > self.retransmit.useful_limit();
        if let Some(record) = self.membership.get_mut(peer) {
            if late {
                record.was_late(sent_at, now);
            } else {
                record.was_good(now);
            }
        }
        let (_, unmatched) = self.arrived(blob, chunks, By::Answer(request), actions);
        let wanted = u64::from(came).saturating_sub(unmatched);
        self.counters.prefetched += unmatched;
        match urgency {
            Urgency::Demand => self.counters.on_demand += wanted,
            Urgency::Background => self.counters.in_background += wanted,
        }
    }

    /// Lowers the urgency of a request if the chunks that reads waited for have come: the rest comes when it is its
    /// turn, as if no read had ever waited.
    fn demote(&mut self, request: RequestId) {
        let record = self.requests.get_mut(request);
        let Some(record) = record.filter(|record| record.urgency == Urgency::Demand) else { return };
        let Some(blob) = self.blobs.get(&record.blob) else { return };
        let mut rest = blob.table.pending_of(record.chunks).map(|(_, pending)| pending);
        if !rest.any(|pending| pending.is_of(request) && pending.urgency == Urgency::Demand) {
            record.demote();
        }
    }

    /// Handles chunks that this host could not keep: the disks that want them fetch them from the store, by a path that
    /// works without keeping them.
    fn could_not_keep(&mut self, id: BlobId, request: RequestId, chunks: Chunks, actions: &mut Vec<Action>) {
        let failed = self.detach(id, request, chunks, None, actions);
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let fetchable = std::mem::replace(&mut blob.fetchable, false);
        self.leave_to_disks(id, &failed, actions);
        if let Some(blob) = self.blobs.get_mut(&id) {
            blob.fetchable = fetchable;
        }
    }

    /// Handles chunks that a peer has sent without a request.
    pub(super) fn on_pushed(&mut self, peer: PeerId, id: BlobId, chunks: Chunks, actions: &mut Vec<Action>) {
        if self.membership.get(peer).is_none() {
            return;
        }
        self.overtake(id, chunks);
        let (new, _) = self.arrived(id, chunks, By::Push, actions);
        self.counters.prefetched += new;
        if new > 0
            && let Some(record) = self.membership.get_mut(peer)
        {
            record.last_bytes_at = self.now;
        }
    }

    /// Notes that another host delivers chunks that are being fetched from the store.
    fn overtake(&mut self, id: BlobId, chunks: Chunks) {
        let Some(blob) = self.blobs.get(&id) else { return };
        for (_, pending) in blob.table.pending_of(blob.cut(chunks)) {
            if let Source::Fetch(fetch) = pending.source {
                self.fetches.overtake(fetch);
            }
        }
    }

    /// Handles the end of a fetch of the agent.
    pub(super) fn on_fetched(&mut self, fetch: StoreFetchId, ok: bool, actions: &mut Vec<Action>) {
        let Some(record) = self.fetches.finish(fetch, ok, self.now) else { return };
        let Fetch { blob: id, chunks, waiting_since, urgency, timing } = record;
        if ok {
            if urgency == Urgency::Demand && timing == Timing::Timed {
                self.retransmit.record_store(waiting_since, self.now);
            }
            let before = self.counters.duplicate;
            self.counters.from_store += self.arrived(id, chunks, By::Store, actions).0;
            // Chunks that the driver has reported before are no duplicates.
            self.counters.duplicate = before;
            return;
        }
        let Some(blob) = self.blobs.get(&id) else { return };
        let failed = blob.table.pending_of(chunks);
        let failed = failed.filter(|(_, pending)| pending.source == Source::Fetch(fetch));
        let failed: Vec<u32> = failed.map(|(chunk, _)| chunk).collect();
        self.leave_to_disks(id, &failed, actions);
    }

    /// Handles a peer's promise of chunks.
    pub(super) fn on_promise(
        &mut self,
        peer: PeerId,
        request: RequestId,
        chunks: Chunks,
        actions: &mut Vec<Action>,
    ) {
        let (now, kept) = (self.now, self.retransmit.promises_kept());
        let Some(record) = self.requests.of(request, peer) else { return };
        if chunks.count == 0 {
            return;
        }
        let id = record.blob;
        let (sample, effect) = record.on_promise(now, kept);
        self.learn(sample);
        // A promise is not passed on at once: it would go round without end if hosts did wait for each other.
        if let PromiseEffect::Renewed { last_activity_at } = effect
            && now.since(last_activity_at) >= self.retransmit.promise_interval() / 2
        {
            self.repeat_promises(id, chunks, |source| source == Source::Peer(request), actions);
        }
    }

    /// Tells the hosts that wait for chunks with such a source that these are on their way.
    fn repeat_promises(
        &mut self,
        id: BlobId,
        chunks: Chunks,
        fits: impl Fn(Source) -> bool,
        actions: &mut Vec<Action>,
    ) {
        let Some(blob) = self.blobs.get(&id) else { return };
        let mut told: BTreeMap<(PeerId, RequestId), Chunks> = BTreeMap::new();
        for (chunk, pending) in blob.table.pending_of(chunks).filter(|(_, pending)| fits(pending.source)) {
            for waiter in &pending.waiters {
                let run = told.entry((waiter.peer, waiter.request)).or_insert(Chunks::one(chunk));
                run.count = chunk - run.first + 1;
            }
        }
        actions.extend(told.into_iter().map(|((peer, request), chunks)| {
            let message = Message::Pending { request, chunks };
            Action::Send { peer, message }
        }));
    }

    /// Runs the timer of promises: repeats those of chunks that are still fetched for other hosts.
    pub(super) fn promises_due(&mut self, actions: &mut Vec<Action>) {
        self.serving.on_alarm();
        let fetched = |source| matches!(source, Source::Fetch(_) | Source::Disk { .. });
        let ids: Vec<BlobId> = self.blobs.keys().copied().collect();
        let mut waited = false;
        for id in ids {
            let all = Chunks { first: 0, count: u32::MAX };
            self.repeat_promises(id, all, fetched, actions);
            let blob = self.blobs.get(&id);
            waited |= blob.is_some_and(|b| b.table.all_pending().any(|(_, p)| !p.waiters.is_empty()));
        }
        if waited && self.serving.set_alarm() {
            self.set_promise_timer();
        }
    }

    /// Sets the timer of promises.
    pub(super) fn set_promise_timer(&mut self) {
        self.timers.set(self.now + self.retransmit.promise_interval(), Timer::Promises);
    }

    /// Handles a peer's rejection of chunks.
    pub(super) fn on_rejection(
        &mut self,
        (peer, request): (PeerId, RequestId),
        chunks: Chunks,
        why: RejectReason,
        others: &[PeerKey],
        actions: &mut Vec<Action>,
    ) {
        let Some(record) = self.requests.of(request, peer) else { return };
        let (id, hops) = (record.blob, record.hops);
        let sample = record.on_rejection();
        self.learn(sample);
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let named = others.iter().take(NAMED).filter_map(|key| blob.sharing.sharer(*key));
        let is_other = |named: &PeerId| *named != peer && self.membership.get(*named).is_some();
        let named: Vec<PeerId> = named.filter(is_other).collect();
        let mut lied = false;
        if why != RejectReason::Busy
            && let Some(map) = blob.maps.get_mut(&peer)
        {
            let cut = Chunks { first: chunks.first.min(blob.chunks), count: chunks.count };
            lied = why == RejectReason::Missing
                && hops == 0
                && cut.numbers().take(64).any(|chunk| map.has.has(chunk));
            map.has.clear(cut);
        }
        // A peer that names others is to be asked again if they are strangers, and to name none.
        let failed = self.detach(id, request, chunks, others.is_empty().then_some(peer), actions);
        if !others.is_empty()
            && let Some(blob) = self.blobs.get_mut(&id)
        {
            for chunk in &failed {
                if let Some(pending) = blob.table.pending_mut(*chunk) {
                    pending.search.on_redirected(peer, &named);
                }
            }
        }
        if lied && self.membership.get_mut(peer).is_some_and(super::peers::Peer::lied) {
            self.drop_peer(peer, Offence::Lies, actions);
        }
        self.obtain(id, &failed, actions);
        self.prefetch(id, actions);
    }

    /// Removes chunks from a request, because they will not come by it; `tried` is the peer that is not to be asked
    /// again. Returns these chunks.
    pub(super) fn detach(
        &mut self,
        id: BlobId,
        request: RequestId,
        chunks: Chunks,
        tried: Option<PeerId>,
        actions: &mut Vec<Action>,
    ) -> Vec<u32> {
        let Some(blob) = self.blobs.get_mut(&id) else { return Vec::new() };
        let cut = blob.cut(chunks);
        let (mut failed, mut let_go) = (Vec::new(), Vec::new());
        for (chunk, pending) in blob.table.pending_of_mut(cut) {
            if !pending.is_of(request) {
                continue;
            }
            pending.source = Source::Undecided;
            failed.push(chunk);
            if let Some(peer) = tried {
                pending.search.on_failed(peer);
                let redirected = pending.waiters.extract_if(.., |waiter| waiter.redirected);
                let_go.extend(redirected.map(|waiter| (waiter, chunk)));
            }
        }
        for (waiter, chunk) in let_go {
            // It waits because another host sent it here.
            let bytes = self.blobs.get(&id).map_or(0, |blob| blob.bytes(chunk));
            self.end_waiting(waiter, (chunk, bytes), RejectReason::Missing, actions);
        }
        self.release(request, exact(failed.len(), "chunks have numbers of 32 bits"), false, actions);
        failed
    }

    /// Tells a peer that waits for a chunk of `bytes` bytes that it does not come.
    fn end_waiting(
        &mut self,
        waiter: Waiter,
        (chunk, bytes): (u32, u64),
        why: RejectReason,
        actions: &mut Vec<Action>,
    ) {
        self.serving.end_promises(waiter.peer, 1, bytes);
        let (request, chunks, others) = (waiter.request, Chunks::one(chunk), Vec::new());
        let message = Message::Reject { request, chunks, why, others };
        actions.push(Action::Send { peer: waiter.peer, message });
    }

    /// Handles a request whose peer is gone.
    pub(super) fn request_lost(&mut self, request: RequestId, actions: &mut Vec<Action>) {
        let Some(record) = self.requests.get(request) else { return };
        let (peer, id, chunks) = (record.peer, record.blob, record.chunks);
        let failed = self.detach(id, request, chunks, Some(peer), actions);
        self.requests.remove(request);
        self.obtain(id, &failed, actions);
    }

    /// Gives up a chunk that no host delivers: other hosts that wait for it are told so. Disks must have been told
    /// before.
    pub(super) fn give_up(&mut self, id: BlobId, chunk: u32, why: RejectReason, actions: &mut Vec<Action>) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let (bytes, reader) = (blob.bytes(chunk), blob.reader);
        let Some((aim, pending)) = blob.table.end(chunk) else { return };
        self.prefetch.end(aim, reader, bytes);
        for waiter in pending.waiters {
            self.end_waiting(waiter, (chunk, bytes), why, actions);
        }
    }

    pub(super) fn drop_prefetch(&mut self, id: BlobId, chunk: u32) {
        // Nothing waits for it: no host is told.
        self.give_up(id, chunk, RejectReason::Failed, &mut Vec::new());
    }

    /// Runs the timer of a want: answers one that has waited as long as any may; the disk does the rest.
    pub(super) fn want_due(&mut self, want: WantId, actions: &mut Vec<Action>) {
        let Some(record) = self.wants.get(want) else { return };
        let (id, urgency, wanted_at) = (record.blob, record.urgency, record.wanted_at);
        let due = wanted_at + self.retransmit.for_want().max(self.store_takes(urgency));
        if due > self.now {
            self.timers.set(due.min(self.now + LOOK_AGAIN), Timer::Want(want));
            return;
        }
        // Chunks that no read waits for come behind all others. While bytes come from the peers that were asked, a
        // fetch from the store over the same link would only slow these down.
        let gap = self.retransmit.for_request(Urgency::Background, false);
        let may_wait = urgency == Urgency::Background
            && self.now.since(wanted_at) < self.settings.longest()
            && self.comes_later(id, want, gap);
        if may_wait {
            self.timers.set(self.now + gap, Timer::Want(want));
            return;
        }
        let left = self.unlink(id, want);
        self.left_to_disk(id, &left, actions);
        self.wants.leave_rest_to_disk(want, left);
        self.answer_want(want, actions);
    }

    /// `true` if all chunks that a want waits for were requested from peers that have sent something lately.
    fn comes_later(&self, id: BlobId, want: WantId, lately: Duration) -> bool {
        let Some(blob) = self.blobs.get(&id) else { return false };
        let is_active = |source| match source {
            Source::Peer(request) => {
                let record = self.requests.get(request);
                let peer = record.and_then(|record| self.membership.get(record.peer));
                peer.is_some_and(|peer| self.now.since(peer.last_bytes_at) < lately)
            }
            Source::Undecided | Source::Fetch(_) | Source::Disk { .. } => false,
        };
        let mut waited = blob.table.all_pending().filter(|(_, pending)| pending.wants.contains(&want));
        waited.all(|(_, pending)| is_active(pending.source))
    }

    /// Removes a want from the chunks that it waits for. Chunks that are on their way come anyway.
    fn unlink(&mut self, id: BlobId, want: WantId) -> Vec<u32> {
        let Some(blob) = self.blobs.get_mut(&id) else { return Vec::new() };
        let mut left = Vec::new();
        for (chunk, pending) in blob.table.all_pending_mut() {
            let before = pending.wants.len();
            pending.wants.retain(|other| *other != want);
            if pending.wants.len() < before {
                left.push(chunk);
            }
        }
        left
    }

    /// Notes that a disk fetches chunks from the store itself that were requested from peers, which need not send them
    /// any more.
    fn left_to_disk(&mut self, id: BlobId, chunks: &[u32], actions: &mut Vec<Action>) {
        let (now, enough) = (self.now, self.retransmit.for_request(Urgency::Demand, true));
        let mut broken: BTreeMap<PeerId, Time> = BTreeMap::new();
        for &chunk in chunks {
            let Some(blob) = self.blobs.get_mut(&id) else { return };
            let (bytes, reader) = (blob.bytes(chunk), blob.reader);
            let pending = blob.table.pending_mut(chunk).filter(|pending| pending.wants.is_empty());
            let Some(pending) = pending else { continue };
            let Source::Peer(request) = pending.source else { continue };
            pending.source = Source::Disk { since: now };
            if let Some(aim) = blob.table.need(chunk) {
                self.prefetch.end(aim, reader, bytes);
            }
            self.timers.set(now + DISK, Timer::Disk(id, Chunks::one(chunk)));
            let Some(record) = self.requests.get(request) else { continue };
            let (peer, waiting_since) = (record.peer, record.waiting_since());
            // A peer that was to send chunks that it has, promised them, and did not send them for this long, would be
            // asked first again.
            let is_late = now.since(record.last_progress_at()) >= enough;
            if record.is_promised() && self.is_for_held_chunks(record) && is_late {
                broken.insert(peer, waiting_since);
            }
            self.release(request, 1, true, actions);
            if self.requests.get(request).is_none() {
                self.requests.remember_late(Late { request, peer, blob: id, waiting_since });
            }
        }
        broken.into_iter().for_each(|(peer, since)| self.blame(peer, since, actions));
    }

    /// Handles a want that needs no answer.
    pub(super) fn on_forget(&mut self, want: WantId) {
        if let Some(blob) = self.wants.forget(want) {
            self.unlink(blob, want);
        }
    }

    /// Runs the timer of chunks for which a disk has had its time: those that it did not fetch are fetched for the
    /// waiting hosts, or forgotten.
    pub(super) fn disk_due(&mut self, id: BlobId, chunks: Chunks, actions: &mut Vec<Action>) {
        let (now, after) = (self.now, self.fallback_after());
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let (mut waited, mut idle, mut late) = (Vec::new(), Vec::new(), Vec::new());
        for (chunk, pending) in blob.table.pending_of_mut(chunks) {
            let Source::Disk { since } = pending.source else { continue };
            if now.since(since) < DISK {
                if now.since(since) >= after {
                    late.push(chunk);
                }
            } else if pending.waiters.is_empty() {
                idle.push(chunk);
            } else {
                pending.source = Source::Undecided;
                waited.push(chunk);
            }
        }
        idle.into_iter().for_each(|chunk| self.give_up(id, chunk, RejectReason::Failed, actions));
        if !late.is_empty() {
            self.fall_back(id, &late, actions);
        }
        if !waited.is_empty() {
            self.leave_to_store(id, &waited, actions);
        }
    }
}
