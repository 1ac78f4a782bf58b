//! The connection between a disk's process and the agent of its host: a Unix socket that carries no byte of a blob.
//!
//! A disk sends the blobs that it has, the ranges that it wants, those that it fetched from the store itself, and those
//! that it read; the agent answers when a want is over, and sends the blocks that disks of the same image read on other
//! hosts. Bytes that the swarm fetched are stored in the cache that both have open, so the answer to a want carries no
//! data: the disk looks into the cache.
//!
//! The disk never depends on it. If there is no agent, or the agent goes away or does not answer, all wants are over at
//! once and everything comes from the store; the disk tries to reach the agent again meanwhile, and then sends its
//! state again. So an agent that restarts finds its disks again by itself.
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
