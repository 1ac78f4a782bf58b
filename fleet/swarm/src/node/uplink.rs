//! The bytes that this host is sending, and their rate.

use crate::{CHUNK_SIZE, Time};
use headstart_block::saturating;
use std::time::Duration;

/// The time whose bytes may wait to be sent before other hosts are named instead.
const AHEAD: Duration = Duration::from_millis(2);

/// The least number of bytes that may wait, on a slow link.
const LEAST: u64 = 2 * CHUNK_SIZE;

/// The number of bytes over which the rate is measured; or fewer bytes that took `LONG`.
const SAMPLE: u64 = 2 << 20;
const LONG: Duration = Duration::from_millis(500);

/// Bytes that go out now, or have been promised.
#[derive(Debug, Default)]
pub(super) struct Uplink {
    /// Bytes given to the driver because reads wait for them.
    sending: u64,
    /// Bytes promised to peers that wait for chunks on their way to this host.
    promised: u64,
    /// The rate in bytes per second, as measured.
    rate: Option<u64>,
    /// The time since when it has been sending without a pause, and the bytes that left since.
    busy: Option<(Time, u64)>,
}

impl Uplink {
    pub(super) fn begin(&mut self, now: Time, bytes: u64) {
        self.sending += bytes;
        self.busy.get_or_insert((now, 0));
    }

    pub(super) fn complete(&mut self, now: Time, bytes: u64) {
        self.sending = self.sending.saturating_sub(bytes);
        if let Some((since, sent)) = &mut self.busy {
            *sent += bytes;
            if *sent >= SAMPLE || now.since(*since) >= LONG {
                let micros = saturating::<u64>(now.since(*since).as_micros()).max(1);
                let rate = sent.saturating_mul(1_000_000) / micros;
                self.rate = Some(self.rate.map_or(rate, |before| before / 2 + rate / 2));
                (*since, *sent) = (now, 0);
            }
        }
        if self.sending == 0 {
            self.busy = None;
        }
    }

    /// Takes back bytes that were given to the driver and will not be sent.
    pub(super) fn discard(&mut self, bytes: u64) {
        self.sending = self.sending.saturating_sub(bytes);
        if self.sending == 0 {
            self.busy = None;
        }
    }

    pub(super) fn add_promise(&mut self, bytes: u64) {
        self.promised += bytes;
    }

    pub(super) fn remove_promise(&mut self, bytes: u64) {
        self.promised = self.promised.saturating_sub(bytes);
    }

    /// The promised bytes.
    #[cfg(test)]
    pub(super) fn promised(&self) -> u64 {
        self.promised
    }

    /// The bytes that go out now or were promised.
    pub(super) fn backlog(&self) -> u64 {
        self.sending + self.promised
    }

    /// `true` if the bytes that go out now take longer than `span`. Before the rate is known: if they are many, or have
    /// taken longer already.
    pub(super) fn takes_longer(&self, now: Time, span: Duration) -> bool {
        let micros = saturating::<u64>(span.as_micros());
        match self.rate {
            Some(rate) => self.sending > rate.saturating_mul(micros) / 1_000_000,
            None => self.sending > SAMPLE || self.busy.is_some_and(|(since, _)| now.since(since) > span),
        }
    }

    /// `true` if other hosts are to be named to a peer that asks for `bytes` more; `most` is the most that may ever
    /// wait.
    pub(super) fn is_loaded(&self, bytes: u64, most: u64) -> bool {
        let micros = saturating::<u64>(AHEAD.as_micros());
        let ahead = self.rate.map_or(0, |rate| rate.saturating_mul(micros) / 1_000_000);
        self.backlog() + bytes > ahead.max(LEAST).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_send_queue_grows_with_the_rate() {
        let mut uplink = Uplink::default();
        assert!(!uplink.is_loaded(128 << 10, 8 << 20));
        assert!(uplink.is_loaded((128 << 10) + 1, 8 << 20));
        uplink.begin(Time(0), 4 << 20);
        uplink.complete(Time(4000), 4 << 20);
        assert!(!uplink.is_loaded(2 << 20, 8 << 20), "a gigabyte per second");
        assert!(uplink.is_loaded(3 << 20, 20 << 20));
        uplink.add_promise(1 << 20);
        assert_eq!(uplink.backlog(), 1 << 20);
        uplink.remove_promise(1 << 20);
        assert_eq!(uplink.backlog(), 0);
    }
    #[test]
    fn a_slow_uplink_is_noticed_before_and_after_its_rate_is_known() {
        let (mut uplink, span) = (Uplink::default(), Duration::from_millis(100));
        uplink.begin(Time(0), 1 << 20);
        assert!(!uplink.takes_longer(Time(100_000), span));
        assert!(uplink.takes_longer(Time(100_001), span));
        uplink.complete(Time(600_000), 60_000);
        assert!(uplink.takes_longer(Time(600_000), span), "a tenth of a megabyte per second");
        uplink.complete(Time(600_000), (1 << 20) - 70_000);
        assert!(!uplink.takes_longer(Time(600_000), span));
    }
}
