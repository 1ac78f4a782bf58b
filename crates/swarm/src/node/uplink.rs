//! How much this host is sending, and how fast that goes.

use crate::{CHUNK_SIZE, Time};
use std::time::Duration;

/// What may wait to be sent before others are named instead: as much as goes out in this time.
const AHEAD: Duration = Duration::from_millis(10);

/// Bytes over which the rate is measured.
const SAMPLE: u64 = 2 << 20;

/// Bytes that go out, and are to.
#[derive(Debug)]
pub(super) struct Uplink {
    /// Given to the driver to be sent, because somebody waits.
    sending: u64,
    /// Promised to those who wait for what is on its way here.
    promised: u64,
    /// The least that may wait before others are named.
    least: u64,
    /// Bytes per second, as measured.
    rate: Option<u64>,
    /// Since when it has been sending without a pause, and how much has gone since.
    busy: Option<(Time, u64)>,
}

impl Uplink {
    /// `stripe` in chunks: two of them may always wait.
    pub(super) fn new(stripe: u64) -> Self {
        Self { sending: 0, promised: 0, least: 2 * stripe * CHUNK_SIZE, rate: None, busy: None }
    }

    pub(super) fn sends(&mut self, now: Time, bytes: u64) {
        self.sending += bytes;
        self.busy.get_or_insert((now, 0));
    }

    pub(super) fn sent(&mut self, now: Time, bytes: u64) {
        self.sending = self.sending.saturating_sub(bytes);
        if let Some((since, sent)) = &mut self.busy {
            *sent += bytes;
            if *sent >= SAMPLE {
                let micros = u64::try_from(now.since(*since).as_micros()).unwrap_or(u64::MAX).max(1);
                let rate = sent.saturating_mul(1_000_000) / micros;
                self.rate = Some(self.rate.map_or(rate, |known| known / 2 + rate / 2));
                (*since, *sent) = (now, 0);
            }
        }
        if self.sending == 0 {
            self.busy = None;
        }
    }

    /// What was given to the driver will not be sent.
    pub(super) fn dropped(&mut self, bytes: u64) {
        self.sending = self.sending.saturating_sub(bytes);
        if self.sending == 0 {
            self.busy = None;
        }
    }

    pub(super) fn promises(&mut self, bytes: u64) {
        self.promised += bytes;
    }

    pub(super) fn promised_less(&mut self, bytes: u64) {
        self.promised = self.promised.saturating_sub(bytes);
    }

    /// What is promised.
    #[cfg(test)]
    pub(super) fn promised(&self) -> u64 {
        self.promised
    }

    /// What goes out and is to.
    pub(super) fn backlog(&self) -> u64 {
        self.sending + self.promised
    }

    /// Whether others are to be named to who asks for so much more; `most` is what may ever wait.
    pub(super) fn is_loaded(&self, bytes: u64, most: u64) -> bool {
        let micros = u64::try_from(AHEAD.as_micros()).unwrap_or(u64::MAX);
        let ahead = self.rate.map_or(0, |rate| rate.saturating_mul(micros) / 1_000_000);
        self.backlog() + bytes > ahead.max(self.least).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_wait_grows_with_the_rate() {
        let mut uplink = Uplink::new(4);
        assert!(!uplink.is_loaded(512 << 10, 8 << 20));
        assert!(uplink.is_loaded((512 << 10) + 1, 8 << 20));
        uplink.sends(Time(0), 4 << 20);
        uplink.sent(Time(4000), 4 << 20);
        assert!(!uplink.is_loaded(8 << 20, 8 << 20), "a gigabyte per second");
        assert!(uplink.is_loaded(11 << 20, 20 << 20));
        uplink.promises(1 << 20);
        assert_eq!(uplink.backlog(), 1 << 20);
        uplink.promised_less(1 << 20);
        assert_eq!(uplink.backlog(), 0);
    }
}
