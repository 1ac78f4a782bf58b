//! The inputs (events) and the outputs (actions) of the engine.

use crate::{BlobRange, Plan};
pub use headstart_block::Time;
use headstart_block::{ByteRange, Error};
use std::fmt;
use std::sync::Arc;

/// The number of a read that waits. The driver (the code that runs the engine) chooses it and never uses it
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReadId(pub u64);

/// The number of a fetch, which the engine chooses. A fetch keeps its number when it is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FetchId(pub u64);

/// The priority of a fetch, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// A fetch that a read waits for.
    Miss,
    /// A fetch of bytes that the plan names, or of the rest of a block (2 MiB) in which a read missed.
    Preload,
    /// A fetch to fill the rest of the disk in the background.
    Fill,
}

/// An event that the driver reports to the engine.
#[derive(Clone, Debug)]
pub enum EngineEvent<'a> {
    /// A read found bytes that are not local. Hits are not reported.
    Read {
        /// The number of the read, which was not used before.
        read: ReadId,
        /// The ranges of the disk that the read lacks. The whole read is allowed too: local bytes are
        /// ignored.
        ranges: &'a [ByteRange],
    },
    /// All bytes of a fetch have arrived over the link but are not in the cache yet: they are being verified,
    /// or wait for pages of the hash tree. [`EngineEvent::Fetched`] follows. This event frees the fetch's
    /// share of the link and gives the estimator the true duration of the transfer; it may be left out if
    /// `Fetched` follows at once. If the pages do not arrive in time, the driver reports
    /// [`FetchOutcome::Failed`], and the next try requests the pages too.
    Arrived {
        /// The fetch that arrived.
        fetch: FetchId,
    },
    /// The first bytes of a streamed fetch ([`EngineAction::Fetch`]), from its start to before offset `upto`
    /// of its blob, are verified and can be read; the others follow. Ignored for a fetch that the engine no
    /// longer knows and for an `upto` that was reported before. [`EngineEvent::Fetched`] follows and then
    /// covers only the bytes from the last `upto` on.
    Progress {
        /// The fetch that made progress.
        fetch: FetchId,
        /// The offset in the blob of the first byte that has not arrived.
        upto: u64,
    },
    /// A fetch has ended, with success or failure.
    Fetched {
        /// The fetch that ended; ignored if the engine no longer knows it.
        fetch: FetchId,
        /// The outcome of the fetch.
        outcome: FetchOutcome,
    },
    /// Another disk or another process brought these bytes; they are verified and readable. If a fetch of this disk
    /// waited for them, the driver also reports its end, with [`FetchOutcome::Found`].
    BecameLocal {
        /// The bytes that are now local.
        range: BlobRange,
    },
    /// The plan to preload from now on. The engine starts with the plan's first item that is not local. If the plan is
    /// another one than before, streamed fetches that no read waits for are cancelled.
    PlanChanged(Plan),
    /// The rate in bytes a second at which the rest of the disk is fetched in the background; `None` or 0 stops that.
    FillRate(Option<u64>),
    /// The client of a read no longer waits for it.
    Forget {
        /// The read that was abandoned; ignored if the engine does not know it.
        read: ReadId,
    },
    /// The time that [`EngineAction::WakeAt`] asked for has come. A tick at any other time is harmless.
    Tick,
}

/// The outcome of a fetch, which the driver reports in [`EngineEvent::Fetched`].
#[derive(Clone, Debug)]
pub enum FetchOutcome {
    /// All bytes of the fetch are verified and can be read.
    Done,
    /// All bytes can be read, but another disk or process brought them, and the fetch only waited for them. Its
    /// duration says nothing about the link or the store.
    Found,
    /// Some or all bytes of the fetch are missing.
    Failed {
        /// `true` if a retry may succeed.
        retry: bool,
        /// `true` if the bytes arrived but were wrong. The fetch is retried whatever `retry` is, up to
        /// [`Retry::corrupt_limit`](crate::Retry::corrupt_limit) corrupt answers.
        corrupt: bool,
        /// The cause, which is returned to the reads that fail because of it.
        error: Arc<Error>,
    },
}

/// An action that the driver has to carry out. The actions of one event are carried out in order, and none
/// may be refused.
#[derive(Clone, Debug)]
pub enum EngineAction {
    /// Fetch `range`, verify it, insert it into the cache, then report [`EngineEvent::Fetched`]. The driver
    /// tries only once; the engine retries.
    Fetch {
        /// The number of the fetch, which the driver's events repeat.
        fetch: FetchId,
        /// The range to fetch.
        range: BlobRange,
        /// The priority of the fetch; [`Priority::Miss`] if a read waits for it.
        priority: Priority,
        /// The number of tries before this one: 0 at first, then 1, 2, … after failures.
        attempt: u32,
        /// `true` for a long fetch, which is streamed: the driver inserts its bytes as they arrive, reports
        /// them by [`EngineEvent::Progress`], and may be told to [hold](EngineAction::Hold) it. Never set if
        /// a read waits for the fetch.
        stream: bool,
        /// `true` for a stream whose bytes will all arrive soon. It is never held, and the driver may claim
        /// all of it at once. A longer stream must not be claimed at once: other disks would wait too long
        /// for its last bytes.
        whole: bool,
    },
    /// Stop reading this streamed fetch from its connection for now, so that more urgent requests have the
    /// link to themselves. Bytes that have arrived are reported anyway.
    Hold {
        /// The fetch to hold.
        fetch: FetchId,
    },
    /// Continue a fetch that was held.
    Resume {
        /// The fetch to continue.
        fetch: FetchId,
    },
    /// Raise the priority of a background fetch that is on its way, because a read now waits for its bytes
    /// before offset `upto` of the blob. Parts of the fetch that are queued behind more urgent requests, here or on
    /// other hosts, leave that queue. The action is repeated with a larger `upto` if a read waits for more.
    Promote {
        /// The fetch to promote.
        fetch: FetchId,
        /// The offset in the blob of the end of the bytes that are waited for.
        upto: u64,
    },
    /// Stop a fetch that is no longer needed. Its answer is ignored if it comes anyway.
    Cancel {
        /// The fetch to stop.
        fetch: FetchId,
    },
    /// Read again from the cache, because all bytes of the read are local. If the cache has lost some
    /// meanwhile, the driver reports a new read.
    Complete {
        /// The read that can be completed.
        read: ReadId,
    },
    /// Fail a read that cannot be served.
    Fail {
        /// The read that fails.
        read: ReadId,
        /// The cause to return to the client.
        error: Arc<Error>,
    },
    /// Report [`EngineEvent::Tick`] at this time, which replaces the time of an earlier `WakeAt`. A tick before this
    /// time is harmless.
    WakeAt(Time),
}

impl fmt::Display for ReadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "read {}", self.0)
    }
}
