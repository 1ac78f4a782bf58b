//! The other hosts, and this host's state for each of them.

use super::crossing::Crossing;
use crate::Time;
use crate::event::{BlobId, Chunks, PeerKey, Role, Urgency};
use crate::message::RequestId;
use std::collections::VecDeque;
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

/// Bytes for a peer that the driver was given to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Serve {
    pub(super) request: Option<RequestId>,
    pub(super) blob: BlobId,
    pub(super) chunks: Chunks,
    pub(super) urgency: Urgency,
    /// The number of chunks that were not sent yet.
    pub(super) left: u32,
}

/// Another host.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) key: PeerKey,
    pub(super) role: Role,
    /// The number of chunks requested from it that have not come.
    pub(super) outstanding: u32,
    /// The number of silences in a row, the time of the last one, and the time until which others are preferred.
    silent: u32,
    silent_at: Time,
    avoided_until: Time,
    /// `true` if it has ever sent requested bytes.
    pub(super) gives: bool,
    /// The time at which it last sent or said anything.
    pub(super) heard: Time,
    /// The time at which a silence was last forgotten.
    forgiven_at: Time,
    /// The number of times in a row that it did not have chunks that it advertised.
    lies: u32,
    /// The time at which it first said that it still waits, and had sent nothing.
    doubted_at: Option<Time>,
    /// Bytes that it is being sent.
    pub(super) serves: Vec<Serve>,
    /// The number of chunks among these that no read waits for.
    pub(super) unhurried: u32,
    /// Chunks to send after these, because it will request them, or has requested them and will wait for them: each is
    /// one chunk.
    pub(super) ahead: VecDeque<Serve>,
    /// Chunks of these that have left.
    pub(super) crossing: Crossing,
    /// Chunks to send when nothing of these is left.
    pub(super) later: VecDeque<Serve>,
    /// The number of chunks that it waits for while they are on their way to this host.
    pub(super) waiting: u32,
}

impl Peer {
    pub(super) fn new(key: PeerKey, role: Role) -> Self {
        Self {
            key,
            role,
            outstanding: 0,
            silent: 0,
            silent_at: Time(0),
            avoided_until: Time(0),
            gives: false,
            heard: Time(0),
            forgiven_at: Time(0),
            lies: 0,
            doubted_at: None,
            serves: Vec::new(),
            unhurried: 0,
            ahead: VecDeque::new(),
            crossing: Crossing::default(),
            later: VecDeque::new(),
            waiting: 0,
        }
    }

    /// Notes that it was silent too long after a request or promise at `since`; `true` if it was silent too often.
    /// Requests from before its last silence count as part of that silence.
    pub(super) fn was_silent(&mut self, since: Time, now: Time) -> bool {
        if self.silent == 0 || since > self.silent_at {
            self.silent += 1;
            self.silent_at = now;
            let times = 1 << (self.silent - 1).min(SILENT_MOST);
            let span = AVOIDED.max(now.since(since).saturating_mul(WASTED)).saturating_mul(times);
            self.avoided_until = self.avoided_until.max(now + span);
        }
        self.silent >= SILENT_MOST
    }

    /// Notes that it sent requested bytes, but so late that the store would have been better.
    pub(super) fn was_late(&mut self, since: Time, now: Time) {
        let was = self.silent;
        self.was_silent(since, now);
        self.silent = self.silent.min(was.max(SILENT_MOST - 1));
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
        if !self.is_avoided(now) && now.since(self.forgiven_at) > AVOIDED {
            self.silent = self.silent.saturating_sub(1);
            self.forgiven_at = now;
        }
        self.lies = 0;
        self.doubted_at = None;
    }

    /// Notes that it does not have chunks that it advertised; `true` if that was too often.
    pub(super) fn lied(&mut self) -> bool {
        self.lies += 1;
        self.lies >= LIES
    }

    /// The number of recent silences.
    pub(super) fn silences(&self) -> u32 {
        self.silent
    }

    /// `true` if others are to be preferred to it for now.
    pub(super) fn is_avoided(&self, now: Time) -> bool {
        now < self.avoided_until
    }

    /// The load of a peer: the less, the better a source.
    pub(super) fn load(&self) -> (u32, u32) {
        (self.silent + self.lies, self.outstanding)
    }
}
