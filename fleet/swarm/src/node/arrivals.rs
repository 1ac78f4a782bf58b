//! Chunks that come, chunks that do not, and the hosts that are told.

use super::blob::{Aim, How, State, Waiting, push};
use super::timeouts::LOOK_AGAIN;
use super::{DISK, Fetch, Node, Timer, fallback};
use crate::Time;
use crate::event::{Action, BlobId, Came, Chunks, FetchId, Offence, PeerId, PeerKey, Urgency, WantId};
use crate::message::{Message, RequestId, Why};
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of named hosts that are noted.
const NAMED: usize = 4;

/// The reason why chunks came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// This host requested them, or fetched them.
    Order,
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
        let (mut settled, mut runs): (Vec<WantId>, Vec<Chunks>) = Default::default();
        for chunk in blob.cut(chunks).numbers() {
            let Some(blob) = self.blobs.get_mut(&id) else { return (0, 0) };
            if blob.is_here(chunk) {
                self.counters.duplicate += 1;
                continue;
            }
            push(&mut runs, chunk);
            let bytes = blob.bytes(chunk);
            self.probe.take_if(|probe| (probe.0, probe.1) == (id, chunk));
            let (mut demanded, mut ahead) = (false, by != By::Order);
            let coming = blob.coming.remove(&chunk);
            if let Some(coming) = coming {
                for want in &coming.wants {
                    let Some(known) = self.wants.get_mut(want) else { continue };
                    known.left -= 1;
                    demanded |= known.urgency == Urgency::Demand;
                    if known.left == 0 {
                        settled.push(*want);
                    }
                }
                ahead = by == By::Push && coming.wants.is_empty();
                match coming.aim {
                    Aim::Needed => {}
                    Aim::Warm => self.prefetching = self.prefetching.saturating_sub(bytes),
                    Aim::Prefetch => {
                        ahead = true;
                        self.accounts.settled(blob.reader, bytes);
                        self.prefetching = self.prefetching.saturating_sub(bytes);
                    }
                }
                for waiting in coming.asks {
                    if let Some(peer) = self.peers.get_mut(&waiting.peer) {
                        peer.waiting -= 1;
                    }
                    self.uplink.promised_less(bytes);
                    ready.push((waiting, chunk));
                }
                if let How::Asked(request) = coming.how {
                    if let Some((peer, since)) = coming.back {
                        broken.push((peer, since));
                    } else if coming.resort {
                        // The next chunk is requested from other hosts at once.
                        self.store_failed = Some(self.now);
                    }
                    self.release(request, 1, actions);
                }
            }
            let Some(blob) = self.blobs.get_mut(&id) else { return (0, 0) };
            unmatched += u64::from(ahead);
            blob.set_state(chunk, if ahead { State::Local } else { State::Kept });
            if demanded {
                blob.set_state(chunk, State::Kept);
                blob.read(chunk, &mut self.accounts);
            } else if ahead && let Some(throttle) = self.accounts.of(blob.reader) {
                throttle.unread(bytes);
            }
        }
        self.hand_over(id, ready, actions);
        settled.into_iter().for_each(|want| self.settle(want, actions));
        let new = runs.iter().map(|run| u64::from(run.count)).sum();
        self.note(id, &runs);
        self.prefetch(id, actions);
        broken.into_iter().for_each(|(peer, since)| self.blame(peer, since, actions));
        (new, unmatched)
    }

    /// Notes that a disk has fetched these chunks from the store.
    pub(super) fn store_answered(&mut self, id: BlobId, chunks: Chunks) {
        self.store_failed = None;
        let is_it = |probe: &mut (BlobId, u32, Time)| probe.0 == id && chunks.numbers().contains(&probe.1);
        if let Some((_, _, since)) = self.probe.take_if(is_it) {
            self.patience.store(since, self.now);
        }
    }

    /// Releases `count` chunks of a request, which are not waited for any more: the request is over when none is left.
    /// It is cancelled unless its peer has just answered.
    fn release(&mut self, request: RequestId, count: u32, actions: &mut Vec<Action>) {
        let Some(known) = self.requests.get_mut(&request) else { return };
        known.left = known.left.saturating_sub(count);
        let (peer, over, answered) = (known.peer, known.left == 0, known.answering);
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.outstanding = peer.outstanding.saturating_sub(count);
        }
        if over {
            self.requests.remove(&request);
            if !answered {
                actions.push(Action::Send { peer, message: Message::Cancel { request } });
            }
        } else {
            self.calm(request);
        }
    }

    pub(super) fn came(
        &mut self,
        peer: PeerId,
        request: RequestId,
        chunks: Chunks,
        outcome: Came,
        actions: &mut Vec<Action>,
    ) {
        if let Some(known) = self.peers.get_mut(&peer) {
            known.heard = self.now;
        }
        if outcome == Came::Corrupt {
            self.counters.corrupt += u64::from(chunks.count);
            self.drop_peer(peer, Offence::Corrupt, actions);
            return;
        }
        let in_turn =
            self.requests.get(&request).is_some_and(|known| known.promised && self.asks_in_turn(known));
        let known = self.requests.get_mut(&request).filter(|known| known.peer == peer);
        let Some(known) = known else {
            let late = self.late.iter().rev().find(|late| (late.0, late.1) == (request, peer));
            if let (Some((_, _, blob, since)), Came::Kept) = (late.copied(), outcome) {
                self.patience.bytes(since, self.now);
                self.helps(blob, chunks);
                self.counters.prefetched += self.arrived(blob, chunks, By::Delay, actions).1;
            }
            return;
        };
        let (blob, urgency, promised) = (known.blob, known.urgency, known.promised);
        if outcome == Came::Failed {
            self.could_not_keep(blob, request, chunks, actions);
            return;
        }
        if urgency == Urgency::Demand {
            if promised && !known.began {
                self.patience.bytes(known.since, self.now);
            } else if !known.heard {
                self.patience.sign(known.since, self.now);
            }
        }
        (known.began, known.heard, known.answering) = (true, true, true);
        let came = chunks.count.min(known.chunks.count);
        (known.lively, known.moved) = (self.now, self.now);
        let asked = known.asked;
        let late =
            urgency == Urgency::Demand && !in_turn && self.now.since(asked) > self.patience.of_useful();
        if let Some(known) = self.peers.get_mut(&peer) {
            known.gives = true;
            if late {
                known.was_late(asked, self.now);
            } else {
                known.was_good(self.now);
            }
        }
        let (_, unmatched) = self.arrived(blob, chunks, By::Order, actions);
        let wanted = u64::from(came).saturating_sub(unmatched);
        self.counters.prefetched += unmatched;
        match urgency {
            Urgency::Demand => self.counters.on_demand += wanted,
            Urgency::Background => self.counters.in_background += wanted,
        }
        if let Some(known) = self.requests.get_mut(&request) {
            known.answering = false;
        }
    }

    /// Lowers the urgency of a request if the chunks that reads waited for have come: the rest comes when it is its
    /// turn, as if no read had ever waited.
    fn calm(&mut self, request: RequestId) {
        let Some(known) = self.requests.get_mut(&request).filter(|r| r.urgency == Urgency::Demand) else {
            return;
        };
        let Some(blob) = self.blobs.get(&known.blob) else { return };
        let mut rest = blob.coming.range(known.chunks.numbers()).map(|(_, coming)| coming);
        if !rest.any(|coming| coming.how == How::Asked(request) && coming.urgency == Urgency::Demand) {
            known.urgency = Urgency::Background;
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

    pub(super) fn pushed(&mut self, peer: PeerId, id: BlobId, chunks: Chunks, actions: &mut Vec<Action>) {
        if !self.peers.contains_key(&peer) {
            return;
        }
        self.helps(id, chunks);
        let (new, _) = self.arrived(id, chunks, By::Push, actions);
        self.counters.prefetched += new;
        if new > 0
            && let Some(known) = self.peers.get_mut(&peer)
        {
            known.heard = self.now;
        }
    }

    /// Notes that another host delivers chunks that are being fetched from the store.
    fn helps(&mut self, id: BlobId, chunks: Chunks) {
        let Some(blob) = self.blobs.get(&id) else { return };
        for (_, coming) in blob.coming.range(blob.cut(chunks).numbers()) {
            if let How::Fetch(fetch) = coming.how
                && let Some(known) = self.fetches.get_mut(&fetch)
            {
                known.helped = true;
            }
        }
    }

    pub(super) fn fetched(&mut self, fetch: FetchId, ok: bool, actions: &mut Vec<Action>) {
        let Some(known) = self.fetches.remove(&fetch) else { return };
        let Fetch { blob: id, chunks, since, urgency, helped } = known;
        if !ok {
            self.store_failed = Some(self.now);
        } else if !helped {
            self.store_failed = None;
        }
        if ok {
            if urgency == Urgency::Demand && !helped {
                self.patience.store(since, self.now);
            }
            let before = self.counters.duplicate;
            self.counters.from_store += self.arrived(id, chunks, By::Order, actions).0;
            // Chunks that the driver has reported before are no duplicates.
            self.counters.duplicate = before;
            return;
        }
        let Some(blob) = self.blobs.get(&id) else { return };
        let failed: Vec<u32> = blob
            .coming
            .range(chunks.numbers())
            .filter(|(_, c)| c.how == How::Fetch(fetch))
            .map(|(c, _)| *c)
            .collect();
        self.leave_to_disks(id, &failed, actions);
    }

    pub(super) fn heard_coming(
        &mut self,
        peer: PeerId,
        request: RequestId,
        chunks: Chunks,
        actions: &mut Vec<Action>,
    ) {
        let Some(known) = self.requests.get_mut(&request).filter(|known| known.peer == peer) else { return };
        if chunks.count == 0 {
            return;
        }
        if !known.heard && known.urgency == Urgency::Demand {
            self.patience.sign(known.since, self.now);
        }
        let again = known.promised;
        // A promise is not passed on at once: it would go round without end if hosts did wait for each other.
        let pass_on = again && self.now.since(known.lively) >= self.patience.say_every() / 2;
        if !again {
            (known.since, known.moved, known.kept) = (self.now, self.now, self.patience.kept());
        }
        (known.heard, known.promised) = (true, true);
        known.lively = self.now;
        let id = known.blob;
        if pass_on {
            self.say_coming(id, chunks, |how| how == How::Asked(request), actions);
        }
    }

    /// Tells the hosts that wait for chunks whose source is `so` that these are on their way.
    fn say_coming(
        &mut self,
        id: BlobId,
        chunks: Chunks,
        so: impl Fn(How) -> bool,
        actions: &mut Vec<Action>,
    ) {
        let Some(blob) = self.blobs.get(&id) else { return };
        let mut told: BTreeMap<(PeerId, RequestId), Chunks> = BTreeMap::new();
        for (chunk, coming) in blob.coming.range(chunks.numbers()).filter(|(_, coming)| so(coming.how)) {
            for ask in &coming.asks {
                let run = told.entry((ask.peer, ask.request)).or_insert(Chunks::one(*chunk));
                run.count = chunk - run.first + 1;
            }
        }
        actions.extend(told.into_iter().map(|((peer, request), chunks)| {
            let message = Message::Coming { request, chunks };
            Action::Send { peer, message }
        }));
    }

    /// Repeats the promises of chunks that are still fetched for other hosts.
    pub(super) fn say_again(&mut self, actions: &mut Vec<Action>) {
        self.signing = false;
        let fetched = |how: How| matches!(how, How::Fetch(_) | How::Disk(_));
        let ids: Vec<BlobId> = self.blobs.keys().copied().collect();
        let mut waited = false;
        for id in ids {
            let all = Chunks { first: 0, count: u32::MAX };
            self.say_coming(id, all, fetched, actions);
            waited |=
                self.blobs.get(&id).is_some_and(|blob| blob.coming.values().any(|c| !c.asks.is_empty()));
        }
        if waited {
            self.sign_soon();
        }
    }

    /// Sets the timer of promises, because a host waits for a chunk that is on its way.
    pub(super) fn sign_soon(&mut self) {
        if !self.signing {
            self.signing = true;
            self.set_timer(self.now + self.patience.say_every(), Timer::Signs);
        }
    }

    pub(super) fn heard_sorry(
        &mut self,
        peer: PeerId,
        request: RequestId,
        chunks: Chunks,
        why: Why,
        others: &[PeerKey],
        actions: &mut Vec<Action>,
    ) {
        let Some(known) = self.requests.get_mut(&request).filter(|known| known.peer == peer) else { return };
        let (id, hops) = (known.blob, known.hops);
        if !known.heard && known.urgency == Urgency::Demand {
            self.patience.sign(known.since, self.now);
        }
        known.heard = true;
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let named = others.iter().take(NAMED).filter_map(|key| blob.sharer(*key));
        let named: Vec<PeerId> =
            named.filter(|named| *named != peer && self.peers.contains_key(named)).collect();
        let mut lied = false;
        if why != Why::Busy
            && let Some(map) = blob.maps.get_mut(&peer)
        {
            let cut = Chunks { first: chunks.first.min(blob.chunks), count: chunks.count };
            lied = why == Why::Missing && hops == 0 && cut.numbers().take(64).any(|chunk| map.has.has(chunk));
            map.has.clear(cut);
        }
        // A peer that names others is to be asked again if they are strangers, and to name none.
        let failed = self.detach(id, request, chunks, others.is_empty().then_some(peer), actions);
        if !others.is_empty()
            && let Some(blob) = self.blobs.get_mut(&id)
        {
            for chunk in &failed {
                let Some(coming) = blob.coming.get_mut(chunk) else { continue };
                if named.is_empty() && coming.insist {
                    coming.tried.push(peer);
                }
                coming.named = named.clone();
                coming.insist = true;
            }
        }
        if lied && self.peers.get_mut(&peer).is_some_and(super::peers::Peer::lied) {
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
        for (chunk, coming) in blob.coming.range_mut(cut.numbers()) {
            if coming.how != How::Asked(request) {
                continue;
            }
            coming.how = How::New;
            failed.push(*chunk);
            if tried.is_some() {
                coming.tried.extend(tried);
                let_go.extend(coming.asks.extract_if(.., |ask| ask.sent_on).map(|ask| (ask, *chunk)));
            }
        }
        self.let_go(id, let_go, actions);
        if let Some(known) = self.requests.get_mut(&request) {
            known.answering = true;
            self.release(request, u32::try_from(failed.len()).unwrap_or(u32::MAX), actions);
        }
        if let Some(known) = self.requests.get_mut(&request) {
            known.answering = false;
        }
        failed
    }

    /// Tells peers that wait for chunks because another host sent them here that these do not come.
    fn let_go(&mut self, id: BlobId, asks: Vec<(Waiting, u32)>, actions: &mut Vec<Action>) {
        for (waiting, chunk) in asks {
            if let Some(peer) = self.peers.get_mut(&waiting.peer) {
                peer.waiting -= 1;
            }
            let bytes = self.blobs.get(&id).map_or(0, |blob| blob.bytes(chunk));
            self.uplink.promised_less(bytes);
            let (request, chunks, others) = (waiting.request, Chunks::one(chunk), Vec::new());
            let message = Message::Sorry { request, chunks, why: Why::Missing, others };
            actions.push(Action::Send { peer: waiting.peer, message });
        }
    }

    /// Handles a request whose peer is gone.
    pub(super) fn request_lost(&mut self, request: RequestId, actions: &mut Vec<Action>) {
        let Some(known) = self.requests.get(&request) else { return };
        let (peer, id, chunks) = (known.peer, known.blob, known.chunks);
        let failed = self.detach(id, request, chunks, Some(peer), actions);
        self.requests.remove(&request);
        self.obtain(id, &failed, actions);
    }

    /// Gives up a chunk that no host delivers: other hosts that wait for it are told so. Disks must have been told
    /// before.
    pub(super) fn give_up(&mut self, id: BlobId, chunk: u32, why: Why, actions: &mut Vec<Action>) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let bytes = blob.bytes(chunk);
        let Some(coming) = blob.coming.remove(&chunk) else { return };
        if coming.aim != Aim::Needed {
            self.prefetching = self.prefetching.saturating_sub(bytes);
        }
        if coming.aim == Aim::Prefetch {
            self.accounts.settled(blob.reader, bytes);
            blob.set_state(chunk, State::Remote);
        }
        for waiting in coming.asks {
            if let Some(peer) = self.peers.get_mut(&waiting.peer) {
                peer.waiting -= 1;
            }
            self.uplink.promised_less(bytes);
            let (request, chunks, others) = (waiting.request, Chunks::one(chunk), Vec::new());
            let message = Message::Sorry { request, chunks, why, others };
            actions.push(Action::Send { peer: waiting.peer, message });
        }
    }

    pub(super) fn drop_prefetch(&mut self, id: BlobId, chunk: u32) {
        // Nothing waits for it: no host is told.
        self.give_up(id, chunk, Why::Failed, &mut Vec::new());
    }

    /// Answers a want that has waited as long as any may: the disk does the rest.
    pub(super) fn want_due(&mut self, want: WantId, actions: &mut Vec<Action>) {
        let Some(known) = self.wants.get(&want) else { return };
        let (id, due) =
            (known.blob, known.since + self.patience.for_want().max(self.store_takes(known.urgency)));
        if due > self.now {
            self.set_timer(due.min(self.now + LOOK_AGAIN), Timer::Want(want));
            return;
        }
        // Chunks that no read waits for come behind all others. While bytes come from the peers that were asked, a
        // fetch from the store over the same link would only slow these down.
        let patience = self.patience.of(Urgency::Background, false);
        let may_wait = known.urgency == Urgency::Background
            && self.now.since(known.since) < self.settings.longest()
            && self.comes_later(id, want, patience);
        if may_wait {
            self.set_timer(self.now + patience, Timer::Want(want));
            return;
        }
        let left = self.unlink(id, want);
        self.left_to_disk(id, &left, actions);
        if let Some(known) = self.wants.get_mut(&want) {
            known.elsewhere.extend(left);
            known.left = 0;
        }
        self.settle(want, actions);
    }

    /// `true` if all chunks that a want waits for were requested from peers that have sent something lately.
    fn comes_later(&self, id: BlobId, want: WantId, lately: Duration) -> bool {
        let Some(blob) = self.blobs.get(&id) else { return false };
        let is_lively = |how| match how {
            How::Asked(request) => {
                let peer = self.requests.get(&request).and_then(|known| self.peers.get(&known.peer));
                peer.is_some_and(|peer| self.now.since(peer.heard) < lately)
            }
            How::New | How::Fetch(_) | How::Disk(_) => false,
        };
        blob.coming.values().filter(|coming| coming.wants.contains(&want)).all(|coming| is_lively(coming.how))
    }

    /// Removes a want from the chunks that it waits for. Chunks that are on their way come anyway.
    fn unlink(&mut self, id: BlobId, want: WantId) -> Vec<u32> {
        let Some(blob) = self.blobs.get_mut(&id) else { return Vec::new() };
        let mut left = Vec::new();
        for (chunk, coming) in &mut blob.coming {
            let before = coming.wants.len();
            coming.wants.retain(|known| *known != want);
            if coming.wants.len() < before {
                left.push(*chunk);
            }
        }
        left
    }

    /// Notes that a disk fetches chunks from the store itself that were requested from peers, which need not send them
    /// any more.
    fn left_to_disk(&mut self, id: BlobId, chunks: &[u32], actions: &mut Vec<Action>) {
        let (until, enough) = (self.now + DISK, self.patience.of(Urgency::Demand, true));
        let mut broken: BTreeMap<PeerId, Time> = BTreeMap::new();
        for &chunk in chunks {
            let Some(blob) = self.blobs.get_mut(&id) else { return };
            let Some(coming) = blob.coming.get_mut(&chunk).filter(|coming| coming.wants.is_empty()) else {
                continue;
            };
            let How::Asked(request) = coming.how else { continue };
            coming.how = How::Disk(until);
            if coming.aim != Aim::Needed {
                coming.aim = Aim::Needed;
                self.prefetching = self.prefetching.saturating_sub(Chunks::one(chunk).bytes(blob.len).len());
            }
            self.set_timer(until, Timer::Disk(id, Chunks::one(chunk)));
            let Some(known) = self.requests.get(&request) else { continue };
            let (peer, since) = (known.peer, known.since);
            // A peer that was to send chunks that it has, promised them, and did not send them for this long, would be
            // asked first again.
            if known.promised && self.gets_nothing(known) && self.now.since(known.moved) >= enough {
                broken.insert(peer, since);
            }
            self.release(request, 1, actions);
            if !self.requests.contains_key(&request) {
                self.remember_late((request, peer, id, since));
            }
        }
        broken.into_iter().for_each(|(peer, since)| self.blame(peer, since, actions));
    }

    pub(super) fn forget(&mut self, want: WantId) {
        if let Some(known) = self.wants.remove(&want) {
            self.unlink(known.blob, want);
        }
    }

    /// Handles chunks for which a disk has had its time: those that it did not fetch are fetched for the waiting hosts,
    /// or forgotten.
    pub(super) fn disk_due(&mut self, id: BlobId, chunks: Chunks, actions: &mut Vec<Action>) {
        let (now, after) = (self.now, self.resort_after());
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let (mut waited, mut idle, mut late) = (Vec::new(), Vec::new(), Vec::new());
        for (chunk, coming) in blob.coming.range_mut(chunks.numbers()) {
            let How::Disk(until) = coming.how else { continue };
            if until > now {
                if now.since(fallback::left_at(until)) >= after {
                    late.push(*chunk);
                }
            } else if coming.asks.is_empty() {
                idle.push(*chunk);
            } else {
                coming.how = How::New;
                waited.push(*chunk);
            }
        }
        idle.into_iter().for_each(|chunk| self.give_up(id, chunk, Why::Failed, actions));
        if !late.is_empty() {
            self.resort(id, &late, actions);
        }
        if !waited.is_empty() {
            self.leave_to_store(id, &waited, actions);
        }
    }
}
