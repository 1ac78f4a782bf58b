//! The figures that the engine reports.

use crate::{Plan, Priority};
use std::time::Duration;

/// The engine's estimate of the link to the store. A field is `None` until enough fetches were observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Bandwidth in bytes a second, measured while bytes were arriving: idle time and the wait for a first
    /// byte do not count.
    pub bandwidth: Option<u64>,
    /// The duration from a request to the first byte of its answer: the shortest among recent fetches, each counted
    /// without the time that its bytes took.
    pub round_trip: Option<Duration>,
}

/// The progress of filling, which fetches the whole disk in the background. Counts the stored bytes of data
/// that the disk can read, without hash trees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FillProgress {
    /// All bytes to fill, those that are local included; `None` while they are being counted or filling is
    /// off.
    pub total: Option<u64>,
    /// Bytes that are local (on this host); 0 while `total` is `None`.
    pub local: u64,
    /// Bytes a second that became local, as a mean of the last 10 seconds, fetched for any reason.
    pub rate: u64,
    /// The duration until all bytes are local at the present rate; zero if they are. `None` while `total` is `None`, or
    /// while bytes are missing and `rate` is 0.
    pub eta: Option<Duration>,
}

/// The engine's report on its preloading (fetching ahead of reads).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preloading {
    /// The plan that the engine follows: the parts of the disk to preload, in order.
    pub plan: Plan,
    /// The number of items at the start of that plan that the engine has passed: their bytes are local, being fetched,
    /// or among the next to be requested.
    pub items: u64,
    /// The estimate of the link to the store.
    pub estimate: Estimate,
}

/// The counters of an engine since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounters {
    /// Reads that missed and were reported to the engine; hits are not reported.
    pub reads: u64,
    /// Reads that completed because all their bytes became local.
    pub completed: u64,
    /// Reads that failed because their deadline passed.
    pub failed_deadline: u64,
    /// Reads that failed because of an error that no retry can repair.
    pub failed_permanent: u64,
    /// Reads that failed because of corrupt answers; see
    /// [`Retry::corrupt_limit`](crate::Retry::corrupt_limit).
    pub failed_corrupt: u64,
    /// Reads that failed at once because too many reads were waiting; see
    /// [`EngineSettings::reads_max`](crate::EngineSettings::reads_max).
    pub refused: u64,
    /// Reads that ended because their client stopped waiting.
    pub forgotten: u64,
    /// Fetches sent for misses (reads whose bytes are not local), retries included.
    pub miss_fetches: u64,
    /// Fetches sent for preloads and for the rest of blocks (2 MiB) in which a read missed, retries included.
    pub preload_fetches: u64,
    /// Fetches sent to fill the disk in the background, retries included.
    pub fill_fetches: u64,
    /// Bytes requested for misses, retries included.
    pub miss_bytes: u64,
    /// Bytes requested for preloads, retries included; of streamed fetches, only the bytes that arrived.
    pub preload_bytes: u64,
    /// Bytes requested to fill the disk in the background, retries included.
    pub fill_bytes: u64,
    /// The number of missing ranges of reads for which no new fetch was made, because the read could wait for an
    /// existing fetch of the same bytes.
    pub joined: u64,
    /// Missing ranges of reads that joined a background fetch on its way; the priority of the fetch is raised up to the
    /// end of the range.
    pub promoted: u64,
    /// Misses that fetched their bytes separately because the background fetch that has them was late or has failed
    /// before.
    pub overtaken: u64,
    /// Misses that fetched their bytes separately because they are far from the current position of a
    /// streamed fetch.
    pub overtaken_in_stream: u64,
    /// The number of times that a streamed fetch was paused so that misses have the link.
    pub held: u64,
    /// Missing ranges that were merged with a neighbour into one request.
    pub coalesced: u64,
    /// Fetches that were sent again after a failure.
    pub retries: u64,
    /// Answers whose bytes were corrupt.
    pub corrupt: u64,
    /// Fetches that failed. Not counted: corrupt answers, and failures because this host has no space.
    pub failed_fetches: u64,
    /// Fetches that were cancelled: their bytes had become local by another fetch or another process, or they were
    /// streamed for a plan that was replaced.
    pub cancelled: u64,
    /// Background fetches that were abandoned after failures.
    pub given_up: u64,
    /// Items of plans, and rests of blocks, that were skipped because all their bytes were local.
    pub plan_skipped: u64,
    /// Blocks whose rest was not fetched because too many blocks were waiting; see
    /// [`EngineSettings::rest_max`](crate::EngineSettings::rest_max).
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
