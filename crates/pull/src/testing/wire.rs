//! The link of the tests: answers one after the other, in the order in which they are ready, which is a round trip
//! after they were asked for. A stream comes in pieces, each ready when the one before it has come, so that
//! whatever became ready meanwhile goes before it. Held, its pieces stop a round trip later, and begin again a
//! round trip after it is to go on: that is how long either takes to be felt.

use super::Link;
use crate::Time;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Bytes of a piece of a stream.
pub(crate) const PIECE: u64 = 64 << 10;

const NEVER: Time = Time(u64::MAX);

/// A part of what was asked for by the `asked`-th request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) asked: usize,
    pub(crate) bytes: u64,
}

#[derive(Debug, Default)]
struct Streamed {
    left: u64,
    /// From when to when its sender rests.
    rests: VecDeque<(Time, Time)>,
    /// It rests until somebody says otherwise.
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
            self.streams.insert(asked, Streamed { left: bytes, ..Streamed::default() });
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

    /// When there is something to do: a part has come, or is ready.
    pub(crate) fn next(&self) -> Option<Time> {
        self.flows.map(|(end, _)| end).or_else(|| self.ready.keys().next().map(|(at, _)| *at))
    }

    /// Does what is due at `now`; the part that has come, if one has.
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

    /// The next piece of a stream of which one has come.
    fn follow(&mut self, now: Time, part: Part) {
        let Some(stream) = self.streams.get_mut(&part.asked) else { return };
        stream.left -= part.bytes;
        if stream.left == 0 {
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
        let bytes = stream.left.min(PIECE);
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
            let bytes = stream.left.min(PIECE);
            self.queue(ready, Part { asked, bytes });
        }
    }

    /// Nobody reads this stream any more.
    pub(crate) fn end(&mut self, asked: usize) {
        if self.streams.remove(&asked).is_some() {
            self.ready.retain(|_, part| part.asked != asked);
        }
    }
}
