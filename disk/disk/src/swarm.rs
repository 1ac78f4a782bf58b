//! A disk's bytes from other hosts that have the same image: they are asked first, and relied on for nothing.
//!
//! A [`Swarm`] brings verified chunks of blobs into the cache that this disk reads from. So its answer is only the end
//! of a wait: bytes that the cache lacks then, the disk fetches from its store, as it would without a swarm. A host
//! that answers late, or not at all, or wrongly, costs that wait, which is bounded, and nothing else.

use futures::future::BoxFuture;
use headstart_block::exchange::{Access, ImageKey};
use headstart_block::{ByteRange, Digest, PlanItem};
use headstart_cache::CachedBlob;
use headstart_store::Urgency;
use std::sync::Arc;
use std::time::Duration;

/// The interval at which the swarm is told the reads.
pub(crate) const REPORT_INTERVAL: Duration = Duration::from_millis(50);

/// The interval after no reads for [`BUSY`].
pub(crate) const REPORT_INTERVAL_IDLE: Duration = Duration::from_millis(500);

/// The time without reads of new slices after which a disk is idle.
pub(crate) const BUSY: Duration = Duration::from_secs(10);

/// Other hosts that have the same blobs. Blobs go by their digests, ranges are whole chunks, cut at a blob's end.
///
/// No call fails, and none but [`bring`](Self::bring) waits: a swarm that is away brings nothing.
pub trait Swarm: Send + Sync {
    /// Notes that a disk takes part in a blob that has a hash tree, and in the tree; `origin` is the blob's store, as a
    /// reference names it. Called as often as a disk joins.
    fn join(&self, blob: &Arc<CachedBlob>, origin: &str);

    /// Notes that a disk that joined is gone.
    fn leave(&self, blob: &Digest);

    /// Returns when no more of the range is to be expected: the disk has to fetch the bytes that are missing then from
    /// its store, and report them by [`became_local`](Self::became_local). If the future is dropped, no read waits any
    /// more.
    fn bring<'a>(&'a self, blob: &'a Digest, range: ByteRange, urgency: Urgency) -> BoxFuture<'a, ()>;

    /// The most time that [`bring`](Self::bring) may take, whatever happens: the swarm bounds its waits itself, and
    /// sooner, because it knows how long the store takes now. After that time it is dropped.
    fn longest(&self) -> Duration;

    /// Notes that the disk has fetched these bytes itself.
    fn became_local(&self, blob: &Digest, range: ByteRange);

    /// Notes that the disk has read some of these bytes.
    fn read(&self, blob: &Digest, range: ByteRange);

    /// The state of the connection to the agent of this host; `None` for a swarm that is reached without one.
    fn agent(&self) -> Option<AgentConnection> {
        None
    }

    /// Notes whether the disk follows a plan at present: if `running`, the swarm brings only requested chunks.
    fn planned(&self, blob: &Digest, running: bool);

    /// Notes that a disk of an image was created and is going to boot. `None` if the reads of boots are not gathered.
    fn boot(&self, _image: ImageKey) -> Option<Box<dyn BootTracker>> {
        None
    }
}

/// The connection to the agent of this host, through which a disk's process reaches the swarm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentConnection {
    /// `true` if the agent is connected now.
    pub connected: bool,
    /// The number of times that the connection was lost.
    pub lost: u64,
    /// The number of wants that were sent to it.
    pub wants: u64,
    /// The number of wants that it did not answer, because it was away or went away.
    pub unanswered: u64,
}

/// A disk that boots, as seen by the tracker that gathers the reads of boots. Dropped, it has booted, or is gone.
pub trait BootTracker: Send {
    /// Notes that it has read these slices for the first time.
    fn read(&mut self, accesses: &[Access]);

    /// The reads of this image's boots on other hosts, if they are new.
    fn hinted(&mut self) -> Option<Hinted>;
}

/// The reads of an image's boots on other hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hinted {
    /// The items to preload, in this order.
    pub items: Vec<PlanItem>,
    /// The number of disks that were counted.
    pub disks: u32,
}
