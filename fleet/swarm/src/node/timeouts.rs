//! Request timeouts: the time for which a request is waited for, and the reaction then.
//!
//! A peer that was asked sends, promises ([`Message::Pending`]), or rejects ([`Message::Reject`]). A peer that says
//! nothing is given up soon (`retransmit_timer`). A peer that promises is believed as long as the store may take, as
//! this host's own fetches show, if it repeats the promise. But a promise costs nothing, and a store that answers no
//! host shows no limit. Therefore:
//!
//! * a peer that never sent anything is not believed for longer than other peers take, once these have kept some
//!   promises (`OVERTAKEN`) since it made its own;
//! * from time to time, the node *probes*: it asks other peers for promised chunks that do not come, which costs a few
//!   small messages and makes no host fetch anything; then it asks the promising peer again. If that peer is honest and
//!   the store merely slow, this costs nothing. If another peer has the chunks, the promise counts as broken, as if its
//!   maker had been silent.

use super::Node;
use super::peers::Peer;
use super::requests::{Late, Promise, Request};
use super::timers::Timer;
use crate::Time;
use crate::event::{Action, Offence, PeerId, Role, Urgency};
use crate::message::{Message, RequestId};
use crate::settings::Topology;
use std::time::Duration;

/// The interval at which the timeout of a request is computed again, because other requests show the present times.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The factor by which a peer that waits for another is given more time than a peer that was asked to fetch the chunk.
const PASSED_ON: u32 = 2;

/// The number of times that other hosts are probed for promised chunks that do not come.
const PROBES: u8 = 5;

impl Node {
    /// The time at which a request is given up without further news: its peer is silent, or takes longer than the
    /// store.
    fn given_up_at(&self, request: &Request) -> Time {
        match (request.urgency, request.promise()) {
            (Urgency::Background, _) => self.background_given_up_at(request),
            (Urgency::Demand, Some(promise)) => self.promise_given_up_at(request, promise),
            (Urgency::Demand, None) => request.last_activity_at() + self.answer_time(request),
        }
    }

    /// The time to wait for the answer to a request, or for its next part.
    fn answer_time(&self, request: &Request) -> Duration {
        self.retransmit.for_request(request.urgency, request.is_promised())
    }

    /// The same for chunks that no read waits for. They come behind all others: a peer that sends others meanwhile
    /// sends these when it is their turn.
    fn background_given_up_at(&self, request: &Request) -> Time {
        let answer = self.answer_time(request);
        let last_bytes_at = self.membership.get(request.peer).map_or(Time(0), |peer| peer.last_bytes_at);
        let busy = (last_bytes_at + answer).min(request.sent_at + self.retransmit.store_max());
        let silent = request.last_activity_at() + answer;
        let due = match request.is_promised() {
            true => silent.min(request.last_progress_at() + answer.max(self.store_time(request))),
            false => silent,
        };
        due.max(busy)
    }

    /// The time at which a promise of chunks that a read waits for is no longer believed: its maker no longer repeats
    /// it, or takes longer than the store may. A peer that never sent bytes is not believed for longer than others
    /// take.
    fn promise_given_up_at(&self, request: &Request, promise: Promise) -> Time {
        let (answer, indirect) = (self.answer_time(request), self.retransmit.for_indirect());
        let source = match self.asks_in_turn(request) {
            _ if request.is_for_any_holder() => answer,
            // A peer that waits for another acts first itself.
            _ if self.is_for_held_chunks(request) => answer * PASSED_ON,
            true => answer.max(indirect),
            false => answer,
        };
        let silent = request.last_activity_at() + self.retransmit.max_silence();
        let due = silent.min(request.last_progress_at() + source.max(self.store_time(request)));
        let has_sent = self.membership.get(request.peer).is_some_and(Peer::gives);
        match self.retransmit.for_unproven_peer(promise.kept_before).filter(|_| !has_sent) {
            Some(usual) => due.min(request.last_progress_at() + usual),
            None => due,
        }
    }

    /// The time that the store may take to the peer: none if the peer is asked only for chunks that it has.
    fn store_time(&self, request: &Request) -> Duration {
        if self.is_for_held_chunks(request) { Duration::ZERO } else { self.store_takes(request.urgency) }
    }

    /// The time at which other hosts are probed for promised chunks, of which there is no evidence. A slow store is no
    /// reason not to: the promising peer is asked again afterwards.
    fn probed_at(&self, request: &Request) -> Option<Time> {
        let may =
            request.is_promised() && request.urgency == Urgency::Demand && !self.is_for_held_chunks(request);
        let bare = || self.retransmit.for_bare_promise(request.probe_count);
        (may && request.probe_count < PROBES).then(|| request.last_progress_at() + bare())
    }

    /// `true` if the peer is asked only for chunks that it has, or will have anyway: it gets nothing from a store or
    /// another host for this request.
    pub(super) fn is_for_held_chunks(&self, request: &Request) -> bool {
        request.hops == 0 || self.blobs.get(&request.blob).is_some_and(|blob| blob.sharing.pinned.is_some())
    }

    /// `true` if the peer asks others in turn: a slow store, or a host that is gone, is not its fault.
    pub(super) fn asks_in_turn(&self, request: &Request) -> bool {
        let above = match self.settings.topology {
            Topology::Roots => self.membership.role() == Role::Agent,
            Topology::Tree(_) => true,
            Topology::Ring | Topology::Random(_) | Topology::Similar(_) => false,
        };
        above || self.is_for_held_chunks(request)
    }

    /// The time that the store may take, as this host's own waiting shows. Fetches that no read waits for may stay in a
    /// queue as long as others are there.
    pub(super) fn store_takes(&self, urgency: Urgency) -> Duration {
        if self.fetches.has_failed() {
            return Duration::ZERO;
        }
        self.retransmit.for_store(self.waits_for_store(urgency).unwrap_or_default())
    }

    /// Runs the timer of a request.
    pub(super) fn request_due(&mut self, request: RequestId, actions: &mut Vec<Action>) {
        let Some(record) = self.requests.get(request) else { return };
        let (due, probed_at) = (self.given_up_at(record), self.probed_at(record));
        if due > self.now {
            if probed_at.is_some_and(|at| at <= self.now) {
                self.probe(request, actions);
            } else {
                self.timers.set(due.min(self.now + LOOK_AGAIN), Timer::Request(request));
            }
            return;
        }
        let (peer, id, since) = (record.peer, record.blob, record.waiting_since());
        let waits_too = record.is_promised()
            && self.asks_in_turn(record)
            && self.now.since(record.last_activity_at()) < self.retransmit.max_silence();
        self.counters.broken += u64::from(record.is_promised());
        self.counters.timeouts += 1;
        let idle = record.urgency == Urgency::Background;
        let failed = self.give_up_request(request, actions);
        let now = self.now;
        // Chunks that no read waits for come behind all others: a peer that sends others meanwhile is not silent.
        if idle && self.membership.get(peer).is_some_and(|peer| peer.last_bytes_at > since) {
            self.obtain(id, &failed, actions);
            return;
        }
        // A peer that waits for another host has the same timeouts as this one: it is blamed only if it is doubted.
        let is_excused =
            waits_too && self.membership.get_mut(peer).is_some_and(|peer| !peer.is_doubted(since, now));
        if !is_excused {
            self.blame(peer, since, actions);
        }
        self.obtain(id, &failed, actions);
    }

    /// Notes that a peer did not send chunks that were requested or promised at `since`.
    pub(super) fn blame(&mut self, peer: PeerId, since: Time, actions: &mut Vec<Action>) {
        let now = self.now;
        if self.membership.get_mut(peer).is_some_and(|peer| peer.was_silent(since, now)) {
            self.drop_peer(peer, Offence::Slow, actions);
        } else if self.membership.on_silence(peer) {
            self.seek_root(actions);
        }
    }

    /// Asks other peers for chunks that one has promised, and that one, if no other has them, once more.
    fn probe(&mut self, request: RequestId, actions: &mut Vec<Action>) {
        let Some(record) = self.requests.get(request) else { return };
        let (peer, id, since) = (record.peer, record.blob, record.waiting_since());
        let failed = self.withdraw(request, None, actions);
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        for chunk in &failed {
            if let Some(pending) = blob.table.pending_mut(*chunk) {
                pending.search.probe(peer, since);
            }
        }
        self.obtain(id, &failed, actions);
    }

    /// Gives up a request: its peer is not asked for the chunks again. Returns the chunks that will not come by it.
    pub(super) fn give_up_request(&mut self, request: RequestId, actions: &mut Vec<Action>) -> Vec<u32> {
        let Some(record) = self.requests.get(request) else { return Vec::new() };
        let peer = record.peer;
        self.withdraw(request, Some(peer), actions)
    }

    /// Takes back a request, and remembers it: bytes that it brings anyway are welcome. Returns the chunks that will
    /// not come by it; `tried` is the peer that is not to be asked for them again.
    fn withdraw(&mut self, request: RequestId, tried: Option<PeerId>, actions: &mut Vec<Action>) -> Vec<u32> {
        let Some(record) = self.requests.get(request) else { return Vec::new() };
        let (peer, blob, chunks, waiting_since) =
            (record.peer, record.blob, record.chunks, record.waiting_since());
        self.requests.remember_late(Late { request, peer, blob, waiting_since });
        actions.push(Action::Send { peer, message: Message::Cancel { request } });
        let failed = self.detach(blob, request, chunks, tried, actions);
        self.requests.remove(request);
        failed
    }
}
