//! The inputs and outputs of a node's state machine. The *driver* is the code around the machine that reports the
//! events and carries out the actions: the agent or the simulator.

use crate::Time;
pub use crate::ids::{BlobId, BlobKey, Chunks, PeerId, PeerKey, ReaderId, StoreFetchId, Urgency, WantId};
use crate::message::{Message, RequestId};

/// The role of a host in the swarm, the hosts that exchange chunks of images with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// A root fetches chunks from stores for other hosts, and caches the chunks that its agents read.
    Root,
    /// An agent fetches chunks for its own disks.
    Agent,
}

/// An input of the state machine: a change on this host, a message of another host, or the passing of time.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// This host takes part in a blob: a disk of it has the blob, or the host was asked to keep it.
    Opened {
        /// The blob's number, which is new.
        blob: BlobId,
        /// The blob's name on all hosts.
        key: BlobKey,
        /// The blob's length in bytes, which gives the number of its chunks.
        len: u64,
        /// The chunks that are local: runs that ascend and do not overlap.
        local: &'a [Chunks],
        /// `true` if the agent can fetch the blob from its store: only then does the host fetch chunks for other hosts.
        fetchable: bool,
    },
    /// A disk reads this blob from now on. Chunks of it that other hosts advertise are prefetched, as long as few
    /// enough of the bytes prefetched for this disk are unread. If several disks read a blob, the bytes count as the
    /// first disk's. A blob without a reader, such as a hash tree, is fetched only when an [`Event::Want`] names it.
    ReadBy {
        /// The blob.
        blob: BlobId,
        /// The disk that reads it.
        reader: ReaderId,
    },
    /// No disk of this host has the blob any more, and none of it is kept for others: the host no longer takes part in
    /// it. Wants of the blob are forgotten, without an answer.
    Closed {
        /// The blob.
        blob: BlobId,
    },
    /// A disk misses these chunks, or preloads them. Answered by [`Action::Answer`] once, unless the want is forgotten
    /// or the blob is closed before.
    Want {
        /// The want's number.
        want: WantId,
        /// The blob.
        blob: BlobId,
        /// The wanted chunks; those that are local cost nothing.
        chunks: Chunks,
        /// The urgency: high if a read waits for the chunks, low if they are preloaded.
        urgency: Urgency,
    },
    /// No read or preload waits for this want any more: it needs no answer.
    Forget {
        /// The want; one that was answered is ignored.
        want: WantId,
    },
    /// A disk read these chunks, which are local: the first time, or again.
    Read {
        /// The blob.
        blob: BlobId,
        /// The chunks that were read.
        chunks: Chunks,
    },
    /// These chunks are whole and verified on this host now. Either they were fetched from the store without an
    /// [`Action::Fetch`], as a disk does; or they are a part of an [`Action::Fetch`] that came before the rest.
    BecameLocal {
        /// The blob.
        blob: BlobId,
        /// The chunks.
        chunks: Chunks,
    },
    /// These chunks are not on this host any more, because the cache evicted them.
    Lost {
        /// The blob.
        blob: BlobId,
        /// The evicted chunks.
        chunks: Chunks,
    },
    /// A disk begins or ends to preload by a plan. While it does, chunks of the blob that other hosts advertise are
    /// only recorded, and not prefetched.
    Planned {
        /// The blob.
        blob: BlobId,
        /// `true` while a plan is followed.
        running: bool,
    },
    /// Prefetch these chunks, because the blob is to be in this host's cache before a disk reads it, or because hints
    /// name them.
    Warm {
        /// The blob.
        blob: BlobId,
        /// The chunks to fetch.
        chunks: Chunks,
    },
    /// The blob is kept by these hosts in turn: stripe `n` (a group of consecutive chunks) by `copies` hosts of the
    /// list, from place `n` on (modulo the number of hosts). Replaces what an earlier event of this kind said of the
    /// blob. Without holders, the blob is no longer pinned.
    Pinned {
        /// The blob.
        blob: BlobId,
        /// The hosts that keep it, in order.
        holders: &'a [PeerKey],
        /// The number of hosts that keep each stripe.
        copies: u32,
    },
    /// A host can be reached.
    PeerUp {
        /// The host's number.
        peer: PeerId,
        /// The host's name on all hosts.
        key: PeerKey,
        /// The host's role.
        role: Role,
    },
    /// A host cannot be reached any more: chunks that were requested from it do not come.
    PeerDown {
        /// The host's number.
        peer: PeerId,
    },
    /// A host has proved that it may read this blob, and this host has proved it to that host.
    PeerShares {
        /// The other host.
        peer: PeerId,
        /// The blob.
        blob: BlobId,
    },
    /// A message of a host. Blobs in it have this host's numbers; the driver has translated them, and has dropped
    /// messages about blobs for which the peer has not proved its right to read.
    Received {
        /// The sender.
        peer: PeerId,
        /// The message.
        message: Message,
    },
    /// Bytes have come that a host sent in answer to a [`Message::Ask`]. The driver reports them also if the request
    /// was given up meanwhile.
    Came {
        /// The sender.
        peer: PeerId,
        /// The request that the bytes answer.
        request: RequestId,
        /// The chunks.
        chunks: Chunks,
        /// The result.
        outcome: Came,
    },
    /// A host has sent these chunks without a request, and they are verified and local.
    Pushed {
        /// The sender.
        peer: PeerId,
        /// The blob.
        blob: BlobId,
        /// The chunks.
        chunks: Chunks,
    },
    /// An [`Action::Serve`] has ended, successfully or not: none of its bytes wait to be sent any more.
    Served {
        /// The receiver.
        peer: PeerId,
        /// The request; `None` for pushed chunks.
        request: Option<RequestId>,
        /// The blob.
        blob: BlobId,
        /// The chunks.
        chunks: Chunks,
        /// The result.
        outcome: Served,
    },
    /// An [`Action::Fetch`] ended. If the fetch succeeded, its chunks are verified and local.
    Fetched {
        /// The fetch.
        fetch: StoreFetchId,
        /// `true` if it succeeded.
        ok: bool,
    },
    /// Time has passed: requested by [`Action::WakeAt`], harmless at any other time.
    Tick,
}

/// The result of receiving bytes that a peer sent in answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// The chunks are verified and local.
    Kept,
    /// The bytes do not have the expected digest.
    Corrupt,
    /// The chunks could not be stored on this host, which is no fault of the peer.
    Failed,
}

/// The result of an [`Action::Serve`]: of sending chunks to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The chunks were sent, or the peer no longer needs them.
    Well,
    /// The chunks turned out not to be local.
    Missing,
    /// The chunks are local, but could not be checked so far, and wrong data must not be passed on.
    Unchecked,
}

/// The reason why a peer is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Offence {
    /// The peer sent bytes that do not have the expected digest.
    Corrupt,
    /// The peer has repeatedly claimed to have chunks that it did not have.
    Lies,
    /// The peer has repeatedly been far slower than other peers.
    Slow,
    /// The peer sent messages that contradict the protocol.
    Protocol,
}

/// An output of the state machine: an instruction that the driver (the agent or the simulator) carries out. A
/// driver carries out actions in the order in which it gets them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this message to a host. Messages of a better [`class`](Message::class) overtake others.
    Send {
        /// The receiver.
        peer: PeerId,
        /// The message.
        message: Message,
    },
    /// Send these chunks to a host, then report [`Event::Served`], for all of them at once or for one run after the
    /// other. The action is repeated for the same request (or for none) and chunks when a read begins to wait for them:
    /// chunks that are still queued then move up to the others that reads wait for, and are sent once.
    Serve {
        /// The receiver.
        peer: PeerId,
        /// The request that they answer; `None` if they are pushed.
        request: Option<RequestId>,
        /// The blob.
        blob: BlobId,
        /// The chunks.
        chunks: Chunks,
        /// The urgency.
        urgency: Urgency,
    },
    /// Fetch these chunks from the blob's store, verify and keep them, then report [`Event::Fetched`]. The action is
    /// repeated for the same fetch when a read begins to wait for it: a fetch that is still queued is then begun at
    /// once. Chunks that can be read before the rest may be reported earlier, by [`Event::BecameLocal`].
    Fetch {
        /// The number to answer with.
        fetch: StoreFetchId,
        /// The blob.
        blob: BlobId,
        /// The chunks.
        chunks: Chunks,
        /// The urgency.
        urgency: Urgency,
    },
    /// All of a want is local except these chunks. The disk fetches them from the store itself, as whole chunks, and
    /// reports them by [`Event::BecameLocal`].
    Answer {
        /// The want.
        want: WantId,
        /// The chunks that the swarm does not deliver: runs that ascend and do not overlap.
        from_store: Vec<Chunks>,
    },
    /// Close the connection to a host, do not open one to it again for a while, and report this once to the users of
    /// the driver (the agent writes a line to its log).
    Drop {
        /// The host.
        peer: PeerId,
        /// The reason.
        offence: Offence,
    },
    /// Send [`Event::Tick`] at this time. The time replaces that of any earlier action of this kind; a tick that comes
    /// before it is harmless.
    WakeAt(Time),
}
