//! The state machine by which hosts that boot the same image exchange its chunks.
//!
//! The machine reads no clock, opens no socket, starts no thread and draws no randomness except from its seed: an
//! [`Event`] and the time go in, [`Action`]s come out. The code that passes events in and carries out the actions is
//! the machine's *driver*: the agent, with real connections, or a simulator, with modelled ones. The machine sees no
//! bytes, only which chunks are where.
//!
//! | module | content |
//! |---|---|
//! | [`event`] | the machine's inputs and outputs |
//! | [`message`] | the messages between hosts |
//! | [`settings`] | the settings of a node |
//! | [`placement`] | the host to ask for a chunk, the neighbours of a host |
//! | [`similarity`] | the hosts that read the same chunks |
//! | [`recent`] | the recent requests to a root, and a prediction of the next ones |
//! | [`tracker`] | the slices that disks of an image read, counted while they boot |
//! | [`hints`] | an agent's reports to the tracker, and the plan that it gets in return |
//! | [`node`] | one host: all of the above put together |
//! | [`counters`] | counts of the node's work |

#![forbid(unsafe_code)]

mod bits;
pub mod counters;
pub mod event;
pub mod hints;
mod ids;
pub mod message;
pub mod node;
pub mod placement;
pub mod recent;
mod redirect_tree;
mod retransmit_timer;
pub mod settings;
pub mod similarity;
mod throttle;
pub mod tracker;

pub use counters::NodeCounters;
pub use event::{
    Action, BlobId, BlobKey, Chunks, Event, Offence, PeerId, PeerKey, ReaderId, Role, StoreFetchId, Urgency,
    WantId,
};
#[doc(no_inline)]
pub use headstart_block::Time;
pub use headstart_block::exchange::CHUNK_SIZE;
pub use message::{Message, RejectReason, RequestId, SendClass};
pub use node::Node;
pub use settings::{NodeSettings, Topology};
