//! The figures that the engine reports.

use crate::{Plan, Priority};
use std::time::Duration;

/// The estimate of the link; fields are `None` before the estimator has seen enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Bytes a second while bytes were coming: idle time and the wait for the first byte do not count.
    pub bandwidth: Option<u64>,
    /// The least time between asking and the first byte.
    pub round_trip: Option<Duration>,
}

/// The progress of filling the disk. Counts stored bytes of data that the disk can read; no hash trees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FillProgress {
    /// The number of all bytes; `None` while they are being counted (counting starts with a fill rate).
    pub total: Option<u64>,
    /// The number of local bytes.
    pub local: u64,
    /// Bytes a second that became local lately, fetched for any reason.
    pub rate: u64,
    /// The time from now until all are local, at this rate.
    pub eta: Option<Duration>,
}

/// The engine's report on its preloading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preloading {
    /// The plan that it follows.
    pub plan: Plan,
    /// Items of that plan that were passed: they are here, or on their way.
    pub items: u64,
    /// The estimate of the link.
    pub estimate: Estimate,
}

/// The counts of events since the engine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounters {
    /// Reads that the engine was told of.
    pub reads: u64,
    /// Reads completed.
    pub completed: u64,
    /// Reads failed because their deadline passed.
    pub failed_deadline: u64,
    /// Reads failed because no retry could help.
    pub failed_permanent: u64,
    /// Reads failed because every answer was corrupt.
    pub failed_corrupt: u64,
    /// Reads failed because too many waited.
    pub refused: u64,
    /// Reads forgotten by their client.
    pub forgotten: u64,
    /// Fetches sent for misses, retries included.
    pub miss_fetches: u64,
    /// Fetches sent for preloads (and rests of blocks), retries included.
    pub preload_fetches: u64,
    /// Fetches sent for the fill queue, retries included.
    pub fill_fetches: u64,
    /// Bytes asked for by misses.
    pub miss_bytes: u64,
    /// Bytes asked for by preloads; for streams, those that came.
    pub preload_bytes: u64,
    /// Bytes asked for by the fill queue.
    pub fill_bytes: u64,
    /// Ranges of reads that found a fetch of their bytes under way.
    pub joined: u64,
    /// Joined ranges that found a background fetch.
    pub promoted: u64,
    /// Misses that asked separately because the background fetch that they waited for was late.
    pub overtaken: u64,
    /// Misses that asked separately because their bytes are far ahead in a stream.
    pub overtaken_in_stream: u64,
    /// The number of times that a stream was held for misses.
    pub held: u64,
    /// Missing ranges that were put into a request with a neighbour.
    pub coalesced: u64,
    /// Fetches sent again after a failure.
    pub retries: u64,
    /// Answers that were corrupt.
    pub corrupt: u64,
    /// Fetches that failed, corrupt ones not counted.
    pub failed_fetches: u64,
    /// Fetches cancelled because another fetch or process had brought their bytes.
    pub cancelled: u64,
    /// Background fetches given up.
    pub given_up: u64,
    /// Plan items passed because nothing of them was missing.
    pub plan_skipped: u64,
    /// Blocks whose rest was dropped because too many waited.
    pub rest_dropped: u64,
}

impl EngineCounters {
    pub(crate) fn add_bytes(&mut self, priority: Priority, bytes: u64) {
        *match priority {
            Priority::Miss => &mut self.miss_bytes,
            Priority::Preload => &mut self.preload_bytes,
            Priority::Fill => &mut self.fill_bytes,
        } += bytes;
    }
}
