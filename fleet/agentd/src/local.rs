//! The connection between a disk's process and the agent of its host: a Unix socket that carries no byte of a blob.
//!
//! A disk's process tells the agent which blobs its disks read, which ranges it wants from other hosts, which ranges it
//! fetched from the store itself, and which ranges were read. A *want* is the request for one range. It is over when no
//! more bytes of the range can be expected from other hosts: all have come, or the process has to fetch the rest from
//! the store. The agent answers a want when it is over. The agent also names the blocks that disks of the same image
//! read on other hosts. Bytes that the swarm fetched are stored in the cache, which the agent and the process both have
//! open, so the answer to a want carries no data: the process looks into the cache.
//!
//! A disk never depends on this connection. If there is no agent, if the agent ends, or if the agent is silent for
//! three seconds while a want waits, all wants are over and everything comes from the store. A disk also stops waiting
//! for an answer that takes five seconds longer than the agent may take
//! ([`NodeSettings::longest`](headstart_swarm::NodeSettings::longest)). Without a connection, the disk's process tries
//! to reach the agent again, and sends its state once it does. So an agent that was restarted knows its disks again
//! without further action.
//!
//! | module | content |
//! |---|---|
//! | [`wire`](self) | the messages, and their encoding |
//! | [`client`](AgentSwarm) | the disk's end |
//! | [`server`](LocalServer) | the agent's end |

mod client;
mod server;
mod wire;

pub use client::AgentSwarm;
pub use server::LocalServer;

#[cfg(test)]
mod earlier;
#[cfg(test)]
mod tests;
