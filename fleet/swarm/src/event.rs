//! What goes into a node's state machine and what comes out of it.

use crate::Time;
pub use crate::ids::{BlobId, BlobKey, Chunks, FetchId, PeerId, PeerKey, ReaderId, Urgency, WantId};
use crate::message::{Message, RequestId};

/// What a host is to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// It fetches from stores for others, and keeps what its agents have.
    Root,
    /// It fetches for itself.
    Agent,
}

/// Something happened.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// This host takes part in a blob: a disk of it has it, or it was asked to keep it.
    Opened {
        /// Its name, new.
        blob: BlobId,
        /// Its name everywhere.
        key: BlobKey,
        /// Its length in bytes; it has so many chunks as this touches.
        len: u64,
        /// What of it is here: runs that ascend and do not overlap.
        local: &'a [Chunks],
        /// Whether the agent can fetch it from its store: what others ask it to bring it brings only then.
        fetchable: bool,
    },
    /// A disk reads this blob from now on. What others advertise of it is prefetched, as long as little enough of all
    /// that this disk reads is unread. Where several disks read it, it counts as the first's; what nobody is said to
    /// read, such as a hash tree, is brought when it is wanted.
    ReadBy {
        /// The blob.
        blob: BlobId,
        /// Who reads it.
        reader: ReaderId,
    },
    /// No disk has it any more and nothing of it is kept. Wants of it are forgotten.
    Closed {
        /// The blob.
        blob: BlobId,
    },
    /// A disk misses these chunks, or preloads them. Answered by [`Action::Answer`], once.
    Want {
        /// Its name.
        want: WantId,
        /// The blob.
        blob: BlobId,
        /// What is wanted; what of it is local costs nothing.
        chunks: Chunks,
        /// Whether somebody waits.
        urgency: Urgency,
    },
    /// Nobody waits for this want any more: it needs no answer.
    Forget {
        /// The want; one that was answered is ignored.
        want: WantId,
    },
    /// A disk read these chunks, which are local: the first time, or again.
    Read {
        /// The blob.
        blob: BlobId,
        /// What was read.
        chunks: Chunks,
    },
    /// These chunks are whole and verified on this host now, by whatever way they came that was not asked for here:
    /// a disk brought them from the store.
    BecameLocal {
        /// The blob.
        blob: BlobId,
        /// What came.
        chunks: Chunks,
    },
    /// These chunks are not on this host any more.
    Lost {
        /// The blob.
        blob: BlobId,
        /// What was evicted.
        chunks: Chunks,
    },
    /// A disk preloads by a plan: what others advertise is only taken note of, until that is over.
    Planned {
        /// The blob.
        blob: BlobId,
        /// Whether a plan is being followed.
        running: bool,
    },
    /// Bring these chunks here ahead of need: of a blob that is to be warm here, or in order of hints.
    Warm {
        /// The blob.
        blob: BlobId,
        /// What to bring.
        chunks: Chunks,
    },
    /// The blob is kept by these hosts, stripe by stripe in turn: stripe `n` by the `copies` hosts from the `n`th on.
    Pinned {
        /// The blob.
        blob: BlobId,
        /// Who keeps it, in order.
        holders: &'a [PeerKey],
        /// How many keep each stripe.
        copies: u32,
    },
    /// A host can be reached.
    PeerUp {
        /// Its number.
        peer: PeerId,
        /// Its name everywhere.
        key: PeerKey,
        /// What it is.
        role: Role,
    },
    /// It cannot any more: what was asked of it does not come.
    PeerDown {
        /// Its number.
        peer: PeerId,
    },
    /// A host has proved that it may read this blob, and this host has proved it to that one.
    PeerShares {
        /// Who.
        peer: PeerId,
        /// The blob.
        blob: BlobId,
    },
    /// A host said something. Names of blobs in it are this host's; the driver has translated them, and has dropped
    /// what was about blobs that the peer has not proved that it may read.
    Received {
        /// Who.
        peer: PeerId,
        /// What.
        message: Message,
    },
    /// Bytes of an [`Message::Ask`] have come. Of a request that is not known any more the event is the same.
    Came {
        /// From whom.
        peer: PeerId,
        /// To which request.
        request: RequestId,
        /// What it was.
        chunks: Chunks,
        /// What became of it.
        outcome: Came,
    },
    /// A host has sent these chunks unasked, and they are verified and local.
    Pushed {
        /// From whom.
        peer: PeerId,
        /// The blob.
        blob: BlobId,
        /// What.
        chunks: Chunks,
    },
    /// An [`Action::Serve`] is done with, well or not: its bytes do not wait to be sent any more.
    Served {
        /// To whom.
        peer: PeerId,
        /// What for; `None` of what was pushed.
        request: Option<RequestId>,
        /// The blob.
        blob: BlobId,
        /// What.
        chunks: Chunks,
        /// What became of it.
        outcome: Served,
    },
    /// An [`Action::Fetch`] ended; if it went well its chunks are verified and local.
    Fetched {
        /// Which.
        fetch: FetchId,
        /// Whether it went well.
        ok: bool,
    },
    /// Time has passed: asked for by [`Action::WakeAt`], harmless at any other time.
    Tick,
}

/// What became of bytes that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// They are verified and local.
    Kept,
    /// They are not what they should be.
    Corrupt,
    /// This host could not keep them; it is not the peer's fault.
    Failed,
}

/// What became of chunks that were to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// They are sent, or need not be any more.
    Well,
    /// They turned out not to be here.
    Missing,
    /// They are here, but nobody could check them so far, and what is wrong is not to be passed on.
    Unchecked,
}

/// Why a peer is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Offence {
    /// It sent bytes that are not what they should be.
    Corrupt,
    /// It says that it has what it has not, again and again.
    Lies,
    /// It is far slower than others, again and again.
    Slow,
    /// What it sent makes no sense.
    Protocol,
}

/// What the driver is to do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Say this to a host. Messages of a better [`class`](Message::class) overtake others.
    Send {
        /// To whom.
        peer: PeerId,
        /// What.
        message: Message,
    },
    /// Send these chunks to a host, then say [`Event::Served`], of all of them at once or of one run after the
    /// other. Said again of the same request (or of none) and chunks when somebody waits for them who did not before:
    /// what of it still queues moves up to what others wait for, and is sent once.
    Serve {
        /// To whom.
        peer: PeerId,
        /// What it asked for; `None` where it is pushed.
        request: Option<RequestId>,
        /// The blob.
        blob: BlobId,
        /// What.
        chunks: Chunks,
        /// How soon.
        urgency: Urgency,
    },
    /// Fetch these chunks from the blob's store, verify and keep them, then say [`Event::Fetched`]. Said again of the
    /// same fetch when somebody waits for it who did not before: where it still queues, it queues no more. What of it
    /// can be read before the rest may be told before, by [`Event::BecameLocal`].
    Fetch {
        /// The name to answer with.
        fetch: FetchId,
        /// The blob.
        blob: BlobId,
        /// What.
        chunks: Chunks,
        /// How soon.
        urgency: Urgency,
    },
    /// All of a want is local but these, which the disk is to fetch from the store itself, whole chunks of it, and to
    /// tell by [`Event::BecameLocal`].
    Answer {
        /// The want.
        want: WantId,
        /// What the swarm does not bring: runs that ascend and do not overlap.
        elsewhere: Vec<Chunks>,
    },
    /// Close the connection to a host and do not make one again for a while; say so once.
    Drop {
        /// Who.
        peer: PeerId,
        /// What it did.
        offence: Offence,
    },
    /// Send [`Event::Tick`] at this time. It replaces the one before; an earlier one is harmless.
    WakeAt(Time),
}
