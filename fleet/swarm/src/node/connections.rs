//! Blobs and hosts that come and go, roots and their agents, neighbours.

use super::blob::Blob;
use super::membership::{Admission, JoinDue, Seek};
use super::timers::Timer;
use super::{CHOOSE_EVERY, Node};
use crate::event::{Action, BlobId, BlobKey, Chunks, Offence, PeerId, PeerKey, Role};
use crate::message::{Message, RejectReason};
use crate::placement;
use crate::settings::Topology;
use crate::similarity::alike;
use std::time::Duration;

/// The time for which an agent without a root waits for roots to come up before it asks one of them.
const GATHER: Duration = Duration::from_millis(50);

/// The time for which it waits after all roots have refused.
const REFUSED: Duration = Duration::from_secs(1);

/// The interval at which an agent tells its root that it still is its agent.
const JOINED: Duration = Duration::from_secs(10);

/// The number of neighbours that are drawn each time, beside those with similar reads: otherwise hosts with similar
/// reads would never meet.
const STRANGERS: usize = 1;

/// The number of neighbours of an agent that sees no root.
const ROOTLESS: usize = 4;

/// The number of hosts that are told this host's reads, beside the neighbours.
const TOLD: usize = 2;

impl Node {
    /// Opens a blob.
    pub(super) fn on_opened(
        &mut self,
        (id, key): (BlobId, BlobKey),
        len: u64,
        local: &[Chunks],
        fetchable: bool,
    ) {
        if self.blobs.contains_key(&id) {
            return;
        }
        let can_fetch = self.membership.can_fetch_for_others(self.membership.role());
        let me = can_fetch.then_some(self.membership.me());
        let mut blob = Blob::new(key, len, fetchable, me, &self.settings);
        for run in local {
            let run = blob.cut(*run);
            if run.count > 0 {
                run.numbers().for_each(|chunk| blob.table.keep(chunk));
                blob.announcer.log.push(run);
            }
        }
        self.blob_keys.insert(key, id);
        self.blobs.insert(id, blob);
    }

    /// Closes a blob.
    pub(super) fn on_closed(&mut self, id: BlobId, actions: &mut Vec<Action>) {
        let Some(blob) = self.blobs.get(&id) else { return };
        for chunk in blob.table.all_pending().map(|(chunk, _)| chunk).collect::<Vec<_>>() {
            self.give_up(id, chunk, RejectReason::Missing, actions);
        }
        for request in self.requests.that(|record| record.blob == id) {
            let Some(record) = self.requests.remove(request) else { continue };
            if let Some(peer) = self.membership.get_mut(record.peer) {
                peer.was_released(record.remaining());
            }
            actions.push(Action::Send { peer: record.peer, message: Message::Cancel { request } });
        }
        self.wants.forget_blob(id);
        self.fetches.forget_blob(id);
        self.serving.forget_blob(id);
        self.ranking.forget_blob(id);
        let Some(blob) = self.blobs.remove(&id) else { return };
        if let Some(reader) = blob.reader {
            self.prefetch.leave(reader, id, blob.unread());
        }
        if self.blob_keys.get(&blob.key) == Some(&id) {
            self.blob_keys.remove(&blob.key);
        }
    }

    /// Chooses the hosts that can be designated fetchers again, after the first root has come or the last has gone.
    fn choose_fetchers(&mut self) {
        if !self.membership.seeks_root() {
            return;
        }
        let membership = &self.membership;
        let me = membership.is_rootless().then_some(membership.me());
        let can_fetch = |peer: PeerId| {
            me.is_some() || membership.get(peer).is_some_and(|record| record.role == Role::Root)
        };
        for blob in self.blobs.values_mut() {
            blob.sharing.choose_fetchers(me, can_fetch);
        }
        self.links_changed();
    }

    /// Notes a host that can be reached.
    pub(super) fn on_peer_up(&mut self, peer: PeerId, key: PeerKey, role: Role) {
        if !self.membership.add(peer, key, role) {
            return;
        }
        self.serving.add_peer(peer);
        if role == Role::Root {
            if self.membership.is_first_root() {
                self.choose_fetchers();
            }
            self.set_join_timer(GATHER);
        }
    }

    /// Notes a host that shares a blob.
    pub(super) fn on_peer_shares(&mut self, peer: PeerId, id: BlobId) {
        let Some(record) = self.membership.get(peer) else { return };
        let (key, can_fetch) = (record.key, self.membership.can_fetch_for_others(record.role));
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        blob.sharing.add(key, peer, can_fetch);
        blob.announcer.expire_choice();
        if !blob.announcer.log.all().is_empty() {
            self.advertise_soon();
        }
    }

    /// Notes a host that cannot be reached any more.
    pub(super) fn on_peer_down(&mut self, peer: PeerId, actions: &mut Vec<Action>) {
        if self.membership.get(peer).is_none() {
            return;
        }
        self.stop_waiting(peer, None);
        let Some((gone, current)) = self.membership.remove(peer) else { return };
        self.serving.remove_peer(peer);
        if current {
            self.ranking.forget(gone.key);
            self.recent.forget(gone.key);
        }
        for blob in self.blobs.values_mut() {
            blob.maps.remove(&peer);
            blob.redirects.forget(peer);
            blob.announcer.forget(peer);
            if blob.sharing.remove(gone.key, peer) {
                blob.announcer.expire_choice();
            }
        }
        if gone.role == Role::Root && self.membership.root_gone() {
            self.choose_fetchers();
        }
        let lost = self.requests.that(|record| record.peer == peer);
        lost.into_iter().for_each(|request| self.request_lost(request, actions));
        if self.membership.detach(peer) {
            self.seek_root(actions);
        }
    }

    /// Drops a host.
    pub(super) fn drop_peer(&mut self, peer: PeerId, offence: Offence, actions: &mut Vec<Action>) {
        if self.membership.get(peer).is_some() {
            self.counters.dropped += 1;
            actions.push(Action::Drop { peer, offence });
            self.on_peer_down(peer, actions);
        }
    }

    /// Chooses the neighbours of a blob, if hosts have come or gone or it is time; returns the new ones.
    pub(super) fn choose_neighbours(&mut self, id: BlobId) -> Vec<PeerId> {
        let membership = &self.membership;
        let (me, topology) = (membership.me(), self.settings.topology);
        let Some(blob) = self.blobs.get_mut(&id).filter(|blob| blob.announcer.is_choice_due()) else {
            return Vec::new();
        };
        let keys: Vec<PeerKey> = blob.sharing.sharers().iter().map(|(key, _)| *key).collect();
        let chosen: Vec<PeerKey> = match topology {
            Topology::Ring => placement::ring(me, &keys),
            Topology::Random(count) => placement::drawn(me, &keys, count as usize, 0),
            Topology::Similar(count) => {
                let present = blob.announcer.neighbours().iter();
                let present: Vec<PeerKey> = present.filter_map(|peer| membership.key_of(*peer)).collect();
                let mut chosen = self.ranking.best(&present, count as usize);
                chosen.retain(|key| blob.sharing.is_with(*key));
                let drawn = STRANGERS.max((count as usize).saturating_sub(chosen.len()));
                for key in placement::drawn(me, &keys, drawn, self.random.bits()) {
                    if !chosen.contains(&key) {
                        chosen.push(key);
                    }
                }
                chosen
            }
            Topology::Roots if membership.is_rootless() => placement::drawn(me, &keys, ROOTLESS, 0),
            Topology::Roots => {
                let root = membership.root().filter(|_| !membership.is_root());
                let agents = membership.agents().filter(|_| membership.is_root());
                let hosts = agents.chain(root).filter_map(|peer| membership.key_of(peer));
                hosts.filter(|key| blob.sharing.is_with(*key)).collect()
            }
            Topology::Tree(arity) => {
                let (roots, agents) = blob.sharing.tree(membership);
                let mut chosen = placement::children(me, &roots, &agents, arity);
                chosen.extend(placement::parent(me, &roots, &agents, arity));
                chosen
            }
        };
        let chosen = chosen.into_iter().filter_map(|key| blob.sharing.sharer(key)).collect();
        blob.announcer.choose(chosen)
    }

    /// Runs the timer of neighbours: tells other hosts this host's reads, and chooses neighbours again.
    pub(super) fn choice_due(&mut self, actions: &mut Vec<Action>) {
        self.timers.set(self.now + CHOOSE_EVERY, Timer::Choose);
        for (id, blob) in &mut self.blobs {
            blob.announcer.expire_choice();
            let Some(reads) = blob.reads.as_ref().filter(|reads| !reads.is_empty()) else { continue };
            let least = reads.sketch();
            let mut told = blob.announcer.neighbours().to_vec();
            let sharers = blob.sharing.sharers();
            for _ in 0..TOLD.min(sharers.len()) {
                let (_, peer) = sharers[self.random.below(sharers.len())];
                if !told.contains(&peer) {
                    told.push(peer);
                }
            }
            actions.extend(told.into_iter().map(|peer| {
                let message = Message::Sketch { blob: *id, least: least.clone() };
                Action::Send { peer, message }
            }));
        }
        if self.blobs.values().any(|blob| !blob.announcer.log.all().is_empty()) {
            self.advertise_soon();
        }
    }

    /// Handles a sketch of another host's reads.
    pub(super) fn on_sketch(&mut self, peer: PeerId, id: BlobId, least: &[u32]) {
        let Some(key) = self.membership.key_of(peer) else { return };
        let Some(blob) = self.blobs.get(&id).filter(|blob| blob.sharing.is_with(key)) else { return };
        if let Some(reads) = &blob.reads {
            self.ranking.on_sketch(key, id, alike(&reads.sketch(), least));
        }
    }

    /// Sets the timer of an agent, if it is not set.
    fn set_join_timer(&mut self, span: Duration) {
        if self.membership.set_alarm() {
            self.timers.set(self.now + span, Timer::Join);
        }
    }

    /// Runs the timer of an agent: tells its root that it still is its agent, or asks a root.
    pub(super) fn join_due(&mut self, actions: &mut Vec<Action>) {
        match self.membership.on_alarm() {
            JoinDue::Renew(peer) => {
                actions.push(Action::Send { peer, message: Message::Join });
                self.set_join_timer(JOINED);
            }
            JoinDue::Seek => self.seek_root(actions),
        }
    }

    /// Asks the next of the roots, if this is an agent without one.
    pub(super) fn seek_root(&mut self, actions: &mut Vec<Action>) {
        match self.membership.seek() {
            Seek::Nothing => {}
            Seek::Ask(peer) => {
                actions.push(Action::Send { peer, message: Message::Join });
                self.set_join_timer(self.retransmit.for_first_sign());
            }
            Seek::Wait => self.set_join_timer(REFUSED),
        }
    }

    /// Handles a host that would be this root's agent.
    pub(super) fn on_join(&mut self, peer: PeerId, actions: &mut Vec<Action>) {
        let message = match self.membership.admit(peer, self.now) {
            Admission::Refused => Message::JoinRefused,
            Admission::Renewed => Message::JoinAccepted,
            Admission::New => {
                self.links_changed();
                Message::JoinAccepted
            }
        };
        actions.push(Action::Send { peer, message });
    }

    /// Handles a root's acceptance.
    pub(super) fn on_join_accepted(&mut self, peer: PeerId) {
        if self.membership.on_accepted(peer) {
            self.links_changed();
            self.set_join_timer(JOINED);
        }
    }

    /// Handles a root's refusal.
    pub(super) fn on_join_refused(&mut self, peer: PeerId, actions: &mut Vec<Action>) {
        if self.membership.on_refused(peer) {
            self.seek_root(actions);
        }
    }

    fn links_changed(&mut self) {
        self.blobs.values_mut().for_each(|blob| blob.announcer.expire_choice());
        self.advertise_soon();
    }
}
