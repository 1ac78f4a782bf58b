//! Chunks that a root sends its agents without a request: those that they will request next, as far as it knows.
//!
//! Bytes go to an agent in three queues: chunks that reads wait for, chunks that are sent ahead, and chunks that were
//! requested without urgency. Chunks sent ahead are those that agents before this one read next, one after the other;
//! requests without urgency are mostly a guess, the rest of a block of which a part was read. So the former go first,
//! and those of them that were requested already are sent in answer to that request.
//!
//! An agent may request a chunk that is on its way to it: the request crosses it. A request that comes sooner after the
//! chunk left than such chunks take to be advertised ([`Message::Have`](crate::Message::Have)) is answered by a
//! promise, and the chunk is not sent again. A later request is served: the agent could not keep the chunk.

use super::Node;
use super::blob::{Blob, PeerMap, push};
use super::serving::WithDriver;
use crate::event::{Action, BlobId, BlobKey, Chunks, PeerId, PeerKey, Urgency};
use crate::recent::ChunkKey;
use std::collections::BTreeMap;

/// The number of chunks that wait to be sent to one peer without a request: more would not come sooner.
const AHEAD: usize = 32;

impl Node {
    /// Notes an agent's request in the root's memory, and sends the agent the chunks that it will request next.
    pub(super) fn predict(&mut self, peer: PeerId, id: BlobId, chunks: Chunks, actions: &mut Vec<Action>) {
        if self.settings.push == 0 || !self.membership.has_agent(peer) {
            return;
        }
        let Some(key) = self.membership.key_of(peer) else { return };
        // Requested chunks are read afterwards, and reported a second time.
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let cut = blob.cut(chunks);
        let map = blob.maps.entry(peer).or_default();
        let mut new = Vec::new();
        for chunk in cut.numbers().filter(|chunk| !map.read.has(*chunk)) {
            push(&mut new, chunk);
        }
        map.read.set(cut);
        if new.is_empty() {
            return;
        }
        let name = blob.key;
        let reports = self.recent.is_reported_by(key);
        let unread = unread(&self.blobs, &self.blob_keys, (peer, key), reports);
        new.into_iter().for_each(|run| self.recent.on_request(key, name, run, unread));
        self.send_ahead(peer, actions);
    }

    /// Sends an agent the chunks that it will request next, once half of those queued before have left.
    pub(super) fn send_ahead(&mut self, peer: PeerId, actions: &mut Vec<Action>) {
        if self.settings.push == 0 || !self.membership.has_agent(peer) {
            return;
        }
        let Some((queued, with_driver)) = self.serving.ahead(peer) else { return };
        let mut room = AHEAD.saturating_sub(queued);
        // Not for each chunk that leaves: finding the next ones takes a walk past all that the agent has.
        if room < AHEAD / 2 {
            return;
        }
        let Some(key) = self.membership.key_of(peer) else { return };
        let mut next = Vec::new();
        let lacks = lacks(&self.blobs, &self.blob_keys, (peer, key));
        // Some of them may be with the driver.
        let wanted = room + with_driver;
        self.recent.next(key, (self.settings.push as usize, wanted), lacks, &mut next);
        for piece in next {
            let Some(id) = self.blob_keys.get(&piece.blob).copied() else { continue };
            let Some(blob) = self.blobs.get_mut(&id) else { continue };
            if self.serving.sends(peer, id, piece.chunk) {
                continue;
            }
            if room == 0 {
                return;
            }
            room -= 1;
            blob.maps.entry(peer).or_default().sent.set(Chunks::one(piece.chunk));
            self.serving.send_ahead(peer, id, piece.chunk);
        }
        self.serving.fill_background(peer, actions);
    }

    /// Notes that an agent was sent chunks, which need not be sent ahead.
    pub(super) fn was_sent_ahead(&mut self, peer: PeerId, id: BlobId, chunks: Chunks) {
        if self.settings.push > 0
            && self.membership.has_agent(peer)
            && let Some(blob) = self.blobs.get_mut(&id)
        {
            let cut = blob.cut(chunks);
            blob.maps.entry(peer).or_default().sent.set(cut);
        }
    }

    /// Handles a read that waits for a chunk that the driver has been given to send a peer without a request, or that
    /// has left for it a moment ago. `true` if that is so: the chunk comes, and need not be sent again.
    pub(super) fn is_sent_ahead(
        &mut self,
        peer: PeerId,
        id: BlobId,
        chunk: u32,
        urgency: Urgency,
        actions: &mut Vec<Action>,
    ) -> bool {
        let Some(len) = self.blobs.get(&id).map(|blob| blob.len) else { return false };
        match self.serving.requested_pushed(peer, (id, len), chunk, urgency, self.now) {
            WithDriver::No => return false,
            WithDriver::Yes => {}
            WithDriver::Promoted(chunks) => {
                actions.push(Action::Serve { peer, request: None, blob: id, chunks, urgency });
            }
        }
        true
    }
}

/// `true` of a chunk that is local, and that an agent has not and is not about to get without a request.
fn lacks(
    blobs: &BTreeMap<BlobId, Blob>,
    names: &BTreeMap<BlobKey, BlobId>,
    (peer, key): (PeerId, PeerKey),
) -> impl Fn(ChunkKey) -> bool + Copy {
    move |piece| {
        let Some(blob) = names.get(&piece.blob).and_then(|id| blobs.get(id)) else { return false };
        let is_there = |map: &PeerMap| map.has.has(piece.chunk) || map.sent.has(piece.chunk);
        blob.sharing.is_with(key)
            && blob.table.is_local(piece.chunk)
            && !blob.maps.get(&peer).is_some_and(is_there)
    }
}

/// `true` of a chunk that an agent could have read, and has not: for an agent that `reports`, a chunk that it has not
/// reported; for another, a chunk that it lacks.
fn unread(
    blobs: &BTreeMap<BlobId, Blob>,
    names: &BTreeMap<BlobKey, BlobId>,
    (peer, key): (PeerId, PeerKey),
    reports: bool,
) -> impl Fn(ChunkKey) -> bool + Copy {
    let lacks = lacks(blobs, names, (peer, key));
    move |piece| {
        let blob = names.get(&piece.blob).and_then(|id| blobs.get(id));
        let told = |blob: &Blob| blob.maps.get(&peer).is_some_and(|map| map.read.has(piece.chunk));
        let is_shared = |blob: &&Blob| reports && blob.sharing.is_with(key);
        lacks(piece) || blob.filter(is_shared).is_some_and(|blob| !told(blob))
    }
}
