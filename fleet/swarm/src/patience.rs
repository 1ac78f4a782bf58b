//! How long to wait for a peer: as long as peers take, as seen lately, and then some.
//!
//! Two spans are watched. From an [`Ask`](crate::Message::Ask) to the first sign of life: that is short, whatever the
//! load, since who cannot send soon says [`Coming`](crate::Message::Coming). And from there to the bytes: that is as
//! long as the store takes, which, when everybody reads other things, is seconds. Each is smoothed as TCP does it
//! with round trips: the mean and four times the mean deviation.
//!
//! Patience that is too short would never learn that it is, for what takes longer is given up. Therefore what the
//! store takes to this host itself is watched too, which nobody gives up, and what comes late all the same counts, as
//! what was waited for. As long as nothing is known of it a fourth of what is set is enough: who is of no use is waited
//! for by everybody at first, one after the other along a chain.
//!
//! A store that everybody waits for may take minutes. Who gave up what a home fetches then would ask another home,
//! which would fetch it as well: the slower the store, the more it would have to send, and nobody would ever be done.
//! Therefore who has promised says so again and again while it fetches, and who waits for it waits as long as it does
//! and this host's own fetches take as long: a peer alone cannot make anybody believe that the store is slow.

use crate::{Time, Urgency};
use std::time::Duration;

/// A span as it was lately.
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

/// Both spans.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    sign: Smoothed,
    bytes: Smoothed,
    /// What the store takes to this host.
    store: Smoothed,
    most: u64,
    /// The most that anybody waits for the store.
    hard: Duration,
    /// How often bytes came that had been promised.
    kept: u64,
}

/// How much longer it may take where this host's own fetches show that it does.
const SLOW_STORE: u32 = 48;

/// How much longer than to this host the store may take to another.
const ELSEWHERE: u32 = 2;

/// Promises that others must have kept since one was made, until that one's maker is believed less.
const OVERTAKEN: u64 = 8;

/// What was promised may take so many times what an answer may.
const SIGNS: u32 = 5;

/// The most that anybody waits for the store, where `most` is set.
pub(crate) fn longest(most: Duration) -> Duration {
    most.saturating_mul(SLOW_STORE)
}

impl Patience {
    pub(crate) fn new((least, most): (Duration, Duration)) -> Self {
        let bytes = Smoothed::new(least, most);
        let hard = longest(most);
        let (sign, store) = (Smoothed::new(least, most), Smoothed::new(least, hard));
        Self { sign, most: bytes.most, store, bytes, hard, kept: 0 }
    }

    /// A peer gave its first sign of life, so long after it was asked.
    pub(crate) fn sign(&mut self, asked: Time, now: Time) {
        self.sign.seen(now.since(asked));
    }

    /// Bytes came, so long after they were promised. One that is far slower than others shows little of the others.
    pub(crate) fn bytes(&mut self, promised: Time, now: Time) {
        let most = self.bytes.patience(self.most).saturating_mul(5) / 4;
        self.bytes.seen(now.since(promised).min(most));
        self.kept += 1;
    }

    /// The store answered.
    pub(crate) fn store(&mut self, asked: Time, now: Time) {
        self.store.seen(now.since(asked));
    }

    /// How long to wait for the answer to a request, or what comes next of it; `promised`: its peer said that it comes.
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

    /// How often promises were kept so far, by whomever.
    pub(crate) fn kept(&self) -> u64 {
        self.kept
    }

    /// How long to wait for what was promised by who never sent anything, when so many promises had been kept: as long
    /// as others take, if enough of theirs were kept since.
    pub(crate) fn of_stranger(&self, kept: u64) -> Option<Duration> {
        let usual = self.bytes.patience(self.bytes.most);
        (self.kept.saturating_sub(kept) >= OVERTAKEN && usual < Duration::from_micros(self.most))
            .then_some(usual)
    }

    /// How long a promise that nothing bears out is relied on, where others were asked so often whether they have it.
    pub(crate) fn of_word(&self, times: u8) -> Duration {
        Duration::from_micros(self.most).saturating_mul(1 << times.min(8))
    }

    /// The most that anybody waits for the store.
    pub(crate) fn hardest(&self) -> Duration {
        self.hard
    }

    /// What takes longer than this from a peer had better come from the store.
    pub(crate) fn of_useful(&self) -> Duration {
        let least = Duration::from_micros(self.most / 10);
        match self.store.known {
            Some(_) => self.store.patience(0).saturating_mul(ELSEWHERE).max(least),
            None => Duration::from_micros(self.most / 4),
        }
    }

    /// How long to wait for a sign of life.
    pub(crate) fn for_sign(&self) -> Duration {
        self.sign.patience(self.most / 16)
    }

    /// How long the store may take to another host, as this host's own fetches show: one of them has waited for
    /// `waited`.
    pub(crate) fn of_store(&self, waited: Duration) -> Duration {
        self.store.patience(0).max(waited.saturating_mul(ELSEWHERE)).min(self.hard)
    }

    /// How long who has promised may say nothing: he says again and again that it comes, while it does.
    pub(crate) fn between_signs(&self) -> Duration {
        self.sign.patience(0) * SIGNS
    }

    /// How long at least who asks another in turn may take: he may have to find out first that that one is gone.
    pub(crate) fn of_another(&self) -> Duration {
        self.between_signs() / 2
    }

    /// How often to say that what was promised is still coming.
    pub(crate) fn say_every(&self) -> Duration {
        Duration::from_micros(self.sign.least) * SIGNS / 2
    }

    /// How long any want may take, whatever happens, but where the store shows that it takes longer.
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
        let mut patience = Patience::new(RANGE);
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
        let mut patience = Patience::new(RANGE);
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
        let mut patience = Patience::new((Duration::MAX, Duration::ZERO));
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
