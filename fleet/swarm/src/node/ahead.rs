//! What a root sends its agents unasked: what they will ask for next, as far as it knows.
//!
//! Bytes go to an agent in three queues: what somebody waits for, what is sent ahead, and what was asked for without
//! hurry. What is sent ahead is what agents before this one read next, one after the other; what is asked for without
//! hurry is mostly a guess, the rest of a block of which a part was read. So the former goes first, and what of it was
//! asked for already is sent in answer to that.
//!
//! An agent may ask for what is on its way to it: the request crosses it. Who asks sooner after something left for it
//! than such things take to be heard of ([`Message::Have`](crate::Message::Have)) is told that it comes, and is not
//! sent it again. Later it is: the agent could not keep it.

use super::Node;
use super::blob::{Blob, Map, push};
use super::peers::{Peer, Serve};
use crate::event::{Action, BlobId, BlobKey, Chunks, PeerId, PeerKey, Urgency};
use crate::recent::Piece;
use std::collections::BTreeMap;

/// Chunks that wait to be sent to one peer unasked: more would not come sooner.
const AHEAD: usize = 32;

impl Node {
    /// A root remembers what its agents ask for, and sends one what it will ask for next.
    pub(super) fn predict(&mut self, peer: PeerId, id: BlobId, chunks: Chunks, actions: &mut Vec<Action>) {
        if self.settings.push == 0 || !self.root.has_agent(peer) {
            return;
        }
        let Some(key) = self.peers.get(&peer).map(|peer| peer.key) else { return };
        // What was asked for is read then, and told a second time.
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
        let tells = self.recent.is_told_by(key);
        let unread = unread(&self.blobs, &self.blob_keys, (peer, key), tells);
        new.into_iter().for_each(|run| self.recent.asked(key, name, run, unread));
        self.send_ahead(peer, actions);
    }

    /// Sends an agent what it will ask for next, as far as what it was to be sent before is on its way.
    pub(super) fn send_ahead(&mut self, peer: PeerId, actions: &mut Vec<Action>) {
        if self.settings.push == 0 || !self.root.has_agent(peer) {
            return;
        }
        let Some(known) = self.peers.get(&peer) else { return };
        let mut room = AHEAD.saturating_sub(known.ahead.len());
        // Not for each that leaves: to look for what is next takes a walk past all that it has.
        if room < AHEAD / 2 {
            return;
        }
        let (key, mut next) = (known.key, Vec::new());
        let lacks = lacks(&self.blobs, &self.blob_keys, (peer, key));
        // Some of it may be with the driver.
        let wanted = room + known.serves.len();
        self.recent.next(key, (self.settings.push as usize, wanted), lacks, &mut next);
        for piece in next {
            let Some(id) = self.blob_keys.get(&piece.blob).copied() else { continue };
            let Some((known, blob)) = self.peers.get_mut(&peer).zip(self.blobs.get_mut(&id)) else {
                continue;
            };
            if known.is_sent(id, piece.chunk) {
                continue;
            }
            if room == 0 {
                return;
            }
            room -= 1;
            let chunks = Chunks::one(piece.chunk);
            let request = known.take_asked(id, piece.chunk);
            blob.maps.entry(peer).or_default().sent.set(chunks);
            let serve = Serve { request, blob: id, chunks, urgency: Urgency::Background, left: 1 };
            known.ahead.push_back(serve);
        }
        self.serve_later(peer, actions);
    }

    /// What an agent was sent it need not be sent ahead.
    pub(super) fn was_sent_ahead(&mut self, peer: PeerId, id: BlobId, chunks: Chunks) {
        if self.settings.push > 0
            && self.root.has_agent(peer)
            && let Some(blob) = self.blobs.get_mut(&id)
        {
            let cut = blob.cut(chunks);
            blob.maps.entry(peer).or_default().sent.set(cut);
        }
    }

    /// Somebody waits now for what the driver has been given to send a peer unasked, or what has left for it a moment
    /// ago. Whether that is so: it comes, and need not be sent again.
    pub(super) fn is_sent_ahead(
        &mut self,
        peer: PeerId,
        id: BlobId,
        chunk: u32,
        urgency: Urgency,
        actions: &mut Vec<Action>,
    ) -> bool {
        let now = self.now;
        let Some((known, blob)) = self.peers.get_mut(&peer).zip(self.blobs.get(&id)) else { return false };
        let Some(serve) = known.being_pushed(id, chunk) else { return known.crossing.holds(now, id, chunk) };
        if urgency < serve.urgency {
            serve.urgency = urgency;
            let (chunks, left) = (serve.chunks, serve.left);
            known.unhurried = known.unhurried.saturating_sub(left);
            self.uplink.sends(now, blob.bytes_of(chunks));
            actions.push(Action::Serve { peer, request: None, blob: id, chunks, urgency });
        }
        true
    }
}

impl Peer {
    /// What the driver has been given to send there unasked, with this chunk in it.
    fn being_pushed(&mut self, blob: BlobId, chunk: u32) -> Option<&mut Serve> {
        let holds = |serve: &Serve| serve.blob == blob && serve.chunks.numbers().contains(&chunk);
        self.serves.iter_mut().find(|serve| serve.request.is_none() && holds(serve))
    }

    /// Whether a chunk is on its way there, or will be as soon as can be.
    fn is_sent(&self, blob: BlobId, chunk: u32) -> bool {
        let holds = |serve: &Serve| serve.blob == blob && serve.chunks.numbers().contains(&chunk);
        self.serves.iter().any(holds) || self.ahead.iter().any(holds)
    }

    /// Takes a chunk from what was asked for without hurry: in which request.
    fn take_asked(&mut self, blob: BlobId, chunk: u32) -> Option<crate::message::RequestId> {
        let holds = |serve: &&Serve| serve.blob == blob && serve.chunks.numbers().contains(&chunk);
        let request = self.later.iter().find(holds)?.request?;
        self.take_later(request, blob, chunk).then_some(request)
    }
}

/// Whether an agent has not got a chunk that is here, nor is about to get it unasked.
fn lacks(
    blobs: &BTreeMap<BlobId, Blob>,
    names: &BTreeMap<BlobKey, BlobId>,
    (peer, key): (PeerId, PeerKey),
) -> impl Fn(Piece) -> bool + Copy {
    move |piece| {
        let Some(blob) = names.get(&piece.blob).and_then(|id| blobs.get(id)) else { return false };
        let is_there = |map: &Map| map.has.has(piece.chunk) || map.sent.has(piece.chunk);
        blob.is_shared_with(key) && blob.is_here(piece.chunk) && !blob.maps.get(&peer).is_some_and(is_there)
    }
}

/// Whether an agent could have read a chunk, and has not: of one that `tells`, that it has not told; of another, that
/// it lacks it.
fn unread(
    blobs: &BTreeMap<BlobId, Blob>,
    names: &BTreeMap<BlobKey, BlobId>,
    (peer, key): (PeerId, PeerKey),
    tells: bool,
) -> impl Fn(Piece) -> bool + Copy {
    let lacks = lacks(blobs, names, (peer, key));
    move |piece| {
        let blob = names.get(&piece.blob).and_then(|id| blobs.get(id));
        let told = |blob: &Blob| blob.maps.get(&peer).is_some_and(|map| map.read.has(piece.chunk));
        let is_shared = |blob: &&Blob| tells && blob.is_shared_with(key);
        lacks(piece) || blob.filter(is_shared).is_some_and(|blob| !told(blob))
    }
}
