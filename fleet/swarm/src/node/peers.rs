//! The other hosts, and what is between this one and each of them.

use super::crossing::Crossing;
use crate::Time;
use crate::event::{BlobId, Chunks, PeerKey, Role, Urgency};
use crate::message::RequestId;
use std::collections::VecDeque;
use std::time::Duration;

/// How long others are preferred to a peer that was silent; twice as long each time that it is again.
const AVOIDED: Duration = Duration::from_secs(3);

/// How many times as long as it was waited for in vain others are preferred at least.
const WASTED: u32 = 12;

/// Times in a row that a peer may be silent before it is dropped.
const SILENT_MOST: u32 = 8;

/// Times in a row that a peer may lack what it said it has.
const LIES: u32 = 32;

/// Bytes of a peer that the driver was given to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Serve {
    pub(super) request: Option<RequestId>,
    pub(super) blob: BlobId,
    pub(super) chunks: Chunks,
    pub(super) urgency: Urgency,
    /// Chunks that were not sent yet.
    pub(super) left: u32,
}

/// Another host.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) key: PeerKey,
    pub(super) role: Role,
    /// Chunks asked of it that have not come.
    pub(super) outstanding: u32,
    /// Times in a row that it was silent beyond patience, when that was last, and until when others are preferred.
    silent: u32,
    silent_at: Time,
    avoided_until: Time,
    /// Whether it has ever sent what was asked for.
    pub(super) gives: bool,
    /// When it sent or said anything last.
    pub(super) heard: Time,
    /// When one of those times was forgotten.
    forgiven_at: Time,
    /// Times in a row that it had not what it said.
    lies: u32,
    /// When it was the first time that it said that it waits, and sent nothing.
    doubted_at: Option<Time>,
    /// What it is being sent.
    pub(super) serves: Vec<Serve>,
    /// Chunks of it that nobody waits for.
    pub(super) unhurried: u32,
    /// What it is sent when those are, because it will ask for it, or has and will wait for it: each is one chunk.
    pub(super) ahead: VecDeque<Serve>,
    /// What of that has left.
    pub(super) crossing: Crossing,
    /// What it is sent when nothing of that is left.
    pub(super) later: VecDeque<Serve>,
    /// Chunks that it waits for while they are on their way here.
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

    /// It was silent too long after it was asked, or had promised, at `since`. Whether it has been too often. What was
    /// asked for before it was silent last counts as that time.
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

    /// It sent what was asked for, but so late that the store would have been better.
    pub(super) fn was_late(&mut self, since: Time, now: Time) {
        let was = self.silent;
        self.was_silent(since, now);
        self.silent = self.silent.min(was.max(SILENT_MOST - 1));
    }

    /// It waits for what was asked of it at `since`, as it says, and this host has waited long enough. Whether it has
    /// done so before that, too, and sent nothing since: it may be that whom it asks is to blame.
    pub(super) fn is_doubted(&mut self, since: Time, now: Time) -> bool {
        since > *self.doubted_at.get_or_insert(now)
    }

    /// It sent what was asked for. Who is slow does so now and then: each silence takes a good answer to be forgotten,
    /// and a time without another.
    pub(super) fn was_good(&mut self, now: Time) {
        if !self.is_avoided(now) && now.since(self.forgiven_at) > AVOIDED {
            self.silent = self.silent.saturating_sub(1);
            self.forgiven_at = now;
        }
        self.lies = 0;
        self.doubted_at = None;
    }

    /// It has not what it said it had. Whether that was too often.
    pub(super) fn lied(&mut self) -> bool {
        self.lies += 1;
        self.lies >= LIES
    }

    /// How often it was silent lately.
    pub(super) fn silences(&self) -> u32 {
        self.silent
    }

    /// Whether others are to be preferred to it for now.
    pub(super) fn is_avoided(&self, now: Time) -> bool {
        now < self.avoided_until
    }

    /// The less of it, the better a source.
    pub(super) fn load(&self) -> (u32, u32) {
        (self.silent + self.lies, self.outstanding)
    }
}
