//! The adverts of local chunks, and the treatment of other hosts' adverts: the paper's Algorithm 3.

use super::blob::{Aim, Coming, Map, State, push};
use super::{Node, Timer};
use crate::event::{Action, BlobId, Chunks, PeerId, ReaderId, Role, Urgency};
use crate::message::Message;
use crate::placement;
use crate::settings::Topology;

/// The number of runs in one advert; more go into the next.
const RUNS: usize = 1024;

/// The number of advertised runs that are remembered; beyond it, the oldest are forgotten.
const RECORDED: usize = 1 << 16;

/// The number of hosts whose adverts are heeded for one blob.
const MAPS: usize = 1024;

/// The number of hosts through which requests go for chunks that are to be warm, or that a host's upstream advertises.
const HOPS: u8 = 24;

impl Node {
    /// Notes runs that became local: they will be advertised.
    pub(super) fn note(&mut self, id: BlobId, runs: &[Chunks]) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        runs.iter().for_each(|run| blob.log.push(*run));
        if !runs.is_empty() && !blob.sharers.is_empty() {
            self.tell_soon();
        }
    }

    pub(super) fn tell_soon(&mut self) {
        if !self.telling {
            self.telling = true;
            self.set_timer(self.now + self.settings.advert_every, Timer::Adverts);
        }
    }

    /// Tells the neighbours of each blob which chunks have come since they were told last, and new neighbours all
    /// chunks.
    pub(super) fn tell(&mut self, actions: &mut Vec<Action>) {
        self.telling = false;
        let ids: Vec<BlobId> = self.blobs.keys().copied().collect();
        let root = self.root.of().and_then(|root| Some((root, self.peers.get(&root)?.key)));
        for id in ids {
            let new = self.choose_neighbours(id);
            if let Some(blob) = self.blobs.get_mut(&id)
                && !blob.untold_reads.is_empty()
            {
                let runs = std::mem::take(&mut blob.untold_reads);
                let root = root.filter(|(_, key)| blob.is_shared_with(*key));
                let said = |(peer, _)| Action::Send { peer, message: Message::Read { blob: id, runs } };
                actions.extend(root.map(said));
            }
            let Some(blob) = self.blobs.get_mut(&id) else { continue };
            let have = |peer: PeerId, runs: &[Chunks], actions: &mut Vec<Action>| {
                actions.extend(runs.chunks(RUNS).map(|runs| Action::Send {
                    peer,
                    message: Message::Have { blob: id, runs: runs.to_vec() },
                }));
            };
            if !new.is_empty() {
                let mut all = Vec::new();
                let runs = blob.log.all().iter();
                for chunk in runs.flat_map(|run| run.numbers()).filter(|chunk| blob.is_here(*chunk)) {
                    push(&mut all, chunk);
                }
                new.iter().for_each(|peer| have(*peer, &all, actions));
            }
            if blob.log.is_told() {
                continue;
            }
            let untold = blob.log.untold();
            let known = blob.neighbours.iter().filter(|peer| !new.contains(peer));
            known.for_each(|peer| have(*peer, &untold, actions));
        }
    }

    pub(super) fn heard_have(
        &mut self,
        peer: PeerId,
        id: BlobId,
        runs: &[Chunks],
        actions: &mut Vec<Action>,
    ) {
        let Some(key) = self.peers.get(&peer).map(|peer| peer.key) else { return };
        let Some(blob) = self.blobs.get_mut(&id).filter(|blob| blob.is_shared_with(key)) else { return };
        if blob.maps.len() >= MAPS && !blob.maps.contains_key(&peer) {
            return;
        }
        let (mut recorded, stripe) = (Vec::new(), self.settings.stripe);
        let pinned = blob.pinned.as_ref().map(|pinned| (pinned, pinned.place_of(key)));
        let keeps = |chunk| {
            let stripe = placement::stripe_of(chunk, stripe);
            pinned.is_some_and(|(pinned, place)| pinned.keeps(place, stripe))
        };
        let mut room = u64::from(blob.chunks) * 2;
        for run in runs.iter().map(|run| blob.cut(*run)).collect::<Vec<_>>() {
            room = room.saturating_sub(u64::from(run.count));
            if run.count == 0 || room == 0 {
                continue;
            }
            blob.maps.entry(peer).or_insert_with(Map::default).has.set(run);
            if let Some(known) = self.peers.get_mut(&peer) {
                known.crossing.heard(self.now, id, run);
            }
            let is_news = |chunk: &u32| blob.state(*chunk) == State::Remote && !keeps(*chunk);
            for chunk in run.numbers().filter(is_news) {
                push(&mut recorded, chunk);
            }
        }
        let before = blob.recorded.len();
        blob.recorded.extend(recorded);
        self.prefetch(id, actions);
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let withheld = blob.recorded.iter().skip(before.min(blob.recorded.len()));
        self.counters.withheld += withheld.map(|run| u64::from(run.count)).sum::<u64>();
        while blob.recorded.len() > RECORDED {
            blob.recorded.pop_front();
        }
    }

    pub(super) fn heard_lost(&mut self, peer: PeerId, id: BlobId, runs: &[Chunks]) {
        let Some(map) = self.blobs.get_mut(&id).and_then(|blob| blob.maps.get_mut(&peer)) else { return };
        for run in runs.iter().take(RUNS) {
            map.has.clear(*run);
            map.sent.clear(*run);
            map.read.clear(*run);
        }
    }

    /// Requests chunks that were advertised, while few enough are unread, and chunks that are to be warm; both in
    /// order.
    pub(super) fn prefetch(&mut self, id: BlobId, actions: &mut Vec<Action>) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        if blob.recorded.is_empty() && blob.warming.is_empty() {
            return;
        }
        let window = self.settings.prefetch_window;
        let (mut ahead, mut warm) = (Vec::new(), Vec::new());
        while self.prefetching < window
            && let Some(chunk) = pop(&mut blob.warming)
        {
            if blob.state(chunk) == State::Remote && !blob.coming.contains_key(&chunk) {
                blob.coming.insert(chunk, Coming::new(Aim::Warm, Urgency::Background, HOPS));
                self.prefetching += blob.bytes(chunk);
                warm.push(chunk);
            }
        }
        while !blob.planned
            && self.prefetching < window
            && let Some(throttle) = self.accounts.of(blob.reader)
            && throttle.has_room(crate::CHUNK_SIZE)
            && let Some(chunk) = pop(&mut blob.recorded)
        {
            let known = blob.maps.values().any(|map| map.has.has(chunk));
            if known && blob.state(chunk) == State::Remote && !blob.coming.contains_key(&chunk) {
                let bytes = blob.bytes(chunk);
                blob.coming.insert(chunk, Coming::new(Aim::Prefetch, Urgency::Background, HOPS));
                blob.set_state(chunk, State::Prefetch);
                throttle.asked(bytes);
                self.prefetching += bytes;
                ahead.push(chunk);
            }
        }
        self.obtain(id, &warm, actions);
        self.obtain(id, &ahead, actions);
    }

    /// The same for all blobs on the account of this one's reader, this one first.
    pub(super) fn prefetch_all(&mut self, id: BlobId, actions: &mut Vec<Action>) {
        self.prefetch(id, actions);
        let reader = self.blobs.get(&id).and_then(|blob| blob.reader);
        for at in 0.. {
            let Some(other) = self.accounts.blobs(reader).get(at).copied() else { return };
            if other != id {
                self.prefetch(other, actions);
            }
        }
    }

    /// Notes that a disk reads a blob.
    pub(super) fn read_by(&mut self, id: BlobId, reader: ReaderId, actions: &mut Vec<Action>) {
        let Some(blob) = self.blobs.get_mut(&id).filter(|blob| blob.reader.is_none()) else { return };
        blob.reader = Some(reader);
        self.accounts.join(reader, id, self.settings.threshold);
        if let Some(throttle) = self.accounts.of(blob.reader) {
            throttle.unread(blob.unread());
        }
        self.prefetch(id, actions);
    }

    pub(super) fn warm(&mut self, id: BlobId, chunks: Chunks, actions: &mut Vec<Action>) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let cut = blob.cut(chunks);
        blob.warming.extend((cut.count > 0).then_some(cut));
        self.prefetch(id, actions);
    }

    pub(super) fn planned(&mut self, id: BlobId, running: bool, actions: &mut Vec<Action>) {
        if let Some(blob) = self.blobs.get_mut(&id) {
            blob.planned = running;
        }
        self.prefetch(id, actions);
    }

    /// Notes that a disk read local chunks.
    pub(super) fn read(&mut self, id: BlobId, chunks: Chunks, actions: &mut Vec<Action>) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        for chunk in blob.cut(chunks).numbers() {
            if blob.is_here(chunk) {
                let (_, prefetched) = blob.read(chunk, &mut self.accounts);
                self.counters.prefetched_read += u64::from(prefetched);
            }
        }
        self.prefetch_all(id, actions);
        self.tell_root(id, chunks);
    }

    /// Queues an agent's reads for its root, which may know what it will read next.
    fn tell_root(&mut self, id: BlobId, chunks: Chunks) {
        if self.settings.topology != Topology::Roots || self.role == Role::Root {
            return;
        }
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        // The root misses some of very many, as it does when a message is lost.
        if blob.untold_reads.len() < RUNS {
            blob.untold_reads.push(chunks);
        }
        self.tell_soon();
    }

    /// Takes an agent's report of the reads of its disks.
    pub(super) fn heard_read(
        &mut self,
        peer: PeerId,
        id: BlobId,
        runs: &[Chunks],
        actions: &mut Vec<Action>,
    ) {
        let Some(key) = self.peers.get(&peer).map(|peer| peer.key) else { return };
        if self.settings.push > 0 && self.root.has_agent(peer) {
            self.recent.tells(key);
        }
        for run in runs.iter().take(RUNS) {
            let Some(blob) = self.blobs.get(&id).filter(|blob| blob.is_shared_with(key)) else { return };
            self.predict(peer, id, blob.cut(*run), actions);
        }
    }

    /// Notes chunks that are not local any more, and tells the neighbours.
    pub(super) fn lost(&mut self, id: BlobId, chunks: Chunks, actions: &mut Vec<Action>) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let mut runs = Vec::new();
        for chunk in blob.cut(chunks).numbers() {
            if !blob.is_here(chunk) {
                continue;
            }
            if blob.state(chunk) == State::Local
                && let Some(throttle) = self.accounts.of(blob.reader)
            {
                throttle.matched(blob.bytes(chunk));
            }
            blob.set_state(chunk, State::Remote);
            push(&mut runs, chunk);
        }
        for runs in runs.chunks(RUNS) {
            actions.extend(blob.neighbours.iter().map(|peer| Action::Send {
                peer: *peer,
                message: Message::Lost { blob: id, runs: runs.to_vec() },
            }));
        }
    }
}

/// Takes the first chunk of the first run.
fn pop(runs: &mut std::collections::VecDeque<Chunks>) -> Option<u32> {
    let first = runs.front_mut()?;
    let chunk = first.first;
    if first.count <= 1 {
        runs.pop_front();
    } else {
        *first = Chunks { first: chunk + 1, count: first.count - 1 };
    }
    Some(chunk)
}
