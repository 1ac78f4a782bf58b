//! Connections: hosts that come and go, roots and their agents, neighbours.

use super::blob::Blob;
use super::peers::Peer;
use super::{CHOOSE_EVERY, Node, Timer};
use crate::Time;
use crate::event::{Action, BlobId, BlobKey, Chunks, Offence, PeerId, PeerKey, Role};
use crate::message::{Message, RequestId, Why};
use crate::placement::{self, BlobHomes, Homes};
use crate::settings::Topology;
use crate::similarity::alike;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The time for which an agent without a root waits for roots to come up before it asks one of them.
const GATHER: Duration = Duration::from_millis(50);

/// The time for which it waits after all roots have refused.
const REFUSED: Duration = Duration::from_secs(1);

/// The interval at which an agent tells its root that it still is its agent.
const JOINED: Duration = Duration::from_secs(10);

/// The time for which a root counts an agent that does not tell it so.
const COUNTED: Duration = Duration::from_secs(35);

/// The number of silences in a row after which an agent asks another root.
const SILENCES: u32 = 3;

/// The number of neighbours that are drawn each time, beside those with similar reads: otherwise hosts with similar
/// reads would never meet.
const STRANGERS: usize = 1;

/// The number of neighbours of an agent that sees no root.
const ROOTLESS: usize = 4;

/// The number of hosts that are told this host's reads, beside the neighbours.
const TOLD: usize = 2;

/// An agent's state about its root, and a root's about its agents.
#[derive(Debug, Default)]
pub(super) struct Root {
    of: Option<PeerId>,
    /// The root that was asked, and has not answered.
    courted: Option<PeerId>,
    refused: BTreeSet<PeerId>,
    /// Agents, and the time of their last message that they are.
    agents: BTreeMap<PeerId, Time>,
    /// `true` if the timer is set.
    timed: bool,
    /// The number of roots that are connected, whichever agents they serve.
    seen: usize,
}

impl Root {
    pub(super) fn of(&self) -> Option<PeerId> {
        self.of
    }

    /// `true` if any root is connected.
    pub(super) fn is_in_sight(&self) -> bool {
        self.seen > 0
    }

    pub(super) fn has_agent(&self, peer: PeerId) -> bool {
        self.agents.contains_key(&peer)
    }
}

impl Node {
    pub(super) fn opened(&mut self, id: BlobId, key: BlobKey, len: u64, local: &[Chunks], fetchable: bool) {
        if self.blobs.contains_key(&id) {
            return;
        }
        let mut blob = Blob::new(key, len, fetchable, &self.settings);
        for run in local.iter().map(|run| blob.cut(*run)).filter(|run| run.count > 0).collect::<Vec<_>>() {
            run.numbers().for_each(|chunk| blob.set_state(chunk, super::blob::State::Kept));
            blob.log.push(run);
        }
        if self.is_home(self.role) {
            blob.homes.insert(self.key);
        }
        self.blob_keys.insert(key, id);
        self.blobs.insert(id, blob);
    }

    pub(super) fn closed(&mut self, id: BlobId, actions: &mut Vec<Action>) {
        let Some(blob) = self.blobs.get(&id) else { return };
        for chunk in blob.coming.keys().copied().collect::<Vec<_>>() {
            self.give_up(id, chunk, Why::Missing, actions);
        }
        let requests: Vec<RequestId> =
            self.requests.iter().filter(|(_, known)| known.blob == id).map(|(request, _)| *request).collect();
        for request in requests {
            let Some(known) = self.requests.remove(&request) else { continue };
            if let Some(peer) = self.peers.get_mut(&known.peer) {
                peer.outstanding = peer.outstanding.saturating_sub(known.left);
            }
            actions.push(Action::Send { peer: known.peer, message: Message::Cancel { request } });
        }
        self.wants.retain(|_, want| want.blob != id);
        self.probe.take_if(|probe| probe.0 == id);
        for peer in self.peers.values_mut() {
            peer.later.retain(|serve| serve.blob != id);
            peer.ahead.retain(|serve| serve.blob != id);
        }
        self.ranking.forget_blob(id);
        let Some(blob) = self.blobs.remove(&id) else { return };
        if let Some(reader) = blob.reader {
            self.accounts.leave(reader, id, blob.unread());
        }
        if self.blob_keys.get(&blob.key) == Some(&id) {
            self.blob_keys.remove(&blob.key);
        }
    }

    /// `true` if a host of this role can be a home. Agents are homes for each other while they see no root.
    fn is_home(&self, role: Role) -> bool {
        self.settings.topology != Topology::Roots || role == Role::Root || self.is_rootless()
    }

    /// `true` if this is an agent that would have a root if it saw one.
    pub(super) fn is_rootless(&self) -> bool {
        self.settings.topology == Topology::Roots && self.role == Role::Agent && !self.root.is_in_sight()
    }

    /// Chooses the hosts that can be homes again, after the first root has come or the last has gone.
    fn choose_homes(&mut self) {
        if self.settings.topology != Topology::Roots || self.role == Role::Root {
            return;
        }
        let rootless = self.is_rootless();
        for blob in self.blobs.values_mut() {
            blob.homes = Homes::new();
            blob.home_of = BlobHomes::new(blob.key);
            if rootless {
                blob.homes.insert(self.key);
            }
            for (key, peer) in &blob.sharers {
                if rootless || self.peers.get(peer).is_some_and(|known| known.role == Role::Root) {
                    blob.homes.insert(*key);
                }
            }
        }
        self.links_changed();
    }

    pub(super) fn peer_up(&mut self, peer: PeerId, key: PeerKey, role: Role) {
        if key == self.key || self.peers.contains_key(&peer) {
            return;
        }
        self.peers.insert(peer, Peer::new(key, role));
        self.keys.insert(key, peer);
        if role == Role::Root {
            self.root.seen += 1;
            if self.root.seen == 1 {
                self.choose_homes();
            }
            self.join_in(GATHER);
        }
    }

    pub(super) fn peer_shares(&mut self, peer: PeerId, id: BlobId) {
        let Some(known) = self.peers.get(&peer) else { return };
        let (key, home) = (known.key, self.is_home(known.role));
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        match blob.sharers.binary_search_by_key(&key, |(known, _)| *known) {
            Ok(at) => blob.sharers[at].1 = peer,
            Err(at) => blob.sharers.insert(at, (key, peer)),
        }
        if home {
            blob.homes.insert(key);
        }
        (blob.stale, blob.moved) = (true, true);
        if !blob.log.all().is_empty() {
            self.tell_soon();
        }
    }

    pub(super) fn peer_down(&mut self, peer: PeerId, actions: &mut Vec<Action>) {
        if !self.peers.contains_key(&peer) {
            return;
        }
        self.stop_waiting(peer, None);
        let Some(gone) = self.peers.remove(&peer) else { return };
        let dropped = gone.serves.iter().filter(|serve| serve.urgency == crate::Urgency::Demand);
        let dropped = dropped.map(|serve| u64::from(serve.left) * crate::CHUNK_SIZE).sum();
        self.uplink.dropped(dropped);
        let current = self.keys.get(&gone.key) == Some(&peer);
        if current {
            self.keys.remove(&gone.key);
            self.ranking.forget(gone.key);
            self.recent.forget(gone.key);
        }
        for blob in self.blobs.values_mut() {
            blob.maps.remove(&peer);
            blob.chains.values_mut().for_each(|chain| chain.forget(peer));
            blob.neighbours.retain(|known| *known != peer);
            if let Ok(at) = blob.sharers.binary_search_by_key(&gone.key, |(known, _)| *known)
                && blob.sharers[at].1 == peer
            {
                blob.sharers.remove(at);
                blob.homes.remove(gone.key);
                (blob.stale, blob.moved) = (true, true);
            }
        }
        if gone.role == Role::Root {
            self.root.seen = self.root.seen.saturating_sub(1);
            if self.root.seen == 0 {
                self.choose_homes();
            }
        }
        let lost: Vec<RequestId> = self
            .requests
            .iter()
            .filter(|(_, known)| known.peer == peer)
            .map(|(request, _)| *request)
            .collect();
        lost.into_iter().for_each(|request| self.request_lost(request, actions));
        self.root.agents.remove(&peer);
        self.root.refused.remove(&peer);
        self.root.courted = self.root.courted.filter(|courted| *courted != peer);
        if self.root.of == Some(peer) {
            self.root.of = None;
            self.seek_root(actions);
        }
    }

    pub(super) fn drop_peer(&mut self, peer: PeerId, offence: Offence, actions: &mut Vec<Action>) {
        if self.peers.contains_key(&peer) {
            self.counters.dropped += 1;
            actions.push(Action::Drop { peer, offence });
            self.peer_down(peer, actions);
        }
    }

    /// Chooses a blob's neighbours if hosts have come or gone. Returns the new ones.
    pub(super) fn choose_neighbours(&mut self, id: BlobId) -> Vec<PeerId> {
        let (me, role, topology) = (self.key, self.role, self.settings.topology);
        let rootless = self.is_rootless();
        let Some(blob) = self.blobs.get_mut(&id).filter(|blob| blob.stale) else { return Vec::new() };
        blob.stale = false;
        let keys: Vec<PeerKey> = blob.sharers.iter().map(|(key, _)| *key).collect();
        let chosen: Vec<PeerKey> = match topology {
            Topology::Ring => placement::ring(me, &keys),
            Topology::Random(count) => placement::drawn(me, &keys, count as usize, 0),
            Topology::Similar(count) => {
                let present: Vec<PeerKey> = blob
                    .neighbours
                    .iter()
                    .filter_map(|peer| self.peers.get(peer))
                    .map(|peer| peer.key)
                    .collect();
                let mut chosen = self.ranking.best(&present, count as usize);
                chosen.retain(|key| blob.is_shared_with(*key));
                let drawn = STRANGERS.max((count as usize).saturating_sub(chosen.len()));
                for key in placement::drawn(me, &keys, drawn, self.random.bits()) {
                    if !chosen.contains(&key) {
                        chosen.push(key);
                    }
                }
                chosen
            }
            Topology::Roots if rootless => placement::drawn(me, &keys, ROOTLESS, 0),
            Topology::Roots if role == Role::Root => {
                let agents = self.root.agents.keys().filter_map(|peer| self.peers.get(peer));
                agents.map(|peer| peer.key).filter(|key| blob.is_shared_with(*key)).collect()
            }
            Topology::Roots => {
                let root = self.root.of.and_then(|root| self.peers.get(&root)).map(|peer| peer.key);
                root.filter(|key| blob.is_shared_with(*key)).into_iter().collect()
            }
            Topology::Tree(arity) => {
                let (roots, agents) = tree(blob, &self.peers, me, role);
                let mut chosen = placement::children(me, &roots, &agents, arity);
                chosen.extend(placement::parent(me, &roots, &agents, arity));
                chosen
            }
        };
        let chosen: Vec<PeerId> = chosen.into_iter().filter_map(|key| blob.sharer(key)).collect();
        let new = chosen.iter().copied().filter(|peer| !blob.neighbours.contains(peer)).collect();
        blob.neighbours = chosen;
        new
    }

    /// Tells other hosts this host's reads, and chooses neighbours again.
    pub(super) fn choose(&mut self, actions: &mut Vec<Action>) {
        self.set_timer(self.now + CHOOSE_EVERY, Timer::Choose);
        for (id, blob) in &mut self.blobs {
            blob.stale = true;
            let Some(reads) = blob.reads.as_ref().filter(|reads| !reads.is_empty()) else { continue };
            let least = reads.sketch();
            let mut told = blob.neighbours.clone();
            for _ in 0..TOLD.min(blob.sharers.len()) {
                let (_, peer) = blob.sharers[self.random.below(blob.sharers.len())];
                if !told.contains(&peer) {
                    told.push(peer);
                }
            }
            actions.extend(told.into_iter().map(|peer| {
                let message = Message::Sketch { blob: *id, least: least.clone() };
                Action::Send { peer, message }
            }));
        }
        if self.blobs.values().any(|blob| !blob.log.all().is_empty()) {
            self.tell_soon();
        }
    }

    pub(super) fn heard_sketch(&mut self, peer: PeerId, id: BlobId, least: &[u32]) {
        let Some(key) = self.peers.get(&peer).map(|peer| peer.key) else { return };
        let Some(blob) = self.blobs.get(&id).filter(|blob| blob.is_shared_with(key)) else { return };
        if let Some(reads) = &blob.reads {
            self.ranking.heard(key, id, alike(&reads.sketch(), least));
        }
    }

    fn join_in(&mut self, span: Duration) {
        let seeks = self.settings.topology == Topology::Roots && self.role == Role::Agent;
        if seeks && !self.root.timed {
            self.root.timed = true;
            self.set_timer(self.now + span, Timer::Join);
        }
    }

    pub(super) fn join_due(&mut self, actions: &mut Vec<Action>) {
        self.root.timed = false;
        if let Some(root) = self.root.of {
            actions.push(Action::Send { peer: root, message: Message::Join });
            self.join_in(JOINED);
            return;
        }
        // A root that was asked and is silent counts as one that refuses.
        if let Some(silent) = self.root.courted.take() {
            self.root.refused.insert(silent);
        }
        self.seek_root(actions);
    }

    /// Asks the next of the roots, in an order drawn for this host.
    fn seek_root(&mut self, actions: &mut Vec<Action>) {
        if self.settings.topology != Topology::Roots
            || self.role != Role::Agent
            || self.root.of.is_some()
            || self.root.courted.is_some()
        {
            return;
        }
        let roots = self.peers.values().filter(|peer| peer.role == Role::Root);
        let mut roots: Vec<PeerKey> = roots.map(|peer| peer.key).collect();
        roots.sort_unstable();
        let order = placement::roots_for(self.key, &roots, self.settings.seed);
        let mut left = order.iter().filter_map(|key| self.keys.get(key));
        match left.find(|peer| !self.root.refused.contains(peer)).copied() {
            Some(peer) => {
                self.root.courted = Some(peer);
                actions.push(Action::Send { peer, message: Message::Join });
                self.join_in(self.patience.for_sign());
            }
            None => {
                self.root.refused.clear();
                if !roots.is_empty() {
                    self.join_in(REFUSED);
                }
            }
        }
    }

    /// Notes that a peer was silent too long: if it is this host's root, and it was not the first time, another may do
    /// better.
    pub(super) fn root_is_silent(&mut self, peer: PeerId, actions: &mut Vec<Action>) {
        let often = self.peers.get(&peer).is_some_and(|known| known.silences() >= SILENCES);
        if self.root.of == Some(peer) && often {
            self.root.of = None;
            self.root.refused.insert(peer);
            self.seek_root(actions);
        }
    }

    pub(super) fn heard_join(&mut self, peer: PeerId, actions: &mut Vec<Action>) {
        let now = self.now;
        self.root.agents.retain(|_, at| now.since(*at) < COUNTED);
        let of = |role: Role| self.peers.values().filter(|peer| peer.role == role).count();
        let most = placement::agents_max(of(Role::Agent), of(Role::Root) + 1, self.settings.agents_max);
        let known = self.root.agents.contains_key(&peer);
        if self.role != Role::Root || !known && self.root.agents.len() >= most {
            actions.push(Action::Send { peer, message: Message::Full });
            return;
        }
        self.root.agents.insert(peer, now);
        if !known {
            self.links_changed();
        }
        actions.push(Action::Send { peer, message: Message::Welcome });
    }

    pub(super) fn heard_welcome(&mut self, peer: PeerId) {
        let seeks = self.settings.topology == Topology::Roots && self.role == Role::Agent;
        if seeks && self.root.of.is_none() {
            self.root.of = Some(peer);
            self.root.courted = None;
            self.root.refused.clear();
            self.links_changed();
            self.join_in(JOINED);
        }
    }

    pub(super) fn heard_full(&mut self, peer: PeerId, actions: &mut Vec<Action>) {
        if self.root.of == Some(peer) {
            self.root.of = None;
        } else if self.root.courted != Some(peer) {
            return;
        }
        self.root.courted = None;
        self.root.refused.insert(peer);
        self.seek_root(actions);
    }

    fn links_changed(&mut self) {
        self.blobs.values_mut().for_each(|blob| blob.stale = true);
        self.tell_soon();
    }
}

/// The roots and the agents that share a blob, this host included, each ascending.
fn tree(
    blob: &Blob,
    peers: &BTreeMap<PeerId, Peer>,
    me: PeerKey,
    role: Role,
) -> (Vec<PeerKey>, Vec<PeerKey>) {
    let of = |wanted: Role| {
        let is_so = |peer: &PeerId| peers.get(peer).is_some_and(|known| known.role == wanted);
        let mut all: Vec<PeerKey> =
            blob.sharers.iter().filter(|(_, peer)| is_so(peer)).map(|(key, _)| *key).collect();
        all.extend((role == wanted).then_some(me));
        all.sort_unstable();
        all
    };
    (of(Role::Root), of(Role::Agent))
}

/// Finds a host's ancestors in the tree of the hosts that share a blob (its parent, that one's parent, and so on), if
/// hosts have come or gone.
pub(super) fn find_ancestors(
    blob: &mut Blob,
    peers: &BTreeMap<PeerId, Peer>,
    me: PeerKey,
    role: Role,
    arity: u32,
) {
    if !std::mem::take(&mut blob.moved) {
        return;
    }
    let (roots, agents) = tree(blob, peers, me, role);
    let parent = |key: &PeerKey| placement::parent(*key, &roots, &agents, arity);
    blob.ancestors = std::iter::successors(parent(&me), parent).collect();
}
