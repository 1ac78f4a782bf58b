//! The adverts of local chunks, and the treatment of other hosts' adverts: the paper's Algorithm 3.

use super::Node;
use super::announcer::RUNS;
use super::blob::{PeerMap, push};
use super::chunks::{Aim, ChunkState};
use super::sources::HOPS;
use super::timers::Timer;
use crate::event::{Action, BlobId, Chunks, PeerId, ReaderId, Urgency};
use crate::message::Message;
use crate::placement;

/// The number of hosts whose adverts are heeded for one blob.
const MAPS: usize = 1024;

impl Node {
    /// Notes runs that became local: they will be advertised.
    pub(super) fn note(&mut self, id: BlobId, runs: &[Chunks]) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        runs.iter().for_each(|run| blob.announcer.log.push(*run));
        if !runs.is_empty() && !blob.sharing.sharers().is_empty() {
            self.advertise_soon();
        }
    }

    /// Sets the timer of adverts.
    pub(super) fn advertise_soon(&mut self) {
        if self.advert_alarm.set() {
            self.timers.set(self.now + self.settings.advert_every, Timer::Adverts);
        }
    }

    /// Runs the timer of adverts: tells the neighbours of each blob which chunks have come since they were told last,
    /// and new neighbours all chunks.
    pub(super) fn adverts_due(&mut self, actions: &mut Vec<Action>) {
        self.advert_alarm.ring();
        let ids: Vec<BlobId> = self.blobs.keys().copied().collect();
        let root = self.membership.root().and_then(|root| Some((root, self.membership.key_of(root)?)));
        for id in ids {
            let new = self.choose_neighbours(id);
            let Some(blob) = self.blobs.get_mut(&id) else { continue };
            let reads = blob.announcer.take_reads();
            if !reads.is_empty() {
                let root = root.filter(|(_, key)| blob.sharing.is_with(*key));
                let read =
                    |(peer, _)| Action::Send { peer, message: Message::Read { blob: id, runs: reads } };
                actions.extend(root.map(read));
            }
            let have = |peer: PeerId, runs: &[Chunks], actions: &mut Vec<Action>| {
                actions.extend(runs.chunks(RUNS).map(|runs| Action::Send {
                    peer,
                    message: Message::Have { blob: id, runs: runs.to_vec() },
                }));
            };
            if !new.is_empty() {
                let mut all = Vec::new();
                let runs = blob.announcer.log.all().iter();
                let chunks = runs.flat_map(|run| run.numbers());
                for chunk in chunks.filter(|chunk| blob.table.is_local(*chunk)) {
                    push(&mut all, chunk);
                }
                new.iter().for_each(|peer| have(*peer, &all, actions));
            }
            if blob.announcer.log.is_announced() {
                continue;
            }
            let unannounced = blob.announcer.log.take_unannounced();
            let informed = blob.announcer.neighbours().iter().filter(|peer| !new.contains(peer));
            informed.for_each(|peer| have(*peer, &unannounced, actions));
        }
    }

    /// Handles another host's advert.
    pub(super) fn on_have(&mut self, peer: PeerId, id: BlobId, runs: &[Chunks], actions: &mut Vec<Action>) {
        let Some(key) = self.membership.key_of(peer) else { return };
        let Some(blob) = self.blobs.get_mut(&id).filter(|blob| blob.sharing.is_with(key)) else { return };
        if blob.maps.len() >= MAPS && !blob.maps.contains_key(&peer) {
            return;
        }
        let (mut advertised, stripe) = (Vec::new(), self.settings.stripe);
        let pinned = blob.sharing.pinned.as_ref().map(|pinned| (pinned, pinned.place_of(key)));
        let keeps = |chunk| {
            let stripe = placement::stripe_of(chunk, stripe);
            pinned.is_some_and(|(pinned, place)| pinned.keeps(place, stripe))
        };
        let mut room = u64::from(blob.chunks) * 2;
        for run in runs {
            let run = blob.cut(*run);
            room = room.saturating_sub(u64::from(run.count));
            if run.count == 0 || room == 0 {
                continue;
            }
            blob.maps.entry(peer).or_insert_with(PeerMap::default).has.set(run);
            self.serving.has_landed(peer, id, run, self.now);
            let is_news = |chunk: &u32| blob.table.is_news(*chunk) && !keeps(*chunk);
            for chunk in run.numbers().filter(is_news) {
                push(&mut advertised, chunk);
            }
        }
        let before = blob.queue.advertise(advertised);
        self.prefetch(id, actions);
        if let Some(blob) = self.blobs.get_mut(&id) {
            self.counters.withheld += blob.queue.withheld(before);
        }
    }

    /// Handles another host's report of chunks that it does not have any more.
    pub(super) fn on_peer_lost(&mut self, peer: PeerId, id: BlobId, runs: &[Chunks]) {
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
        let Some(blob) = self.blobs.get_mut(&id).filter(|blob| !blob.queue.is_empty()) else { return };
        let (reader, mut ahead, mut warm) = (blob.reader, Vec::new(), Vec::new());
        while self.prefetch.has_window()
            && let Some(chunk) = blob.queue.next_warm()
        {
            if blob.table.is_remote(chunk) {
                blob.table.begin(chunk, Aim::Warm, Urgency::Background, HOPS);
                self.prefetch.begin(Aim::Warm, reader, blob.bytes(chunk));
                warm.push(chunk);
            }
        }
        while !blob.queue.is_planned
            && self.prefetch.has_room(reader)
            && let Some(chunk) = blob.queue.next_advertised()
        {
            if blob.table.is_remote(chunk) && blob.is_advertised(chunk) {
                blob.table.begin(chunk, Aim::Prefetch, Urgency::Background, HOPS);
                self.prefetch.begin(Aim::Prefetch, reader, blob.bytes(chunk));
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
            let Some(other) = self.prefetch.blob_of(reader, at) else { return };
            if other != id {
                self.prefetch(other, actions);
            }
        }
    }

    /// Notes that a disk reads a blob.
    pub(super) fn on_read_by(&mut self, id: BlobId, reader: ReaderId, actions: &mut Vec<Action>) {
        let Some(blob) = self.blobs.get_mut(&id).filter(|blob| blob.reader.is_none()) else { return };
        blob.reader = Some(reader);
        self.prefetch.join(reader, id, blob.unread());
        self.prefetch(id, actions);
    }

    /// Notes chunks that are to be warm.
    pub(super) fn on_warm(&mut self, id: BlobId, chunks: Chunks, actions: &mut Vec<Action>) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let cut = blob.cut(chunks);
        blob.queue.warm(cut);
        self.prefetch(id, actions);
    }

    /// Notes that a disk follows a plan, or does not any more.
    pub(super) fn on_planned(&mut self, id: BlobId, running: bool, actions: &mut Vec<Action>) {
        if let Some(blob) = self.blobs.get_mut(&id) {
            blob.queue.is_planned = running;
        }
        self.prefetch(id, actions);
    }

    /// Notes that a disk read local chunks.
    pub(super) fn on_read(&mut self, id: BlobId, chunks: Chunks, actions: &mut Vec<Action>) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        for chunk in blob.cut(chunks).numbers() {
            if blob.table.is_local(chunk) {
                let prefetched = blob.read(chunk, self.prefetch.account(blob.reader));
                self.counters.prefetched_read += u64::from(prefetched);
            }
        }
        self.prefetch_all(id, actions);
        // The root may know what this agent will read next.
        if self.membership.seeks_root()
            && let Some(blob) = self.blobs.get_mut(&id)
        {
            blob.announcer.add_read(chunks);
            self.advertise_soon();
        }
    }

    /// Takes an agent's report of the reads of its disks.
    pub(super) fn on_peer_read(
        &mut self,
        peer: PeerId,
        id: BlobId,
        runs: &[Chunks],
        actions: &mut Vec<Action>,
    ) {
        let Some(key) = self.membership.key_of(peer) else { return };
        if self.settings.push > 0 && self.membership.has_agent(peer) {
            self.recent.on_report(key);
        }
        for run in runs.iter().take(RUNS) {
            let blob = self.blobs.get(&id).filter(|blob| blob.sharing.is_with(key));
            let Some(blob) = blob else { return };
            self.predict(peer, id, blob.cut(*run), actions);
        }
    }

    /// Notes chunks that are not local any more, and tells the neighbours.
    pub(super) fn on_lost(&mut self, id: BlobId, chunks: Chunks, actions: &mut Vec<Action>) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let mut runs = Vec::new();
        for chunk in blob.cut(chunks).numbers() {
            let Some(before) = blob.table.lost(chunk) else { continue };
            if before == ChunkState::Unread
                && let Some(account) = self.prefetch.account(blob.reader)
            {
                account.remove_unread(blob.bytes(chunk));
            }
            push(&mut runs, chunk);
        }
        for runs in runs.chunks(RUNS) {
            actions.extend(blob.announcer.neighbours().iter().map(|peer| Action::Send {
                peer: *peer,
                message: Message::Lost { blob: id, runs: runs.to_vec() },
            }));
        }
    }
}
