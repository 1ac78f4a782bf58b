//! What does not come: how long it is waited for, and what is done then.
//!
//! Who was asked sends, says that it will, or that it cannot. Who says nothing is given up soon (`patience`). Who
//! promises is believed as long as the store may take, as this host's own fetches show, if he says again and again
//! that it comes. But a word costs nothing, and a store that answers nobody shows no limit. Therefore:
//!
//! * who never sent anything is not believed for longer than others take who promised the same after him;
//! * what does not come of a promise is looked for elsewhere, from time to time: others are asked whether they have
//!   it, which costs a few small messages and makes nobody fetch anything; then who has promised is asked again. It
//!   does no harm where he is honest and the store slow. Where another has it his promise is broken, as if he had
//!   been silent.

use super::{Node, Request, Timer};
use crate::Time;
use crate::event::{Action, BlobId, Offence, PeerId, Role, Urgency};
use crate::message::{Message, RequestId};
use crate::settings::Topology;
use std::time::Duration;

/// Requests that were given up and are remembered.
const LATE: usize = 256;

/// How often patience with a request is thought over, while others show how long such things take now.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// How much longer than by who was asked to get it a chunk is waited for by who waits for that one.
const PASSED_ON: u32 = 2;

/// How often others are asked whether they have what was promised and does not come.
const AROUND: u8 = 5;

impl Node {
    /// When a request is given up if nothing is heard of it: its peer is silent, or takes longer than the store.
    fn given_up_at(&self, known: &Request) -> Time {
        let gap = self.patience.of(known.urgency, known.promised);
        // What nobody waits for comes behind all else: who sends other things meanwhile sends it when it is its turn.
        let heard = self.peers.get(&known.peer).map_or(Time(0), |peer| peer.heard);
        let busy = match known.urgency {
            Urgency::Background => (heard + gap).min(known.asked + self.patience.hardest()),
            Urgency::Demand => Time(0),
        };
        if !known.promised {
            return (known.lively + gap).max(busy);
        }
        // Who is asked only for what it has does not wait for the store.
        let gets_nothing = self.gets_nothing(known);
        let store = if gets_nothing { Duration::ZERO } else { self.store_takes(known.urgency) };
        if known.urgency == Urgency::Background {
            return (known.lively + gap).min(known.moved + gap.max(store)).max(busy);
        }
        // Who waits for another himself does something about it first. Who asks anybody is not let wait for others.
        let gap = match self.asks_in_turn(known) {
            _ if known.hops == 0 && known.insist => gap,
            _ if gets_nothing => gap * PASSED_ON,
            true => gap.max(self.patience.of_another()),
            false => gap,
        };
        let due = (known.lively + self.patience.between_signs()).min(known.moved + gap.max(store));
        let gives = self.peers.get(&known.peer).is_some_and(|peer| peer.gives);
        match self.patience.of_stranger(known.kept).filter(|_| !gives) {
            Some(usual) => due.min(known.moved + usual),
            None => due,
        }
    }

    /// When others are asked whether they have what was promised, and nothing bears out. That the store is slow is no
    /// reason not to: who waits for it is asked again afterwards.
    fn looked_around_at(&self, known: &Request) -> Option<Time> {
        let may = known.promised && known.urgency == Urgency::Demand && !self.gets_nothing(known);
        (may && known.around < AROUND).then(|| known.moved + self.patience.of_word(known.around))
    }

    /// Whether who was asked is to send only what it has, or will have anyway.
    pub(super) fn gets_nothing(&self, known: &Request) -> bool {
        known.hops == 0 || self.blobs.get(&known.blob).is_some_and(|blob| blob.pinned.is_some())
    }

    /// Whether who was asked asks others in turn: the store's slowness, or that a host is gone, is not his fault.
    pub(super) fn asks_in_turn(&self, known: &Request) -> bool {
        let above = match self.settings.topology {
            Topology::Roots => self.role == Role::Agent,
            Topology::Tree(_) => true,
            Topology::Ring | Topology::Random(_) | Topology::Similar(_) => false,
        };
        above || self.gets_nothing(known)
    }

    /// How long the store may take, as what this host waits for itself shows. What nobody waits for may lie there for
    /// as long as there is something else.
    pub(super) fn store_takes(&self, urgency: Urgency) -> Duration {
        if self.store_failed.is_some() {
            return Duration::ZERO;
        }
        self.patience.of_store(self.waits_for_store(urgency).unwrap_or_default())
    }

    pub(super) fn request_due(&mut self, request: RequestId, actions: &mut Vec<Action>) {
        let Some(known) = self.requests.get(&request) else { return };
        let (due, around) = (self.given_up_at(known), self.looked_around_at(known));
        if due > self.now {
            if around.is_some_and(|around| around <= self.now) {
                self.look_around(request, actions);
            } else {
                self.set_timer(due.min(self.now + LOOK_AGAIN), Timer::Request(request));
            }
            return;
        }
        let (peer, id, since) = (known.peer, known.blob, known.since);
        let waits_too = known.promised
            && self.asks_in_turn(known)
            && self.now.since(known.lively) < self.patience.between_signs();
        self.counters.broken += u64::from(known.promised);
        self.counters.timeouts += 1;
        let idle = known.urgency == Urgency::Background;
        let failed = self.give_up_request(request, actions);
        let now = self.now;
        // What nobody waits for comes behind all else: who sends something else meanwhile is not silent.
        if idle && self.peers.get(&peer).is_some_and(|known| known.heard > since) {
            self.obtain(id, &failed, actions);
            return;
        }
        // Who waits too is as patient as this host is.
        let believed = self.peers.get_mut(&peer).filter(|_| waits_too);
        if believed.is_none_or(|known| known.is_doubted(since, now)) {
            self.blame(peer, since, actions);
        }
        self.obtain(id, &failed, actions);
    }

    /// A peer did not send what it was asked for, or had promised, at `since`.
    pub(super) fn blame(&mut self, peer: PeerId, since: Time, actions: &mut Vec<Action>) {
        let now = self.now;
        if self.peers.get_mut(&peer).is_some_and(|known| known.was_silent(since, now)) {
            self.drop_peer(peer, Offence::Slow, actions);
        } else {
            self.root_is_silent(peer, actions);
        }
    }

    /// Asks others whether they have what a peer promised, and it, if nobody does, once more.
    fn look_around(&mut self, request: RequestId, actions: &mut Vec<Action>) {
        let Some(known) = self.requests.get(&request) else { return };
        let (peer, id, chunks, since) = (known.peer, known.blob, known.chunks, known.since);
        self.remember_late((request, peer, id, since));
        actions.push(Action::Send { peer, message: Message::Cancel { request } });
        let failed = self.detach(id, request, chunks, None, actions);
        self.requests.remove(&request);
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        for chunk in &failed {
            let Some(coming) = blob.coming.get_mut(chunk) else { continue };
            (coming.resort, coming.tries, coming.back) = (true, 0, Some((peer, since)));
            coming.around += 1;
            coming.tried = vec![peer];
        }
        self.obtain(id, &failed, actions);
    }

    /// Takes back a request. Says which chunks will not come of it.
    pub(super) fn give_up_request(&mut self, request: RequestId, actions: &mut Vec<Action>) -> Vec<u32> {
        let Some(known) = self.requests.get(&request) else { return Vec::new() };
        let (peer, id, chunks, since) = (known.peer, known.blob, known.chunks, known.since);
        self.remember_late((request, peer, id, since));
        actions.push(Action::Send { peer, message: Message::Cancel { request } });
        let failed = self.detach(id, request, chunks, Some(peer), actions);
        self.requests.remove(&request);
        failed
    }

    /// A request was given up; what it brings all the same is welcome.
    pub(super) fn remember_late(&mut self, late: (RequestId, PeerId, BlobId, Time)) {
        self.late.push_back(late);
        if self.late.len() > LATE {
            self.late.pop_front();
        }
    }
}
