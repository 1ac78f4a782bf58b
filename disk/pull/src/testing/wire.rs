//! The link of the tests: answers one after the other, in the order in which they are ready, which is a round trip
//! after they were asked for. A stream comes in pieces, each ready when the one before it has come, so that
//! answers that became ready meanwhile go before it. If it is held, its pieces stop a round trip later, and begin
//! again a round trip after it is to go on: either takes that time to have an effect.

use super::Link;
use crate::Time;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Bytes of a piece of a stream.
pub(crate) const PIECE: u64 = 64 << 10;

const NEVER: Time = Time(u64::MAX);

/// A part of the bytes of the `asked`-th request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) asked: usize,
    pub(crate) bytes: u64,
}

#[derive(Debug, Default)]
struct Streamed {
    remaining: u64,
    /// The spans of time in which its sender rests.
    rests: VecDeque<(Time, Time)>,
    /// `true` if it rests until it is resumed.
    parked: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Wire {
    ready: BTreeMap<(Time, u64), Part>,
    flows: Option<(Time, Part)>,
    streams: BTreeMap<usize, Streamed>,
    sequence: u64,
}

impl Wire {
    pub(crate) fn ask(&mut self, now: Time, link: Link, asked: usize, bytes: u64, stream: bool) {
        let bytes = if stream {
            self.streams.insert(asked, Streamed { remaining: bytes, ..Streamed::default() });
            bytes.min(PIECE)
        } else {
            bytes
        };
        self.queue(now + link.round_trip, Part { asked, bytes });
    }

    fn queue(&mut self, ready: Time, part: Part) {
        self.sequence += 1;
        self.ready.insert((ready, self.sequence), part);
    }

    /// The next time at which a part has come, or is ready.
    pub(crate) fn next(&self) -> Option<Time> {
        self.flows.map(|(end, _)| end).or_else(|| self.ready.keys().next().map(|(at, _)| *at))
    }

    /// Does the work that is due at `now`; returns the part that has come, if one has.
    pub(crate) fn step(&mut self, now: Time, link: Link) -> Option<Part> {
        let came = self.flows.take_if(|(end, _)| *end <= now).map(|(_, part)| part);
        if let Some(part) = came {
            self.follow(now, part);
        }
        if self.flows.is_none()
            && let Some(first) = self.ready.first_entry().filter(|first| first.key().0 <= now)
        {
            let part = first.remove();
            self.flows = Some((now + Duration::from_micros(part.bytes * 1_000_000 / link.rate), part));
        }
        came
    }

    /// Schedules the next piece of a stream of which one has come.
    fn follow(&mut self, now: Time, part: Part) {
        let Some(stream) = self.streams.get_mut(&part.asked) else { return };
        stream.remaining -= part.bytes;
        if stream.remaining == 0 {
            self.streams.remove(&part.asked);
            return;
        }
        stream.rests.retain(|(_, until)| *until > now);
        let ready = match stream.rests.front() {
            Some((from, until)) if *from <= now => *until,
            _ => now,
        };
        if ready == NEVER {
            stream.parked = true;
            return;
        }
        let bytes = stream.remaining.min(PIECE);
        self.queue(ready, Part { bytes, ..part });
    }

    pub(crate) fn hold(&mut self, now: Time, link: Link, asked: usize) {
        if let Some(stream) = self.streams.get_mut(&asked) {
            stream.rests.push_back((now + link.round_trip, NEVER));
        }
    }

    pub(crate) fn resume(&mut self, now: Time, link: Link, asked: usize) {
        let Some(stream) = self.streams.get_mut(&asked) else { return };
        let ready = now + link.round_trip;
        if let Some((_, until)) = stream.rests.back_mut() {
            *until = ready;
        }
        if std::mem::take(&mut stream.parked) {
            let bytes = stream.remaining.min(PIECE);
            self.queue(ready, Part { asked, bytes });
        }
    }

    /// Ends a stream that is no longer read.
    pub(crate) fn end(&mut self, asked: usize) {
        if self.streams.remove(&asked).is_some() {
            self.ready.retain(|_, part| part.asked != asked);
        }
    }
}
