//! The time to wait for a peer: as long as peers took lately, and a margin.
//!
//! Two spans are watched. The first is from an [`Ask`](crate::Message::Ask) to the first sign of life: it is short,
//! whatever the load, because a peer that cannot send soon answers [`Pending`](crate::Message::Pending). The second is
//! from there to the bytes: it is as long as the store takes, which, when all hosts read different chunks, is seconds.
//! Each is smoothed as TCP smooths round trips: the mean and four times the mean deviation.
//!
//! A timeout that is too short would never be corrected, because slower answers are given up before they are measured.
//! Therefore the time that the store takes to this host is watched as well, which is never given up, and bytes that
//! come late anyway count with the time that was waited for them. As long as nothing is known of the store, a fourth of
//! the set limit is enough: at first every host waits for a useless peer, one after the other along a chain.
//!
//! A store that everyone waits for may take minutes. A host that gave up what a designated fetcher is fetching then
//! would ask another, which would fetch it as well: the slower the store, the more it would have to send, and no host
//! would ever finish. Therefore a peer that has promised repeats its promise while it fetches, and a host that waits
//! for it waits as long as the promise is repeated and this host's own fetches take as long: a peer alone cannot make a
//! host believe that the store is slow.

use crate::{Time, Urgency};
use headstart_block::saturating;
use std::time::Duration;

/// A smoothed span.
#[derive(Clone, Debug)]
pub(crate) struct Smoothed {
    /// Mean and mean deviation, in microseconds.
    mean_and_deviation: Option<(u64, u64)>,
    min_us: u64,
    max_us: u64,
}

impl Smoothed {
    fn new(least: Duration, most: Duration) -> Self {
        let micros = |span: Duration| saturating::<u64>(span.as_micros()).min(u64::MAX / 64);
        Self { mean_and_deviation: None, min_us: micros(least), max_us: micros(most).max(micros(least)) }
    }

    fn record(&mut self, span: Duration) {
        let span = saturating::<u64>(span.as_micros()).min(self.max_us);
        self.mean_and_deviation = Some(match self.mean_and_deviation {
            None => (span, span / 2),
            Some((mean, deviation)) => ((mean * 7 + span) / 8, (deviation * 3 + mean.abs_diff(span)) / 4),
        });
    }

    fn timeout(&self, unknown: u64) -> Duration {
        let micros = self.mean_and_deviation.map_or(unknown, |(mean, deviation)| mean + 4 * deviation);
        Duration::from_micros(micros.clamp(self.min_us, self.max_us))
    }
}

/// The spans that a node watches.
#[derive(Clone, Debug)]
pub(crate) struct RetransmitTimer {
    first_sign: Smoothed,
    bytes: Smoothed,
    /// The time that the store takes to this host.
    store: Smoothed,
    /// The upper limit of waits for peers, in microseconds.
    max_us: u64,
    /// The most that a host waits for the store.
    store_max: Duration,
    /// The number of promises that were kept: bytes came that had been promised.
    promises_kept: u64,
}

/// The factor by which waits may grow if this host's own fetches show that the store is slow.
const SLOW_STORE_FACTOR: u32 = 48;

/// The factor between the store's times to this host and to another.
const OTHER_HOST_FACTOR: u32 = 2;

/// The number of promises that other peers must have kept since a promise was made, until its maker is believed less.
const OVERTAKEN: u64 = 8;

/// The time for which a peer that has promised may be silent, as a multiple of the time for a first answer.
const SILENCE_FACTOR: u32 = 5;

/// The most that a host waits for the store, if `most` is set.
pub(crate) fn longest(most: Duration) -> Duration {
    most.saturating_mul(SLOW_STORE_FACTOR)
}

impl RetransmitTimer {
    pub(crate) fn new((least, most): (Duration, Duration)) -> Self {
        let bytes = Smoothed::new(least, most);
        let store_max = longest(most);
        let (first_sign, store) = (Smoothed::new(least, most), Smoothed::new(least, store_max));
        Self { first_sign, max_us: bytes.max_us, store, bytes, store_max, promises_kept: 0 }
    }

    /// Notes a peer's first sign of life: it was asked at `sent_at`.
    pub(crate) fn record_first_sign(&mut self, sent_at: Time, now: Time) {
        self.first_sign.record(now.since(sent_at));
    }

    /// Notes bytes that came at `now` after a promise at `promised_at`. A peer that is far slower than others tells
    /// little of the others.
    pub(crate) fn record_bytes(&mut self, promised_at: Time, now: Time) {
        let most = self.bytes.timeout(self.max_us).saturating_mul(5) / 4;
        self.bytes.record(now.since(promised_at).min(most));
        self.promises_kept += 1;
    }

    /// Notes an answer of the store.
    pub(crate) fn record_store(&mut self, sent_at: Time, now: Time) {
        self.store.record(now.since(sent_at));
    }

    /// The time to wait for the answer to a request, or for its next part; `promised`: its peer said that it comes.
    pub(crate) fn for_request(&self, urgency: Urgency, promised: bool) -> Duration {
        match urgency {
            Urgency::Demand if promised => {
                let most = Duration::from_micros(self.bytes.max_us);
                let store = match self.store.mean_and_deviation {
                    Some(_) => self.store.timeout(0).saturating_mul(OTHER_HOST_FACTOR).min(most),
                    None => most / 4,
                };
                self.bytes.timeout(0).max(store)
            }
            Urgency::Demand => self.for_first_sign(),
            Urgency::Background => Duration::from_micros(self.max_us),
        }
    }

    /// The number of promises kept so far, by any peer.
    pub(crate) fn promises_kept(&self) -> u64 {
        self.promises_kept
    }

    /// The time to wait for the promised bytes of a peer that never sent any, if `kept_before` promises had been kept
    /// when it promised: as long as other peers take, if enough of their promises were kept since.
    pub(crate) fn for_unproven_peer(&self, kept_before: u64) -> Option<Duration> {
        let usual = self.bytes.timeout(self.bytes.max_us);
        (self.promises_kept.saturating_sub(kept_before) >= OVERTAKEN
            && usual < Duration::from_micros(self.max_us))
        .then_some(usual)
    }

    /// The time without progress of a promise after which other peers are asked for its chunks, if they were asked
    /// `times` times before.
    pub(crate) fn for_bare_promise(&self, times: u8) -> Duration {
        Duration::from_micros(self.max_us).saturating_mul(1 << times.min(8))
    }

    /// The most that a host waits for the store.
    pub(crate) fn store_max(&self) -> Duration {
        self.store_max
    }

    /// The time beyond which bytes had better come from the store than from a peer.
    pub(crate) fn useful_limit(&self) -> Duration {
        let least = Duration::from_micros(self.max_us / 10);
        match self.store.mean_and_deviation {
            Some(_) => self.store.timeout(0).saturating_mul(OTHER_HOST_FACTOR).max(least),
            None => Duration::from_micros(self.max_us / 4),
        }
    }

    /// The time to wait for a sign of life.
    pub(crate) fn for_first_sign(&self) -> Duration {
        self.first_sign.timeout(self.max_us / 16)
    }

    /// The time that the store may take to another host, as this host's own fetches show: one of them has waited for
    /// `waited`.
    pub(crate) fn for_store(&self, waited: Duration) -> Duration {
        self.store.timeout(0).max(waited.saturating_mul(OTHER_HOST_FACTOR)).min(self.store_max)
    }

    /// The time for which a peer that has promised may be silent: it repeats its promise as long as it holds.
    pub(crate) fn max_silence(&self) -> Duration {
        self.first_sign.timeout(0) * SILENCE_FACTOR
    }

    /// The least time that a peer that asks another in turn may take: it may have to find out first that the other is
    /// gone.
    pub(crate) fn for_indirect(&self) -> Duration {
        self.max_silence() / 2
    }

    /// The interval at which a promise is repeated.
    pub(crate) fn promise_interval(&self) -> Duration {
        Duration::from_micros(self.first_sign.min_us) * SILENCE_FACTOR / 2
    }

    /// The most that any want may take, unless the store shows that it takes longer.
    pub(crate) fn for_want(&self) -> Duration {
        Duration::from_micros(self.bytes.max_us.saturating_mul(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

    #[test]
    fn the_timer_follows_observed_round_trips_within_bounds() {
        let mut timer = RetransmitTimer::new(RANGE);
        assert_eq!(timer.for_first_sign(), Duration::from_micros(312_500));
        assert_eq!(timer.for_request(Urgency::Demand, true), Duration::from_millis(1250));
        for _ in 0..100 {
            timer.record_first_sign(Time(0), Time(1000));
            timer.record_bytes(Time(0), Time(4_000_000));
        }
        assert_eq!(timer.for_first_sign(), Duration::from_millis(200));
        assert!((3.9..4.1).contains(&timer.for_request(Urgency::Demand, true).as_secs_f64()));
        for _ in 0..100 {
            timer.record_bytes(Time(0), Time(u64::MAX));
        }
        assert!((3.9..=5.0).contains(&timer.for_request(Urgency::Demand, true).as_secs_f64()));
        assert_eq!(timer.for_want(), Duration::from_secs(10));
        let longest =
            crate::NodeSettings { timeout_range: RANGE, ..crate::NodeSettings::default() }.longest();
        assert_eq!(timer.for_store(Duration::MAX), longest);
        assert!(timer.for_want() <= longest);
    }

    #[test]
    fn a_peer_that_never_sent_bytes_is_believed_as_long_as_others_take() {
        let mut timer = RetransmitTimer::new(RANGE);
        assert_eq!(timer.for_unproven_peer(0), None, "nothing is known");
        for _ in 0..OVERTAKEN {
            timer.record_bytes(Time(0), Time(400_000));
        }
        assert!(timer.for_unproven_peer(0).unwrap() < Duration::from_secs(1));
        assert_eq!(timer.for_unproven_peer(1), None, "too few were kept since");
        for _ in 0..100 {
            timer.record_bytes(Time(0), Time(60_000_000));
        }
        assert_eq!(timer.for_unproven_peer(0), None, "others take as long");
        assert_eq!([0, 1, 2].map(|times| timer.for_bare_promise(times).as_secs()), [5, 10, 20]);
    }

    #[test]
    fn settings_without_sense_do_no_harm() {
        let mut timer = RetransmitTimer::new((Duration::MAX, Duration::ZERO));
        timer.record_first_sign(Time(0), Time(u64::MAX));
        timer.record_bytes(Time(0), Time(u64::MAX));
        let _ = (
            timer.for_first_sign(),
            timer.for_request(Urgency::Demand, true),
            timer.for_want(),
            timer.for_request(Urgency::Background, false),
        );
    }
}
