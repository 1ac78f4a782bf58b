//! The contents of parcels: messages, chunks, requests to the store and its answers.

use headstart_swarm::{self as swarm, Message, RequestId};

/// The content of a parcel.
#[derive(Debug)]
pub(super) enum What {
    Message {
        from: u32,
        to: u32,
        connection: u32,
        message: Message,
    },
    Chunk(SentChunk),
    /// An unrequested chunk.
    Junk(SentChunk),
    /// A request to the store.
    StoreRequest(u32),
    /// A part of the store's answer.
    Stored {
        request: u32,
        bytes: u64,
    },
    /// A chunk of a broadcast.
    Spread {
        to: u32,
        number: u32,
    },
}

/// A chunk that a host sends to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentChunk {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) request: Option<RequestId>,
    pub(super) blob: swarm::BlobId,
    pub(super) chunk: u32,
    /// The number of the connection of the two hosts that it goes over.
    pub(super) connection: u32,
    pub(super) corrupt: bool,
    /// `true` if no reader waits for it.
    pub(super) ahead: bool,
}
