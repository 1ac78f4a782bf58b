//! The bytes that this host sends to its peers, and those that it has promised them.
//!
//! Each peer has three queues, which are given to the driver in this order:
//!
//! | queue | content | given to the driver |
//! |---|---|---|
//! | `sending` | chunks that reads on the peer wait for | at once |
//! | `ahead` | chunks that it will request, as far as a root knows | [`BACKGROUND`] chunks at a time |
//! | `later` | chunks that it has requested without urgency | after these, under the same limit |
//!
//! All that was given to the driver is in `sending` until the driver reports that it is sent. A chunk without urgency
//! that waits in a queue of the node can be promoted or cancelled; one that the driver has can be promoted.
//!
//! Chunks that peers wait for and that are still on their way to this host are *promised*. They count as bytes that
//! wait to be sent, because they will go out as soon as they come; and as long as there are any, promises are repeated
//! (the alarm).

use super::crossing::Crossing;
use super::timers::Alarm;
use super::uplink::Uplink;
use crate::event::{Action, BlobId, Chunks, PeerId, Urgency};
use crate::message::RequestId;
use crate::settings::NodeSettings;
use crate::{CHUNK_SIZE, Time};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The number of chunks without urgency that the driver is given for one peer.
const BACKGROUND: u32 = 4;

/// The number of chunks that one peer may wait for, of all sorts; more are refused.
pub(super) const WAITING: u32 = 4096;

/// The divisor of the least timeout of a silent host: an asker is told that bytes will come if sending takes longer
/// than the quotient.
const SIGN: u32 = 2;

/// Bytes for a peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    /// The request that they answer; `None` if they are sent without one.
    pub(super) request: Option<RequestId>,
    pub(super) blob: BlobId,
    pub(super) chunks: Chunks,
    pub(super) urgency: Urgency,
    /// The number of chunks that were not sent yet.
    left: u32,
}

impl Transfer {
    /// Bytes of which none was sent yet.
    pub(super) fn new(request: Option<RequestId>, blob: BlobId, chunks: Chunks, urgency: Urgency) -> Self {
        Self { request, blob, chunks, urgency, left: chunks.count }
    }

    fn holds(&self, blob: BlobId, chunk: u32) -> bool {
        self.blob == blob && self.chunks.numbers().contains(&chunk)
    }
}

/// The result of a request for a chunk that may be with the driver already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WithDriver {
    /// The driver does not have it.
    No,
    /// The driver will send it.
    Yes,
    /// The driver is to send these chunks with urgency now.
    Promoted(Chunks),
}

/// The bytes for one peer.
#[derive(Debug, Default)]
struct Outgoing {
    /// Bytes that the driver was given.
    sending: Vec<Transfer>,
    /// The number of chunks among these that no read waits for.
    in_background: u32,
    /// Chunks that the peer will request, or has requested and will wait for: each is one chunk.
    ahead: VecDeque<Transfer>,
    /// Chunks that it has requested without urgency.
    later: VecDeque<Transfer>,
    /// Chunks of `ahead` that have left.
    crossing: Crossing,
    /// The number of chunks that it waits for while they are on their way to this host.
    promised: u32,
}

impl Outgoing {
    /// Gives the driver more chunks without urgency.
    fn fill_background(&mut self, peer: PeerId, actions: &mut Vec<Action>) {
        while self.in_background < BACKGROUND
            && let Some(mut next) = self.ahead.pop_front().or_else(|| self.later.pop_front())
        {
            let room = BACKGROUND - self.in_background;
            if next.chunks.count > room {
                let first = next.chunks.first + room;
                let rest = Chunks { first, count: next.chunks.count - room };
                self.later.push_front(Transfer { chunks: rest, left: rest.count, ..next });
                next.chunks.count = room;
                next.left = room;
            }
            self.in_background += next.chunks.count;
            self.sending.push(next);
            let Transfer { request, blob, chunks, urgency, .. } = next;
            actions.push(Action::Serve { peer, request, blob, chunks, urgency });
        }
    }

    /// Takes a chunk of a request, or one that was to be sent without one, from the queues of chunks without urgency;
    /// `true` if it was there.
    fn take_queued(&mut self, request: RequestId, blob: BlobId, chunk: u32) -> bool {
        let is_it = |transfer: &Transfer| {
            transfer.request.is_none_or(|other| other == request) && transfer.holds(blob, chunk)
        };
        let ahead = self.ahead.iter().position(is_it);
        if ahead.is_some_and(|at| self.ahead.remove(at).is_some()) {
            return true; // each of those is one chunk
        }
        let Some(at) = self.later.iter().position(is_it) else { return false };
        let Some(transfer) = self.later.remove(at) else { return false };
        let (first, end) = (transfer.chunks.first, transfer.chunks.numbers().end);
        let parts =
            [Chunks { first: chunk + 1, count: end - chunk - 1 }, Chunks { first, count: chunk - first }];
        for chunks in parts.into_iter().filter(|part| part.count > 0) {
            self.later.insert(at, Transfer { chunks, left: chunks.count, ..transfer });
        }
        true
    }
}

/// The bytes for all peers.
#[derive(Debug)]
pub(super) struct Serving {
    peers: BTreeMap<PeerId, Outgoing>,
    uplink: Uplink,
    alarm: Alarm,
    /// Bytes that wait to be sent, beyond which this host is busy.
    window: u64,
    /// The time beyond which a peer is told that its bytes will come.
    sign_after: Duration,
}

impl Serving {
    /// Nothing to send, and no peer.
    pub(super) fn new(settings: &NodeSettings) -> Self {
        Self {
            peers: BTreeMap::new(),
            uplink: Uplink::default(),
            alarm: Alarm::Idle,
            window: settings.serve_window,
            sign_after: settings.timeout_range.0 / SIGN,
        }
    }

    /// Adds a peer.
    pub(super) fn add_peer(&mut self, peer: PeerId) {
        self.peers.insert(peer, Outgoing::default());
    }

    /// Removes a peer: what was to be sent there is not sent.
    pub(super) fn remove_peer(&mut self, peer: PeerId) {
        let Some(gone) = self.peers.remove(&peer) else { return };
        let dropped = gone.sending.iter().filter(|transfer| transfer.urgency == Urgency::Demand);
        self.uplink.discard(dropped.map(|transfer| u64::from(transfer.left) * CHUNK_SIZE).sum());
    }

    /// Removes a blob's chunks from the queues; those that the driver has are reported by it.
    pub(super) fn forget_blob(&mut self, blob: BlobId) {
        for outgoing in self.peers.values_mut() {
            outgoing.later.retain(|transfer| transfer.blob != blob);
            outgoing.ahead.retain(|transfer| transfer.blob != blob);
        }
    }

    /// Gives the driver bytes to send, or keeps them back while no read waits for them and others are being sent.
    /// `len` is the blob's length.
    pub(super) fn send(
        &mut self,
        peer: PeerId,
        transfer: Transfer,
        len: u64,
        now: Time,
        actions: &mut Vec<Action>,
    ) {
        let Some(outgoing) = self.peers.get_mut(&peer) else { return };
        let Transfer { request, blob, chunks, urgency, .. } = transfer;
        match urgency {
            Urgency::Demand => {
                outgoing.sending.push(transfer);
                self.uplink.begin(now, chunks.bytes(len).len());
                // One by one: a read on the peer that waits for the first need not wait for the last.
                let one = |chunk| Action::Serve { peer, request, blob, chunks: Chunks::one(chunk), urgency };
                actions.extend(chunks.numbers().map(one));
            }
            Urgency::Background => {
                outgoing.later.push_back(transfer);
                outgoing.fill_background(peer, actions);
            }
        }
    }

    /// Gives the driver more of the chunks that a peer gets without urgency.
    pub(super) fn fill_background(&mut self, peer: PeerId, actions: &mut Vec<Action>) {
        if let Some(outgoing) = self.peers.get_mut(&peer) {
            outgoing.fill_background(peer, actions);
        }
    }

    /// Notes that the driver has sent chunks, or need not send them. Returns their number and urgency, if they were to
    /// be sent. `len` is the blob's length, if the blob is known still.
    pub(super) fn on_sent(
        &mut self,
        peer: PeerId,
        request: Option<RequestId>,
        (blob, len): (BlobId, Option<u64>),
        chunks: Chunks,
        now: Time,
    ) -> Option<(u32, Urgency)> {
        let outgoing = self.peers.get_mut(&peer)?;
        let fits = |transfer: &Transfer| {
            let (first, end) = (transfer.chunks.first, transfer.chunks.numbers().end);
            (transfer.request, transfer.blob) == (request, blob)
                && first <= chunks.first
                && chunks.numbers().end <= end
        };
        let at = outgoing.sending.iter().position(fits)?;
        let transfer = &mut outgoing.sending[at];
        let count = chunks.count.min(transfer.left);
        transfer.left -= count;
        let urgency = transfer.urgency;
        if transfer.left == 0 {
            outgoing.sending.remove(at);
        }
        match urgency {
            Urgency::Demand => {
                let bytes = len.map_or(u64::from(count) * CHUNK_SIZE, |len| chunks.bytes(len).len());
                self.uplink.complete(now, bytes);
            }
            Urgency::Background => outgoing.in_background = outgoing.in_background.saturating_sub(count),
        }
        Some((count, urgency))
    }

    /// Handles a request for a chunk that the driver may have been given for the same request.
    pub(super) fn requested_again(
        &mut self,
        peer: PeerId,
        request: RequestId,
        (blob, len): (BlobId, u64),
        chunk: u32,
        urgency: Urgency,
        now: Time,
    ) -> WithDriver {
        let Some(outgoing) = self.peers.get_mut(&peer) else { return WithDriver::No };
        let is_it =
            |transfer: &&mut Transfer| transfer.request == Some(request) && transfer.holds(blob, chunk);
        let Some(transfer) = outgoing.sending.iter_mut().find(is_it) else { return WithDriver::No };
        if urgency >= transfer.urgency {
            return WithDriver::Yes;
        }
        transfer.urgency = Urgency::Demand;
        let (chunks, left) = (transfer.chunks, transfer.left);
        outgoing.in_background = outgoing.in_background.saturating_sub(left);
        // They go out in order: the last ones are not sent yet.
        let rest = Chunks { first: chunks.numbers().end - left, count: left };
        self.uplink.begin(now, rest.bytes(len).len());
        WithDriver::Promoted(chunks)
    }

    /// Handles a request for a chunk that the driver may have been given to send without a request, or that has left so
    /// a moment ago.
    pub(super) fn requested_pushed(
        &mut self,
        peer: PeerId,
        (blob, len): (BlobId, u64),
        chunk: u32,
        urgency: Urgency,
        now: Time,
    ) -> WithDriver {
        let Some(outgoing) = self.peers.get_mut(&peer) else { return WithDriver::No };
        let is_it = |transfer: &&mut Transfer| transfer.request.is_none() && transfer.holds(blob, chunk);
        let Some(transfer) = outgoing.sending.iter_mut().find(is_it) else {
            let crosses = outgoing.crossing.holds(now, blob, chunk);
            return if crosses { WithDriver::Yes } else { WithDriver::No };
        };
        if urgency >= transfer.urgency {
            return WithDriver::Yes;
        }
        transfer.urgency = urgency;
        let (chunks, left) = (transfer.chunks, transfer.left);
        outgoing.in_background = outgoing.in_background.saturating_sub(left);
        self.uplink.begin(now, chunks.bytes(len).len());
        WithDriver::Promoted(chunks)
    }

    /// Takes a chunk that a peer has requested before from the queues of chunks without urgency; `true` if it was
    /// there.
    pub(super) fn take_queued(&mut self, peer: PeerId, request: RequestId, blob: BlobId, chunk: u32) -> bool {
        self.peers.get_mut(&peer).is_some_and(|outgoing| outgoing.take_queued(request, blob, chunk))
    }

    /// Notes that a peer does not wait for the rest of a request any more. `true` if it waits for chunks that are on
    /// their way to this host.
    pub(super) fn cancel(&mut self, peer: PeerId, request: RequestId) -> bool {
        let Some(outgoing) = self.peers.get_mut(&peer) else { return false };
        outgoing.later.retain(|transfer| transfer.request != Some(request));
        outgoing.ahead.retain(|transfer| transfer.request != Some(request));
        outgoing.promised > 0
    }

    /// The number of runs that a peer has requested without urgency.
    pub(super) fn background_backlog(&self, peer: PeerId) -> usize {
        self.peers.get(&peer).map_or(0, |outgoing| outgoing.later.len())
    }

    /// The number of chunks that the driver sends a peer because reads wait for them.
    pub(super) fn demanded(&self, peer: PeerId) -> u32 {
        let Some(outgoing) = self.peers.get(&peer) else { return 0 };
        let demanded = outgoing.sending.iter().filter(|transfer| transfer.urgency == Urgency::Demand);
        demanded.map(|transfer| transfer.left).sum()
    }

    /// `true` if as many bytes wait to be sent as may.
    pub(super) fn is_full(&self) -> bool {
        self.uplink.backlog() >= self.window
    }

    /// `true` if other hosts are to be named to a peer that asks for `bytes` more.
    pub(super) fn is_loaded(&self, bytes: u64) -> bool {
        self.uplink.is_loaded(bytes, self.window)
    }

    /// `true` if the bytes that go out now take so long that a peer is to be told that its bytes will come.
    pub(super) fn is_slow(&self, now: Time) -> bool {
        self.uplink.takes_longer(now, self.sign_after)
    }

    /// `true` if a peer waits for as many chunks that are on their way to this host as it may.
    pub(super) fn is_promised_enough(&self, peer: PeerId) -> bool {
        self.peers.get(&peer).is_none_or(|outgoing| outgoing.promised >= WAITING)
    }

    /// Promises a peer a chunk of `bytes` bytes; `true` if the alarm is to be set.
    pub(super) fn promise(&mut self, peer: PeerId, bytes: u64) -> bool {
        self.uplink.add_promise(bytes);
        if let Some(outgoing) = self.peers.get_mut(&peer) {
            outgoing.promised += 1;
        }
        self.alarm.set()
    }

    /// Ends the promises of `count` chunks of `bytes` bytes each.
    pub(super) fn end_promises(&mut self, peer: PeerId, count: u32, bytes: u64) {
        self.uplink.remove_promise(u64::from(count) * bytes);
        if let Some(outgoing) = self.peers.get_mut(&peer) {
            outgoing.promised = outgoing.promised.saturating_sub(count);
        }
    }

    /// Notes that the promises are repeated now.
    pub(super) fn on_alarm(&mut self) {
        self.alarm.ring();
    }

    /// Notes that promises are to be repeated once more; `true` if the alarm is to be set.
    pub(super) fn set_alarm(&mut self) -> bool {
        self.alarm.set()
    }

    /// The number of chunks that wait to be sent to a peer without a request, and of transfers that the driver has.
    pub(super) fn ahead(&self, peer: PeerId) -> Option<(usize, usize)> {
        self.peers.get(&peer).map(|outgoing| (outgoing.ahead.len(), outgoing.sending.len()))
    }

    /// `true` if a chunk is on its way to a peer, or will be as soon as possible.
    pub(super) fn sends(&self, peer: PeerId, blob: BlobId, chunk: u32) -> bool {
        let Some(outgoing) = self.peers.get(&peer) else { return false };
        outgoing.sending.iter().chain(&outgoing.ahead).any(|transfer| transfer.holds(blob, chunk))
    }

    /// Queues a chunk that a peer will request. If it has requested it without urgency, it is sent in answer to that.
    pub(super) fn send_ahead(&mut self, peer: PeerId, blob: BlobId, chunk: u32) {
        let Some(outgoing) = self.peers.get_mut(&peer) else { return };
        let queued = outgoing.later.iter().find(|transfer| transfer.holds(blob, chunk));
        let request = queued
            .and_then(|transfer| transfer.request)
            .filter(|request| outgoing.take_queued(*request, blob, chunk));
        outgoing.ahead.push_back(Transfer::new(request, blob, Chunks::one(chunk), Urgency::Background));
    }

    /// Notes that chunks have left for a peer without a request.
    pub(super) fn has_left(&mut self, peer: PeerId, blob: BlobId, chunks: Chunks, now: Time) {
        if let Some(outgoing) = self.peers.get_mut(&peer) {
            outgoing.crossing.on_departure(now, blob, chunks);
        }
    }

    /// Notes that a peer has advertised chunks.
    pub(super) fn has_landed(&mut self, peer: PeerId, blob: BlobId, chunks: Chunks, now: Time) {
        if let Some(outgoing) = self.peers.get_mut(&peer) {
            outgoing.crossing.on_advert(now, blob, chunks);
        }
    }

    /// The promised bytes, and the number of promised chunks of each peer.
    #[cfg(test)]
    pub(super) fn promised(&self) -> (u64, impl Iterator<Item = (PeerId, u32)>) {
        (self.uplink.promised(), self.peers.iter().map(|(peer, outgoing)| (*peer, outgoing.promised)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: PeerId = PeerId(3);
    const BLOB: BlobId = BlobId(1);
    const LEN: u64 = 64 * CHUNK_SIZE;
    const ASK: RequestId = RequestId(5);

    fn serving() -> Serving {
        let mut serving = Serving::new(&NodeSettings::default());
        serving.add_peer(PEER);
        serving
    }

    fn run(first: u32, count: u32) -> Chunks {
        Chunks { first, count }
    }

    /// The chunks that the driver is given.
    fn given(actions: &[Action]) -> Vec<Chunks> {
        let chunks = |action: &Action| match action {
            Action::Serve { chunks, .. } => Some(*chunks),
            _ => None,
        };
        actions.iter().filter_map(chunks).collect()
    }

    fn send(serving: &mut Serving, chunks: Chunks, urgency: Urgency) -> Vec<Chunks> {
        let mut actions = Vec::new();
        serving.send(PEER, Transfer::new(Some(ASK), BLOB, chunks, urgency), LEN, Time(0), &mut actions);
        given(&actions)
    }

    #[test]
    fn chunks_that_reads_wait_for_go_out_at_once_and_others_a_few_at_a_time() {
        let mut serving = serving();
        assert_eq!(send(&mut serving, run(0, 6), Urgency::Background), [run(0, 4)]);
        assert_eq!(send(&mut serving, run(20, 2), Urgency::Demand), [run(20, 1), run(21, 1)]);
        let sent = serving.on_sent(PEER, Some(ASK), (BLOB, Some(LEN)), run(0, 3), Time(9));
        assert_eq!(sent, Some((3, Urgency::Background)));
        let mut actions = Vec::new();
        serving.fill_background(PEER, &mut actions);
        assert_eq!(given(&actions), [run(4, 2)]);
        assert_eq!(serving.on_sent(PEER, None, (BLOB, Some(LEN)), run(20, 1), Time(9)), None, "another's");
        let sent = serving.on_sent(PEER, Some(ASK), (BLOB, Some(LEN)), run(20, 1), Time(9));
        assert_eq!((sent, serving.demanded(PEER)), (Some((1, Urgency::Demand)), 1));
    }

    #[test]
    fn a_chunk_that_the_driver_has_is_promoted_once() {
        let mut serving = serving();
        send(&mut serving, run(0, 2), Urgency::Background);
        let mut ask = |urgency| serving.requested_again(PEER, ASK, (BLOB, LEN), 1, urgency, Time(0));
        assert_eq!(ask(Urgency::Background), WithDriver::Yes);
        assert_eq!(ask(Urgency::Demand), WithDriver::Promoted(run(0, 2)));
        assert_eq!(ask(Urgency::Demand), WithDriver::Yes);
        assert_eq!(serving.demanded(PEER), 2);
        let other = serving.requested_again(PEER, RequestId(6), (BLOB, LEN), 1, Urgency::Demand, Time(0));
        assert_eq!(other, WithDriver::No);
    }

    #[test]
    fn chunks_that_wait_in_a_queue_are_taken_out_or_cancelled() {
        let mut serving = serving();
        send(&mut serving, run(0, 4), Urgency::Background);
        send(&mut serving, run(10, 5), Urgency::Background);
        assert!(serving.take_queued(PEER, ASK, BLOB, 12));
        assert!(!serving.take_queued(PEER, ASK, BLOB, 12));
        assert_eq!(serving.background_backlog(PEER), 2, "those before it and those after it");
        assert!(!serving.cancel(PEER, ASK));
        assert_eq!(serving.background_backlog(PEER), 0);
        send(&mut serving, run(20, 1), Urgency::Background);
        serving.forget_blob(BLOB);
        assert_eq!(serving.background_backlog(PEER), 0);
    }

    #[test]
    fn chunks_are_sent_ahead_of_others_and_in_answer_to_a_request_if_there_is_one() {
        let mut serving = serving();
        send(&mut serving, run(0, 4), Urgency::Background);
        send(&mut serving, run(10, 1), Urgency::Background);
        serving.send_ahead(PEER, BLOB, 10);
        serving.send_ahead(PEER, BLOB, 11);
        assert!(serving.sends(PEER, BLOB, 11) && !serving.sends(PEER, BLOB, 12));
        assert_eq!((serving.ahead(PEER), serving.background_backlog(PEER)), (Some((2, 1)), 0));
        serving.on_sent(PEER, Some(ASK), (BLOB, Some(LEN)), run(0, 4), Time(1));
        let mut actions = Vec::new();
        serving.fill_background(PEER, &mut actions);
        let requests: Vec<_> = actions
            .iter()
            .map(|action| match action {
                Action::Serve { request, chunks, .. } => (*request, chunks.first),
                other => unreachable!("{other:?}"),
            })
            .collect();
        assert_eq!(requests, [(Some(ASK), 10), (None, 11)]);
        let pushed = |serving: &mut Serving, urgency, at| {
            serving.requested_pushed(PEER, (BLOB, LEN), 11, urgency, Time(at))
        };
        assert_eq!(pushed(&mut serving, Urgency::Demand, 2), WithDriver::Promoted(run(11, 1)));
        serving.on_sent(PEER, None, (BLOB, Some(LEN)), run(11, 1), Time(3));
        serving.has_left(PEER, BLOB, run(11, 1), Time(3));
        assert_eq!(pushed(&mut serving, Urgency::Demand, 4), WithDriver::Yes, "it is on its way");
        serving.has_landed(PEER, BLOB, run(11, 1), Time(5));
        assert_eq!(pushed(&mut serving, Urgency::Demand, 6), WithDriver::No);
    }

    #[test]
    fn promises_count_as_bytes_that_wait_and_set_the_alarm_once() {
        let mut serving = serving();
        assert!(!serving.is_loaded(CHUNK_SIZE));
        assert!(serving.promise(PEER, 2 * CHUNK_SIZE));
        assert!(!serving.promise(PEER, CHUNK_SIZE));
        assert!(serving.is_loaded(CHUNK_SIZE) && !serving.is_full());
        assert!(serving.cancel(PEER, ASK), "it waits");
        serving.end_promises(PEER, 1, 2 * CHUNK_SIZE);
        serving.end_promises(PEER, 1, CHUNK_SIZE);
        assert!(!serving.cancel(PEER, ASK) && !serving.is_loaded(CHUNK_SIZE));
        serving.on_alarm();
        assert!(serving.set_alarm());
    }

    #[test]
    fn a_peer_that_is_gone_leaves_nothing_to_be_sent() {
        let mut serving = serving();
        send(&mut serving, run(0, 4), Urgency::Demand);
        assert!(serving.is_loaded(CHUNK_SIZE));
        serving.remove_peer(PEER);
        assert!(!serving.is_loaded(CHUNK_SIZE));
        assert!(serving.is_promised_enough(PEER), "nothing is promised to it");
        assert_eq!(send(&mut serving, run(0, 1), Urgency::Demand), []);
    }
}
