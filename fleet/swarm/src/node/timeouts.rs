//! Chunks that do not come: the time for which they are waited for, and the reaction then.
//!
//! A peer that was asked sends, says that it will, or says that it cannot. A peer that says nothing is given up soon
//! (`patience`). A peer that promises is believed as long as the store may take, as this host's own fetches show, if it
//! repeats the promise. But a promise costs nothing, and a store that answers no host shows no limit. Therefore:
//!
//! * a peer that never sent anything is not believed for longer than other peers take that made the same promise after
//!   it;
//! * from time to time, the node looks in other places for promised chunks that do not come: it asks other peers
//!   whether they have them, which costs a few small messages and makes no host fetch anything; then it asks the
//!   promising peer again. If that peer is honest and the store merely slow, this costs nothing. If another peer has
//!   the chunks, the promise counts as broken, as if its maker had been silent.

use super::{Node, Request, Timer};
use crate::Time;
use crate::event::{Action, BlobId, Offence, PeerId, Role, Urgency};
use crate::message::{Message, RequestId};
use crate::settings::Topology;
use std::time::Duration;

/// The number of given-up requests that are remembered.
const LATE: usize = 256;

/// The interval at which the timeout of a request is computed again, because other requests show the present times.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The factor by which a peer that waits for another is given more time than a peer that was asked to fetch the chunk.
const PASSED_ON: u32 = 2;

/// The number of times that other hosts are asked for promised chunks that do not come.
const AROUND: u8 = 5;

impl Node {
    /// The time at which a request is given up without further news: its peer is silent, or takes longer than the
    /// store.
    fn given_up_at(&self, known: &Request) -> Time {
        let gap = self.patience.of(known.urgency, known.promised);
        // Chunks that no read waits for come behind all others: a peer that sends others meanwhile sends these when it
        // is their turn.
        let heard = self.peers.get(&known.peer).map_or(Time(0), |peer| peer.heard);
        let busy = match known.urgency {
            Urgency::Background => (heard + gap).min(known.asked + self.patience.hardest()),
            Urgency::Demand => Time(0),
        };
        if !known.promised {
            return (known.lively + gap).max(busy);
        }
        // A peer that is asked only for chunks that it has does not wait for the store.
        let gets_nothing = self.gets_nothing(known);
        let store = if gets_nothing { Duration::ZERO } else { self.store_takes(known.urgency) };
        if known.urgency == Urgency::Background {
            return (known.lively + gap).min(known.moved + gap.max(store)).max(busy);
        }
        // A peer that waits for another acts first itself. A peer that is asked as any host that may have the chunk
        // does not wait for others at all.
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

    /// The time at which other hosts are asked for promised chunks, of which there is no evidence. A slow store is no
    /// reason not to: the promising peer is asked again afterwards.
    fn looked_around_at(&self, known: &Request) -> Option<Time> {
        let may = known.promised && known.urgency == Urgency::Demand && !self.gets_nothing(known);
        (may && known.around < AROUND).then(|| known.moved + self.patience.of_word(known.around))
    }

    /// `true` if the peer is to send only chunks that it has, or will have anyway.
    pub(super) fn gets_nothing(&self, known: &Request) -> bool {
        known.hops == 0 || self.blobs.get(&known.blob).is_some_and(|blob| blob.pinned.is_some())
    }

    /// `true` if the peer asks others in turn: a slow store, or a host that is gone, is not its fault.
    pub(super) fn asks_in_turn(&self, known: &Request) -> bool {
        let above = match self.settings.topology {
            Topology::Roots => self.role == Role::Agent,
            Topology::Tree(_) => true,
            Topology::Ring | Topology::Random(_) | Topology::Similar(_) => false,
        };
        above || self.gets_nothing(known)
    }

    /// The time that the store may take, as this host's own waiting shows. Fetches that no read waits for may stay in a
    /// queue as long as others are there.
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
        // Chunks that no read waits for come behind all others: a peer that sends others meanwhile is not silent.
        if idle && self.peers.get(&peer).is_some_and(|known| known.heard > since) {
            self.obtain(id, &failed, actions);
            return;
        }
        // A peer that waits too has the same timeouts as this host.
        let believed = self.peers.get_mut(&peer).filter(|_| waits_too);
        if believed.is_none_or(|known| known.is_doubted(since, now)) {
            self.blame(peer, since, actions);
        }
        self.obtain(id, &failed, actions);
    }

    /// Notes that a peer did not send chunks that were requested or promised at `since`.
    pub(super) fn blame(&mut self, peer: PeerId, since: Time, actions: &mut Vec<Action>) {
        let now = self.now;
        if self.peers.get_mut(&peer).is_some_and(|known| known.was_silent(since, now)) {
            self.drop_peer(peer, Offence::Slow, actions);
        } else {
            self.root_is_silent(peer, actions);
        }
    }

    /// Asks other peers for chunks that one has promised, and that one, if no other has them, once more.
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

    /// Takes back a request. Returns the chunks that will not come by it.
    pub(super) fn give_up_request(&mut self, request: RequestId, actions: &mut Vec<Action>) -> Vec<u32> {
        let Some(known) = self.requests.get(&request) else { return Vec::new() };
        let (peer, id, chunks, since) = (known.peer, known.blob, known.chunks, known.since);
        self.remember_late((request, peer, id, since));
        actions.push(Action::Send { peer, message: Message::Cancel { request } });
        let failed = self.detach(id, request, chunks, Some(peer), actions);
        self.requests.remove(&request);
        failed
    }

    /// Remembers a request that was given up; bytes that it brings anyway are welcome.
    pub(super) fn remember_late(&mut self, late: (RequestId, PeerId, BlobId, Time)) {
        self.late.push_back(late);
        if self.late.len() > LATE {
            self.late.pop_front();
        }
    }
}
