//! The messages between hosts. Bytes of chunks travel beside them, with the number of the request that they answer.

use crate::ids::{BlobId, Chunks, PeerKey, Urgency};
use serde::{Deserialize, Serialize};

/// A number for a request of chunks. The requesting host assigns it, and uses it once on each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId(pub u32);

/// A message from one host to another. Blobs go by the sender's numbers on the wire; the driver translates.
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
    /// Send these chunks. Repeated under the same number with more urgency, it is the same request.
    Ask {
        /// The number that the answer carries.
        request: RequestId,
        /// The blob.
        blob: BlobId,
        /// The requested chunks.
        chunks: Chunks,
        /// The urgency.
        urgency: Urgency,
        /// The number of hosts through which the receiver may get chunks that it lacks. 0: it sends only chunks that it
        /// has, or that are on their way to it already.
        hops: u8,
        /// `true` if the asker has tried in vain other hosts that the receiver named before: name none again. With no
        /// hops: send only chunks that are local, and not those that are on their way.
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
        /// Hosts that have them, or will have them soon: to be asked with no hops.
        others: Vec<PeerKey>,
    },
    /// The rest of a request is not needed any more.
    Cancel {
        /// The request.
        request: RequestId,
    },
    /// A request to a root: the sender asks to become one of its agents.
    Join,
    /// The answer to `Join`: the receiver may be an agent of this root.
    JoinAccepted,
    /// The answer to `Join`: the receiver may not be one, or no longer: this root has all the agents that it takes, or
    /// this host is not a root.
    JoinRefused,
    /// A sketch of the sender's recent reads of a blob, as the least hashes of them: to find out which hosts read the
    /// same.
    Sketch {
        /// The blob.
        blob: BlobId,
        /// The least hash of each part.
        least: Vec<u32>,
    },
    /// The sender's disks have read these chunks; it is sent by an agent to its root, because others of the root's
    /// agents may read the same next. Losing it does no harm.
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
    /// Too many bytes are being sent already.
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
