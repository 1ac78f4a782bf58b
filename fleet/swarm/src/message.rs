//! The messages between hosts. The bytes of chunks are no part of messages: they are sent separately, with the number
//! of the request that they answer.

use crate::ids::{BlobId, Chunks, PeerKey, Urgency};
use serde::{Deserialize, Serialize};

/// A number for a request of chunks. The requesting host assigns it, and uses it once on each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId(pub u32);

/// A message from one host to another. On the wire, blobs have the sender's numbers; the receiver's driver (the agent
/// or the simulator) translates these into the receiver's numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// An advert: these chunks have become local on the sender. Losing an advert does no harm.
    Have {
        /// The blob.
        blob: BlobId,
        /// The chunks, in the order in which they became local.
        runs: Vec<Chunks>,
    },
    /// These chunks are no longer local on the sender.
    Lost {
        /// The blob.
        blob: BlobId,
        /// The chunks.
        runs: Vec<Chunks>,
    },
    /// A request: send these chunks. A message with the number of an earlier request repeats that request with more
    /// urgency.
    Ask {
        /// The number that the answer carries.
        request: RequestId,
        /// The blob.
        blob: BlobId,
        /// The requested chunks.
        chunks: Chunks,
        /// The urgency.
        urgency: Urgency,
        /// The number of further hosts through which the receiver may get chunks that it lacks. 0: the receiver sends
        /// only chunks that it has, or that are on their way to it already.
        hops: u8,
        /// `true` if the asker has tried in vain other hosts that the receiver had named: the receiver must not name
        /// any again. If `hops` is 0 as well, the receiver sends only chunks that are local, and none that are on their
        /// way to it.
        no_redirect: bool,
    },
    /// These chunks of a request will come, but not at once: they are on their way to the sender, or wait in a long
    /// queue.
    Pending {
        /// The request.
        request: RequestId,
        /// The chunks.
        chunks: Chunks,
    },
    /// These chunks of a request will not come.
    Reject {
        /// The request.
        request: RequestId,
        /// The chunks.
        chunks: Chunks,
        /// The reason.
        why: RejectReason,
        /// Hosts that have the chunks, or will have them soon. The asker requests the chunks there, with `hops` 0.
        others: Vec<PeerKey>,
    },
    /// The sender no longer needs the chunks of a request that have not come yet.
    Cancel {
        /// The request.
        request: RequestId,
    },
    /// A request to a root: the sender asks to become one of its agents.
    Join,
    /// The answer to `Join`: the sender, a root, has accepted the receiver as one of its agents.
    JoinAccepted,
    /// The answer to `Join`, or a later message: the receiver is not (or no longer) an agent of the sender, because the
    /// sender has all the agents that it takes, or is not a root.
    JoinRefused,
    /// A sketch of the sender's recent reads of a blob, by which hosts find out which of them read the same chunks. See
    /// [`similarity`](crate::similarity).
    Sketch {
        /// The blob.
        blob: BlobId,
        /// For each class of chunks, the least hash of the chunks of that class that were read.
        least: Vec<u32>,
    },
    /// The sender's disks have read these chunks. An agent sends this message to its root, because others of the root's
    /// agents may read the same chunks next. Losing the message does no harm.
    Read {
        /// The blob.
        blob: BlobId,
        /// The chunks, in the order in which they were read.
        runs: Vec<Chunks>,
    },
}

/// The reason why a host does not send the chunks that a peer requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RejectReason {
    /// The chunks are not local.
    Missing,
    /// The host is sending too many bytes already.
    Busy,
    /// The chunks had to be fetched first, and could not be.
    Failed,
    /// The chunks are local, but could not be checked so far: parts of a hash tree, while the nodes above them are
    /// missing.
    Unchecked,
}

/// The priority of a message or of chunks in the queue of a connection. The smallest class is sent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SendClass {
    /// Bytes of chunks that a read waits for.
    DemandReply,
    /// Requests for chunks that a read waits for, and other small messages that must not wait.
    DemandRequest,
    /// Adverts of chunks, reports of reads, and sketches.
    Advert,
    /// Requests for chunks that no read waits for.
    PrefetchRequest,
    /// Bytes of chunks that no read waits for.
    PrefetchReply,
}

impl Message {
    /// The priority of this message in the queue of a connection.
    #[must_use]
    pub fn class(&self) -> SendClass {
        match self {
            Self::Pending { .. }
            | Self::Reject { .. }
            | Self::Cancel { .. }
            | Self::Join
            | Self::JoinAccepted
            | Self::JoinRefused => SendClass::DemandRequest,
            Self::Have { .. } | Self::Lost { .. } | Self::Sketch { .. } | Self::Read { .. } => {
                SendClass::Advert
            }
            Self::Ask { urgency: Urgency::Demand, .. } => SendClass::DemandRequest,
            Self::Ask { urgency: Urgency::Background, .. } => SendClass::PrefetchRequest,
        }
    }
}
