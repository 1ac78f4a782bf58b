//! The least pace at which a body may come.
//!
//! A time-out between its parts alone would let a server that sends a byte now and then hold a read, or the one
//! renewal of a token that all reads wait for, for days.

use bytes::Bytes;
use futures::stream::{Stream, StreamExt};
use headstart_block::{Error, ErrorKind, Result};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// The least pace in bytes a second, from the first byte on: less than any link that a disk is of use over, even
/// shared by all requests that are under way at once.
const LEAST: f64 = 1024.0;

/// The time that one body has. Only time in which the reader waits for it counts: a reader that takes nothing for a
/// while must not blame the server.
pub(crate) struct Pace {
    spent: Duration,
    stall: Duration,
}

impl Pace {
    /// The pace of a body that begins now and may pause for `stall`.
    pub(crate) fn begin(stall: Duration) -> Self {
        Self { spent: Duration::ZERO, stall }
    }

    /// The next part of a body of which `have` bytes have come; `None` at its end.
    ///
    /// # Errors
    /// Errors of the body; [`ErrorKind::Unavailable`] if it pauses for too long, or is too slow as a whole.
    pub(crate) async fn next<S>(&mut self, body: &mut S, have: u64) -> Result<Option<Bytes>>
    where
        S: Stream<Item = Result<Bytes>> + Unpin,
    {
        #[expect(clippy::cast_precision_loss, reason = "a body of 53 bits is past all links")]
        let earned = Duration::from_secs_f64(have as f64 / LEAST);
        let left = self.stall.saturating_add(earned).saturating_sub(self.spent);
        let asked = Instant::now();
        let next = timeout(left.min(self.stall), body.next()).await;
        self.spent += asked.elapsed();
        match next {
            Ok(part) => part.transpose(),
            Err(_) if left < self.stall => {
                let cause = format!("sent only {have} bytes in {:.0} s", self.spent.as_secs_f64());
                Err(Error::new(ErrorKind::Unavailable, cause))
            }
            Err(_) => {
                let cause = format!("stopped answering for {} s", self.stall.as_secs_f64());
                Err(Error::new(ErrorKind::Unavailable, cause))
            }
        }
    }
}
