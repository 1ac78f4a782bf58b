//! Hosts that boot the same image help each other: a pure state machine.
//!
//! It reads no clock, opens no socket, starts no thread and draws no randomness but from its seed: an [`Event`] and the
//! time go in, [`Action`]s come out. An agent drives it with real connections, a simulator drives the same code with
//! modelled ones. It sees no bytes, only which chunks are where.
//!
//! | module | what it decides |
//! |---|---|
//! | [`event`] | what goes in and what comes out |
//! | [`message`] | what hosts say to each other |
//! | [`settings`] | knobs |
//! | [`placement`] | who is asked for what, who is whose neighbour |
//! | [`similarity`] | who reads alike |
//! | [`recent`] | what a root was asked for, and what will be asked for next |
//! | [`tracker`] | what disks of an image read, counted while they boot |
//! | [`hints`] | what an agent reports of that, and the plan that it gets for it |
//! | [`node`] | one host: all of the above put together |
//! | [`counters`] | what it did |

#![forbid(unsafe_code)]

mod bits;
mod chain;
pub mod counters;
pub mod event;
pub mod hints;
mod ids;
pub mod message;
pub mod node;
mod patience;
pub mod placement;
pub mod recent;
pub mod settings;
pub mod similarity;
mod throttle;
pub mod tracker;

pub use counters::Counters;
pub use event::{
    Action, BlobId, BlobKey, Chunks, Event, FetchId, Offence, PeerId, PeerKey, ReaderId, Role, Urgency,
    WantId,
};
#[doc(no_inline)]
pub use headstart_block::Time;
pub use message::{Class, Message, RequestId, Why};
pub use node::Node;
pub use settings::{Settings, Topology};

/// Bytes of a chunk, the unit of presence and of exchange; the last of a blob may be short.
pub const CHUNK_SIZE: u64 = 64 << 10;
