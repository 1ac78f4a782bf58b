//! The time to wait for a peer: as long as peers took lately, and a margin.
//!
//! Two spans are watched. The first is from an [`Ask`](crate::Message::Ask) to the first sign of life: it is short,
//! whatever the load, because a peer that cannot send soon answers [`Coming`](crate::Message::Coming). The second is
//! from there to the bytes: it is as long as the store takes, which, when all hosts read different chunks, is seconds.
//! Each is smoothed as TCP smooths round trips: the mean and four times the mean deviation.
//!
//! A timeout that is too short would never be corrected, because slower answers are given up before they are measured.
//! Therefore the time that the store takes to this host is watched as well, which is never given up, and bytes that
//! come late anyway count with the time that was waited for them. As long as nothing is known of the store, a fourth of
//! the set limit is enough: at first every host waits for a useless peer, one after the other along a chain.
//!
//! A store that everyone waits for may take minutes. A host that gave up what a home is fetching then would ask another
//! home, which would fetch it as well: the slower the store, the more it would have to send, and no host would ever
//! finish. Therefore a peer that has promised repeats its promise while it fetches, and a host that waits for it waits
//! as long as the promise is repeated and this host's own fetches take as long: a peer alone cannot make a host believe
//! that the store is slow.

use crate::{Time, Urgency};
use std::time::Duration;

/// A smoothed span.
#[derive(Clone, Debug)]
pub(crate) struct Smoothed {
    /// Mean and mean deviation, in microseconds.
    known: Option<(u64, u64)>,
    least: u64,
    most: u64,
}

impl Smoothed {
    fn new(least: Duration, most: Duration) -> Self {
        let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX).min(u64::MAX / 64);
        Self { known: None, least: micros(least), most: micros(most).max(micros(least)) }
    }

    fn seen(&mut self, span: Duration) {
        let span = u64::try_from(span.as_micros()).unwrap_or(u64::MAX).min(self.most);
        self.known = Some(match self.known {
            None => (span, span / 2),
            Some((mean, deviation)) => ((mean * 7 + span) / 8, (deviation * 3 + mean.abs_diff(span)) / 4),
        });
    }

    fn patience(&self, unknown: u64) -> Duration {
        let micros = self.known.map_or(unknown, |(mean, deviation)| mean + 4 * deviation);
        Duration::from_micros(micros.clamp(self.least, self.most))
    }
}

/// The spans that a node watches.
#[derive(Clone, Debug)]
pub(crate) struct RetransmitTimer {
    sign: Smoothed,
    bytes: Smoothed,
    /// The time that the store takes to this host.
    store: Smoothed,
    most: u64,
    /// The most that a host waits for the store.
    hard: Duration,
    /// The number of promises that were kept: bytes came that had been promised.
    kept: u64,
}

/// The factor by which waits may grow if this host's own fetches show that the store is slow.
const SLOW_STORE: u32 = 48;

/// The factor between the store's times to this host and to another.
const ELSEWHERE: u32 = 2;

/// The number of promises that other peers must have kept since a promise was made, until its maker is believed less.
const OVERTAKEN: u64 = 8;

/// The time for which a peer that has promised may be silent, as a multiple of the time for a first answer.
const SIGNS: u32 = 5;

/// The most that a host waits for the store, if `most` is set.
pub(crate) fn longest(most: Duration) -> Duration {
    most.saturating_mul(SLOW_STORE)
}

impl RetransmitTimer {
    pub(crate) fn new((least, most): (Duration, Duration)) -> Self {
        let bytes = Smoothed::new(least, most);
        let hard = longest(most);
        let (sign, store) = (Smoothed::new(least, most), Smoothed::new(least, hard));
        Self { sign, most: bytes.most, store, bytes, hard, kept: 0 }
    }

    /// Notes a peer's first sign of life: it was asked at `asked`.
    pub(crate) fn sign(&mut self, asked: Time, now: Time) {
        self.sign.seen(now.since(asked));
    }

    /// Notes bytes that came at `now` after a promise at `promised`. A peer that is far slower than others tells little
    /// of the others.
    pub(crate) fn bytes(&mut self, promised: Time, now: Time) {
        let most = self.bytes.patience(self.most).saturating_mul(5) / 4;
        self.bytes.seen(now.since(promised).min(most));
        self.kept += 1;
    }

    /// Notes an answer of the store.
    pub(crate) fn store(&mut self, asked: Time, now: Time) {
        self.store.seen(now.since(asked));
    }

    /// The time to wait for the answer to a request, or for its next part; `promised`: its peer said that it comes.
    pub(crate) fn of(&self, urgency: Urgency, promised: bool) -> Duration {
        match urgency {
            Urgency::Demand if promised => {
                let most = Duration::from_micros(self.bytes.most);
                let store = match self.store.known {
                    Some(_) => self.store.patience(0).saturating_mul(ELSEWHERE).min(most),
                    None => most / 4,
                };
                self.bytes.patience(0).max(store)
            }
            Urgency::Demand => self.for_sign(),
            Urgency::Background => Duration::from_micros(self.most),
        }
    }

    /// The number of promises kept so far, by any peer.
    pub(crate) fn kept(&self) -> u64 {
        self.kept
    }

    /// The time to wait for the promised bytes of a peer that never sent any, if `kept` promises had been kept when it
    /// promised: as long as other peers take, if enough of their promises were kept since.
    pub(crate) fn of_stranger(&self, kept: u64) -> Option<Duration> {
        let usual = self.bytes.patience(self.bytes.most);
        (self.kept.saturating_sub(kept) >= OVERTAKEN && usual < Duration::from_micros(self.most))
            .then_some(usual)
    }

    /// The time for which a promise without any evidence is relied on, after other peers were asked `times` times for
    /// the chunks.
    pub(crate) fn of_word(&self, times: u8) -> Duration {
        Duration::from_micros(self.most).saturating_mul(1 << times.min(8))
    }

    /// The most that a host waits for the store.
    pub(crate) fn hardest(&self) -> Duration {
        self.hard
    }

    /// The time beyond which bytes had better come from the store than from a peer.
    pub(crate) fn of_useful(&self) -> Duration {
        let least = Duration::from_micros(self.most / 10);
        match self.store.known {
            Some(_) => self.store.patience(0).saturating_mul(ELSEWHERE).max(least),
            None => Duration::from_micros(self.most / 4),
        }
    }

    /// The time to wait for a sign of life.
    pub(crate) fn for_sign(&self) -> Duration {
        self.sign.patience(self.most / 16)
    }

    /// The time that the store may take to another host, as this host's own fetches show: one of them has waited for
    /// `waited`.
    pub(crate) fn of_store(&self, waited: Duration) -> Duration {
        self.store.patience(0).max(waited.saturating_mul(ELSEWHERE)).min(self.hard)
    }

    /// The time for which a peer that has promised may be silent: it repeats its promise as long as it holds.
    pub(crate) fn between_signs(&self) -> Duration {
        self.sign.patience(0) * SIGNS
    }

    /// The least time that a peer that asks another in turn may take: it may have to find out first that the other is
    /// gone.
    pub(crate) fn of_another(&self) -> Duration {
        self.between_signs() / 2
    }

    /// The interval at which a promise is repeated.
    pub(crate) fn say_every(&self) -> Duration {
        Duration::from_micros(self.sign.least) * SIGNS / 2
    }

    /// The most that any want may take, unless the store shows that it takes longer.
    pub(crate) fn for_want(&self) -> Duration {
        Duration::from_micros(self.bytes.most.saturating_mul(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

    #[test]
    fn it_follows_what_is_seen_within_bounds() {
        let mut patience = RetransmitTimer::new(RANGE);
        assert_eq!(patience.for_sign(), Duration::from_micros(312_500));
        assert_eq!(patience.of(Urgency::Demand, true), Duration::from_millis(1250));
        for _ in 0..100 {
            patience.sign(Time(0), Time(1000));
            patience.bytes(Time(0), Time(4_000_000));
        }
        assert_eq!(patience.for_sign(), Duration::from_millis(200));
        assert!((3.9..4.1).contains(&patience.of(Urgency::Demand, true).as_secs_f64()));
        for _ in 0..100 {
            patience.bytes(Time(0), Time(u64::MAX));
        }
        assert!((3.9..=5.0).contains(&patience.of(Urgency::Demand, true).as_secs_f64()));
        assert_eq!(patience.for_want(), Duration::from_secs(10));
        let longest = crate::Settings { patience: RANGE, ..crate::Settings::default() }.longest();
        assert_eq!(patience.of_store(Duration::MAX), longest);
        assert!(patience.for_want() <= longest);
    }

    #[test]
    fn who_never_sent_anything_is_believed_as_long_as_others_take() {
        let mut patience = RetransmitTimer::new(RANGE);
        assert_eq!(patience.of_stranger(0), None, "nothing is known");
        for _ in 0..OVERTAKEN {
            patience.bytes(Time(0), Time(400_000));
        }
        assert!(patience.of_stranger(0).unwrap() < Duration::from_secs(1));
        assert_eq!(patience.of_stranger(1), None, "too few were kept since");
        for _ in 0..100 {
            patience.bytes(Time(0), Time(60_000_000));
        }
        assert_eq!(patience.of_stranger(0), None, "others take as long");
        assert_eq!([0, 1, 2].map(|times| patience.of_word(times).as_secs()), [5, 10, 20]);
    }

    #[test]
    fn settings_without_sense_do_no_harm() {
        let mut patience = RetransmitTimer::new((Duration::MAX, Duration::ZERO));
        patience.sign(Time(0), Time(u64::MAX));
        patience.bytes(Time(0), Time(u64::MAX));
        let _ = (
            patience.for_sign(),
            patience.of(Urgency::Demand, true),
            patience.for_want(),
            patience.of(Urgency::Background, false),
        );
    }
}
