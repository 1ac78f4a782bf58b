//! The requests of this host to its peers.
//!
//! ```text
//!            a rejection            bytes
//!     Sent ─────────────► Answered ───────► Receiving ◄─┐ bytes
//!      │ │ │                │                  │  └─────┘
//!      │ │ └────────────────│── bytes ────────►│
//!      │ │ a promise        │ a promise        │ a promise
//!      │ └────► Promised ◄──┘                  ▼
//!      │      ┌► │  └────────── bytes ────► Delivering ◄─┐ bytes, or the promise again
//!      │      └──┘ the promise again           └─────────┘
//!      └ ─ from every state: a read begins to wait, and the request is sent again
//! ```
//!
//! A state has the times that mean something in it, and no others. Two of them can be asked of every state: the *last
//! sign of life* (the request itself, bytes, or a promise, repeated or not) and the *last progress* (the request,
//! bytes, or the first promise: a repeated promise alone is no progress). A rejection is neither: it ends the chunks
//! that it names, and says nothing about the others.
//!
//! Requests that were given up are remembered for a while ([`Late`]): their bytes may come anyway.

use crate::Time;
use crate::event::{BlobId, Chunks, PeerId, Urgency};
use crate::message::RequestId;
use std::collections::{BTreeMap, VecDeque};

/// The number of given-up requests that are remembered.
const LATE: usize = 256;

/// A peer's promise to send chunks that are on their way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Promise {
    /// The time at which the peer made it.
    pub(super) made_at: Time,
    /// The number of promises of all peers that had been kept then.
    pub(super) kept_before: u64,
}

/// The peer's part of a request so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestState {
    /// The peer has said nothing.
    Sent,
    /// The peer has rejected some of the chunks, and nothing else.
    Answered,
    /// Bytes have come, without a promise.
    Receiving { last_bytes_at: Time },
    /// The peer has promised the chunks; no bytes have come.
    Promised { promise: Promise, renewed_at: Time },
    /// The peer has promised the chunks, and bytes have come.
    Delivering { promise: Promise, last_activity_at: Time, last_progress_at: Time },
}

/// A span that an answer shows, from the given time until now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sample {
    /// The time until a peer's first sign of life.
    FirstSign(Time),
    /// The time until promised bytes.
    Bytes(Time),
}

/// The effect of a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PromiseEffect {
    /// The promise is the first one.
    New,
    /// The promise repeats one; the last sign of life was at this time.
    Renewed { last_activity_at: Time },
}

/// A request to a peer.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) peer: PeerId,
    pub(super) blob: BlobId,
    pub(super) chunks: Chunks,
    pub(super) urgency: Urgency,
    pub(super) hops: u8,
    pub(super) no_redirect: bool,
    /// The number of times that other hosts were probed for the chunks before.
    pub(super) probe_count: u8,
    /// The time at which it was sent, or at which a read began to wait for it.
    pub(super) sent_at: Time,
    /// The number of chunks that have not come.
    remaining: u32,
    state: RequestState,
}

impl Request {
    /// A request for chunks that is sent at `now`, to be changed by the caller where it is not plain.
    pub(super) fn new(peer: PeerId, blob: BlobId, chunks: Chunks, urgency: Urgency, now: Time) -> Self {
        Self {
            peer,
            blob,
            chunks,
            urgency,
            hops: 0,
            no_redirect: false,
            probe_count: 0,
            sent_at: now,
            remaining: chunks.count,
            state: RequestState::Sent,
        }
    }

    /// The number of chunks that have not come.
    pub(super) fn remaining(&self) -> u32 {
        self.remaining
    }

    /// The promise, if the peer has made one.
    pub(super) fn promise(&self) -> Option<Promise> {
        match self.state {
            RequestState::Promised { promise, .. } | RequestState::Delivering { promise, .. } => {
                Some(promise)
            }
            RequestState::Sent | RequestState::Answered | RequestState::Receiving { .. } => None,
        }
    }

    /// `true` if the peer is asked as any host that may have the chunks: it names no other host, and waits for none.
    pub(super) fn is_for_any_holder(&self) -> bool {
        self.hops == 0 && self.no_redirect
    }

    /// `true` if the peer has promised the chunks.
    pub(super) fn is_promised(&self) -> bool {
        self.promise().is_some()
    }

    /// The time at which it was promised, or otherwise sent.
    pub(super) fn waiting_since(&self) -> Time {
        self.promise().map_or(self.sent_at, |promise| promise.made_at)
    }

    /// The time of the peer's last sign of life, or at which it was sent.
    pub(super) fn last_activity_at(&self) -> Time {
        match self.state {
            RequestState::Sent | RequestState::Answered => self.sent_at,
            RequestState::Receiving { last_bytes_at } => last_bytes_at,
            RequestState::Promised { renewed_at, .. } => renewed_at,
            RequestState::Delivering { last_activity_at, .. } => last_activity_at,
        }
    }

    /// The time at which bytes came last, or at which it was sent or promised.
    pub(super) fn last_progress_at(&self) -> Time {
        match self.state {
            RequestState::Sent | RequestState::Answered => self.sent_at,
            RequestState::Receiving { last_bytes_at } => last_bytes_at,
            RequestState::Promised { promise, .. } => promise.made_at,
            RequestState::Delivering { last_progress_at, .. } => last_progress_at,
        }
    }

    /// Notes that it is sent again, because a read waits for it now.
    pub(super) fn promote(&mut self, now: Time) {
        (self.urgency, self.sent_at, self.state) = (Urgency::Demand, now, RequestState::Sent);
    }

    /// Notes that no read waits for the rest of it any more.
    pub(super) fn demote(&mut self) {
        self.urgency = Urgency::Background;
    }

    /// The time until the first sign of life, if this is the first and a read waits.
    fn first_sign(&self) -> Option<Sample> {
        let is_first = self.state == RequestState::Sent && self.urgency == Urgency::Demand;
        is_first.then_some(Sample::FirstSign(self.sent_at))
    }

    /// Notes a promise of the peer; `kept` promises of all peers have been kept so far.
    pub(super) fn on_promise(&mut self, now: Time, kept: u64) -> (Option<Sample>, PromiseEffect) {
        let (sample, before) = (self.first_sign(), self.last_activity_at());
        let new = Promise { made_at: now, kept_before: kept };
        let (state, effect) = match self.state {
            RequestState::Sent | RequestState::Answered => {
                (RequestState::Promised { promise: new, renewed_at: now }, PromiseEffect::New)
            }
            RequestState::Receiving { .. } => {
                let (last_activity_at, last_progress_at) = (now, now);
                let state = RequestState::Delivering { promise: new, last_activity_at, last_progress_at };
                (state, PromiseEffect::New)
            }
            RequestState::Promised { promise, .. } => {
                let effect = PromiseEffect::Renewed { last_activity_at: before };
                (RequestState::Promised { promise, renewed_at: now }, effect)
            }
            RequestState::Delivering { promise, last_progress_at, .. } => {
                let effect = PromiseEffect::Renewed { last_activity_at: before };
                (RequestState::Delivering { promise, last_activity_at: now, last_progress_at }, effect)
            }
        };
        self.state = state;
        (sample, effect)
    }

    /// Notes that the peer has rejected some of the chunks.
    pub(super) fn on_rejection(&mut self) -> Option<Sample> {
        let sample = self.first_sign();
        if self.state == RequestState::Sent {
            self.state = RequestState::Answered;
        }
        sample
    }

    /// Notes that bytes have come.
    pub(super) fn on_bytes(&mut self, now: Time) -> Option<Sample> {
        let sample = match self.state {
            RequestState::Promised { promise, .. } if self.urgency == Urgency::Demand => {
                Some(Sample::Bytes(promise.made_at))
            }
            _ => self.first_sign(),
        };
        self.state = match self.promise() {
            Some(promise) => {
                RequestState::Delivering { promise, last_activity_at: now, last_progress_at: now }
            }
            None => RequestState::Receiving { last_bytes_at: now },
        };
        sample
    }
}

/// A request that was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Late {
    pub(super) request: RequestId,
    pub(super) peer: PeerId,
    pub(super) blob: BlobId,
    /// The time at which it was promised, or otherwise sent.
    pub(super) waiting_since: Time,
}

/// The result of chunks that are not waited for any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Released {
    pub(super) peer: PeerId,
    /// `true` if no chunk of the request is left, and it was removed.
    pub(super) over: bool,
}

/// All requests that are waited for, and the last of those that were given up.
#[derive(Debug, Default)]
pub(super) struct Requests {
    open: BTreeMap<RequestId, Request>,
    next: u32,
    /// The latest last.
    late: VecDeque<Late>,
}

impl Requests {
    /// Adds a request; returns its number.
    pub(super) fn add(&mut self, request: Request) -> RequestId {
        let number = RequestId(self.next);
        self.next = self.next.wrapping_add(1);
        self.open.insert(number, request);
        number
    }

    /// The request of a number.
    pub(super) fn get(&self, request: RequestId) -> Option<&Request> {
        self.open.get(&request)
    }

    /// The request of a number, to be changed.
    pub(super) fn get_mut(&mut self, request: RequestId) -> Option<&mut Request> {
        self.open.get_mut(&request)
    }

    /// The request of a number, if it was sent to `peer`.
    pub(super) fn of(&mut self, request: RequestId, peer: PeerId) -> Option<&mut Request> {
        self.open.get_mut(&request).filter(|record| record.peer == peer)
    }

    /// `true` if the request was sent to `peer`.
    pub(super) fn is_to(&self, request: RequestId, peer: PeerId) -> bool {
        self.open.get(&request).is_some_and(|record| record.peer == peer)
    }

    /// Notes that `count` chunks of a request are not waited for any more, and removes it with the last of them.
    pub(super) fn release(&mut self, request: RequestId, count: u32) -> Option<Released> {
        let record = self.open.get_mut(&request)?;
        record.remaining = record.remaining.saturating_sub(count);
        let released = Released { peer: record.peer, over: record.remaining == 0 };
        if released.over {
            self.open.remove(&request);
        }
        Some(released)
    }

    /// Removes a request.
    pub(super) fn remove(&mut self, request: RequestId) -> Option<Request> {
        self.open.remove(&request)
    }

    /// The numbers of the requests that `fits` picks, ascending.
    pub(super) fn that(&self, fits: impl Fn(&Request) -> bool) -> Vec<RequestId> {
        self.open.iter().filter(|(_, record)| fits(record)).map(|(request, _)| *request).collect()
    }

    /// Remembers a request that was given up; bytes that it brings anyway are welcome.
    pub(super) fn remember_late(&mut self, late: Late) {
        self.late.push_back(late);
        if self.late.len() > LATE {
            self.late.pop_front();
        }
    }

    /// The request to `peer` that was given up, if it is remembered.
    pub(super) fn late(&self, request: RequestId, peer: PeerId) -> Option<Late> {
        self.late.iter().rev().find(|late| (late.request, late.peer) == (request, peer)).copied()
    }

    /// All requests.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (&RequestId, &Request)> {
        self.open.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: PeerId = PeerId(3);

    fn request() -> Request {
        Request::new(PEER, BlobId(1), Chunks { first: 0, count: 4 }, Urgency::Demand, Time(10))
    }

    /// The time since when it is waited for, the last sign of life, and the last progress.
    fn times(request: &Request) -> [u64; 3] {
        [request.waiting_since(), request.last_activity_at(), request.last_progress_at()].map(|at| at.0)
    }

    #[test]
    fn a_promise_is_waited_for_since_it_was_made_and_its_repetition_is_no_progress() {
        let mut request = request();
        assert_eq!(request.on_promise(Time(20), 5), (Some(Sample::FirstSign(Time(10))), PromiseEffect::New));
        assert_eq!(times(&request), [20, 20, 20]);
        let again = PromiseEffect::Renewed { last_activity_at: Time(20) };
        assert_eq!(request.on_promise(Time(30), 6), (None, again));
        assert_eq!(times(&request), [20, 30, 20]);
        assert_eq!(request.promise().unwrap().kept_before, 5, "as it was when the promise was made");
        assert_eq!(request.on_bytes(Time(40)), Some(Sample::Bytes(Time(20))));
        assert_eq!(times(&request), [20, 40, 40]);
        assert_eq!(request.on_bytes(Time(50)), None, "measured once");
        request.on_promise(Time(60), 7);
        assert_eq!(times(&request), [20, 60, 50]);
    }

    #[test]
    fn bytes_are_a_sign_of_life_and_progress() {
        let mut request = request();
        assert_eq!(request.on_bytes(Time(20)), Some(Sample::FirstSign(Time(10))));
        assert_eq!(times(&request), [10, 20, 20]);
        assert_eq!(request.on_promise(Time(30), 0), (None, PromiseEffect::New));
        assert_eq!(times(&request), [30, 30, 30]);
        assert_eq!(request.on_bytes(Time(40)), None, "bytes came before the promise: it tells nothing");
    }

    #[test]
    fn a_rejection_is_a_sign_once_and_no_progress() {
        let mut request = request();
        assert_eq!(request.on_rejection(), Some(Sample::FirstSign(Time(10))));
        assert_eq!(request.on_rejection(), None);
        assert_eq!(times(&request), [10, 10, 10]);
        assert_eq!(request.on_bytes(Time(20)), None);
    }

    #[test]
    fn a_promoted_request_begins_anew() {
        let mut request = Request { urgency: Urgency::Background, ..request() };
        assert_eq!(request.on_promise(Time(20), 0).0, None, "no read waits for it");
        request.promote(Time(30));
        assert_eq!(times(&request), [30, 30, 30]);
        assert!(!request.is_promised());
        assert_eq!(request.on_bytes(Time(40)), Some(Sample::FirstSign(Time(30))));
    }

    #[test]
    fn a_request_is_over_with_its_last_chunk() {
        let mut requests = Requests::default();
        let number = requests.add(request());
        assert!(requests.of(number, PeerId(4)).is_none(), "it is another's");
        assert_eq!(requests.release(number, 3), Some(Released { peer: PEER, over: false }));
        assert_eq!(requests.get(number).unwrap().remaining(), 1);
        assert_eq!(requests.release(number, 9), Some(Released { peer: PEER, over: true }));
        assert_eq!(requests.release(number, 1), None);
    }

    #[test]
    fn only_the_last_of_the_given_up_requests_are_remembered() {
        let mut requests = Requests::default();
        let late = |number| Late {
            request: RequestId(number),
            peer: PEER,
            blob: BlobId(1),
            waiting_since: Time(u64::from(number)),
        };
        (0..300).for_each(|number| requests.remember_late(late(number)));
        assert_eq!(requests.late(RequestId(43), PEER), None);
        assert_eq!(requests.late(RequestId(44), PEER), Some(late(44)));
        assert_eq!(requests.late(RequestId(44), PeerId(4)), None);
    }
}
