//! The daemons of a host: the agent, which is what its disks share, and the one that lends spare flash.
//!
//! | module | what it does |
//! |---|---|
//! | `accepting` | HTTP served on a bounded number of connections |
//! | [`credentials`] | who belongs to a cluster: its certificate authority, hosts' certificates, the gossip key |
//! | [`daemon`] | the agent put together |
//! | [`disks`] | the disks' processes |
//! | [`exposition`] | Prometheus' text format |
//! | [`local`] | the socket between the disks' processes and the agent |
//! | `file` | its small files |
//! | [`harvest`] | the daemon that lends spare flash |
//! | [`keeper`] | what is here because somebody said so |
//! | `pid_file` | processes that daemons start and look after |
//! | [`pins`] | what hosts are to keep together |
//! | [`stores`] | the stores that the agent fetches from |
//! | [`proxy`] | blobs for clients that are not ours, over HTTP |
//! | `rest` | what programs ask for over HTTP |
//! | `scrub` | a slow look at what is in the cache |
//! | [`peers`] | the swarm: connections to other hosts, and the state machine that decides what goes over them |

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
