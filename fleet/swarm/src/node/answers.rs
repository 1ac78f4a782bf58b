//! Requests of other hosts: chunks are sent, promised, fetched first, or hosts are named that have them.

use super::Node;
use super::blob::{Aim, Blob, Coming, How, Map, Waiting, push};
use super::peers::Serve;
use super::sources::KEEPER;
use crate::CHUNK_SIZE;
use crate::event::{Action, BlobId, Chunks, PeerId, PeerKey, Role, Served, Urgency};
use crate::message::{Message, RequestId, Why};
use crate::placement;
use crate::redirect_tree;
use crate::settings::Topology;
use std::time::Duration;

/// The number of chunks without urgency that the driver is given for one peer. Chunks that wait in the node can still
/// be promoted or cancelled.
const UNHURRIED: u32 = 4;

/// The number of chunks that one peer may wait for, of all sorts; more are refused.
const WAITING: u32 = 4096;

/// The number of chunks of one request that are processed.
const ASKED: u32 = 4096;

/// The number of a blob's chunks with chains, from which on old chains are looked for and forgotten.
const CHAINS: usize = 1024;

/// The interval at which they are looked for: it takes a walk over all.
const SWEPT_EVERY: Duration = Duration::from_secs(1);

/// The divisor of the least timeout of a silent host: an asker is told that bytes will come if sending takes longer
/// than the quotient.
const SIGN: u32 = 2;

/// The number of hosts that a chain begins with, of those that are known to have the chunk.
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
    /// `true` if other hosts may be named to the asker. An asker that another host sent here has no hops, and is not
    /// sent on: it would be sent in a circle sooner or later.
    fn may_be_sent_on(self) -> bool {
        self.hops > 0 && !self.insist
    }
}

/// The decisions for the chunks of a request.
#[derive(Debug, Default)]
struct Answers {
    send: Vec<Chunks>,
    /// Chunks that are being sent without urgency.
    again: Vec<Chunks>,
    wait: Vec<Chunks>,
    missing: Vec<Chunks>,
    busy: Vec<Chunks>,
    named: Vec<(Chunks, PeerKey)>,
    /// Chunks to be fetched first.
    get: Vec<u32>,
    /// Chunks on their way without urgency, for which a read waits now.
    hurry: Vec<u32>,
}

impl Node {
    pub(super) fn asked(&mut self, ask: Ask, id: BlobId, chunks: Chunks, actions: &mut Vec<Action>) {
        let Some(key) = self.peers.get(&ask.peer).map(|peer| peer.key) else { return };
        let mut answers = Answers::default();
        match self.blobs.get(&id) {
            Some(blob) if blob.is_shared_with(key) => {
                let cut = Chunks { count: blob.cut(chunks).count.min(ASKED), ..blob.cut(chunks) };
                // Chunks beyond the blob's end are missing.
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

    /// Decides on one chunk that was requested.
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
                // They go out in order: the last ones are not sent yet.
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
        // All agents prefetch the chunks that their root advertises: the root sends those to a few, which send them on.
        let ahead = self.is_root() && ask.urgency == Urgency::Background;
        let loaded = !waited && (ahead || self.uplink.is_loaded(blob.bytes(chunk), most));
        if loaded && self.send_on(ask, id, chunk, self.is_root(), answers) {
            return;
        }
        let Some(blob) = self.blobs.get(&id) else { return };
        let busy = match ask.urgency {
            // Waiting is better than the store, and worse than another peer that has the chunk.
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
            // Except for an asker that was sent on: it waits for a host that waits for a keeper already.
            (How::Asked(_), Some(pinned), Some(peer)) if ask.hops > 0 => {
                let stripe = placement::stripe_of(chunk, self.settings.stripe);
                pinned.rank(stripe) >= pinned.rank_of(peer.key, stripe)
            }
            (How::Asked(request), _, _) => of_it(request),
            _ => false,
        };
        // A host that asks any that may have the chunk does not wait: it may be the one that is waited for.
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

    /// `true` if it has agents, which tell it their local chunks.
    fn is_root(&self) -> bool {
        self.settings.topology == Topology::Roots && self.role == Role::Root
    }

    /// Notes that a peer waits for a chunk that is on its way to this host.
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

    /// Notes that a peer will have this chunk: others can be sent there.
    fn has_soon(&mut self, peer: PeerId, id: BlobId, chunk: u32) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let Some(role) = self.peers.get(&peer).map(|known| known.role) else { return };
        let now = self.now;
        if blob.chains.len() >= CHAINS && now.since(blob.swept) >= SWEPT_EVERY {
            blob.swept = now;
            blob.chains.retain(|_, chain| now.since(chain.used) < redirect_tree::KEPT);
        }
        if blob.chains.len() < 4 * CHAINS || blob.chains.contains_key(&chunk) {
            let chain = blob.chains.entry(chunk).or_default();
            chain.used = now;
            chain.has(peer, role);
        }
    }

    /// Sends an asker of a chunk to another host that has it, or will have it, if there is one; the asker will have it
    /// next. `seed`: hosts that are known to have it count. `true` if nothing more is to be done.
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
                // The request was repeated before the asker heard where to go: it will hear it.
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

    /// Gives the driver bytes to send, or keeps them back while no read waits for them and others are being sent.
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
                // One by one: a read on the peer that waits for the first need not wait for the last.
                let one = |chunk| Action::Serve { peer, request, blob, chunks: Chunks::one(chunk), urgency };
                actions.extend(chunks.numbers().map(one));
            }
            Urgency::Background => {
                known.later.push_back(serve);
                self.serve_later(peer, actions);
            }
        }
    }

    /// Gives the driver more of the chunks that a peer gets without urgency.
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
            // A chunk that is only not checked yet is advertised again when it is.
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

    /// Sends chunks that have come to the peers that waited for them: the first chunk to all, then the second, and so
    /// on, because each of them may have others waiting.
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

    /// Notes that a peer does not wait for the rest of a request any more.
    pub(super) fn cancelled(&mut self, peer: PeerId, request: RequestId) {
        let Some(known) = self.peers.get_mut(&peer) else { return };
        known.later.retain(|serve| serve.request != Some(request));
        known.ahead.retain(|serve| serve.request != Some(request));
        if known.waiting > 0 {
            self.stop_waiting(peer, Some(request));
        }
    }

    /// Removes a peer from the chunks that it waits for: those of one request, or all.
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
                    chain.forget(peer); // it may come from a host that waits for this one
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
    /// The number of local chunks that it waits for.
    fn waits_for_bytes(&self) -> u32 {
        let demanded = self.serves.iter().filter(|serve| serve.urgency == Urgency::Demand);
        demanded.map(|serve| serve.left).sum()
    }

    /// The part of a request that the driver has been given to send there, with this chunk in it.
    fn being_sent(&mut self, request: RequestId, blob: BlobId, chunk: u32) -> Option<&mut Serve> {
        let is_it = |serve: &&mut Serve| {
            (serve.request, serve.blob) == (Some(request), blob) && serve.chunks.numbers().contains(&chunk)
        };
        self.serves.iter_mut().find(is_it)
    }

    /// Takes a chunk of a request, or one that was to be pushed, from the queues of chunks without urgency; `true` if
    /// it was there.
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

/// Continues a chain, or begins it, with hosts that are known to have the chunk and are `like` the asker, other than
/// the asker. `true` if there are any.
fn seed_chain(blob: &mut Blob, asker: PeerId, role: Role, like: impl Fn(PeerId) -> bool, chunk: u32) -> bool {
    let known = blob.chains.get(&chunk);
    let is_new =
        |peer: PeerId| peer != asker && like(peer) && known.is_none_or(|chain| chain.knows(peer).is_none());
    let having = blob.maps.iter().filter(|(_, map)| map.has.has(chunk)).map(|(peer, _)| *peer);
    let mut having: Vec<PeerId> = having.filter(|peer| is_new(*peer)).collect();
    if having.is_empty() {
        return false;
    }
    // The seeds differ from chunk to chunk.
    let first = chunk as usize % having.len();
    having.rotate_left(first);
    let chain = blob.chains.entry(chunk).or_default();
    having.into_iter().take(SEEDS).for_each(|peer| chain.has(peer, role));
    true
}

/// Adds a chunk to a list of runs with the same receiver.
fn run_of(runs: &mut Vec<(Chunks, PeerKey)>, chunk: u32, to: PeerKey) {
    match runs.last_mut() {
        Some((run, known)) if *known == to && run.numbers().end == chunk => run.count += 1,
        _ => runs.push((Chunks::one(chunk), to)),
    }
}
