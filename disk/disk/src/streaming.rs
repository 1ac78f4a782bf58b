//! The inputs and the reports of a stream.

use crate::need::{Arrived, Need};
use headstart_block::ByteRange;
use tokio::sync::watch;

/// The most bytes that are verified and reported at once.
pub(crate) const PIECE_MOST: u64 = 128 << 10;

/// The progress of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StreamProgress {
    /// All bytes up to this offset came over the link.
    Upto(u64),
    /// Others brought these bytes.
    Found(ByteRange),
}

/// The inputs of a stream, and its reports.
pub(crate) struct Streaming<'a> {
    /// The urgency: no read waits for it at first.
    pub(crate) need: &'a Need,
    /// `true` while the stream is to take no bytes.
    pub(crate) held: watch::Receiver<bool>,
    /// `true` if the stream is claimed as a whole.
    pub(crate) whole: bool,
    /// Called with each range of the stream that is readable.
    pub(crate) on_progress: &'a (dyn Fn(StreamProgress) + Send + Sync),
    /// Called when the last byte has come over the link, before it is verified.
    pub(crate) arrived: Arrived<'a>,
}
