//! What hosts say to each other. Bytes of chunks travel beside it, with the number of the request that they answer.

use crate::ids::{BlobId, Chunks, PeerKey, Urgency};
use serde::{Deserialize, Serialize};

/// A request, by a number that who asks gives; new on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId(pub u32);

/// What one host says to another. Blobs go by the sender's numbers on the wire; the driver translates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// An advert: these chunks have become local at the sender's. Losing one does no harm.
    Have {
        /// The blob.
        blob: BlobId,
        /// What, in the order in which it came there.
        runs: Vec<Chunks>,
    },
    /// These are not there any more.
    Lost {
        /// The blob.
        blob: BlobId,
        /// What.
        runs: Vec<Chunks>,
    },
    /// Send these chunks. Asked again under the same number with more urgency, it is the same request.
    Ask {
        /// The number that the answer carries.
        request: RequestId,
        /// The blob.
        blob: BlobId,
        /// What.
        chunks: Chunks,
        /// How soon.
        urgency: Urgency,
        /// What the receiver has not got it is to get first, through so many hosts at most; 0: only what it has, or
        /// what is on its way to it already.
        hops: u8,
        /// Others that the receiver named before were asked in vain: name none again. With no hops: only what it has,
        /// and not what is on its way to it.
        insist: bool,
    },
    /// These chunks of a request will come, but not at once: they are on their way to the sender, or many wait.
    Coming {
        /// The request.
        request: RequestId,
        /// What.
        chunks: Chunks,
    },
    /// These chunks of a request do not come.
    Sorry {
        /// The request.
        request: RequestId,
        /// What.
        chunks: Chunks,
        /// Why.
        why: Why,
        /// Who has them, or will have them soon: to be asked with no hops.
        others: Vec<PeerKey>,
    },
    /// The rest of a request is not needed any more.
    Cancel {
        /// The request.
        request: RequestId,
    },
    /// May the sender be an agent of this root?
    Join,
    /// It may.
    Welcome,
    /// It may not, or no longer: there are as many agents as this root takes, or it is none.
    Full,
    /// What the sender read lately of a blob, as the least hashes of it: to find out who reads alike.
    Sketch {
        /// The blob.
        blob: BlobId,
        /// The least of so many hashes each.
        least: Vec<u32>,
    },
    /// An agent's disks have read these, to its root: others of its agents may read the same next. Losing it does no
    /// harm.
    Read {
        /// The blob.
        blob: BlobId,
        /// What, in the order in which it was read.
        runs: Vec<Chunks>,
    },
}

/// Why chunks do not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// They are not there.
    Missing,
    /// Too much is being sent already.
    Busy,
    /// They were to be got first, and could not be.
    Failed,
    /// They are there, but could not be checked so far: parts of a hash tree, while what is above them is missing.
    Unchecked,
}

/// In which order what is to be sent is sent: the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Bytes that somebody waits for.
    DemandReply,
    /// Asking for such, and what is as small and as urgent.
    DemandRequest,
    /// Adverts.
    Advert,
    /// Asking for what may be wanted later.
    PrefetchRequest,
    /// Bytes of such.
    PrefetchReply,
}

impl Message {
    /// Its place in the order of sending.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Coming { .. }
            | Self::Sorry { .. }
            | Self::Cancel { .. }
            | Self::Join
            | Self::Welcome
            | Self::Full => Class::DemandRequest,
            Self::Have { .. } | Self::Lost { .. } | Self::Sketch { .. } | Self::Read { .. } => Class::Advert,
            Self::Ask { urgency: Urgency::Demand, .. } => Class::DemandRequest,
            Self::Ask { urgency: Urgency::Background, .. } => Class::PrefetchRequest,
        }
    }
}
