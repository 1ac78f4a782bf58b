//! What other hosts ask for: sent, promised, got first, or others are named who have it.

use super::Node;
use super::blob::{Aim, Blob, Coming, How, Map, Waiting, push};
use super::getting::KEEPER;
use super::peers::Serve;
use crate::CHUNK_SIZE;
use crate::chain;
use crate::event::{Action, BlobId, Chunks, PeerId, PeerKey, Role, Served, Urgency};
use crate::message::{Message, RequestId, Why};
use crate::placement;
use crate::settings::Topology;
use std::time::Duration;

/// Chunks that the driver is given for one peer that nobody waits for. What waits here can still be hurried or
/// cancelled.
const UNHURRIED: u32 = 4;

/// Chunks that one peer may wait for, of all sorts; more are refused.
const WAITING: u32 = 4096;

/// Chunks of one request that are looked at.
const ASKED: u32 = 4096;

/// Chunks whose chains are remembered for a blob, before old ones are looked for and forgotten.
const CHAINS: usize = 1024;

/// How often they are looked for: it takes a walk over all.
const SWEPT_EVERY: Duration = Duration::from_secs(1);

/// Who asks is told that bytes will come if they take longer than the least patience with a silent host by so many.
const SIGN: u32 = 2;

/// Who a chain begins with, of those that are known to have the chunk.
const SEEDS: usize = 8;

/// A request as it came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) peer: PeerId,
    pub(super) request: RequestId,
    pub(super) urgency: Urgency,
    pub(super) hops: u8,
    pub(super) insist: bool,
}

impl Ask {
    /// Whether others may be named to it. Who was named, and asks with no hops, is not sent on: it would be sent in a
    /// circle sooner or later.
    fn may_be_sent_on(self) -> bool {
        self.hops > 0 && !self.insist
    }
}

/// What is to become of its chunks.
#[derive(Debug, Default)]
struct Answers {
    send: Vec<Chunks>,
    /// Being sent without hurry.
    again: Vec<Chunks>,
    wait: Vec<Chunks>,
    missing: Vec<Chunks>,
    busy: Vec<Chunks>,
    named: Vec<(Chunks, PeerKey)>,
    /// To be got first.
    get: Vec<u32>,
    /// On their way without hurry, and somebody waits now.
    hurry: Vec<u32>,
}

impl Node {
    pub(super) fn asked(&mut self, ask: Ask, id: BlobId, chunks: Chunks, actions: &mut Vec<Action>) {
        let Some(key) = self.peers.get(&ask.peer).map(|peer| peer.key) else { return };
        let mut answers = Answers::default();
        match self.blobs.get(&id) {
            Some(blob) if blob.is_shared_with(key) => {
                let cut = Chunks { count: blob.cut(chunks).count.min(ASKED), ..blob.cut(chunks) };
                // What does not exist is missing.
                let rest = Chunks { first: cut.numbers().end, count: chunks.count.saturating_sub(cut.count) };
                answers.missing.extend((rest.count > 0).then_some(rest));
                for chunk in cut.numbers() {
                    if self.is_sent_ahead(ask.peer, id, chunk, ask.urgency, actions) {
                        push(&mut answers.wait, chunk);
                    } else {
                        self.asked_for(ask, id, chunk, &mut answers);
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

    /// Decides what becomes of one chunk that was asked for.
    fn asked_for(&mut self, ask: Ask, id: BlobId, chunk: u32, answers: &mut Answers) {
        let Some(blob) = self.blobs.get(&id) else { return };
        if blob.is_here(chunk) {
            self.asked_for_here(ask, id, chunk, answers);
        } else if self.peers.get(&ask.peer).is_none_or(|peer| peer.waiting >= WAITING) {
            push(&mut answers.busy, chunk);
        } else if blob.coming.contains_key(&chunk) {
            self.asked_for_coming(ask, id, chunk, answers);
        } else {
            self.asked_for_absent(ask, id, chunk, answers);
        }
    }

    fn asked_for_here(&mut self, ask: Ask, id: BlobId, chunk: u32, answers: &mut Answers) {
        let Some(blob) = self.blobs.get(&id) else { return };
        let Some(peer) = self.peers.get_mut(&ask.peer) else { return };
        if let Some(serve) = peer.being_sent(ask.request, id, chunk) {
            if ask.urgency < serve.urgency {
                serve.urgency = Urgency::Demand;
                let (hurried, left) = (serve.chunks, serve.left);
                peer.unhurried = peer.unhurried.saturating_sub(left);
                // They go out in order: the last are left.
                let rest = Chunks { first: hurried.numbers().end - left, count: left };
                self.uplink.sends(self.now, blob.bytes_of(rest));
                answers.again.push(hurried);
            }
            return;
        }
        let (waited, backlog) = (peer.take_later(ask.request, id, chunk), peer.later.len());
        let most = self.settings.serve_window;
        let full = self.uplink.backlog() >= most;
        let queued = if full { peer.waits_for_bytes() } else { 0 };
        // All agents prefetch what their root tells them of: it sends that to a few, who send it on.
        let ahead = self.is_root() && ask.urgency == Urgency::Background;
        let loaded = !waited && (ahead || self.uplink.is_loaded(blob.bytes(chunk), most));
        if loaded && self.send_on(ask, id, chunk, self.is_root(), answers) {
            return;
        }
        let Some(blob) = self.blobs.get(&id) else { return };
        let busy = match ask.urgency {
            // To wait is better than the store, and worse than another who has it.
            Urgency::Demand => {
                let another = |(peer, map): (&PeerId, &Map)| *peer != ask.peer && map.has.has(chunk);
                full && (queued >= WAITING || blob.maps.iter().any(another))
            }
            Urgency::Background => backlog >= WAITING as usize,
        };
        push(if busy { &mut answers.busy } else { &mut answers.send }, chunk);
        let late = self.uplink.takes_longer(self.now, self.settings.patience.0 / SIGN);
        if (full || late) && !busy && ask.urgency == Urgency::Demand {
            push(&mut answers.wait, chunk);
        }
        self.has_soon(ask.peer, id, chunk);
    }

    fn asked_for_coming(&mut self, ask: Ask, id: BlobId, chunk: u32, answers: &mut Answers) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let bytes = blob.bytes(chunk);
        let Some(coming) = blob.coming.get_mut(&chunk) else { return };
        let of_it = |request| self.requests.get(&request).is_some_and(|known| known.peer == ask.peer);
        let circle = match (coming.how, &blob.pinned, self.peers.get(&ask.peer)) {
            // But who was sent on waits for who waits for a keeper already.
            (How::Asked(_), Some(pinned), Some(peer)) if ask.hops > 0 => {
                let stripe = placement::stripe_of(chunk, self.settings.stripe);
                pinned.rank(stripe) >= pinned.rank_of(peer.key, stripe)
            }
            (How::Asked(request), _, _) => of_it(request),
            _ => false,
        };
        // Who asks anybody does not wait: he may be the one who is waited for.
        if circle || (ask.hops == 0 && ask.insist) {
            // Each would wait for the other.
            push(&mut answers.missing, chunk);
            return;
        }
        if ask.urgency < coming.urgency {
            answers.hurry.push(chunk);
        }
        let is_it = |known: &&mut Waiting| (known.peer, known.request) == (ask.peer, ask.request);
        if let Some(known) = coming.asks.iter_mut().find(is_it) {
            known.urgency = known.urgency.min(ask.urgency);
        } else {
            let loaded = self.uplink.is_loaded(bytes, self.settings.serve_window);
            if loaded && self.send_on(ask, id, chunk, false, answers) {
                return;
            }
            self.promise(ask, id, chunk);
        }
        push(&mut answers.wait, chunk);
    }

    fn asked_for_absent(&mut self, ask: Ask, id: BlobId, chunk: u32, answers: &mut Answers) {
        if self.is_root() && self.send_on(ask, id, chunk, true, answers) {
            return;
        }
        let pinned = self.blobs.get(&id).is_some_and(|blob| blob.pinned.is_some());
        if ask.hops == 0 || (pinned && ask.hops == KEEPER) {
            push(&mut answers.missing, chunk);
            return;
        }
        if let Some(blob) = self.blobs.get_mut(&id) {
            blob.coming.insert(chunk, Coming::new(Aim::Needed, ask.urgency, ask.hops - 1));
        }
        self.promise(ask, id, chunk);
        push(&mut answers.wait, chunk);
        answers.get.push(chunk);
    }

    /// Whether it has agents, who tell it what they have.
    fn is_root(&self) -> bool {
        self.settings.topology == Topology::Roots && self.role == Role::Root
    }

    /// A peer waits for a chunk that is on its way here.
    fn promise(&mut self, ask: Ask, id: BlobId, chunk: u32) {
        let Ask { peer, request, urgency, hops, .. } = ask;
        let waiting = Waiting { peer, request, urgency, sent_on: hops == 0 };
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let bytes = blob.bytes(chunk);
        let Some(coming) = blob.coming.get_mut(&chunk) else { return };
        coming.asks.push(waiting);
        self.uplink.promises(bytes);
        self.sign_soon();
        if let Some(peer) = self.peers.get_mut(&waiting.peer) {
            peer.waiting += 1;
        }
        self.has_soon(waiting.peer, id, chunk);
    }

    /// A peer will have this chunk: others can be sent there.
    fn has_soon(&mut self, peer: PeerId, id: BlobId, chunk: u32) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let Some(role) = self.peers.get(&peer).map(|known| known.role) else { return };
        let now = self.now;
        if blob.chains.len() >= CHAINS && now.since(blob.swept) >= SWEPT_EVERY {
            blob.swept = now;
            blob.chains.retain(|_, chain| now.since(chain.used) < chain::KEPT);
        }
        if blob.chains.len() < 4 * CHAINS || blob.chains.contains_key(&chunk) {
            let chain = blob.chains.entry(chunk).or_default();
            chain.used = now;
            chain.has(peer, role);
        }
    }

    /// Sends who asks for a chunk to another who has it, or will have it, if there is one; he will have it next.
    /// `seed`: those count who are known to have it. Whether there is nothing more to be done.
    fn send_on(&mut self, ask: Ask, id: BlobId, chunk: u32, seed: bool, answers: &mut Answers) -> bool {
        let Some(blob) = self.blobs.get_mut(&id) else { return false };
        if !ask.may_be_sent_on() {
            return false;
        }
        let (now, peers) = (self.now, &self.peers);
        let Some(role) = peers.get(&ask.peer).map(|asker| asker.role) else { return false };
        let like = |peer: PeerId| peers.get(&peer).is_some_and(|known| known.role == role);
        let usable = |peer: PeerId| peers.get(&peer).is_some_and(|known| !known.is_avoided(now));
        for seeded in [false, true] {
            if seeded && !(seed && seed_chain(blob, ask.peer, role, like, chunk)) {
                return false;
            }
            let Some(chain) = blob.chains.get_mut(&chunk) else { continue };
            chain.used = now;
            if let Some(sent) = chain.knows(ask.peer) {
                // Asked again before he heard where to go: he will hear it.
                return sent == Some(ask.request);
            }
            let next = chain.next((ask.peer, role), ask.request, usable).and_then(|peer| peers.get(&peer));
            if let Some(other) = next {
                run_of(&mut answers.named, chunk, other.key);
                return true;
            }
        }
        false
    }

    fn answer(&mut self, ask: Ask, id: BlobId, answers: Answers, actions: &mut Vec<Action>) {
        let Ask { peer, request, urgency, .. } = ask;
        for chunks in answers.send {
            self.serve(peer, Some(request), id, chunks, urgency, actions);
        }
        actions.extend(answers.again.into_iter().map(|chunks| {
            let urgency = Urgency::Demand;
            Action::Serve { peer, request: Some(request), blob: id, chunks, urgency }
        }));
        let sorry = |chunks, why, others| {
            let message = Message::Sorry { request, chunks, why, others };
            Action::Send { peer, message }
        };
        actions
            .extend(answers.named.into_iter().map(|(chunks, other)| sorry(chunks, Why::Busy, vec![other])));
        actions.extend(answers.busy.into_iter().map(|chunks| sorry(chunks, Why::Busy, Vec::new())));
        actions.extend(answers.missing.into_iter().map(|chunks| sorry(chunks, Why::Missing, Vec::new())));
        let coming = |chunks| Action::Send { peer, message: Message::Coming { request, chunks } };
        actions.extend(answers.wait.into_iter().map(coming));
        self.hurry(id, &answers.hurry, actions);
        self.obtain(id, &answers.get, actions);
    }

    /// Gives the driver bytes to send, or keeps them back while nobody waits for them and others are being sent.
    pub(super) fn serve(
        &mut self,
        peer: PeerId,
        request: Option<RequestId>,
        blob: BlobId,
        chunks: Chunks,
        urgency: Urgency,
        actions: &mut Vec<Action>,
    ) {
        let Some(known) = self.peers.get_mut(&peer) else { return };
        let serve = Serve { request, blob, chunks, urgency, left: chunks.count };
        match urgency {
            Urgency::Demand => {
                known.serves.push(serve);
                let bytes = self.blobs.get(&blob).map_or(0, |blob| blob.bytes_of(chunks));
                self.uplink.sends(self.now, bytes);
                // One by one: whoever waits there for the first need not wait for the last.
                let one = |chunk| Action::Serve { peer, request, blob, chunks: Chunks::one(chunk), urgency };
                actions.extend(chunks.numbers().map(one));
            }
            Urgency::Background => {
                known.later.push_back(serve);
                self.serve_later(peer, actions);
            }
        }
    }

    /// Gives the driver more of what a peer gets without hurry.
    pub(super) fn serve_later(&mut self, peer: PeerId, actions: &mut Vec<Action>) {
        let Some(known) = self.peers.get_mut(&peer) else { return };
        while known.unhurried < UNHURRIED
            && let Some(mut next) = known.ahead.pop_front().or_else(|| known.later.pop_front())
        {
            let room = UNHURRIED - known.unhurried;
            if next.chunks.count > room {
                let first = next.chunks.first + room;
                let rest = Chunks { first, count: next.chunks.count - room };
                known.later.push_front(Serve { chunks: rest, left: rest.count, ..next });
                next.chunks.count = room;
                next.left = room;
            }
            known.unhurried += next.chunks.count;
            known.serves.push(next);
            let Serve { request, blob, chunks, urgency, .. } = next;
            actions.push(Action::Serve { peer, request, blob, chunks, urgency });
        }
    }

    pub(super) fn served(
        &mut self,
        peer: PeerId,
        request: Option<RequestId>,
        id: BlobId,
        chunks: Chunks,
        outcome: Served,
        actions: &mut Vec<Action>,
    ) {
        let why = match outcome {
            Served::Well => None,
            Served::Missing => Some(Why::Missing),
            Served::Unchecked => Some(Why::Unchecked),
        };
        if why.is_some() {
            // What is only not checked yet is told of again when it is.
            self.lost(id, chunks, actions);
        }
        let Some(known) = self.peers.get_mut(&peer) else { return };
        let fits = |serve: &Serve| {
            let (first, end) = (serve.chunks.first, serve.chunks.numbers().end);
            (serve.request, serve.blob) == (request, id)
                && first <= chunks.first
                && chunks.numbers().end <= end
        };
        let Some(at) = known.serves.iter().position(fits) else { return };
        let serve = &mut known.serves[at];
        let count = chunks.count.min(serve.left);
        serve.left -= count;
        let urgency = serve.urgency;
        if serve.left == 0 {
            known.serves.remove(at);
        }
        match urgency {
            Urgency::Demand => {
                let bytes =
                    self.blobs.get(&id).map_or(u64::from(count) * CHUNK_SIZE, |blob| blob.bytes_of(chunks));
                self.uplink.sent(self.now, bytes);
            }
            Urgency::Background => known.unhurried = known.unhurried.saturating_sub(count),
        }
        if request.is_none() && why.is_none() {
            known.crossing.left(self.now, id, chunks);
        }
        if let (Some(why), Some(request)) = (why, request) {
            let message = Message::Sorry { request, chunks, why, others: Vec::new() };
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
        self.serve_later(peer, actions);
    }

    /// Sends what has come to those who waited for it: the first chunk to all, then the second, and so on, for each
    /// of them may have others waiting.
    pub(super) fn hand_over(
        &mut self,
        id: BlobId,
        mut ready: Vec<(Waiting, u32)>,
        actions: &mut Vec<Action>,
    ) {
        ready.sort_by_key(|(to, chunk)| (to.urgency, *chunk, to.peer, to.request));
        for (to, chunk) in ready {
            self.serve(to.peer, Some(to.request), id, Chunks::one(chunk), to.urgency, actions);
        }
    }

    /// A peer does not wait for the rest of a request any more.
    pub(super) fn cancelled(&mut self, peer: PeerId, request: RequestId) {
        let Some(known) = self.peers.get_mut(&peer) else { return };
        known.later.retain(|serve| serve.request != Some(request));
        known.ahead.retain(|serve| serve.request != Some(request));
        if known.waiting > 0 {
            self.stop_waiting(peer, Some(request));
        }
    }

    /// Takes a peer from the chunks that it waits for: those of one request, or all.
    pub(super) fn stop_waiting(&mut self, peer: PeerId, request: Option<RequestId>) {
        let is_it = |w: &Waiting| w.peer == peer && request.is_none_or(|request| w.request == request);
        let mut gone = 0;
        for blob in self.blobs.values_mut() {
            for (chunk, coming) in &mut blob.coming {
                let before = coming.asks.len();
                coming.asks.retain(|waiting| !is_it(waiting));
                let count = before - coming.asks.len();
                if count > 0
                    && let Some(chain) = blob.chains.get_mut(chunk)
                {
                    chain.forget(peer); // it may come from somebody who waits for this host
                }
                let bytes = Chunks::one(*chunk).bytes(blob.len).len();
                self.uplink.promised_less(count as u64 * bytes);
                gone += u32::try_from(count).unwrap_or(u32::MAX);
            }
        }
        if let Some(known) = self.peers.get_mut(&peer) {
            known.waiting = known.waiting.saturating_sub(gone);
        }
    }
}

impl super::peers::Peer {
    /// Chunks that it waits for and that are here.
    fn waits_for_bytes(&self) -> u32 {
        let demanded = self.serves.iter().filter(|serve| serve.urgency == Urgency::Demand);
        demanded.map(|serve| serve.left).sum()
    }

    /// What of a request the driver has been given to send there.
    fn being_sent(&mut self, request: RequestId, blob: BlobId, chunk: u32) -> Option<&mut Serve> {
        let is_it = |serve: &&mut Serve| {
            (serve.request, serve.blob) == (Some(request), blob) && serve.chunks.numbers().contains(&chunk)
        };
        self.serves.iter_mut().find(is_it)
    }

    /// Takes a chunk of a request, or one that was to be pushed, from what it gets without hurry.
    pub(super) fn take_later(&mut self, request: RequestId, blob: BlobId, chunk: u32) -> bool {
        let is_it = |serve: &Serve| {
            serve.request.is_none_or(|known| known == request)
                && serve.blob == blob
                && serve.chunks.numbers().contains(&chunk)
        };
        let ahead = self.ahead.iter().position(is_it);
        if ahead.is_some_and(|at| self.ahead.remove(at).is_some()) {
            return true; // each of those is one chunk
        }
        let Some(at) = self.later.iter().position(is_it) else { return false };
        let Some(serve) = self.later.remove(at) else { return false };
        let (first, end) = (serve.chunks.first, serve.chunks.numbers().end);
        let parts =
            [Chunks { first: chunk + 1, count: end - chunk - 1 }, Chunks { first, count: chunk - first }];
        for chunks in parts.into_iter().filter(|part| part.count > 0) {
            self.later.insert(at, Serve { chunks, left: chunks.count, ..serve });
        }
        true
    }
}

/// Lets a chain go on, or begin, with those who are known to have the chunk and are `like` who asks, but for himself.
/// Whether there are any.
fn seed_chain(blob: &mut Blob, asker: PeerId, role: Role, like: impl Fn(PeerId) -> bool, chunk: u32) -> bool {
    let known = blob.chains.get(&chunk);
    let is_new =
        |peer: PeerId| peer != asker && like(peer) && known.is_none_or(|chain| chain.knows(peer).is_none());
    let having = blob.maps.iter().filter(|(_, map)| map.has.has(chunk)).map(|(peer, _)| *peer);
    let mut having: Vec<PeerId> = having.filter(|peer| is_new(*peer)).collect();
    if having.is_empty() {
        return false;
    }
    // Not the same ones for every chunk.
    let first = chunk as usize % having.len();
    having.rotate_left(first);
    let chain = blob.chains.entry(chunk).or_default();
    having.into_iter().take(SEEDS).for_each(|peer| chain.has(peer, role));
    true
}

/// Gathers chunks that go to the same to runs.
fn run_of(runs: &mut Vec<(Chunks, PeerKey)>, chunk: u32, to: PeerKey) {
    match runs.last_mut() {
        Some((run, known)) if *known == to && run.numbers().end == chunk => run.count += 1,
        _ => runs.push((Chunks::one(chunk), to)),
    }
}
