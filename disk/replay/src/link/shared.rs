//! A link that connections share: each answer flows on one of its own, and all that flow at a moment have the link in
//! equal parts, as parcels of senders that take turns do.
//!
//! * A request takes a connection that is idle, or makes one, whose first answer is a round trip later. An answer that
//!   is cancelled takes its connection along.
//! * A streamed answer is told in pieces of [`PIECE`]. While it is *held* the receiver takes none of its bytes: a
//!   window of them still flows, into buffers, and is told when the receiver takes them again.
//!
//! Bytes on the link are counted in billionths, so that shares of nanoseconds are whole numbers; the remainder of the
//! division by the number of flowing answers is rounded in favour of the link: less than a nanosecond for each event.

use super::{Answer, Came, Connections, LinkBandwidth, LinkModel, Store};
use crate::time::Nanos;
use headstart_block::saturating;

/// Bytes of a streamed answer that are told together.
const PIECE: u64 = 64 << 10;

/// Billionths of bytes.
const SCALE: u128 = 1_000_000_000;

/// The answers on a link that is shared.
#[derive(Debug)]
pub(crate) struct Evenly<T> {
    link: LinkModel,
    connections: Connections,
    store: Store,
    idle: usize,
    /// The time up to which the answers have flowed.
    at: Nanos,
    /// In the order of asking.
    answers: Vec<Flow<T>>,
    /// The time of the next arrival, and its answer.
    next: Option<(Nanos, usize)>,
}

/// An answer that is asked for, or flows.
#[derive(Clone, Copy, Debug)]
struct Flow<T> {
    answer: Answer<T>,
    stream: bool,
    /// The number of billionths of bytes that have flowed, with its head.
    flowed: u128,
    /// Bytes that were told, or taken while it was held.
    told: u64,
    /// The amount at which it stops.
    stops: u128,
    held: bool,
    head: u64,
}

impl<T> Flow<T> {
    /// The end, in billionths of bytes; so are all that follow.
    fn end(&self) -> u128 {
        if self.answer.failed { 0 } else { u128::from(self.answer.bytes + self.head) * SCALE }
    }

    /// The amount that has to have flowed for the next part to be told.
    fn due(&self) -> u128 {
        let piece = u128::from(self.told + PIECE + self.head) * SCALE;
        if self.stream && piece < self.end() { piece } else { self.end() }
    }

    fn flows(&self, at: Nanos) -> bool {
        self.answer.ready <= at && self.flowed < self.end().min(self.stops)
    }

    /// The amount that has still to flow, if it flows, until it stops or a new part of it is there.
    fn left(&self) -> u128 {
        let (due, stop) = (self.due(), self.end().min(self.stops));
        let next = if due > self.flowed { due.min(stop) } else { stop };
        next.saturating_sub(self.flowed).max(1)
    }

    /// `true` if a part of it is there and can be taken.
    fn is_there(&self, at: Nanos) -> bool {
        !self.held && self.answer.ready <= at && self.flowed >= self.due()
    }
}

impl<T: Copy> Evenly<T> {
    pub(super) fn new(link: LinkModel, connections: Connections, seed: u64) -> Self {
        let store = Store::new(&link, seed);
        let (idle, at) = (connections.open, Nanos(0));
        Self { link, connections, store, idle, at, answers: Vec::new(), next: None }
    }

    pub(super) fn ask(&mut self, now: Nanos, what: T, bytes: u64, stream: bool) {
        let mut answer = self.store.answer(&self.link, now, what, bytes);
        // A request goes up before its answer comes down.
        let up = self.link.bandwidth.end(now, self.connections.head).since(now);
        answer.ready = answer.ready.plus(up);
        match self.idle.checked_sub(1) {
            Some(idle) => self.idle = idle,
            None => answer.ready = answer.ready.plus(Nanos::from_duration(self.link.round_trip)),
        }
        self.advance(now);
        let head = self.connections.head;
        let (flowed, told, stops, held) = (0, 0, u128::MAX, false);
        self.answers.push(Flow { answer, stream, flowed, told, stops, held, head });
        self.look_ahead();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    pub(super) fn next(&self) -> Nanos {
        self.next.map_or(Nanos::NEVER, |(at, _)| at)
    }

    pub(super) fn pop(&mut self) -> Option<Came<T>> {
        let (at, place) = self.next.take()?;
        self.advance(at);
        let flow = self.answers.get_mut(place)?;
        let came = if flow.flowed >= flow.end() {
            let mut flow = self.answers.remove(place);
            self.idle += 1;
            flow.answer.end = at;
            flow.answer.start = flow.answer.start.min(at);
            Came::All(flow.answer)
        } else {
            flow.told += PIECE;
            Came::Part(flow.answer.what, flow.told)
        };
        self.look_ahead();
        Some(came)
    }

    /// Cancels a request that is no longer wanted.
    pub(super) fn cancel(&mut self, now: Nanos, is_it: impl Fn(&T) -> bool) -> bool {
        let Some(place) = self.answers.iter().position(|flow| is_it(&flow.answer.what)) else { return false };
        self.advance(now);
        self.answers.remove(place);
        self.look_ahead();
        true
    }

    pub(super) fn hold(&mut self, now: Nanos, held: bool, is_it: impl Fn(&T) -> bool) {
        let Some(place) = self.answers.iter().position(|flow| is_it(&flow.answer.what)) else { return };
        self.advance(now);
        let window = u128::from(self.connections.window) * SCALE;
        if let Some(flow) = self.answers.get_mut(place) {
            flow.held = held;
            flow.stops = if held { flow.flowed + window } else { u128::MAX };
        }
        self.look_ahead();
    }

    /// Lets everything flow up to `to`; no arrival before that was left untaken.
    fn advance(&mut self, to: Nanos) {
        while self.at < to {
            let at = self.at;
            for flow in &mut self.answers {
                if flow.answer.start == Nanos::NEVER && flow.answer.ready <= at {
                    flow.answer.start = at;
                }
            }
            let until = change(&self.link.bandwidth, &self.answers, at).min(to);
            let share = share(&self.link.bandwidth, &self.answers, at, until);
            for flow in self.answers.iter_mut().filter(|flow| flow.flows(at)) {
                flow.flowed = (flow.flowed + share).min(flow.stops).min(flow.end());
            }
            self.at = until;
        }
    }

    /// Finds the next arrival, if there are no more requests.
    fn look_ahead(&mut self) {
        let mut at = self.at;
        let mut answers: Vec<_> = self.answers.clone();
        self.next = loop {
            if let Some(place) = answers.iter().position(|flow| flow.is_there(at)) {
                break Some((at, place));
            }
            let until = change(&self.link.bandwidth, &answers, at);
            if until == Nanos::NEVER {
                break None;
            }
            let share = share(&self.link.bandwidth, &answers, at, until);
            for flow in answers.iter_mut().filter(|flow| flow.flows(at)) {
                flow.flowed = (flow.flowed + share).min(flow.stops).min(flow.end());
            }
            at = until;
        };
    }
}

/// The share of the link of each flowing answer from `at` until `until`, before which nothing changes.
fn share<T>(bandwidth: &LinkBandwidth, answers: &[Flow<T>], at: Nanos, until: Nanos) -> u128 {
    let flowing = answers.iter().filter(|flow| flow.flows(at)).count().max(1);
    u128::from(until.since(at).0) * u128::from(bandwidth.at(at)) / flowing as u128
}

/// The next time after `at` at which the shares change, or a part is there.
fn change<T>(bandwidth: &LinkBandwidth, answers: &[Flow<T>], at: Nanos) -> Nanos {
    let flowing = || answers.iter().filter(|flow| flow.flows(at));
    let ready = answers.iter().map(|flow| flow.answer.ready).filter(|ready| *ready > at).min();
    let next = ready.unwrap_or(Nanos::NEVER);
    let least = flowing().map(Flow::left).min();
    let Some(least) = least else { return next };
    let (count, rate) = (flowing().count() as u128, u128::from(bandwidth.at(at)));
    let takes = (least * count).div_ceil(rate).max(1);
    let flows = at.plus(Nanos(saturating(takes)));
    next.min(flows).min(bandwidth.changes_after(at))
}

#[cfg(test)]
mod tests {
    use super::super::{Failures, Latency, Sharing};
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    const MS: u64 = 1_000_000;

    /// A megabyte a second, and 10 ms; without heads.
    fn wire(open: usize) -> Evenly<u32> {
        let connections = Connections { open, head: 0, window: 10_000 };
        let link = LinkModel {
            bandwidth: LinkBandwidth::Constant(1_000_000),
            round_trip: Duration::from_millis(10),
            latency: Latency::default(),
            failures: Failures::default(),
            sharing: Sharing::Evenly(connections),
        };
        Evenly::new(link, connections, 1)
    }

    /// All arrivals: the answer, the number of bytes in all, and the time in milliseconds.
    fn all(wire: &mut Evenly<u32>) -> Vec<(u32, u64, u64)> {
        std::iter::from_fn(|| {
            let at = wire.next().0.div_ceil(MS);
            Some(match wire.pop()? {
                Came::All(answer) => (answer.what, answer.bytes, at),
                Came::Part(what, bytes) => (what, bytes, at),
            })
        })
        .collect()
    }

    #[test]
    fn concurrent_transfers_share_the_rate() {
        let mut wire = wire(2);
        wire.ask(Nanos(0), 1, 30_000, false);
        wire.ask(Nanos(10 * MS), 2, 10_000, false);
        // 10 ms alone, then both 20 ms, then the rest of the first.
        assert_eq!(all(&mut wire), [(2, 10_000, 40), (1, 30_000, 50)]);
    }

    #[test]
    fn a_new_connection_is_a_round_trip_later() {
        let mut wire = wire(1);
        wire.ask(Nanos(0), 1, 1000, false);
        wire.ask(Nanos(0), 2, 1000, false);
        assert_eq!(all(&mut wire), [(1, 1000, 11), (2, 1000, 21)]);
        wire.ask(Nanos(100 * MS), 3, 1000, false);
        wire.ask(Nanos(100 * MS), 4, 1000, false);
        assert_eq!(all(&mut wire), [(3, 1000, 112), (4, 1000, 112)]);
        wire.ask(Nanos(200 * MS), 5, 1000, false);
        wire.ask(Nanos(200 * MS), 6, 1000, false);
        assert!(
            wire.cancel(Nanos(201 * MS), |what| *what == 5)
                && !wire.cancel(Nanos(201 * MS), |what| *what == 5)
        );
        assert_eq!((all(&mut wire), wire.idle), (vec![(6, 1000, 211)], 1));
    }

    #[test]
    fn a_stream_is_told_in_pieces_and_can_be_held() {
        let mut wire = wire(2);
        wire.ask(Nanos(0), 1, 200_000, true);
        assert_eq!(wire.next().0.div_ceil(MS), 76);
        assert_eq!(wire.pop(), Some(Came::Part(1, PIECE)));
        wire.hold(Nanos(100 * MS), true, |what| *what == 1);
        wire.ask(Nanos(100 * MS), 2, 50_000, false);
        // The window's 10 kB flow alone, so the answer has all of the link.
        assert_eq!(wire.next().0.div_ceil(MS), 160);
        assert!(matches!(wire.pop(), Some(Came::All(answer)) if answer.what == 2));
        assert_eq!(wire.next(), Nanos::NEVER);
        wire.hold(Nanos(200 * MS), false, |what| *what == 1);
        assert_eq!(all(&mut wire), [(1, 2 * PIECE, 232), (1, 3 * PIECE, 297), (1, 200_000, 300)]);
    }

    proptest! {
        /// The link never rests while an answer is ready, and carries no more than it can: requests made before it is
        /// idle again have come as soon as if they had come in turn.
        #[test]
        fn work_is_conserved(
            asks in prop::collection::vec((0_u64..50_000_000, 1_u64..100_000, any::<bool>()), 1..30),
        ) {
            let (mut wire, mut now, mut last) = (wire(64), Nanos(0), Nanos(0));
            let (mut came, mut free, mut told) = (0, Nanos(0), 0);
            let mut take = |wire: &mut Evenly<u32>, until: Nanos| {
                while wire.next() <= until && wire.next() < Nanos::NEVER {
                    let at = wire.next();
                    assert!(at >= last, "time runs back");
                    last = at;
                    match wire.pop().expect("something was to come") {
                        Came::All(_) => came += 1,
                        Came::Part(..) => told += 1,
                    }
                }
                (came, last, told)
            };
            for (n, (pause, bytes, stream)) in (0..).zip(&asks) {
                now = now.plus(Nanos(*pause));
                take(&mut wire, now);
                wire.ask(now, n, *bytes, *stream);
                let ready = now.plus(Nanos(10 * MS));
                free = free.max(ready).plus(Nanos(bytes * 1000));
            }
            let (came, last, _) = take(&mut wire, Nanos(u64::MAX - 1));
            prop_assert_eq!(came, asks.len());
            prop_assert!(last.0.abs_diff(free.0) <= 100 * asks.len() as u64, "{:?} {:?}", last, free);
        }
    }
}
