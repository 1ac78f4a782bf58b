//! Chunks that disks want, and that other hosts request: the choice of their source.

use super::blob::{Aim, Blob, Coming, How, Map, State, push};
use super::connections::find_ancestors;
use super::peers::Peer;
use super::{DISK, Fetch, Node, Request, Timer, Want, fallback};
use crate::event::{Action, BlobId, Chunks, FetchId, PeerId, PeerKey, Role, Urgency, WantId};
use crate::message::{Message, RequestId, Why};
use crate::placement;
use crate::settings::Topology;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The most hosts that a request passes through. A tree of a million hosts has 20 levels.
const HOPS: u8 = 24;

/// The number of peers that are asked for a chunk, one after the other, before the store is.
const TRIES: u8 = 6;

/// The number of chunks that are fetched from the store in one request.
const FETCHED: u32 = 16;

/// The hops of a request to a host that keeps a pinned blob: it may name other hosts that have the chunk, and fetches
/// it for none.
pub(super) const KEEPER: u8 = 1;

/// The number of homes that are tried for a stripe.
const HOMES: usize = 4;

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
    insist: bool,
}

impl Node {
    pub(super) fn want(
        &mut self,
        want: WantId,
        id: BlobId,
        chunks: Chunks,
        urgency: Urgency,
        actions: &mut Vec<Action>,
    ) {
        self.counters.wants += 1;
        let (now, after) = (self.now, self.resort_after());
        let Some(blob) = self.blobs.get_mut(&id) else {
            self.counters.elsewhere += u64::from(chunks.count);
            actions.push(Action::Answer { want, elsewhere: vec![chunks] });
            return;
        };
        let mut record = Want { blob: id, urgency, since: self.now, left: 0, elsewhere: Vec::new() };
        let (mut new, mut hurried, mut again) = (Vec::new(), Vec::new(), Vec::new());
        for chunk in blob.cut(chunks).numbers() {
            if blob.is_here(chunk) {
                continue;
            }
            let bytes = blob.bytes(chunk);
            let coming = match blob.coming.entry(chunk) {
                Entry::Vacant(entry) => {
                    new.push(chunk);
                    let known = blob.maps.values().any(|map| map.has.has(chunk));
                    if known && urgency == Urgency::Demand && !blob.planned {
                        let account = self.accounts.of(blob.reader);
                        let hit = account.is_some_and(|throttle| throttle.withheld_hit(bytes));
                        self.counters.resets += u64::from(hit);
                    }
                    entry.insert(Coming::new(Aim::Needed, urgency, HOPS))
                }
                Entry::Occupied(mut entry) if let How::Disk(until) = entry.get().how => {
                    if now.since(fallback::left_at(until)) < after {
                        record.elsewhere.push(chunk);
                        continue;
                    }
                    // The disk asks again, after a while: the store has not delivered it.
                    again.push(chunk);
                    entry.get_mut().urgency = urgency.min(entry.get().urgency);
                    entry.into_mut()
                }
                Entry::Occupied(entry) => entry.into_mut(),
            };
            if coming.aim == Aim::Prefetch {
                coming.aim = Aim::Needed;
                self.accounts.settled(blob.reader, bytes);
                self.prefetching = self.prefetching.saturating_sub(bytes);
                blob.states[chunk as usize] = State::Remote;
            }
            coming.wants.push(want);
            record.left += 1;
            if urgency < coming.urgency {
                hurried.push(chunk);
            }
        }
        self.set_timer(self.now + self.patience.for_want(), Timer::Want(want));
        self.wants.insert(want, record);
        self.hurry(id, &hurried, actions);
        self.obtain(id, &new, actions);
        if !again.is_empty() {
            self.resort(id, &again, actions);
        }
        self.settle(want, actions);
        self.prefetch_all(id, actions);
    }

    /// Answers a want that waits for no more chunks.
    pub(super) fn settle(&mut self, want: WantId, actions: &mut Vec<Action>) {
        if self.wants.get(&want).is_none_or(|known| known.left > 0) {
            return;
        }
        let Some(mut known) = self.wants.remove(&want) else { return };
        self.counters.elsewhere += known.elsewhere.len() as u64;
        known.elsewhere.sort_unstable();
        let mut elsewhere = Vec::new();
        known.elsewhere.iter().for_each(|chunk| push(&mut elsewhere, *chunk));
        actions.push(Action::Answer { want, elsewhere });
    }

    /// Promotes chunks that were on their way without urgency, because a read waits for them now.
    pub(super) fn hurry(&mut self, id: BlobId, chunks: &[u32], actions: &mut Vec<Action>) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let mut asked: BTreeMap<RequestId, Vec<Chunks>> = BTreeMap::new();
        let mut fetched: Vec<FetchId> = Vec::new();
        for chunk in chunks {
            let Some(coming) = blob.coming.get_mut(chunk) else { continue };
            coming.urgency = Urgency::Demand;
            match coming.how {
                How::Asked(request) => push(asked.entry(request).or_default(), *chunk),
                How::Fetch(fetch) if !fetched.contains(&fetch) => fetched.push(fetch),
                _ => {}
            }
        }
        for (request, runs) in asked {
            let Some(known) = self.requests.get_mut(&request) else { continue };
            if self.peers.get(&known.peer).is_some_and(|peer| peer.is_avoided(self.now)) {
                // A peer that was silent to other requests is not waited for.
                let failed = self.give_up_request(request, actions);
                self.obtain(id, &failed, actions);
                continue;
            }
            known.urgency = Urgency::Demand;
            (known.since, known.heard, known.promised, known.began) = (self.now, false, false, false);
            (known.asked, known.lively, known.moved) = (self.now, self.now, self.now);
            let (peer, hops, insist) = (known.peer, known.hops, known.insist);
            let at = self.now + self.patience.for_sign();
            self.set_timer(at, Timer::Request(request));
            actions.extend(runs.into_iter().map(|chunks| {
                let urgency = Urgency::Demand;
                Action::Send {
                    peer,
                    message: Message::Ask { request, blob: id, chunks, urgency, hops, insist },
                }
            }));
        }
        for fetch in fetched {
            let Some(known) = self.fetches.get_mut(&fetch) else { continue };
            (known.since, known.urgency) = (self.now, Urgency::Demand);
            let (blob, chunks) = (known.blob, known.chunks);
            actions.push(Action::Fetch { fetch, blob, chunks, urgency: Urgency::Demand });
        }
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
            let Some(coming) = self.blobs.get(&id).and_then(|blob| blob.coming.get(&chunk)) else { continue };
            let (urgency, insist) = (coming.urgency, anybody || (coming.insist && hops > 0));
            match &mut batch {
                Some(known)
                    if last == Some(peer)
                        && (known.urgency, known.hops, known.insist) == (urgency, hops, insist) =>
                {
                    known.chunks.count += 1;
                }
                _ => {
                    let new = Batch { peer, chunks: Chunks::one(chunk), urgency, hops, insist };
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
        let Some(blob) = self.blobs.get_mut(&id) else { return Route::Nowhere };
        let Some(coming) = blob.coming.get_mut(&chunk) else { return Route::Nowhere };
        let idle = coming.wants.is_empty() && coming.asks.is_empty();
        coming.resort |= suspect && !idle;
        let resort = coming.resort;
        let over = coming.tries >= if resort { fallback::ASKED } else { TRIES };
        if over && coming.back.is_none() {
            return if idle && coming.aim != Aim::Warm { Route::Nowhere } else { Route::Store };
        }
        while !coming.named.is_empty() {
            let peer = coming.named.remove(0);
            let known = self.peers.get(&peer).filter(|known| !known.is_avoided(self.now));
            if known.is_some() && !coming.tried.contains(&peer) {
                return Route::Ask { peer, hops: 0 };
            }
        }
        let usable = |peer: PeerId, tried: &[PeerId]| {
            let known = self.peers.get(&peer).filter(|known| !known.is_avoided(self.now));
            known.filter(|_| !tried.contains(&peer))
        };
        let best = least_loaded(&blob.maps, chunk, last, |peer| usable(peer, &coming.tried).map(Peer::load));
        let tried = std::mem::take(&mut coming.tried);
        let stripe = placement::stripe_of(chunk, self.settings.stripe);
        let anybody = if resort && best.is_none() && !over {
            fallback::next(blob, &self.peers, last, stripe, |peer| usable(peer, &tried).is_some())
        } else {
            None
        };
        if let Some(coming) = blob.coming.get_mut(&chunk) {
            coming.tried = tried;
        }
        if let Some(peer) = anybody {
            return Route::Anybody(peer);
        }
        let Some(coming) = blob.coming.get_mut(&chunk) else { return Route::Nowhere };
        // No other peer has it: the peer that has promised it is waited for again.
        if best.is_none()
            && let Some((peer, _)) = coming.back.take()
        {
            (coming.resort, coming.tries) = (false, 0);
            coming.tried.clear();
            if self.peers.get(&peer).is_some_and(|known| !known.is_avoided(self.now)) {
                return Route::Ask { peer, hops: coming.hops };
            }
        }
        let Some(coming) = blob.coming.get_mut(&chunk) else { return Route::Nowhere };
        if best.is_none() && idle && coming.aim != Aim::Warm {
            return Route::Nowhere;
        }
        let (hops, tried) = (coming.hops, std::mem::take(&mut coming.tried));
        let upstream = if hops == 0 { None } else { self.upstream(id, chunk, &tried) };
        if let Some(coming) = self.blobs.get_mut(&id).and_then(|blob| blob.coming.get_mut(&chunk)) {
            coming.tried = tried;
        }
        // A peer that has the chunk is asked for local chunks only, unless it is the upstream, which may name others if
        // many ask.
        if let Some(peer) = best.filter(|best| upstream != Some(*best)) {
            return Route::Ask { peer, hops: 0 };
        }
        let pinned = self.blobs.get(&id).is_some_and(|blob| blob.pinned.is_some());
        match upstream {
            Some(peer) => Route::Ask { peer, hops: if pinned { KEEPER } else { hops } },
            None => Route::Store,
        }
    }

    /// The host that fetches a chunk that no peer is known to have: another host, or `None` if this host has to. The
    /// choice never goes in a circle: homes ascend in weight, parents in order, and agents ask roots; a host that keeps
    /// a pinned blob fetches it for no other.
    fn upstream(&mut self, id: BlobId, chunk: u32, tried: &[PeerId]) -> Option<PeerId> {
        let (peers, now, me) = (&self.peers, self.now, self.key);
        let usable = |peer: &PeerId| {
            !tried.contains(peer) && peers.get(peer).is_some_and(|known| !known.is_avoided(now))
        };
        let blob = self.blobs.get_mut(&id)?;
        let stripe = placement::stripe_of(chunk, self.settings.stripe);
        if let Some(pinned) = &blob.pinned {
            let load = |key| {
                let peer = blob.sharer(key).filter(usable)?;
                Some((peers.get(&peer)?.load(), peer))
            };
            return pinned.source(stripe, load, |key| blob.is_shared_with(key));
        }
        match self.settings.topology {
            Topology::Roots if self.role == Role::Agent && self.root.is_in_sight() => {
                let shares = |root: &PeerId| peers.get(root).is_some_and(|r| blob.is_shared_with(r.key));
                let root = self.root.of().filter(|root| usable(root) && shares(root));
                // An agent without a root, or with one that fails it, asks the home that other agents' roots would ask.
                root.or_else(|| self.settings.homes.then(|| home(blob, me, stripe, usable)).flatten())
            }
            Topology::Tree(arity) => {
                find_ancestors(blob, peers, me, self.role, arity);
                blob.ancestors.iter().filter_map(|key| blob.sharer(*key)).find(usable)
            }
            _ if !self.settings.homes => None,
            _ => home(blob, me, stripe, usable),
        }
    }

    fn ask(&mut self, id: BlobId, batch: &Batch, actions: &mut Vec<Action>) {
        let Batch { peer, chunks, urgency, hops, insist } = *batch;
        let request = RequestId(self.next_request);
        self.next_request = self.next_request.wrapping_add(1);
        let mut around = 0;
        if let Some(blob) = self.blobs.get_mut(&id) {
            for chunk in chunks.numbers() {
                if let Some(coming) = blob.coming.get_mut(&chunk) {
                    coming.how = How::Asked(request);
                    coming.tries += 1;
                    around = coming.around;
                }
            }
        }
        if let Some(known) = self.peers.get_mut(&peer) {
            known.outstanding += chunks.count;
        }
        let known = Request {
            peer,
            blob: id,
            chunks,
            left: chunks.count,
            urgency,
            hops,
            insist,
            since: self.now,
            asked: self.now,
            heard: false,
            promised: false,
            began: false,
            answering: false,
            lively: self.now,
            moved: self.now,
            kept: self.patience.kept(),
            around,
        };
        self.requests.insert(request, known);
        self.set_timer(self.now + self.patience.of(urgency, false), Timer::Request(request));
        let message = Message::Ask { request, blob: id, chunks, urgency, hops, insist };
        actions.push(Action::Send { peer, message });
    }

    /// Leaves chunks that no other host delivers to the store. If disks wait for them, and for nothing beside them, the
    /// disks fetch them themselves. Otherwise the agent does: a disk that waits for other chunks as well would begin
    /// only when those are local.
    pub(super) fn leave_to_store(&mut self, id: BlobId, chunks: &[u32], actions: &mut Vec<Action>) {
        let Some(blob) = self.blobs.get(&id) else { return };
        let mut counts: BTreeMap<WantId, u32> = BTreeMap::new();
        let mut alone = true;
        for coming in chunks.iter().filter_map(|chunk| blob.coming.get(chunk)) {
            alone &= coming.asks.is_empty() && !coming.wants.is_empty();
            coming.wants.iter().for_each(|want| *counts.entry(*want).or_default() += 1);
        }
        let waits_so =
            |(want, count): (&WantId, &u32)| self.wants.get(want).is_some_and(|w| w.left == *count);
        if !blob.fetchable || alone && counts.iter().all(waits_so) {
            self.leave_to_disks(id, chunks, actions);
        } else {
            self.fetch(id, chunks, actions);
        }
    }

    /// Leaves chunks to the disks that want them; other hosts that wait for them wait for those disks, or in vain.
    pub(super) fn leave_to_disks(&mut self, id: BlobId, chunks: &[u32], actions: &mut Vec<Action>) {
        let until = self.now + DISK;
        let (mut settled, mut watched) = (Vec::new(), Vec::new());
        for &chunk in chunks {
            let Some(blob) = self.blobs.get_mut(&id) else { return };
            let Some(coming) = blob.coming.get_mut(&chunk) else { continue };
            if coming.wants.is_empty() {
                self.give_up(id, chunk, Why::Failed, actions);
                continue;
            }
            coming.how = How::Disk(until);
            let probed = self.probe.is_some_and(|probe| self.now.since(probe.2) < self.patience.hardest());
            if coming.urgency == Urgency::Demand && !probed {
                self.probe = Some((id, chunk, self.now));
            }
            if coming.aim != Aim::Needed {
                coming.aim = Aim::Needed;
                self.prefetching = self.prefetching.saturating_sub(Chunks::one(chunk).bytes(blob.len).len());
            }
            for want in std::mem::take(&mut coming.wants) {
                let Some(known) = self.wants.get_mut(&want) else { continue };
                known.left -= 1;
                known.elsewhere.push(chunk);
                if known.left == 0 {
                    settled.push(want);
                }
            }
            push(&mut watched, chunk);
        }
        let late = self.now + self.resort_after();
        for run in watched {
            self.set_timer(until, Timer::Disk(id, run));
            self.set_timer(late, Timer::Disk(id, run));
        }
        settled.into_iter().for_each(|want| self.settle(want, actions));
    }

    fn fetch(&mut self, id: BlobId, chunks: &[u32], actions: &mut Vec<Action>) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let mut runs: Vec<(Chunks, Urgency)> = Vec::new();
        for &chunk in chunks {
            let Some(coming) = blob.coming.get(&chunk) else { continue };
            match runs.last_mut() {
                Some((run, urgency))
                    if run.numbers().end == chunk && run.count < FETCHED && *urgency == coming.urgency =>
                {
                    run.count += 1;
                }
                _ => runs.push((Chunks::one(chunk), coming.urgency)),
            }
        }
        for (chunks, urgency) in runs {
            let fetch = FetchId(self.next_fetch);
            self.next_fetch += 1;
            for chunk in chunks.numbers() {
                if let Some(coming) = blob.coming.get_mut(&chunk) {
                    coming.how = How::Fetch(fetch);
                }
            }
            self.fetches.insert(fetch, Fetch { blob: id, chunks, since: self.now, urgency, helped: false });
            actions.push(Action::Fetch { fetch, blob: id, chunks, urgency });
        }
    }
}

/// Of the peers that advertised a chunk and can be asked, the one with the least load, or the `last`.
fn least_loaded(
    maps: &BTreeMap<PeerId, Map>,
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

/// The home of a stripe, or the host that would be it without those that cannot be asked; `None` if that is this host.
fn home(blob: &mut Blob, me: PeerKey, stripe: u32, usable: impl Fn(&PeerId) -> bool) -> Option<PeerId> {
    let home = blob.home_of.home(&blob.homes, stripe)?;
    if home == me {
        return None;
    }
    if let Some(peer) = blob.sharer(home).filter(&usable) {
        return Some(peer);
    }
    let heavier = blob.homes.successors(blob.key, stripe, HOMES).into_iter().take_while(|key| *key != me);
    let mut heavier = heavier.filter_map(|key| blob.sharer(key));
    heavier.find(usable)
}
