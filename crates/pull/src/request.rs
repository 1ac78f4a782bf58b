//! One range that is to be fetched, from the first wish for it to its last answer.

use crate::{BlobRange, FetchId, Priority, ReadId, Source, Time};
use headstart_block::Error;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A read that waits for bytes of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub(crate) read: ReadId,
    /// Which of the request's bytes it needs.
    pub(crate) range: BlobRange,
}

/// Where a request is; `engine` draws the way between.
#[derive(Clone, Copy, Debug)]
pub(crate) enum State {
    Queued(Priority),
    Sent(Sent),
    /// Off the link; from where it came.
    Arrived(Source),
    Waiting(Time),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// The class that it counts in.
    pub(crate) priority: Priority,
    pub(crate) source: Source,
    /// By when it should have come; of a stream, what its readers wait for.
    pub(crate) late: Time,
    /// Its bytes are taken as they come.
    pub(crate) stream: Option<Stream>,
    /// Up to where it was hurried, as an offset in its blob; 0: it was not.
    pub(crate) hurried: u64,
}

/// A stream on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub(crate) asked: Time,
    /// When the last piece of it came.
    pub(crate) heard: Option<Time>,
    /// Whether it is not to be read from for now.
    pub(crate) held: bool,
    /// Whether it is so short that it is waited for as for other requests, and never held.
    pub(crate) whole: bool,
}

/// What a request has been through.
#[derive(Clone, Debug, Default)]
pub(crate) struct Past {
    /// Failures.
    pub(crate) attempt: u32,
    /// Those of them that were wrong bytes.
    pub(crate) corrupt: u32,
    /// When the first of them was.
    pub(crate) since: Option<Time>,
    /// The last of them.
    pub(crate) error: Option<Arc<Error>>,
}

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) range: BlobRange,
    /// What it was made for.
    pub(crate) born: Priority,
    /// What it was sent as last, whoever waits for it since.
    pub(crate) asked_as: Priority,
    pub(crate) state: State,
    pub(crate) past: Past,
    /// The event that it was made in: while that lasts its range is known to be missing.
    pub(crate) made_in: u64,
    /// Its readers have asked apart: no other read is to wait for this try.
    pub(crate) apart: bool,
    pub(crate) waiters: Vec<Waiter>,
}

impl Request {
    /// A miss as long as somebody waits for it.
    pub(crate) fn priority(&self) -> Priority {
        match self.born {
            _ if !self.waiters.is_empty() => Priority::Miss,
            Priority::Left => Priority::Left,
            Priority::Miss | Priority::Preload => Priority::Preload,
        }
    }

    /// Whether a miss may wait for it at `now`, or had better ask for its bytes itself: what the background
    /// has not sent is too large and not urgent enough, and what is late has perhaps stalled.
    pub(crate) fn is_joinable(&self, now: Time) -> bool {
        !self.apart
            && match self.state {
                State::Queued(_) | State::Waiting(_) => self.priority() == Priority::Miss,
                State::Sent(sent) => sent.priority == Priority::Miss || now < sent.late,
                State::Arrived(_) => true,
            }
    }
}

/// All requests, by number.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    map: BTreeMap<FetchId, Request>,
    next: u64,
    background: usize,
    left: usize,
}

impl Requests {
    pub(crate) fn add(&mut self, request: Request) -> FetchId {
        let fetch = FetchId(self.next);
        self.next += 1;
        self.background += usize::from(request.born != Priority::Miss);
        self.left += usize::from(request.born == Priority::Left);
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
        self.left -= usize::from(request.born == Priority::Left);
        Some(request)
    }

    /// Those in back-off.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (FetchId, Time)> {
        self.map.iter().filter_map(|(fetch, request)| match request.state {
            State::Waiting(until) => Some((*fetch, until)),
            _ => None,
        })
    }

    /// How many were made by the background.
    pub(crate) fn background(&self) -> usize {
        self.background
    }

    /// How many were made by the left queue.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    #[cfg(test)]
    pub(crate) fn all(&self) -> impl Iterator<Item = (FetchId, &Request)> {
        self.map.iter().map(|(fetch, request)| (*fetch, request))
    }
}
