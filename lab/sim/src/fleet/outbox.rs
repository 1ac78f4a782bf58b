//! Chunks that hosts have yet to send to others, as in the product's outbox: a peer that asks for a chunk again with
//! more urgency gets it once, and a chunk that is no longer wanted is not sent.

use super::keyed::Keyed;
use crate::slab::NONE;
use headstart_swarm::{self as swarm, RequestId};
use std::collections::{BTreeMap, VecDeque};

/// The number of background answers that are remembered as sent: a repeated request, with more urgency, may cross them
/// on their way.
const SENT_MAX: usize = 1 << 20;

/// A chunk from a host to another, in answer to a request or of its own accord.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key {
    from: u32,
    to: u32,
    request: Option<u32>,
    blob: u32,
    chunk: u32,
}

impl Key {
    pub(super) fn new(
        (from, to): (u32, u32),
        request: Option<RequestId>,
        blob: swarm::BlobId,
        chunk: u32,
    ) -> Self {
        Self { from, to, request: request.map(|request| request.0), blob: blob.0, chunk }
    }
}

/// The state of a chunk that is to be sent with urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// The outbox does not know the chunk.
    New,
    /// The chunk waits as this parcel.
    Waits(u32),
    /// The chunk was sent.
    Sent,
}

/// All hosts' outboxes.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: BTreeMap<Key, u32>,
    sent: Keyed<Key, ()>,
    in_order: VecDeque<Key>,
}

impl Outbox {
    /// Notes that a chunk waits as this parcel.
    pub(super) fn waits(&mut self, key: Key, parcel: u32) {
        self.waiting.insert(key, parcel);
    }

    /// Notes that a chunk begins to be sent, or is dropped; `ahead`: no reader waited for it.
    pub(super) fn left(&mut self, key: Key, ahead: bool) {
        self.waiting.remove(&key);
        if ahead && key.request.is_some() && self.sent.insert(key, ()).is_none() {
            self.in_order.push_back(key);
            if self.in_order.len() > SENT_MAX
                && let Some(oldest) = self.in_order.pop_front()
            {
                self.sent.remove(&oldest);
            }
        }
    }

    /// Forgets a host whose agent has ended: its messages, sent or waiting, do not matter any more.
    pub(super) fn forget(&mut self, host: u32) {
        let others = |key: &Key| key.from != host && key.to != host;
        self.waiting.retain(|key, _| others(key));
        self.sent.retain(|key, ()| others(key));
        self.in_order.retain(others);
    }

    pub(super) fn known(&self, key: Key) -> Known {
        match self.waiting.get(&key) {
            Some(parcel) => Known::Waits(*parcel),
            None if self.sent.contains_key(&key) => Known::Sent,
            None => Known::New,
        }
    }

    /// Parcels of a request that wait.
    pub(super) fn of_request(&self, from: u32, to: u32, request: RequestId) -> Vec<u32> {
        let first = Key { from, to, request: Some(request.0), blob: 0, chunk: 0 };
        let last = Key { blob: NONE, chunk: NONE, ..first };
        self.waiting.range(first..=last).map(|(_, parcel)| *parcel).collect()
    }
}
