//! The way to the store: one link of a given bandwidth and round trip.
//!
//! The transfer of an answer can begin when the answer is *ready*: a round trip plus the store's latency after its
//! request. Answers that are ready at the same time use the link in one of two ways ([`Sharing`]):
//!
//! * *In turn*: they are transferred one after the other, in the order in which they became ready, each at the full
//!   rate. With no round trip and no latency this is the model of the ThinkAhead paper.
//! * *Evenly*: all of them are transferred at once, each at an equal share of the rate (`shared`). The product's
//!   requests behave like this, because each of them has a TCP connection of its own while it is answered.
//!
//! All times are exact: the transfer of `bytes` at `rate` takes `ceil(bytes * 10^9 / rate)` nanoseconds.
//!
//! A store can fail ([`Failures`]): the answer to a failed request has no bytes, and takes no time on the link.

pub(crate) mod shared;

use crate::time::Nanos;
use headstart_block::random::Random;
use headstart_block::saturating;
use headstart_trace::LinkSample;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The bandwidth of a link over time, in bytes a second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkBandwidth {
    /// A bandwidth that never changes.
    Constant(u64),
    /// Bandwidths with the times from which they hold, in ascending order of time. The first also holds before its
    /// time, the last has no end. If there are none, no transfer ends.
    Series(Arc<[(Nanos, u64)]>),
}

impl LinkBandwidth {
    /// Returns the bandwidth that was measured in `samples`; `None` if no sample has a bandwidth.
    #[must_use]
    pub fn measured(samples: &[LinkSample]) -> Option<Self> {
        let mut steps: Vec<_> = samples
            .iter()
            .filter_map(|sample| Some((Nanos::from_micros(sample.t_us), sample.bandwidth?)))
            .collect();
        steps.sort_by_key(|(at, _)| *at);
        (!steps.is_empty()).then(|| Self::Series(steps.into()))
    }

    /// Bytes a second at a moment, at least one.
    fn at(&self, moment: Nanos) -> u64 {
        let rate = match self {
            Self::Constant(rate) => *rate,
            Self::Series(steps) => {
                let step = steps.partition_point(|(from, _)| *from <= moment).saturating_sub(1);
                steps.get(step).map_or(1, |(_, rate)| *rate)
            }
        };
        rate.max(1)
    }

    /// The time of the next change after a moment.
    fn changes_after(&self, moment: Nanos) -> Nanos {
        match self {
            Self::Constant(_) => Nanos::NEVER,
            Self::Series(steps) => {
                let next = steps.partition_point(|(from, _)| *from <= moment).max(1);
                steps.get(next).map_or(Nanos::NEVER, |(from, _)| *from)
            }
        }
    }

    /// Returns the time at which the transfer of `bytes` bytes that begins at `start` ends. A bandwidth of 0
    /// counts as one byte a second.
    #[must_use]
    pub fn end(&self, start: Nanos, bytes: u64) -> Nanos {
        match self {
            Self::Constant(rate) => start.plus(span(bytes, *rate)),
            Self::Series(steps) => end_of_series(steps, start, bytes),
        }
    }
}

/// Returns the duration of transferring `bytes` bytes at `rate` bytes a second, rounded up to a nanosecond. A
/// rate of 0 counts as one byte a second.
#[must_use]
pub fn span(bytes: u64, rate: u64) -> Nanos {
    Nanos(headstart_plan::Bandwidth::new(rate).time_of(bytes))
}

fn end_of_series(steps: &[(Nanos, u64)], start: Nanos, bytes: u64) -> Nanos {
    // In bytes times nanoseconds over seconds, so that nothing is lost where the rate changes.
    let mut left = u128::from(bytes) * 1_000_000_000;
    let mut at = start;
    let mut step = steps.partition_point(|(from, _)| *from <= start).saturating_sub(1);
    while let Some((_, rate)) = steps.get(step) {
        let rate = u128::from((*rate).max(1));
        let until = steps.get(step + 1).map_or(Nanos::NEVER, |(from, _)| *from);
        let room = u128::from(until.since(at).0) * rate;
        if left <= room || until == Nanos::NEVER {
            return at.plus(Nanos(saturating(left.div_ceil(rate))));
        }
        left -= room;
        at = until;
        step += 1;
    }
    Nanos::NEVER
}

/// The duration from a request's arrival at the store until its answer is ready, in addition to the round
/// trip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// The minimum latency.
    pub least: Duration,
    /// The maximum addition to the minimum, drawn uniformly for each request.
    pub spread: Duration,
}

/// The simulated failures of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failures {
    /// The number of requests in a million that fail at random. The error comes when the answer would have
    /// been ready.
    pub per_million: u32,
    /// The outages of the store. The answer to a request that is sent from the first time of a pair to before the
    /// second is delayed by the rest of the outage, or fails. Answers to requests that were sent before come as usual.
    pub away: Vec<(Nanos, Nanos)>,
    /// The maximum wait of a request that is sent during an outage: if its answer is not ready within this duration,
    /// the request fails then. 15 seconds by default.
    pub time_out: Duration,
}

impl Default for Failures {
    /// No failures, and the product's time limit for a first byte.
    fn default() -> Self {
        Self { per_million: 0, away: Vec::new(), time_out: Duration::from_secs(15) }
    }
}

/// The way in which several answers that are ready share the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Answers are transferred one after the other, each at the full bandwidth.
    InTurn,
    /// All answers are transferred at once, each on a TCP connection of its own, with equal shares of the
    /// bandwidth.
    Evenly(Connections),
}

/// The behaviour of the TCP connections to a store, on which answers share the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// The number of open, idle connections at the creation. A request that finds none opens one, which takes
    /// one more round trip. 3 by default.
    pub open: usize,
    /// The length, in bytes, of the headers of a request, and also of the headers of an answer; both use the link. 300
    /// by default.
    pub head: u64,
    /// The number of bytes of an answer that the store goes on sending while the receiver accepts none: the
    /// TCP window and buffers on the way. 1 MiB by default.
    pub window: u64,
}

impl Default for Connections {
    fn default() -> Self {
        Self { open: 3, head: 300, window: 1 << 20 }
    }
}

/// The simulated link between a host and a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkModel {
    /// The bandwidth, in bytes a second.
    pub bandwidth: LinkBandwidth,
    /// The duration from a request to the first byte of its answer on an idle link, if the store needs no
    /// time.
    pub round_trip: Duration,
    /// The latency of the store, which is added to the round trip.
    pub latency: Latency,
    /// The simulated failures of the store.
    pub failures: Failures,
    /// The way in which several answers that are ready share the link.
    pub sharing: Sharing,
}

impl LinkModel {
    /// From asking to the first byte of an answer on an idle link.
    fn distance(&self) -> Nanos {
        Nanos::from_duration(self.round_trip.saturating_add(self.latency.least))
    }
}

/// An answer on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer<T> {
    pub(crate) what: T,
    pub(crate) bytes: u64,
    pub(crate) asked: Nanos,
    /// The time at which it could have begun to flow on an idle link.
    pub(crate) ready: Nanos,
    /// The time at which it began to flow.
    pub(crate) start: Nanos,
    /// The time at which it had come.
    pub(crate) end: Nanos,
    /// `true` if it is an error, without bytes.
    pub(crate) failed: bool,
}

/// An arrival over a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came<T> {
    /// An answer, or the rest of it.
    All(Answer<T>),
    /// More bytes of a streamed answer: the number of all so far.
    Part(T, u64),
}

/// The times at which answers are ready, drawn if the link says so.
#[derive(Debug)]
pub(crate) struct Store {
    spread: u64,
    random: Random,
}

impl Store {
    fn new(link: &LinkModel, seed: u64) -> Self {
        Self { spread: Nanos::from_duration(link.latency.spread).0, random: Random::new(seed) }
    }

    /// The answer to a request for `bytes` at `now`.
    fn answer<T>(&mut self, link: &LinkModel, now: Nanos, what: T, bytes: u64) -> Answer<T> {
        let latency = if self.spread == 0 { Nanos(0) } else { Nanos(self.draw(self.spread)) };
        let mut ready = now.plus(link.distance()).plus(latency);
        let share = link.failures.per_million;
        let mut failed = share > 0 && self.draw(999_999) < u64::from(share);
        let away = link.failures.away.iter().find(|(from, until)| (*from..*until).contains(&now));
        if let Some((_, back)) = away {
            let give_up = now.plus(Nanos::from_duration(link.failures.time_out));
            ready = ready.plus(back.since(now));
            failed |= ready > give_up;
            ready = ready.min(give_up);
        }
        let bytes = if failed { 0 } else { bytes };
        let (start, end) = (Nanos::NEVER, Nanos::NEVER);
        Answer { what, bytes, asked: now, ready, start, end, failed }
    }

    /// A number from 0 to `most`.
    fn draw(&mut self, most: u64) -> u64 {
        self.random.bits() % most.saturating_add(1).max(1)
    }
}

/// The answers on a link.
#[derive(Debug)]
pub(crate) enum Wire<T> {
    InTurn(InTurn<T>),
    Evenly(shared::Evenly<T>),
}

impl<T: Copy> Wire<T> {
    pub(crate) fn new(link: LinkModel, seed: u64) -> Self {
        match link.sharing {
            Sharing::InTurn => Self::InTurn(InTurn::new(link, seed)),
            Sharing::Evenly(connections) => Self::Evenly(shared::Evenly::new(link, connections, seed)),
        }
    }

    /// Asks for `bytes`; if it is a `stream`, they are given as they come.
    pub(crate) fn ask(&mut self, now: Nanos, what: T, bytes: u64, stream: bool) {
        match self {
            Self::InTurn(wire) => wire.ask(now, what, bytes),
            Self::Evenly(wire) => wire.ask(now, what, bytes, stream),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::InTurn(wire) => wire.is_empty(),
            Self::Evenly(wire) => wire.is_empty(),
        }
    }

    /// The time of the next arrival.
    pub(crate) fn next(&self) -> Nanos {
        match self {
            Self::InTurn(wire) => wire.next(),
            Self::Evenly(wire) => wire.next(),
        }
    }

    /// Takes the next arrival.
    pub(crate) fn pop(&mut self) -> Option<Came<T>> {
        match self {
            Self::InTurn(wire) => wire.pop().map(Came::All),
            Self::Evenly(wire) => wire.pop(),
        }
    }

    /// Cancels a request that is no longer wanted; `true` if it was dropped: in turn, an answer that flows comes
    /// anyway.
    pub(crate) fn cancel(&mut self, now: Nanos, is_it: impl Fn(&T) -> bool) -> bool {
        match self {
            Self::InTurn(wire) => wire.cancel(now, is_it),
            Self::Evenly(wire) => wire.cancel(now, is_it),
        }
    }

    /// Notes that the receiver takes no more of this streamed answer, or that it takes it again.
    pub(crate) fn hold(&mut self, now: Nanos, held: bool, is_it: impl Fn(&T) -> bool) {
        if let Self::Evenly(wire) = self {
            wire.hold(now, held, is_it);
        }
    }
}

/// A link that answers have in turn.
#[derive(Debug)]
pub(crate) struct InTurn<T> {
    link: LinkModel,
    store: Store,
    free_at: Nanos,
    /// By `ready`; the first one flows, or will as soon as it is ready. A flowing answer cannot be overtaken: a later
    /// request is ready later.
    queue: VecDeque<Answer<T>>,
}

impl<T> InTurn<T> {
    fn new(link: LinkModel, seed: u64) -> Self {
        let store = Store::new(&link, seed);
        Self { link, store, free_at: Nanos(0), queue: VecDeque::new() }
    }

    fn ask(&mut self, now: Nanos, what: T, bytes: u64) {
        let answer = self.store.answer(&self.link, now, what, bytes);
        let mut place = self.queue.len();
        while place > 0 && self.queue[place - 1].ready > answer.ready {
            place -= 1;
        }
        self.queue.insert(place, answer);
        if place == 0 {
            self.schedule();
        }
    }

    fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The time at which the next answer has come.
    fn next(&self) -> Nanos {
        self.queue.front().map_or(Nanos::NEVER, |answer| answer.end)
    }

    /// Takes the next answer.
    fn pop(&mut self) -> Option<Answer<T>> {
        let answer = self.queue.pop_front()?;
        self.free_at = answer.end;
        self.schedule();
        Some(answer)
    }

    /// Cancels a request that is no longer wanted: its answer does not flow unless it has begun to. `true` if it was
    /// dropped.
    fn cancel(&mut self, now: Nanos, is_it: impl Fn(&T) -> bool) -> bool {
        let place = self.queue.iter().position(|answer| is_it(&answer.what));
        let Some(place) = place.filter(|place| self.queue[*place].start > now) else { return false };
        self.queue.remove(place);
        if place == 0 {
            self.schedule();
        }
        true
    }

    fn schedule(&mut self) {
        if let Some(first) = self.queue.front_mut() {
            first.start = self.free_at.max(first.ready);
            first.end = self.link.bandwidth.end(first.start, first.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn link(rate: u64, round_trip: u64, spread: u64) -> LinkModel {
        LinkModel {
            bandwidth: LinkBandwidth::Constant(rate),
            round_trip: Duration::from_millis(round_trip),
            latency: Latency { least: Duration::ZERO, spread: Duration::from_millis(spread) },
            failures: Failures::default(),
            sharing: Sharing::InTurn,
        }
    }

    #[test]
    fn answers_follow_each_other() {
        let mut wire = InTurn::new(link(1_000_000, 20, 0), 0);
        wire.ask(Nanos(0), 'a', 1_000_000);
        wire.ask(Nanos(0), 'b', 500_000);
        wire.ask(Nanos::from_micros(3_000_000), 'c', 1);
        let ends: Vec<_> =
            std::iter::from_fn(|| wire.pop()).map(|answer| (answer.what, answer.end.0)).collect();
        assert_eq!(ends, [('a', 1_020_000_000), ('b', 1_520_000_000), ('c', 3_020_001_000)]);
    }

    #[test]
    fn a_request_on_the_wire_cannot_be_cancelled() {
        let mut wire = InTurn::new(link(1_000_000, 0, 0), 0);
        for what in ['a', 'b', 'c'] {
            wire.ask(Nanos(0), what, 1000);
        }
        assert!(!wire.cancel(Nanos(0), |what| *what == 'a'));
        assert!(wire.cancel(Nanos(0), |what| *what == 'b'));
        assert!(!wire.cancel(Nanos(0), |what| *what == 'b'));
        wire.pop();
        assert_eq!(wire.pop().map(|answer| (answer.what, answer.end)), Some(('c', Nanos(2_000_000))));
    }

    #[test]
    fn a_store_that_is_away_answers_later_or_not_at_all() {
        let mut link = link(1_000_000, 20, 0);
        let second = |second: u64| Nanos::from_micros(second * 1_000_000);
        link.failures.away = vec![(second(1), second(21))];
        let mut wire = InTurn::new(link, 0);
        for asked in [0, 1, 7, 21] {
            wire.ask(second(asked), asked, 1000);
        }
        let came: Vec<_> = std::iter::from_fn(|| wire.pop())
            .map(|answer| (answer.what, answer.failed, answer.end.0 / 1_000_000))
            .collect();
        assert_eq!(came, [(0, false, 21), (1, true, 16_000), (7, false, 21_021), (21, false, 21_022)]);
    }

    #[test]
    fn a_share_of_requests_fails() {
        let mut link = link(1_000_000, 0, 0);
        link.failures.per_million = 250_000;
        let mut wire = InTurn::new(link, 3);
        (0..4000).for_each(|n| wire.ask(Nanos(0), n, 1000));
        let failed =
            std::iter::from_fn(|| wire.pop()).filter(|answer| answer.failed && answer.bytes == 0).count();
        assert!((900..1100).contains(&failed), "{failed}");
    }

    #[test]
    fn a_series_is_followed_to_the_byte() {
        let sample = |t_us, bandwidth| LinkSample { t_us, bandwidth, round_trip_us: None };
        let samples = [sample(2_000_000, Some(3000)), sample(1_000_000, Some(1000)), sample(0, None)];
        let series = LinkBandwidth::measured(&samples).unwrap();
        assert_eq!(series.end(Nanos(0), 1000), Nanos::from_micros(1_000_000));
        assert_eq!(series.end(Nanos(0), 2000), Nanos::from_micros(2_000_000));
        assert_eq!(series.end(Nanos::from_micros(1_500_000), 3500), Nanos::from_micros(3_000_000));
        assert_eq!(LinkBandwidth::measured(&samples[2..]), None);
    }

    proptest! {
        /// A series of one rate is that rate, wherever it is cut.
        #[test]
        fn a_flat_series_is_constant(rate in 1_u64..1 << 32, start in 0_u64..1 << 40, bytes in 0_u64..1 << 30,
                                     cuts in prop::collection::vec(0_u64..1 << 40, 0..20)) {
            let mut steps: Vec<_> = cuts.into_iter().map(|at| (Nanos(at), rate)).collect();
            steps.push((Nanos(0), rate));
            steps.sort_unstable();
            let (series, constant) = (LinkBandwidth::Series(steps.into()), LinkBandwidth::Constant(rate));
            prop_assert_eq!(series.end(Nanos(start), bytes), constant.end(Nanos(start), bytes));
        }

        /// Answers come one at a time, none before it is ready, all of them, and the link never rests while one is.
        #[test]
        fn the_link_is_never_idle_nor_twice_used(
            asks in prop::collection::vec((0_u64..50_000_000, 1_u64..100_000), 1..40), spread in 0_u64..30,
        ) {
            let mut wire = InTurn::new(link(1_000_000, 5, spread), 7);
            let (mut now, mut got) = (Nanos(0), Vec::new());
            for (n, (pause, bytes)) in asks.iter().enumerate() {
                now = now.plus(Nanos(*pause));
                while wire.next() <= now {
                    got.extend(wire.pop());
                }
                wire.ask(now, n, *bytes);
            }
            got.extend(std::iter::from_fn(|| wire.pop()));
            prop_assert_eq!(got.len(), asks.len());
            let mut free = Nanos(0);
            for answer in &got {
                prop_assert_eq!(answer.start, free.max(answer.ready));
                prop_assert_eq!(answer.end, answer.start.plus(span(answer.bytes, 1_000_000)));
                free = answer.end;
            }
        }
    }
}
