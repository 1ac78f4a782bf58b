//! A disk's bytes from other hosts that have the same image: these hosts are asked first, and relied on for nothing.
//!
//! A [`SwarmClient`] brings verified chunks of blobs into the cache that this disk reads from. A request to it returns
//! no bytes; it only ends when no more chunks can be expected. The disk then fetches the bytes that the cache still
//! lacks from its store, as it would without a swarm. Another host that answers late, wrongly or not at all costs only
//! that wait, which is bounded.

use futures::future::BoxFuture;
use headstart_block::exchange::{ImageKey, SliceAccess};
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

/// The other hosts that have the same blobs, a source of missing bytes. Blobs are named by their digests;
/// ranges are whole chunks (64 KiB), cut at a blob's end.
///
/// No call fails, and none but [`bring`](Self::bring) waits: a swarm that cannot be reached brings nothing.
pub trait SwarmClient: Send + Sync {
    /// Records that a disk uses `blob`, which has a hash tree, and shares the blob and its tree with other hosts.
    /// `origin` is the location of the blob's store, as a reference names it. Called once for each disk and blob.
    fn join(&self, blob: &Arc<CachedBlob>, origin: &str);

    /// Records that a disk that joined no longer uses the blob.
    fn leave(&self, blob: &Digest);

    /// Requests `range` of a blob from other hosts and waits until no more of it can be expected. The disk
    /// then fetches the bytes that are still missing from its store and reports them by
    /// [`became_local`](Self::became_local). Dropping the future says that no read waits any more.
    fn bring<'a>(&'a self, blob: &'a Digest, range: ByteRange, urgency: Urgency) -> BoxFuture<'a, ()>;

    /// The maximum duration of a call of [`bring`](Self::bring), after which the disk drops the future. Normally the
    /// call ends sooner: the swarm knows how long the store takes at present, and waits for other hosts accordingly.
    fn longest(&self) -> Duration;

    /// Records that the disk has fetched `range` of a blob itself, so that other hosts can have it.
    fn became_local(&self, blob: &Digest, range: ByteRange);

    /// Records that the disk has read bytes of `range` of a blob.
    fn read(&self, blob: &Digest, range: ByteRange);

    /// The state of the connection to the agent (the daemon of this host); `None` if the swarm needs no
    /// agent.
    fn agent(&self) -> Option<AgentConnection> {
        None
    }

    /// Records that the disk begins (`running` is `true`) or ends to follow a plan for `blob`. While it follows one,
    /// the swarm brings only chunks that were requested, and none ahead of requests.
    fn planned(&self, blob: &Digest, running: bool);

    /// Records that a disk of an image was created and is going to boot. Returns the report that the disk fills with
    /// its reads; `None` if no tracker gathers the reads of boots.
    fn boot(&self, _image: ImageKey) -> Option<Box<dyn BootTracker>> {
        None
    }
}

/// The state of the connection to the agent, the daemon of this host through which a disk's process reaches
/// the swarm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentConnection {
    /// `true` if the agent is connected now.
    pub connected: bool,
    /// The number of times that the connection was lost.
    pub lost: u64,
    /// The number of requests for chunks (*wants*) that were sent to the agent.
    pub wants: u64,
    /// The number of wants that the agent did not answer because it could not be reached or the connection
    /// was lost.
    pub unanswered: u64,
}

/// The report of one disk's boot to the tracker, which gathers the reads of all boots of an image. Dropping
/// it says that the disk has booted or is gone.
pub trait BootTracker: Send {
    /// Reports slices that the disk has read for the first time.
    fn read(&mut self, accesses: &[SliceAccess]);

    /// Returns the preload order that the tracker made from the reads of this image's boots on other hosts; `None` if
    /// there is none yet or it has not changed since the last call.
    fn hinted(&mut self) -> Option<Hinted>;
}

/// A preload order that a tracker made from the reads of an image's boots on other hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hinted {
    /// The blocks and slices to preload, in this order.
    pub items: Vec<PlanItem>,
    /// The number of disks whose reads were counted.
    pub disks: u32,
}
