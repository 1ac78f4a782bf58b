//! The inputs and the outputs of the engine.

use crate::{BlobRange, Plan};
pub use headstart_block::Time;
use headstart_block::{ByteRange, Error};
use std::fmt;
use std::sync::Arc;

/// A read that waits, by a number that the driver gives and uses once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReadId(pub u64);

/// A fetch, by a number that the engine gives. A fetch keeps its number through its retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FetchId(pub u64);

/// The three queues of pulling, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// A read waits for it.
    Miss,
    /// The plan predicts that it will be read; or it is the rest of a block that missed.
    Preload,
    /// Everything else of the disk.
    Fill,
}

/// An event that the driver reports.
#[derive(Clone, Debug)]
pub enum EngineEvent<'a> {
    /// A read found bytes that are not local. Hits are not reported.
    Read {
        /// The number of the read, which is new.
        read: ReadId,
        /// The ranges of the disk that were missed (or the whole read: local bytes cost nothing).
        ranges: &'a [ByteRange],
    },
    /// All bytes of a fetch have come over the link, but they are not in the cache yet: they are being verified,
    /// or wait for their pages of the hash tree. [`EngineEvent::Fetched`] follows. It frees the fetch's place on the
    /// link and tells the estimator the true time of the transfer. It may be left out if `Fetched` follows at once.
    /// Bytes whose pages do not come in time are to be given up as [`FetchOutcome::Failed`]: the next try asks for the
    /// pages too.
    Arrived {
        /// The fetch.
        fetch: FetchId,
    },
    /// The first bytes of a fetch, from its start up to before the offset `upto` of its blob, are verified and can be
    /// read; the others are still to come. For fetches that are streamed ([`EngineAction::Fetch`]); one that the engine
    /// no longer knows, or that has come so far before, is ignored. [`EngineEvent::Fetched`] follows, and then covers
    /// only the bytes behind the last `upto`.
    Progress {
        /// The fetch.
        fetch: FetchId,
        /// The first byte of the blob that is not there yet.
        upto: u64,
    },
    /// A fetch ended.
    Fetched {
        /// The fetch; one that the engine no longer knows is ignored.
        fetch: FetchId,
        /// The outcome of the fetch.
        outcome: FetchOutcome,
    },
    /// Another disk or another process brought these bytes; they are verified and readable. A fetch
    /// that waited for it ends anyway, with [`FetchOutcome::Found`].
    BecameLocal {
        /// The bytes.
        range: BlobRange,
    },
    /// The plan from now on. Preloading goes on with its first item that is not local.
    PlanChanged(Plan),
    /// The rate in bytes a second at which to fill the disk; `None` stops filling.
    FillRate(Option<u64>),
    /// The client of this read does not wait any more.
    Forget {
        /// The read; one that the engine does not know is ignored.
        read: ReadId,
    },
    /// Time has passed: asked for by [`EngineAction::WakeAt`], harmless at any other time.
    Tick,
}

/// The outcome of a fetch.
#[derive(Clone, Debug)]
pub enum FetchOutcome {
    /// All its bytes are verified and can be read.
    Done,
    /// As [`FetchOutcome::Done`], but another disk or process brought them, and the fetch only waited for that: this
    /// says nothing of the link or the store.
    Found,
    /// None of its bytes are there, or not all.
    Failed {
        /// `true` if another try can help.
        retry: bool,
        /// `true` if the bytes came, but were wrong. The fetch is tried again whatever `retry` is, up to
        /// [`Retry::corrupt_limit`](crate::Retry::corrupt_limit) answers.
        corrupt: bool,
        /// The error, for the reads that fail because of it.
        error: Arc<Error>,
    },
}

/// An action for the driver. It does all actions in order and may refuse none.
#[derive(Clone, Debug)]
pub enum EngineAction {
    /// Fetch `range`, verify it, put it into the cache, then report [`EngineEvent::Fetched`]. Only once; the engine
    /// retries.
    Fetch {
        /// The number to answer with.
        fetch: FetchId,
        /// The range to fetch.
        range: BlobRange,
        /// The priority of the fetch, which tells if a read waits for it.
        priority: Priority,
        /// The number of the try: 0 at first, then 1, 2, … after failures.
        attempt: u32,
        /// `true` if it is long: the driver takes its bytes as they come, reports their progress by
        /// [`EngineEvent::Progress`], and it may be held. Never if a read waits for it.
        stream: bool,
        /// `true` for a stream all of which comes soon. It is never held, and all of it may be claimed at once: with a
        /// longer one, other disks would wait too long for its last bytes.
        whole: bool,
    },
    /// Do not take more bytes of this streamed fetch from its connection for now, so that more urgent requests have the
    /// link to themselves. Bytes that have come are reported anyway.
    Hold {
        /// The fetch.
        fetch: FetchId,
    },
    /// Go on with a held fetch.
    Resume {
        /// The fetch.
        fetch: FetchId,
    },
    /// A read now waits for bytes of this fetch, which was asked for as background work and is under way: those
    /// before `upto` in its blob. Its parts that stand behind more urgent requests, on other hosts or here,
    /// stand there no longer. Sent again if more is waited for.
    Promote {
        /// The fetch.
        fetch: FetchId,
        /// The end, in its blob, of the bytes that are waited for.
        upto: u64,
    },
    /// The fetch is not needed any more. An answer to it makes no difference then.
    Cancel {
        /// The fetch.
        fetch: FetchId,
    },
    /// All bytes of the read are local: read it again. (If the cache has lost some by then: a new read.)
    Complete {
        /// The read.
        read: ReadId,
    },
    /// The read cannot be served.
    Fail {
        /// The read.
        read: ReadId,
        /// The reason.
        error: Arc<Error>,
    },
    /// Send [`EngineEvent::Tick`] at this time. This replaces the time before; an earlier tick is harmless.
    WakeAt(Time),
}

impl fmt::Display for ReadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "read {}", self.0)
    }
}
