//! The daemons of a host: the agent, which its disks share, and the one that lends spare flash.
//!
//! | module | content |
//! |---|---|
//! | `accepting` | HTTP served on a bounded number of connections |
//! | [`credentials`] | the members of a cluster: its certificate authority, hosts' certificates, the gossip key |
//! | [`daemon`] | the assembled agent |
//! | [`disks`] | the disks' processes |
//! | [`exposition`] | Prometheus' text format |
//! | [`local`] | the socket between the disks' processes and the agent |
//! | `file` | its small files |
//! | [`harvest`] | the daemon that lends spare flash |
//! | [`keeper`] | the content that is here by an order |
//! | `pid_file` | processes that daemons start and look after |
//! | [`pins`] | the images that hosts are to keep together |
//! | [`stores`] | the stores that the agent fetches from |
//! | [`proxy`] | blobs for other programs, over HTTP |
//! | `rest` | the interface for programs over HTTP |
//! | `scrub` | a slow verification of the cache |
//! | [`peers`] | the swarm: connections to other hosts, and the state machine that decides on the messages |

mod accepting;
pub mod credentials;
pub mod daemon;
pub mod disks;
pub mod exposition;
mod file;
pub mod harvest;
pub mod keeper;
pub mod local;
pub mod peers;
mod pid_file;
pub mod pins;
pub mod proxy;
mod rest;
#[cfg(test)]
mod sample;
mod scrub;
pub mod stores;

pub use rest::{HttpPort, serve};
