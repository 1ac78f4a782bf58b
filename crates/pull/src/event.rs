//! What goes into the engine and what comes out of it.

use crate::{BlobRange, Plan};
pub use headstart_block::Time;
use headstart_block::{ByteRange, Error};
use std::fmt;
use std::sync::Arc;

/// A read that waits, by a number that the driver gives and uses once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReadId(pub u64);

/// A fetch, by a number that the engine gives. It keeps it through its retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FetchId(pub u64);

/// The three queues of pulling, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// Somebody waits for it.
    Miss,
    /// The plan says that it will be read; or it is the rest of a block that missed.
    Preload,
    /// Everything else of the disk.
    Left,
}

/// Where a range is fetched from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Source {
    /// The store that the image lies in.
    Store,
}

/// Something happened.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// A read found bytes that are not local. Hits are not told.
    Read {
        /// Its name, new.
        read: ReadId,
        /// The parts of the disk that were missed (or the whole read: what is local costs nothing).
        parts: &'a [ByteRange],
    },
    /// All bytes of a fetch have come over the link, but they are not in the cache yet: they are being verified,
    /// or wait for their pages of the hash tree. [`Event::Fetched`] follows. It frees the fetch's place on the link
    /// and tells the estimator the true time of the transfer. It may be left out where `Fetched` follows at once.
    /// Bytes whose pages do not come in time are to be given up as [`Outcome::Failed`]: the next try asks for the
    /// pages too.
    Arrived {
        /// The fetch.
        fetch: FetchId,
    },
    /// The first bytes of a fetch, from its start up to before the offset `upto` of its blob, are verified and can be
    /// read; the others are still to come. For fetches that are streamed ([`Action::Fetch`]); one that the engine no
    /// longer knows, or that has come so far before, is ignored. [`Event::Fetched`] follows, and is then only about
    /// what lies behind the last `upto`.
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
        /// How.
        outcome: Outcome,
    },
    /// Somebody else (another disk, another process) brought these bytes; they are verified and readable. A fetch
    /// that waited for him ends all the same, with [`Outcome::Found`].
    BecameLocal {
        /// The bytes.
        range: BlobRange,
    },
    /// From now on this is the plan. Preloading goes on with its first item that is not local.
    PlanChanged(Plan),
    /// Fill the disk at this rate in bytes a second; `None` stops filling.
    LeftRate(Option<u64>),
    /// Nobody waits for this read any more.
    Forget {
        /// The read; one that the engine does not know is ignored.
        read: ReadId,
    },
    /// Time has passed: asked for by [`Action::WakeAt`], harmless at any other time.
    Tick,
}

/// How a fetch ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// All its bytes are verified and can be read.
    Done,
    /// As [`Outcome::Done`], but somebody else brought them, and the fetch only waited for him: that says nothing of
    /// the link or the source.
    Found,
    /// None of its bytes are there, or not all.
    Failed {
        /// Whether another try can help.
        retry: bool,
        /// The bytes came, but were wrong. It is tried again whatever `retry` says, up to
        /// [`Retry::corrupt_limit`](crate::Retry::corrupt_limit) answers.
        corrupt: bool,
        /// What happened; reads that fail of it get it.
        error: Arc<Error>,
    },
}

/// What the driver is to do. All are done in order and none may be refused.
#[derive(Clone, Debug)]
pub enum Action {
    /// Fetch `range`, verify it, put it into the cache, then say [`Event::Fetched`]. Once; the engine retries.
    Fetch {
        /// The name to answer with.
        fetch: FetchId,
        /// From where.
        source: Source,
        /// What.
        range: BlobRange,
        /// Whether somebody waits for it.
        priority: Priority,
        /// 0 at first, then 1, 2, … when it failed before.
        attempt: u32,
        /// Whether it is long: its bytes are to be taken as they come, each piece told by [`Event::Progress`], and it
        /// may be held. Never where somebody waits for it.
        stream: bool,
        /// Of a stream: whether all of it comes soon. It is never held, and all of it may be claimed at once: of a
        /// longer one, others had to wait too long for what comes last.
        whole: bool,
    },
    /// Do not take more bytes of this streamed fetch from its connection for now, so that what is more urgent has the
    /// link to itself. What has come is told all the same.
    Hold {
        /// The fetch.
        fetch: FetchId,
    },
    /// Go on with it.
    Resume {
        /// The fetch.
        fetch: FetchId,
    },
    /// Somebody waits now for bytes of this fetch, which was asked for as background work and is under way: those
    /// that lie before `upto` in its blob. What of it stands behind more urgent things, with other hosts or here,
    /// stands there no longer. Said again where more is waited for.
    Hurry {
        /// The fetch.
        fetch: FetchId,
        /// Where in its blob what is waited for ends.
        upto: u64,
    },
    /// The fetch is not needed any more. Whether it is answered then makes no difference.
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
        /// Why.
        error: Arc<Error>,
    },
    /// Send [`Event::Tick`] at this time. It replaces the one before; an earlier one is harmless.
    WakeAt(Time),
}

impl fmt::Display for ReadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "read {}", self.0)
    }
}
