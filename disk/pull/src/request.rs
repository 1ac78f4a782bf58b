//! One range that is to be fetched, from the first read or plan that wants it to its last answer.

use crate::{BlobRange, FetchId, Priority, ReadId, Time};
use headstart_block::Error;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A read that waits for bytes of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub(crate) read: ReadId,
    /// The bytes of the request that it needs.
    pub(crate) range: BlobRange,
}

/// The state of a request; `engine` draws the transitions.
#[derive(Clone, Copy, Debug)]
pub(crate) enum State {
    Queued(Priority),
    Sent(Sent),
    /// Off the link.
    Arrived,
    Waiting(Time),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// The class that it counts in.
    pub(crate) priority: Priority,
    /// The time by which it should have come; for a stream, the time by which the bytes that its readers wait for
    /// should have come.
    pub(crate) late: Time,
    /// The state of a stream, whose bytes are taken as they come.
    pub(crate) stream: Option<Stream>,
    /// The offset in its blob up to which it was promoted; 0: it was not.
    pub(crate) promoted_upto: u64,
}

/// A stream on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    /// The time at which it was requested.
    pub(crate) sent_at: Time,
    /// The time at which the last bytes of it came.
    pub(crate) last_progress_at: Option<Time>,
    /// `true` if it is not to be read from for now.
    pub(crate) held: bool,
    /// `true` if it is so short that reads wait for it as for other requests, and it is never held.
    pub(crate) whole: bool,
}

/// The earlier failures of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Past {
    /// The number of failures.
    pub(crate) attempt: u32,
    /// The number of failures that were wrong bytes.
    pub(crate) corrupt: u32,
    /// The time of the first failure.
    pub(crate) since: Option<Time>,
    /// The last error.
    pub(crate) error: Option<Arc<Error>>,
}

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) range: BlobRange,
    /// The priority that it was made for.
    pub(crate) born: Priority,
    /// The priority that it was sent with last, whatever waits for it since.
    pub(crate) asked_as: Priority,
    pub(crate) state: State,
    pub(crate) past: Past,
    /// The event that it was made in: during that event its range is known to be missing.
    pub(crate) made_in: u64,
    /// `true` if its readers bypassed it, that is, asked for their bytes by requests of their own: no other read may
    /// wait for this try.
    pub(crate) is_bypassed: bool,
    pub(crate) waiters: Vec<Waiter>,
}

impl Request {
    /// The present priority: a miss as long as a read waits for it.
    pub(crate) fn priority(&self) -> Priority {
        match self.born {
            _ if !self.waiters.is_empty() => Priority::Miss,
            Priority::Fill => Priority::Fill,
            Priority::Miss | Priority::Preload => Priority::Preload,
        }
    }

    /// `true` if its bytes have come and are not verified.
    pub(crate) fn has_arrived(&self) -> bool {
        matches!(self.state, State::Arrived)
    }

    /// `true` if a miss may wait for it at `now`, `false` if it should ask for its bytes itself: a request that the
    /// background has not sent is too large and not urgent enough, and a late one has perhaps stalled.
    pub(crate) fn is_joinable(&self, now: Time) -> bool {
        !self.is_bypassed
            && match self.state {
                State::Queued(_) | State::Waiting(_) => self.priority() == Priority::Miss,
                State::Sent(sent) => sent.priority == Priority::Miss || now < sent.late,
                State::Arrived => true,
            }
    }
}

/// All requests, by number.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    map: BTreeMap<FetchId, Request>,
    next: u64,
    background: usize,
    fills: usize,
}

impl Requests {
    pub(crate) fn add(&mut self, request: Request) -> FetchId {
        let fetch = FetchId(self.next);
        self.next += 1;
        self.background += usize::from(request.born != Priority::Miss);
        self.fills += usize::from(request.born == Priority::Fill);
        self.map.insert(fetch, request);
        fetch
    }

    pub(crate) fn get(&self, fetch: FetchId) -> Option<&Request> {
        self.map.get(&fetch)
    }

    pub(crate) fn get_mut(&mut self, fetch: FetchId) -> Option<&mut Request> {
        self.map.get_mut(&fetch)
    }

    pub(crate) fn remove(&mut self, fetch: FetchId) -> Option<Request> {
        let request = self.map.remove(&fetch)?;
        self.background -= usize::from(request.born != Priority::Miss);
        self.fills -= usize::from(request.born == Priority::Fill);
        Some(request)
    }

    /// The requests in back-off.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (FetchId, Time)> {
        self.map.iter().filter_map(|(fetch, request)| match request.state {
            State::Waiting(until) => Some((*fetch, until)),
            _ => None,
        })
    }

    /// The requests whose bytes have come and are not verified, with their ranges.
    pub(crate) fn arrived(&self) -> impl Iterator<Item = (FetchId, BlobRange)> {
        let arrived = self.map.iter().filter(|(_, request)| request.has_arrived());
        arrived.map(|(fetch, request)| (*fetch, request.range))
    }

    /// The number of requests that the background made.
    pub(crate) fn background(&self) -> usize {
        self.background
    }

    /// The number of requests that the fill queue made.
    pub(crate) fn fills(&self) -> usize {
        self.fills
    }

    #[cfg(test)]
    pub(crate) fn all(&self) -> impl Iterator<Item = (FetchId, &Request)> {
        self.map.iter().map(|(fetch, request)| (*fetch, request))
    }
}
