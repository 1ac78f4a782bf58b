//! Another host, as a source of chunks.

use crate::Time;
use crate::event::{PeerKey, Role};
use std::num::NonZeroU32;
use std::time::Duration;

/// The time for which other peers are preferred to one that was silent; twice as long each time that it is silent
/// again.
const AVOIDED: Duration = Duration::from_secs(3);

/// The least time for which others are preferred, as a multiple of the time that was waited in vain.
const WASTED: u32 = 12;

/// The number of silences in a row after which a peer is dropped.
const SILENT_MOST: u32 = 8;

/// The number of times in a row that a peer may lack chunks that it advertised.
const LIES: u32 = 32;

/// The silences of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Silence {
    /// The peer has answered lately, or was not asked.
    None,
    /// The peer was silent this number of times in a row.
    Silent { times: NonZeroU32, last_at: Time },
}

/// Another host.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) key: PeerKey,
    pub(super) role: Role,
    /// The number of chunks requested from it that have not come.
    outstanding: u32,
    silence: Silence,
    /// The time until which other hosts are preferred.
    avoided_until: Time,
    /// The time at which a silence was last forgotten.
    forgiven_at: Time,
    /// `true` if it has ever sent requested bytes.
    gives: bool,
    /// The time at which it last sent anything.
    pub(super) last_bytes_at: Time,
    /// The number of times in a row that it did not have chunks that it advertised.
    lies: u32,
    /// The time at which it first said that it still waits, and had sent nothing.
    doubted_at: Option<Time>,
}

impl Peer {
    /// A host that was not asked for anything.
    pub(super) fn new(key: PeerKey, role: Role) -> Self {
        Self {
            key,
            role,
            outstanding: 0,
            silence: Silence::None,
            avoided_until: Time(0),
            forgiven_at: Time(0),
            gives: false,
            last_bytes_at: Time(0),
            lies: 0,
            doubted_at: None,
        }
    }

    /// Notes that chunks were requested from it.
    pub(super) fn was_requested(&mut self, chunks: u32) {
        self.outstanding += chunks;
    }

    /// Notes that requested chunks are not waited for any more.
    pub(super) fn was_released(&mut self, chunks: u32) {
        self.outstanding = self.outstanding.saturating_sub(chunks);
    }

    /// Notes that it was silent too long after a request or promise at `since`; `true` if it was silent too often.
    /// Requests from before its last silence count as part of that silence.
    pub(super) fn was_silent(&mut self, since: Time, now: Time) -> bool {
        let before = match self.silence {
            Silence::None => 0,
            Silence::Silent { times, last_at } if since > last_at => times.get(),
            Silence::Silent { times, .. } => return times.get() >= SILENT_MOST,
        };
        let times = NonZeroU32::MIN.saturating_add(before);
        self.silence = Silence::Silent { times, last_at: now };
        let factor = 1 << before.min(SILENT_MOST);
        let span = AVOIDED.max(now.since(since).saturating_mul(WASTED)).saturating_mul(factor);
        self.avoided_until = self.avoided_until.max(now + span);
        times.get() >= SILENT_MOST
    }

    /// Notes that it sent requested bytes, but so late that the store would have been better.
    pub(super) fn was_late(&mut self, since: Time, now: Time) {
        self.gives = true;
        let before = self.silences();
        self.was_silent(since, now);
        self.limit_silences(before.max(SILENT_MOST - 1));
    }

    /// Notes that it still waits for the bytes that were requested at `since`, as it says, and that this host has
    /// waited long enough. `true` if the same happened before that request and it sent nothing since; then the peer is
    /// to blame, otherwise perhaps the host that it asks.
    pub(super) fn is_doubted(&mut self, since: Time, now: Time) -> bool {
        since > *self.doubted_at.get_or_insert(now)
    }

    /// Notes that it sent requested bytes. A slow peer does so now and then: each silence takes a good answer, and a
    /// time without another silence, to be forgotten.
    pub(super) fn was_good(&mut self, now: Time) {
        self.gives = true;
        if !self.is_avoided(now) && now.since(self.forgiven_at) > AVOIDED {
            self.limit_silences(self.silences().saturating_sub(1));
            self.forgiven_at = now;
        }
        self.lies = 0;
        self.doubted_at = None;
    }

    fn limit_silences(&mut self, most: u32) {
        if let Silence::Silent { times, last_at } = self.silence {
            let left = NonZeroU32::new(times.get().min(most));
            self.silence = left.map_or(Silence::None, |times| Silence::Silent { times, last_at });
        }
    }

    /// Notes that it does not have chunks that it advertised; `true` if that was too often.
    pub(super) fn lied(&mut self) -> bool {
        self.lies += 1;
        self.lies >= LIES
    }

    /// `true` if it has ever sent requested bytes.
    pub(super) fn gives(&self) -> bool {
        self.gives
    }

    /// The number of recent silences.
    pub(super) fn silences(&self) -> u32 {
        match self.silence {
            Silence::None => 0,
            Silence::Silent { times, .. } => times.get(),
        }
    }

    /// `true` if others are to be preferred to it for now.
    pub(super) fn is_avoided(&self, now: Time) -> bool {
        now < self.avoided_until
    }

    /// The load of a peer: the less, the better a source.
    pub(super) fn load(&self) -> (u32, u32) {
        (self.silences() + self.lies, self.outstanding)
    }

    /// The number of chunks requested from it that have not come.
    #[cfg(test)]
    pub(super) fn outstanding(&self) -> u32 {
        self.outstanding
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn peer() -> Peer {
        Peer::new(PeerKey(1), Role::Agent)
    }

    #[test]
    fn a_silent_peer_is_avoided_twice_as_long_each_time_and_dropped_at_last() {
        let mut peer = peer();
        assert!(!peer.was_silent(Time(0), Time(1)));
        assert!(peer.is_avoided(Time(3 * SECOND)) && !peer.is_avoided(Time(3 * SECOND + 1)));
        assert!(!peer.was_silent(Time(1), Time(2)), "a request from before counts as the same silence");
        assert_eq!(peer.silences(), 1);
        assert!(!peer.was_silent(Time(2), Time(3)));
        assert!(peer.is_avoided(Time(6 * SECOND)) && !peer.is_avoided(Time(6 * SECOND + 3)));
        (1..=5).for_each(|n| assert!(!peer.was_silent(Time(n * SECOND), Time(n * SECOND))));
        assert!(peer.was_silent(Time(9 * SECOND), Time(10 * SECOND)), "the eighth time");
        assert!(peer.was_silent(Time(0), Time(11 * SECOND)), "as before");
        assert_eq!(peer.silences(), 8);
    }

    #[test]
    fn good_answers_forgive_one_silence_after_the_other() {
        let mut peer = peer();
        peer.was_silent(Time(0), Time(1));
        peer.was_silent(Time(2), Time(3));
        peer.was_good(Time(4));
        assert_eq!(peer.silences(), 2, "it is still avoided");
        let later = 60 * SECOND;
        peer.was_good(Time(later));
        peer.was_good(Time(later + 1));
        assert_eq!(peer.silences(), 1);
        peer.was_good(Time(2 * later));
        peer.was_good(Time(3 * later));
        assert_eq!(peer.silences(), 0);
    }

    #[test]
    fn a_late_peer_is_avoided_and_never_dropped_for_it() {
        let mut peer = peer();
        (1..=20).for_each(|n| peer.was_late(Time(n * SECOND), Time(n * SECOND + 1)));
        assert!(peer.gives());
        assert_eq!(peer.silences(), SILENT_MOST - 1);
        assert!(peer.was_silent(Time(30 * SECOND), Time(31 * SECOND)));
    }

    #[test]
    fn the_load_grows_with_requests_silences_and_lies() {
        let mut peer = peer();
        peer.was_requested(3);
        peer.was_released(1);
        assert!(!peer.lied());
        peer.was_silent(Time(0), Time(1));
        assert_eq!(peer.load(), (2, 2));
        assert!(!peer.is_doubted(Time(5), Time(6)));
        assert!(peer.is_doubted(Time(7), Time(8)), "again, and it sent nothing");
        peer.was_good(Time(9));
        assert!(!peer.is_doubted(Time(10), Time(11)));
    }
}
