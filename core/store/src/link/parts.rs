//! The body of an answer, part by part: exactly the range that was asked for, or an error if it breaks.

use super::pace::Pace;
use super::{Answer, Link};
use crate::counters::Meter;
use crate::store::Urgency;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use headstart_block::{ByteRange, Error, ErrorKind, Result};
use tokio::sync::SemaphorePermit;

/// The bytes of a stream that are taken from the rate at a time, before they are read.
const PAID_AT_ONCE: u64 = 128 << 10;

/// A body that is being read.
pub(super) struct Parts {
    thing: String,
    body: BoxStream<'static, Result<Bytes>>,
    pace: Pace,
    /// The number of bytes that have come, of `wanted`.
    pub(super) have: u64,
    pub(super) wanted: u64,
}

impl Parts {
    pub(super) fn of(answer: Answer, range: ByteRange, link: &Link) -> Self {
        let Answer { thing, body } = answer;
        Self { thing, body, pace: Pace::begin(link.stall), have: 0, wanted: range.len() }
    }

    /// The next part; `None` behind the last.
    ///
    /// # Errors
    /// Errors of the body; [`ErrorKind::Unavailable`] where it ends too early or not in time.
    pub(super) async fn next(&mut self, link: &Link) -> Result<Option<Bytes>> {
        let Self { thing, body, pace, have, wanted } = self;
        let broken = |cause: String| Error::new(ErrorKind::Unavailable, cause).about(&*thing);
        let next = {
            let _waiting = link.meter.waits();
            pace.next(body, *have).await
        };
        let Some(part) = next.map_err(|e| e.about(&*thing))? else {
            if have < wanted {
                return Err(broken(format!("ended after {have} of the {wanted} bytes asked for")));
            }
            return Ok(None);
        };
        Meter::add(&link.meter.bytes, part.len() as u64);
        *have += part.len() as u64;
        if have > wanted {
            return Err(broken(format!("sent more than the {wanted} bytes asked for")));
        }
        Ok(Some(part))
    }
}

/// An answer that is read as a stream, with the places that it occupies.
pub(super) struct Streamed<'l> {
    pub(super) link: &'l Link,
    pub(super) parts: Parts,
    pub(super) urgency: Urgency,
    /// Bytes that were taken from the rate.
    pub(super) paid: u64,
    pub(super) _places: (SemaphorePermit<'l>, Option<SemaphorePermit<'l>>),
}

impl<'l> Streamed<'l> {
    /// The bytes of a stream that are paid for before it is asked for.
    pub(super) fn first_payment(range: ByteRange) -> u64 {
        range.len().min(PAID_AT_ONCE)
    }

    /// All parts, and an error behind the last if it breaks.
    pub(super) fn run(self) -> BoxStream<'l, Result<Bytes>> {
        let step = |state: Option<Self>| async move {
            let mut state = state?;
            match state.next().await {
                Ok(part) => part.map(|part| (Ok(part), Some(state))),
                Err(error) => {
                    state.link.failed(&error);
                    Some((Err(error), None))
                }
            }
        };
        stream::unfold(Some(self), step).boxed()
    }

    async fn next(&mut self) -> Result<Option<Bytes>> {
        let Self { link, parts, urgency, paid, .. } = self;
        // Not taking the bytes holds them back.
        while let Some(limit) = link.limit.as_ref().filter(|_| *paid < parts.wanted && *paid <= parts.have) {
            let more = (parts.wanted - *paid).min(PAID_AT_ONCE);
            limit.take(more, *urgency).await;
            *paid += more;
        }
        parts.next(link).await
    }
}
