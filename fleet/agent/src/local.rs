//! Between a disk's process and the agent of its host: a Unix socket over which no byte of a blob goes.
//!
//! A disk says which blobs it has, what it wants of them, what it brought from the store itself, and what it read; the
//! agent says when a want is over, and what disks of the same image read elsewhere. What the swarm brought lies in the
//! cache that both have open, so a want's answer has nothing in it: the disk looks.
//!
//! The disk never depends on it. Where nobody listens, where the agent goes away or does not answer, all wants are over
//! at once and everything comes from the store; the disk tries to reach the agent again meanwhile, and tells it anew
//! what it has. An agent that restarts so finds its disks again by itself.
//!
//! | module | what it does |
//! |---|---|
//! | [`wire`](self) | the words, and how they become bytes |
//! | [`client`](AgentSwarm) | the disk's end |
//! | [`server`](LocalServer) | the agent's end |

mod client;
mod server;
mod wire;

pub use client::{AgentSwarm, Connection};
pub use server::LocalServer;
pub(crate) use server::bind;

#[cfg(test)]
mod earlier;
#[cfg(test)]
mod tests;
